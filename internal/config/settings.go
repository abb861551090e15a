// Package config is what a configuration says of its zones: rates and windows, the names of limits,
// matchers, and Settings, in which everything is inherited, defaulted and checked: a plain value,
// which requests and the background go by. It also has the hints of error messages: what to write
// in place of what is there.
package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// EmptyKey is what happens to a request whose key comes out empty.
type EmptyKey uint8

// The policies for empty keys: the client's address is the key, the request is not limited, all of
// them share one count, or they are denied.
const (
	EmptyClientIP EmptyKey = iota
	EmptySkip
	EmptyShare
	EmptyDeny
)

// EmptyKeyNames are the names of the policies as options, each at the index of its EmptyKey.
var EmptyKeyNames = []string{EmptyClientIP: "client_ip", EmptySkip: "skip", EmptyShare: "share", EmptyDeny: "deny"}

// String returns the name of the policy as an option.
func (e EmptyKey) String() string { return EmptyKeyNames[e] }

// OnRedisLoss is the rule while Redis is unavailable.
type OnRedisLoss uint8

// The rules: each node enforces the whole limit, each enforces its share, or limits fail open or
// closed.
const (
	LossLocal OnRedisLoss = iota
	LossDivide
	LossAllow
	LossDeny
)

// OnRedisLossNames are the names of the rules as options, each at the index of its OnRedisLoss.
var OnRedisLossNames = []string{LossLocal: "local", LossDivide: "divide", LossAllow: "allow", LossDeny: "deny"}

// String returns the name of the rule as an option.
func (l OnRedisLoss) String() string { return OnRedisLossNames[l] }

// Settings are the settings of a zone. Which requests match is not one: zones of one name may match
// different ones and share the count.
type Settings struct {
	Name string
	// Key is the template of the key.
	Key string `option:"key"`
	// IPv4Prefix and IPv6Prefix are by how many bits addresses are grouped, 1 to 32 and 1 to 128.
	IPv4Prefix int `option:"ipv4_prefix"`
	IPv6Prefix int `option:"ipv6_prefix"`
	// Limits are one or more rates, as Sorted returns them. A zone with Concurrent or
	// Bandwidth may have none.
	Limits []Rate `option:"limit"`
	// Concurrent is how many requests of a key may run at once, 0 for any number.
	Concurrent int64 `option:"concurrent"`
	// Bandwidth is how many bytes a second the responses of a key share, 0 for any number.
	Bandwidth Bandwidth       `option:"bandwidth"`
	Kind      algorithms.Kind `option:"algorithm"`
	// Calendar is that of limits by day, week, month or year. Without such a limit it has no zone.
	Calendar Calendar `option:"calendar"`
	// Burst is 0 for the limit.
	Burst int64 `option:"burst"`
	// SubWindows is 1 or more.
	SubWindows  int         `option:"sub_windows"`
	Queue       int64       `option:"queue"`
	SyncRate    SyncRate    `option:"sync_rate"`
	MaxKeys     int         `option:"max_keys"`
	EmptyKey    EmptyKey    `option:"empty_key"`
	CountDenied bool        `option:"count_denied"`
	OnRedisLoss OnRedisLoss `option:"on_redis_loss"`
	EarlySync   bool        `option:"early_sync"`
	// Regions has the zone count over all regions, where there are several.
	Regions bool        `option:"regions"`
	Enforce Enforcement `option:"enforce"`
	Ban     Ban         `option:"ban"`
	// CountsDenials is set of what DenialsOf returns, which is no zone.
	CountsDenials bool
	// Cost is what a request takes. Zones of one name may have different ones, as counts are units.
	Cost Cost
	// ResponseCost is what its response says that it has cost; then Cost is an estimate.
	ResponseCost ResponseCost
	// Reserve are the shares that are kept for classes of requests. Which requests these are is no
	// setting, as Matchers are none.
	Reserve []Reserve `option:"reserve"`
	// CountResponses matches the responses that count, nil where all requests do.
	CountResponses *caddyhttp.ResponseMatcher `option:"count_responses"`
	// ForgiveResponses matches those that clear what a key has spent, nil for none.
	ForgiveResponses *caddyhttp.ResponseMatcher `option:"forgive_responses"`
}

// CountsBytes reports whether all that is counted is bytes.
func (z *Settings) CountsBytes() bool {
	if len(z.ResponseCost.Terms) > 0 {
		return z.ResponseCost.IsBytes()
	}
	return z.Cost.IsBytes()
}

// Settles reports whether responses decide what requests cost.
func (z *Settings) Settles() bool { return z.CountResponses != nil || len(z.ResponseCost.Terms) > 0 }

