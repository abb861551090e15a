package snapshot

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
)

// InStorage is the value of persist for Caddy's storage.
const InStorage = "storage"

// A Keeper keeps a snapshot over a restart.
type Keeper struct{ place }

// place is where a Keeper keeps its snapshot.
type place interface {
	fmt.Stringer
	// read returns fs.ErrNotExist where nothing is kept.
	read() ([]byte, error)
	write([]byte) error
	// Check finds what can be known before the first snapshot is loaded: ErrForeign, or what makes
	// a place unfit. It returns nil where the place may well be read and written.
	Check() error
	// Clean removes the snapshots of nodes that are gone for good, as containers are, where several
	// share the place. longest is the longest window of all limits.
	Clean(longest time.Duration)
}

// Open returns the keeper for the option persist: a path, or InStorage for Caddy's storage. It
// returns nil where nothing is to be kept, and does no I/O.
func Open(persist string, storage certmagic.Storage) (*Keeper, error) {
	where, err := caddy.NewReplacer().ReplaceOrErr(persist, true, true)
	switch {
	case err != nil:
		return nil, fmt.Errorf("persist: %w", err)
	case where == "":
		return nil, nil
	case where == InStorage:
		return &Keeper{inStorage{storage}}, nil
	}
	return &Keeper{inFile(where)}, nil
}

// Load reads the snapshot; it is empty where there is none. It returns ErrForeign for something
// else in its place.
func (k *Keeper) Load() (Snapshot, error) {
	b, err := k.read()
	if errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, nil
	}
	if err != nil {
		return Snapshot{}, err
	}
	return decode(b)
}

// Store replaces the snapshot.
func (k *Keeper) Store(s Snapshot) error { return k.write(s.encode()) }

// inFile keeps a snapshot in a file.
type inFile string

func (path inFile) String() string { return "the file " + string(path) }

// read reads no more than the beginning of a foreign file, and doesn't wait for a pipe.
func (path inFile) read() ([]byte, error) {
	f, head, err := path.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rest, err := io.ReadAll(f)
	return append(head, rest...), err
}

// open opens the file if it is a snapshot, and reads its beginning.
func (path inFile) open() (f *os.File, head []byte, err error) {
	info, err := os.Stat(string(path))
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, ErrForeign
	}
	if f, err = os.Open(string(path)); err != nil {
		return nil, nil, err
	}
	head = make([]byte, min(info.Size(), int64(len(firstLine))))
	if _, err = io.ReadFull(f, head); err == nil && !isSnapshot(head) {
		err = ErrForeign
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, head, nil
}

// Check finds something else in the place of the file, or no directory for it.
func (path inFile) Check() error {
	f, _, err := path.open()
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, ErrForeign):
		return err
	}
	if _, err := os.Stat(filepath.Dir(string(path))); errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// write replaces the file in one step, so that a crash leaves the old one or the new one.
func (path inFile) write(b []byte) error {
	// mode 0600
	f, err := os.CreateTemp(filepath.Dir(string(path)), filepath.Base(string(path))+".*")
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

// Clean does nothing: a file is one node's.
func (inFile) Clean(time.Duration) {}

// inStorage keeps a snapshot in Caddy's storage, which several nodes may share: each has its own
// there, by the number that Caddy gives it.
type inStorage struct{ certmagic.Storage }

const (
	storageDir = "rate_limit"
	// storageTimeout bounds the wait for a storage that is on another machine.
	storageTimeout = 5 * time.Second
	// retention is how long the snapshot of a node that doesn't come back stays in the storage, at
	// least.
	retention = 7 * 24 * time.Hour
)

func (inStorage) String() string { return "Caddy's storage" }

func (inStorage) key() (string, error) {
	id, err := caddy.InstanceID()
	if err != nil {
		return "", fmt.Errorf("finding out which node this is: %w; let the user that runs Caddy write its data directory, %s", err, caddy.AppDataDir())
	}
	return storageDir + "/" + id.String(), nil
}

func (s inStorage) read() ([]byte, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	return s.Load(ctx, key)
}

func (s inStorage) write(b []byte) error {
	key, err := s.key()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	return s.Store(ctx, key, b)
}

// Check returns nil: whether a storage can be used is not known without I/O.
func (inStorage) Check() error { return nil }

// Clean removes the snapshots that no node has written for long.
func (s inStorage) Clean(longest time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	all, err := s.List(ctx, storageDir, false)
	if err != nil {
		return // there is none, or next time
	}
	for _, key := range all {
		if info, err := s.Stat(ctx, key); err == nil && info.IsTerminal && time.Since(info.Modified) > max(retention, 2*longest) {
			_ = s.Delete(ctx, key)
		}
	}
}
