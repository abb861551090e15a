package ratesync

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// The same message twice is granted once, and one that was overtaken is granted nothing.
func TestAMessageThatComesTwice(t *testing.T) {
	withSlotNodes(t, 0, false, func(t *testing.T, st *luaStore, _ []*slotNode) {
		for _, m := range []struct {
			node               string
			seq, gauge, wanted int
			want               string
		}{
			{"a", 7, 0, 3, "0 3"}, {"a", 7, 0, 3, "0 3"}, {"b", 1, 0, 3, "3 1"}, {"b", 1, 0, 3, "3 1"},
			{"a", 6, 0, 0, "!overtaken"}, {"a", 8, 1, 0, "1"}, {"a", 8, 1, 0, "1"}, {"b", 1, 0, 3, "1 1"}, {"b", 2, 1, 9, "1 2"},
			// also behind one that only says that nothing is left
			{"a", 9, 0, 0, "3"}, {"a", 8, 1, 0, "!overtaken"},
		} {
			args := []any{m.node, m.seq, 10000, 20000, m.gauge}
			if m.wanted > 0 {
				args = append(args, fmt.Sprint(m.wanted, " ", 4))
			}
			if got := st.run(slotsScript.Hash(), []string{"k"}, args); got != m.want {
				t.Errorf("%+v: %q", m, got)
			}
		}
	})
}

// However messages come and the clock steps, a hash outlives what they say, and ends within its
// ttl. Where the clock has just stepped back it may have a ttl more.
func TestAHashOutlivesWhatItHolds(t *testing.T) {
	withSlotNodes(t, 0, false, func(t *testing.T, st *luaStore, _ []*slotNode) {
		random := rand.New(rand.NewPCG(1, 9))
		var back time.Time
		for seq := range 2000 {
			node := string(rune('a' + random.IntN(3)))
			st.run(slotsScript.Hash(), []string{"k"}, []any{node, seq, gauge.Lease.Milliseconds(), slotsTTL.Milliseconds(), 1})
			left, most := time.Duration(st.Do("PTTL", "k").(int64))*time.Millisecond, slotsTTL
			if time.Since(back) <= gauge.Lease {
				most += slotsTTL
			}
			if left < gauge.Lease-time.Millisecond || left > most {
				t.Fatalf("message %d leaves a hash with %s left, want %s to %s", seq, left, gauge.Lease, most)
			}
			pause := time.Duration(random.Int64N(int64(gauge.Lease)) >> random.IntN(6))
			time.Sleep(pause)
			if random.IntN(10) == 0 {
				d := time.Duration(random.Int64N(int64(time.Hour))-int64(time.Hour/2)) >> random.IntN(12)
				if st.step(d); d < 0 {
					back = time.Now()
				}
			}
		}
		time.Sleep(2 * slotsTTL)
		if len(st.gauges("k")) > 0 || st.Hash("k") != nil {
			t.Error("it is still there")
		}
	})
}

// A key of another type costs an error, and fields that make no sense count nothing: they go with
// the next message, and stay if somebody only asks. The other keys of the call get their answers.
func TestForeignKeysAndFields(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	// The clock has stepped back since.
	later := r.Client().Time(t.Context()).Val().Add(time.Hour).UnixMilli()
	r.Do("SET", "text", "x")
	junk := []string{"x", "1 2", "1 -2 3", fmt.Sprint("1 9999999999 ", later), fmt.Sprint("1 2 ", later, "x"), "1 2 1000"}
	for i, value := range junk {
		r.Do("HSET", "hash", fmt.Sprint("other", i), value)
	}
	r.Do("HSET", "hash", "b", fmt.Sprint("1 2 ", later), "c", fmt.Sprint("1 0 ", later), "d", fmt.Sprint("1 3 ", later), "me", "x")
	call := func(seq int, args ...any) string {
		all := append([]any{"EVAL", slotsSource, 3, "text", "hash", "new", "me", seq, 10000, 20000}, args...)
		return r.Do(all...).(string)
	}
	const wrongType = "!WRONGTYPE Operation against a key holding the wrong kind of value"
	if got, want := call(1, "", "", ""), wrongType+"\n5\n0"; got != want {
		t.Errorf("asked: %q, want %q", got, want)
	}
	if n := r.Do("HLEN", "hash"); n != int64(10) || r.Do("EXISTS", "new") != int64(0) {
		t.Errorf("%v fields are left after a question, want all 10", n)
	}
	if got, want := call(2, 1, 1, 1, "0 0", "4 9", "4 9"), wrongType+"\n5 3\n0 4"; got != want {
		t.Errorf("told: %q, want %q", got, want)
	}
	fields := r.Do("HKEYS", "hash").([]any)
	if got := fmt.Sprint(fields...); len(fields) != 4 || strings.Contains(got, "other") {
		t.Errorf("the hash has %v, want b, c, d and me", fields)
	}
	if has := r.Do("HGET", "hash", "d").(string); !strings.HasPrefix(has, "1 3 ") || strings.Contains(has, fmt.Sprint(later)) {
		t.Errorf("another node has %q, want what it had, and a lease from now on", has)
	}
	if has := r.Do("HGET", "hash", "me").(string); !strings.HasPrefix(has, "2 4 ") {
		t.Errorf("this node has %q, want 4 with message 2", has)
	}
}

