package control

import "testing"

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
