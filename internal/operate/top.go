package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/table"
)

const (
	// TopKeys is how many keys are shown where nothing is said, and MaxTopKeys how many at most.
	TopKeys    = 20
	MaxTopKeys = 1000
	// walkPause is the time between two walks over the counters.
	walkPause = time.Second
)

// walks lets one walk over the counters be under way. It holds when the last one ended.
var walks = make(chan time.Time, 1)

func init() { walks <- time.Time{} }

// A Top is the keys of one limit that have spent the most.
type Top struct {
	Zone   string `json:"zone"`
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
	// LimitFrom is the placeholder that the limit comes from. Limit is its default then.
	LimitFrom string `json:"limit_from,omitempty"`
	// Concurrent is set where the limit is on what runs at once: then Used is what runs now, on all
	// nodes.
	Concurrent bool     `json:"concurrent,omitempty"`
	Keys       []TopKey `json:"keys"`
}

// A TopKey is what one key has spent, as far as this node knows.
type TopKey struct {
	// ID names the key, as explain, override and reset take it.
	ID string `json:"id"`
	// Key is its text. It is there only with log_key, once a request has brought the key after it
	// was shown for the first time.
	Key string `json:"key,omitempty"`
	// Used is what all nodes have counted in the current epoch and the one before.
	Used int64 `json:"used"`
	// Asked is how many units requests asked for in the current epoch, or the last one: of windows
	// on this node, else on all. It is there where the zone syncs at an interval.
	Asked *int64 `json:"asked,omitempty"`
	// Denied is how many requests this node has denied in the last five to ten minutes, and
	// WouldDeny how many it would have denied except for shadow mode:
	// at least so many.
	Denied    int64 `json:"denied,omitempty"`
	WouldDeny int64 `json:"would_deny,omitempty"`
	// Regions is set where other regions have counted the key, too.
	Regions bool `json:"regions,omitempty"`
	// BannedUntil is when the key's ban ends, nil where it is not banned.
	BannedUntil *time.Time `json:"banned_until,omitempty"`
}

