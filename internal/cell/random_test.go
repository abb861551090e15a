package cell

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A runner runs the script at an instant, in microseconds.
type runner interface {
	// ends says whether keys end.
	ends() bool
	run(now int64, keys []string, args []any) (string, error)
	do(args ...any) any
}

// source is the script, with a change that the environment names, "old=>new": a test must then
// fail.
func source() string {
	from, to, ok := strings.Cut(os.Getenv("TIDE_MUTATE"), "=>")
	if ok && strings.Count(Script, from) != 1 {
		panic(fmt.Sprintf("%q is there %d times", from, strings.Count(Script, from)))
	}
	if ok {
		return strings.Replace(Script, from, to, 1)
	}
	return Script
}

// virtual is the stand-in for Redis.
type virtual struct {
	store *redistest.Store
	at    *int64
}

func newVirtual(t testing.TB) virtual {
	at := new(int64)
	return virtual{redistest.NewStore(t, func() time.Time { return time.UnixMicro(*at) }), at}
}

func (v virtual) run(now int64, keys []string, args []any) (string, error) {
	*v.at = now
	reply, err := v.store.Eval(source(), keys, args...)
	text, _ := reply.(string)
	return text, err
}

func (v virtual) ends() bool { return true }

func (v virtual) do(args ...any) any { return v.store.Do(args...) }

// real is a server, whose script has the clock as its last argument. There keys don't end.
type real struct {
	client *redis.Client
	script *redis.Script
}

func newReal(t testing.TB) real {
	text := "local us = table.remove(ARGV)\n" + strings.Replace(source(), "call('TIME')", "{math.floor(us / 1000000), math.fmod(us, 1000000)}", 1)
	text = strings.ReplaceAll(text, "key, expiry) end", "key, 9e15) end")
	return real{redistest.Start(t).Client(), redis.NewScript(text)}
}

func (r real) run(now int64, keys []string, args []any) (string, error) {
	return r.script.Run(context.Background(), r.client, keys, append(slices.Clone(args), now)...).Text()
}

func (r real) ends() bool { return false }

