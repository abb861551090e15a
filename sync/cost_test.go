package ratesync

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A meteredNode is a node that syncs when sync is called, with a server of its own. All it does is
// counted.
type meteredNode struct {
	server *redistest.Server
	rep    *Replicator
	source *TableSyncer
	at     *attachment
	touch  func(key int)
	drain  func(most int) []table.Update
	fail   func([]table.Update)
	keys   int
}

// newTrader has keys that the server knows already, with counters of an hour: windows or buckets.
//
// no clock: time stands still for what it returns.
func newTrader(tb testing.TB, keys int, buckets bool) *meteredNode {
	if buckets {
		alg := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1 << 30, Window: time.Hour, Burst: 1 << 30}
		return traderOf[algorithms.BucketState](tb, keys, alg, 't')
	}
	return traderOf[algorithms.WindowState](tb, keys, algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1 << 30, Window: time.Hour, SubWindows: 1}, 's')
}

// traderOf is newTrader of a kind.
//
// no clock: time stands still for what it returns.
func traderOf[S any](tb testing.TB, keyCount int, alg algorithms.Params, kind byte) *meteredNode {
	server := redistest.Start(tb)
	server.Do("CONFIG", "SET", "slowlog-log-slower-than", "5000")
	server.Do("CONFIG", "SET", "slowlog-max-len", "100000")
	tab := tableOf[S](alg, keyCount)
	x := &meteredNode{server: server, rep: NewReplicator(server.Client(), "caddy", 10*time.Second, wallClock, zap.NewNop()), keys: keyCount}
	x.source = NewTableSyncer(tab, Spec{Zone: "z", Kind: kind, Window: time.Hour, SubWindows: 1, History: alg.Compile().History})
	x.at = &attachment{group: &x.rep.counts}
	x.at.interval.Store(int64(time.Second))
	now := wallClock() // time stands still: no epoch ends meanwhile
	x.rep.now = func() int64 { return now }
	tab.Configure(table.SyncConfig{Params: alg, Interval: time.Second}, keyCount)
	x.touch = func(key int) {
		raw := binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(key))
		tab.Take(alg.Compile(), keys.KeyOf(raw), raw, now, 1, 0)
	}
	x.drain = func(most int) []table.Update {
		return tab.TakeUpdates(now, NextSeq(x.source), most, false, nil)
	}
	x.fail = tab.Unanswered
	x.touchAll()
	x.sync(tb)
	return x
}

func (x *meteredNode) touchAll() {
	for key := range x.keys {
		x.touch(key)
	}
}

func (x *meteredNode) sync(tb testing.TB) {
	if err := x.source.syncTable(context.Background(), x.at, false); err != nil {
		tb.Fatal(err)
	}
}

// calls sends all that is dirty, so many keys a call.
func (x *meteredNode) calls(tb testing.TB, size int) (keys int) {
	x.source.table.MakeOutgoing()
	for messages := x.drain(size); len(messages) > 0; messages = x.drain(size) {
		keys += len(messages)
		if err := x.source.push(context.Background(), x.at, messages); err != nil {
			tb.Fatal(err)
		}
	}
	return keys
}

