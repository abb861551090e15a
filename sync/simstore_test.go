package ratesync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/sim"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// luaClient is a client of a luaStore on which nothing gets lost or takes time.
type luaClient struct {
	redis.UniversalClient
	store *luaStore
}

func (c luaClient) Process(_ context.Context, cmd redis.Cmder) error {
	var words []string
	var args []any
	for _, arg := range cmd.Args()[1:] {
		words = append(words, *arg.(*string))
	}
	keys, _ := strconv.Atoi(words[1])
	for _, word := range words[2+keys:] {
		args = append(args, word)
	}
	cmd.(*redis.StringCmd).SetVal(c.store.run(words[0], words[2:2+keys], args).(string))
	return nil
}

// twoStores are the script and the simulator's store, and what random nodes say to both.
type twoStores struct {
	t      *testing.T
	random *rand.Rand
	client redis.UniversalClient
	flush  func() // of the script's store
	unfill func() // likewise
	model  *sim.Store
	spec   Spec
	bucket bool
	rate   time.Duration
	nodes  []*Source
	own    map[ownKey]int64 // what a node has counted
	late   []*oneCall
	calls  int
	// reserves has the attempts be what of the total is settled, as in zones that reserve units.
	reserves bool
}

type ownKey struct {
	node, key int
	epoch     int64
}

// oneCall is a call of the script, which may arrive more than once.
type oneCall struct {
	push     pushCall
	node     string
	seq      int64
	messages []table.Message
}

func newTwoStores(t *testing.T, seed uint64, client redis.UniversalClient, flush func(), spec Spec) *twoStores {
	s := &twoStores{
		t: t, random: rand.New(rand.NewPCG(seed, 11)), client: client, flush: flush, model: sim.NewStore(), spec: spec,
		bucket: spec.Kind == 't', rate: time.Second, own: make(map[ownKey]int64),
	}
	for range 3 {
		s.nodes = append(s.nodes, NewSource(nil, spec))
	}
	return s
}

// step is one thing that happens: a message, one that comes late or once more, or a store that
// forgets.
func (s *twoStores) step() {
	switch n := s.random.IntN(100); {
	case n < 70:
		c := s.message()
		if s.random.IntN(4) == 0 {
			s.late = append(s.late, c)
			return // it comes later, or never
		}
		s.arrive(c)
		if s.random.IntN(4) == 0 {
			s.late = append(s.late, c)
		}
	case n < 98 && len(s.late) > 0:
		i := s.random.IntN(len(s.late))
		s.arrive(s.late[i])
		if s.random.IntN(2) == 0 {
			s.late = slices.Delete(s.late, i, i+1)
		}
	case n == 97 && s.unfill != nil:
		s.unfill()
		s.model.Unfill()
	case n >= 98:
		s.flush()
		s.model.Flush()
	}
}

// message is what a node says of some keys, in all of their live epochs or some.
func (s *twoStores) message() *oneCall {
	node := s.random.IntN(len(s.nodes))
	c := &oneCall{node: s.nodes[node].Node()}
	for _, key := range s.random.Perm(4)[:1+s.random.IntN(3)] {
		raw := []byte(fmt.Sprint("key", key))
		m := table.Message{Key: keys.KeyOf(raw), ID: keys.IDOf(raw), Span: s.spec.Window}
		for age := range int64(s.spec.Live + 1) {
			if age > 0 && s.random.IntN(2) == 0 {
				continue
			}
			m.Epoch = wallClock()/int64(m.Span) - age
			own := ownKey{node, key, m.Epoch}
			s.own[own] = max(0, s.own[own]+s.random.Int64N(12)-2) // some is refunded
			m.Total, m.Push, m.Attempts = s.own[own], s.random.IntN(5) > 0, 0
			if m.Bucket = s.bucket && age == 0; age == 0 {
				m.Attempts = m.Total + s.random.Int64N(5)
			}
			// In a roll-out some nodes reserve, and some don't yet.
			if m.Settles, m.Settled = s.reserves && s.random.IntN(4) > 0, 0; m.Settles {
				m.Settled = s.random.Int64N(m.Total + 1)
			}
			if s.bucket {
				m.Unsent = s.random.Int64N(m.Total + 1)
			}
			m.Level, m.Drain, m.Resend = 0, 0, false
			if m.Bucket {
				m.Level = float64(s.random.IntN(40_000)) / 1000
				m.Drain = float64(s.random.IntN(4)) / 1024
				m.Resend = s.random.IntN(8) == 0
			}
			c.messages = append(c.messages, m)
		}
	}
	c.push.write(NewKeyspace("test"), s.nodes[node], s.rate, c.messages)
	c.seq = s.nodes[node].seq.Load()
	return c
}

// arrive makes a call at both stores and compares what they say.
func (s *twoStores) arrive(c *oneCall) {
	s.t.Helper()
	s.calls++
	reply, err := c.push.send(context.Background(), s.client)
	if err == nil {
		err = c.push.read(reply, c.messages)
	}
	if err != nil {
		s.t.Fatalf("call %d: %v", s.calls, err)
	}
	want := s.model.Push(wallClock(), c.node, c.seq, s.spec.Live, s.rate, c.messages)
	for i, a := range c.push.answers {
		w := want[i]
		if a.Failed {
			// The script's reader believes no sum below what its node has sent, as a late message
			// has it.
			w.Failed, w.Seen, w.Known = a.Push && a.Sum < a.Total, a.Seen, a.Known
		}
		if a != w {
			s.t.Fatalf("call %d of node %s, number %d, message %d: the script says\n%+v, the simulator's store\n%+v", s.calls, c.node, c.seq, i, a, w)
		}
	}
}

// The store of the simulator answers as the script does, whatever comes late, twice or never, and
// whenever it forgets.
//
// bubble: it runs the stores in one.
func TestTheSimulatorsStoreIsTheScript(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]Spec{
		"fixed window":   {Kind: 'f', Window: 10 * time.Second},
		"sliding window": {Kind: 's', Window: 10 * time.Second, Live: 1},
		"sub-windows":    {Kind: 's', Window: 10 * time.Second, Buckets: 4, Live: 4},
		"log":            {Kind: 'l', Window: 10 * time.Second, Live: 1},
		"bucket":         {Kind: 't', Window: 10 * time.Second, Live: 1},
	} {
		t.Run(name, func(t *testing.T) {
			spec.Zone, spec.Buckets = "z", max(1, spec.Buckets)
			for seed := range redistest.Seeds(20, 200) {
				synctest.Test(t, func(t *testing.T) {
					lua := newLuaStore(t)
					defer lua.state.Close()
					s := newTwoStores(t, seed, luaClient{store: lua}, func() { lua.forget(0, true) }, spec)
					s.reserves, s.unfill = seed%2 == 1, lua.unfill
					for range 150 {
						s.step()
						if s.random.IntN(10) == 0 {
							time.Sleep(time.Duration(s.random.IntN(30_000)) * time.Millisecond)
						} else {
							time.Sleep(time.Duration(s.random.IntN(50)) * time.Millisecond)
						}
					}
				})
			}
		})
	}
}

// The same for windows in a real Redis, whose time is the wall clock's.
func TestTheSimulatorsStoreIsRedis(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	s := newTwoStores(t, 1, r.Client(), func() { r.Do("FLUSHALL") }, Spec{Zone: "z", Kind: 's', Window: 1000 * time.Hour, Buckets: 1, Live: 1})
	for i := range 500 {
		s.reserves = i >= 250
		s.step()
	}
}