func (r real) do(args ...any) any {
	reply, err := r.client.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil {
		panic(err)
	}
	return reply
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// Random calls get from the script what the model says, on the stand-in and on a real server.
func TestScriptDoesWhatTheModelSays(t *testing.T) {
	for name, on := range map[string]func(testing.TB) runner{
		"stand-in": func(t testing.TB) runner { return newVirtual(t) },
		"server":   func(t testing.TB) runner { return newReal(t) },
	} {
		t.Run(name, func(t *testing.T) {
			r := on(t)
			for seed := range redistest.Seeds(30, 2000) {
				if randomCalls(t, r, seed); t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// A cast is the cells and nodes of random calls.
type cast struct {
	t      *testing.T
	r      *rand.Rand
	on     runner
	now    int64
	rule   []Rule
	cells  []*model
	seqs   map[string]int64
	stamps []int64
}

func randomCalls(t *testing.T, on runner, seed uint64) {
	c := &cast{t: t, r: rand.New(rand.NewPCG(seed, 11)), on: on, now: 1_795_000_000_000_000, seqs: map[string]int64{}, stamps: make([]int64, 4), cells: make([]*model, 4)}
	c.now += c.r.Int64N(1e9)
	on.do("FLUSHALL")
	for range 4 {
		w := pick(c.r, time.Second, time.Minute, 333333*time.Microsecond, time.Hour)
		f := Rule{Kind: Bucket, Window: w, Parts: 1, Decided: c.r.IntN(2) == 0, Filled: c.r.IntN(2) == 0, Size: pick(c.r, int64(3), 50, 1000), Rate: pick(c.r, int64(1), 10, 1000, 1e6), TTL: w}
		switch c.r.IntN(5) {
		case 0:
			f.Kind, f.Kept = Windows, 1
			if c.r.IntN(2) == 0 {
				f.Kind, f.Shift = Calendar, c.r.Int64N(2e12)-1e12
			}
		case 1:
			f.Kind, f.Parts = Fades, pick(c.r, 1, 2, 7, 31)
			f.Kept = f.Parts + 1
		case 2:
			f.Kind, f.Parts, f.Kept = Windows, 16, 17
		}
		c.rule = append(c.rule, f)
	}
	for range 120 {
		c.event()
		if c.call(); t.Failed() {
			return
		}
	}
}

// event is what happens between two calls.
func (c *cast) event() {
	k := c.r.IntN(4)
	switch n := c.r.IntN(40); n {
	case 0:
		c.on.do("FLUSHALL")
		clear(c.cells)
	case 1:
		c.on.do("DEL", fmt.Sprint("cell", k))
		c.cells[k] = nil
	case 2:
		if m := c.cells[k]; m != nil && c.rule[k].Kind != Bucket {
			// a field is nonsense: it counts as none
			node := pick(c.r, "a", "b", "c")
			c.on.do("HSET", fmt.Sprint("cell", k), node, "nonsense")
			delete(m.fields, node)
			c.on.do("HSET", fmt.Sprint("cell", k), "sum", pick(c.r, "nonsense", "-1", "1 2"))
			m.poisoned = true
		}
	case 3:
		if m := c.cells[k]; m != nil && c.rule[k].Kind != Bucket {
			c.on.do("HSET", fmt.Sprint("cell", k), "sum", pick(c.r, "nonsense", "-1", "1 2"))
			m.poisoned = true
		}
	case 4:
		c.stamps[k] += c.r.Int64N(3)
	}
	c.now += pick(c.r, int64(0), 1, 1000, 20000, 62500, 300000, 2e6, 50e6) * c.r.Int64N(3)
}

func (c *cast) state(k int, node string, seq int64) State {
	f, m := c.rule[k], c.cells[k]
	s := State{Seq: seq, Stamp: max(0, c.stamps[k]-c.r.Int64N(2)), Reserved: c.r.Int64N(3)}
	var had modelField
	if m != nil {
		had = m.fields[node]
	}
	if f.Kind == Bucket {
		s.Incarnation, s.Total = pick(c.r, int64(5), 5, 5, 6), c.r.Int64N(60)
		if had.seq > 0 && c.r.IntN(3) > 0 {
			s.Incarnation, s.Total = had.start, had.total+pick(c.r, int64(0), 0, 1, 5)
			s.Reserved = had.open
		}
		s.Unacked = min(s.Total, c.r.Int64N(10))
		s.Whole, s.Rest = s.Unacked+c.r.Int64N(20), c.r.Int64N(f.Window.Microseconds())
		s.UnackedFor = pick(c.r, int64(0), 0, 100000, 5e6)
		s.AnsweredSeq = pick(c.r, had.seq, had.seq, 0)
		return s
	}
	next := min(1, f.Epoch(c.now+c.r.Int64N(1e6))-f.Epoch(c.now)) // of a clock that is ahead
	s.Epoch = f.Epoch(c.now) + pick(c.r, next, 0, 0, -1, -3)
	for range c.r.IntN(f.Kept + 1) {
		s.Totals = append(s.Totals, c.r.Int64N(30))
	}
	if had.seq > 0 && c.r.IntN(3) > 0 { // what it had, and a little more
		s.Reserved, s.Epoch = had.open, had.epoch
		if e := f.Epoch(c.now); c.r.IntN(2) == 0 && had.epoch < e {
			s.Epoch = e
		}
		s.Totals = nil
		for e := s.Epoch; e > s.Epoch-int64(f.Kept); e-- {
			s.Totals = append(s.Totals, had.totals[e])
		}
		s.Totals[0] += pick(c.r, int64(0), 0, 1, 20)
	}
	if len(s.Totals) == 0 {
		s.Totals = []int64{0}
	}
	for len(s.Totals) > 1 && s.Totals[len(s.Totals)-1] == 0 {
		s.Totals = s.Totals[:len(s.Totals)-1]
	}
	return s
}

// asks are what a strict call asks for.
func (c *cast) asks(cells []int) (asks []Ask) {
	for range 1 + c.r.IntN(3) {
		ask := Ask{Count: 1 + c.r.Int64N(5), Cost: pick(c.r, int64(0), 1, 1, 2, 7, 1<<40)}
		for _, k := range cells {
			rate := pick(c.r, c.rule[k].Rate, c.rule[k].Rate, 10, 0)
			ask.Limits = append(ask.Limits, Limit{pick(c.r, int64(0), 3, 10, 50, 1000, 1e9), rate})
		}
		asks = append(asks, ask)
	}
	return asks
}

// call makes a call of the script and of the model.
func (c *cast) call() {
	node := pick(c.r, "a", "b", "c", "d")
	seq := c.seqs[node] + pick(c.r, int64(1), 1, 1, 1, 2, 0, -1)
	seq = max(1, seq)
	c.seqs[node] = max(c.seqs[node], seq)
	call := Call{Seq: seq}
	cells := c.r.Perm(4)[:1+c.r.IntN(3)]
	for _, k := range cells {
		call.Cells = append(call.Cells, Update{fmt.Sprint("cell", k), c.rule[k].String(), node, c.state(k, node, seq)})
	}
	if c.r.IntN(2) == 0 {
		call.Asks = c.asks(cells)
	}
	for _, k := range cells {
		if m := c.cells[k]; m != nil && c.on.ends() && c.now/1000 >= m.end {
			c.cells[k] = nil
		}
	}
	keys, args := argsOf(&call)
	text, err := c.on.run(c.now, keys, args)
	if err != nil {
		c.t.Errorf("%v", err)
		return
	}
	var got Answer
	if err := call.Read(text, &got); err != nil {
		c.t.Errorf("%q: %v", text, err)
		return
	}
	c.compare(&call, cells, got, text)
}

// compare holds an answer to what the model says, which takes the call.
func (c *cast) compare(call *Call, cells []int, got Answer, text string) {
	next, old := make([]*model, len(cells)), false
	for i, k := range cells {
		s := call.Cells[i].State
		next[i] = c.cells[k].take(c.rule[k], call.Cells[i].Node, s, c.now)
		old = old || next[i] == nil
	}
	var grants []int64
	for _, ask := range call.Asks {
		fit := ask.Count
		for i, k := range cells {
			if !old && ask.Cost > 0 {
				if fit = max(0, min(fit, next[i].room(c.rule[k], ask.Limits[i], c.now)/ask.Cost)); c.rule[k].Kind == Bucket && ask.Limits[i].Rate > 0 {
					next[i].flows = ask.Limits[i].Rate
				}
			}
		}
		if old {
			fit = 0
		}
		grants = append(grants, fit)
		for i, k := range cells {
			if fit*ask.Cost > 0 {
				next[i].grant(c.rule[k], call.Cells[i].Node, fit*ask.Cost, c.now)
			}
		}
	}
	if !old && !slices.Equal(got.Grants, grants) {
		c.t.Errorf("granted %v (%q), want %v\n%+v", got.Grants, got.Status, grants, *call)
	}
	if old && len(call.Asks) > 0 && got.Status != "old" {
		c.t.Errorf("an old call got %v: %+v\n%s", got.Grants, *call, text)
	}
	for i, k := range cells {
		if next[i] == nil {
			continue
		}
		next[i].note(call.Cells[i].Node)
		field, _ := c.on.do("HGET", call.Cells[i].Key, call.Cells[i].Node).(string)
		written := strings.HasPrefix(field, fmt.Sprint(call.Cells[i].State.Seq, " "))
		if !written {
			c.t.Errorf("%s: %+v was not written", call.Cells[i].Key, call.Cells[i].State)
			continue
		}
		if want := next[i]; !want.is(c.rule[k], got.Cells[i].Sum, c.now) {
			c.t.Errorf("%s: sum %+v, want %+v\n%+v\n%s", call.Cells[i].Key, got.Cells[i].Sum, *want, *call, text)
		}
		for name, own := range next[i].fields {
			field, _ := c.on.do("HGET", call.Cells[i].Key, name).(string)
			if f := strings.Fields(field); c.rule[k].Kind == Bucket && (len(f) != 6 || f[5] != fmt.Sprint(own.stands)) {
				c.t.Errorf("%s: %s has %q, want %d at its end", call.Cells[i].Key, name, field, own.stands)
			}
		}
		next[i].end = got.Cells[i].Sum.End
		c.cells[k] = next[i]
	}
}

// is reports whether a sum says what the model has.
func (m *model) is(f Rule, s Sum, now int64) bool {
	if f.Kind == Bucket {
		whole, rest := m.whole(f.Window.Microseconds())
		return s.Stamp == m.stamp && s.Total == m.total && s.Whole == whole && s.Rest == rest && s.At == m.at && s.Rate == m.flows && s.Added == m.added
	}
	all, open := m.sum(f, now, s.Epoch)
	e, has := f.Epoch(now), map[int64]int64{}
	for i, n := range s.Totals {
		if k := s.Epoch - int64(i); n > 0 && k > e-int64(f.Kept) {
			has[k] = n
		}
	}
	return s.Stamp == m.stamp && maps.Equal(all, has) && s.Reserved == open
}
