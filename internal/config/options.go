package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// A Block is a block of a Caddyfile: its options in the order in which the grammar and errors list
// them.
type Block struct {
	place   optionPlace
	Options []Option
}

// An Option is all that is said of an option outside of what it does: parsing, messages, the
// grammar and the page of options go by it.
type Option struct {
	Name string
	// Values are those of its line, in the words of the grammar: <name> stands for a value, [ ] for
	// what may be left out, | for a choice, ... for several.
	Values string
	// Example is such a line.
	Example string
	// JSON is the field's name where it is another one.
	JSON string
	Is   OptionFlags
}

// OptionFlags are what else there is to know of an option.
type OptionFlags uint8

const (
	// Repeats is set where several lines of the option are right.
	Repeats OptionFlags = 1 << iota
	// OfLimit is set where it says something of a limit, so that the zone needs one.
	OfLimit
	// Tells is set where unnamed limits that differ in it are two.
	Tells
	// Older is set of the words of the older plugin. Its migration page alone tells of them.
	Older
)

// Field returns the option's name in JSON.
func (o *Option) Field() string { return cmp.Or(o.JSON, o.Name) }

type optionPlace uint8

const (
	inHandler optionPlace = iota
	inZone
	inGlobal
	inRedis
	inRegions
)

const (
	onOff     = "[on|off]"
	syncRates = "local|strict|<seconds>|<duration>"
	sets      = "ietf|kong|github|off..."
)

