package lifecycle

import (
	"context"
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// memoryPlace keeps what is written, each write of which takes a while.
type memoryPlace struct {
	takes time.Duration

	mu      sync.Mutex
	written [][]byte
}

func (*memoryPlace) String() string      { return "memory" }
func (*memoryPlace) Check() error        { return nil }
func (*memoryPlace) Clean(time.Duration) {}

func (p *memoryPlace) read() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.written) == 0 {
		return nil, fs.ErrNotExist
	}
	return p.written[len(p.written)-1], nil
}

func (p *memoryPlace) write(b []byte) error {
	if p.takes > 0 {
		time.Sleep(p.takes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = append(p.written, b)
	return nil
}

func (p *memoryPlace) writes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.written)
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

// The server's requests may end after Stop. What they have spent by Close is saved, and the bans
// that they began; where there is nothing new nothing is written.
func TestWhatIsCountedAfterStopIsSaved(t *testing.T) {
	place := new(memoryPlace)
	k := &Keeper{place, new(memoryPlace)}
	synctest.Test(t, func(t *testing.T) {
		writes := func(when string, want int) {
			t.Helper()
			if got := place.writes(); got != want {
				t.Fatalf("%s: %d writes, want %d", when, got, want)
			}
		}
		// restarts has another process take up what is saved, and says how many requests of it are
		// admitted, and whether the key was banned from the beginning.
		restarts := func() (admitted int, banned bool) {
			t.Helper()
			next := &Keeper{new(memoryPlace), new(memoryPlace)}
			b, _ := place.read()
			_ = next.write(b)
			c, z, end := keeping(t, next)
			defer end()
			c.Start()
			defer c.Stop()
			for banned = z.Bans().Count() > 0; evaluates(t, z); admitted++ {
			}
			return admitted, banned
		}
		c, z, end := keeping(t, k)
		end = sync.OnceFunc(end)
		defer end()
		c.Start()
		defer c.Stop()
		writes("after Start", 1)
		evaluates(t, z)
		c.Stop()
		writes("after Stop", 2)
		c.Close()
		writes("Close after nothing", 2)
		c.Stop()
		writes("another Stop", 2)
		evaluates(t, z)
		c.Close()
		writes("Close after a request", 3)
		c.Close()
		writes("another Close", 3)
		evaluates(t, z)
		evaluates(t, z)
		c.Close()
		writes("Close when the limit is spent", 4)
		if evaluates(t, z) {
			t.Fatal("a fifth request is admitted by a limit of 4")
		}
		c.Close()
		writes("Close after a ban began", 5)
		end()
		if admitted, banned := restarts(); admitted != 0 || !banned {
			t.Errorf("after a restart %d are admitted and the key is banned: %t, want none and true", admitted, banned)
		}
		place.written = place.written[:3]
		if admitted, banned := restarts(); admitted != 2 || banned {
			t.Errorf("with what was saved before %d are admitted and the key is banned: %t, want 2 of 4 and false", admitted, banned)
		}
		place.written = place.written[:2]
		if admitted, banned := restarts(); admitted != 3 || banned {
			t.Errorf("with what Stop saved %d are admitted and the key is banned: %t, want 3 of 4 and false", admitted, banned)
		}
	})
}

// A configuration that another one comes after saves nothing: the counters are the other one's, and
// go on.
func TestOnlyTheLastConfigurationSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := new(memoryPlace)
		k := &Keeper{place, new(memoryPlace)}
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
		if got := place.writes(); got != 1 {
			t.Errorf("after a reload and a Close: %d writes, want that of the start", got)
		}
		second.Stop()
		second.Close()
		if got := place.writes(); got != 2 {
			t.Errorf("after the end: %d writes, want 2", got)
		}
	})
}

// Stop waits until what was changed at run time is saved, also where nobody has waited for that
// before.
func TestStopWaitsForTheControlRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := &memoryPlace{takes: time.Second}
		c, _, end := keeping(t, &Keeper{new(memoryPlace), place})
		defer end()
		c.Start()
		ctx, leave := context.WithCancel(t.Context())
		leave()
		share := 0.5
		change := control.Change{Target: control.Target{Zone: "kept"}, Body: control.Body{Share: &share}, For: time.Hour}
		if _, err := c.Control().Change(ctx, change); err != nil {
			t.Fatal(err)
		}
		if got := place.writes(); got != 0 {
			t.Fatalf("%d writes before Stop, want that the first one is under way", got)
		}
		c.Stop()
		if got := place.writes(); got != 1 {
			t.Errorf("%d writes when Stop returns, want 1", got)
		}
		c.Control().Keep(nil, nil)
	})
}
