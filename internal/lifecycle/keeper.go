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
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// InStorage is the value of persist for Caddy's storage.
const InStorage = "storage"

// switches are the words of options that are on or off, and what they mean for persist.
var switches = map[string]string{"on": InStorage, "off": ""}

const (
	// storageDir is where the nodes have theirs in Caddy's storage, which they may share.
	storageDir = "rate_limit"
	// besideIt is what the name of the control record ends in.
	besideIt = ".control"
	// controlMark begins a saved control record. Its version and an end of line follow.
	controlMark = "tide control "
	controlLine = controlMark + "1\n"

	// patience is how long a start and a change at run time wait for a disk or a storage.
	patience = 5 * time.Second
	// retention is how long what a node has saved stays in Caddy's storage if it doesn't come back,
	// as a container that is gone for good. It is counted from the last write, and a control record
	// is written only when it changes.
	retention = 365 * 24 * time.Hour
)

var errHangs = errors.New("the disk or the storage does not answer")

// A Keeper keeps a snapshot over a restart, and the control record beside it: in Caddy's storage,
// or in the directory of a file. What it writes replaces what was there in one step.
type Keeper struct {
	storage certmagic.Storage
	path    string // of the file, "" in Caddy's storage
	// turn holds an element while a call is under way, and Keepers of one place share it: a write
	// that nobody waits for any more must not replace what was written after it.
	turn chan struct{}
}

// turns are those of the process, by the name of the place.
var turns sync.Map

// CheckPersist reports a word that was meant for something else than a file of that name.
func CheckPersist(persist string) error {
	for _, word := range []string{"on", "off", "yes", "no", "true", "false", "none", "disabled", "enabled"} {
		if _, ok := switches[persist]; !ok && strings.EqualFold(persist, word) {
			return fmt.Errorf("write on or off in place of %q; a file of that name is ./%s", persist, persist)
		}
	}
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
		where = ""
	default:
		where = filepath.Clean(where)
		storage = &certmagic.FileStorage{Path: filepath.Dir(where)}
	}
	name := fmt.Sprintf("%T", storage)
	if s, ok := storage.(fmt.Stringer); ok {
		name = s.String()
	}
	turn, _ := turns.LoadOrStore(name, make(chan struct{}, 1))
	return &Keeper{storage, where, turn.(chan struct{})}, nil
}

func (k *Keeper) String() string {
	if k.path == "" {
		return "Caddy's storage"
	}
	return "the file " + k.path
}

// Load reads the snapshot; it is empty where there is none. It returns ErrForeign for something
// else in its place.
func (k *Keeper) Load(ctx context.Context) (Snapshot, error) {
	b, err := k.load(ctx, "")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Snapshot{}, nil
	case err != nil:
		return Snapshot{}, err
	}
	return decodeSnapshot(b)
}

// Store replaces the snapshot.
func (k *Keeper) Store(ctx context.Context, s Snapshot) error { return k.store(ctx, "", s.encode()) }

// LoadControl reads the control record, nil where there is none.
func (k *Keeper) LoadControl(ctx context.Context) ([]byte, error) {
	b, err := k.load(ctx, besideIt)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(b, []byte(controlLine))
	if !ok {
		return nil, errVersion
	}
	return rest, nil
}

// StoreControl replaces the control record.
func (k *Keeper) StoreControl(b []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return k.store(ctx, besideIt, append([]byte(controlLine), b...))
}

func (k *Keeper) load(ctx context.Context, suffix string) ([]byte, error) {
	return k.within(ctx, func() ([]byte, error) {
		key, err := k.key(suffix)
		if err != nil {
			return nil, err
		}
		return k.storage.Load(ctx, key)
	})
}

func (k *Keeper) store(ctx context.Context, suffix string, b []byte) error {
	_, err := k.within(ctx, func() ([]byte, error) {
		key, err := k.key(suffix)
		if err != nil {
			return nil, err
		}
		return nil, k.storage.Store(ctx, key, b)
	})
	return err
}

// Clean removes from Caddy's storage what nodes have left there that are gone for good. What can't
// be removed stays until the next time.
func (k *Keeper) Clean(ctx context.Context) {
	if k.path != "" {
		return
	}
	_, _ = k.within(ctx, func() ([]byte, error) {
		all, err := k.storage.List(ctx, storageDir, false)
		for _, key := range all {
			if info, err := k.storage.Stat(ctx, key); err == nil && info.IsTerminal && time.Since(info.Modified) > retention {
				_ = k.storage.Delete(ctx, key)
			}
		}
		return nil, err
	})
}

// within calls f in a goroutine of its own, which may outlive the call: nobody waits longer than
// the context for a file on a network file system or a storage.
func (k *Keeper) within(ctx context.Context, f func() ([]byte, error)) ([]byte, error) {
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, errHangs
	}
	type result struct {
		b   []byte
		err error
	}
	results := make(chan result, 1)
	go func() {
		b, err := f()
		<-k.turn
		results <- result{b, err}
	}()
	select {
	case r := <-results:
		return r.b, r.err
	case <-ctx.Done():
		return nil, errHangs
	}
}

// key returns the name in the storage. In Caddy's storage it is the number that Caddy gives the
// node; a file may be something else, which is left as it is.
func (k *Keeper) key(suffix string) (string, error) {
	if k.path != "" {
		return filepath.Base(k.path) + suffix, errors.Join(checkFile(k.path, mark), checkFile(k.path+besideIt, controlMark))
	}
	id, err := caddy.InstanceID()
	if err != nil {
		return "", fmt.Errorf("finding out which node this is: %w; let the user that runs Caddy write its data directory, %s", err, caddy.AppDataDir())
	}
	return storageDir + "/" + id.String() + suffix, nil
}

// checkFile returns ErrForeign for a file that doesn't begin with a mark. It reads no more of it,
// and doesn't wait for a pipe.
func checkFile(path, mark string) error {
	foreign := fmt.Errorf("%s: %w", path, ErrForeign)
	info, err := os.Stat(path)
	if err != nil {
		return nil // to create or read it says more
	}
	if !info.Mode().IsRegular() {
		return foreign
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, len(mark))
	if n, _ := io.ReadFull(f, head); !isMarked(head[:n], mark) {
		return foreign
	}
	return nil
}
