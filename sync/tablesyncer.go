package ratesync

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A TableSyncer is what the sync knows of one table.
type TableSyncer struct {
	link
	table table.Synced
	spec  Spec

	bans atomic.Pointer[Bans] // that go along, nil for none
	// least is how much of a key other regions have to know of, 0 where they are told of none.
	least atomic.Int64

	// rules are how the script of cells counted last, the second where what is granted is reserved.
	rules [2]atomic.Pointer[saidRule]

	// late is how often pushLate was called and not yet done: for a table whose zone has gone.
	late atomic.Int32
}

// NewTableSyncer returns the TableSyncer of a table, with a random name of a node.
func NewTableSyncer(t table.Synced, spec Spec) *TableSyncer {
	s := &TableSyncer{table: t, spec: spec}
	name, isOfCalendar := calendar.Name(spec.Window)
	if !isOfCalendar {
		name = spec.Window.String()
	}
	s.init(s, spec.Zone+" "+name)
	return s
}

// A saidRule is how the script counts in one window of a calendar, or buckets of so much that drain
// at such a rate.
type saidRule struct {
	window, size, rate int64
	decided, filled    bool
	text               string
}

// ruleOf is how the script counts a cell. Most cells of a table are alike.
func (s *TableSyncer) ruleOf(m *table.Update, reserved bool) string {
	want, last := saidRule{}, &s.rules[0]
	if reserved {
		last = &s.rules[1]
	}
	isBucket := s.spec.isBucket() && (m.State.Seq != 0 || m.Size != 0)
	switch {
	case s.spec.Calendar != nil:
		want.window = s.spec.Calendar.At(m.At).Number
	case isBucket:
		want.size, want.rate, want.decided, want.filled = m.Size, m.Rate, m.Decided, m.Filled
	}
	if had := last.Load(); had != nil {
		if want.text = had.text; want == *had {
			return had.text
		}
	}
	rule := s.spec.Rule(m.At, reserved)
	if isBucket {
		rule = s.spec.RuleOf(m.Size, m.Rate, m.Decided, m.Filled, reserved)
	}
	said := want // want itself stays off the heap
	said.text = rule.String()
	last.Store(&said)
	return said.text
}

// Cells are the keys of the table's cells.
func (s *TableSyncer) Cells(in Keyspace) Keys { return in.Cells(s.spec) }

// FoundLoss notes that the server has lost something that it had confirmed.
func (s *TableSyncer) FoundLoss() {
	if a := s.current.Load(); a != nil {
		a.group.r.foundLoss()
	}
}

// leastPart is the part of a limit, 1/leastPart, that other regions have to know of.
const leastPart = 64

// LeastTold is how much of a limit other regions have to know of: what is below a sixty-fourth of
// it is told to none. A bucket has up to that much in each of two epochs, so there it is half as
// much.
func LeastTold(p algorithms.Params) int64 {
	l, least := p.Compile(), int64(leastPart)
	if p.Kind.Traits().Draining {
		least *= 2
	}
	return max(1, min(l.N, l.Size)/least)
}

// SetLeastTold has other regions told of what a key has in this one from so much on, 0 for nothing.
func (s *TableSyncer) SetLeastTold(least int64) { s.least.Store(least) }

// Attach begins to sync a table every interval, or changes that. A table that was attached to
// another Replicator leaves it and brings its counts along. Attach doesn't wait for the network.
func (r *Replicator) Attach(s *TableSyncer, interval time.Duration) {
	if s.spec.Calendar != nil {
		r.eviction.CompareAndSwap(evictionUnasked, evictionAsked)
	}
	r.counts.attach(&s.link, interval)
}

// DetachFrom is Detach if the table is attached to r, and nothing otherwise.
func (s *TableSyncer) DetachFrom(r *Replicator) {
	if a := s.current.Load(); a != nil && a.group == &r.counts {
		s.Detach()
	}
}

// sync syncs the bans that go along, and then the table. In a Cluster a part that fails keeps
// nothing else from being synced.
func (s *TableSyncer) sync(ctx context.Context, a *attachment, early bool) (missed uint64, err error) {
	r := a.group.r
	if !a.flushing {
		r.awaitPause(ctx)
	}
	a.failed, a.answered = 0, 0
	if !early {
		s.resendRest(a, r.now())
	}
	if bans := s.bans.Load(); bans != nil {
		a.failed, err = bans.Send(ctx, r.callTime(a), r.unreachable.Load())
	}
	if err == nil || r.cluster {
		if why := s.syncTable(ctx, a, early); why != nil {
			err = why
		}
	}
	return r.missedAfter(a, early, err), err
}

func (s *TableSyncer) note(a *attachment, early bool, err error) {
	// An early sync leaves out what is missed.
	if err != nil || !early || a.missed.Load() == 0 {
		a.group.r.note(&s.link, s.name, err)
	}
}

func (s *TableSyncer) urgent() bool                 { return s.table.Urgent() }
func (s *TableSyncer) setMissedTwice(shards uint64) { s.table.SetMissedTwice(shards) }

func (s *TableSyncer) unsent(now int64) (n int64, some bool) {
	_, n, corrections := s.table.Unsent(now)
	n += int64(corrections)
	bans := s.bans.Load()
	return n, n > 0 || bans != nil && bans.HasUnsent()
}

func (s *TableSyncer) storeChanged(now int64) {
	s.table.ResetAcks()
	if bans := s.bans.Load(); bans != nil {
		bans.Resend()
	}
}

func (s *TableSyncer) left(from *Replicator, reason string) {
	switch keys, requests, refunded := s.table.Unsent(from.now()); {
	case requests == 0 && refunded == 0:
	case reason == "": // it came during the last sync
		s.pushLate(s.last)
	default:
		from.log(func(h *Health, now time.Time) *LogEntry {
			return h.NotSent(s.spec.Zone, keys, requests, refunded, reason, now)
		})
	}
}
