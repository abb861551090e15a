package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.uber.org/zap"
)

// A Change is what somebody wants to be different.
type Change struct {
	Target
	// Body is what is to hold, for so long. The zero Body takes back what was said before.
	Body
	For time.Duration
	// Who asked for it, for the log.
	Who string
}

// ErrNone is the error for taking back what is not there.
var ErrNone = errors.New("there is none to remove")

// An Outcome says who has applied a change.
type Outcome struct {
	// Nodes is how many nodes there are, and Applied how many of them have applied the change.
	Nodes   int `json:"nodes"`
	Applied int `json:"applied"`
	// Missing are the others.
	Missing []Missing `json:"missing,omitempty"`
	// Regions is how many other regions there are, and Told how many of them have been told. Untold
	// are the others.
	Regions int      `json:"regions,omitempty"`
	Told    int      `json:"regions_told,omitempty"`
	Untold  []string `json:"untold,omitempty"`
	// Shared is false where there is no Redis: then this node is the only one.
	Shared bool `json:"shared"`
	// EndsWithProcess is set for what is neither shared nor saved.
	EndsWithProcess bool `json:"ends_with_process,omitempty"`
	// Later is what others have changed of the same since then: that holds. It has no limit and no
	// share where they have removed it.
	Later []EntryState `json:"later,omitempty"`
	// Unsent is set where Redis could not be told yet. It will be, as soon as it is there.
	Unsent bool `json:"-"`
}

// Missing is a node that has not applied a change.
type Missing struct {
	Name string `json:"name"`
	// Heard is when its last heartbeat came.
	Heard time.Time `json:"heard"`
}

// Change makes a change here and at once, tells Redis, and waits until every node has applied it,
// WaitFor at most. Of what is to be taken back, what is temporary goes first.
func (c *Control) Change(ctx context.Context, ch Change) (Outcome, error) {
	began := c.Now()
	if ch.Body == (Body{}) {
		changes := c.Holding(ch.Target)
		if len(changes) == 0 {
			return Outcome{}, ErrNone
		}
		ch.Temporary, ch.For = changes[0].Temporary, 0
	}
	// A kill switch finds room always.
	e, err := c.put(ch.name(), ch.For, ch.text(), ch.Zone != "")
	if err != nil {
		return Outcome{}, err
	}
	c.log(ch, ch.For)
	entries := []Entry{e}
	if changes := c.Holding(ch.Target); ch.Share != nil && !ch.Temporary && len(changes) > 1 {
		// A rollout that has come to its end ends its last step, and an emergency is over.
		if e, err = c.put(ch.Layers()[0].name(), 0, "", false); err != nil {
			return Outcome{}, err
		}
		entries = append(entries, e)
	}
	return c.conclude(ctx, began, entries...), nil
}

// ChangeAll makes many changes as one: all of them here and at once, or none where there is no room
// for them. They are for keys, and those without a body take back what there is of their layer.
// Then it tells Redis, and waits as Change does.
func (c *Control) ChangeAll(ctx context.Context, all []Change) (Outcome, error) {
	began := c.Now()
	var set []string
	for _, ch := range all {
		if ch.Body != (Body{}) {
			set = append(set, ch.name())
		}
	}
	c.mu.Lock()
	if !c.record.HasRoom(set...) {
		c.mu.Unlock()
		return Outcome{}, ErrFull
	}
	var entries []Entry
	for _, ch := range all {
		if _, isThere := c.record.Get(ch.name(), c.Now()); ch.Body == (Body{}) && !isThere {
			continue
		}
		entries = append(entries, c.record.Propose(ch.name(), ch.For, ch.text(), c.Now()))
	}
	c.compile()
	c.mu.Unlock()
	if len(entries) == 0 {
		return Outcome{}, ErrNone
	}
	c.Logger.Info("an operator has changed a rate limit at run time", zap.String("what", "override"),
		zap.Int("changes", len(entries)), zap.Bool("removed", len(set) == 0), zap.String("by", all[0].Who))
	return c.conclude(ctx, began, entries...), nil
}

// conclude waits until every node has applied entries, or what others have changed of the same
// since, and they are saved, WaitFor at most for both.
func (c *Control) conclude(ctx context.Context, began int64, entries ...Entry) Outcome {
	ctx, cancel := context.WithTimeout(ctx, c.waitFor)
	defer cancel()
	c.save()
	o := Outcome{Nodes: 1, Applied: 1}
	if c.IsShared() {
		o = c.wait(ctx, entries, began)
	}
	c.AwaitSaved(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		t, ok := parseTarget(e.ID)
		o.EndsWithProcess = o.EndsWithProcess || ok && !e.IsDeletion() && !o.Shared && (c.keep == nil || c.keep.fails)
		if later := c.record.copies[e.ID]; ok && later != nil && later.wins(e) {
			o.Later = append(o.Later, c.describe(later.Entry, t))
		}
	}
	return o
}

