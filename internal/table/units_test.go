package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What one request costs is no number of attempts: a request of 2^20 units, admitted or denied, is
// one, so it tells others nothing of a node's share of all requests.
func TestAttemptsAreRequests(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1000, Window: time.Minute}
	tab := newTable(100, p)
	tab.Configure(SyncConfig{Params: p, Rate: time.Second}, 100)
	raw := []byte("client")
	key, l := keys.KeyOf(raw), p.Compile()
	taken := tab.Take(l, key, raw, t0, 900, 0)
	if !taken.Allowed || tab.Take(l, key, raw, t0, 1<<20, 0).Allowed || !tab.Take(l, key, raw, t0, 0, 0).Allowed {
		t.Fatal("900 of 1000 are not admitted, or 2^20 are, or nothing can't be read")
	}
	sent := func(units, attempts int64) {
		t.Helper()
		tab.Tick()
		m := tab.Drain(t0, 100, false, nil)
		if len(m) == 0 || m[0].Total != units || m[0].Attempts != attempts {
			t.Errorf("%+v is sent, want %d units and %d attempts", m, units, attempts)
		}
		tab.Fail(m)
	}
	sent(900, 2)
	tab.Refund(l, key, taken, 900)
	sent(0, 1)
}

// A limit beyond what a cell counts is counted in steps of several units, rounded up: no more than
// the limit is admitted, and no less than it lacks to a step a request. Refunds come back.
func TestASketchCountsLargeLimitsInSteps(t *testing.T) {
	const limit, upload = 10 << 30, 20_000_000
	s := newSketch(minSketchWidth, limit, time.Minute)
	l, key := limitOf(limit), keys.Key{A: 1, B: 2}
	if s.step != 641 {
		t.Errorf("a step is %d units, want 641", s.step)
	}
	take := func() bool {
		d, _ := s.Take(l, key, sketchStart, upload, 0)
		return d.Allowed
	}
	admitted := int64(0)
	for take() {
		admitted++
	}
	if want := int64(limit / upload); admitted != want {
		t.Errorf("%d uploads were admitted, want %d", admitted, want)
	}
	for range admitted {
		s.Give(s.number, key, sketchStart, upload)
	}
	if spent := s.Spent(key, sketchStart); spent != 0 {
		t.Errorf("%d units stay spent, want none", spent)
	}
	if d, _ := s.Take(l, key, sketchStart, limit, 0); !d.Allowed {
		t.Error("the whole limit is not admitted at once")
	}
	if d, _ := s.Take(l, key, sketchStart, 1, 0); d.Allowed {
		t.Error("a unit more than the limit is admitted")
	}
	if !s.Suits(l) || s.Suits(limitOf(2*limit)) {
		t.Error("the sketch suits a limit that it can't count, or not its own")
	}
}
