package control

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"pgregory.net/rapid"
)

// Whatever happens to Redis, to its clock and to the nodes: once all can reach it again they agree,
// no change is lost that all nodes had acknowledged, and none is back that such a one has replaced
// where it was made. One that neither Redis nor the node knew of there, such as one of a node that
// is cut off, may come when the other one has ended.
func TestEveryHistory(t *testing.T) {
	for range max(1, redistest.Times(200, 100_000)/100) {
		rapid.Check(t, func(t *rapid.T) { // a hundred
			w := newWorld(t)
			for range rapid.IntRange(20, 120).Draw(t, "steps") {
				w.step()
			}
			w.settle()
			w.check()
		})
	}
}

// world is a Redis and some nodes in virtual time.
type world struct {
	t      *rapid.T
	now    int64 // nanoseconds
	skew   int64 // how far Redis' clock is ahead of that
	server *store
	// replicas are what the server held, and when.
	replicas []replica
	nodes    []*member
	made     int
	changes  []*change
	late     []func()
}

type replica struct {
	at int64
	*store
}

// member is a node. Its clock goes as time does, from a begin of its own.
type member struct {
	*Record
	name   string
	offset int64
	// seq is its last heartbeat, and answered the last one that was answered.
	seq, answered int64
	answeredAt    int64 // when that was, 0 never
	knownSince    int64 // by that answer
}

// change is a mutation, and who has acknowledged it.
type change struct {
	Entry
	at int64
	// replaces is what Redis or its node knew of when it was made, which it is kept as long as.
	replaces []Entry
	acked    bool
	holders  []*member // had it when it was acknowledged, and have not forgotten since
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: 1_700_000_000 * int64(time.Second), server: newStore()}
	for range 3 {
		w.nodes = append(w.nodes, w.newMember())
	}
	return w
}

func (w *world) newMember() *member {
	w.made++
	return &member{Record: NewRecord(), name: fmt.Sprint("node", w.made), answered: -1, offset: int64(w.made) * int64(77*time.Second)}
}

func (w *world) clock(m *member) int64 { return w.now + m.offset }

// micros is Redis' time, at which a script runs for a microsecond: no two records begin at the same
// one, as they might here after a step back.
func (w *world) micros() int64 {
	w.now += int64(time.Microsecond)
	return (w.now + w.skew) / 1000
}

// fate is what becomes of a call.
type fate int

const (
	answered fate = iota
	unanswered
	late
	unsent
	crossed // a change is made, and lost by Redis, before the answer is in
)

func (w *world) fate() fate {
	return rapid.SampledFrom([]fate{answered, answered, answered, answered, unanswered, late, unsent}).Draw(w.t, "fate")
}

func (w *world) node() *member { return w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(w.t, "node")] }

// step is one thing that happens.
func (w *world) step() {
	switch kind := rapid.IntRange(0, 99).Draw(w.t, "step"); {
	case kind < 3:
	case kind < 35:
		f := w.fate()
		if rapid.IntRange(0, 9).Draw(w.t, "crossed") == 9 {
			f = crossed
		}
		w.beat(w.node(), f)
	case kind < 50:
		w.tell(w.node(), w.fate())
	case kind < 65:
		w.mutate(w.node(), w.fate())
	case kind < 72:
		for range 3 {
			for _, m := range w.nodes {
				w.beat(m, answered)
			}
		}
	case kind < 80:
		w.pass(rapid.Int64Range(1, 3_000).Draw(w.t, "ms"))
	case kind < 84:
		hours := rapid.SampledFrom([]float64{0.01, 0.01, 0.2, 1, 3, 30, 1000, 1000}).Draw(w.t, "hours")
		w.pass(int64(hours * 3600_000))
	case kind < 87:
		w.replicas = append(w.replicas, replica{w.now, w.server.save()})
	case kind < 89:
		w.failOver()
	case kind < 91:
		w.server = newStore()
		w.pass(1)
	case kind < 94:
		w.skew = rapid.Int64Range(-1, 1).Draw(w.t, "skew") * int64(time.Hour)
	case kind < 96:
		w.restart()
	case len(w.late) > 0:
		i := rapid.IntRange(0, len(w.late)-1).Draw(w.t, "late")
		w.late[i]()
		w.late = slices.Delete(w.late, i, i+1)
	}
}

func (w *world) pass(ms int64) { w.now += ms * int64(time.Millisecond) }

// failOver goes on with what a replica had, minutes ago at most.
func (w *world) failOver() {
	if len(w.replicas) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.replicas)-1).Draw(w.t, "replica")
	if r := w.replicas[i]; w.now-r.at < int64(10*time.Minute) {
		w.server, w.replicas = r.save(), w.replicas[:i+1]
		w.pass(1)
	}
}

