package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
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
	// Asked is how many requests came in the current epoch, or the last one, and Denied how many of
	// them were denied. They are there where the zone syncs at an interval.
	Asked  *int64 `json:"asked,omitempty"`
	Denied *int64 `json:"denied,omitempty"`
	// Regions is set where other regions have counted the key, too.
	Regions bool `json:"regions,omitempty"`
	// BannedUntil is when the key's ban ends, nil where it is not banned.
	BannedUntil *time.Time `json:"banned_until,omitempty"`
}

// TopOf walks over the counters of a zone, or of all zones where it is "", and returns the n keys
// of each limit that have the most, of all or of those that are banned. It waits for its turn:
// walks follow each other at a second's distance.
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
	rows := make([][]table.Spend, len(chosen))
	wanted := map[*limits.KeyNames][]table.Spend{}
	for i, l := range chosen {
		most := limits.NewMost(by, n)
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

// countedLimit is a limit whose keys are looked at.
type countedLimit struct {
	Top
	each  func(func(table.Spend))
	names *limits.KeyNames // where requests leave the texts of keys
	asked bool             // it is known how many requests came
}

// limitsOf returns the limits that are to be looked at.
func limitsOf(current *lifecycle.Config, zone string, by limits.TopBy) (chosen []countedLimit, err error) {
	seen := map[any]bool{}
	countsAttempts := true
	add := func(source any, c countedLimit) {
		switch {
		case seen[source] || zone != "" && c.Zone != zone:
		case by != limits.ByUsed && !c.asked:
			countsAttempts = false
		default:
			chosen = append(chosen, c)
		}
		seen[source] = true
	}
	for z := range current.Zones {
		names := z.KeyNames
		for l := range z.Each {
			add(l.Counters, countedLimit{
				Top{Zone: z.Name, Limit: l.Rate.Limit, Window: config.WindowText(l.Rate.Window)}, l.EachSpend, names,
				l.Settings.SyncRate > 0 && l.IsSynced(current.Redis),
			})
		}
		if l := z.Slots; l != nil {
			add(l.Slots, countedLimit{Top{Zone: z.Name, Limit: l.Max, Concurrent: true}, l.EachSpend, names, false})
		}
	}
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case !countsAttempts:
		return nil, fmt.Errorf("by: requests that are denied are not counted by key where counts don't sync at an interval; write %s", limits.ByUsed)
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
	for _, s := range rows {
		k := TopKey{ID: s.ID.String(), Key: c.names.Of(s.Key), Used: s.Used, Regions: s.Regions}
		if c.asked && (s.Asked > 0 || by != limits.ByUsed) {
			k.Asked, k.Denied = &s.Asked, &s.Denied
		}
		k.BannedUntil = bans.UntilOf(s.ID)
		t.Keys = append(t.Keys, k)
	}
	return t
}
