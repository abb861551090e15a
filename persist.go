package ratelimit

import (
	"encoding/gob"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/table"
)

// saved is the file that keeps counters over a restart: what each limit of the zones that don't sync has counted.
// It holds hashes of keys, no keys.
type saved struct {
	Version int
	Limits  map[string]table.Saved
}

const savedVersion = 1

// save writes the counters of the zones that don't sync. Those that do are in Redis.
func (a *App) save() {
	s := saved{savedVersion, make(map[string]table.Saved)}
	for i := range a.limits {
		if l := &a.limits[i]; l.settings.syncRate < 0 || a.shared == nil {
			s.Limits[l.key] = l.counters.save()
		}
	}
	if err := writeSaved(a.Persist, s); err != nil {
		a.logger.Error("counters could not be saved, and start anew with the next process", codeField(codeNotSaved), zap.String("file", a.Persist), zap.Error(err))
	}
}

// writeSaved replaces the file in one step, so that a crash leaves the old one or the new one.
func writeSaved(path string, s saved) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone if all went well
	if err := gob.NewEncoder(f).Encode(s); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// resume takes up what an earlier process saved. A file that is missing or can't be read costs no more than those counts.
func (a *App) resume() {
	f, err := os.Open(a.Persist)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s saved
	if err == nil {
		defer f.Close()
		err = gob.NewDecoder(f).Decode(&s)
	}
	if err == nil && s.Version != savedVersion {
		err = errors.New("it was written by another version")
	}
	if err != nil {
		a.logger.Warn("saved counters could not be read; they start anew", codeField(codeNotResumed), zap.String("file", a.Persist), zap.Error(err))
		return
	}
	for i := range a.limits {
		if l := &a.limits[i]; s.Limits[l.key] != nil {
			l.counters.resume(&l.settings, l.rate, s.Limits[l.key])
			delete(s.Limits, l.key)
		}
	}
}
