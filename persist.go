package ratelimit

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/snapshot"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// checkKeeper reports at load, and so to caddy validate, what would be found at the start.
func (a *App) checkKeeper() {
	if a.keeper == nil {
		return
	}
	switch err := a.keeper.Check(); {
	case errors.Is(err, snapshot.ErrForeign):
		a.reportForeign(err)
	case err != nil:
		a.reportUnsaved(err)
		a.unsaved = true
	}
}

// reportForeign reports that what is kept there is not ours, and switches persist off.
func (a *App) reportForeign(err error) {
	a.logger.Error("persist is off: what is there is something else, which is left as it is; give persist the path of a file of its own",
		warning.Field(warning.NotRestored), zap.Stringer("in", a.keeper), zap.Error(err))
	a.keeper = nil
}

// reportUnsaved reports that counters can't be saved. The first failure of a configuration that was
// found at load is not reported again.
func (a *App) reportUnsaved(err error) {
	if a.unsaved {
		a.unsaved = false
		return
	}
	a.logger.Error("counters can't be saved; those of zones that don't use redis start anew with the next process; create the directory, or let the user that runs Caddy write there",
		warning.Field(warning.NotSaved), zap.Stringer("in", a.keeper), zap.Error(err))
}

// restore restores the snapshot of an earlier process, and writes it back, so that it shows at the
// start that this can be done. What can't be read costs no more than the counts in it.
func (a *App) restore() {
	log := a.logger.With(zap.Stringer("in", a.keeper))
	s, err := a.keeper.Load()
	switch {
	case errors.Is(err, snapshot.ErrForeign):
		a.reportForeign(err)
		return
	case err != nil:
		log.Warn("saved counters could not be read; they start anew", warning.Field(warning.NotRestored), zap.Error(err))
	case s.IsFromFuture(clock.Now()):
		log.Warn("counters were saved at a time that is still to come, so the clock was set back since; they start anew", warning.Field(warning.NotRestored), zap.Time("saved", time.Unix(0, s.At)))
	case len(s.Limits) > 0:
		a.restoreLimits(s, log)
	}
	a.save()
	var longest time.Duration
	for i := range a.limits {
		longest = max(longest, a.limits[i].rate.Window)
	}
	a.keeper.Clean(longest)
}

// restoreLimits gives the limits what was saved of them.
func (a *App) restoreLimits(s snapshot.Snapshot, log *zap.Logger) {
	had, left := 0, 0
	for i := range a.limits {
		l := &a.limits[i]
		if keys := s.Limits[l.key]; keys != nil {
			had += len(keys)
			left += l.counters.resume(&l.settings, l.rate, keys)
			delete(s.Limits, l.key) // a zone that several handlers share
		}
	}
	log.Info("saved counters are taken up; those that are too old to matter are not",
		zap.Int("keys", left), zap.Int("too_old", had-left), zap.Int("limits_that_are_gone", len(s.Limits)), zap.Time("saved", time.Unix(0, s.At)))
}

// save writes the counters of the zones that don't sync. Those that do are in Redis.
func (a *App) save() {
	s := snapshot.Snapshot{At: clock.Now(), Limits: make(map[string]table.Saved)}
	a.kept = 0
	for l := range a.localLimits {
		if _, shared := s.Limits[l.key]; !shared {
			s.Limits[l.key] = l.counters.save()
			a.kept += l.counters.stats().Own
		}
	}
	if err := a.keeper.Store(s); err != nil {
		a.reportUnsaved(err)
	}
}

// saveLast saves again if something was admitted since Stop: the server's requests may end after
// it.
func (a *App) saveLast() {
	spent, seen := int64(0), make(map[counters]bool)
	for l := range a.localLimits {
		if !seen[l.counters] {
			seen[l.counters] = true
			spent += l.counters.stats().Own
		}
	}
	if spent != a.kept {
		a.save()
	}
}

// localLimits are those of the zones that don't sync.
func (a *App) localLimits(yield func(*appLimit) bool) {
	for i := range a.limits {
		if l := &a.limits[i]; (l.settings.SyncRate < 0 || a.shared == nil) && !yield(l) {
			return
		}
	}
}
