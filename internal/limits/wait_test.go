package limits

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

const (
	million   = 1_000_000
	now       = 1_700_000_000_000_000_000
	wholeWalk = 1000 // keys that are shown, at most
)

// aMillionKeys is a table of them, each of which has spent 1.
func aMillionKeys() (*table.Table[algorithms.WindowState], algorithms.Limit) {
	p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1000, Window: 30 * 24 * time.Hour}
	tab := table.New[algorithms.WindowState](p.Kind, 2*million)
	tab.Configure(table.SyncConfig{Params: p}, 2*million)
	for i := range uint64(million) {
		raw := binary.BigEndian.AppendUint64(nil, i)
		tab.Take(p.Compile(), keys.KeyOf(raw), raw, now, 1, 0)
	}
	return tab, p.Compile()
}

// BenchmarkWaitBesideWalks is how long a request waits for a decision among a million keys, while
// nothing else is done, while another table of a million keys is walked over once a second, and
// while its own is. What it waits for a lock is in the last alone.
//
// no clock: a benchmark measures, and expects nothing.
func BenchmarkWaitBesideWalks(b *testing.B) {
	asked, limit := aMillionKeys()
	another, _ := aMillionKeys()
	for _, beside := range []struct {
		name   string
		walked *table.Table[algorithms.WindowState]
	}{{"nothing", nil}, {"another", another}, {"its own", asked}} {
		b.Run("walked="+beside.name, func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				walkEachSecond(beside.walked, stop)
			}()
			var w waits
			random, raw := rand.New(rand.NewPCG(1, 2)), make([]byte, 8)
			for b.Loop() {
				binary.BigEndian.PutUint64(raw, random.Uint64N(million))
				begun := time.Now()
				asked.Take(limit, keys.KeyOf(raw), raw, now, 1, 0)
				w.add(time.Since(begun))
			}
			close(stop)
			<-done
			w.report(b)
		})
	}
}

// walkEachSecond looks for the keys with the most in a table, as top does, nil for none.
func walkEachSecond(tab *table.Table[algorithms.WindowState], stop <-chan struct{}) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	var names KeyNames
	for {
		select {
		case <-stop:
			return
		case <-second.C:
			if tab != nil {
				most := NewMost(ByUsed, wholeWalk)
				tab.EachSpend(now, most.Add)
				names.Want(most.Rows(), now)
			}
		}
	}
}

// waits counts by microseconds.
type waits struct {
	counts [10_000]int // the last one is all that is longer
	n      int
	longer int // than a millisecond
	most   time.Duration
}

func (w *waits) add(d time.Duration) {
	w.counts[min(int(d.Microseconds()), len(w.counts)-1)]++
	w.n, w.most = w.n+1, max(w.most, d)
	if d > time.Millisecond {
		w.longer++
	}
}

// report gives the wait that all but a part stay below, the longest, and how many waits of a
// million are longer than a millisecond.
func (w *waits) report(b *testing.B) {
	for _, part := range []struct {
		name string
		of   float64
	}{{"p99.9-us", .999}, {"p99.99-us", .9999}} {
		rest := int(part.of * float64(w.n))
		for us, n := range w.counts {
			if rest -= n; rest <= 0 {
				b.ReportMetric(float64(us), part.name)
				break
			}
		}
	}
	b.ReportMetric(float64(w.most.Microseconds()), "max-us")
	b.ReportMetric(float64(w.longer)*million/float64(w.n), "over-1ms/million")
}
