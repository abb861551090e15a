package statuspage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A View is what the page shows: the same as HTML and as JSON.
type View struct {
	// At is when it was made.
	At time.Time `json:"at"`
	// Problems are what is wrong, in whole sentences.
	Problems []string `json:"problems"`
	// Shared is set where nodes share counts through Redis, and Lost while that fails.
	Shared bool           `json:"shared"`
	Lost   bool           `json:"-"`
	Nodes  []control.Node `json:"nodes"`
	// Regions are the other regions, and Here is this one, where limits go over several.
	Here    string                  `json:"here,omitempty"`
	Regions []ratesync.RegionStatus `json:"regions,omitempty"`
	Zones   []Zone                  `json:"zones"`
	// Denied are the keys that were denied most in the last minutes, on this node.
	Denied []operate.DeniedKey `json:"denied"`
	// Bans are the latest ones. With log_key they have the texts of keys.
	Bans operate.Banned `json:"bans"`
	// Enforcement and Overrides are what operators have changed at run time.
	Enforcement []control.EntryState `json:"enforcement"`
	Overrides   []control.EntryState `json:"overrides"`

	// Filter is a part of the names of zones that are shown as HTML, and Shown are these: the
	// busiest of them where there are too many. Hidden is how many are left out then.
	Filter string `json:"-"`
	// Total is all zones together, nil where there are not several.
	Shown  []Zone `json:"-"`
	Hidden int    `json:"-"`
	Total  *Zone  `json:"-"`
}

// A Zone is a zone with all of its limits.
type Zone struct {
	Name   string   `json:"name"`
	Policy []string `json:"policy"`
	// Algorithm and SyncRate are as in the configuration, Algorithm of a zone with limits, and
	// SyncRate of one with limits or concurrent.
	Algorithm string `json:"algorithm,omitempty"`
	SyncRate  string `json:"sync_rate,omitempty"`
	// Enforced is the share of keys for which the zone is enforced now, 0 to 1.
	Enforced float64 `json:"enforced"`
	// Now are the current rates, none where nothing is known: metrics are off, or the page has just
	// been started. Steps are those of each 5 s of the last five minutes, the oldest first.
	Now   *Rates  `json:"now,omitempty"`
	Steps []Rates `json:"steps,omitempty"`
	// Keys of MaxKeys have counters of their own, of the limit that has most.
	Keys    int `json:"keys"`
	MaxKeys int `json:"max_keys"`
	// Unused is set where no request has come to the zone since Caddy was started.
	Unused bool `json:"unused,omitempty"`
	// SyncedAgo is how many seconds ago the limit that is furthest behind was synced whole, nil
	// where none is.
	SyncedAgo *float64 `json:"synced_ago,omitempty"`

	// Banned is how many keys are banned, Reserve which shares are kept for requests that match,
	// and Reserved how many keys have units that are reserved until responses begin. Responses are
	// those that count_responses has looked at, Running is what runs at once, and Bandwidth how
	// responses are slowed. Each is there where the zone has that option.
	Banned    *int64                  `json:"banned,omitempty"`
	Reserve   []float64               `json:"reserve,omitempty"`
	Reserved  *int64                  `json:"reserved,omitempty"`
	Responses *operate.ResponseState  `json:"responses,omitempty"`
	Running   *Running                `json:"running,omitempty"`
	Bandwidth *operate.BandwidthState `json:"bandwidth,omitempty"`
}

// Running is how many requests of all keys run at once, on this node and on the others.
type Running struct {
	Here      int64 `json:"here"`
	Elsewhere int64 `json:"elsewhere"`
}

// deniedKeys is how many of the keys that were denied are shown.
const deniedKeys = 5

// maxShown is how many zones are shown as HTML.
const maxShown = 50

// viewOf makes a view of a state.
func viewOf(s operate.State, h *history, now time.Time) *View {
	v := &View{At: now.UTC(), Problems: []string{}, Nodes: append([]control.Node{}, s.Nodes...), Zones: []Zone{}, Denied: []operate.DeniedKey{}, Bans: operate.Banned{Bans: []operate.BanState{}}, Enforcement: s.Enforcement, Overrides: s.Overrides}
	v.Shared = s.Control != nil && s.Control.Shared
	if r := s.Regions; r != nil {
		v.Here, v.Regions = r.Here, r.Others
	}
	byName := map[string]int{}
	of := func(name string, share float64, maxKeys int) *Zone {
		i, ok := byName[name]
		if !ok {
			i = len(v.Zones)
			byName[name] = i
			z := Zone{Name: name, Enforced: operate.EnforcedOf(s.Enforcement, name, share), MaxKeys: maxKeys}
			z.Now, z.Steps = h.of(name)
			d, known := s.Decisions[name]
			z.Unused = known && d.Met() == 0
			v.Zones = append(v.Zones, z)
		}
		return &v.Zones[i]
	}
	for i := range s.Zones {
		l := &s.Zones[i]
		of(l.Zone, l.Enforce, l.MaxKeys).add(l, now)
	}
	for i := range s.Bandwidth {
		b := &s.Bandwidth[i]
		z := of(b.Zone, b.Enforce, b.MaxKeys)
		z.Policy, z.Keys, z.Bandwidth = append(z.Policy, b.Rate.String()), max(z.Keys, int(b.Keys)), b
	}
	v.findProblems(s)
	return v
}

