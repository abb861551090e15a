package bandwidth

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world has the responses of one key take turns in time that it makes up itself.
type world struct {
	queue   queue
	rate    Rate
	now     int64
	steps   int
	clients []*client
	sent    []sending
}

// sending is that bytes were sent.
type sending struct {
	at    int64
	bytes int
	by    *client
}

// client is a response: what it wants to write, and when it asks next.
type client struct {
	member
	wants int   // bytes left of its write, 0 while it writes nothing
	due   int64 // when it asks again, never for not before it is woken
	since int   // when that was set, in steps
	sent  int64
	// next draws the size of its next write and how long after the one before it comes.
	next func() (bytes int, after int64)
}

const never = math.MaxInt64

func newWorld(rate Rate) *world {
	return &world{rate: rate, now: int64(time.Hour), queue: queue{paid: int64(time.Hour)}}
}

func (w *world) add(next func() (int, int64)) *client {
	c := &client{next: next}
	c.wake = func() { w.wait(c, w.now) }
	w.clients = append(w.clients, c)
	w.write(c)
	return c
}

// write begins the next write of a client.
func (w *world) write(c *client) {
	n, after := c.next()
	c.wants = n
	w.wait(c, w.now+after)
}

// wait has a client ask at a time, after those that are to ask then already.
func (w *world) wait(c *client, until int64) {
	w.steps++
	c.due, c.since = until, w.steps
}

// greedy is a client that writes n bytes again and again.
func greedy(n int) func() (int, int64) { return func() (int, int64) { return n, 0 } }

// end ends a client's response.
func (w *world) end(c *client) {
	if c.in != nil {
		w.queue.leave(&c.member)
	}
	w.clients = slices.DeleteFunc(w.clients, func(other *client) bool { return other == c })
}

// step has the client ask that is due first, if that is before the end. Of several that are due at
// once it is the one that came first.
func (w *world) step(end int64) bool {
	var first *client
	for _, c := range w.clients {
		if first == nil || cmp.Or(cmp.Compare(c.due, first.due), c.since-first.since) < 0 {
			first = c
		}
	}
	if first == nil || first.due > end {
		w.now = end
		return false
	}
	w.now = max(w.now, first.due)
	w.ask(first)
	return true
}

func (w *world) ask(c *client) {
	granted, wait := w.queue.take(&c.member, c.wants, w.now, w.rate)
	if granted == 0 {
		if c.in == nil {
			w.queue.join(&c.member)
		}
		if w.wait(c, never); wait >= 0 {
			w.wait(c, w.now+int64(wait))
		}
		return
	}
	c.sent += int64(granted)
	w.sent = append(w.sent, sending{w.now, granted, c})
	if c.wants -= granted; c.wants == 0 {
		w.write(c)
	} else {
		w.wait(c, w.now)
	}
}

func (w *world) run(d time.Duration) {
	for end := w.now + int64(d); w.step(end); {
	}
}

func (w *world) total() (all int64) {
	for _, s := range w.sent {
		all += int64(s.bytes)
	}
	return all
}

// burst is what a key may send beyond its rate in any time.
func burst(rate Rate) float64 { return float64(rate)*catchUp.Seconds() + 2*float64(rate.turn()) }

func rates() *rapid.Generator[Rate] {
	return rapid.Custom(func(t *rapid.T) Rate {
		return Rate(rapid.Int64Range(1, 1<<rapid.IntRange(0, 40).Draw(t, "log")).Draw(t, "rate"))
	})
}

