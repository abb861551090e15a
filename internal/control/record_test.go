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

// The heartbeat that notices an entry brings it, also where this node has written after it asked.
func TestOneHeartbeatBringsAnEntry(t *testing.T) {
	for _, wrote := range []bool{false, true} {
		server, r := newStore(), NewRecord()
		us := int64(1e15)
		beat := func(seq int64, meanwhile func()) {
			v, ok := r.Ask()
			reply := server.beat(us, "a", seq, seq-1, question{v, ok, server.said})
			meanwhile()
			r.Merge(reply, us*1000)
		}
		write := func(id string) Entry {
			us++
			return server.write(us, 0, []order{{Entry: Entry{ID: id, Body: "{}"}, length: 3_600_000}})[0]
		}
		write("first")
		for seq := range int64(4) {
			beat(seq, func() {})
		}
		if _, ok := r.Get("first", us*1000); !ok {
			t.Fatal("the first entry is not there")
		}
		write("second")
		beat(4, func() {
			if wrote {
				r.Learn(write("own"), us*1000)
			}
		})
		if _, ok := r.Get("second", us*1000); !ok {
			t.Errorf("wrote %t: the second entry is not there", wrote)
		}
		beat(5, func() {})
		if _, ok := r.Get("own", us*1000); ok != wrote || r.IsPending("own") || wrote && r.AppliedBy("own") == 0 {
			t.Errorf("wrote %t: its own entry is there: %t, and it is not known that Redis has it", wrote, ok)
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
					r.take(e, stamp, stamp*1000)
				}
				if got := r.copies[winner.ID].Entry; got != winner {
					t.Errorf("a node that hears of %v has %+v, want %+v", order, got, winner)
				}
			}
			// Two nodes have one each.
			for _, have := range [][2]Entry{{winner, loser}, {loser, winner}} {
				server, both, seqs := newStore(), []*Record{NewRecord(), NewRecord()}, int64(0)
				both[0].put(have[0], stamp*1000)
				both[1].put(have[1], stamp*1000)
				for round := range 4 {
					for n, r := range both {
						v, ok := r.Ask()
						seqs++
						r.Merge(server.beat(stamp, fmt.Sprint(n), seqs, -1, question{v, ok && round > 0, 0}), stamp*1000)
						for _, e := range r.Unsent(9, stamp*1000) {
							server.write(stamp, r.known, []order{{Entry: e, length: -1}})
						}
					}
				}
				want := winner // perhaps kept as long as the other one
				want.Keep = max(want.Keep, server.entries[want.ID].Keep)
				for n, r := range both {
					if got := r.copies[want.ID].Entry; got != want || server.entries[want.ID].Entry != want {
						t.Errorf("node %d has %+v and Redis %+v of %+v and %+v, want %+v", n, got, server.entries[want.ID], loser, winner, want)
					}
				}
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
		e := r.Propose("a", time.Minute, body, now)
		if !e.wins(last) {
			t.Errorf("Propose(%q) = %+v, want one that wins over %+v", body, e, last)
		}
		last = e
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
	var fields []any
	for i := range 20 {
		fields = append(fields, fmt.Sprintf("%02d", 19-i), "1 0 0 0 v1 same")
	}
	leases := parseLeases(fields, ratesync.HeartbeatReply{Now: now})
	if len(leases) != 20 || !slices.IsSortedFunc(leases, func(a, b Lease) int { return cmp.Compare(a.Node, b.Node) }) {
		t.Errorf("parseLeases = %+v, want nodes of one name by their leases", leases)
	}
}