// The blocks that there are.
var (
	Zone = Block{inZone, []Option{
		{"match", "@<name>|{ <matchers> }", "match path /login*", "", Repeats | Tells},
		{"except", "@<name>|<cidr>...|private_ranges|{ <matchers> }", "except private_ranges", "", Repeats | Tells},
		{"key", "<template>", "key {client_ip}", "", Tells},
		{"limit", "<rate>...", "limit 100/1m", "limits", 0},
		{"limit_default", "<rate>...", "limit_default 60/1m", "limits[].default", 0},
		{"concurrent", "<requests>", "concurrent 4", "", 0},
		{"algorithm", strings.Join(algorithms.KindNames(), "|"), "algorithm token_bucket", "", OfLimit | Tells},
		{"calendar", "<time zone> [from <day>]", "calendar Europe/Berlin from 15", "", OfLimit},
		{"burst", "<requests>", "burst 50", "", OfLimit},
		{"sub_windows", "<number>", "sub_windows 10", "", OfLimit | Tells},
		{"queue", "<requests>", "queue 10", "", OfLimit},
		{"sync_rate", syncRates, "sync_rate 1s", "", 0},
		{"ipv4_prefix", "<bits>", "ipv4_prefix 24", "", Tells},
		{"ipv6_prefix", "<bits>", "ipv6_prefix 64", "", Tells},
		{"empty_key", strings.Join(EmptyKeyNames, "|"), "empty_key skip", "", Tells},
		{"count_denied", onOff, "count_denied", "", OfLimit | Tells},
		{"count_responses", "<code>...|{ <response matcher> }", "count_responses 401 403", "", OfLimit | Tells},
		{"forgive_responses", "<code>...|{ <response matcher> }", "forgive_responses 303", "", OfLimit | Tells},
		{"cost", "<number>|<placeholder>|bytes [* <factor>]", "cost 10", "", Repeats | OfLimit},
		{"cost_default", "<number>", "cost_default 10", "", 0},
		{"response_cost", "header <field>|json <path>...|bytes|<placeholder> [* <factor>]", "response_cost json usage.total_tokens", "", Repeats | OfLimit},
		{"response_cost_default", "<number>", "response_cost_default 4000", "", 0},
		{"on_redis_loss", strings.Join(OnRedisLossNames, "|"), "on_redis_loss divide", "", 0},
		{"early_sync", onOff, "early_sync off", "", 0},
		{"regions", onOff, "regions off", "", 0},
		{"bandwidth", "<size>/s", "bandwidth 1MiB/s", "", Tells},
		{"max_keys", "<number>", "max_keys 100000", "", 0},
		{"headers", sets, "headers off", "", 0},
		{"enforce", "<share>|off", "enforce 25%", "", 0},
		{"ban", "<duration> [after <rate>] [growing <duration>]", "ban 15m after 3/10m growing 1d", "", OfLimit},
		{"reserve", "@<name> <share>", "reserve @paying 20%", "", Repeats | OfLimit},
		{"window", "<duration>", "window 1m", "", Tells | Older},
		{"events", "<number>", "events 100", "max_events", Tells | Older},
	}}
	Handler = Block{inHandler, []Option{
		{"zone", "<name> { … }", "zone login { … }", "rate_limits", Repeats},
		{"sync_rate", syncRates, "sync_rate 1s", "", 0},
		{"status", "<code>", "status 429", "status_code", 0},
		{"message", "<text>", `message "slow down"`, "", 0},
		{"headers", sets, "headers ietf", "", 0},
		{"jitter", "<share>", "jitter 0.1", "", 0},
		{"log_key", onOff, "log_key", "", 0},
		{"sweep_interval", "<duration>", "sweep_interval 1m", "", Older},
		{"disable_metrics", onOff, "disable_metrics", "", 0},
		{"distributed", "{ … }", "distributed { … }", "", Older},
	}}
	// Unnamed is the block after rates, whose limit has no zone block.
	Unnamed     = Block{inZone, slices.Concat(Handler.Options[1:], Zone.Options)}
	Distributed = Block{inHandler, []Option{
		{"read_interval", "<duration>", "read_interval 5s", "", 0},
		{"write_interval", "<duration>", "write_interval 5s", "", 0},
		{"purge_age", "<duration>", "purge_age 1m", "", 0},
	}}
	Global = Block{inGlobal, []Option{
		{"redis", "<url>...|storage|off|[simple|sentinel|cluster] { … }", "redis redis://localhost:6379", "", 0},
		{"sync_rate", syncRates, "sync_rate 1s", "", 0},
		{"namespace", "<name>", "namespace shop", "", 0},
		{"strict_timeout", "<duration>", "strict_timeout 100ms", "", 0},
		{"persist", "[on|off|storage|<file>]", "persist /var/lib/caddy/rate_limit", "", 0},
		{"quiet", "<code>...", "quiet TIDE024", "", 0},
		{"regions", "{ … }", "regions { … }", "", 0},
	}}
	Redis = Block{inRedis, []Option{
		{"address", "<host:port>...", "address localhost:6379", "", 0},
		{"username", "<name>", "username tide", "", 0},
		{"password", "<secret>", "password {env.REDIS_PASSWORD}", "", 0},
		{"db", "<number>", "db 0", "", 0},
		{"timeout", "<duration>", "timeout 1s", "", 0},
		{"master_name", "<name>", "master_name mymaster", "", 0},
		{"sentinel_username", "<name>", "sentinel_username watcher", "", 0},
		{"sentinel_password", "<secret>", "sentinel_password {env.SENTINEL_PASSWORD}", "", 0},
		{"tls_enabled", onOff, "tls_enabled", "", 0},
		{"tls_insecure", onOff, "tls_insecure", "", 0},
		{"tls_server_certs_path", "<directory>", "tls_server_certs_path /etc/ssl/redis", "", 0},
		{"tls_client_cert", "<file>", "tls_client_cert /etc/caddy/node.pem", "", 0},
		{"tls_client_key", "<file>", "tls_client_key /etc/caddy/node.key", "", 0},
		{"tls_server_name", "<name>", "tls_server_name redis.internal", "", 0},
		{"pool_size", "<number>", "pool_size 10", "", 0},
	}}
	Regions = Block{inRegions, []Option{
		{"here", "<name>", "here {env.TIDE_REGION}", "", 0},
		{"region", "<name> <url>...|{ … }", "region eu rediss://redis.eu.example.com:6380", "redis", Repeats},
		{"sync_rate", "<duration>", "sync_rate 1s", "", 0},
		{"on_loss", "local|divide", "on_loss divide", "", 0},
	}}
)

// Find returns an option of the block, nil where it has none of that name.
func (b Block) Find(name string) *Option {
	if i := slices.IndexFunc(b.Options, func(o Option) bool { return o.Name == name }); i >= 0 {
		return &b.Options[i]
	}
	return nil
}

// Has reports whether an option is one of the block's.
func (b Block) Has(name string) bool { return b.Find(name) != nil }

// begins returns the longest option that a name begins with, as a word of it, "" for none.
func (b Block) begins(name string) (longest string) {
	for _, o := range b.Options {
		if strings.HasPrefix(name, o.Name+"_") && len(o.Name) > len(longest) {
			longest = o.Name
		}
	}
	return longest
}

func (b Block) names() (all []string) {
	for _, o := range b.Options {
		if o.Is&Older == 0 {
			all = append(all, o.Name)
		}
	}
	return all
}

// findAnywhere returns an option of any block, a nameless one where there is none.
func findAnywhere(name string) *Option {
	for _, b := range []Block{Handler, Zone, Global, Redis, Distributed, Regions} {
		if o := b.Find(name); o != nil {
			return o
		}
	}
	return new(Option)
}

