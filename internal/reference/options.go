package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/config"
)

// grammarOf are the lines of a block, in columns.
func grammarOf(b config.Block, indent string) string {
	width := 0
	for _, o := range b.Options {
		width = max(width, len(o.Name))
	}
	var text strings.Builder
	for _, o := range b.Options {
		if o.Is&config.Older != 0 {
			continue
		}
		text.WriteString(indent + strings.TrimRight(fmt.Sprintf("%-*s %s", width, o.Name, strings.ReplaceAll(o.Values, "…", "...")), " ") + "\n")
	}
	return text.String()
}

func (s *source) grammar() string {
	return "In a site, a `route` or a `handle`:\n\n```text\n" +
		"rate_limit [<matcher>] <rate>... {\n\t<options of the limit and of the handler>\n}\n\nrate_limit [<matcher>] {\n\tzone <name> {\n" + grammarOf(config.Zone, "\t\t") + "\t}\n\n\t# options of the handler\n" +
		grammarOf(config.Block{Options: config.Handler.Options[1:]}, "\t") + "}\n```\n\nAmong the global options, at the top of the Caddyfile:\n\n```text\nrate_limit {\n" +
		grammarOf(config.Global, "\t") + "}\n\nredis {\n" + grammarOf(config.Redis, "\t") + "}\n\nregions {\n" + grammarOf(config.Regions, "\t") + "}\n```\n"
}

// A section is a block of the grammar on the page of options.
type section struct {
	title, intro string
	of           string // the type of its JSON
	where        string // follows the name of an option that an earlier section has as well
	block        config.Block
}

var sections = []section{
	{"Options of a limit", "In the block of a `zone`, or after a rate; in JSON in an entry of `rate_limits`.", "Zone", "", config.Zone},
	{"Options of the handler", "In the block of the directive, for all its zones.", "Handler", "of the handler", config.Handler},
	{"Global options", "In the block `rate_limit` among the global options; in JSON the app `rate_limit`.", "App", "among the global options", config.Global},
	{"Redis options", "In the block of `redis`; in JSON its fields. `{env.*}` and `{file.*}` work in every text, and secrets are never logged.", "Options", "of Redis", config.Redis},
	{"Options of regions", "In the block of [`regions`](regions.md).", "Regions", "of regions", config.Regions},
}

// nested are the types of options that are objects in JSON.
var nested = map[string][]string{"limit": {"Limit"}, "ban": {"Ban", "BanAfter"}, "reserve": {"Reserve"}, "cost": {"CostTerm"}}

// further is where more is said of an option.
var further = map[string]string{
	"match": "[Matching](security.md#requests-that-a-zone-matches)", "except": "[Exceptions](keys.md#exceptions)", "key": "[Keys](keys.md)",
	"limit": "[Rates](configuration.md#rates)", "limit_default": "[Placeholders](configuration.md#limits-that-come-with-the-request)",
	"concurrent": "[Concurrency](concurrent.md)", "algorithm": "[Algorithms](algorithms.md)", "calendar": "[Quotas](quotas.md#the-calendar)", "burst": "[Bursts](algorithms.md#token_bucket)",
	"queue": "[Queues](algorithms.md#leaky_bucket)", "sync_rate": "[Sync](sync.md)", "ipv6_prefix": "[Networks](security.md#networks)",
	"empty_key": "[Keys](keys.md#empty-keys)", "count_responses": "[Logins](login.md)", "forgive_responses": "[Logins](login.md#a-right-login)", "cost": "[Costs](cost.md)", "response_cost": "[Tokens](cost.md#tokens-of-a-model)", "zone": "[Names](configuration.md#names-of-limits)",
	"on_redis_loss": "[Outages](outages.md)", "on_loss": "[Losses](regions.md#when-a-region-is-lost)", "early_sync": "[Intervals](sync.md#an-interval)", "regions": "[Regions](regions.md)", "bandwidth": "[Downloads](bandwidth.md)",
	"max_keys": "[Floods](security.md#floods-of-keys)", "enforce": "[Shadow](shadow.md)", "ban": "[Bans](ban.md)", "reserve": "[Reserves](reserve.md)",
	"headers": "[Headers](responses.md#headers)", "message": "[Responses](responses.md)", "log_key": "[Privacy](security.md#what-is-stored-of-a-key)",
	"persist": "[Restarts](outages.md#keep-counts-without-redis)", "redis": "[Redis](redis.md)", "strict_timeout": "[Outages](outages.md#strict-zones)",
	"username": "[Permissions](redis.md#acl)",
}

const optionsIntro = `# What does each option do?

[Configuration](configuration.md) says where options go, and has the
[grammar](configuration.md#grammar). Each begins with an example. Where no default is named, there
is none; a flag is off, and on without a value. Durations are Caddy's, ` + "`90s`, `1h30m`, `1d`" + `, at most
ten years; in JSON also nanoseconds. A kB is 1,000 bytes, a KiB 1,024.
`

func (s *source) optionsPage() string {
	var page strings.Builder
	page.WriteString(optionsIntro)
	seen := map[string]bool{}
	for _, of := range sections {
		page.WriteString("\n## " + of.title + "\n\n" + wrap(of.intro, ""))
		for i := range of.block.Options {
			o := &of.block.Options[i]
			if o.Is&config.Older != 0 {
				continue
			}
			heading := o.Name
			if seen[o.Name] {
				heading += " " + of.where
			}
			seen[o.Name] = true
			page.WriteString("\n### " + heading + "\n\n" + s.entry(of, o, heading != o.Name))
		}
		page.WriteString(s.onlyInJSON(of))
	}
	return page.String()
}

