package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// autoPrefix begins the names of unnamed zones.
const autoPrefix = "auto-"

// autoName is the name of an unnamed zone: a hash of what it counts, and one of how much it allows. It is the same on every node with the same configuration, and
// another site does not change it. It leaves out the options that only tune, so that changing them keeps the counters. Named routes are adapted apart
// from sites, without knowing what names are taken there, so they are part of the hash.
func autoName(matcher caddy.ModuleMap, z Zone, namedRoute bool) (string, error) {
	z.SyncRate, z.MaxKeys, z.OnRedisLoss, z.EarlySync = nil, nil, "", nil
	numbers, err := json.Marshal([]any{z.Limits, z.Burst, z.Queue})
	if err != nil {
		return "", fmt.Errorf("naming the limit: %w", err)
	}
	windows := make([]caddy.Duration, len(z.Limits))
	for i, limit := range z.Limits {
		windows[i] = limit.Window
	}
	z.Limits, z.Burst, z.Queue = nil, nil, nil
	shape, err := json.Marshal(struct {
		Matcher    caddy.ModuleMap
		Zone       Zone
		Windows    []caddy.Duration
		NamedRoute bool
	}{matcher, z, windows, namedRoute})
	if err != nil {
		return "", fmt.Errorf("naming the limit: %w", err)
	}
	return autoPrefix + shortHash(shape, 4) + "-" + shortHash(numbers, 3), nil
}

func shortHash(text []byte, bytes int) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:bytes])
}

// autoShape is what unnamed zones have in common that differ in their numbers only; "" for a zone with a name.
func autoShape(name string) string {
	if !strings.HasPrefix(name, autoPrefix) {
		return ""
	}
	shape, _, _ := strings.Cut(name[len(autoPrefix):], "-")
	return shape
}

// ordinals tell identical unnamed zones apart, by the order in which they stand in the configuration.
type ordinals map[string]int

func (o ordinals) next(name string) string {
	o[name]++
	if n := o[name]; n > 1 {
		return fmt.Sprintf("%s-%d", name, n)
	}
	return name
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
