package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// hangingStorage is one that answers nobody from some time on, whatever its callers' patience.
type hangingStorage struct {
	certmagic.Storage
	name        string
	hangs, ends chan struct{}
}

func (s *hangingStorage) String() string { return s.name }

func (s *hangingStorage) wait() {
	select {
	case <-s.hangs:
		<-s.ends
	default:
	}
}

func (s *hangingStorage) Load(context.Context, string) ([]byte, error) {
	s.wait()
	return nil, fs.ErrNotExist
}

func (s *hangingStorage) Store(context.Context, string, []byte) error {
	s.wait()
	return nil
}

func (s *hangingStorage) List(context.Context, string, bool) ([]string, error) {
	s.wait()
	return nil, nil
}

// A storage that hangs, and doesn't go by contexts, holds up a start, a change and an end for
// seconds and a reload not at all.
func TestAStorageThatHangs(t *testing.T) {
	name := t.TempDir()
	t.Setenv("XDG_DATA_HOME", name)
	synctest.Test(t, func(t *testing.T) {
		storage := &hangingStorage{name: name, hangs: make(chan struct{}), ends: make(chan struct{})}
		keeper, err := OpenKeeper(InStorage, storage)
		if err != nil {
			t.Fatal(err)
		}
		begin := func() *Config { return &Config{Logger: zap.NewNop(), Keeper: keeper, Namespace: name} }
		takes := func(what string, most time.Duration, f func()) {
			t.Helper()
			began := time.Now()
			if f(); time.Since(began) > most {
				t.Errorf("%s took %v, want %v at most", what, time.Since(began), most)
			}
		}
		first, second := begin(), begin()
		takes("a start", 0, first.Start)
		close(storage.hangs)
		share := 0.5
		takes("a change", control.WaitFor, func() {
			change := control.Change{Target: control.Target{Zone: "z"}, Body: control.Body{Share: &share}, For: time.Hour}
			if o, err := first.Control().Change(t.Context(), change); err != nil || o.Applied != 1 {
				t.Errorf("Change = %+v, %v", o, err)
			}
		})
		takes("a reload", 0, func() {
			second.Start()
			first.Stop()
		})
		end := func(c *Config) func() {
			return func() {
				c.Stop()
				c.Close()
			}
		}
		takes("an end", endWait, end(second))
		third := begin()
		takes("a start where it hangs already", 4*patience, third.Start)
		close(storage.ends)
		takes("an end after it", 0, end(third))
		limits.ControlOf(nil, name).Keep(nil, nil)
	})
}

// slowStorage answers each write only when it is told to.
type slowStorage struct {
	certmagic.Storage
	goOn    chan struct{}
	written []string
}

func (s *slowStorage) Store(_ context.Context, _ string, b []byte) error {
	<-s.goOn
	s.written = append(s.written, string(b))
	return nil
}

// Nobody waits for a storage that hangs, and once it answers again the newest write comes last.
func TestTheNewestWriteIsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowStorage{goOn: make(chan struct{})}
		k := &Keeper{slow, "kept", make(chan struct{}, 1)}
		takes := func(what string, want time.Duration, wantErr error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			if err := k.store(ctx, "", []byte(what)); !errors.Is(err, wantErr) || time.Since(began) != want {
				t.Errorf("store(%q) = %v after %v, want %v after %v", what, err, time.Since(began), wantErr, want)
			}
		}
		takes("first", patience, errHangs)
		takes("second", patience, errHangs)
		go func() {
			time.Sleep(time.Second)
			slow.goOn <- struct{}{}
			slow.goOn <- struct{}{}
		}()
		takes("third", time.Second, nil)
		if want := []string{"first", "third"}; !slices.Equal(slow.written, want) {
			t.Errorf("written: %q, want %q", slow.written, want)
		}
	})
}
