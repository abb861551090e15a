package operate

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/heap"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Who is who: keys by what their IDs begin with, and the lists of those that are banned or have
// overrides.

// idOf returns the ID that begins with some hex digits, among the keys of a zone that this node
// knows. All digits are an ID of any key.
func idOf(zone *limits.Zone, text string) (keys.ID, error) {
	p, err := keys.ParsePrefix(strings.ToLower(text))
	if err != nil {
		return keys.ID{}, fmt.Errorf("id: %q is invalid; %w", spelling.Clip(text), err)
	}
	if id, ok := p.Whole(); ok {
		return id, nil
	}
	found := map[keys.ID]bool{}
	add := func(id keys.ID) {
		if p.Has(id) {
			found[id] = true
		}
	}
	zone.EachID(add)
	switch len(found) {
	case 1:
		for id := range found {
			return id, nil
		}
	case 0:
		return keys.ID{}, fail(http.StatusNotFound, fmt.Errorf("this node knows no key of zone %q whose id begins with %s; give the key, or ask the node that listed the id", zone.Name, spelling.Clip(text)))
	}
	var all []string
	for id := range found {
		all = append(all, id.String())
	}
	slices.Sort(all)
	return keys.ID{}, fmt.Errorf("id: %d keys begin with %s; give more of its digits: %s", len(all), spelling.Clip(text), list(all))
}

// A BanState is a key whose requests are denied: it is banned, or an operator has its override say
// deny.
type BanState struct {
	Zone string `json:"zone"`
	// ID names the key. Key is its text, with log_key, once a request has brought it.
	ID  string `json:"id"`
	Key string `json:"key,omitempty"`
	// Why is the rule by which it was banned, or deny. By and Note are an operator's.
	Why  string `json:"why"`
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
	// Since is when this node took it that the ban began.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Shadow is set where the zone is not enforced for the key, and nobody is denied.
	Shadow bool `json:"shadow,omitempty"`
}

// Banned are the latest bans, and how many more there are.
type Banned struct {
	Bans []BanState `json:"bans"`
	More int        `json:"more,omitempty"`
}

// BansOf returns the n latest bans of a zone, or of all where it is "", that this node knows, and
// what overrides deny.
func BansOf(current *lifecycle.Config, overrides []control.EntryState, zone string, n int) Banned {
	latest := heap.Heap[BanState]{Before: func(a, b BanState) bool { return a.Since.Before(b.Since) }}
	count, seen := 0, map[*limits.Bans]bool{}
	for z := range current.Zones {
		bans := z.Bans()
		if bans == nil || seen[bans] || zone != "" && z.Name != zone {
			continue
		}
		seen[bans] = true
		for _, r := range []*ban.Register{&bans.Set, &bans.Shadow} {
			r.Each(clock.Now(), func(id ban.ID, b ban.Ban, text string) {
				since := time.Unix(0, b.Begun)
				if count++; len(latest.All) == n && !since.After(latest.All[0].Since) {
					return
				}
				one := BanState{Zone: z.Name, ID: keys.ID(id).String(), Why: whyBanned(z), Since: since.UTC(), Until: time.Unix(0, b.End()).UTC(), Shadow: r == &bans.Shadow}
				if z.LogKeys {
					one.Key = text
				}
				if latest.Push(one); len(latest.All) > n {
					latest.Pop()
				}
			})
		}
	}
	all := Banned{Bans: append([]BanState{}, latest.All...)}
	for _, o := range overrides {
		if o.Limit == control.Deny && !o.Covered && (zone == "" || zone == o.Zone) {
			count++
			all.Bans = append(all.Bans, BanState{Zone: o.Zone, ID: o.ID, Key: o.Key, Why: o.Limit, By: o.By, Note: o.Note, Since: o.Since, Until: o.Until})
		}
	}
	slices.SortFunc(all.Bans, func(a, b BanState) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.ID, b.ID))
	})
	all.Bans = all.Bans[:min(n, len(all.Bans))]
	all.More = count - len(all.Bans)
	return all
}