// text is what the entry of a change says, "" where it takes back what was said.
func (ch Change) text() string {
	if ch.Body == (Body{}) {
		return ""
	}
	text, _ := json.Marshal(ch.Body) // fails for no share that Check accepts
	return string(text)
}

// put writes an entry, to Redis if it can be had, and else here for it to be told later. Where it
// is bounded there must be room for it.
func (c *Control) put(id string, length time.Duration, body string, bounded bool) (e Entry, err error) {
	c.mu.Lock()
	full, rest := bounded && !c.record.HasRoom(id), c.record.Rest(id, c.Now())
	c.mu.Unlock()
	if full {
		return e, ErrFull
	}
	isWritten := false
	if c.IsShared() {
		holds, err := c.write([]any{id, length.Milliseconds(), fmt.Sprint(rest.Milliseconds(), " ", body)})
		if err == nil && len(holds) == 1 {
			e, isWritten = parseEntry(id, holds[0])
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if isWritten {
		c.record.Learn(e, c.Now()) // unless a heartbeat has read it by now
	} else {
		e = c.record.Propose(id, length, body, c.Now())
	}
	c.compile()
	return e, nil
}

// idField is the ID as lines of the log have it, "" for none.
func (t Target) idField() zap.Field {
	if t.Key == nil {
		return zap.String("key_id", "")
	}
	return zap.String("key_id", t.Key.Short())
}

// log writes the one line about a change.
func (c *Control) log(ch Change, length time.Duration) {
	what, fields := "enforcement", []zap.Field{zap.String("zone", ch.Zone)}
	switch {
	case ch.Key != nil:
		what = "override"
		fields = append(fields, ch.idField())
	case ch.Zone == "":
		fields = []zap.Field{zap.Bool("all", true)}
	}
	switch {
	case ch.Share != nil:
		fields = append(fields, zap.Float64("share", *ch.Share), zap.Duration("for", length))
	case ch.Limit != "":
		fields = append(fields, zap.String("limit", ch.Limit), zap.Duration("for", length))
	default:
		fields = append(fields, zap.Bool("removed", true))
	}
	c.Logger.Info("an operator has changed a rate limit at run time",
		append(fields, zap.String("what", what), zap.String("by", ch.Who), zap.String("note", ch.Note))...)
}

// wait waits until every node has applied entries, or what has taken their places.
func (c *Control) wait(ctx context.Context, entries []Entry, began int64) Outcome {
	c.mu.Lock()
	c.waiting++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
	}()
	var o Outcome
	c.awaitBeats(ctx, func() bool {
		o = c.outcome(entries)
		return c.listed >= max(began, c.settled) && o.Applied == o.Nodes && o.Told == o.Regions && !o.Unsent
	})
	return o
}

// awaitBeats has a heartbeat come, and waits until what one brings is enough, or the context ends.
// The lock is held when enough is called.
func (c *Control) awaitBeats(ctx context.Context, enough func() bool) {
	c.Beat()
	for {
		c.mu.Lock()
		ends, beat := enough(), c.beats
		c.mu.Unlock()
		if ends {
			return
		}
		select {
		case <-beat:
		case <-ctx.Done():
			return
		}
	}
}

// outcome says who has applied entries, or what has taken their places, by the leases as they were
// listed last. The lock is held.
func (c *Control) outcome(entries []Entry) Outcome {
	o, since := Outcome{Shared: true}, int64(0)
	for _, e := range entries {
		o.Unsent = o.Unsent || c.record.IsPending(e.ID)
		if since = max(since, c.record.AppliedBy(e.ID)); c.record.AppliedBy(e.ID) == 0 {
			since = math.MaxInt64
		}
	}
	for _, l := range c.leases {
		o.Nodes++
		if l.Node == c.node || l.Applied >= since {
			o.Applied++
		} else {
			o.Missing = append(o.Missing, Missing{l.Name, l.Heard})
		}
	}
	for name, clock := range c.regions {
		if o.Regions++; clock >= since {
			o.Told++
		} else {
			o.Untold = append(o.Untold, name)
		}
	}
	slices.Sort(o.Untold)
	if o.Nodes == 0 { // Redis has never answered
		o.Nodes, o.Applied = 1, 1
	}
	return o
}
