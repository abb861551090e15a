package ratesync

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/caddy-tide/ratelimit/internal/cell"
)

// A luaStore runs the scripts of the sync themselves, over hashes and texts in memory and in
// virtual time. It is the part of Redis that they use.
type luaStore struct {
	t *testing.T

	mu      sync.Mutex
	state   *lua.LState
	hashes  map[string]map[string]string
	texts   map[string]string // the fills
	sets    map[string]map[string]float64
	expires map[string]time.Time
	ahead   time.Duration // of its clock
	// forgotten counts the times it has lost something.
	forgotten int
}

var compiled = map[string]*lua.FunctionProto{
	heartbeatScript.Hash(): compile(HeartbeatLua),
	sayHash:                compile(cell.Source),
	heldScript.Hash():      compile(heldLua + fetchLua),
	cursorScript.Hash():    compile(cursorLua),
	relayScript.Hash():     compile(headOfRelay + relayLua), toldScript.Hash(): compile(heldLua + recordLua + toldLua),
}

func compile(source string) *lua.FunctionProto {
	chunk, err := parse.Parse(strings.NewReader(source), "script")
	if err != nil {
		panic(err)
	}
	proto, err := lua.Compile(chunk, "script")
	if err != nil {
		panic(err)
	}
	return proto
}

func newLuaStore(t *testing.T) *luaStore {
	s := &luaStore{t: t, state: lua.NewState(), hashes: make(map[string]map[string]string), texts: make(map[string]string), sets: make(map[string]map[string]float64), expires: make(map[string]time.Time)}
	api := s.state.NewTable()
	api.RawSetString("call", s.state.NewFunction(s.call))
	api.RawSetString("pcall", s.state.NewFunction(s.call))
	s.state.SetGlobal("redis", api)
	return s
}

// run runs a script and returns its reply as a client has it.
func (s *luaStore) run(hash string, keys []string, args []any) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, at := range s.expires {
		if !s.time().Before(at) {
			delete(s.hashes, key)
			delete(s.texts, key)
			delete(s.sets, key)
			delete(s.expires, key)
		}
	}
	k, a := s.state.NewTable(), s.state.NewTable()
	for _, key := range keys {
		k.Append(lua.LString(key))
	}
	for _, arg := range args {
		a.Append(lua.LString(fmt.Sprint(arg)))
	}
	s.state.SetGlobal("KEYS", k)
	s.state.SetGlobal("ARGV", a)
	if err := s.state.CallByParam(lua.P{Fn: s.state.NewFunctionFromProto(compiled[hash]), NRet: 1, Protect: true}); err != nil {
		s.t.Errorf("script: %v", err)
		return nil
	}
	reply := s.state.Get(-1)
	s.state.Pop(1)
	s.check(keys)
	if text, ok := reply.(lua.LString); ok {
		return string(text)
	}
	return listOf(reply.(*lua.LTable))
}

// listOf is a list as a client has it.
func listOf(list *lua.LTable) any {
	values := []any{}
	list.ForEach(func(_, v lua.LValue) {
		switch v := v.(type) {
		case lua.LNumber:
			values = append(values, int64(v))
		case *lua.LTable:
			values = append(values, listOf(v))
		default:
			values = append(values, v.String())
		}
	})
	return values
}

// time is its clock, step has it take a step, and now reads it.
//
// bubble: of each test that has a store.
func (s *luaStore) time() time.Time { return time.Now().Add(s.ahead) }

func (s *luaStore) step(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += by
}

func (s *luaStore) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.time()
}

// call is redis.call, for the commands that the scripts use.
func (s *luaStore) call(l *lua.LState) int {
	arg := func(i int) string { return l.Get(i).String() }
	switch arg(1) {
	case "TIME":
		now, list := s.time(), l.NewTable()
		list.Append(lua.LString(fmt.Sprint(now.Unix())))
		list.Append(lua.LString(fmt.Sprint(now.Nanosecond() / 1000)))
		l.Push(list)
	case "MGET":
		list := l.NewTable()
		for i := 2; i <= l.GetTop(); i++ {
			list.Append(valueIn(s.texts, arg(i)))
		}
		l.Push(list)
	case "SET":
		s.texts[arg(2)] = arg(3)
		if l.GetTop() > 3 {
			s.expire(arg(2), arg(5)) // after PX
		}
		l.Push(lua.LString("OK"))
	case "DEL":
		delete(s.hashes, arg(2))
		delete(s.texts, arg(2))
		delete(s.expires, arg(2))
		l.Push(lua.LNumber(1))
	case "PEXPIREAT":
		ms, _ := strconv.ParseInt(arg(3), 10, 64)
		s.expires[arg(2)] = time.UnixMilli(ms)
		l.Push(lua.LNumber(1))
	case "PEXPIRE":
		s.expire(arg(2), arg(3))
		l.Push(lua.LNumber(1))
	case "GET":
		l.Push(valueIn(s.texts, arg(2)))
	case "EXISTS":
		_, hash := s.hashes[arg(2)]
		_, text := s.texts[arg(2)]
		n := 0
		if hash || text {
			n = 1
		}
		l.Push(lua.LNumber(n))
	case "PTTL":
		l.Push(lua.LNumber(s.expires[arg(2)].Sub(s.time()).Milliseconds()))
	default:
		if arg(1)[0] == 'Z' {
			l.Push(s.callSet(l, arg))
		} else {
			l.Push(s.callHash(l, arg))
		}
	}
	return 1
}

