package ratesync

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Whatever happens to messages, replies, nodes and the store: once all is well again, the store has
// exactly what each living node admitted in each live epoch, and of a dead one no more than it
// admitted and no less than it had confirmed, until a bucket has drained. The tables, the loops and
// the scripts are the real ones. The nodes may differ in all but kind and window, and change
// meanwhile.
func TestEverySchedule(t *testing.T) {
	t.Parallel()
	everySchedule(t, redistest.Seeds(2, 500), false)
}

// everySchedule runs schedules of each algorithm. With reserves, requests reserve.
func everySchedule(t *testing.T, seeds iter.Seq[uint64], reserves bool) {
	kinds := maps.Clone(kindsOfLimits)
	kinds["calendar"] = algorithms.Params{Kind: algorithms.FixedWindow, Calendar: lisbon}
	everyKind(t, kinds, seeds, func(p algorithms.Params) func(*testing.T, uint64) {
		if p.Reserves = reserves; reserves && p.Kind.Traits().Queues {
			return nil // it keeps its slots
		}
		return algorithms.ByState(p.Kind, scheduleOf[algorithms.WindowState], scheduleOf[algorithms.BucketState], scheduleOf[algorithms.LogState])(p)
	})
}

// kindsOfLimits are the kinds, whose limits the tests set.
var kindsOfLimits = map[string]algorithms.Params{
	"fixed_window":   {Kind: algorithms.FixedWindow},
	"sliding_window": {Kind: algorithms.SlidingWindow},
	"sub_windows":    {Kind: algorithms.SlidingWindow, SubWindows: 4},
	"sliding_log":    {Kind: algorithms.SlidingLog},
	"token_bucket":   {Kind: algorithms.TokenBucket},
	"gcra":           {Kind: algorithms.GCRA},
	"leaky_bucket":   {Kind: algorithms.LeakyBucket},
}

// everyKind runs what run makes of each kind with each seed. It makes nil of those that are left
// out.
func everyKind(t *testing.T, kinds map[string]algorithms.Params, seeds iter.Seq[uint64], run func(p algorithms.Params) func(*testing.T, uint64)) {
	for name, p := range kinds {
		if one := run(p); one != nil && !skipRaced(name) {
			t.Run(name, func(t *testing.T) {
				for seed := range seeds {
					inBubble(t, seed, func(t *testing.T) { one(t, seed) })
				}
			})
		}
	}
}

// lisbon is a calendar whose days begin with the bubbles'.
var lisbon = must(calendar.Of(algorithms.Day, "Europe/Lisbon", 1))

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// inBubble runs a test of a seed in virtual time. One that fails says its seed: a bubble that fails
// ends who began it.
func inBubble(t *testing.T, seed uint64, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			if t.Failed() {
				t.Errorf("seed %d", seed)
			}
		}()
		test(t)
	})
}

// skipRaced reports whether an algorithm is left out where the detector of races looks on: one of
// each kind of state shows all that goroutines share.
func skipRaced(algorithm string) bool {
	return redistest.Raced && algorithm != "fixed_window" && algorithm != "sliding_log" && algorithm != "token_bucket"
}

// A schedule is some nodes and a store, and what happens to them. It belongs to one goroutine.
type schedule[S any] struct {
	t      *testing.T
	random *rand.Rand
	// alg is the parameters of one node, and rate the longest interval of all. draw makes other
	// parameters for a node; nil where all are alike.
	alg    algorithms.Params
	rate   time.Duration
	draw   func() algorithms.Params
	span   time.Duration
	spec   Spec
	drains bool
	store  *luaStore
	net    *network
	keys   []string
	nodes  []*member[S]
	dead   []*member[S]
	saved  map[string]any
	// whole says that the store forgets everything or nothing, which nodes notice without a
	// request.
	whole bool
	// evicted are the hashes that were lost one by one: of those nodes ask only as long as their
	// epoch is the current one.
	evicted map[string]bool
	// lapsed are the hashes of buckets that have drained and expired: of these the store has
	// nothing of a node until that says something of them again.
	lapsed map[string]bool
}

// member is a node.
type member[S any] struct {
	alg    algorithms.Params
	rate   time.Duration
	wire   *wire
	table  *table.Table[S]
	source *TableSyncer
	rep    *Replicator
	// own is what it admitted and did not get back, by the names of the hashes, and floor what the
	// store confirmed when it ended and has not lost since. Of what it refunded it may have sent
	// in a message that is still on the way, so that less than that may be there.
	own, floor map[string]int64
	gave       map[string]bool
	taken      []took
	open       []openUnit // see settled_test.go
}

