// What a node does just now: its zones, its Redis, the other nodes, and what was changed at run
// time. It shows keys of zones with log_key alone, and no addresses.

package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// A State is what a node shows of itself.
type State struct {
	Zones []LimitState `json:"zones"`
	// Decisions are what each zone has decided since Caddy started, where its metrics are on.
	Decisions map[string]Decided `json:"decisions,omitempty"`
	// Bandwidth has the zones that slow responses.
	Bandwidth []BandwidthState `json:"bandwidth,omitempty"`
	Redis     *ratesync.Status `json:"redis,omitempty"`
	// Regions is there where limits go over several.
	Regions *ratesync.RegionsStatus `json:"regions,omitempty"`
	// Strict is there where a zone has sync_rate strict.
	Strict *strict.Status `json:"strict,omitempty"`
	// Control is how this node stands to what is changed at run time: Enforcement and Overrides are
	// what is in force now, and Nodes who is there to apply it.
	Control     *control.Summary     `json:"control,omitempty"`
	Nodes       []control.Node       `json:"nodes,omitempty"`
	Enforcement []control.EntryState `json:"enforcement,omitempty"`
	Overrides   []control.EntryState `json:"overrides,omitempty"`
}

// Decided are the decisions of a zone on this node.
type Decided = metrics.Counts

// A ResponseState is how many responses of a zone have begun on this node since the configuration
// was loaded, and how many of them counted.
type ResponseState struct {
	All     int64 `json:"all"`
	Counted int64 `json:"counted"`
}

// String says it in words.
func (s *ResponseState) String() string { return fmt.Sprintf("%d of %d", s.Counted, s.All) }

// EnforcedOf returns the share of keys for which a zone is enforced now: what is said of all zones
// goes before what is said of one, and that before the configuration.
func EnforcedOf(entries []control.EntryState, zone string, configured float64) float64 {
	for _, e := range entries {
		switch {
		case e.Share == nil, e.Covered:
		case e.All:
			return *e.Share
		case e.Zone == zone:
			configured = *e.Share
		}
	}
	return configured
}

// A LimitState is one limit of a zone. Own, Remote and Unsent are sums over all keys of what a
// decision can still use.
type LimitState struct {
	Zone      string `json:"zone"`
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	// Share is how much of it this node admits while Redis or a region is away, with divide; 0
	// where the limit is not divided.
	Share int64 `json:"share,omitempty"`
	// LimitFrom is the placeholder that the limit comes from. Limit is its default then.
	LimitFrom string `json:"limit_from,omitempty"`
	Window    string `json:"window"`
	// Concurrent is set where the limit is on what runs at once: then it has no algorithm and no
	// window, Own is what runs on this node, Remote on the others, and Unsent are keys.
	Concurrent bool            `json:"concurrent,omitempty"`
	SyncRate   config.SyncRate `json:"sync_rate"`
	// Enforce is the share of keys that the zone is enforced for by its configuration, 0 to 1.
	Enforce float64 `json:"enforce"`
	// Keys is how many counters this node has, MaxKeys how many it may have, Own what it counted,
	// Remote what it knows of the other nodes' counts, Unsent the part of Own that Redis has not
	// confirmed.
	Keys    int   `json:"keys"`
	MaxKeys int   `json:"max_keys"`
	Own     int64 `json:"own"`
	Remote  int64 `json:"remote"`
	Unsent  int64 `json:"unsent"`
	// Node is the field of this node in the hashes of the zone in Redis.
	Node string `json:"node,omitempty"`
	// Sync is there where the counts go to Redis.
	Sync *ratesync.TableStatus `json:"sync,omitempty"`
	// Overflow counts decisions for keys beyond max_keys, OverflowBytes is about the memory
	// of the counters that they share.
	Overflow      int64 `json:"overflow"`
	OverflowBytes int64 `json:"overflow_bytes"`
	// Banned is how many keys of the zone are banned, as far as this node knows. It is there where
	// the zone has ban.
	Banned *int64 `json:"banned,omitempty"`
	// Reserve are the shares that the zone keeps for requests that match, 0 to 1. Reserved is how
	// many keys have units that are reserved until responses begin, on this node. It is there where
	// the zone has count_responses, as Responses are.
	Reserve   []float64      `json:"reserve,omitempty"`
	Reserved  *int64         `json:"reserved,omitempty"`
	Responses *ResponseState `json:"responses,omitempty"`
}

// Divided says in words what this node admits of a limit, "" where that is all.
func (l *LimitState) Divided() string {
	if l.Share == 0 {
		return ""
	}
	return fmt.Sprintf(", divided: %d of it here", l.Share)
}

// BandwidthState is how a zone slows the responses of its keys, on this node.
type BandwidthState struct {
	Zone string `json:"zone"`
	// Rate is what the responses of a key share.
	Rate config.Bandwidth `json:"rate"`
	// Open is how many responses are open, and Keys how many keys they have.
	Keys int64 `json:"keys"`
	Open int64 `json:"open"`
	// Bytes is how many were sent, and Waited how many seconds responses waited for their turns,
	// all together.
	Bytes  int64   `json:"bytes"`
	Waited float64 `json:"waited"`
	// Enforce and MaxKeys are as in a Limit.
	Enforce float64 `json:"enforce"`
	MaxKeys int     `json:"max_keys"`
}

