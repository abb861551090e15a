package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// persistStorage is the value of persist for Caddy's storage.
const persistStorage = "storage"

// A keeper is where counters are kept over a restart.
type keeper interface {
	// load returns fs.ErrNotExist where nothing is kept.
	load() ([]byte, error)
	store([]byte) error
	fmt.Stringer
}

// newKeeper returns nil where nothing is to be kept. It does no I/O.
func newKeeper(ctx caddy.Context, persist string) (keeper, error) {
	where, err := caddy.NewReplacer().ReplaceOrErr(persist, true, true)
	switch {
	case err != nil:
		return nil, fmt.Errorf("persist: %w", err)
	case where == "":
		return nil, nil
	case where == persistStorage:
		return inStorage{ctx.Storage()}, nil
	}
	return inFile(where), nil
}

// inFile keeps counters in a file.
type inFile string

func (path inFile) String() string { return "the file " + string(path) }

// load reads no more than the beginning of what is not ours, and doesn't wait for a pipe.
func (path inFile) load() ([]byte, error) {
	f, head, err := path.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rest, err := io.ReadAll(f)
	return append(head, rest...), err
}

// open opens the file if it is ours, and reads its beginning.
func (path inFile) open() (f *os.File, head []byte, err error) {
	info, err := os.Stat(string(path))
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errForeign
	}
	if f, err = os.Open(string(path)); err != nil {
		return nil, nil, err
	}
	head = make([]byte, min(info.Size(), int64(len(savedLine))))
	if _, err = io.ReadFull(f, head); err == nil && !isSaved(head) {
		err = errForeign
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, head, nil
}

// check finds what can be known before the configuration starts: something else in the place of the
// file, or no directory for it. It returns nil where the file may well be read and written.
func (path inFile) check() error {
	f, _, err := path.open()
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, errForeign):
		return err
	}
	if _, err := os.Stat(filepath.Dir(string(path))); errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// checkKeeper reports at load, and so to caddy validate, what would be found at the start.
func (a *App) checkKeeper() {
	path, ok := a.keeper.(inFile)
	if !ok {
		return
	}
	err := path.check()
	switch {
	case errors.Is(err, errForeign):
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

// store replaces the file in one step, so that a crash leaves the old one or the new one.
func (path inFile) store(b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(string(path)), filepath.Base(string(path))+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone if all went well
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), string(path))
}

// inStorage keeps counters in Caddy's storage, which several nodes may share: each has its own there, by the number that Caddy gives it.
type inStorage struct{ certmagic.Storage }

const (
	storageDir = "rate_limit"
	// storageTime bounds the wait for a storage that is on another machine.
	storageTime = 5 * time.Second
	// forgotten is how long what a node has left in the storage stays there at least, if it doesn't come back.
	forgotten = 7 * 24 * time.Hour
)

func (s inStorage) String() string { return "Caddy's storage" }

func (s inStorage) key() (string, error) {
	id, err := caddy.InstanceID()
	if err != nil {
		return "", fmt.Errorf("finding out which node this is: %w; let the user that runs Caddy write its data directory, %s", err, caddy.AppDataDir())
	}
	return storageDir + "/" + id.String(), nil
}

func (s inStorage) load() ([]byte, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storageTime)
	defer cancel()
	return s.Storage.Load(ctx, key)
}

func (s inStorage) store(b []byte) error {
	key, err := s.key()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storageTime)
	defer cancel()
	return s.Storage.Store(ctx, key, b)
}

// clean removes what nodes have left that are gone for good, as containers are.
func (s inStorage) clean(longest time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), storageTime)
	defer cancel()
	all, err := s.List(ctx, storageDir, false)
	if err != nil {
		return // there is none, or next time
	}
	for _, key := range all {
		if info, err := s.Stat(ctx, key); err == nil && info.IsTerminal && time.Since(info.Modified) > max(forgotten, 2*longest) {
			_ = s.Delete(ctx, key)
		}
	}
}

// resume takes up what an earlier process saved, and writes it back, so that it shows at the start that this can be done. What can't be read costs
// no more than the counts in it.
func (a *App) resume() {
	log := a.logger.With(zap.Stringer("in", a.keeper))
	s, err := a.load()
	switch {
	case errors.Is(err, errForeign):
		a.reportForeign(err)
		return
	case err != nil:
		log.Warn("saved counters could not be read; they start anew", warning.Field(warning.NotRestored), zap.Error(err))
	case s.at > clock.Now()+int64(fromAClockSetBack):
		log.Warn("counters were saved at a time that is still to come, so the clock was set back since; they start anew", warning.Field(warning.NotRestored), zap.Time("saved", time.Unix(0, s.at)))
	case len(s.limits) > 0:
		a.takeUp(s, log)
	}
	a.save()
	if s, ok := a.keeper.(inStorage); ok {
		var longest time.Duration
		for i := range a.limits {
			longest = max(longest, a.limits[i].rate.window)
		}
		s.clean(longest)
	}
}

// load reads what is kept, nothing where nothing is.
func (a *App) load() (saved, error) {
	b, err := a.keeper.load()
	if errors.Is(err, fs.ErrNotExist) {
		return saved{}, nil
	}
	if err != nil {
		return saved{}, err
	}
	return decodeSaved(b)
}

// takeUp gives the limits what was saved of them.
func (a *App) takeUp(s saved, log *zap.Logger) {
	had, left := 0, 0
	for i := range a.limits {
		l := &a.limits[i]
		if keys := s.limits[l.key]; keys != nil {
			had += len(keys)
			left += l.counters.resume(&l.settings, l.rate, keys)
			delete(s.limits, l.key) // a zone that several handlers share
		}
	}
	log.Info("saved counters are taken up; those that are too old to matter are not",
		zap.Int("keys", left), zap.Int("too_old", had-left), zap.Int("limits_that_are_gone", len(s.limits)), zap.Time("saved", time.Unix(0, s.at)))
}

// save writes the counters of the zones that don't sync. Those that do are in Redis.
func (a *App) save() {
	s := saved{clock.Now(), make(map[string]table.Saved)}
	a.kept = 0
	for l := range a.localLimits {
		if _, shared := s.limits[l.key]; !shared {
			s.limits[l.key] = l.counters.save()
			a.kept += l.counters.stats().Own
		}
	}
	if err := a.keeper.store(encodeSaved(s)); err != nil {
		a.reportUnsaved(err)
	}
}

// saveLast saves again if something was admitted since Stop: the server's requests may end after it.
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
		if l := &a.limits[i]; (l.settings.syncRate < 0 || a.shared == nil) && !yield(l) {
			return
		}
	}
}
