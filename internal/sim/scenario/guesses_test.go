package scenario

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/sim"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// guesses are requests of one client at a login that three nodes serve with a sync_rate of 1s. All
// of them are wrong.
type guesses struct {
	// to is the node that gets the i-th of number, and each the time between two.
	to     func(i int) int
	each   time.Duration
	number int
	// phase is where in an interval the first one comes.
	phase time.Duration
	limit int64 // in an hour
	// asks is set where tables ask again, and ordinary where all requests count at once.
	asks, ordinary bool
}

// inTurn spreads 120 guesses evenly over a time and the nodes.
func inTurn(over time.Duration) guesses {
	return guesses{to: func(i int) int { return i % 3 }, each: over / 120, number: 120, limit: 5, asks: true}
}

// guess returns how many reach the handler, and how many keys the nodes sync for it.
func guess[S any](kind algorithms.Kind, g guesses, seed uint64) (reached, keys int) {
	p := algorithms.Params{Kind: kind, Limit: g.limit, Window: time.Hour, Reserves: !g.ordinary}
	w, l, k := sim.NewNetwork(epoch+int64(sec), time.Millisecond/2, seed), p.Compile(), keysOf(1)[0]
	tables, synced := joinAll[S](w, 3, p, table.SyncConfig{Interval: sec}, g.asks)
	at, want := w.Now()+5*int64(sec)+int64(g.phase), algorithms.Want(0)
	if !g.ordinary {
		want = table.Reserve | algorithms.WantReset
	}
	for i := range g.number {
		w.Until(at)
		at += int64(g.each)
		t := tables[g.to(i)]
		taken := t.Take(l, k.key, k.raw, w.Now(), 1, want)
		if taken.Allowed {
			reached++
		}
		if taken.Allowed && !g.ordinary {
			unit := t.ReservationOf(l, k.key, taken)
			w.After(time.Millisecond, func() { t.Settle(k.key, unit, w.Now(), 1) })
		}
	}
	w.Until(at + 5*int64(sec))
	return reached, *synced
}

// phases are runs that begin all over an interval: of each, what guess returns.
func phases(g guesses, kind algorithms.Kind) (reached map[int]int, keys float64) {
	const runs = 20
	run := algorithms.ByState(kind, guess[algorithms.WindowState], guess[algorithms.BucketState], guess[algorithms.LogState])
	reached = make(map[int]int)
	for i := range runs {
		g.phase = sec * time.Duration(i) / runs
		n, synced := run(kind, g, uint64(i))
		reached[n]++
		keys += float64(synced) / runs
	}
	return reached, keys
}

// Wrong guesses that come evenly over two seconds or more, to three nodes in turn: at most one
// beyond the limit of 5 reaches the handler, wherever in an interval the first one comes. Where
// tables don't ask again it is two.
func TestSpreadGuessesPassTheLimitByOne(t *testing.T) {
	for _, kind := range counting {
		for _, over := range []time.Duration{2 * sec, 3 * sec, 5 * sec, 10 * sec, 60 * sec} {
			g := inTurn(over)
			reached, keys := phases(g, kind)
			g.asks = false
			before, without := phases(g, kind)
			t.Logf("%s over %v: guesses that reach the handler, and in how many runs: %v; %.0f keys synced. Without asking again %v, %.0f", kind, over, reached, keys, before, without)
			if reached[5]+reached[6] != 20 {
				t.Errorf("%s over %v: guesses that reach the handler, and in how many runs: %v; want 5 or 6", kind, over, reached)
			}
			if over <= 10*sec && before[7] < 10 {
				t.Errorf("%s over %v: without asking again %v, want mostly 7: the test shows nothing", kind, over, before)
			}
		}
	}
}

// A node that has never seen the client learns of it with its first guess, which it lets through.
// So no mechanism without a wait keeps those below the limit and one for each other node.
func TestAFirstGuessOnANodePasses(t *testing.T) {
	g := inTurn(2 * sec)
	g.to = func(i int) int { return max(0, i-4) % 3 }
	for _, kind := range counting {
		if reached, _ := phases(g, kind); reached[7] != 20 {
			t.Errorf("%s: five guesses on one node, then one on each: %v reach the handler, want 7", kind, reached)
		}
	}
}

// Asking again costs what is bounded by the limit, and next to nothing where one node sees all of a
// client: what it admits while an answer is on its way is sent early. It costs nothing
// where much is left, or where all requests count at once.
func TestAskingAgainCostsLittle(t *testing.T) {
	few, many, alone, ordinary, flood := inTurn(2*sec), inTurn(2*sec), inTurn(2*sec), inTurn(2*sec), inTurn(20*sec)
	many.limit, ordinary.ordinary, flood.each, flood.number = 400, true, 2*sec/120, 1200
	alone.to = func(int) int { return 0 }
	for _, c := range []struct {
		name string
		guesses
		more float64
	}{{"in turn", few, 15}, {"ten times as many", flood, 15}, {"of 400", many, 0}, {"one node", alone, .2}, {"an ordinary zone", ordinary, 0}} {
		for _, kind := range counting {
			_, keys := phases(c.guesses, kind)
			c.asks = false
			_, without := phases(c.guesses, kind)
			if more := keys - without; more > c.more || more < 0 || more == 0 && c.more > 1 {
				t.Errorf("%s, %s: %.1f keys synced, %.1f without asking again, want at most %.0f more", c.name, kind, keys, without, c.more)
			}
			c.asks = true
		}
	}
}