// entry is what the page has of an option: an example, and its syntax where there is a choice. An
// option of an earlier section is shorter.
func (s *source) entry(of section, o *config.Option, again bool) string {
	name := o.Field()
	f := s.structs[of.of][name]
	if name == "limits[].default" {
		f = s.structs["Limit"]["default"]
	}
	begin := "`" + o.Example + "`"
	if !again && strings.Contains(strings.ReplaceAll(o.Values, "[on|off]", ""), "|") {
		begin = "`" + o.Name + " " + o.Values + "`, as " + begin
	}
	if name != o.Name {
		begin += ", in JSON `" + name + "`"
	}
	text := strings.TrimSpace(begin + ": " + lower(marked(f.text)) + " " + f.facts(o))
	if more := further[o.Name]; more != "" && !again {
		text += " " + more + "."
	}
	entry := wrap(text, "")
	if o.Name == "redis" {
		entry += "\n" + redisURLs
	}
	list := ""
	for _, inner := range nested[o.Name] {
		for _, key := range s.names[inner] {
			if g := s.structs[inner][key]; o.Name != "limit" || key != "default" {
				list += wrap(strings.TrimSpace("- JSON `"+key+"`: "+lower(marked(g.text+" "+g.bounds()))), "  ")
			}
		}
	}
	if list != "" {
		entry += "\n" + list
	}
	return entry
}

// lower begins a text in lower case, unless it begins with a name.
func lower(text string) string {
	if len(text) > 1 && strings.ToUpper(text[1:2]) == text[1:2] && text[1] != ' ' {
		return text
	}
	return strings.ToLower(text[:1]) + text[1:]
}

// bounds are the default and the range.
func (f *field) bounds() string {
	text := "Default: " + f.initial + "."
	if more, none := strings.CutPrefix(f.initial, "none"); none {
		text = sentence(more)
	}
	if f.span != "" {
		text += " Range: " + f.span + "."
	}
	return strings.TrimSpace(text)
}

// sentence is what a comment adds to a default that is none.
func sentence(more string) string {
	if more = strings.TrimPrefix(more, "; "); more != "" {
		more = upper(marked(more)) + "."
	}
	return more
}

var plainWord = regexp.MustCompile(`"?[a-z0-9_:/]+"?`)

// facts are the default, the range, and the version that brought the option, if that is not the
// first one. What the grammar lists is marked as code, and no range if it lists all.
func (f *field) facts(o *config.Option) string {
	text := "**Default**: " + marked(strings.Replace(f.initial, "false", "off", 1)) + "."
	switch f.initial {
	case "true":
		text = "**Default**: on."
	case "false":
		text = ""
	}
	if more, none := strings.CutPrefix(f.initial, "none"); none {
		text = sentence(more)
	}
	choices := strings.FieldsFunc(o.Name+" "+o.Values, func(r rune) bool { return strings.ContainsRune("|. ", r) })[1:]
	rest := plainWord.ReplaceAllStringFunc(f.span, func(word string) string {
		if slices.Contains(choices, strings.Trim(word, `"`)) {
			return "`" + strings.Trim(word, `"`) + "`"
		}
		return marked(word)
	})
	if listed.ReplaceAllString(rest, "") != "" {
		text += " **Range**: " + rest + "."
	}
	if f.since != since {
		text += " **Since**: " + f.since + "."
	}
	return strings.TrimSpace(text)
}

// listed is a range that has nothing but choices of the grammar.
var listed = regexp.MustCompile("^(`\\w+`|,| |or|several of them|a path)+$")

// onlyInJSON lists the fields that a Caddyfile has no *config.Option for.
func (s *source) onlyInJSON(of section) (text string) {
	for _, key := range s.names[of.of] {
		if key == "storage" || slices.ContainsFunc(of.block.Options, func(o config.Option) bool { return o.Field() == key }) {
			continue
		}
		f := s.structs[of.of][key]
		text += wrap(strings.TrimSpace("- `"+key+"`: "+lower(marked(f.text+" "+f.bounds()))), "  ")
	}
	if text != "" {
		text = "\nIn JSON alone:\n\n" + text
	}
	return text
}

const redisURLs = `| URL | meaning |
|---|---|
| ` + "`redis://[user:password@]host[:port][/db]`" + ` | one server |
| ` + "`rediss://…`" + ` | the same with TLS |
| ` + "`unix://[user:password@]/path[?db=0]`" + ` | a unix socket |
| ` + "`redis://host1,host2,host3`" + `, or several URLs | a Cluster |
| ` + "`redis://host1,host2?master_name=<name>`" + ` | sentinels, by default on port 26379 |

Options after ` + "`?`: `addr` (one more address), `db`, `master_name`, `sentinel_username`," + `
` + "`sentinel_password`, `pool_size`, `protocol` (2 or 3), `timeout` (or the longest of `dial_timeout`," + `
` + "`read_timeout`, `write_timeout`), `skip_verify`." + ` Special characters in a user name or password are
percent-encoded. ` + "`redis off`, as in `redis {$REDIS_URL:off}`," + ` is no Redis; an empty value is the
same, with a [warning](warnings.md#tide011). ` + "`redis storage`" + ` uses the client of Caddy's global
` + "`storage`" + `, if that is a Redis and lends it.
`
