package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// InStorage is the value of persist for Caddy's storage.
const InStorage = "storage"

// switches are the words of options that are on or off, and what they mean for persist.
var switches = map[string]string{"on": InStorage, "off": ""}

// A Keeper keeps a snapshot over a restart, and the control record beside it.
type Keeper struct {
	place
	control place
}

const (
	// besideIt is what the name of the control record's place ends in.
	besideIt = ".control"
	// controlMark begins a saved control record. Its version and an end of line follow.
	controlMark = "tide control "
	controlLine = controlMark + "1\n"
)

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

// CheckPersist reports a word that was meant for something else than a file of that name.
func CheckPersist(persist string) error {
	near := spelling.Nearest(persist, []string{InStorage})
	if near != "" && persist != near && !strings.ContainsAny(persist, "./") {
		return fmt.Errorf("there is no %q; did you mean %s? A file of that name is ./%s", persist, InStorage, persist)
	}
	return nil
}

// OpenKeeper returns the keeper for the option persist: a path, or on or InStorage for Caddy's
// storage. It returns nil where nothing is to be kept, and does no I/O.
func OpenKeeper(persist string, storage certmagic.Storage) (*Keeper, error) {
	where, err := caddy.NewReplacer().ReplaceOrErr(persist, true, true)
	if means, ok := switches[where]; ok {
		where = means
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("persist: %w", err)
	case where == "":
		return nil, nil
	case CheckPersist(where) != nil:
		return nil, fmt.Errorf("persist: %w", CheckPersist(where))
	case where == InStorage:
		name := fmt.Sprintf("%T", storage)
		if s, ok := storage.(fmt.Stringer); ok {
			name = s.String()
		}
		return &Keeper{bound(inStorage{storage, ""}, name), bound(inStorage{storage, besideIt}, name)}, nil
	}
	name := filepath.Dir(where)
	return &Keeper{bound(inFile{where, mark}, name), bound(inFile{where + besideIt, controlMark}, name)}, nil
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
	return decodeSnapshot(b)
}

// Store replaces the snapshot.
func (k *Keeper) Store(s Snapshot) error { return k.write(s.encode()) }

// LoadControl reads the control record, nil where there is none, or none of this version.
func (k *Keeper) LoadControl() ([]byte, error) {
	b, err := k.control.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	rest, _ := bytes.CutPrefix(b, []byte(controlLine))
	if len(rest) == len(b) {
		return nil, err
	}
	return rest, err
}

// StoreControl replaces the control record.
func (k *Keeper) StoreControl(b []byte) error {
	if err := k.control.Check(); err != nil {
		return err
	}
	return k.control.write(append([]byte(controlLine), b...))
}

// inFile keeps something in a file, which begins with a mark.
type inFile struct{ path, mark string }

func (at inFile) String() string { return "the file " + at.path }

// read reads no more than the beginning of a foreign file, and doesn't wait for a pipe.
func (at inFile) read() ([]byte, error) {
	f, head, err := at.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rest, err := io.ReadAll(f)
	return append(head, rest...), err
}

// open opens the file if it is a snapshot, and reads its beginning.
func (at inFile) open() (f *os.File, head []byte, err error) {
	info, err := os.Stat(at.path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, ErrForeign
	}
	if f, err = os.Open(at.path); err != nil {
		return nil, nil, err
	}
	head = make([]byte, min(info.Size(), int64(len(at.mark))))
	if _, err = io.ReadFull(f, head); err == nil && !isMarked(head, at.mark) {
		err = ErrForeign
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, head, nil
}

// Check finds something else in the place of the file, or no directory for it.
func (at inFile) Check() error {
	f, _, err := at.open()
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, ErrForeign):
		return err
	}
	if _, err := os.Stat(filepath.Dir(at.path)); errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// write replaces the file in one step, so that a crash leaves the old one or the new one.
func (at inFile) write(b []byte) error {
	// mode 0600
	f, err := os.CreateTemp(filepath.Dir(at.path), filepath.Base(at.path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone if all went well
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), at.path)
}

// Clean does nothing: a file is one node's.
func (inFile) Clean(time.Duration) {}

// inStorage keeps a snapshot in Caddy's storage, which several nodes may share: each has its own
// there, by the number that Caddy gives it.
type inStorage struct {
	certmagic.Storage
	suffix string // of the name
}

const (
	storageDir = "rate_limit"
	// storageTimeout bounds the wait for a storage that is on another machine.
	storageTimeout = 5 * time.Second
	// retention is how long the snapshot of a node that doesn't come back stays in the storage, at
	// least.
	retention = 7 * 24 * time.Hour
	// controlRetention is the same for a control record, which is saved only when it changes.
	controlRetention = 365 * 24 * time.Hour
)

func (inStorage) String() string { return "Caddy's storage" }

func (s inStorage) key() (string, error) {
	id, err := caddy.InstanceID()
	if err != nil {
		return "", fmt.Errorf("finding out which node this is: %w; let the user that runs Caddy write its data directory, %s", err, caddy.AppDataDir())
	}
	return storageDir + "/" + id.String() + s.suffix, nil
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
		least := retention
		if strings.HasSuffix(key, besideIt) {
			least = controlRetention
		}
		if info, err := s.Stat(ctx, key); err == nil && info.IsTerminal && time.Since(info.Modified) > max(least, 2*longest) {
			_ = s.Delete(ctx, key)
		}
	}
}
