package ratesync

import (
	"iter"
	"math"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Redis' clock steps ahead and back, over boundaries of windows as well, while nodes count, and
// each node hears of it at another time. Once all have, they count into the same windows, and the
// store and every node know what all of them admitted.
func TestNodesAgreeAfterStepsOfTheStoresClock(t *testing.T) {
	t.Parallel()
	everyStep(t, redistest.Seeds(2, 500), false)
}

// The same where requests reserve, and their responses settle it before, in or after a step: what
// others refund is believed, also where the step has ended what the store held.
func TestNodesAgreeOnReservationsAfterSteps(t *testing.T) {
	t.Parallel()
	everyStep(t, redistest.Seeds(1, 60), true)
}

func everyStep(t *testing.T, seeds iter.Seq[uint64], reserves bool) {
	everyKind(t, kindsOfLimits, seeds, func(p algorithms.Params) func(*testing.T, uint64) {
		if p.Limit, p.Reserves = 1_000_000, reserves; p.Kind.Traits().Draining {
			p.Limit, p.Burst = 100, 1_000_000 // so slow that it does not drain
		}
		if p.Kind == algorithms.GCRA || p.Kind.Traits().Queues {
			return nil
		}
		return algorithms.ByState(p.Kind, stepsOf[algorithms.WindowState], stepsOf[algorithms.BucketState], stepsOf[algorithms.LogState])(p)
	})
}

// stepsOf is a random life with steps of the store's clock.
//
// bubble: everyStep runs what it returns in one.
func stepsOf[S any](p algorithms.Params) func(*testing.T, uint64) {
	return func(t *testing.T, seed uint64) {
		p.Window = []time.Duration{time.Minute, 3 * time.Minute, 10 * time.Minute}[seed%3]
		s := newSchedule[S](t, seed, p, []time.Duration{100 * time.Millisecond, time.Second}[seed/3%2], "a", "b")
		random := s.random
		for range 3 {
			s.join()
		}
		s.busy(3 * time.Second)
		for range 6 {
			var spent [2]int64 // of each key, before a step back over a boundary
			span := float64(s.span)
			// Not by half a window, where the nodes' readings of the clock would decide whether
			// they round up or down.
			by := time.Duration(span * (float64(random.IntN(5)-2) + random.Float64()*.9 - .45))
			if random.IntN(2) == 0 { // from just behind a boundary back over it
				// virtual time
				time.Sleep(time.Duration(int64(s.span) - s.store.time().UnixNano()%int64(s.span)))
				s.busy(time.Second)
				// Further than the boundary is back, and less than half a window.
				by = -2*time.Second - time.Duration(span*(.05+.25*random.Float64()))
				for i, key := range s.keys {
					spent[i] = s.spent(key, max(1, s.entire()))
				}
			}
			levels, stood := map[string]float64{}, time.Now()
			for _, key := range s.keys {
				_, levels[key] = s.levels(key)
			}
			s.store.step(by)
			stepped := s.epoch(s.store.time().UnixNano())
			s.busy(2500 * time.Millisecond) // in the first second only some have noticed it
			s.agree(by)
			for i, key := range s.keys {
				// A bucket counts from zero where it begins another incarnation; its level tells.
				if got := s.spent(key, s.entire()); !s.drains && !p.Reserves && got < spent[i] && s.epoch(s.store.time().UnixNano()) == stepped {
					t.Errorf("after a step of %v: %s: of %d spent in the windows that are one again %d are left", by, key, spent[i], got)
				}
				stands := levels[key] - float64(s.alg.Limit)*time.Since(stood).Seconds()/s.alg.Window.Seconds()
				if least, most := s.levels(key); s.drains && !p.Reserves && (least < stands-1 || most > least+1) {
					t.Errorf("after a step of %v: %s: nodes have %.1f to %.1f in the bucket, want %.1f and what came since", by, key, least, most, stands)
				}
			}
			time.Sleep(time.Duration(random.Int64N(int64(s.span) / 3)))
		}
		s.close()
	}
}

// busy has every node admit something now and then, for a while.
//
// bubble: of the schedule.
func (s *schedule[S]) busy(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.take(s.nodes[s.random.IntN(len(s.nodes))], s.keys[s.random.IntN(len(s.keys))], 1+s.random.IntN(3))
		if s.alg.Reserves {
			s.respond(s.nodes[s.random.IntN(len(s.nodes))], s.random.IntN(4))
		}
		time.Sleep(time.Duration(1 + s.random.Int64N(int64(200*time.Millisecond))))
	}
}