// ExampleOf returns how an option is written right.
func ExampleOf(name string) string { return cmp.Or(findAnywhere(name).Example, name+" <value>") }

// FieldOf returns an option's name in JSON.
func FieldOf(name string) string { return cmp.Or(findAnywhere(name).JSON, name) }

// IsRepeatable reports whether several lines of an option are right.
func IsRepeatable(name string) bool { return findAnywhere(name).Is&Repeats != 0 }

// UnknownOption returns the error for an option that a block doesn't have: where it belongs, what
// it looks like, or which options there are.
func UnknownOption(name string, b Block) error {
	if mend := otherOptions[name]; mend != "" {
		return fmt.Errorf("there is no option %q here; %s", name, b.here(mend))
	}
	if err := misplaced(name, b); err != nil {
		return err
	}
	if near := spelling.Nearest(name, b.names()); near != "" {
		return fmt.Errorf("there is no option %q here; did you mean %s?", spelling.Clip(name), near)
	}
	switch {
	case name == "{":
		return errors.New("a block opens after an option that takes none; remove the braces, or write each option on its own line")
	case Handler.Has(name):
		return fmt.Errorf("%s is not an option of a zone; move it out of the zone's braces, beside the zone", name)
	}
	if before, after, _ := strings.Cut(name, "_"); (before == "match" || before == "except") && isMatcherName(after) {
		return fmt.Errorf("there is no option %q here; %s", spelling.Clip(name), b.here(fmt.Sprintf("write `%s { %s … }`", before, after)))
	}
	if near := b.begins(name); near != "" {
		return fmt.Errorf("there is no option %q here; did you mean %s?", spelling.Clip(name), near)
	}
	return fmt.Errorf("there is no option %q here; the options are %s", spelling.Clip(name), strings.Join(b.names(), ", "))
}

// here adds to what to write where that stands, if not in this block.
func (b Block) here(mend string) string {
	_, option, _ := strings.Cut(mend, "write `") // the first one that it names
	option, _, _ = strings.Cut(option, "`")
	option, _, _ = strings.Cut(option, " ")
	if (b.place == inZone || b.place == inHandler) && Global.Has(option) && !Unnamed.Has(option) {
		return mend + ", in the global option rate_limit at the top"
	}
	if nextToRate := b.Has("key") && b.Has("status"); nextToRate {
		if strings.Contains(mend, "`limit") {
			return "write every rate after rate_limit, like `rate_limit 10/s 1000/1h`"
		}
		return strings.TrimSuffix(mend, outside)
	}
	switch {
	case b.place == inGlobal && option != "" && !Global.Has(option):
		return mend + ", into the block after rate_limit in a site"
	case b.place != inHandler:
		return mend
	case Zone.Has(option) && !Handler.Has(option):
		return mend + ", into the block of a zone, like `zone login`"
	}
	return strings.TrimSuffix(mend, outside)
}

// misplaced returns the error for a word that is right in another place than this block, nil if
// there is no such place.
func misplaced(name string, b Block) error {
	switch {
	case b.place == inGlobal && (Handler.Has(name) || Zone.Has(name)):
		return fmt.Errorf("%s belongs into a site, not into the global options; move it into the block after rate_limit in a site", name)
	case b.place == inRegions && Redis.Has(name):
		return fmt.Errorf("%s is an option of one region's Redis; move it into the braces of a region, like `region eu { … }`", name)
	case b.place == inRedis && Global.Has(name):
		return fmt.Errorf("%s is an option beside redis, not one of redis itself; move it out of the braces of redis", name)
	case b.place == inGlobal, b.place == inRedis, b.place == inRegions:
	case Global.Has(name):
		return fmt.Errorf("%s belongs into the global options, not into a site; move it to the block without a site at the top of the Caddyfile, into rate_limit there, as `%s`", name, ExampleOf(name))
	case isMatcherName(name) && b.place == inZone:
		return fmt.Errorf("%s is a matcher, not an option; put it into the block of match", name)
	case isMatcherName(name):
		return fmt.Errorf("%s is a matcher, not an option; put it into the match block of a zone", name)
	}
	if slices.Contains(directives, name) {
		return fmt.Errorf("%s is a directive, not an option; close the block before it with a }", name)
	}
	return nil
}

// directives are Caddy's own, without those that are options here. One of them among options means
// that a brace is not closed before it.
var directives = strings.Fields(`
	abort acme_server basic_auth basicauth bind encode error file_server forward_auth fs handle handle_errors handle_path header import intercept invoke
	log log_append log_name log_skip map method metrics php_fastcgi push rate_limit redir request_body request_header respond reverse_proxy rewrite root route
	skip_log templates tls tracing try_files uri vars`)
