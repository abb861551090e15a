package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

const (
	maxSiteText  = 64 // characters of a site's address in a name, longer ones are cut and hashed
	maxRatesText = 40 // the same for the rates
)

// autoName returns the name of an unnamed limit: its site's address and its rates, as in
// `api.example.com 100/1m`. Where alike says that the site has another limit with the same rates,
// or the site is unknown (""), a hash of what it counts follows in parentheses. Options that only
// tune the limit are no part of the name, so that changing them keeps the counters.
//
// The name depends on nothing outside of the site. So it is the same on every node that has this
// site, and other sites can come, go and move without changing it.
func autoName(site string, alike bool, matcher caddy.ModuleMap, z Zone, namedRoute bool) (string, error) {
	var s settings
	if err := z.limits(&s); err != nil {
		return "", err
	}
	rates := make([]string, len(s.limits))
	for i, limit := range s.limits {
		rates[i] = limit.String()
	}
	name := strings.Join(rates, " ")
	if len(name) > maxRatesText {
		name = name[:strings.LastIndexByte(name[:maxRatesText], ' ')+1] + "~" + shortHash([]byte(name), 4)
	}
	if site != "" {
		name = siteText(site) + " " + name
		if !alike {
			return name, nil
		}
	}
	hash, err := shapeHash(matcher, z, namedRoute)
	if err != nil {
		return "", fmt.Errorf("naming the limit: %w", err)
	}
	return name + " (" + hash + ")", nil
}

// shapeHash hashes what tells limits with the same rates apart: which requests they count and by
// what. Named routes are adapted apart from sites, without knowing what names are taken there, so
// they are part of it for the case that the site is unknown.
func shapeHash(matcher caddy.ModuleMap, z Zone, namedRoute bool) (string, error) {
	z.SyncRate, z.MaxKeys, z.OnRedisLoss, z.EarlySync = nil, nil, "", nil
	z.Limits, z.Burst, z.Queue, z.Source = nil, nil, nil, ""
	shape, err := json.Marshal(struct {
		Matcher    caddy.ModuleMap
		Zone       Zone
		NamedRoute bool
	}{matcher, z, namedRoute})
	return shortHash(shape, 3), err
}

func shortHash(text []byte, bytes int) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:bytes])
}

// siteText returns a site's address as part of a name: in lower case, at most maxSiteText
// characters, and with every character percent-encoded that a name, a structured field or a
// placeholder can't hold. Different addresses have different texts.
func siteText(address string) string {
	var b strings.Builder
	for _, c := range []byte(strings.ToLower(address)) {
		if c <= ' ' || c > '~' || strings.IndexByte(`"\{}%`, c) >= 0 {
			fmt.Fprintf(&b, "%%%02x", c)
			continue
		}
		b.WriteByte(c)
	}
	text := b.String()
	if len(text) > maxSiteText {
		return text[:maxSiteText-9] + "~" + shortHash([]byte(text), 4)
	}
	return text
}

// numbered returns the name of the n-th of several limits that autoName gives one name.
func numbered(name string, n int) string {
	if before, ok := strings.CutSuffix(name, ")"); ok {
		return fmt.Sprintf("%s %d)", before, n)
	}
	return fmt.Sprintf("%s (%d)", name, n)
}

// autoParts splits a name that autoName and numbered made. rates is nil for any other name.
// suffix is what stands in the parentheses at its end.
func autoParts(name string) (site string, rates []rate, suffix string) {
	before, suffix, found := strings.Cut(name, " (")
	if found && !strings.HasSuffix(suffix, ")") || strings.Contains(suffix, "(") {
		return "", nil, ""
	}
	for before != "" {
		i := strings.LastIndexByte(before, ' ')
		r, err := parseRate(before[i+1:])
		if err != nil {
			break
		}
		rates = append(rates, r)
		before = before[:max(i, 0)]
	}
	slices.Reverse(rates)
	return before, rates, strings.TrimSuffix(suffix, ")")
}

// autoShape returns what unnamed limits have in common that differ in their numbers only, "" for a
// zone with a name.
func autoShape(name string) string {
	site, rates, suffix := autoParts(name)
	if rates == nil {
		return ""
	}
	for _, r := range rates {
		site += " " + windowText(r.window)
	}
	return site + " (" + suffix
}

// isNumbered reports whether a name tells its limit from an identical one by the order in which
// they stand in their site.
func isNumbered(name string) bool {
	_, rates, suffix := autoParts(name)
	number := suffix[strings.LastIndexByte(suffix, ' ')+1:]
	n, err := strconv.Atoi(number)
	return rates != nil && err == nil && n > 1 && len(number) < 6 // a hash may be all digits
}

// fingerprint is all of the settings but the name, as text: two zones of one name must have the same one. Which requests match is not a
// setting: zones of one name may match different ones and share the count.
func (s settings) fingerprint() string { return strings.Join(s.lines(), "\n") }

// lines are the settings as lines of a Caddyfile, always the same ones in the same order.
func (s settings) lines() []string {
	var limits strings.Builder
	for _, limit := range s.limits {
		limits.WriteString(" " + limit.String())
	}
	return []string{
		"limit" + limits.String(),
		fmt.Sprintf("key %q", s.keyTemplate),
		"algorithm " + s.kind.String(),
		fmt.Sprintf("burst %d", s.burst),
		fmt.Sprintf("buckets %d", s.buckets),
		fmt.Sprintf("queue %d", s.queue),
		fmt.Sprintf("sync_rate %s", s.syncRate),
		fmt.Sprintf("ipv4_prefix %d", s.ipv4Prefix),
		fmt.Sprintf("ipv6_prefix %d", s.ipv6Prefix),
		"empty_key " + emptyKeyNames[s.emptyKey],
		fmt.Sprintf("count_denied %t", s.countDenied),
		"on_redis_loss " + redisLossNames[s.onLoss],
		fmt.Sprintf("early_sync %t", s.earlySync),
		fmt.Sprintf("max_keys %d", s.maxKeys),
	}
}

// registry holds the zones of one configuration by name. It is not safe for concurrent use.
type registry struct {
	zones map[string]registered
}

type registered struct {
	settings
	where string
}

// add refuses a zone whose name is taken by one with other settings. where says which handler or line it is in.
func (r *registry) add(s settings, where string) error {
	first, taken := r.zones[s.name]
	if !taken {
		if r.zones == nil {
			r.zones = map[string]registered{}
		}
		r.zones[s.name] = registered{s, where}
		return nil
	}
	theirs, ours := first.lines(), s.lines()
	for i := range ours {
		if ours[i] != theirs[i] {
			return fmt.Errorf("zone %q: %s has `%s`, and %s has `%s`; give one of them another name, or both the same settings",
				s.name, first.where, theirs[i], where, ours[i])
		}
	}
	return nil
}
