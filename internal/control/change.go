package control

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
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
// WaitFor at most.
func (c *Control) Change(ctx context.Context, ch Change) (Outcome, error) {
	began := c.Now()
	id := ch.name()
	body, length, err := c.prepare(ch)
	if err != nil {
		return Outcome{}, err
	}
	most := MaxEntries
	if ch.Zone == "" {
		most = 0 // a kill switch finds room always
	}
	if err := c.put(id, length, body, most); err != nil {
		return Outcome{}, err
	}
	c.log(ch, length)
	return c.conclude(ctx, began, id), nil
}

// ChangeAll makes many changes as one: all of them here and at once, or none where there is no room
// for them. They are for keys, and none takes anything back. Then it tells Redis, and waits as
// Change does.
func (c *Control) ChangeAll(ctx context.Context, all []Change) (Outcome, error) {
	began := c.Now()
	ids, bodies := make([]string, len(all)), make([]string, len(all))
	for i, ch := range all {
		text, err := json.Marshal(ch.Body)
		if err != nil {
			return Outcome{}, err
		}
		ids[i], bodies[i] = ch.name(), string(text)
	}
	c.mu.Lock()
	if !c.record.HasRoom(ids, MaxEntries) {
		c.mu.Unlock()
		return Outcome{}, ErrFull
	}
	for i, ch := range all {
		c.record.Propose(ids[i], ch.For, bodies[i], 0, c.Now())
	}
	c.compile()
	c.mu.Unlock()
	c.Logger.Info("an operator has changed a rate limit at run time", zap.String("what", "override"), zap.Int("changes", len(all)), zap.String("by", all[0].Who))
	return c.conclude(ctx, began, ids...), nil
}

// RemoveAll takes back what was said of many keys, as one change, and returns of how many of them
// something was said. It tells Redis and waits as Change does.
func (c *Control) RemoveAll(ctx context.Context, all []Change) (o Outcome, removed int, err error) {
	began := c.Now()
	var ids []string
	c.mu.Lock()
	for _, ch := range all {
		if _, ok := c.record.Get(ch.name(), c.Now()); ok {
			c.record.Propose(ch.name(), 0, "", 0, c.Now())
			ids = append(ids, ch.name())
		}
	}
	c.compile()
	c.mu.Unlock()
	if len(ids) == 0 {
		return o, 0, ErrNone
	}
	c.Logger.Info("an operator has changed a rate limit at run time", zap.String("what", "override"), zap.Int("changes", len(ids)), zap.Bool("removed", true), zap.String("by", all[0].Who))
	return c.conclude(ctx, began, ids...), len(ids), nil
}

// conclude waits until every node has applied the entries of these names, and they are saved,
// WaitFor at most for both.
func (c *Control) conclude(ctx context.Context, began int64, ids ...string) Outcome {
	ctx, cancel := context.WithTimeout(ctx, c.waitFor)
	defer cancel()
	c.save()
	o := Outcome{Nodes: 1, Applied: 1}
	if c.IsShared() {
		o = c.wait(ctx, ids, began)
	}
	c.AwaitSaved(ctx)
	return o
}

// prepare returns what the entry of a change says, and how long it lives.
func (c *Control) prepare(ch Change) (body string, length time.Duration, err error) {
	if ch.Body != (Body{}) {
		text, err := json.Marshal(ch.Body)
		return string(text), ch.For, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.record.Get(ch.name(), c.Now()); !ok {
		return "", 0, ErrNone
	}
	return "", 0, nil
}

// put writes an entry, to Redis if it can be had, and else here for it to be told later.
func (c *Control) put(id string, length time.Duration, body string, most int) error {
	if c.IsShared() {
		e, v, err := c.putThere(id, length, body, most)
		if err == nil || errors.Is(err, ErrFull) {
			if err == nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.record.Take(e, v, c.Now())
				c.compile()
			}
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.record.Propose(id, length, body, most, c.Now()); !ok {
		return ErrFull
	}
	c.compile()
	return nil
}

// putThere writes an entry to Redis.
func (c *Control) putThere(id string, length time.Duration, body string, most int) (Entry, Version, error) {
	c.mu.Lock()
	known, rest := c.record.known, c.record.Rest(id, c.Now())
	c.mu.Unlock()
	room := ""
	if most > 0 {
		room = strconv.Itoa(most)
	}
	holds, v, err := c.write(c.Client, c.Keys.Control(), []Entry{{ID: id}}, []any{known, room, id, length.Milliseconds(), rest.Milliseconds(), body})
	if err != nil {
		return Entry{}, v, err
	}
	if holds[0] == (Entry{}) {
		return Entry{}, v, ErrFull
	}
	return holds[0], v, nil
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

// wait waits until every node has applied the entries of these names.
func (c *Control) wait(ctx context.Context, ids []string, began int64) Outcome {
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
		o = c.outcome(ids)
		return c.listed >= began && o.Applied == o.Nodes && o.Told == o.Regions && !o.Unsent
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

// outcome says who has applied the entries of these names, by the leases as they were listed last.
// The lock is held.
func (c *Control) outcome(ids []string) Outcome {
	o, since := Outcome{Shared: true}, int64(0)
	for _, id := range ids {
		o.Unsent = o.Unsent || c.record.IsPending(id)
		if since = max(since, c.record.AppliedBy(id)); c.record.AppliedBy(id) == 0 {
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