type took struct {
	key string
	table.Taken
}

// newSchedule is one of nodes with alike limits, of which none has joined yet.
func newSchedule[S any](t *testing.T, seed uint64, alg algorithms.Params, rate time.Duration, keys ...string) *schedule[S] {
	s := &schedule[S]{
		t: t, random: rand.New(rand.NewPCG(seed, 7)), rate: rate, store: newLuaStore(t), net: &network{random: rand.New(rand.NewPCG(seed, 8))},
		keys: keys, evicted: make(map[string]bool),
	}
	s.by(alg)
	return s
}

// by has nodes go by a limit, and names their tables.
func (s *schedule[S]) by(alg algorithms.Params) {
	s.alg, s.spec = alg, SpecOf("z", alg)
	if s.drains, s.span = alg.Kind.Traits().Draining, alg.Epoch(); s.drains {
		s.span = alg.Window // the epoch of a bucket never ends
	}
}

// pick is one of some.
func (s *schedule[S]) pick(all ...time.Duration) time.Duration { return all[s.random.IntN(len(all))] }

// scheduleOf is a random schedule of an algorithm.
//
// bubble: everySchedule runs what it returns in one.
func scheduleOf[S any](p algorithms.Params) func(*testing.T, uint64) {
	return func(t *testing.T, seed uint64) {
		s := newSchedule[S](t, seed, p, 0)
		if p.Window = s.pick(2*time.Minute, 10*time.Minute); p.Calendar != nil {
			p.Window = algorithms.Day
		}
		s.draw = func() algorithms.Params {
			p.Limit = int64(5 + s.random.IntN(500))
			p.Burst = int64(5 + s.random.IntN(1000))
			p.Queue = p.Burst
			return p
		}
		s.by(s.draw())
		if s.alg.Calendar != nil {
			s.span = 10 * time.Minute
			time.Sleep(24*time.Hour - s.span) // soon the next day begins
		}
		s.rate, s.whole = s.pick(100*time.Millisecond, 500*time.Millisecond, time.Second, 5*time.Second), seed%2 == 0
		for i := range 1 + s.random.IntN(4) {
			s.keys = append(s.keys, fmt.Sprint("key", i))
		}
		for range 2 + s.random.IntN(3) {
			s.join()
		}
		for range 60 + s.random.IntN(200) {
			s.step()
		}
		s.storm(seed / 2 % 3)
		s.settle()
		s.close()
	}
}

func (s *schedule[S]) join() {
	m := s.member()
	s.configure(m)
	s.nodes = append(s.nodes, m)
}

// member is a node that has not begun.
func (s *schedule[S]) member() *member[S] {
	m := &member[S]{wire: &wire{net: s.net, store: s.store}, table: tableOf[S](s.alg, 1000), own: make(map[string]int64), floor: make(map[string]int64), gave: make(map[string]bool)}
	m.source = NewTableSyncer(m.table, s.spec)
	m.rep = NewReplicator(m.wire, "test", time.Second, wallClock, zap.NewNop())
	return m
}

// configure gives a node parameters of its own, at first or in a reload.
func (s *schedule[S]) configure(m *member[S]) {
	m.alg, m.rate = s.alg, s.rate
	if s.draw != nil {
		m.alg, m.rate = s.draw(), s.rate/time.Duration(1+s.random.IntN(4))
	}
	m.table.Configure(table.SyncConfig{
		Params: m.alg, Interval: m.rate, Early: s.random.IntN(4) > 0, Waker: m.source.Waker,
		After: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	}, 1000)
	m.rep.Attach(m.source, m.rate)
}

// step is one thing that happens, and some time.
//
// bubble: of the schedule.
func (s *schedule[S]) step() {
	m := s.nodes[s.random.IntN(len(s.nodes))]
	switch n := s.random.IntN(100); {
	case n < 60:
		s.take(m, s.keys[s.random.IntN(len(s.keys))], 1+s.random.IntN(20))
	case n < 72:
		s.giveBack(m)
	case n < 74:
		m.table.Sweep(wallClock())
	case n < 76:
		s.configure(m)
	case n < 84:
		s.net.worsen()
	case n < 89:
		s.net.heal()
	case n < 92:
		s.forget(s.whole || s.random.IntN(4) == 0)
	case n < 94:
		s.saved = s.store.Values()
	case n < 96 && !s.whole:
		s.failOver()
	case len(s.nodes) > 1 && n < 98:
		s.end(m, n == 96)
		s.join()
	default:
		time.Sleep(time.Duration(s.random.Int64N(int64(s.span / 2))))
	}
	time.Sleep(time.Duration(s.random.Int64N(int64(2 * s.rate))))
}

