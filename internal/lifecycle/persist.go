package lifecycle

import (
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

// CheckKeeper reports at load, and so to caddy validate, what would be found at the start.
func (c *Config) CheckKeeper() {
	if c.Keeper == nil {
		return
	}
	switch err := c.Keeper.Check(); {
	case errors.Is(err, ErrForeign):
		c.reportForeign(err)
	case err != nil:
		c.reportUnsaved(err)
		c.unsaved = true
	}
}

// reportForeign reports that what is kept there is not ours, and switches persist off.
func (c *Config) reportForeign(err error) {
	c.Logger.Error("persist is off: what is there is something else, which is left as it is; give persist the path of a file of its own",
		warning.Field(warning.NotRestored), zap.Stringer("persist", c.Keeper), zap.Error(err))
	c.Keeper = nil
}

// reportUnsaved reports that counters can't be saved. The first failure of a configuration that was
// found at load is not reported again.
func (c *Config) reportUnsaved(err error) {
	if c.unsaved {
		c.unsaved = false
		return
	}
	c.Logger.Error("counters can't be saved, so zones that don't use redis start at zero with the next process; create the directory, or let the user that runs Caddy write there",
		warning.Field(warning.NotSaved), zap.Stringer("persist", c.Keeper), zap.Error(err))
}

// restore restores the snapshot of an earlier process, and writes it back, so that it shows at the
// start that this can be done. What can't be read costs no more than the counts in it.
func (c *Config) restore() {
	log := c.Logger.With(zap.Stringer("persist", c.Keeper))
	s, err := c.Keeper.Load()
	switch {
	case errors.Is(err, ErrForeign):
		c.reportForeign(err)
		c.Control().Keep(nil, nil)
		return
	case err != nil:
		log.Warn("saved counters could not be read, so counting starts at zero", warning.Field(warning.NotRestored), zap.Error(err))
	case s.IsFromFuture(clock.Now()):
		log.Warn("counters were saved at a time in the future, so the clock was set back since; counting starts at zero", warning.Field(warning.NotRestored), zap.Time("saved", time.Unix(0, s.At)))
	case len(s.Limits) > 0:
		c.restoreLimits(s, log)
	}
	c.save()
	var longest time.Duration
	for l := range c.counted {
		longest = max(longest, l.Rate.Window, l.Settings.Ban.For)
	}
	c.Keeper.Clean(longest)
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

// save writes the counters of the zones that don't sync. Those that do are in Redis.
func (c *Config) save() {
	s := Snapshot{At: clock.Now(), Limits: make(map[string]table.SavedCounts), Resets: make(map[string]reset.Set)}
	c.saved = c.spent()
	for local := range c.localCounters() {
		counts, under := local.Save()
		if s.Limits[local.Key] = counts; under != nil {
			s.Resets[local.Key] = *under
		}
	}
	for b := range c.localBans() {
		s.Limits[b.Key] = b.Save()
	}
	if err := c.Keeper.Store(s); err != nil {
		c.reportUnsaved(err)
	}
}

// Close saves again if something was admitted since Stop: the server's requests may end after it.
func (c *Config) Close() {
	if c.ending && c.spent() != c.saved {
		c.save()
	}
}

// spent changes with each request that the zones that don't sync admit, and each ban that begins.
func (c *Config) spent() (n int64) {
	for local := range c.localCounters() {
		n += local.Totals().Own
	}
	for b := range c.localBans() {
		n += int64(len(b.Save()))
	}
	return n
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
		c.Control().Keep(nil, nil)
		return
	}
	var earlier []byte
	if restore {
		var err error
		if earlier, err = c.Keeper.LoadControl(); err != nil {
			c.Logger.Warn("what was changed at run time could not be read; it is forgotten unless redis has it",
				warning.Field(warning.NotRestored), zap.Stringer("persist", c.Keeper), zap.Error(err))
		}
	}
	c.Control().Keep(earlier, c.Keeper.StoreControl)
}

// awaitControl waits until the control record is saved, for a moment at most: its goroutine would
// end with the process.
func (c *Config) awaitControl() {
	ctx, cancel := context.WithTimeout(context.Background(), control.WaitFor)
	defer cancel()
	c.Control().AwaitSaved(ctx)
}
