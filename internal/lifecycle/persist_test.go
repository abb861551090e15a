package lifecycle

import (
	"context"
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// memory is a storage that keeps what is written, each write of which takes a while.
type memory struct {
	certmagic.Storage
	takes time.Duration

	mu      sync.Mutex
	written map[string][][]byte
}

func (m *memory) Load(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.written[key]); n > 0 {
		return m.written[key][n-1], nil
	}
	return nil, fs.ErrNotExist
}

// Store takes a while.
//
// bubble: it runs in one.
func (m *memory) Store(_ context.Context, key string, b []byte) error {
	if m.takes > 0 {
		time.Sleep(m.takes)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[key] = append(m.written[key], b)
	return nil
}

// writes is how often the counters were written, or with besideIt the control record.
func (m *memory) writes(suffix string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.written["kept"+suffix])
}

// inMemory is a keeper that keeps in memory.
func inMemory(written ...[]byte) (*Keeper, *memory) {
	m := &memory{written: map[string][][]byte{"kept": written}}
	return &Keeper{m, "kept", make(chan struct{}, 1)}, m
}

// keeping is a configuration of a process that keeps the counters of one zone, which bans. end
// gives them up, as the end of the process does.
func keeping(t *testing.T, k *Keeper) (c *Config, z *limits.Zone, end func()) {
	t.Helper()
	const month = 30 * 24 * time.Hour
	z, err := limits.NewZone(limits.ZoneOptions{
		Settings: config.Settings{
			Name: "kept", Key: "all", Kind: algorithms.FixedWindow, Limits: []config.Rate{{Limit: 4, Window: 12 * month}}, Ban: config.Ban{For: month},
			Enforce: config.Enforce(1), SubWindows: 1, MaxKeys: 100, IPv4Prefix: 32, IPv6Prefix: 64, SyncRate: config.Local,
		},
		Namespace: t.Name(), Sweep: time.Minute, Logger: zap.NewNop(), Once: new(warning.Once),
	})
	if err != nil {
		t.Fatal(err)
	}
	c = &Config{Logger: zap.NewNop(), Keeper: k, Namespace: t.Name()}
	c.Add(z)
	return c, z, z.Release
}

// restarts has another process take up what is saved, and says how many requests of it are
// admitted, and whether the key was banned from the beginning.
func restarts(t *testing.T, saved []byte) (admitted int, banned bool) {
	t.Helper()
	k, _ := inMemory(saved)
	c, z, end := keeping(t, k)
	defer end()
	c.Start()
	defer c.Close()
	defer c.Stop()
	for banned = z.Bans().Count() > 0; evaluates(t, z); admitted++ {
	}
	return admitted, banned
}

// What was counted is saved every minute, if there is any, and at the end: the server's requests
// may end after Stop, and the handlers have given the counters up by then.
func TestWhatIsCountedIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, place := inMemory()
		writes := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if got := place.writes(""); got != want {
				t.Fatalf("%s: %d writes, want %d", when, got, want)
			}
		}
		c, z, end := keeping(t, k)
		c.Start()
		writes("after Start", 1)
		time.Sleep(2 * saveEvery)
		writes("nothing was counted", 1)
		evaluates(t, z)
		time.Sleep(saveEvery)
		writes("after a request and a minute", 2)
		evaluates(t, z)
		c.Stop()
		writes("after Stop", 2)
		time.Sleep(saveEvery)
		writes("a minute after Stop", 3)
		evaluates(t, z)
		evaluates(t, z)
		if evaluates(t, z) {
			t.Fatal("a fifth request is admitted by a limit of 4")
		}
		end()
		c.Close()
		writes("after Close", 4)
		c.Close()
		writes("another Close", 4)
		for i, want := range []int{4, 3, 2, 0} {
			if admitted, banned := restarts(t, place.written["kept"][i]); admitted != want || banned != (want == 0) {
				t.Errorf("after write %d and a restart %d are admitted and the key is banned: %t, want %d", i+1, admitted, banned, want)
			}
		}
	})
}

// What was refunded is saved as well, also where another key has spent as much since, and so is a
// ban that took the place of another one.
func TestWhatChangesIsSavedThoughTheSumIsTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, place := inMemory()
		c, z, end := keeping(t, k)
		c.Start()
		time.Sleep(saveEvery / 2) // so that nothing below happens at the instant of a save
		l := &z.AllLimits[0]
		take := func(raw string) table.Taken {
			return l.Table.Take(l.Effective, keys.KeyOf([]byte(raw)), []byte(raw), clock.Now(), 1, 0)
		}
		saves := func(when string, want int) (counts table.SavedCounts) {
			t.Helper()
			had := place.writes("")
			time.Sleep(saveEvery)
			synctest.Wait()
			if got := place.writes("") - had; got != want {
				t.Errorf("%s: %d writes, want %d", when, got, want)
			}
			s, err := k.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Limits[l.Key]
		}
		a := take("a")
		if counts := saves("after a request", 1); len(counts) != 1 {
			t.Errorf("saved: %v", counts)
		}
		l.Table.Refund(l.Effective, keys.KeyOf([]byte("a")), a, 1)
		if counts := saves("after a refund", 1); len(counts) != 0 {
			t.Errorf("what was refunded is saved: %v", counts)
		}
		a = take("a")
		saves("after another one", 1)
		take("b")
		l.Table.Refund(l.Effective, keys.KeyOf([]byte("a")), a, 1)
		if counts := saves("after a refund and a request of another key", 1); counts[keys.IDOf([]byte("b"))] == nil || counts[keys.IDOf([]byte("a"))] != nil {
			t.Errorf("saved: %v", counts)
		}
		saves("nothing has changed", 0)
		bans := &z.Bans().Set
		bans.Begin(keys.IDOf([]byte("a")), clock.Now(), time.Hour)
		saves("after a ban", 1)
		time.Sleep(time.Hour)
		saves("after its end", 0)
		bans.Begin(keys.IDOf([]byte("b")), clock.Now(), time.Hour)
		time.Sleep(time.Hour)
		bans.Begin(keys.IDOf([]byte("a")), clock.Now(), time.Hour)
		saves("after another ban", 1)
		c.Stop()
		end()
		c.Close()
	})
}