// storm is a hard end, of one of three kinds, after which no request comes.
func (s *schedule[S]) storm(kind uint64) {
	switch kind {
	case 0:
		// Copies of messages are on the way that come when newer ones have long been answered, and
		// the last requests are sent in vain at first.
		s.net.heal()
		s.net.become(&s.net.two, .8)
		s.requests(12)
		s.net.become(&s.net.lost, 1)
		s.requests(3)
	case 1:
		// The store forgets, twice in a short time.
		s.net.heal()
		s.requests(3)
		for range 2 {
			time.Sleep(3*s.rate + 3*heartbeatInterval)
			s.forget(true)
		}
	case 2:
		// What has been sent is refunded.
		s.net.heal()
		s.requests(3)
		time.Sleep(5 * s.rate)
		for _, m := range s.nodes {
			s.giveBack(m)
		}
	}
}

// requests are a few on each node.
//
// bubble: of the schedule.
func (s *schedule[S]) requests(times int) {
	for range times {
		for _, m := range s.nodes {
			s.take(m, s.keys[s.random.IntN(len(s.keys))], 2)
		}
		time.Sleep(s.rate / 2)
	}
}

// hash is the name of a key's epoch, a part of a cell.
func (s *schedule[S]) hash(key string, epoch int64) string {
	return NewKeyspace("test").Cells(s.spec).Of(keys.IDOf([]byte(key))) + "#" + strconv.FormatInt(epoch, 10)
}

func (s *schedule[S]) epoch(at int64) int64 { return s.alg.Epochs().At(at) }

func (s *schedule[S]) take(m *member[S], key string, n int) {
	if s.alg.Reserves {
		s.reserve(m, key, n)
		return
	}
	for range n {
		d := m.table.Take(m.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), wallClock(), 1, 0)
		if d.Allowed {
			m.own[s.hash(key, s.epoch(d.At))]++
			m.taken = append(m.taken, took{key, d})
		}
	}
}

// giveBack returns some of what was taken lately, sent or not.
func (s *schedule[S]) giveBack(m *member[S]) {
	if s.alg.Reserves {
		s.respond(m, 1+s.random.IntN(5))
		return
	}
	for range min(len(m.taken), 1+s.random.IntN(5)) {
		last := m.taken[len(m.taken)-1]
		m.taken = m.taken[:len(m.taken)-1]
		if s.epoch(last.At) != s.epoch(wallClock()+int64(m.table.Offset())) {
			m.taken = nil // requests don't last that long
			return
		}
		m.table.Refund(m.alg.Compile(), keys.KeyOf([]byte(last.key)), last.Taken, 1)
		hash := s.hash(last.key, s.epoch(last.At))
		m.own[hash]--
		m.gave[hash] = true
	}
}

// forget has the store lose a hash or all. What only dead nodes had counted there is gone.
func (s *schedule[S]) forget(all bool) {
	s.evicted[s.store.forget(s.random.IntN(1000), all)] = true
	if s.lower(); all { // nodes notice that, and send all that they have
		s.drain()
		clear(s.lapsed)
	}
}

// failOver goes back to what a replica had. That may undo what the dead had confirmed, and let late
// messages of theirs in once more.
func (s *schedule[S]) failOver() {
	if s.saved == nil {
		return
	}
	for hash := range s.store.Hashes() {
		s.evicted[hash] = true
	}
	s.store.restore(s.saved)
	for _, m := range s.dead {
		clear(m.floor)
	}
}

// lower notes what the store no longer has of the dead.
func (s *schedule[S]) lower() {
	for _, m := range s.dead {
		for hash, floor := range m.floor {
			total, _ := s.store.field(hash, m.source.Node())
			m.floor[hash] = min(floor, total)
		}
	}
}

// drain notes which buckets have expired, as they have drained. Of the dead nothing is sent again.
func (s *schedule[S]) drain() {
	drained, full := s.store.lapses()
	if s.lapsed == nil {
		s.lapsed = make(map[string]bool)
	}
	for _, cell := range drained {
		s.lapsed[cell+"#0"] = true
		for _, m := range s.dead {
			delete(m.floor, cell+"#0")
		}
	}
	if s.whole && len(full) > 0 { // a store that was restored has no ends of keys
		s.t.Errorf("buckets expired and had yet to drain: %v", full)
	}
}