// info is a number of the server's INFO.
func (x *meteredNode) info(tb testing.TB, section, name string) float64 {
	_, text, _ := strings.Cut(x.server.Do("INFO", section).(string), "\n"+name+":")
	text, _, _ = strings.Cut(text, "\r\n")
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func (x *meteredNode) cpu(tb testing.TB) float64 {
	return x.info(tb, "cpu", "used_cpu_user") + x.info(tb, "cpu", "used_cpu_sys")
}

func kindOf(buckets bool) string {
	if buckets {
		return "sub_windows"
	}
	return "windows"
}

// What goes over the wire for a key, as the server counts it. The names and totals are as short
// here as they are in most of what is synced.
func TestBytesOfAKeyOnTheWire(t *testing.T) {
	for _, buckets := range []bool{false, true} {
		x := newTrader(t, 10_000, buckets)
		in, out := x.info(t, "stats", "total_net_input_bytes"), x.info(t, "stats", "total_net_output_bytes")
		x.touchAll()
		x.sync(t)
		in, out = (x.info(t, "stats", "total_net_input_bytes")-in)/10_000, (x.info(t, "stats", "total_net_output_bytes")-out)/10_000
		t.Logf("%s: %.0f B a key to the server, %.0f B back", kindOf(buckets), in, out)
		mostIn, mostOut := 80., 60. // the sum, and what this node had of it
		if buckets {
			mostIn, mostOut = 125, 105 // what stands in the bucket, both ways
		}
		if in > mostIn || out > mostOut || in < 40 || out < 5 {
			t.Errorf("%s: %.1f B a key to the server and %.1f B back, want at most %.0f and %.0f", kindOf(buckets), in, out, mostIn, mostOut)
		}
	}
}

// A call allocates, and a key in it does not.
func TestAKeyInASyncAllocatesNothing(t *testing.T) {
	x := newTrader(t, 2000, false)
	allocs := func(keys int) float64 {
		fewest := math.Inf(1)
		for range 20 {
			for key := range keys {
				x.touch(key)
			}
			x.source.table.MakeOutgoing()
			messages := x.drain(keys)
			if len(messages) != keys {
				t.Fatalf("%d messages, want %d", len(messages), keys)
			}
			fewest = min(fewest, testing.AllocsPerRun(1, func() {
				if err := x.source.push(context.Background(), x.at, messages); err != nil {
					t.Fatal(err)
				}
			}))
		}
		return fewest
	}
	few, many := allocs(100), allocs(1000)
	t.Logf("a call of 100 keys allocates %.0f times, one of 1000 %.0f times", few, many)
	if each := (many - few) / 900; each > .05 {
		t.Errorf("%.0f allocations in a call of 1000 keys, %.0f in one of 100: %.2f a key, want none", many, few, each)
	}
}

// BenchmarkBatch compares how many keys a call may have: what the server's CPU does for a key, how
// long it takes, and how long a call holds the server up.
//
// no clock: it measures, and asserts nothing.
func BenchmarkBatch(b *testing.B) {
	const keys = 10_000
	for _, buckets := range []bool{false, true} {
		x := newTrader(b, keys, buckets)
		for _, size := range []int{32, 64, 100, 128, 250, 500} {
			b.Run(fmt.Sprintf("%s/keys=%d", kindOf(buckets), size), func(b *testing.B) {
				x.server.Do("CONFIG", "RESETSTAT")
				x.server.Do("SLOWLOG", "RESET")
				var wall time.Duration
				cpu, synced := x.cpu(b), 0
				for b.Loop() {
					x.touchAll()
					begun := time.Now()
					synced += x.calls(b, size)
					wall += time.Since(begun)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric((x.cpu(b)-cpu)*1e6/float64(synced), "redis-us/key")
				b.ReportMetric(float64(wall.Microseconds())/float64(synced), "us/key")
				b.ReportMetric(x.server.TimeOf("evalsha"), "us/call")
				b.ReportMetric(float64(x.server.Do("SLOWLOG", "LEN").(int64))/float64(x.server.Calls("evalsha"))*1000, "over-5ms/1000-calls")
			})
		}
	}
}

// BenchmarkTick is a tick in which 100,000 keys are dirty, beside requests for other keys as
// fast as they go.
//
// no clock: it measures, and asserts nothing.
func BenchmarkTick(b *testing.B) {
	const keys = 100_000
	x := newTrader(b, keys, false)
	var (
		stop     atomic.Bool
		requests atomic.Int64
		done     = make(chan struct{})
		took     time.Duration
		most     time.Duration
		ticks    int
	)
	go func() {
		defer close(done)
		random := rand.New(rand.NewPCG(1, 2))
		for !stop.Load() {
			x.touch(random.IntN(keys))
			requests.Add(1)
		}
	}()
	var asked int64
	synced := x.rep.stats.keys.Load()
	for b.Loop() {
		x.touchAll()
		before, begun := requests.Load(), time.Now()
		x.sync(b)
		tick := time.Since(begun)
		asked += requests.Load() - before
		took, most, ticks = took+tick, max(most, tick), ticks+1
	}
	stop.Store(true)
	<-done
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took.Seconds()*1000/float64(ticks), "ms/tick")
	b.ReportMetric(most.Seconds()*1000, "max-ms/tick")
	b.ReportMetric(float64(x.rep.stats.keys.Load()-synced)/took.Seconds(), "keys/s")
	b.ReportMetric(float64(asked)/took.Seconds(), "requests/s")
}