// agree checks what the store has of the live epochs, without a request since, and what the nodes
// know of the current one when the next request comes.
//
// bubble: of the schedule.
func (s *schedule[S]) agree(by time.Duration) {
	time.Sleep(4*s.rate + 3*time.Second)
	if s.alg.Reserves {
		time.Sleep(table.ResentReserved)
	}
	epoch := s.epoch(s.store.time().UnixNano())
	for _, m := range s.nodes {
		// Brings ledgers to the epoch in which a request would find them.
		m.table.Totals(wallClock())
	}
	for _, key := range s.keys {
		if s.drains {
			break // a step ahead names its totals again
		}
		for e := epoch + 1; e >= epoch-int64(s.alg.Compile().History); e-- {
			s.counts(key, e, func(m *member[S], c algorithms.EpochCount) {
				if total, _ := s.store.field(s.hash(key, e), m.source.Node()); total != c.Own {
					s.t.Errorf("after a step of %v: %s: the store has %d of a node that counts %+v", by, s.hash(key, e), total, c)
				}
			})
		}
	}
	for _, key := range s.keys {
		for _, m := range s.nodes {
			m.table.Take(s.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), wallClock(), 0, 0)
		}
	}
	time.Sleep(4 * s.rate)
	if s.epoch(s.store.time().UnixNano()) != epoch {
		return
	}
	for _, key := range s.keys {
		var all int64
		s.counts(key, epoch, func(_ *member[S], c algorithms.EpochCount) { all += c.Own })
		s.counts(key, epoch, func(_ *member[S], c algorithms.EpochCount) {
			if c.Total() != all && !s.drains {
				s.t.Errorf("after a step of %v: %s: a node knows of %+v, all have admitted %d", by, s.hash(key, epoch), c, all)
			}
		})
		s.agreeOnReserved(by, key, epoch)
	}
}

// agreeOnReserved checks what the nodes take for reserved, by themselves and by each other.
func (s *schedule[S]) agreeOnReserved(by time.Duration, key string, epoch int64) {
	var all int64
	for _, m := range s.nodes {
		own, _ := m.table.Reservations().In(keys.KeyOf([]byte(key)), epoch)
		all += own
		if total, settled := s.store.settled(s.hash(key, epoch), m.source.Node()); s.alg.Reserves && settled != total-own {
			s.t.Errorf("after a step of %v: %s: of %d the store has %d as settled, and %d are reserved", by, s.hash(key, epoch), total, settled, own)
		}
	}
	if s.drains {
		return // of which no more than the level is reserved
	}
	for _, m := range s.nodes {
		own, others := m.table.Reservations().In(keys.KeyOf([]byte(key)), epoch)
		if own+others != all {
			s.t.Errorf("after a step of %v: %s: a node takes %d of its own and %d of others for reserved, all have %d", by, s.hash(key, epoch), own, others, all)
		}
	}
}

// spent is what all nodes have admitted in the current epoch and those up to an age.
func (s *schedule[S]) spent(key string, age int64) (sum int64) {
	epoch := s.epoch(s.store.time().UnixNano())
	for e := epoch - age; e <= epoch; e++ {
		s.counts(key, e, func(_ *member[S], c algorithms.EpochCount) { sum += c.Own })
	}
	return sum
}

// entire is how many epochs before the current one count where a key is known by instants: a step
// moves these, and so what is in which of them.
func (s *schedule[S]) entire() int64 {
	if s.alg.Kind == algorithms.SlidingLog {
		return int64(s.alg.Compile().History)
	}
	return 0
}

// levels is how full the bucket of a key is, by the nodes that have the least and the most of it.
func (s *schedule[S]) levels(key string) (least, most float64) {
	least = math.Inf(1)
	for _, m := range s.nodes {
		m.table.With(keys.KeyOf([]byte(key)), func(state *S) {
			now := wallClock() + int64(m.table.Offset())
			level, _ := algorithms.MachineOf[S](s.alg.Kind).Level(state, s.alg.Compile(), now)
			least, most = min(least, level), max(most, level)
		})
	}
	return least, most
}

// counts calls f with what each node has of an epoch.
func (s *schedule[S]) counts(key string, epoch int64, f func(*member[S], algorithms.EpochCount)) {
	for _, m := range s.nodes {
		m.table.With(keys.KeyOf([]byte(key)), func(state *S) {
			c, _ := ledgerOf(s.alg, state).At(epoch)
			f(m, c)
		})
	}
}