// A message reads its hash once and writes it once. The hash gets its ttl once in a lease, however
// many nodes write it.
func TestTheCommandsOfAMessage(t *testing.T) {
	withSlotNodes(t, 0, false, func(t *testing.T, st *luaStore, _ []*slotNode) {
		for seq := range 300 {
			for _, node := range []string{"a", "b", "c"} {
				st.run(slotsScript.Hash(), []string{"k", "l"}, []any{node, seq, gauge.Lease.Milliseconds(), slotsTTL.Milliseconds(), 1, 2})
			}
			time.Sleep(gauge.Lease / 100)
		}
		asked := st.Asked()
		want := map[string]int{"TIME": 900, "HGETALL": 1800, "HSET": 1800, "PEXPIRE": asked["PEXPIRE"]}
		if n := want["PEXPIRE"]; n < 6 || n > 8 || !reflect.DeepEqual(asked, want) {
			t.Errorf("900 messages about two keys in three leases took %v", asked)
		}
	})
}

// A hash of which only fields were left that make no sense ends like any other.
func TestAHashOfForeignFieldsEnds(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	now := r.Client().Time(t.Context()).Val()
	for i := range 10 {
		r.Do("HSET", "k", "other", fmt.Sprint("1 9999999999 ", now.Add(time.Duration(i)*time.Second).UnixMilli()))
		r.Do("EVAL", slotsSource, 1, "k", "me", i, 10000, 20000, 1)
		if left := r.Do("PTTL", "k").(int64); left <= 0 {
			t.Errorf("the hash never ends: %d", left)
		}
		r.Do("DEL", "k")
	}
}

// What makes no sense in a reply is an error of its key, and a reply of another length one of all.
func TestRepliesThatMakeNoSense(t *testing.T) {
	plain, wants := gauge.Message{Own: 1}, gauge.Message{Wanted: 2, Limit: 4}
	for line, m := range map[string]gauge.Message{
		"": plain, "x": plain, "-1": plain, "1.5": plain, "3000000000": plain, "1 1": plain, "1 x": plain,
		"1": wants, "1 ": wants, "1 3": wants, "1 -1": wants, "1 1 1": wants,
	} {
		all, err := readSlots("5\n"+line, []gauge.Message{plain, m})
		if err != nil || !errors.Is(all[1].err, ErrReply) || all[0] != (slotAnswer{Answer: gauge.Answer{Others: 5}}) {
			t.Errorf("%q for %+v: %+v, %v", line, m, all, err)
		}
	}
	all, err := readSlots("!no\n7 2\n3", []gauge.Message{wants, wants, plain})
	want := []slotAnswer{{err: redisconn.Rejection("no")}, {Answer: gauge.Answer{Others: 7, Granted: 2}}, {Answer: gauge.Answer{Others: 3}}}
	if err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%+v, %v; want %+v", all, err, want)
	}
	for _, reply := range []string{"", "1", "1\n1\n1"} {
		if _, err := readSlots(reply, []gauge.Message{plain, plain}); !errors.Is(err, ErrReply) {
			t.Errorf("%q for two messages: %v", reply, err)
		}
	}
}