// callHash is what call returns for a command about a hash.
func (s *luaStore) callHash(l *lua.LState, arg func(int) string) lua.LValue {
	hash, list := s.hashes[arg(2)], l.NewTable()
	switch arg(1) {
	case "HGET":
		return valueIn(hash, arg(3))
	case "HMGET":
		if _, text := s.texts[arg(2)]; text { // as pcall has it
			list.RawSetString("err", lua.LString("WRONGTYPE"))
		}
		for i := 3; i <= l.GetTop(); i++ {
			list.Append(valueIn(hash, arg(i)))
		}
		return list
	case "HGETALL":
		for name, value := range hash {
			list.Append(lua.LString(name))
			list.Append(lua.LString(value))
		}
		return list
	case "HSET":
		if hash == nil {
			hash = make(map[string]string)
			s.hashes[arg(2)] = hash
		}
		for i := 3; i < l.GetTop(); i += 2 {
			hash[arg(i)] = arg(i + 1)
		}
	case "HLEN":
		return lua.LNumber(len(hash))
	case "HDEL":
		for i := 3; i <= l.GetTop(); i++ {
			delete(hash, arg(i))
		}
	default:
		l.RaiseError("command %s is not known", arg(1))
	}
	return lua.LNumber(1)
}

// countOf is how many names of a set come after a score.
func countOf(set map[string]float64, after float64) (n int) {
	for _, at := range set {
		if at > after {
			n++
		}
	}
	return n
}

// callSet is what call returns for a command about a sorted set.
func (s *luaStore) callSet(l *lua.LState, arg func(int) string) lua.LValue {
	set, list := s.sets[arg(2)], l.NewTable()
	score := func(i int) float64 {
		f, err := strconv.ParseFloat(strings.TrimPrefix(arg(i), "("), 64)
		if err != nil {
			s.t.Errorf("%s is no score", arg(i))
		}
		return f
	}
	names := slices.Collect(maps.Keys(set))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(set[a], set[b]), cmp.Compare(a, b)) })
	add := func(name string) {
		list.Append(lua.LString(name))
		list.Append(lua.LString(strconv.FormatFloat(set[name], 'g', 17, 64)))
	}
	switch arg(1) {
	case "ZADD":
		if set == nil {
			set = make(map[string]float64)
			s.sets[arg(2)] = set
		}
		for i := 3; i < l.GetTop(); i += 2 {
			set[arg(i+1)] = score(i)
		}
	case "ZSCORE":
		if at, ok := set[arg(3)]; ok {
			return lua.LString(strconv.FormatFloat(at, 'g', 17, 64))
		}
		return lua.LFalse
	case "ZREM":
		delete(set, arg(3))
	case "ZREVRANGE": // the first
		if len(names) > 0 {
			add(names[len(names)-1])
		}
		return list
	case "ZCOUNT": // of those after a score
		return lua.LNumber(countOf(set, score(3)))
	case "ZREMRANGEBYSCORE":
		maps.DeleteFunc(set, func(_ string, at float64) bool { return at <= score(4) })
	case "ZRANGEBYSCORE":
		least, greatest, most := score(3), math.Inf(1), len(names)
		if arg(4) != "+inf" {
			greatest = score(4)
		}
		if l.GetTop() > 4 {
			most, _ = strconv.Atoi(arg(8)) // after WITHSCORES, LIMIT and 0
		}
		for _, name := range names {
			switch at := set[name]; {
			case at < least || at == least && arg(3)[0] == '(' || at > greatest || most == 0:
			case l.GetTop() > 4:
				add(name)
				most--
			default:
				list.Append(lua.LString(name))
			}
		}
		return list
	default:
		l.RaiseError("command %s is not known", arg(1))
	}
	return lua.LNumber(1)
}

// valueIn is what the script gets for a name, false where there is none.
func valueIn(values map[string]string, name string) lua.LValue {
	if v, ok := values[name]; ok {
		return lua.LString(v)
	}
	return lua.LFalse
}

func (s *luaStore) expire(key, ms string) {
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil || n <= 0 {
		s.t.Errorf("%s is to expire in %q milliseconds", key, ms)
	}
	s.expires[key] = s.time().Add(time.Duration(min(n, 1e12)) * time.Millisecond)
}

// check holds the sums of a call to the totals that they are the sums of.
func (s *luaStore) check(keys []string) {
	for _, key := range keys {
		s.checkCell(key, s.hashes[key])
	}
}