// add adds a limit to its zone.
func (z *Zone) add(l *operate.LimitState, now time.Time) {
	policy := fmt.Sprintf("%d/%s", l.Limit, l.Window)
	z.SyncRate = l.SyncRate.String()
	if l.Concurrent {
		policy = fmt.Sprintf("%d at once", l.Limit)
		z.Running = &Running{l.Own, l.Remote}
	} else {
		z.Algorithm, z.Banned, z.Reserve, z.Reserved, z.Responses = l.Algorithm, l.Banned, l.Reserve, l.Reserved, l.Responses
	}
	if l.LimitFrom != "" {
		policy = fmt.Sprintf("%s/%s, else %s", l.LimitFrom, l.Window, policy)
	}
	z.Policy = append(z.Policy, policy+l.Divided())
	z.Keys = max(z.Keys, l.Keys)
	if l.Sync != nil && !l.Sync.Synced.IsZero() {
		if ago := now.Sub(l.Sync.Synced).Seconds(); z.SyncedAgo == nil || ago > *z.SyncedAgo {
			z.SyncedAgo = &ago
		}
	}
}

// late is the least time without a whole sync that is a problem.
const late = 30.0

// findProblems writes what is wrong.
func (v *View) findProblems(s operate.State) {
	problem := func(format string, args ...any) { v.Problems = append(v.Problems, fmt.Sprintf(format, args...)) }
	if s.Redis != nil && len(s.Redis.Lately()) > 0 {
		v.Problems = append(v.Problems, s.Redis.Lately()...)
	} else if s.Redis != nil && !s.Redis.Up {
		v.Lost = true
		reasons := slices.Sorted(maps.Values(s.Redis.Failing))
		for _, reason := range slices.Compact(reasons) {
			problem("Redis fails: %s. Until it answers, each zone goes by its on_redis_loss.", strings.TrimSuffix(reason, "."))
		}
	}
	if s.Strict != nil && s.Strict.Open > 0 {
		problem("Strict zones don't wait for Redis, which does not answer: %d of %d circuits are open.", s.Strict.Open, s.Strict.Of)
	}
	if s.Control != nil && s.Control.Failing != "" {
		problem("Redis has no control record: %s.", strings.TrimSuffix(s.Control.Failing, "."))
	}
	divided := "no limit is divided"
	if slices.ContainsFunc(s.Zones, func(l operate.LimitState) bool { return l.Share > 0 }) {
		divided = "limits are divided, as the zones below say"
	}
	for _, r := range v.Regions {
		if !r.Up {
			problem("Region %s is lost: %s. Its last counts stay, and %s.", r.Region, strings.TrimSuffix(r.Reason, "."), divided)
		} else if r.Lag > late {
			problem("Region %s was last in step %s, and %d counts and bans wait.", r.Region, agoText(r.Lag), r.Backlog)
		}
	}
	for _, e := range s.Enforcement {
		if e.All && e.Share != nil && *e.Share == 0 {
			problem("An operator has switched all denials off until %s.", e.Until.UTC().Format(time.DateTime+" MST"))
		}
	}
	for _, n := range v.Nodes {
		if !n.Applied {
			problem("Node %s has not applied all that was changed at run time.", n.Name)
		}
	}
	for _, z := range v.Zones {
		if z.Keys >= z.MaxKeys {
			problem("Zone %q has as many keys as max_keys allows (%d): new keys share counters.", z.Name, z.MaxKeys)
		}
		if z.SyncedAgo != nil && *z.SyncedAgo > late && s.Redis != nil && s.Redis.Up {
			problem("Zone %q was last synced whole %s.", z.Name, agoText(*z.SyncedAgo))
		}
	}
}

// choose picks the zones that are shown as HTML.
func (v *View) choose(filter string) {
	v.Filter = filter
	for _, z := range v.Zones {
		if strings.Contains(strings.ToLower(z.Name), strings.ToLower(filter)) {
			v.Shown = append(v.Shown, z)
		}
	}
	slices.SortStableFunc(v.Shown, func(a, b Zone) int {
		return cmp.Or(cmp.Compare(b.busy().Denied, a.busy().Denied), cmp.Compare(b.busy().Admitted, a.busy().Admitted), cmp.Compare(a.Name, b.Name))
	})
	if len(v.Zones) > 1 {
		v.Total = new(Zone)
		for _, z := range v.Zones {
			v.Total.count(z)
		}
	}
	shown := min(len(v.Shown), maxShown)
	v.Hidden, v.Shown = len(v.Shown)-shown, v.Shown[:shown]
}

// count adds the rates and bans of another zone.
func (z *Zone) count(other Zone) {
	if n := other.Now; n != nil {
		r := z.busy()
		z.Now = &Rates{Admitted: r.Admitted + n.Admitted, Denied: r.Denied + n.Denied, WouldDeny: r.WouldDeny + n.WouldDeny}
	}
	if n := other.Banned; n != nil {
		if z.Banned == nil {
			z.Banned = new(int64)
		}
		*z.Banned += *n
	}
}

func (z Zone) busy() Rates {
	if z.Now == nil {
		return Rates{}
	}
	return *z.Now
}
