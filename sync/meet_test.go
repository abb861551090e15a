package ratesync

import (
	"testing"
	"testing/synctest"
	"time"
)

// lateRecord is equal once so many answers were merged, and asks for the next one at once.
type lateRecord struct {
	noRecord
	answers int
}

func (r *lateRecord) Merge(HeartbeatReply) time.Duration {
	r.answers--
	return 10 * time.Millisecond
}

func (r *lateRecord) IsEqual() bool { return r.answers <= 0 }

// A node that starts waits for the first answer of Redis and the control record, no longer than it
// is told, and once. What waits for the record is woken by it.
func TestMeet(t *testing.T) {
	for name, c := range map[string]struct {
		answers int
		fails   bool
		want    time.Duration
	}{
		"one answer":      {want: 20 * time.Millisecond},
		"a record in two": {answers: 2, want: 50 * time.Millisecond},
		"no record":       {answers: 1000, want: 500 * time.Millisecond},
		"no answer":       {fails: true, want: 500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newVnode(t)
			n.trip, n.fails = 20*time.Millisecond, c.fails
			n.rep.SetRecord(&lateRecord{answers: c.answers})
			meets := func(want time.Duration) {
				t.Helper()
				began := time.Now()
				if met := n.rep.StartAndWait(500 * time.Millisecond); time.Since(began) != want || met != (want < 500*time.Millisecond) {
					t.Errorf("%s: Meet = %t after %v, want it after %v", name, met, time.Since(began), want)
				}
			}
			meets(c.want)
			meets(0)
		})
	}
}

// Without a wait at the start, as where a table is attached by itself, the first sync begins as
// soon as the record was read.
func TestTheRecordWakesWhatWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		n.trip = 10 * time.Millisecond
		n.rep.SetRecord(&lateRecord{answers: 2})
		began := time.Now()
		touch, _ := n.zone("zone", time.Second)
		touch("k")
		time.Sleep(200 * time.Millisecond)
		n.mu.Lock()
		defer n.mu.Unlock()
		if calls := n.calls["zone"]; len(calls) == 0 || calls[0].Sub(began) != 40*time.Millisecond {
			t.Errorf("synced %v after the start, want once after two heartbeats, 10ms between them and one trip", calls)
		}
	})
}