// A DeniedKey is a key whose requests a zone has denied lately.
type DeniedKey struct {
	Zone string `json:"zone"`
	// ID names the key, and Key is its text, with log_key.
	ID  string `json:"id"`
	Key string `json:"key,omitempty"`
	// Denied is how many requests this node has denied in the last five to ten minutes, and
	// WouldDeny how many it would have denied except for shadow mode:
	// at least so many.
	Denied    int64 `json:"denied,omitempty"`
	WouldDeny int64 `json:"would_deny,omitempty"`
}

// MostDenied returns the n keys that were denied most, of all zones.
func MostDenied(current *lifecycle.Config, n int) []DeniedKey {
	all, seen := []DeniedKey{}, map[*limits.DeniedKeys]bool{nil: true}
	for z := range current.Zones {
		if seen[z.DeniedKeys] {
			continue
		}
		seen[z.DeniedKeys] = true
		for _, k := range z.DeniedKeys.Most(clock.Now()) {
			one := DeniedKey{Zone: z.Name, ID: k.ID.String(), Denied: k.Denied, WouldDeny: k.WouldDeny}
			if z.LogKeys {
				one.Key = k.Text
			}
			all = append(all, one)
		}
	}
	slices.SortStableFunc(all, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.WouldDeny, a.WouldDeny))
	})
	return all[:min(n, len(all))]
}

// whyBanned is what leads to a ban in a zone.
func whyBanned(z *limits.Zone) string {
	var rates []string
	for l := range z.Each {
		rates = append(rates, l.Rate.String())
	}
	of := strings.Join(rates, " ")
	if z.Ban.After.Window == 0 {
		return "denied by " + of
	}
	return fmt.Sprintf("denied %d times in %s by %s", z.Ban.After.Limit, config.WindowText(z.Ban.After.Window), of)
}

// serveBans answers which keys are banned.
func serveBans(_ http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	q := r.URL.Query()
	zone, n, err := whichKeys(q.Get("zone"), q.Get("n"), config)
	if err != nil {
		return nil, err
	}
	return BansOf(config, statesOf(r.Context(), config).Overrides, zone, n), nil
}

// whichKeys reads of which zone keys are listed, "" for all, and how many.
func whichKeys(zone, number string, config *lifecycle.Config) (string, int, error) {
	n := TopKeys
	if number != "" {
		var err error
		if n, err = strconv.Atoi(number); err != nil {
			return "", 0, fmt.Errorf("n: %q is no number", spelling.Clip(number))
		}
	}
	if n < 1 || n > MaxTopKeys {
		return "", 0, fmt.Errorf("n: %d is not between 1 and %d", n, MaxTopKeys)
	}
	if zone != "" {
		if _, err := findZone(config, zone); err != nil {
			return "", 0, err
		}
	}
	return zone, n, nil
}

// statesOf returns what was changed at run time, with the texts of keys where they may be shown.
func statesOf(ctx context.Context, current *lifecycle.Config) control.State {
	s := current.Control().State(ctx)
	shown := map[string]bool{}
	for z := range current.Zones {
		shown[z.Name] = shown[z.Name] || z.LogKeys
	}
	for i := range s.Overrides {
		e := &s.Overrides[i]
		isShown, isThere := shown[e.Zone]
		if e.NoZone = !isThere; !isShown && !e.Range.IsValid() {
			e.Key = ""
		}
	}
	return s
}

// ofBanned lets f have what the banned keys of a zone have spent.
func ofBanned(b *limits.Bans, f func(table.Spend)) func(table.Spend) {
	banned := map[keys.ID]bool{}
	if b != nil {
		b.Set.Each(clock.Now(), func(id ban.ID, _ ban.Ban, _ string) { banned[id] = true })
	}
	return func(s table.Spend) {
		if banned[s.ID] {
			f(s)
		}
	}
}

// serveNodes answers which nodes share their counts.
func serveNodes(_ http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	return config.Control().State(r.Context()).Nodes, nil
}