// end ends a node, at once or in order.
func (s *schedule[S]) end(m *member[S], kill bool) {
	m.end(kill)
	s.drain()
	for key := range s.keys {
		m.table.With(keys.KeyOf([]byte(s.keys[key])), func(state *S) {
			l := ledgerOf(s.alg, state)
			for age := range int64(s.alg.Compile().History + 1) {
				hash := s.hash(s.keys[key], l.Epoch-age)
				if c, ok := l.At(l.Epoch - age); ok && !m.gave[hash] {
					total, _ := s.store.field(hash, m.source.Node())
					// Less where the store has lost it and not been sent it again.
					m.floor[hash] = min(c.Acked, total)
				}
			}
		})
	}
	s.nodes = slices.DeleteFunc(s.nodes, func(one *member[S]) bool { return one == m })
	s.dead = append(s.dead, m)
}

// end ends a node, at once or in order.
func (m *member[S]) end(kill bool) {
	if kill {
		m.wire.cut()
	}
	m.source.Detach()
	m.rep.Close()
}

// settle lets all be well, and checks what the store and the nodes know then.
func (s *schedule[S]) settle() {
	s.respondAll()
	s.net.heal()
	time.Sleep(10 * time.Second) // the latest of the late messages come
	if s.whole {
		time.Sleep(ResendInterval + 3*s.rate + 3*time.Second)
		s.exact()
	}
	// What nodes find lost at the first touch they send again, and hear of at the second.
	s.drain()
	clear(s.lapsed)
	for range 2 {
		for _, m := range s.nodes {
			for _, key := range s.keys {
				m.table.Take(m.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), wallClock(), 0, 0)
			}
		}
		time.Sleep(ResendInterval + 3*s.rate + 3*time.Second)
		if s.alg.Reserves {
			time.Sleep(table.ResentReserved)
		}
	}
	s.exact()
	for _, key := range s.keys {
		for _, m := range s.nodes {
			s.knows(m, key, s.epoch(wallClock()))
		}
	}
}

// exact checks the live epochs of all keys.
func (s *schedule[S]) exact() {
	for _, key := range s.keys {
		for age := range int64(s.alg.Compile().History + 1) {
			if hash := s.hash(key, s.epoch(wallClock())-age); age == 0 || !s.evicted[hash] {
				s.exactIn(hash, key, s.epoch(wallClock())-age)
			}
		}
	}
}

// exactIn checks one hash: all of the living, and what was confirmed to the dead.
func (s *schedule[S]) exactIn(hash, key string, epoch int64) {
	for _, m := range s.nodes {
		own := m.own[hash]
		if s.drains {
			var ok bool
			if own, ok = s.ledgerHas(m, hash, key, epoch); !ok {
				continue
			}
		}
		total, _ := s.store.field(hash, m.source.Node())
		if s.drain(); total != own && (total != 0 || !s.lapsed[hash]) {
			s.t.Errorf("%s: the store has %d of node %s, which admitted %d", hash, total, m.source.Node(), own)
		}
		s.settledIn(m, hash)
	}
	for _, m := range s.dead {
		total, _ := s.store.field(hash, m.source.Node())
		if s.drain(); total < m.floor[hash] {
			s.t.Errorf("%s: the store has %d of node %s, which is dead and had %d confirmed", hash, total, m.source.Node(), m.floor[hash])
		}
	}
}

// ledgerHas is what a node's ledger has in an epoch. A bucket that has drained may have been swept,
// and one of which the store has lost something begins another state; what such a one has is no
// more than was admitted.
func (s *schedule[S]) ledgerHas(m *member[S], hash, key string, epoch int64) (own int64, ok bool) {
	m.table.With(keys.KeyOf([]byte(key)), func(state *S) {
		var c algorithms.EpochCount
		c, ok = ledgerOf(m.alg, state).At(epoch)
		own = c.Own
	})
	if own > m.own[hash] {
		s.t.Errorf("%s: node %s counts %d more than it has admitted", hash, m.source.Node(), own-m.own[hash])
	}
	return own, ok
}

// knows checks what a node knows of the others in the current epoch: all that the store has, and no
// more unless the store has lost something. Of what was reserved that is only what the dead had.
// Of an epoch that is over it may know less: what another node sends long after its end is not
// asked for.
func (s *schedule[S]) knows(m *member[S], key string, epoch int64) {
	m.table.With(keys.KeyOf([]byte(key)), func(state *S) {
		c, ok := ledgerOf(s.alg, state).At(epoch)
		if !ok {
			return
		}
		own, sum := s.store.field(s.hash(key, epoch), m.source.Node())
		theirs, most := sum-own, sum-own
		for _, d := range s.dead {
			most += d.own[s.hash(key, epoch)]
		}
		if s.store.forgotten.Load() > 0 && !(s.alg.Reserves && s.whole) {
			most = math.MaxInt64
		}
		if c.Remote < theirs || c.Remote > max(theirs, most) {
			s.t.Errorf("%s: node %s knows of %d remote, the store has %d", s.hash(key, epoch), m.source.Node(), c.Remote, theirs)
		}
		s.knowsReserved(m, key, epoch)
	})
}

