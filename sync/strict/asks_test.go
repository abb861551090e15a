package strict

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Grant is what a request got, by limits.
type Grant struct {
	by    *tables
	r     Request
	took  []table.Taken
	rules []algorithms.Params
}

const allWaits = algorithms.WantNext | algorithms.WantReset

// A tableOfCells is a table of any state.
type tableOfCells interface {
	table.Synced
	table.Strict
	Configure(b table.SyncConfig, maxKeys int)
	Take(l algorithms.Limit, key keys.Key, raw []byte, now, n int64, want algorithms.Want) table.Taken
	Penalize(l algorithms.Limit, key keys.Key, t table.Taken, n int64)
	Totals(now int64) table.Totals
	Reset(now int64, set *reset.Set) int64
	ForgiveKey(key keys.Key, since, now int64)
	Reservations() *table.Reservations
}

func tableFor(r algorithms.Params, maxKeys int) tableOfCells {
	switch k := r.Kind; {
	case k.Traits().Windowed:
		return table.NewOf(r.Kind, algorithms.MachineBy[algorithms.WindowState](r.Kind, r.Calendar), maxKeys)
	case k.Traits().Draining:
		return table.New[algorithms.BucketState](r.Kind, maxKeys)
	}
	return table.New[algorithms.LogState](r.Kind, maxKeys)
}

// tables are those of the zones of a limiter, which say at once what changes, as a node has them.
type tables struct {
	s   *Limiter
	rep *ratesync.Replicator

	mu  sync.Mutex
	all map[string]*aTable // by zone and limit
	// resets are what a zone's tables are under.
	resets map[string]*reset.Set
	ended  bool
}

type aTable struct {
	tableOfCells
	zone   string
	source *ratesync.TableSyncer
}

var tablesOf sync.Map // by *Limiter

func (s *Limiter) tables() *tables { return s.tablesBy(s.client) }

// tablesBy are the tables of a limiter, which say what changes by the way of another client.
func (s *Limiter) tablesBy(client redis.UniversalClient) *tables {
	if x, ok := tablesOf.Load(s); ok {
		return x.(*tables)
	}
	x := &tables{s: s, rep: ratesync.NewReplicator(client, "test", s.Timeout(), clock.Now, zap.NewNop()), all: make(map[string]*aTable), resets: make(map[string]*reset.Set)}
	first, _ := tablesOf.LoadOrStore(s, x) // of two that ask at once
	return first.(*tables)
}

// of is the table of a limit of a zone.
func (x *tables) of(zone string, r algorithms.Params) *aTable {
	spec := ratesync.SpecOf(zone, r)
	x.mu.Lock()
	defer x.mu.Unlock()
	one := x.all[zone+" "+spec.Name()]
	if one == nil {
		by := tableFor(r, 1_000_000)
		one = &aTable{by, zone, ratesync.NewTableSyncer(by, spec)}
		by.Configure(table.SyncConfig{Params: r, Interval: time.Second, StoreDecides: true, Waker: one.source.Waker}, 1_000_000)
		one.Reset(clock.Now(), x.resets[zone])
		if !x.ended {
			x.rep.Attach(one.source, time.Second)
		}
		x.all[zone+" "+spec.Name()] = one
	}
	return one
}

// now is the time of who asks the table.
func (*aTable) now() int64 { return clock.Now() }

// unsent reports whether Redis lacks something of a limiter's tables.
func (x *tables) unsent() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, one := range x.all {
		if _, n, corrections := one.Unsent(clock.Now()); n > 0 || corrections > 0 {
			return true
		}
	}
	return false
}

// Reset has a zone be under resets.
func (s *Limiter) Reset(zone string, set *reset.Set) {
	x := s.tables()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resets[zone] = set
	for _, one := range x.all {
		if one.zone == zone {
			one.Reset(clock.Now(), set)
		}
	}
}

// end is the end of the tables, whose last counts are sent. It comes once: who asks after it is
// told that all is closed.
func (x *tables) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return
	}
	x.ended = true
	for _, one := range x.all {
		one.source.Detach()
	}
	x.rep.Close()
}

// Take asks for n units of a key in each limit of a zone.
func (s *Limiter) Take(ctx context.Context, zone string, rules []algorithms.Params, key [16]byte, n int64, dst []table.Taken) ([]table.Taken, Grant, error) {
	x := s.tables()
	g := Grant{by: x, rules: rules, r: Request{Key: keys.KeyOf(key[:]), Raw: key[:], N: n, Want: allWaits, Queues: rules[0].Kind.Traits().Queues}}
	if rules[0].Reserves {
		g.r.Want |= table.Reserve | table.InParts
	}
	for _, r := range rules {
		one := x.of(zone, r)
		g.r.Counters = append(g.r.Counters, Counter{one, one.source})
		g.r.Limits = append(g.r.Limits, r.Compile())
	}
	var err error
	g.took, err = s.Ask(ctx, zone, &g.r, dst)
	return g.took, g, err
}

// Admitted reports whether what was asked for was granted.
func (g Grant) Admitted() bool {
	for i := range g.took {
		if !g.took[i].Allowed {
			return false
		}
	}
	return len(g.took) > 0
}

// each calls f with what each limit has granted.
func (g Grant) each(f func(by *aTable, l algorithms.Limit, t table.Taken)) {
	for i, c := range g.r.Counters {
		f(c.Table.(*aTable), g.r.Limits[i], g.took[i])
	}
}

// Refund gives back what was granted, as another zone denies the request.
func (s *Limiter) Refund(g Grant) {
	if g.Admitted() && g.r.N > 0 {
		g.each(func(by *aTable, l algorithms.Limit, t table.Taken) { by.Refund(l, g.r.Key, t, t.N) })
	}
}

// Penalize charges a request that was denied.
func (s *Limiter) Penalize(g Grant) {
	g.each(func(by *aTable, l algorithms.Limit, t table.Taken) { by.Penalize(l, g.r.Key, t, g.r.N) })
}

// Settle ends what was reserved: its request has cost m units.
func (s *Limiter) Settle(g Grant, m int64) {
	g.each(func(by *aTable, l algorithms.Limit, t table.Taken) {
		by.Settle(g.r.Key, by.ReservationOf(l, g.r.Key, t), clock.Now(), m)
	})
}
