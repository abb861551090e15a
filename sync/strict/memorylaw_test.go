package strict

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
)

// What a memory tells is what Redis would tell, or on the safe side: whatever was asked, admitted
// and refunded meanwhile, by whatever limits and costs, in one call or in several, of which some
// fail. Only of what Redis loses it knows a second later.
func TestAMemoryTellsWhatRedisWouldTell(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kind.String(), func(t *testing.T) {
			told := 0
			for seed := range uint64(4) {
				remember(t, func(t *testing.T, n *remembering) { told += newHistory(n, kind, seed).run(120) })
			}
			if told == 0 {
				t.Error("the memory told nothing")
			}
		})
	}
}

// A history is random requests of a key whose limits change: what an override or a reload does.
type history struct {
	*remembering
	*rand.Rand
	sets   [][]Rule
	mu     sync.Mutex
	grants []Grant
	told   int
	lost   int64 // when Redis lost all
}

func newHistory(n *remembering, kind algorithms.Kind, seed uint64) *history {
	n.memory.Configure(2)
	h := &history{remembering: n, Rand: rand.New(rand.NewPCG(seed, uint64(kind)))}
	for _, limit := range []int64{6, 9, 3} {
		short, long := perWindow(kind, limit, 2*time.Second), perWindow(kind, limit+2, 7*time.Second)
		h.sets = append(h.sets, []Rule{short}, []Rule{short, long})
	}
	return h
}

func (h *history) run(steps int) (told int) {
	for range steps {
		time.Sleep(time.Microsecond) // what begins now was not under way before
		switch h.IntN(11) {
		case 0:
			h.sleep(time.Duration(h.Int64N(int64(900 * time.Millisecond))))
		case 1:
			h.sleep(time.Duration(h.Int64N(int64(20 * time.Millisecond))))
		case 2:
			h.several()
		case 3:
			if len(h.grants) > 0 {
				h.Refund(h.grants[h.IntN(len(h.grants))], nil)
			}
			h.grants = nil
			synctest.Wait()
		case 4:
			if h.IntN(8) == 0 {
				h.server.FlushAll()
				h.lost = clock.Now()
			}
		default:
			h.one(h.draw())
		}
	}
	return h.told
}

// draw is a request: of one of three keys, of which two are remembered.
func (h *history) draw() (key [16]byte, rules []Rule, cost int64) {
	return id(h.IntN(3) * h.IntN(2)), h.sets[h.IntN(len(h.sets))], 1 + h.Int64N(4)
}

// one asks the memory and then Redis, and compares what they say.
func (h *history) one(key [16]byte, rules []Rule, cost int64) {
	h.t.Helper()
	got, ok := h.memory.Recall(rules, key, cost, clock.Now(), nil)
	if !ok {
		h.take(key, rules, cost)
		synctest.Wait()
		return
	}
	h.told++
	_, want, admitted, err := h.Look(h.t.Context(), memorized, rules, key, cost)
	if err != nil || admitted && (h.lost == 0 || clock.Now()-h.lost >= int64(memoryTime)) {
		h.t.Fatalf("%+v, cost %d: denied by the memory; by Redis admitted %t, %v", rules, cost, admitted, err)
	}
	if admitted { // Redis has lost what the memory knows
		return
	}
	for i := range got {
		g, w := got[i].Decision, want[i].Decision
		if g.Remaining > w.Remaining || !w.Allowed && g.Retry < w.Retry-2*time.Microsecond {
			h.t.Fatalf("%+v rule %d, cost %d:\n told %+v\nRedis %+v", rules, i, cost, g, w)
		}
	}
}

func (h *history) take(key [16]byte, rules []Rule, cost int64) {
	_, g, err := h.Take(h.t.Context(), memorized, rules, key, cost, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && g.Admitted() {
		h.grants = append(h.grants, g)
	}
}

// several asks in calls of several batches. One of them may fail.
func (h *history) several() {
	h.delay.Store(int64(5 * time.Millisecond))
	var all sync.WaitGroup
	for range 2 + h.IntN(8) {
		key, rules, cost := h.draw()
		all.Go(func() { h.take(key, rules, cost) })
		synctest.Wait()
	}
	if h.IntN(3) == 0 {
		time.Sleep(5 * time.Millisecond)
		h.fail.Store(new(error(wrongType{})))
		time.Sleep(5 * time.Millisecond)
		h.fail.Store(nil)
	}
	all.Wait()
	h.delay.Store(0)
	synctest.Wait()
}
