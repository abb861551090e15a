package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	// saveEvery is how often counters are saved, unless saveShare is more: so many times what it
	// took last.
	saveEvery = time.Minute
	saveShare = 20
	// endWait is how long the end of the last configuration waits for a disk or a storage.
	endWait = 2 * time.Second
)

// reportUnsaved reports that counters can't be saved, once for each reason.
func (c *Config) reportUnsaved(err error) {
	if err.Error() == c.unsaved {
		return
	}
	c.unsaved = err.Error()
	text, code := "counters can't be saved, so zones that don't use redis start at zero with the next process; let the user that runs Caddy write there", warning.NotSaved
	if errors.Is(err, ErrForeign) {
		text, code = "persist is off: what is there is something else, which is left as it is; give persist the path of a file of its own", warning.NotRestored
	}
	c.Logger.Error(text, warning.Field(code), zap.Stringer("persist", c.Keeper), zap.Error(err))
}

// restore restores the snapshot of an earlier process, and writes it back, so that it shows at the
// start that this can be done. What can't be read costs no more than the counts in it.
func (c *Config) restore() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	log := c.Logger.With(zap.Stringer("persist", c.Keeper))
	s, err := c.Keeper.Load(ctx)
	switch {
	case errors.Is(err, ErrForeign): // save reports it
	case err != nil:
		log.Warn("saved counters could not be read, so counting starts at zero", warning.Field(warning.NotRestored), zap.Error(err))
	case s.IsFromFuture(clock.Now()):
		log.Warn("counters were saved at a time in the future, so the clock was set back since; counting starts at zero", warning.Field(warning.NotRestored), zap.Time("saved", time.Unix(0, s.At)))
	case len(s.Limits) > 0:
		c.restoreLimits(s, log)
	}
	c.save(ctx)
	c.Keeper.Clean(ctx)
}

// restoreLimits gives the limits what was saved of them.
func (c *Config) restoreLimits(s Snapshot, log *zap.Logger) {
	had, left := 0, 0
	for l := range c.counted {
		if keys := s.Limits[l.Key]; keys != nil {
			had += len(keys)
			under := s.Resets[l.Key]
			left += l.Resume(keys, &under)
			delete(s.Limits, l.Key) // a zone that several handlers share
		}
	}
	for b := range c.localBans() {
		if keys := s.Limits[b.Key]; keys != nil {
			had += len(keys)
			left += b.Resume(keys)
			delete(s.Limits, b.Key)
		}
	}
	log.Info("saved counters were restored, except those that are too old to matter",
		zap.Int("keys", left), zap.Int("too_old", had-left), zap.Int("removed_limits", len(s.Limits)), zap.Time("saved", time.Unix(0, s.At)))
}

// beginSaving has what is counted be saved from now on, until endSaving.
func (c *Config) beginSaving() {
	if c.Keeper == nil {
		return
	}
	var ctx context.Context
	ctx, c.endSaving = context.WithCancel(context.Background())
	c.saver = make(chan struct{})
	go c.keepSaving(ctx)
}

// keepSaving saves what is new now and then, until ctx ends.
func (c *Config) keepSaving(ctx context.Context) {
	defer close(c.saver)
	for wait := saveEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began := time.Now()
		write, cancel := context.WithTimeout(ctx, saveEvery)
		c.saveNew(write)
		cancel()
		wait = max(saveEvery, saveShare*time.Since(began))
	}
}

// saveNew saves if something was counted since the last save.
func (c *Config) saveNew(ctx context.Context) {
	if c.spent() != c.saved {
		c.save(ctx)
	}
}

// save writes the counters of the zones that don't sync. Those that do are in Redis.
func (c *Config) save(ctx context.Context) {
	s := Snapshot{At: clock.Now(), Limits: make(map[string]table.SavedCounts), Resets: make(map[string]reset.Set)}
	spent := c.spent()
	for local := range c.localCounters() {
		counts, under := local.Save()
		if s.Limits[local.Key] = counts; under != nil {
			s.Resets[local.Key] = *under
		}
	}
	for b := range c.localBans() {
		s.Limits[b.Key] = b.Save()
	}
	switch err := c.Keeper.Store(ctx, s); {
	case err == nil:
		c.saved, c.unsaved = spent, ""
	case !errors.Is(ctx.Err(), context.Canceled):
		c.reportUnsaved(err)
	}
}

// Close saves, if it was the last configuration, what was counted until now: the server's requests
// may end after Stop. Then it waits until the control record is saved, whose goroutine would end
// with the process.
func (c *Config) Close() {
	if !c.ending {
		return
	}
	c.ending = false
	c.endSaving()
	<-c.saver
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	c.saveNew(ctx)
	c.Control().AwaitSaved(ctx)
}

// spent differs where what the zones that don't sync have counted does, or their bans.
type spent struct {
	counts uint64
	bans   int64
}

func (c *Config) spent() (s spent) {
	for local := range c.localCounters() {
		s.counts += local.Totals().Fingerprint
	}
	for b := range c.localBans() {
		for _, held := range b.Set.Save(clock.Now()) {
			s.bans += held.End()
		}
	}
	return s
}

// localBans returns those of the zones that don't sync.
func (c *Config) localBans() map[*limits.Bans]struct{} {
	all := make(map[*limits.Bans]struct{})
	for _, z := range c.zones {
		if b := z.Bans(); b != nil && (z.SyncRate < 0 || c.Redis == nil) {
			all[b] = struct{}{}
		}
	}
	return all
}

// localCounters returns those of the zones that don't sync.
func (c *Config) localCounters() map[*limits.Counters]struct{} {
	all := make(map[*limits.Counters]struct{})
	for l := range c.counted {
		if !l.IsSynced(c.Redis) {
			all[l.Counters] = struct{}{}
		}
	}
	return all
}

// Control returns the control record that the configuration goes by.
func (c *Config) Control() *control.Control { return limits.ControlOf(c.Redis, c.Namespace) }

// keepControl has the control record be saved with each change, and restores what an earlier
// process has saved.
func (c *Config) keepControl(restore bool) {
	if c.Keeper == nil {
		_ = c.Control().Keep(nil, nil)
		return
	}
	var earlier []byte
	var err error
	if restore {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		earlier, err = c.Keeper.LoadControl(ctx)
	}
	err = cmp.Or(err, c.Control().Keep(earlier, c.Keeper.StoreControl))
	if err != nil && !errors.Is(err, ErrForeign) { // save reports that
		c.Logger.Warn("what was changed at run time could not be read; it is forgotten unless redis has it",
			warning.Field(warning.NotRestored), zap.Stringer("persist", c.Keeper), zap.Error(err))
	}
}
