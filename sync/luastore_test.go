package ratesync

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A luaStore is a stand-in for Redis that runs the scripts of the sync themselves, in virtual time.
// After each it holds the sums of cells to what they are the sums of.
type luaStore struct {
	*redistest.Store
	t     *testing.T
	ahead atomic.Int64 // nanoseconds of its clock
	// forgotten counts the times it has lost something.
	forgotten atomic.Int64

	mu sync.Mutex // guards what follows
	// drained are buckets that have expired, since they were asked for last, and full those of them
	// that had yet to drain.
	drained, full []string
}

// sources are the scripts by their hashes, as clients name them.
var sources = map[string]string{
	heartbeatScript.Hash(): HeartbeatLua,
	sayHash:                cell.Script,
	fieldsScript.Hash():    fieldsLua + fetchLua,
	cursorScript.Hash():    cursorLua,
	relayScript.Hash():     headOfRelay + relayLua,
	sweepScript.Hash():     sweepLua,
	toldScript.Hash():      fieldsLua + recordLua + toldLua,
	slotsScript.Hash():     slotsSource,
}

func newLuaStore(t *testing.T) *luaStore {
	s := &luaStore{t: t}
	s.Store = redistest.NewStore(t, s.time)
	s.Lapsed = s.lapsed
	s.FindKeys = []string{sources[fieldsScript.Hash()], sources[toldScript.Hash()]}
	return s
}

// run runs a script and returns its reply as a client has it.
func (s *luaStore) run(hash string, keys []string, args []any) any {
	reply, err := s.Eval(sources[hash], keys, args...)
	if err != nil {
		s.t.Errorf("script: %v", err)
	}
	s.check(keys)
	// table.concat of one number, of which Redis makes a text
	if n, ok := reply.(int64); ok && hash == slotsScript.Hash() {
		return itoa(n)
	}
	return reply
}

// time is its clock, and step has it take a step.
//
// bubble: of each test that has a store.
func (s *luaStore) time() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

func (s *luaStore) step(by time.Duration) { s.ahead.Add(int64(by)) }

// lapsed notes a bucket that has expired, and holds that to what it says of its level.
func (s *luaStore) lapsed(key string, value any, at time.Time) {
	hash, ok := value.(map[string]string)
	if c, isCell := parseCellKey(key); !ok || !isCell || !c.spec.isBucket() {
		return
	} else if n := numbersIn(hash["sum"]); len(n) > 7 { // those of a sum, see say.lua
		s.mu.Lock()
		defer s.mu.Unlock()
		s.drained = append(s.drained, key)
		if whole, rest, gone := n[4], n[5], n[7]*(at.UnixMicro()-n[6]); gone < whole*c.spec.Window.Microseconds()+rest {
			s.full = append(s.full, fmt.Sprint(key, " ", hash["sum"], " at ", at.UnixMicro()))
		}
	}
}

// lapses are the buckets that have expired since the last call, and those that had yet to drain.
func (s *luaStore) lapses() (drained, full []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	drained, full, s.drained, s.full = s.drained, s.full, nil, nil
	return drained, full
}

// expiry is how long a key stays.
func (s *luaStore) expiry(key string) time.Duration {
	return time.Duration(s.Do("PTTL", key).(int64)) * time.Millisecond
}

// check holds the sums of a call to the totals that they are the sums of.
func (s *luaStore) check(keys []string) {
	for _, key := range keys {
		s.checkCell(key, s.Hash(key))
	}
}

// checkCell holds the sum of a cell of windows to the totals that it is the sum of.
func (s *luaStore) checkCell(key string, hash map[string]string) {
	sum, ok := hash["sum"]
	if !ok {
		return
	}
	c, ok := parseCellKey(key)
	if !ok {
		s.t.Errorf("%s is not taken apart", key)
		return
	}
	if c.spec.isBucket() {
		return // of which the sum has what former states of nodes had, too
	}
	// What counts no more may stand there, and what lies ahead, once the clock has stepped back.
	newest := c.spec.Rule(s.time().UnixNano(), false).Epoch(s.time().UnixMicro())
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
		if n != all[epoch] && epoch >= newest-int64(c.spec.History) {
			s.t.Errorf("%s: sum is %q, the nodes' totals in %d are %d: %v", key, sum, epoch, all[epoch], hash)
		}
	}
	for epoch, n := range totalsOf(hash["~"], 0) {
		if n != theirs[epoch] {
			s.t.Errorf("%s: ~ is %q, the other regions' totals in %d are %d: %v", key, hash["~"], epoch, theirs[epoch], hash)
		}
	}
}

// numbersIn are the numbers of a text.
func numbersIn(text string) (all []int64) {
	for word := range strings.FieldsSeq(text) {
		n, _ := strconv.ParseInt(word, 10, 64)
		all = append(all, n)
	}
	return all
}

// totalsOf are the totals of a cell's field, which come after so many numbers, by epochs.
func totalsOf(text string, skipped int64) map[int64]int64 {
	all := numbersIn(text)
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
	s.forgotten.Add(1)
	if all {
		s.Do("FLUSHALL")
	} else if keys := s.counting(); len(keys) > 0 {
		one = keys[n%len(keys)]
		s.Do("DEL", one)
	}
	return one
}

// counting are the names of the hashes with counts, in order.
func (s *luaStore) counting() (keys []string) {
	for key, hash := range s.Hashes() {
		if _, ok := hash["sum"]; ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// restore goes back to a copy: a failover to a replica that lags behind.
func (s *luaStore) restore(from map[string]any) {
	s.forgotten.Add(1)
	s.Restore(from)
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
	name, at, _ := strings.Cut(key, "#")
	c, _ := parseCellKey(name)
	epoch, _ := strconv.ParseInt(at, 10, 64)
	return totalsIn(c.spec, node, s.Hash(name)[node])[epoch], totalsIn(c.spec, "sum", s.Hash(name)["sum"])[epoch]
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