// Whatever responses come, write, wait, idle and end: in no interval more is sent than the rate
// gives and the stated burst.
func TestNothingExceedsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rates().Draw(t, "rate"))
		turn := max(1, w.rate.turnTime())
		next := func() (int, int64) {
			return rapid.IntRange(1, 4*w.rate.turn()).Draw(t, "bytes"), rapid.SampledFrom([]int64{0, 0, 0, turn / 3, 2 * turn, 20 * turn}).Draw(t, "after")
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op == 0:
				w.add(next)
			case op == 1 && len(w.clients) > 0:
				w.end(rapid.SampledFrom(w.clients).Draw(t, "ended"))
			case op == 2:
				w.now += rapid.Int64Range(0, 30*turn).Draw(t, "late") // all wake late
			default:
				w.step(w.now + 10*turn)
			}
		}
		for i := range w.sent {
			sum := 0.0
			for _, s := range w.sent[i:] {
				sum += float64(s.bytes)
				took := time.Duration(s.at - w.sent[i].at).Seconds()
				if most := float64(w.rate)*took + burst(w.rate) + 1; sum > most*(1+1e-9) {
					t.Fatalf("%v bytes in %v s at %d/s, want at most %v", sum, took, w.rate, most)
				}
			}
		}
	})
}

// Responses that always have something to write get all of the rate, and each the same share,
// however much they write at once.
func TestGreedyResponsesShareAllOfTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := Rate(rapid.Int64Range(100, 1<<30).Draw(t, "rate"))
		w := newWorld(rate)
		for range rapid.IntRange(1, 6).Draw(t, "responses") {
			w.add(greedy(rapid.IntRange(max(1, rate.turn()/40), 4*rate.turn()).Draw(t, "bytes")))
		}
		const turns = 50
		w.run(time.Duration(turns * rate.turnTime()))
		if got, want := float64(w.total()), float64(turns*rate.turn()); got < want-1 || got > want+2*float64(rate.turn()) {
			t.Fatalf("%v bytes in %d turns of %d, want %v, and two turns more at most", got, turns, rate.turn(), want)
		}
		least, most := int64(math.MaxInt64), int64(0)
		for _, c := range w.clients {
			least, most = min(least, c.sent), max(most, c.sent)
		}
		if most-least > 2*int64(rate.turn()) {
			t.Fatalf("a response got %d bytes, another one %d: more than two turns of %d apart", most, least, rate.turn())
		}
	})
}

// A response that waits is overtaken by what the others had left of their turns, and no more: also
// while new ones come again and again.
func TestNobodyStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(Rate(rapid.Int64Range(1000, 1<<24).Draw(t, "rate")))
		turn := w.rate.turn()
		for range rapid.IntRange(0, 5).Draw(t, "responses") {
			w.add(greedy(rapid.IntRange(max(1, turn/20), 2*turn).Draw(t, "bytes")))
		}
		w.run(time.Duration(rapid.Int64Range(0, 20*w.rate.turnTime()).Draw(t, "before")))
		before := len(w.clients)
		c := w.add(greedy(1))
		at := len(w.sent)
		for c.sent == 0 {
			if rapid.Bool().Draw(t, "another") {
				w.add(greedy(turn))
			}
			w.step(never)
		}
		others := 0
		for _, s := range w.sent[at:] {
			if s.by != c {
				others += s.bytes
			}
		}
		// Of each that was there, the rest of a turn and the turn it waited for.
		if most := 2 * before * turn; others > most {
			t.Fatalf("%d bytes of %d others went before it, want at most %d", others, before, most)
		}
	})
}

// What is before another one stays so: whoever asks too early or comes by waits.
func TestWhoIsFirst(t *testing.T) {
	const rate, turn = 1 << 20, maxTurn
	q, now := queue{paid: 1e18}, int64(1e18)
	var begun, first, second, late member
	for _, m := range []*member{&begun, &first, &second, &late} {
		m.wake = func() {}
	}
	take := func(name string, m *member, n, want int) {
		t.Helper()
		if got, wait := q.take(m, n, now, rate); got != want || (wait < 0) != (want == 0 && q.first() != m && m.in != nil || name == "late") {
			t.Fatalf("%s: %d bytes, ask again after %v, want %d bytes", name, got, wait, want)
		}
	}
	take("begun", &begun, turn/2, turn/2)
	take("nobody is before it, and it is too early", &first, turn, 0)
	q.join(&first)
	q.join(&second)
	now += int64(time.Second)
	take("second", &second, turn, 0)
	take("late", &late, turn, 0)
	take("the turn has begun", &begun, turn/4, turn/4)
	now = q.paid - Rate(rate).turnTime()
	q.join(&begun)
	if q.first() != &begun {
		t.Fatal("one whose turn has begun does not go first")
	}
	now += int64(time.Second)
	take("first, overtaken", &first, turn, 0)
	take("begun", &begun, turn, turn/4)
	take("first", &first, turn, turn)
}