// checkCell holds the sum of a cell of windows to the totals that it is the sum of.
func (s *luaStore) checkCell(key string, hash map[string]string) {
	sum, ok := hash["sum"]
	if !ok {
		return
	}
	c, ok := parseCellName(key)
	if !ok {
		s.t.Errorf("%s is not taken apart", key)
		return
	}
	if c.spec.isBucket() {
		return // of which the sum has what former states of nodes had, too
	}
	// What counts no more may stand there, and what lies ahead, once the clock has stepped back.
	newest := c.spec.Family(false).Epoch(s.time().UnixMicro())
	for epoch := range totalsOf(sum, 0) {
		if epoch > newest {
			return
		}
	}
	all, theirs := map[int64]int64{}, map[int64]int64{}
	for name, value := range hash {
		if name == "sum" || name == "~" || name == "fields" {
			continue
		}
		for epoch, n := range totalsOf(value, 1) {
			if all[epoch] += n; name[0] == '~' {
				theirs[epoch] += n
			}
		}
	}
	for epoch, n := range totalsOf(sum, 0) {
		if n != all[epoch] && epoch >= newest-int64(c.spec.Live) {
			s.t.Errorf("%s: sum is %q, the nodes' totals in %d are %d: %v", key, sum, epoch, all[epoch], hash)
		}
	}
	for epoch, n := range totalsOf(hash["~"], 0) {
		if n != theirs[epoch] {
			s.t.Errorf("%s: ~ is %q, the other regions' totals in %d are %d: %v", key, hash["~"], epoch, theirs[epoch], hash)
		}
	}
}

// totalsOf are the totals of a cell's field, which come after so many numbers, by epochs.
func totalsOf(text string, skipped int64) map[int64]int64 {
	var all []int64
	for word := range strings.FieldsSeq(text) {
		n, _ := strconv.ParseInt(word, 10, 64)
		all = append(all, n)
	}
	totals := map[int64]int64{}
	if skipped == 1 && len(all) > 3 { // seq total epoch open total…
		totals[all[2]] = all[1]
		for i, n := range all[4:] {
			totals[all[2]-int64(i+1)] = n
		}
	}
	if skipped == 0 && len(all) > 4 { // total stamp end epoch open total…
		totals[all[3]] = all[0]
		for i, n := range all[5:] {
			totals[all[3]-int64(i+1)] = n
		}
	}
	return totals
}

// forget loses a hash that holds counts, the n-th of them, or all there is. It returns the name of
// the one hash.
func (s *luaStore) forget(n int, all bool) (one string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten++
	if all {
		s.hashes, s.texts = make(map[string]map[string]string), make(map[string]string)
		s.sets = make(map[string]map[string]float64)
		s.expires = make(map[string]time.Time)
		return ""
	}
	if keys := s.counting(); len(keys) > 0 {
		one = keys[n%len(keys)]
		delete(s.hashes, one)
	}
	return one
}

// counting are the names of the hashes with counts, in order.
func (s *luaStore) counting() (keys []string) {
	for key, hash := range s.hashes {
		if _, ok := hash["sum"]; ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// saved is what a replica has.
type saved struct {
	hashes map[string]map[string]string
	texts  map[string]string
	sets   map[string]map[string]float64
}

// save copies what there is, and restore goes back to it: a failover to a replica that lags behind.
func (s *luaStore) save() *saved {
	s.mu.Lock()
	defer s.mu.Unlock()
	copied := &saved{make(map[string]map[string]string, len(s.hashes)), maps.Clone(s.texts), make(map[string]map[string]float64)}
	for key, set := range s.sets {
		copied.sets[key] = maps.Clone(set)
	}
	for key, hash := range s.hashes {
		copied.hashes[key] = maps.Clone(hash)
	}
	return copied
}

func (s *luaStore) restore(from *saved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten++
	s.hashes, s.texts = make(map[string]map[string]string, len(from.hashes)), maps.Clone(from.texts)
	s.sets = make(map[string]map[string]float64)
	for key, set := range from.sets {
		s.sets[key] = maps.Clone(set)
	}
	for key, hash := range from.hashes {
		s.hashes[key] = maps.Clone(hash)
	}
}

// totalsIn are the totals of a field of a cell, by epochs; of a bucket there is the epoch 0.
func totalsIn(of Spec, name, text string) map[int64]int64 {
	if of.isBucket() {
		if parts := strings.Fields(text); len(parts) > 5 {
			return map[int64]int64{0: first(parts[3])}
		}
		return nil
	}
	return totalsOf(text, one(name != "sum"))
}

// field is a node's total in an epoch of a cell, and sum that of all.
func (s *luaStore) field(key, node string) (total, sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, at, _ := strings.Cut(key, "#")
	c, _ := parseCellName(name)
	epoch, _ := strconv.ParseInt(at, 10, 64)
	return totalsIn(c.spec, node, s.hashes[name][node])[epoch], totalsIn(c.spec, "sum", s.hashes[name]["sum"])[epoch]
}

func first(text string) (n int64) {
	word, _, _ := strings.Cut(text, " ")
	n, _ = strconv.ParseInt(word, 10, 64)
	return n
}

func second(text string) (n int64) {
	_, rest, _ := strings.Cut(text, " ")
	return first(rest)
}
