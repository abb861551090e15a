package control

import (
	"context"
	"encoding/json"
	"errors"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// saved is a copy of the record over a restart.
type saved struct {
	// Store names the Redis and the namespace: the record of another one is not restored.
	Store string `json:"store"`
	// At is when it was saved, and AnsweredAt when Redis had answered last, 0 never, by the clock
	// of the node, in nanoseconds.
	At         int64        `json:"at"`
	AnsweredAt int64        `json:"answered_at"`
	Entries    []savedEntry `json:"entries"`
}

type savedEntry struct {
	ID    string `json:"id"`
	Value string `json:"value"`
	// Left is how long the entry may still be active, in nanoseconds.
	Left    int64 `json:"left"`
	Pending bool  `json:"pending,omitempty"`
}

// save returns what outlives the process.
func (r *Record) save(now int64) (s saved) {
	s.At, s.AnsweredAt = now, r.answeredAt
	for _, c := range r.copies {
		s.Entries = append(s.Entries, savedEntry{c.ID, c.value(), c.ends - now, c.pending})
	}
	return s
}

// restore merges what another process has saved with what has happened since.
func (r *Record) restore(s saved, now int64) {
	asleep := max(0, now-s.At)
	for _, was := range s.Entries {
		e, ok := parseEntry(was.ID, was.Value)
		if !ok {
			continue
		}
		if c := r.Learn(e, now); c != nil {
			c.ends, c.pending = now+min(was.Left-asleep, lengthOf(e)), was.Pending
		}
	}
	if r.answeredAt == 0 && s.AnsweredAt > 0 {
		r.answeredAt = min(s.AnsweredAt, now)
	}
	r.read = false
}

// A keeper is where the record is saved. The lock of its Control guards it.
type keeper struct {
	write func([]byte) error
	saved int64 // changes of the record that it has
	fails bool  // it was given some last, and could not save them
}

var (
	errDamaged = errors.New("it is damaged")
	errOther   = errors.New("it is of another redis or namespace")
)

// Keep restores what an earlier process has saved, nil for nothing, and saves each change from now
// on by write, nil for not at all. It doesn't wait for write. The error says why nothing is
// restored.
func (c *Control) Keep(earlier []byte, write func([]byte) error) (err error) {
	c.mu.Lock()
	last := c.keep
	if c.keep = nil; write != nil {
		c.keep = &keeper{write: write}
		if len(earlier) == 0 && len(c.record.copies) == 0 && (last == nil || last.saved == c.record.changes) {
			c.keep.saved = c.record.changes // nothing is saved and there is nothing to save
		}
	}
	var s saved
	switch {
	case len(earlier) == 0:
	case json.Unmarshal(earlier, &s) != nil:
		err = errDamaged
	case s.Store == c.Store:
		c.record.restore(s, c.Now())
		c.compile()
	case len(s.Entries) > 0:
		err = errOther
	}
	c.mu.Unlock()
	c.applyResets()
	c.save()
	return err
}

// Inherit merges what another Control of the same Redis and namespace has, if it is one.
func (c *Control) Inherit(from *Control) {
	if from == c || from.Store != c.Store {
		return
	}
	from.mu.Lock()
	s := from.record.save(c.Now())
	from.mu.Unlock()
	c.mu.Lock()
	c.record.restore(s, c.Now())
	c.compile()
	c.mu.Unlock()
	c.applyResets()
}

// save has the record be saved if it has changed, by a goroutine of its own, one at a time: a disk
// or a storage that hangs must delay no heartbeat, or the other nodes take this one for gone.
func (c *Control) save() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.keep; c.saving == nil && k != nil && k.saved != c.record.changes {
		c.saving = make(chan struct{})
		go c.saveAll(c.saving)
	}
}

// saveAll saves the newest record until it is saved, or can't be: then the next Tick tries again.
// That it can't is logged once.
func (c *Control) saveAll(saving chan struct{}) {
	defer close(saving)
	var failed *keeper
	for {
		c.mu.Lock()
		k, changes := c.keep, c.record.changes
		if k == nil || k == failed || k.saved == changes {
			c.saving = nil
			c.mu.Unlock()
			return
		}
		s := c.record.save(c.Now())
		c.mu.Unlock()
		s.Store = c.Store
		b, err := json.Marshal(s)
		if err == nil {
			err = k.write(b)
		}
		c.mu.Lock()
		known := k.fails
		if k.fails = err != nil; k.fails {
			failed = k
		} else {
			k.saved = changes
		}
		c.mu.Unlock()
		if err != nil && !known {
			c.Logger.Error("what was changed at run time can't be saved, and is lost with this process unless redis has it; it is tried again",
				warning.Field(warning.NotSaved), zap.Error(err))
		}
	}
}

// AwaitSaved waits until what has changed is saved, or can't be. It doesn't wait longer than the
// context.
func (c *Control) AwaitSaved(ctx context.Context) {
	c.save()
	c.mu.Lock()
	saving := c.saving
	c.mu.Unlock()
	if saving == nil {
		return
	}
	select {
	case <-saving:
	case <-ctx.Done():
	}
}
