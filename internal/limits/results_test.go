package limits

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// anyHandler is the zones of any handler that decides for itself, with room for all keys.
func anyHandler(rt *rapid.T) (all []config.Settings) {
	for i := range rapid.IntRange(1, 3).Draw(rt, "zones") {
		s := lawfulZone(rt)
		s.Name, s.Key, s.MaxKeys, s.IPv4Prefix, s.IPv6Prefix = fmt.Sprint("books", i), keyOfRequests, 1000, 32, 64
		s.Enforce = config.Enforce(rapid.SampledFrom([]float64{1, 1, 0}).Draw(rt, "enforce"))
		s.Concurrent = rapid.SampledFrom([]int64{0, 1, 3}).Draw(rt, "concurrent")
		if s.Concurrent > 0 && rapid.Bool().Draw(rt, "only concurrent") {
			s.Limits = nil
		}
		if rapid.Bool().Draw(rt, "count_responses") {
			s.CountResponses = &caddyhttp.ResponseMatcher{StatusCode: []int{401}}
		}
		all = append(all, s)
	}
	return all
}

// books are what the requests of one key have been given in one zone.
type books struct {
	*Zone
	running int64
	before  []int64
}

// left returns what each limit has left for a key.
func (b *books) left(key string) (all []int64) {
	raw, _, _ := b.AppendKey(nil, request(key), nil)
	for l := range b.Each {
		all = append(all, l.Take(keys.KeyOf(raw), raw, clock.Now(), 0, 0).Remaining)
	}
	return all
}

// check compares what a zone says of a request with its tables, and these with what they held
// before.
func (b *books) check(e *Evaluation, key string) string {
	o, asked := e.Of(b.Zone)
	ends := asked && (o.Denied || e.Denied) // with this decision: what it was given is refunded
	running := b.running
	if asked && !ends && b.Slots != nil {
		running++
	}
	if r := o.SlotResult; r.Policy != nil && (r.Remaining != b.Concurrent-running || r.Size != b.Concurrent) {
		return fmt.Sprintf("the slots say %d of %d are left, %d run", r.Remaining, r.Size, running)
	}
	if asked && len(o.Results) != len(o.Limits) {
		return fmt.Sprintf("%d results of %d limits", len(o.Results), len(o.Limits))
	}
	for i, left := range b.left(key) {
		want := b.before[i]
		if len(o.Limits) > 0 && (!ends || b.CountDenied) {
			want = max(0, want-1)
		}
		if left != want {
			return fmt.Sprintf("limit %d has %d left after %d, want %d", i, left, b.before[i], want)
		}
		if len(o.Results) > 0 && (o.Results[i].Remaining != left || o.Results[i].Policy != b.AllLimits[i].Policy || o.Results[i].Shadow != o.Shadow) {
			return fmt.Sprintf("limit %d says %+v, and has %d left", i, o.Results[i], left)
		}
	}
	return ""
}

// What each zone says of a request is what its tables hold then. A request that is denied leaves
// them as they were, except where denied requests count: there each limit has lost a unit, if it
// had one.
func TestResultsAreWhatTheTablesHold(t *testing.T) {
	denied := 0
	rapid.Check(t, func(rt *rapid.T) {
		all := anyHandler(rt)
		n := rapid.IntRange(1, 40).Draw(rt, "requests")
		pauses := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second / 2, 3 * time.Second}), n, n).Draw(rt, "pauses")
		ends := rapid.SliceOfN(rapid.Bool(), n, n).Draw(rt, "ends")
		failure := ""
		synctest.Test(t, func(t *testing.T) { failure = keepBooks(t, all, pauses, ends, &denied) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
	if denied == 0 {
		t.Error("nothing was denied, so no refund was looked at")
	}
}

// keepBooks sends a request after each pause. It ends before the next one or goes on until the last
// one has come. keepBooks returns what is wrong, "" for nothing.
func keepBooks(t *testing.T, all []config.Settings, pauses []time.Duration, ends []bool, denied *int) string {
	var zones []*Zone
	var of []*books
	for _, s := range all {
		z, err := NewZone(ZoneOptions{Settings: s, Logger: zap.NewNop(), Once: new(warning.Once)})
		if err != nil {
			t.Fatal(err)
		}
		defer z.Release()
		zones, of = append(zones, z), append(of, &books{Zone: z})
	}
	Arrange(zones)
	for i, pause := range pauses {
		time.Sleep(pause)
		for _, b := range of {
			b.before = b.left("k")
		}
		e := decide(t, zones, "k")
		if e.Denied || e.Delay == 0 { // else time has passed
			for _, b := range of {
				if what := b.check(e, "k"); what != "" {
					return fmt.Sprintf("request %d, denied %t, zone %s: %s", i, e.Denied, b.Name, what)
				}
			}
		}
		if e.Denied {
			*denied++
		} else if h := e.Hold(); h != nil && ends[i] {
			h.Replay(Response{Status: 401})
		} else if h != nil {
			defer h.Replay(Response{Status: 401})
			noteRunning(of, e)
		}
		e.Free()
	}
	return ""
}

// noteRunning notes that a request runs on in the zones that have admitted it.
func noteRunning(of []*books, e *Evaluation) {
	for _, b := range of {
		if o, ok := e.Of(b.Zone); ok && !o.Denied && b.Slots != nil {
			b.running++
		}
	}
}