// A write that takes long is not followed by the next one at once.
func TestSavingTakesATwentiethOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, place := inMemory()
		c, z, end := keeping(t, k)
		defer end()
		c.Start()
		place.takes = saveEvery / 2
		for i := range 3 {
			evaluates(t, z)
			time.Sleep(time.Minute)
			if i == 0 {
				time.Sleep(place.takes)
			}
			synctest.Wait()
			if got := place.writes(""); got != 2 {
				t.Errorf("%d writes after %d minutes, want that of the start and one", got, i+1)
			}
		}
		time.Sleep(saveShare * place.takes)
		synctest.Wait()
		if got := place.writes(""); got != 3 {
			t.Errorf("%d writes after twenty times what one takes, want 3", got)
		}
		place.takes = 0
		c.Stop()
		c.Close()
	})
}

// What is spent after a reset is not forgiven by it again in the next process.
func TestWhatIsSavedOfAResetKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, place := inMemory()
		c, z, end := keeping(t, k)
		c.Start()
		evaluates(t, z)
		target := control.Target{Zone: "kept"}
		if _, forgiven, err := c.Control().Reset(t.Context(), control.Change{Target: target, For: time.Hour}); err != nil || forgiven != 1 {
			t.Fatalf("Reset forgives %d, %v, want 1", forgiven, err)
		}
		time.Sleep(time.Second)
		evaluates(t, z)
		evaluates(t, z)
		c.Stop()
		end()
		c.Close()
		if admitted, _ := restarts(t, place.written["kept"][place.writes("")-1]); admitted != 2 {
			t.Errorf("after two requests, a reset before them and a restart %d are admitted, want 2 of 4", admitted)
		}
	})
}

// A configuration that another one comes after saves nothing: the counters are the other one's, and
// go on.
func TestOnlyTheLastConfigurationSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, place := inMemory()
		first, z, end := keeping(t, k)
		defer end()
		second, _, end := keeping(t, k)
		defer end()
		never, _, end := keeping(t, k)
		defer end()
		first.Start()
		second.Start()
		first.Stop()
		evaluates(t, z)
		first.Close()
		never.Stop()
		never.Close()
		if got := place.writes(""); got != 1 {
			t.Errorf("after a reload and a Close: %d writes, want that of the start", got)
		}
		second.Stop()
		second.Close()
		if got := place.writes(""); got != 2 {
			t.Errorf("after the end: %d writes, want 2", got)
		}
	})
}

// Close waits until what was changed at run time is saved, also where nobody has waited for that
// before.
func TestCloseWaitsForTheControlRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, place := inMemory()
		c, _, end := keeping(t, k)
		defer end()
		c.Start()
		place.takes = time.Second
		ctx, leave := context.WithCancel(t.Context())
		leave()
		share := 0.5
		change := control.Change{Target: control.Target{Zone: "kept"}, Body: control.Body{Share: &share}, For: time.Hour}
		if _, err := c.Control().Change(ctx, change); err != nil {
			t.Fatal(err)
		}
		c.Stop()
		if got := place.writes(besideIt); got != 0 {
			t.Fatalf("%d writes before Close, want that the first one is under way", got)
		}
		c.Close()
		if got := place.writes(besideIt); got != 1 {
			t.Errorf("%d writes when Close returns, want 1", got)
		}
		_ = c.Control().Keep(nil, nil)
	})
}

// A reload that adds persist brings back what was changed at run time before persist was off.
func TestAReloadThatAddsPersist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, place := inMemory()
		first, _, end := keeping(t, nil)
		defer end()
		second, _, end := keeping(t, k)
		defer end()
		earlier := control.New(control.Options{Store: first.Control().Store, Now: clock.Now, Logger: zap.NewNop()})
		_ = earlier.Keep(nil, func(b []byte) error { return k.StoreControl(b) })
		share := 0.5
		change := control.Change{Target: control.Target{Zone: "kept"}, Body: control.Body{Share: &share}, For: time.Hour}
		if _, err := earlier.Change(t.Context(), change); err != nil || place.writes(besideIt) != 1 {
			t.Fatal(err, place.writes(besideIt))
		}
		first.Start()
		second.Start()
		first.Stop()
		if len(second.Control().Holding(change.Target)) != 1 {
			t.Error("the change is forgotten")
		}
		second.Stop()
		second.Close()
		_ = second.Control().Keep(nil, nil)
	})
}
