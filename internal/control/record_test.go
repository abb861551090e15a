package control

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// The heartbeat that notices an entry brings it, unless this node has written after it asked.
func TestOneHeartbeatBringsAnEntry(t *testing.T) {
	for _, wrote := range []bool{false, true} {
		server, r := newStore(), NewRecord()
		us := int64(1e15)
		beat := func(seq int64, before func()) {
			q := r.Ask()
			before()
			r.Merge(server.beat(us, "a", seq, seq-1, q), us*1000)
		}
		write := func(id string) (Entry, Version) {
			us++
			holds, v := server.write(us, 0, 0, []order{{Entry: Entry{ID: id, Body: "{}"}, length: 3_600_000}})
			return holds[0], v
		}
		write("first")
		for seq := range int64(4) {
			beat(seq, func() {})
		}
		if _, ok := r.Get("first", us*1000); !ok || r.Ask().Read {
			t.Fatal("the first entry is not there, or the node still wants to read")
		}
		write("second")
		beat(4, func() {
			if wrote {
				e, v := write("own")
				r.Take(e, v, us*1000)
			}
		})
		if _, ok := r.Get("second", us*1000); ok == wrote {
			t.Errorf("wrote %t: the entry is there: %t", wrote, ok)
		}
		if r.IsPending("own") {
			t.Error("what was written just now passes for pending")
		}
		beat(5, func() {})
		if _, ok := r.Get("second", us*1000); !ok {
			t.Errorf("wrote %t: the entry is not there after the second heartbeat", wrote)
		}
	}
}

// tied are entries of one name and stamp, as two nodes write them that Redis doesn't hear: each
// wins over those before it.
func tied(stamp int64) (all []Entry) {
	ms := stamp / 1000
	add := func(until, keep, length int64, body string) {
		all = append(all, Entry{ID: "override:a:z", Stamp: stamp, Until: ms + until, Keep: ms + keep, Length: length, Body: body})
	}
	add(100_000, 200_000, 100_000, "")
	add(100_000, 200_000, 100_000, `{"limit":"Deny"}`)
	add(100_000, 200_000, 100_000, `{"limit":"deny"}`)
	add(100_000, 200_000, 100_000, `{"limit":"deny"} `)
	add(100_000, 200_000, 100_000, `{"limit":"z"}`)
	add(100_000, 200_000, 100_000, `{"limit":"ä"}`)
	add(100_000, 200_000, 90_000, "")
	add(100_000, 300_000, 90_000, "")
	add(110_000, 200_000, 90_000, "")
	return all
}

// Of two entries of a name and a stamp one wins, on every node, whatever comes first.
func TestOfTwoEntriesOfAStampOneWins(t *testing.T) {
	const stamp = int64(1e15)
	all := tied(stamp)
	for i, winner := range all {
		if winner.wins(winner) {
			t.Errorf("%q wins over itself", winner.value())
		}
		for _, loser := range all[:i] {
			if !winner.wins(loser) || loser.wins(winner) {
				t.Errorf("%q and %q: the one wins: %t, the other: %t; want true and false", winner.value(), loser.value(), winner.wins(loser), loser.wins(winner))
			}
			for _, order := range [][]Entry{{winner, loser}, {loser, winner}, {winner, loser, winner, loser}} {
				r := NewRecord()
				for _, e := range order {
					r.Take(e, Version{Clock: stamp}, stamp*1000)
				}
				if got := r.copies[winner.ID].Entry; got != winner {
					t.Errorf("a node that is told of %v has %+v, want %+v", order, got, winner)
				}
			}
			r := NewRecord()
			r.put(loser, stamp*1000).missing = true
			r.Sent([]Entry{loser}, []Entry{winner}, Version{Clock: stamp}, stamp*1000)
			if got := r.copies[winner.ID]; got == nil || got.Entry != winner || got.missing {
				t.Errorf("a node whose %+v Redis does not take has %+v, want %+v", loser, got, winner)
			}
		}
	}
}

// What a node says is later than all that it knows, also within one microsecond, and where Redis'
// clock was set back.
func TestWhatIsSaidLaterWins(t *testing.T) {
	now := int64(1e18)
	r := NewRecord()
	var last Entry
	for i, body := range []string{`{"n":9}`, `{"n":5}`, "", `{"n":1}`} {
		if i == 3 {
			now -= int64(time.Hour)
		}
		e, _ := r.Propose("a", time.Minute, body, 0, now)
		if !e.wins(last) {
			t.Errorf("Propose(%q) = %+v, want one that wins over %+v", body, e, last)
		}
		last = e
	}
}

// Redis is told of entries in the order in which they were said, and of those of a stamp in that of
// their names, so that it is the same ones that are sent again.
func TestInWhichOrderRedisIsTold(t *testing.T) {
	const stamp = int64(1e15)
	r := NewRecord()
	var want []string
	for i := range 40 {
		id := fmt.Sprintf("override:%02d", i)
		want = append(want, id)
		r.put(Entry{ID: id, Stamp: stamp + int64(i/20), Keep: stamp}, stamp*1000).missing = true
	}
	for _, most := range []int{1, 15, 40} {
		var got []string
		for _, e := range r.Unsent(most) {
			got = append(got, e.ID)
		}
		if !slices.Equal(got, want[:most]) {
			t.Errorf("Unsent(%d) = %v, want %v", most, got, want[:most])
		}
	}
}

// Lists for people have one order: overrides that are as old by their zones and keys, and nodes
// that have one name by their leases.
func TestListsOfWhatIsEqual(t *testing.T) {
	const stamp, now = int64(1e15), int64(1e18)
	c := New(Options{Now: func() int64 { return now }})
	var want []string
	for _, zone := range []string{"a", "b"} {
		for i := range byte(10) {
			target := Target{Zone: zone, Key: &keys.ID{i}}
			want = append(want, zone+target.IDText())
			c.record.put(Entry{ID: target.name(), Stamp: stamp, Until: 2 * stamp, Keep: 2 * stamp, Length: 1e6, Body: `{"limit":"deny"}`}, now)
		}
	}
	c.compile()
	var got []string
	for _, o := range c.State(t.Context()).Overrides {
		got = append(got, o.Zone+o.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("State.Overrides = %v, want %v", got, want)
	}
	var leases []Lease
	for i := range 20 {
		leases = append(leases, Lease{Node: fmt.Sprintf("%02d", 19-i), Name: "v1 same"})
	}
	c.list(leases, ratesync.HeartbeatReply{Now: now})
	if !slices.IsSortedFunc(c.leases, func(a, b Lease) int { return cmp.Compare(a.Node, b.Node) }) {
		t.Errorf("list = %+v, want nodes of one name by their leases", c.leases)
	}
}
