package ratesync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	lua "github.com/yuin/gopher-lua"
)

// A slotStore runs the scripts themselves, over hashes in memory and in virtual time. It is the
// part of Redis that they use.
type slotStore struct {
	t *testing.T

	mu      sync.Mutex
	state   *lua.LState
	scripts map[string]*lua.LFunction
	hashes  map[string]map[string]string
	expires map[string]time.Time
	ahead   time.Duration // of its clock
	back    time.Duration // by how much that was set back, in all
	calls   int
	asked   map[string]int // commands, by name
}

func newSlotStore(t *testing.T) *slotStore {
	s := &slotStore{t: t, state: lua.NewState(), scripts: map[string]*lua.LFunction{}, hashes: map[string]map[string]string{}, expires: map[string]time.Time{}, asked: map[string]int{}}
	api := s.state.NewTable()
	api.RawSetString("call", s.state.NewFunction(s.call))
	api.RawSetString("pcall", s.state.NewFunction(s.call))
	s.state.SetGlobal("redis", api)
	return s
}

// time is its clock.
//
// bubble: of each test that has a store.
func (s *slotStore) time() time.Time { return time.Now().Add(s.ahead) }

func (s *slotStore) expire() {
	for key, at := range s.expires {
		if !s.time().Before(at) {
			delete(s.hashes, key)
			delete(s.expires, key)
		}
	}
}

// run runs a script and returns its reply as a client has it.
func (s *slotStore) run(source string, keys []string, args []any) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	s.calls++
	k, a := s.state.NewTable(), s.state.NewTable()
	for _, key := range keys {
		k.Append(lua.LString(key))
	}
	for _, arg := range args {
		a.Append(lua.LString(fmt.Sprint(arg)))
	}
	s.state.SetGlobal("KEYS", k)
	s.state.SetGlobal("ARGV", a)
	chunk := s.scripts[source]
	if chunk == nil {
		var err error
		if chunk, err = s.state.LoadString(source); err != nil {
			s.t.Errorf("script: %v", err)
			return nil
		}
		s.scripts[source] = chunk
	}
	if err := s.state.CallByParam(lua.P{Fn: chunk, NRet: 1, Protect: true}); err != nil {
		s.t.Errorf("script: %v", err)
		return nil
	}
	reply := s.state.Get(-1)
	s.state.Pop(1)
	if n, ok := reply.(lua.LNumber); ok { // table.concat of one number, of which Redis makes a text
		return n.String()
	}
	return fromLua(reply)
}

func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(v)
	case lua.LString:
		return string(v)
	case *lua.LTable:
		all := []any{}
		v.ForEach(func(_, e lua.LValue) { all = append(all, fromLua(e)) })
		return all
	}
	return nil
}

// call is redis.call.
func (s *slotStore) call(l *lua.LState) int {
	arg := func(i int) string { return l.Get(i).String() }
	hash := s.hashes[arg(2)]
	s.asked[arg(1)]++
	switch name := arg(1); name {
	case "TIME":
		now, t := s.time(), l.NewTable()
		t.Append(lua.LString(strconv.FormatInt(now.Unix(), 10)))
		t.Append(lua.LString(strconv.Itoa(now.Nanosecond() / 1000)))
		l.Push(t)
	case "HGETALL":
		t := l.NewTable()
		for field, value := range hash {
			t.Append(lua.LString(field))
			t.Append(lua.LString(value))
		}
		l.Push(t)
	case "HGET":
		if v, ok := hash[arg(3)]; ok {
			l.Push(lua.LString(v))
		} else {
			l.Push(lua.LFalse)
		}
	case "HSET":
		if hash == nil {
			hash = map[string]string{}
			s.hashes[arg(2)] = hash
		}
		for i := 3; i < l.GetTop(); i += 2 {
			hash[arg(i)] = arg(i + 1)
		}
		l.Push(lua.LNumber(0))
	case "HDEL":
		if delete(hash, arg(3)); len(hash) == 0 {
			delete(s.hashes, arg(2))
			delete(s.expires, arg(2))
		}
		l.Push(lua.LNumber(1))
	case "PEXPIRE":
		ms, _ := strconv.ParseFloat(arg(3), 64)
		if hash != nil {
			s.expires[arg(2)] = s.time().Add(time.Duration(ms) * time.Millisecond)
		}
		l.Push(lua.LNumber(1))
	default:
		s.t.Errorf("no command %s here", name)
	}
	return 1
}

// forget is FLUSHALL.
func (s *slotStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.hashes)
	clear(s.expires)
}

// step steps the clock. What expires does so by that clock.
func (s *slotStore) step(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
	s.back -= min(d, 0)
}

// gauges are the gauges above 0 of a key that still count, by node.
func (s *slotStore) gauges(key string) map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	all := map[string]int64{}
	for node, value := range s.hashes[key] {
		parts := strings.Fields(value)
		gauge, _ := strconv.ParseInt(parts[1], 10, 64)
		expiry, _ := strconv.ParseInt(parts[2], 10, 64)
		if gauge > 0 && expiry > s.time().UnixMilli() {
			all[node] = gauge
		}
	}
	return all
}

func (s *slotStore) count() (calls, hashes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return s.calls, len(s.hashes)
}

// A slotWire is a node's way to the store. Of the client's methods it has those that scripts need.
type slotWire struct {
	redis.UniversalClient
	store *slotStore

	mu     sync.Mutex
	random *rand.Rand
	// of a message: that it is lost, that its reply is, that it comes late, and that it comes twice
	lost, mute, late, twice float64
	cut                     bool
	ended                   bool
}

func (w *slotWire) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *slotWire) EvalSha(ctx context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetErr(errNoScript{})
	return cmd
}

type errNoScript struct{}

func (errNoScript) Error() string { return "NOSCRIPT No matching script" }
func (errNoScript) RedisError()   {}

// Eval is how messages go.
//
// bubble: of each test that has a store.
func (w *slotWire) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	w.mu.Lock()
	chance := func(p float64) bool { return w.random.Float64() < p }
	lost, mute, late, twice := w.cut || chance(w.lost), chance(w.mute), chance(w.late), chance(w.twice)
	delay, latency := time.Duration(w.random.Int64N(int64(5*time.Second))), time.Duration(w.random.Int64N(int64(20*time.Millisecond)))
	ended := w.ended
	w.mu.Unlock()
	fail := func() *redis.Cmd {
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return cmd
	}
	again := func() {
		go func() {
			time.Sleep(delay) // virtual time
			w.store.run(source, keys, args)
		}()
	}
	time.Sleep(latency) // virtual time
	switch {
	case lost || ended:
		return fail()
	case late:
		again()
		return fail()
	case twice:
		again()
	}
	reply := w.store.run(source, keys, args)
	if mute {
		return fail()
	}
	time.Sleep(latency) // virtual time
	if ctx.Err() != nil {
		return fail()
	}
	cmd.SetVal(reply)
	return cmd
}