// StateWithChanges describes the current configuration, and what was changed at run time. Redis is
// asked how the other nodes stand, for as long as ctx allows.
func StateWithChanges(ctx context.Context) State {
	s := CurrentState()
	if current := lifecycle.Current(); current != nil {
		c := statesOf(ctx, current)
		s.Control, s.Nodes, s.Enforcement, s.Overrides = &c.Summary, c.Nodes, c.Enforcement, c.Overrides
		s.Decisions = map[string]Decided{}
		counts, _ := metrics.ByZone() // what can't be gathered isn't there
		for z := range current.Zones {
			if c, ok := counts[z.Name]; ok {
				s.Decisions[z.Name] = c
			}
		}
	}
	return s
}

// CurrentState describes the current configuration, without what was changed at run time.
func CurrentState() State {
	s := State{Zones: []LimitState{}}
	current := lifecycle.Current()
	if current == nil {
		return s
	}
	if current.Redis != nil {
		s.Redis = new(current.Redis.Replicator.Status())
		s.Regions = current.Redis.Replicator.RegionsStatus()
	}
	seen := make(map[*limits.Counters]bool)
	for z := range current.Zones {
		for i := range z.AllLimits {
			l := &z.AllLimits[i]
			if seen[l.Counters] {
				continue // a zone that several handlers share
			}
			seen[l.Counters] = true
			one := limitStateOf(current, l)
			one.Share = z.PartOf(i)
			s.Zones = append(s.Zones, one)
		}
	}
	s.addWithoutWindows(current)
	isStrict := func(l LimitState) bool { return l.SyncRate == config.Strict }
	if current.Redis != nil && slices.ContainsFunc(s.Zones, isStrict) {
		s.Strict = new(current.Redis.Circuits())
	}
	return s
}

// limitStateOf describes a limit.
func limitStateOf(current *lifecycle.Config, l *limits.Limit) LimitState {
	t, node := l.Totals(), l.Syncer.Node()
	if !l.IsSynced(current.Redis) {
		t.Unsent, node = 0, "" // there is nowhere to send it
	}
	one := LimitState{
		Zone: l.Settings.Name, Algorithm: l.Settings.Kind.String(), Limit: l.Rate.Limit, LimitFrom: l.Rate.From, Window: config.WindowText(l.Rate.Window),
		SyncRate: l.Settings.SyncRate, Enforce: l.Settings.Enforce.Share(), Keys: t.Keys, MaxKeys: l.Settings.MaxKeys, Own: t.Own, Remote: t.Remote, Unsent: t.Unsent, Node: node,
		Sync:     l.Sync(),
		Overflow: l.Table.Overflowed(), OverflowBytes: l.Table.OverflowBytes(),
	}
	if bans := current.BansOf(one.Zone); bans != nil {
		one.Banned = new(bans.Count())
	}
	for _, share := range l.Settings.Reserve {
		one.Reserve = append(one.Reserve, share.Share())
	}
	if l.Settings.Settles() {
		one.Reserved = new(int64(l.Table.Reservations().Len()))
	}
	one.Responses = responsesOf(current, l.Settings)
	return one
}

// responsesOf adds up the responses of a zone in all handlers, nil where it counts requests.
func responsesOf(current *lifecycle.Config, of *config.Settings) *ResponseState {
	if of.CountResponses == nil {
		return nil
	}
	s := new(ResponseState)
	for z := range current.Zones {
		if z.Name == of.Name {
			s.All += z.Responses.All.Load()
			s.Counted += z.Responses.Counted.Load()
		}
	}
	return s
}

// addWithoutWindows adds what runs at once, and the zones that slow responses.
func (s *State) addWithoutWindows(current *lifecycle.Config) {
	seen := make(map[any]bool)
	isNew := func(of any) bool {
		known := seen[of]
		seen[of] = true
		return !known
	}
	for z := range current.Zones {
		if b := z.Throttle; b != nil && isNew(b) {
			t := b.Status()
			s.Bandwidth = append(s.Bandwidth, BandwidthState{t.Zone, config.Bandwidth(t.Rate), t.Keys, t.Open, t.Bytes, t.Waited.Seconds(), z.Enforce.Share(), z.MaxKeys})
		}
		l := z.Slots
		if l == nil || !isNew(l.Slots) {
			continue
		}
		t, unsent, node := l.Table.Totals(clock.Now()), l.Table.Unsent(), l.Syncer.Node()
		if l.Syncer.Status() == nil {
			unsent, node = 0, ""
		}
		s.Zones = append(s.Zones, LimitState{
			Zone: z.Name, Limit: l.Max, Concurrent: true, SyncRate: z.SyncRate, Enforce: z.Enforce.Share(),
			Keys: t.Keys, MaxKeys: z.MaxKeys, Own: t.InUse, Remote: t.Others,
			Unsent: int64(unsent), Node: node, Sync: l.Syncer.Status(), Overflow: l.Table.Overflowed(),
		})
	}
}