func (s *schedule[S]) close() {
	for _, m := range s.nodes {
		m.end(false)
	}
}

// A network loses, delays and repeats messages, with changing odds.
type network struct {
	mu                          sync.Mutex // guards what follows
	random                      *rand.Rand
	lost, unanswered, late, two float64
	rejects                     error // what it answers with, nil for none
	// way is how long a journey takes, within a tenth; 0 for a few milliseconds.
	way time.Duration
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost, n.unanswered, n.late, n.two, n.rejects = 0, 0, 0, 0, nil
}

// reject has it answer with an error.
func (n *network) reject(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rejects = err
}

func (n *network) rejected() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rejects
}

// worsen makes it bad in some of the ways.
func (n *network) worsen() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, odds := range []*float64{&n.lost, &n.unanswered, &n.late, &n.two} {
		*odds = 0
		if n.random.IntN(2) == 0 {
			*odds = n.random.Float64() * .7
		}
	}
}

func (n *network) become(what *float64, odds float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*what = odds
}

// slow has a message take so long from now on, one way, give or take a tenth.
func (n *network) slow(way time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.way = way
}

// happens decides by lot.
func (n *network) happens(odds *float64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.random.Float64() < *odds
}

// delay is how long something takes that is late.
func (n *network) delay() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(n.random.Int64N(int64(8 * time.Second)))
}

func (n *network) journey() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.way > 0 {
		return time.Duration((.9 + .2*n.random.Float64()) * float64(n.way))
	}
	return time.Duration(n.random.ExpFloat64() * float64(2*time.Millisecond))
}

// A wire is the way of one node to the store.
type wire struct {
	redis.UniversalClient
	net   *network
	store *luaStore
	gone  atomic.Bool
	// broken is how often its connection was closed.
	broken atomic.Uint32
}

// PoolStats is of no pool.
func (w *wire) PoolStats() *redis.PoolStats { return &redis.PoolStats{StaleConns: w.broken.Load()} }

var errGone = errors.New("the node is dead")

// cut ends it: what the node sends from now on goes nowhere.
func (w *wire) cut() { w.gone.Store(true) }

// EvalSha is how heartbeats go.
func (w *wire) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	reply, err := w.send(ctx, sha, keys, args)
	return redis.NewCmdResult(reply, err)
}

// Process is how counts go.
func (w *wire) Process(ctx context.Context, cmd redis.Cmder) error {
	if cmd.Name() == "info" {
		return errors.New("ERR unknown command")
	}
	var words []string
	for _, arg := range cmd.Args()[1:] {
		words = append(words, *arg.(*string))
	}
	count, _ := strconv.Atoi(words[1])
	var args []any
	for _, word := range words[2+count:] {
		args = append(args, word)
	}
	reply, err := w.send(ctx, words[0], words[2:2+count], args)
	if err != nil {
		cmd.SetErr(err)
		return err
	}
	cmd.(*redis.StringCmd).SetVal(reply.(string))
	return nil
}

// send is the way of a call to the store and back, if it arrives, and if its answer does.
//
// bubble: of each test.
func (w *wire) send(ctx context.Context, sha string, keys []string, args []any) (any, error) {
	if w.gone.Load() {
		return nil, errGone
	}
	n := w.net
	silent := func() (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	later := func() {
		wait := n.delay()
		go func() {
			time.Sleep(wait)
			w.store.run(sha, keys, args)
		}()
	}
	if err := n.rejected(); err != nil {
		return nil, err
	}
	if n.happens(&n.lost) {
		return silent()
	}
	if n.happens(&n.late) {
		later()
		return silent()
	}
	there, back := n.journey(), n.journey()
	unanswered, two := n.happens(&n.unanswered), n.happens(&n.two)
	if two {
		later()
	}
	time.Sleep(there)
	reply := w.store.run(sha, keys, args)
	if unanswered {
		return silent()
	}
	time.Sleep(back)
	if w.gone.Load() || ctx.Err() != nil {
		return nil, errGone
	}
	return reply, nil
}
