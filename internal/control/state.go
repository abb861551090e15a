package control

import (
	"cmp"
	"context"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// refreshFor is how long State waits for news.
const refreshFor = 100 * time.Millisecond

// State is what the record says, for people.
type State struct {
	Summary

	Nodes       []Node
	Enforcement []EntryState
	Overrides   []EntryState
}

// Summary is how a node stands to the record.
type Summary struct {
	// Shared is false where there is no Redis: the record is this node's own.
	Shared bool `json:"shared"`
	// Pending is how many entries Redis has yet to be told of.
	Pending int `json:"pending"`
	// Failing is why Redis can't be asked for the record, "" if it can.
	Failing string `json:"failing,omitempty"`
}

// Node is a node that is there.
type Node struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Heard   time.Time `json:"heard"`
	// Applied reports whether it has applied all that this node has.
	Applied bool `json:"applied"`
	// Self is set for the node that answers.
	Self bool `json:"self,omitempty"`
}

// EntryState is an active entry.
type EntryState struct {
	Zone string `json:"zone,omitempty"`
	All  bool   `json:"all,omitempty"`
	ID   string `json:"id,omitempty"`
	// Key is the text of the key, where a request has brought it.
	Key   string   `json:"key,omitempty"`
	Share *float64 `json:"share,omitempty"`
	Limit string   `json:"limit,omitempty"`
	// Range is the range of addresses that the key stands for.
	Range netip.Prefix `json:"range,omitzero"`
	// Temporary is set for what covers, until it ends, what lasts. Covered is set for that.
	Temporary bool `json:"temporary,omitempty"`
	Covered   bool `json:"covered,omitempty"`
	// NoZone is set where the node's configuration doesn't have the zone.
	NoZone bool `json:"no_zone,omitempty"`
	// Since is when it was said, and Until when it ends, at the latest.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	Note  string    `json:"note,omitempty"`
	// By is who said so.
	By      string `json:"by,omitempty"`
	Pending bool   `json:"pending,omitempty"`

	of Target
}

// Of is what the entry is about.
func (e EntryState) Of() Target { return e.of }

// State returns what the record says. If Redis has answered just now it is asked which nodes there
// are, for a moment at most.
func (c *Control) State(ctx context.Context) State {
	began := c.Now()
	c.mu.Lock()
	fresh := began-c.record.answeredAt < int64(2*idleBeat)
	c.asked = true
	c.mu.Unlock()
	if c.IsShared() && fresh {
		ctx, cancel := context.WithTimeout(ctx, refreshFor)
		c.awaitBeats(ctx, func() bool { return c.listed >= began })
		cancel()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	s := State{Summary: Summary{Shared: c.IsShared(), Failing: c.failing}, Nodes: c.nodes()}
	if s.Shared {
		s.Pending = len(c.record.Unsent(math.MaxInt, now))
	}
	for e := range c.record.Active(now) {
		p, ok := c.parsed[e.ID]
		if !ok {
			continue
		}
		one := c.describe(e, p.Target)
		for _, layer := range p.Target.Layers() {
			if o := c.parsed[layer.name()].override; o != nil && o.text.Load() != nil {
				one.Key = *o.text.Load()
			}
		}
		if p.Key != nil {
			s.Overrides = append(s.Overrides, one)
		} else {
			s.Enforcement = append(s.Enforcement, one)
		}
	}
	byName := func(a, b EntryState) int {
		return cmp.Or(strings.Compare(a.Zone, b.Zone), strings.Compare(a.ID, b.ID), a.Until.Compare(b.Until))
	}
	slices.SortFunc(s.Overrides, func(a, b EntryState) int { // newest first: there may be thousands
		return cmp.Or(b.Since.Compare(a.Since), byName(a, b))
	})
	slices.SortFunc(s.Enforcement, byName)
	return s
}

// Describe returns the state of an entry as far as that follows from what it says of what.
func Describe(t Target, b Body) EntryState {
	return EntryState{
		Zone: t.Zone, All: t.Zone == "", ID: t.IDText(), Share: b.Share, Limit: b.Limit, Range: b.Range, Temporary: t.Temporary, Note: b.Note, By: b.By, of: t,
	}
}

// describe returns the state of an entry. The lock is held.
func (c *Control) describe(e Entry, t Target) EntryState {
	one := Describe(t, c.parsed[e.ID].Body)
	one.Since, one.Pending = time.UnixMicro(e.Stamp).UTC(), c.IsShared() && c.record.IsPending(e.ID)
	if !e.IsDeletion() {
		one.Until = c.until(e)
	}
	one.Covered = c.isCovered(t)
	return one
}

// isCovered reports whether something temporary covers what lasts. The lock is held.
func (c *Control) isCovered(t Target) bool {
	_, covered := c.parsed[t.Layers()[0].name()]
	return covered && !t.Temporary
}

// Holding returns what is said of a target: what is temporary, and what lasts.
func (c *Control) Holding(t Target) (all []EntryState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, layer := range t.Layers() {
		e, active := c.record.Get(layer.name(), c.Now())
		if _, ok := c.parsed[e.ID]; ok && active {
			all = append(all, c.describe(e, layer))
		}
	}
	return all
}

func (c *Control) until(e Entry) time.Time {
	return time.Unix(0, c.record.Ends(e)).UTC().Round(time.Millisecond)
}

// nodes are the nodes as they were listed last. The lock is held.
func (c *Control) nodes() []Node {
	all, unsent := []Node{}, len(c.record.Unsent(1, c.Now())) > 0
	for _, l := range c.leases {
		n := Node{Heard: l.Heard, Self: l.Node == c.node}
		n.Applied = l.Applied >= c.record.version.Revision && (n.Self || !unsent)
		n.Version, n.Name, _ = strings.Cut(l.Name, " ")
		if n.Name == "" {
			n.Version, n.Name = "", l.Name
		}
		all = append(all, n)
	}
	return all
}

// Stats returns how many keys have overrides, and whether this node has applied what Redis has,
// as far as it knows.
func (c *Control) Stats() (overrides int64, applied bool) {
	for _, n := range c.OverridesByZone() {
		overrides += n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return overrides, !c.IsShared() || c.record.read
}

// OverridesByZone returns how many keys of each zone have overrides.
func (c *Control) OverridesByZone() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	zones := make(map[string]int64)
	for _, p := range c.parsed {
		if p.override != nil && !c.isCovered(p.Target) {
			zones[p.Zone]++
		}
	}
	return zones
}
