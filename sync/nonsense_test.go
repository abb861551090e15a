package ratesync

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// forger answers each key with what say was given, in the form that the script has, except what is
// cut off.
type forger struct {
	fakeServer
	held, sum string
	forges    bool
	cut       int
}

// Process forges replies.
//
// bubble: of its test.
func (j *forger) Process(ctx context.Context, cmd redis.Cmder) error {
	err := j.fakeServer.Process(ctx, cmd)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil || !j.forges {
		return err
	}
	keys, _ := strconv.Atoi(*cmd.Args()[2].(*string))
	now := time.Now()
	reply := itoa(now.Unix()) + " " + itoa(int64(now.Nanosecond()/1000)) + "\n" + strings.Repeat("\n"+j.held+"\n"+j.sum, keys)
	cmd.(*redis.StringCmd).SetVal(reply[:len(reply)-j.cut])
	return nil
}

func (j *forger) say(held, sum string, cut int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.held, j.sum, j.forges, j.cut = held, sum, true, cut
}

// A reply that makes no sense is counted as an error, and neither locks anybody out nor lets
// anybody in; the next good one heals.
func TestNonsenseInAReplyIsSkippedAndCounted(t *testing.T) {
	epoch := itoa(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() / int64(100*time.Hour))
	for i, c := range []struct {
		held, sum string
		cut       int
	}{
		{"", "9", 0}, {"", "-3 0 0 # 0", 0}, {"", "99999999999999999999 0 0 # 0", 0}, {"", "9007199254740993 0 0 # 0", 0}, {"", "many", 0}, {"", "", 0},
		{"", "NaN 0 0 # 0", 0}, {"", "5 0 0 # -1", 0}, {"", "5 0 inf # 0", 0}, {"", "5 0 0 99999999999999999 0", 0}, {"", "5 x", 0},
		{"x", "5 0 0 # 0", 0}, {"-1 5 # 0", "5 0 0 # 0", 0}, {"1 5.0 # 0", "5 0 0 # 0", 0}, {"1", "5 0 0 # 0", 0}, {"!", "ERR", 0}, {"@", "0", 0},
		{"", "5 0 0 # 0\n", 0}, {"", "5 0 0 # 0\n5", 0}, {"", "5 0 0 # 0", 10}, {"", "5 0 0 # 0", 13}, {"", "5 0 0 # 0", 25},
	} {
		c.held, c.sum = strings.ReplaceAll(c.held, "#", epoch), strings.ReplaceAll(c.sum, "#", epoch)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newVnode(t)
				j := &forger{fakeServer: fakeServer{calls: make(map[string][]time.Time), held: make(map[string]string)}}
				n.rep.client = j
				alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: 100 * time.Hour}
				tab := tableOf[algorithms.WindowState](alg, 10)
				source := NewTableSyncer(tab, Spec{Zone: "z", Kind: 'f', Window: alg.Window, SubWindows: 1})
				tab.Configure(table.SyncConfig{Params: alg, Interval: time.Second, Early: true, Waker: source.Waker}, 10)
				n.rep.Attach(source, time.Second)
				defer n.rep.Close()
				defer source.Detach()
				take := func() bool {
					return tab.Take(alg.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), 1, 0).Allowed
				}

				j.say(c.held, c.sum, c.cut)
				for range 5 {
					take()
					time.Sleep(1500 * time.Millisecond)
				}
				s := n.rep.Status()
				if s.FailedKeys == 0 && s.Failures == 0 && c.sum != "" { // that is not believed
					t.Errorf("held %q, sum %q: no error is counted: %+v", c.held, c.sum, s)
				}
				if got := tab.Totals(wallClock()); got.Own != 5 || got.Remote != 0 || got.Unsent != 5 {
					t.Errorf("held %q, sum %q: %+v, want 5 of this node's own, unsent, and none remote", c.held, c.sum, got)
				}
				j.say("1 5 "+epoch+" 0", "8 0 0 "+epoch+" 0", 0)
				time.Sleep(3 * time.Second)
				if got := tab.Totals(wallClock()); got.Own != 5 || got.Remote != 3 || got.Unsent != 0 {
					t.Errorf("after a good reply: %+v, want 3 remote and none unsent", got)
				}
				// The forger would go on telling this sum, whatever is sent from here on.
				source.Detach()
				admitted := 0
				for range 20 {
					if take() {
						admitted++
					}
				}
				if admitted > 2 {
					t.Errorf("after a good reply %d more are admitted, with 2 left", admitted)
				}
			})
		})
	}
}

// Whatever a reply says of a key, nothing panics, no count is negative and no more than the limit
// is admitted. Whatever comes instead of a reply, counters stay counters, and count no more than
// was admitted here.
//
// no clock: answered says what time it is.
func FuzzAnswer(f *testing.F) {
	f.Add("", "", "5 5", int64(5), true)
	f.Add("", "", "", int64(5), true)
	f.Add("", "", "0 0 0 0 0 0 0 0 0", int64(10), true)
	f.Add("", "", "0 0 0 0 0 0 1 0 0", int64(10), true)
	f.Add("", "3", "9 9 1.250", int64(5), true)
	f.Add("", "3", "9 9 1.250 1700000000000", int64(5), false)
	f.Add("", "!", "WRONGTYPE", int64(1), true)
	f.Add("", "9007199254740991", "9007199254740991 0 nan -1", int64(3), true)
	f.Add("", "", "5 0 0 472222 0", int64(5), false)
	f.Add("", "1 2 472222 0 1", "9 7 1800000000000000 472222 1 3", int64(5), false)
	f.Add("", "@", "1700000000000000", int64(5), false)
	for _, whole := range []string{
		"1700000000 0\n\n\n", "1700000000 0\n\n\n1000 0 1500000000000 1 3 0 1700000000000000 10 3",
		"1700000000 0\n\n5 0 7 3 1 3\n0 0 0 9 -3 7 1700000000000000 10 9",
		"1700000000 0\n\n!\nWRONGTYPE Operation", "1700000000 0\n\n@\n1699999999000000", "1 1\n\n9 9 9 9 9 9\n9 9 9 9 9 9 9 9 9", "\n\n\n",
		"1700000000 0\n\n1 0 9223372036854775807 9223372036854775807 0 0\n0 0 0 9223372036854775807 -9223372036854775808 -1 0 0 0",
	} {
		f.Add(whole, "", "", int64(1), true)
	}
	f.Fuzz(func(t *testing.T, whole, held, sum string, own int64, bucket bool) {
		own = min(max(own, 0), 10)
		p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 10, Window: time.Hour}
		if bucket {
			p.Kind = algorithms.TokenBucket
		}
		algorithms.ByState(p.Kind, answered[algorithms.WindowState], answered[algorithms.BucketState], nil)(t, p, whole, held, sum, own)
	})
}