// TopOf walks over the counters of a zone, or of all zones where it is "", and returns the n keys
// of each limit that have the most, of all or of those that are banned; of those that were denied
// the n of each zone. It waits for its turn: walks follow each other at a second's distance.
func TopOf(ctx context.Context, current *lifecycle.Config, zone string, by limits.TopBy, banned bool, n int) (all []Top, err error) {
	if !slices.Contains(limits.AllTopBy, by) {
		return nil, fmt.Errorf("by: unknown value %q; use used, asked or denied", spelling.Clip(string(by)))
	}
	if n < 1 || n > MaxTopKeys {
		return nil, fmt.Errorf("n: %d is not between 1 and %d", n, MaxTopKeys)
	}
	chosen, err := limitsOf(current, zone, by)
	if err != nil {
		return nil, err
	}
	select {
	case last := <-walks:
		defer func() { walks <- time.Now() }()
		select {
		case <-time.After(min(walkPause, time.Until(last.Add(walkPause)))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if by == limits.ByDenied {
		return mostDenied(current, chosen, banned, n), nil
	}
	rows := make([][]table.Spend, len(chosen))
	wanted := map[*limits.KeyNames][]table.Spend{}
	for i, l := range chosen {
		most := limits.NewTopKeys(by, n)
		add := most.Add
		if banned {
			add = ofBanned(current.BansOf(l.Zone), add)
		}
		l.each(add)
		rows[i] = most.Rows()
		wanted[l.names] = append(wanted[l.names], rows[i]...)
	}
	for names, keys := range wanted {
		names.Want(keys, clock.Now())
	}
	all = []Top{}
	for i, l := range chosen {
		all = append(all, l.top(current.BansOf(l.Zone), by, rows[i]))
	}
	return all, nil
}

// mostDenied returns the n keys that each zone has denied most, in the order of chosen: each with
// the limit of which it has spent the largest part.
func mostDenied(current *lifecycle.Config, chosen []countedLimit, banned bool, n int) []Top {
	all := make([]Top, len(chosen))
	for i, l := range chosen {
		all[i] = l.Top
		all[i].Keys = []TopKey{}
	}
	for first, l := range chosen {
		if slices.ContainsFunc(chosen[:first], func(o countedLimit) bool { return o.denied == l.denied }) {
			continue
		}
		type spent struct {
			table.Spend
			limit int // index in chosen
		}
		most, bans := l.denied.Most(clock.Now()), current.BansOf(l.Zone)
		if banned {
			most = slices.DeleteFunc(most, func(k limits.DeniedKey) bool { return bans.UntilOf(k.ID) == nil })
		}
		most = most[:min(n, len(most))]
		found := make(map[keys.ID]spent, len(most))
		for _, k := range most {
			found[k.ID] = spent{limit: first}
		}
		for i, o := range chosen {
			if o.denied == l.denied {
				o.each(func(s table.Spend) {
					if k, ok := found[s.ID]; ok && float64(s.Used)*float64(chosen[k.limit].Limit) > float64(k.Used)*float64(o.Limit) {
						found[s.ID] = spent{s, i}
					}
				})
			}
		}
		for _, k := range most {
			s := found[k.ID]
			t := &all[s.limit]
			row := TopKey{ID: k.ID.String(), Used: s.Used, Denied: k.Denied, WouldDeny: k.WouldDeny, Regions: s.Regions, BannedUntil: bans.UntilOf(k.ID)}
			if l.logsKeys {
				row.Key = k.Text
			}
			t.Keys = append(t.Keys, row)
		}
	}
	return all
}

// countedLimit is a limit whose keys are looked at.
type countedLimit struct {
	Top
	each     func(func(table.Spend))
	names    *limits.KeyNames   // where requests leave the texts of keys
	denied   *limits.DeniedKeys // of its zone
	logsKeys bool
	asked    bool // it is known how many requests came
}

// limitsOf returns the limits that are to be looked at.
func limitsOf(current *lifecycle.Config, zone string, by limits.TopBy) (chosen []countedLimit, err error) {
	seen := map[any]bool{}
	countsAttempts := true
	add := func(source any, c countedLimit) {
		switch {
		case seen[source] || zone != "" && c.Zone != zone:
		case by == limits.ByAsked && !c.asked:
			countsAttempts = false
		default:
			chosen = append(chosen, c)
		}
		seen[source] = true
	}
	for z := range current.Zones {
		of := countedLimit{names: z.KeyNames, denied: z.DeniedKeys, logsKeys: z.LogKeys}
		for l := range z.Each {
			c := of
			c.Top, c.each = Top{Zone: z.Name, Limit: l.Rate.Limit, LimitFrom: l.Rate.From, Window: config.WindowText(l.Rate.Window)}, l.EachSpend
			c.asked = l.Settings.SyncRate > 0 && l.IsSynced(current.Redis)
			add(l.Counters, c)
		}
		if l := z.Slots; l != nil {
			c := of
			c.Top, c.each = Top{Zone: z.Name, Limit: l.Max, Concurrent: true}, l.EachSpend
			add(l.Slots, c)
		}
	}
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case !countsAttempts:
		return nil, fmt.Errorf("by: what requests ask for is not counted by key where counts don't sync at an interval; write %s or %s", limits.ByUsed, limits.ByDenied)
	case zone == "":
		return nil, errors.New("there is no zone")
	}
	for z := range current.Zones {
		if z.Name == zone {
			return nil, fmt.Errorf("zone %q has no limit, so nothing is counted by key", zone)
		}
	}
	return nil, fmt.Errorf("there is no zone %q", zone)
}

// top describes the rows of one limit.
func (c countedLimit) top(bans *limits.Bans, by limits.TopBy, rows []table.Spend) Top {
	t := c.Top
	t.Keys = []TopKey{}
	denied := map[keys.ID]limits.DeniedKey{}
	for _, k := range c.denied.Most(clock.Now()) {
		denied[k.ID] = k
	}
	for _, s := range rows {
		d := denied[s.ID]
		k := TopKey{ID: s.ID.String(), Key: c.names.Of(s.Key), Used: s.Used, Denied: d.Denied, WouldDeny: d.WouldDeny, Regions: s.Regions}
		if c.logsKeys {
			k.Key = cmp.Or(k.Key, d.Text)
		}
		if c.asked && (s.Asked > 0 || by != limits.ByUsed) {
			k.Asked = &s.Asked
		}
		k.BannedUntil = bans.UntilOf(s.ID)
		t.Keys = append(t.Keys, k)
	}
	return t
}
