package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// A Store stands in for Redis where time is virtual: it runs the scripts themselves, over hashes,
// texts and sorted sets in memory. It is the part of Redis that they use.
type Store struct {
	t     testing.TB
	clock func() time.Time

	mu      sync.Mutex
	state   *lua.LState
	values  map[string]any // map[string]string, string or map[string]float64
	expires map[string]time.Time
	// declared are the keys of the script that runs, and asked the commands of all scripts by name.
	declared []string
	asked    map[string]int
	// FindKeys are scripts that touch others than their keys, which they find in a list.
	FindKeys []string
	// OnlyKeys has scripts get an error for keys that are not theirs, as Dragonfly and servers that
	// scale by themselves give, in place of failing the test.
	OnlyKeys bool
	// Lapsed is called with each value that has expired, and when that was.
	Lapsed func(key string, value any, at time.Time)
}

// NewStore makes a store that goes by a clock.
func NewStore(t testing.TB, clock func() time.Time) *Store {
	s := &Store{t: t, clock: clock, state: lua.NewState(), values: map[string]any{}, expires: map[string]time.Time{}, asked: map[string]int{}}
	t.Cleanup(s.state.Close)
	api := s.state.NewTable()
	api.RawSetString("call", s.state.NewFunction(func(l *lua.LState) int { return s.called(l, false) }))
	api.RawSetString("pcall", s.state.NewFunction(func(l *lua.LState) int { return s.called(l, true) }))
	s.state.SetGlobal("redis", api)
	texts := s.state.GetGlobal("string").(*lua.LTable)
	whole := texts.RawGetString("match")
	texts.RawSetString("match", s.state.NewFunction(func(l *lua.LState) int { return matched(l, whole) }))
	return s
}

// regexps are those of patterns of Lua, by these: *regexp.Regexp, nil where none means the same.
var regexps sync.Map

// same are patterns that mean the same as regular expressions, except for the names of classes.
var same = regexp.MustCompile(`^\^?(?:[()]|-\?|(?:[ .~]|%[adS]|\[(?:%d|[0-9 ]|0-9)+\])[*+?]?)*\$?$`)