// answered has a node ask three times, and get one reply: the whole one, or what it says of each
// key.
func answered[S any](t *testing.T, alg algorithms.Params, whole, held, sum string, own int64) {
	const now = int64(1_700_000_000_000_000_000)
	tab, key := tableOf[S](alg, 10), keys.KeyOf([]byte("k"))
	tab.Configure(table.SyncConfig{Params: alg, Interval: time.Second}, 10)
	take := func() int64 {
		d := tab.Take(alg.Compile(), key, []byte("k"), now, 1, allWaits)
		if d.Remaining < 0 || d.Remaining > 10 || d.Retry < 0 || d.Next < 0 || d.Reset < 0 || !d.Allowed && d.Retry == 0 {
			t.Errorf("decision %+v of a limit of 10", d)
		}
		return one(d.Allowed)
	}
	admitted := int64(0)
	for range own {
		admitted += take()
	}
	forgiven, drained := false, false
	for seq := range int64(3) {
		tab.MakeOutgoing()
		c := NewPushCall(seq + 1)
		updates := tab.TakeUpdates(now, c.Seq, 100, false, nil)
		for i := range updates {
			c.Push(NewTableSyncer(tab, SpecOf("z", alg)), Keys{}, &updates[i], false)
		}
		if c.Read(cmp.Or(whole, itoa(now/1e9)+" 0\n"+strings.Repeat("\n"+held+"\n"+sum, len(updates))), &c.Answer) != nil {
			tab.Unanswered(updates)
		} else {
			tab.Merge(now, now, updates, c.Answer.Cells)
			forgiven = forgiven || len(updates) > 0 && c.Answer.Cells[0].NewerStamp > 0
			// A level is believed, also where it is lower.
			if len(updates) > 0 && c.Answer.Cells[0].Err == "" && c.Answer.Cells[0].Sum.At > 0 {
				s := &c.Answer.Cells[0].Sum
				gone := float64(s.Rate) * float64(now/1000-s.At) / float64(alg.Window.Microseconds())
				drained = drained || float64(s.Whole)-gone < float64(admitted)
			}
		}
		c.Free()
		got, exact := tab.Totals(now), whole == "" && !forgiven && !drained
		if exact && got.Own != admitted || got.Own < 0 || got.Own > admitted || got.Remote < 0 || got.Unsent < 0 {
			t.Fatalf("%q, held %q, sum %q: %+v after %d admitted", whole, held, sum, got, admitted)
		}
		tab.With(key, func(s *S) {
			if math.IsNaN(levelAt(alg, s, now)) {
				t.Error("the level of a bucket is no number")
			}
		})
	}
	if forgiven || drained { // a reset and an empty bucket give all of the limit once
		admitted = 0
	}
	for range 20 {
		admitted += take()
	}
	if admitted > 10 && whole == "" {
		t.Fatalf("%q, held %q, sum %q: %d admitted at limit 10", whole, held, sum, admitted)
	}
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// A key whose hash Redis can't use is tried once in each cycle, however often it is asked for, and
// is synced again once its hash is right.
func TestABrokenKeyIsTriedOnceACycle(t *testing.T) {
	farAway(t, time.Millisecond, time.Second, func(t *testing.T, r *miniredis.Miniredis, client *redis.Client) {
		alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1000, Window: 1000 * time.Hour}
		n := startNode(t, client, alg, 250*time.Millisecond, wallClock)
		id := keys.IDOf([]byte("broken"))
		key := n.rep.keys.Cells(n.source.spec).Of(id)
		if err := r.Set(key, "no hash"); err != nil {
			t.Fatal(err)
		}
		const cycles = 6
		begun := n.source.Status().Cycles
		asked := 0
		for n.source.Status().Cycles < begun+cycles {
			n.touch("broken")
			n.take("well", 1)
			asked++
			time.Sleep(2 * time.Millisecond)
		}
		s := n.rep.Status()
		if s.FailedKeys == 0 || s.FailedKeys > cycles+3 {
			t.Errorf("in %d cycles, asked for %d times, a broken key failed %d times: want one in each cycle", cycles, asked, s.FailedKeys)
		}
		if s.Syncs < cycles+3 {
			t.Errorf("in %d cycles %d syncs: a key that is well has none before its cycle", cycles, s.Syncs)
		}
		if n.source.UnavailableShards() != 0 || n.logs.FilterMessageSnippet("another program").Len() != 1 {
			t.Errorf("one broken key makes the whole sync count as lost, or is not reported once: %v", n.logs.All())
		}
		r.Del(key)
		n.take("broken", 5)
		n.knows("broken", 5, 0)
	})
}
