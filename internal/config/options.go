package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// A Block is a block of a Caddyfile: its options in the order in which errors list them.
type Block struct {
	place   optionPlace
	options []hintOption
}

// An hintOption is a name and how the whole line is written right, "" for the name and any value.
type hintOption struct{ name, example string }

type optionPlace uint8

const (
	inHandler optionPlace = iota
	inZone
	inGlobal
	inRedis
	inRegions
)

// The blocks that there are.
var (
	Handler = Block{inHandler, []hintOption{
		{"zone", "zone login { … }"}, {"sync_rate", "sync_rate 1s"}, {"status", "status 429"}, {"message", `message "slow down"`},
		{"headers", "headers draft"}, {"jitter", "jitter 0.1"}, {"log_key", "log_key"}, {"sweep_interval", "sweep_interval 1m"},
		{"disable_metrics", "disable_metrics"}, {"disable_placeholders", "disable_placeholders"},
		{"distributed", "distributed { … }"},
	}}
	Zone = Block{inZone, []hintOption{
		{"match", "match { … }"}, {"except", "except private_ranges"}, {"key", "key {client_ip}"}, {"limit", "limit 100/1m"}, {"limit_default", "limit_default 60/1m"}, {"concurrent", "concurrent 4"}, {"algorithm", "algorithm token_bucket"},
		{"burst", "burst 50"}, {"buckets", "buckets 10"}, {"queue", "queue 10"}, {"sync_rate", "sync_rate 1s"},
		{"ipv4_prefix", "ipv4_prefix 24"}, {"ipv6_prefix", "ipv6_prefix 64"}, {"empty_key", "empty_key skip"}, {"count_denied", "count_denied"}, {"count_responses", "count_responses 401 403"},
		{"cost", "cost 10"}, {"cost_default", "cost_default 10"}, {"response_cost", "response_cost json usage.total_tokens"}, {"response_cost_default", "response_cost_default 4000"},
		{"on_redis_loss", "on_redis_loss divide"}, {"early_sync", "early_sync off"}, {"regions", "regions off"}, {"bandwidth", "bandwidth 1MiB/s"}, {"max_keys", "max_keys 100000"}, {"headers", "headers off"}, {"enforce", "enforce 25%"}, {"ban", "ban 15m after 3/10m"}, {"reserve", "reserve @paying 20%"},
		{"window", "window 1m"}, {"events", "events 100"},
	}}
	// Unnamed is the block after rates, whose limit has no zone block.
	Unnamed = Block{inZone, slices.Concat(Handler.options[1:], Zone.options)}
	Global  = Block{inGlobal, []hintOption{
		{"redis", "redis redis://localhost:6379"}, {"regions", "regions { … }"}, {"sync_rate", "sync_rate 1s"}, {"namespace", "namespace shop"},
		{"strict_timeout", "strict_timeout 100ms"}, {"persist", "persist`, or `persist /var/lib/caddy/rate_limit"}, {"quiet", "quiet TIDE024"},
	}}
	Regions = Block{inRegions, []hintOption{
		{"here", "here {env.TIDE_REGION}"}, {"region", "region eu rediss://redis.eu.example.com:6380"}, {"sync_rate", "sync_rate 1s"}, {"on_loss", "on_loss divide"},
	}}
	Redis = Block{inRedis, []hintOption{
		{"key_prefix", "key_prefix shop"}, {"master_name", "master_name mymaster"}, {"password", "password {env.REDIS_PASSWORD}"}, {"sentinel_password", "sentinel_password {env.SENTINEL_PASSWORD}"}, {"sentinel_username", "sentinel_username watcher"},
		{"tls_client_cert", "tls_client_cert /etc/caddy/node.pem"}, {"tls_client_key", "tls_client_key /etc/caddy/node.key"}, {"tls_server_certs_path", "tls_server_certs_path /etc/ssl/redis"}, {"tls_server_certs_pem", "tls_server_certs_pem {file./etc/ssl/redis.pem}"}, {"tls_server_name", "tls_server_name redis.internal"}, {"username", "username tide"},
		{"address", "address localhost:6379"}, {"db", "db 0"}, {"timeout", "timeout 1s"}, {"tls_enabled", "tls_enabled"}, {"tls_insecure", "tls_insecure"}, {"pool_size", "pool_size 10"},
	}}
	Distributed = Block{inHandler, []hintOption{
		{"read_interval", "read_interval 5s"}, {"write_interval", "write_interval 5s"}, {"purge_age", "purge_age 1m"},
	}}
)

// Has reports whether an option is one of the block's.
func (b Block) Has(name string) bool {
	return slices.ContainsFunc(b.options, func(o hintOption) bool { return o.name == name })
}

// begins returns the longest option that a name begins with, as a word of it, "" for none.
func (b Block) begins(name string) (longest string) {
	for _, o := range b.options {
		if strings.HasPrefix(name, o.name+"_") && len(o.name) > len(longest) {
			longest = o.name
		}
	}
	return longest
}

func (b Block) names() (all []string) {
	for _, o := range b.options {
		all = append(all, o.name)
	}
	return all
}

// ExampleOf returns how an option is written right.
func ExampleOf(name string) string {
	for _, b := range []Block{Handler, Zone, Global, Redis, Distributed, Regions} {
		for _, o := range b.options {
			if o.name == name && o.example != "" {
				return o.example
			}
		}
	}
	return name + " <value>"
}

// UnknownOption returns the error for an option that a block doesn't have: where it belongs, what
// it looks like, or which options there are.
func UnknownOption(name string, b Block) error {
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
	case otherOptions[name] != "":
		return fmt.Errorf("there is no option %q here; %s", name, b.here(otherOptions[name]))
	}
	if before, after, _ := strings.Cut(name, "_"); (before == "match" || before == "except") && isMatcherName(after) {
		return fmt.Errorf("there is no option %q here; %s", spelling.Clip(name), b.here(fmt.Sprintf("write `%s { %s … }`", before, after)))
	}
	if near := b.begins(name); near != "" {
		return fmt.Errorf("there is no option %q here; did you mean %s?", spelling.Clip(name), near)
	}
	return fmt.Errorf("there is no option %q here; the options are %s", spelling.Clip(name), strings.Join(b.names(), ", "))
}

// here says what to write where a zone's options are meant, for another block as well.
func (b Block) here(mend string) string {
	if nextToRate := b.Has("key") && b.Has("status"); nextToRate {
		if strings.Contains(mend, "`limit") {
			return "write every rate after rate_limit, like `rate_limit 10/s 1000/1h`"
		}
		return strings.TrimSuffix(mend, outside)
	}
	if b.place != inHandler {
		return mend
	}
	if mend, ok := strings.CutSuffix(mend, outside); ok {
		return mend
	}
	return mend + ", into the block of a zone, like `zone login`"
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
		text, _, _ := strings.Cut(ExampleOf(name), "`")
		return fmt.Errorf("%s belongs into the global options, not into a site; move it to the block without a site at the top of the Caddyfile, into rate_limit there, as `%s`", name, text)
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