// ParamsInPlace describes a limit to its algorithm as a request sees it: in the place of the
// configured number, 0 for none, and without the reserves that are for others, a bit each. Burst
// and queue keep their ratio to the number. What is reserved can't be taken; a bucket drains as
// fast as without.
func (z *Settings) ParamsInPlace(r Rate, configured int64, others uint32) algorithms.Params {
	p := z.Params(r)
	if configured > 0 {
		p.Burst, p.Queue = scaled(p.Burst, r.Limit, configured), scaled(p.Queue, r.Limit, configured)
	}
	switch {
	case others == 0:
	case p.Kind.Traits().Draining:
		p.Burst = z.Without(others, p.Compile().Size)
	default:
		p.Limit = z.Without(others, p.Limit)
	}
	return p
}

// scaled brings a number for the configured limit to the one in its place. What is there does not
// vanish.
func scaled(n, limit, configured int64) int64 {
	return max(min(n, 1), min(saturate.MulDiv(n, limit, configured), maxScaled))
}

// maxScaled is more than any burst or queue of a configuration that drains in time.
const maxScaled = 1 << 53

// Params describes one of the limits to its algorithm.
func (z *Settings) Params(r Rate) algorithms.Params {
	p := algorithms.Params{Kind: z.Kind, Limit: r.Limit, Burst: z.Burst, Queue: z.Queue, Window: r.Window, SubWindows: z.SubWindows, Reserves: z.Settles()}
	if z.Calendar.Zone != "" {
		p.Calendar = z.CalendarOf(r)
	}
	return p
}

// CalendarOf returns what numbers the windows of a limit, nil where they have one length.
func (z *Settings) CalendarOf(r Rate) *algorithms.Calendar {
	if _, ok := calendar.Name(r.Window); !ok {
		return nil
	}
	c, _ := calendar.Of(r.Window, z.Calendar.Zone, z.Calendar.From) // it was found before
	return c
}

// LongestWindow and FirstWindow are those of the limits, 0 and a second where there are none.
func (z *Settings) LongestWindow() time.Duration {
	if len(z.Limits) == 0 {
		return 0
	}
	return z.Limits[len(z.Limits)-1].Window
}

func (z *Settings) FirstWindow() time.Duration {
	if len(z.Limits) == 0 {
		return time.Second
	}
	return asLength(z.Limits[0].Window)
}

// Lines returns what zones of one name have in common, as lines of a Caddyfile, always the same
// ones in the same order: the fields that are marked with an option.
func (z *Settings) Lines() (all []string) {
	v := reflect.ValueOf(z).Elem()
	for i := range v.NumField() {
		option, ok := v.Type().Field(i).Tag.Lookup("option")
		if !ok {
			continue
		}
		value := v.Field(i).Interface()
		switch of := value.(type) {
		case []Rate:
			for _, r := range of {
				option += " " + r.String()
				if r.From != "" {
					option += fmt.Sprintf(" (limit_default %d)", r.Limit)
				}
			}
		case *caddyhttp.ResponseMatcher:
			option += ResponsesText(of)
		default:
			option += " " + strings.Trim(fmt.Sprint(value), "[]")
		}
		all = append(all, option)
	}
	return all
}

// ResponsesText returns a matcher as the value of the option. A status of one digit stands for a
// class.
func ResponsesText(m *caddyhttp.ResponseMatcher) string {
	var text strings.Builder
	if m == nil {
		return ""
	}
	for _, status := range m.StatusCode {
		if status < 10 {
			fmt.Fprintf(&text, " %dxx", status)
		} else {
			fmt.Fprintf(&text, " %d", status)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		fmt.Fprintf(&text, " header %s %q", name, m.Headers[name])
	}
	return text.String()
}

// A Registry holds the zones of one configuration by name. It is not safe for concurrent use.
type Registry map[string]Registered

// Registered is a zone and where it stands: a handler or a line.
type Registered struct {
	Settings
	Place string
}

// Add notes a zone. It rejects one whose name is taken by one with other settings.
func (r Registry) Add(z Settings, place string) error {
	first, taken := r[z.Name]
	if !taken {
		r[z.Name] = Registered{z, place}
		return nil
	}
	theirs, ours := first.Lines(), z.Lines()
	for i := range ours {
		if ours[i] != theirs[i] {
			return fmt.Errorf("zone %q: %s has `%s`, and %s has `%s`; give one of them another name, which counts apart, or both the same settings",
				z.Name, first.Place, theirs[i], place, ours[i])
		}
	}
	return nil
}