// restart replaces a node by a new process, with what the old one has saved or with nothing.
func (w *world) restart() {
	i := rapid.IntRange(0, len(w.nodes)-1).Draw(w.t, "restarts")
	old, m := w.nodes[i], w.newMember()
	if rapid.Bool().Draw(w.t, "persist") {
		m.offset = old.offset
		m.restore(old.save(w.clock(old)), w.clock(m))
		m.answeredAt = old.answeredAt
		w.replace(old, m)
	} else {
		w.replace(old, nil)
	}
	w.nodes[i] = m
}

// replace notes that a node's copies are another's now, or nobody's.
func (w *world) replace(old, by *member) {
	for _, c := range w.changes {
		if i := slices.Index(c.holders, old); i >= 0 {
			if c.holders = slices.Delete(c.holders, i, i+1); by != nil {
				c.holders = append(c.holders, by)
			}
		}
	}
}

func (w *world) beat(m *member, f fate) (again bool) {
	if f == unsent {
		return false
	}
	m.seq++
	seq, last, since := m.seq, m.answered, m.knownSince
	v, ok := m.Ask()
	call := func() Reply { return w.server.beat(w.micros(), m.name, seq, last, question{v, ok, since}) }
	if f == late {
		w.late = append(w.late, func() { call() })
		return false
	}
	r, said := call(), w.server.said
	switch f {
	case unanswered:
		return false
	case crossed:
		w.mutate(m, answered)
		w.server = newStore()
		w.pass(1)
	}
	if away := w.now - m.answeredAt; m.answeredAt != 0 && away > int64(awayFor) {
		w.replace(m, nil)
	}
	m.answeredAt, m.answered, m.knownSince = w.now, seq, said
	m.Forget(w.clock(m))
	again = m.Merge(r, w.clock(m))
	w.acknowledge(m)
	return again
}

// acknowledge notes the changes of which a node now knows that all have applied them.
func (w *world) acknowledge(m *member) {
	for _, c := range w.changes {
		have := m.copies[c.ID]
		if c.acked || have == nil || have.Entry != c.Entry || w.isOver(c.Entry) {
			continue
		}
		since := m.AppliedBy(c.ID)
		c.acked = since > 0
		for node := range w.server.leases {
			c.acked = c.acked && w.server.applied[node] >= since
		}
		if !c.acked {
			continue
		}
		for _, other := range w.nodes {
			if _, leased := w.server.leases[other.name]; !leased {
				continue
			}
			if have := other.copies[c.ID]; have == nil || c.wins(have.Entry) {
				w.t.Fatalf("%s acknowledges %+v and has %+v", other.name, c.Entry, have)
			}
			c.holders = append(c.holders, other)
		}
	}
}

func (w *world) tell(m *member, f fate) (more bool) {
	told := m.Unsent(2, w.clock(m))
	if f == unsent || len(told) == 0 {
		return false
	}
	var orders []order
	for _, e := range told {
		orders = append(orders, order{Entry: e, length: -1})
	}
	known := m.known
	call := func() { w.server.write(w.micros(), known, orders) }
	if f == late {
		w.late = append(w.late, call)
		return false
	}
	call()
	return true
}

func (w *world) mutate(m *member, f fate) {
	id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(w.t, "id")
	hours := rapid.SampledFrom([]float64{0.05, 1, 1, 24, 1500}).Draw(w.t, "length")
	length, body := time.Duration(hours*float64(time.Hour)), fmt.Sprint(`{"n":`, len(w.changes), `}`)
	if rapid.IntRange(0, 2).Draw(w.t, "delete") == 0 {
		if _, ok := m.Get(id, w.clock(m)); !ok {
			return
		}
		body, length = "", 0
	}
	w.change(m, id, length, body, f)
}

// change has a node say something.
func (w *world) change(m *member, id string, length time.Duration, body string, f fate) {
	known, rest := m.known, m.Rest(id, w.clock(m))
	var here []Entry
	if old := m.copies[id]; old != nil {
		here = w.knownOf(old.Entry)
	}
	call := func() Entry {
		there := w.knownOf(w.server.entries[id].Entry)
		e := w.server.write(w.micros(), known, []order{{Entry{ID: id, Body: body}, length.Milliseconds(), rest.Milliseconds()}})[0]
		w.changes = append(w.changes, &change{Entry: e, replaces: append(there, here...), at: w.now})
		return e
	}
	switch f {
	case answered:
		e := call()
		if rapid.IntRange(0, 3).Draw(w.t, "read") == 0 { // before the answer is in
			w.beat(m, answered)
		}
		m.Learn(e, w.clock(m))
		return
	case unanswered:
		call()
	case late:
		w.late = append(w.late, func() { call() })
	}
	e := m.Propose(id, length, body, w.clock(m))
	w.changes = append(w.changes, &change{Entry: e, replaces: here, at: w.now})
}