// Many responses whose turns have begun, and which all go on at one instant after the key was idle,
// send no more than the stated burst.
func TestBegunTurnsAreBounded(t *testing.T) {
	for _, rate := range []Rate{1000, 1 << 20} {
		q, now, sum := queue{}, int64(1e18), 0
		all := make([]member, 1000)
		for i := range all {
			n, _ := q.take(&all[i], 1, now, rate)
			sum += n
		}
		for i := range all {
			n, _ := q.take(&all[i], maxTurn, now, rate)
			sum += n
		}
		if most := burst(rate) + 1; float64(sum) > most || float64(sum) < most-2*float64(rate.turn()) {
			t.Errorf("%d bytes at once at %d/s, want at most %.0f", sum, rate, most)
		}
	}
}

// What a byte takes is no whole number of nanoseconds. That adds up.
func TestTheRateIsExact(t *testing.T) {
	w := newWorld(700_000_000)
	w.add(greedy(1))
	w.run(time.Millisecond)
	if got := w.total(); got < 700_000 || got > 700_000+2*maxTurn {
		t.Errorf("%d bytes in a millisecond at 700 MB/s", got)
	}
}

// Responses that end while they wait leave no hole: the others go on as if these had never come.
func TestAnEndLeavesNoHole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := Rate(rapid.Int64Range(1000, 1<<24).Draw(t, "rate"))
		ends := rapid.SliceOfN(rapid.Bool(), 1, 6).Draw(t, "ends") // of those that wait
		after := time.Duration(rapid.Int64Range(0, rate.turnTime()-1).Draw(t, "after"))
		with, without := newWorld(rate), newWorld(rate)
		with.add(greedy(rate.turn()))
		without.add(greedy(rate.turn()))
		var ending []*client
		for _, end := range ends {
			if c := with.add(greedy(3 * rate.turn())); end {
				ending = append(ending, c)
			} else {
				without.add(greedy(3 * rate.turn()))
			}
		}
		with.run(after) // the first has its turn, all others wait
		without.run(after)
		for _, c := range ending {
			with.end(c)
		}
		with.run(time.Second)
		without.run(time.Second)
		for i, c := range without.clients {
			if got := with.clients[i].sent; got != c.sent {
				t.Fatalf("response %d of %d got %d bytes, and %d if those that ended had never come", i, len(without.clients), got, c.sent)
			}
		}
	})
}

// A key that sent nothing for long begins as a new one does, after restart.
func TestAnIdleKeyIsAsANewOne(t *testing.T) {
	for _, idle := range []time.Duration{0, time.Millisecond, catchUp, time.Hour} {
		w := newWorld(1 << 20)
		c := w.add(greedy(100_000))
		w.run(time.Second)
		w.end(c)
		w.now = max(w.now, w.queue.paid) + int64(idle)
		w.queue.restart(w.now)
		w.sent = nil
		w.add(greedy(100_000))
		w.run(time.Second)
		first := newWorld(1 << 20)
		first.add(greedy(100_000))
		first.run(time.Second)
		if w.total() != first.total() {
			t.Errorf("after %v: %d bytes in a second, and %d of a new key", idle, w.total(), first.total())
		}
	}
}

// What is paid for and refunded leaves the queue as it was, but for less than a nanosecond.
func TestRefund(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rates().Draw(t, "rate")
		q := queue{paid: 1e18}
		n := rapid.IntRange(1, maxTurn).Draw(t, "bytes")
		q.pay(n, 1e18, rate)
		if q.refund(n, rate); q.paid != 1e18 {
			t.Fatalf("refunding %d bytes at %d/s is off by %d ns", n, rate, q.paid-1e18)
		}
	})
}
