package control

import (
	"encoding/json"

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
		if have := r.copies[e.ID]; !ok || have != nil && !e.wins(have.Entry) {
			continue
		}
		c := r.put(e, now)
		c.ends, c.missing, c.pending = now+min(was.Left-asleep, lengthOf(e)), was.Pending, was.Pending
	}
	if r.answeredAt == 0 && s.AnsweredAt > 0 {
		r.answeredAt = min(s.AnsweredAt, now)
	}
	r.wants, r.all = true, true
}

// Keep restores what an earlier process has saved, nil for nothing, and saves each change from now
// on by write.
func (c *Control) Keep(earlier []byte, write func([]byte) error) {
	c.mu.Lock()
	c.keep = write
	var s saved
	if json.Unmarshal(earlier, &s) == nil && s.Store == c.Store {
		c.record.restore(s, c.Now())
		c.compile()
	}
	c.mu.Unlock()
	c.applyResets()
	c.save()
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

// save saves the record if it has changed.
func (c *Control) save() {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.mu.Lock()
	keep, changes := c.keep, c.record.changes
	if keep == nil || changes == c.saved {
		c.mu.Unlock()
		return
	}
	s := c.record.save(c.Now())
	c.saved = changes
	c.mu.Unlock()
	s.Store = c.Store
	b, err := json.Marshal(s)
	if err == nil {
		err = keep(b)
	}
	if err != nil {
		c.Logger.Error("what was changed at run time can't be saved, and is lost with this process unless redis has it",
			warning.Field(warning.NotSaved), zap.Error(err))
	}
}