// A node that was away for longer than deletions are kept brings nothing back.
func TestALongAbsence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		a, b := w.nodes[0], w.nodes[1]
		w.change(a, "x", 90*24*time.Hour, "{}", answered)
		w.change(a, "y", 90*24*time.Hour, "{}", answered)
		w.settle()
		if len(w.active(b)) != 2 {
			t.Fatalf("%s has %v active, want two", b.name, w.active(b))
		}
		w.pass(60_000)
		w.change(a, "x", 0, "", answered)
		w.pass((keepMost + 3*time.Hour).Milliseconds())
		w.change(a, "z", 24*time.Hour, "{}", answered) // has the deletion removed
		for range 3 {
			w.beat(a, answered)
		}
		w.settle()
		w.check()
		for _, m := range w.nodes {
			if all := w.active(m); len(all) != 2 || all[0].ID != "y" {
				t.Fatalf("%s has %v active, want y and z", m.name, all)
			}
		}
	})
}

// What takes the place of a change that lasts longer is kept for as long: a node that was away
// doesn't bring that back.
func TestAShortChangeReplacesALongOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		a, b := w.nodes[0], w.nodes[1]
		w.change(a, "x", 12*time.Hour, "{}", answered)
		w.settle()
		if len(w.active(b)) != 1 {
			t.Fatalf("%s has %v active, want x", b.name, w.active(b))
		}
		w.change(a, "x", time.Minute, `{"n":1}`, answered)
		for range 3 {
			w.beat(a, answered)
			w.pass(time.Hour.Milliseconds())
		}
		w.change(a, "y", 24*time.Hour, "{}", answered) // has what is not kept removed
		w.settle()
		w.check()
		for _, m := range w.nodes {
			if all := w.active(m); len(all) != 1 || all[0].ID != "y" {
				t.Fatalf("%s has %v active, want y", m.name, all)
			}
		}
	})
}

// settle has all nodes talk to Redis until nothing is left to say.
func (w *world) settle() {
	for range 60 {
		quiet := true
		w.pass(100)
		for _, m := range w.nodes {
			again := w.beat(m, answered)
			quiet = !w.tell(m, answered) && !again && quiet
		}
		if quiet {
			return
		}
	}
	w.t.Fatalf("the nodes are not done after 60 rounds; the record is %+v", w.server)
}

// check holds the nodes to each other and to what was acknowledged.
func (w *world) check() {
	first := w.active(w.nodes[0])
	for _, m := range w.nodes {
		if got := w.active(m); !slices.Equal(got, first) {
			w.t.Fatalf("%s has %v active, %s has %v", m.name, got, w.nodes[0].name, first)
		}
		for _, e := range w.active(m) {
			if w.server.entries[e.ID].Entry != e {
				w.t.Fatalf("%s has %+v, the record %+v", m.name, e, w.server.entries[e.ID])
			}
		}
	}
	for _, c := range w.changes {
		if !c.acked || len(c.holders) == 0 || w.isReplaced(c.Entry) {
			continue
		}
		for _, m := range w.nodes {
			w.checkOne(c, m)
		}
	}
}

func (w *world) checkOne(c *change, m *member) {
	have, ok := m.Get(c.ID, w.clock(m))
	switch {
	case ok && c.wins(have) && slices.Contains(c.replaces, have):
		w.t.Fatalf("%s has %+v active again, which %+v replaces, acknowledged by all", m.name, have, c.Entry)
	case ok, c.IsDeletion(), w.isOver(c.Entry):
	case m.copies[c.ID] == nil || c.wins(m.copies[c.ID].Entry):
		w.t.Fatalf("%s has lost %+v, which was acknowledged by all", m.name, c.Entry)
	}
}

// knownOf is what a change replaces that is made where an entry is known: that one, and what it has
// replaced.
func (w *world) knownOf(e Entry) (all []Entry) {
	for _, c := range w.changes {
		if c.Entry == e {
			all = append(all, c.replaces...)
		}
	}
	return append(all, e)
}

// isOver reports whether an entry may have ended: its length has passed, or it is past by Redis'
// clock, or has been while that was an hour ahead.
func (w *world) isOver(e Entry) bool {
	for _, c := range w.changes {
		if c.Entry == e && w.now-c.at >= lengthOf(e) {
			return true
		}
	}
	return (w.now+int64(time.Hour))/1e6 >= e.Until
}

// isReplaced reports whether something that is over since has taken the place of an entry.
func (w *world) isReplaced(e Entry) bool {
	return slices.ContainsFunc(w.changes, func(c *change) bool { return c.ID == e.ID && c.wins(e) && w.isOver(c.Entry) })
}

// active are the active entries on a node that can't have ended on any.
func (w *world) active(m *member) (all []Entry) {
	for e := range m.Active(w.clock(m)) {
		if !w.isOver(e) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return slices.Compare([]string{a.ID}, []string{b.ID}) })
	return all
}