// regexpOf is the regular expression of a pattern, nil where none means the same.
func regexpOf(pattern string) *regexp.Regexp {
	if known, ok := regexps.Load(pattern); ok {
		return known.(*regexp.Regexp)
	}
	var expression *regexp.Regexp
	if same.MatchString(pattern) && !strings.Contains(pattern, "()") {
		expression = regexp.MustCompile("(?s)" + strings.NewReplacer("%a", "[A-Za-z]", "%", `\`).Replace(pattern))
	}
	regexps.Store(pattern, expression)
	return expression
}

// matched is string.match. That of the library compiles a pattern each time, which took most of the
// time of a script.
func matched(l *lua.LState, library lua.LValue) int {
	text, pattern := l.CheckString(1), l.CheckString(2)
	expression := regexpOf(pattern)
	if expression == nil || l.GetTop() > 2 {
		l.Push(library)
		l.Insert(l.Get(-1), 1)
		l.Pop(1)
		l.Call(l.GetTop()-1, lua.MultRet)
		return l.GetTop()
	}
	found := expression.FindStringSubmatchIndex(text)
	if found == nil {
		l.Push(lua.LNil)
		return 1
	}
	if len(found) > 2 { // what is in parentheses
		found = found[2:]
	}
	for i := 0; i < len(found); i += 2 {
		l.Push(lua.LString(text[found[i]:found[i+1]]))
	}
	return len(found) / 2
}

// Eval runs a script and returns its reply as a client has it. A script touches its keys alone,
// as Dragonfly and servers that scale by themselves demand.
func (s *Store) Eval(source string, keys []string, args ...any) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	proto, err := compiled(source)
	if err != nil {
		return nil, err
	}
	if s.declared = keys; !s.OnlyKeys && slices.Contains(s.FindKeys, source) {
		s.declared = nil
	}
	s.lapse()
	k, a := s.state.CreateTable(len(keys), 0), s.state.CreateTable(len(args), 0)
	for _, key := range keys {
		k.Append(lua.LString(key))
	}
	for _, arg := range args {
		a.Append(lua.LString(fmt.Sprint(arg)))
	}
	s.state.SetGlobal("KEYS", k)
	s.state.SetGlobal("ARGV", a)
	if err := s.state.CallByParam(lua.P{Fn: s.state.NewFunctionFromProto(proto), NRet: 1, Protect: true}); err != nil {
		return nil, err
	}
	reply := s.state.Get(-1)
	s.state.Pop(1)
	return replyOf(reply), nil
}

// scripts are those that were compiled, by their source: *lua.FunctionProto.
var scripts sync.Map

func compiled(source string) (*lua.FunctionProto, error) {
	if proto, ok := scripts.Load(source); ok {
		return proto.(*lua.FunctionProto), nil
	}
	chunk, err := parse.Parse(strings.NewReader(source), "script")
	if err != nil {
		return nil, err
	}
	proto, err := lua.Compile(chunk, "script")
	if err == nil {
		scripts.Store(source, proto)
	}
	return proto, err
}

// Do runs a command, which must not fail.
func (s *Store) Do(args ...any) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapse()
	texts := make([]string, len(args))
	for i, arg := range args {
		texts[i] = fmt.Sprint(arg)
	}
	reply, err := s.command(texts)
	if err != nil {
		s.t.Errorf("%v: %v", args, err)
	}
	return reply
}

// replyOf is what a client has of a value of Lua.
func replyOf(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(v)
	case lua.LString:
		return string(v)
	case *lua.LTable:
		list := []any{}
		v.ForEach(func(_, v lua.LValue) { list = append(list, replyOf(v)) })
		return list
	}
	return nil
}

// valueOf is what Lua has of a reply.
func (s *Store) valueOf(reply any) lua.LValue {
	switch v := reply.(type) {
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case []any:
		list := s.state.CreateTable(len(v), 0)
		for _, one := range v {
			list.Append(s.valueOf(one))
		}
		return list
	}
	return lua.LFalse
}

// called is redis.call or redis.pcall.
func (s *Store) called(l *lua.LState, protected bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		args[i] = l.Get(i + 1).String()
	}
	s.asked[args[0]]++
	foreign := false
	for i := 1; i < len(args) && (i == 1 || strings.Contains(" DEL EXISTS MGET ", " "+args[0]+" ")); i++ {
		foreign = foreign || s.declared != nil && !slices.Contains(s.declared, args[i])
	}
	if foreign && !s.OnlyKeys {
		s.t.Errorf("a script asks for %q, of which not all are its KEYS", args)
	}
	reply, err := any(nil), errUndeclared
	if !foreign || !s.OnlyKeys {
		reply, err = s.command(args)
	}
	if err == nil {
		l.Push(s.valueOf(reply))
		return 1
	}
	if !protected {
		l.RaiseError("%s", err.Error())
	}
	failed := l.NewTable()
	failed.RawSetString("err", lua.LString(err.Error()))
	l.Push(failed)
	return 1
}

var errUndeclared = errors.New("ERR script tried accessing undeclared key")

var errWrongType = errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")

// valueAs is the value of a key, nothing where there is none.
func valueAs[V any](s *Store, key string) (v V, err error) {
	there, ok := s.values[key]
	if !ok {
		return v, nil
	}
	if v, ok = there.(V); !ok {
		return v, errWrongType
	}
	return v, nil
}

// lapse drops what has expired.
func (s *Store) lapse() {
	for key, at := range s.expires {
		if !s.clock().Before(at) {
			if s.Lapsed != nil {
				s.Lapsed(key, s.values[key], at)
			}
			delete(s.values, key)
			delete(s.expires, key)
		}
	}
}

// Values are copies of all values: map[string]string, string or map[string]float64. That is what a
// replica has, and with Restore the store is one.
func (s *Store) Values() map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copyOf(s.values)
}

// Restore sets all values.
func (s *Store) Restore(values map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = copyOf(values)
}

func copyOf(values map[string]any) map[string]any {
	copied := make(map[string]any, len(values))
	for key, value := range values {
		switch value := value.(type) {
		case map[string]string:
			copied[key] = maps.Clone(value)
		case map[string]float64:
			copied[key] = maps.Clone(value)
		default:
			copied[key] = value
		}
	}
	return copied
}

// Hash is a copy of a hash, nil where there is none.
func (s *Store) Hash(key string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	hash, _ := s.values[key].(map[string]string)
	return maps.Clone(hash)
}

// Hashes are copies of all hashes.
func (s *Store) Hashes() map[string]map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]map[string]string{}
	for key, value := range s.values {
		if hash, ok := value.(map[string]string); ok {
			all[key] = maps.Clone(hash)
		}
	}
	return all
}

// Asked are how often scripts asked for each command.
func (s *Store) Asked() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.asked)
}

// command runs a command.
func (s *Store) command(args []string) (any, error) {
	switch name := args[0]; {
	case name == "TIME":
		now := s.clock()
		return []any{fmt.Sprint(now.Unix()), fmt.Sprint(now.Nanosecond() / 1000)}, nil
	case name[0] == 'H':
		return s.ofHash(args)
	case name[0] == 'Z':
		return s.ofSet(args)
	}
	return s.ofKey(args)
}

// ofKey runs a command about keys and texts.
func (s *Store) ofKey(args []string) (any, error) {
	key := ""
	if len(args) > 1 {
		key = args[1]
	}
	switch args[0] {
	case "GET":
		if _, ok := s.values[key]; !ok {
			return nil, nil
		}
		return valueOrError[string](s, key)
	case "MGET":
		all := []any{}
		for _, key := range args[1:] {
			text, _ := s.values[key].(string)
			if _, ok := s.values[key].(string); ok {
				all = append(all, text)
			} else {
				all = append(all, nil)
			}
		}
		return all, nil
	case "SET":
		s.values[key] = args[2]
		delete(s.expires, key)
		if len(args) > 4 { // after PX
			s.expire(key, s.clock().Add(s.milliseconds(args[4])))
		}
		return "OK", nil
	case "DEL", "EXISTS":
		n := int64(0)
		for _, key := range args[1:] {
			if _, ok := s.values[key]; ok {
				n++
			}
			if args[0] == "DEL" {
				delete(s.values, key)
				delete(s.expires, key)
			}
		}
		return n, nil
	case "PEXPIRE":
		s.expire(key, s.clock().Add(s.milliseconds(args[2])))
		return int64(1), nil
	case "PEXPIREAT":
		s.expire(key, time.UnixMilli(0).Add(s.milliseconds(args[2])))
		return int64(1), nil
	case "PTTL":
		return s.left(key), nil
	case "FLUSHALL":
		clear(s.values)
		clear(s.expires)
		return "OK", nil
	}
	return nil, fmt.Errorf("ERR command %s is not known", args[0])
}

// left is what PTTL says.
func (s *Store) left(key string) int64 {
	if _, ok := s.values[key]; !ok {
		return -2
	}
	if at, ok := s.expires[key]; ok {
		return at.Sub(s.clock()).Milliseconds()
	}
	return -1
}

func valueOrError[V any](s *Store, key string) (any, error) {
	v, err := valueAs[V](s, key)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (s *Store) milliseconds(text string) time.Duration {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		s.t.Errorf("a key is to expire in %q milliseconds", text)
	}
	return time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

func (s *Store) expire(key string, at time.Time) {
	if _, ok := s.values[key]; ok {
		s.expires[key] = at
	}
}

// ofHash runs a command about a hash.
func (s *Store) ofHash(args []string) (any, error) {
	key := args[1]
	hash, err := valueAs[map[string]string](s, key)
	if err != nil {
		return nil, err
	}
	field := func(name string) any {
		if v, ok := hash[name]; ok {
			return v
		}
		return nil
	}
	all := []any{}
	switch args[0] {
	case "HGET":
		return field(args[2]), nil
	case "HMGET":
		for _, name := range args[2:] {
			all = append(all, field(name))
		}
		return all, nil
	case "HGETALL":
		for _, name := range slices.Sorted(maps.Keys(hash)) {
			all = append(all, name, hash[name])
		}
		return all, nil
	case "HLEN":
		return int64(len(hash)), nil
	case "HSET":
		if hash == nil {
			hash = make(map[string]string)
			s.values[key] = hash
		}
		before := len(hash)
		for i := 2; i+1 < len(args); i += 2 {
			hash[args[i]] = args[i+1]
		}
		return int64(len(hash) - before), nil
	case "HDEL":
		before := len(hash)
		for _, name := range args[2:] {
			delete(hash, name)
		}
		if len(hash) == 0 {
			delete(s.values, key)
			delete(s.expires, key)
		}
		return int64(before - len(hash)), nil
	}
	return nil, fmt.Errorf("ERR command %s is not known", args[0])
}

// bound is a score as ZRANGEBYSCORE has it, and whether it is left out itself.
func bound(text string) (score float64, open bool) {
	text, open = strings.CutPrefix(text, "(")
	score, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return score, open
}

// between are the names whose scores lie in a range, in order.
func between(set map[string]float64, from, to string) (names []string) {
	least, above := bound(from)
	most, below := bound(to)
	for name, score := range set {
		if score >= least && score <= most && !(above && score == least) && !(below && score == most) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(set[a], set[b]), cmp.Compare(a, b)) })
	return names
}

// ofSet runs a command about a sorted set.
func (s *Store) ofSet(args []string) (any, error) {
	key := args[1]
	set, err := valueAs[map[string]float64](s, key)
	if err != nil {
		return nil, err
	}
	score := func(name string) string { return strconv.FormatFloat(set[name], 'g', 17, 64) }
	all := []any{}
	switch args[0] {
	case "ZADD":
		if set == nil {
			set = make(map[string]float64)
			s.values[key] = set
		}
		for i := 2; i+1 < len(args); i += 2 {
			set[args[i+1]], _ = bound(args[i])
		}
		return int64(len(set)), nil
	case "ZSCORE":
		if _, ok := set[args[2]]; !ok {
			return nil, nil
		}
		return score(args[2]), nil
	case "ZREM":
		for _, name := range args[2:] {
			delete(set, name)
		}
		return int64(0), nil
	case "ZREVRANGE": // the last one
		if names := between(set, "-inf", "+inf"); len(names) > 0 {
			last := names[len(names)-1]
			all = append(all, last, score(last))
		}
		return all, nil
	case "ZCOUNT":
		return int64(len(between(set, args[2], args[3]))), nil
	case "ZREMRANGEBYSCORE":
		for _, name := range between(set, args[2], args[3]) {
			delete(set, name)
		}
		return int64(0), nil
	case "ZRANGEBYSCORE":
		// behind the range is nothing, or WITHSCORES, LIMIT, 0 and a number
		names := between(set, args[2], args[3])
		if len(args) > 7 {
			most, _ := strconv.Atoi(args[7])
			names = names[:min(len(names), most)]
		}
		for _, name := range names {
			all = append(all, name)
			if len(args) > 4 {
				all = append(all, score(name))
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("ERR command %s is not known", args[0])
}
