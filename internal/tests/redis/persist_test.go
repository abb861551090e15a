package redis_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func files(h *sitetest.Home) (names []string) {
	_ = filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, _ error) error {
		if !d.IsDir() && d.Name() != "instance.uuid" {
			names = append(names, strings.TrimPrefix(path, h.Dir))
		}
		return nil
	})
	return names
}

var everyCountingAlgorithm = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}

func TestPersistKeepsCountersOverARestart(t *testing.T) {
	for _, persist := range []string{"storage", "{env.TIDE_TEST_STATE}/counters"} {
		for _, algorithm := range everyCountingAlgorithm {
			h := sitetest.NewHome(t, persist)
			block := sitetest.ZoneBlock("persist-"+algorithm, "limit 10/30d\nalgorithm "+algorithm)
			// A namespace of its own, in which no other test has changed anything at run time.
			boot := func() *sitetest.Site { return h.BootIn("persist-"+algorithm, block) }
			s := boot()
			s.Admits("1.2.3.4", 7, 7)
			s.End()
			boot().End() // nobody comes in its time
			s = boot()
			s.Admits("1.2.3.4", 7, 3)
			s.Admits("1.2.3.5", 12, 10)
			s.End()
			if got := files(h); len(got) != 1 {
				t.Errorf("persist %s left the files %q, want one", persist, got)
			}
		}
	}
}

func TestPersistIsOffByDefault(t *testing.T) {
	h := sitetest.NewHome(t, "")
	block := sitetest.ZoneBlock("not-persisted", "limit 10/30d")
	s := h.Boot(block)
	s.Admits("1.2.3.4", 7, 7)
	s.End()
	if got := files(h); len(got) > 0 {
		t.Errorf("without persist there are the files %q", got)
	}
	h.Boot(block).Admits("1.2.3.4", 10, 10)
}

// A first configuration that fails to start costs nothing of what was saved.
func TestPersistOutlivesAStartThatFails(t *testing.T) {
	h := sitetest.NewHome(t, "storage")
	block := sitetest.ZoneBlock("persist-failed", "limit 10/30d")
	s := h.Boot(block)
	s.Admits("1.2.3.4", 6, 6)
	s.End()
	if _, err := sitetest.TrySite(t, &ratelimit.App{Persist: "storage"}, block+sitetest.ZoneBlock("bad", "key {http.request.nonsense}\nlimit 1/30d")); err == nil {
		t.Fatal("a bad configuration was accepted")
	}
	h.Boot(block).End() // another app of it failed to start
	h.Boot(block).Admits("1.2.3.4", 10, 4)
}

// A reload into another namespace hands over what an earlier process saved and what was admitted
// since, and the new configuration saves all of it.
func TestPersistWhereAReloadChangesTheNamespace(t *testing.T) {
	for _, algorithm := range everyCountingAlgorithm {
		h := sitetest.NewHome(t, "storage")
		block := sitetest.ZoneBlock("persist-namespace", "limit 10/30d\nalgorithm "+algorithm)
		s := h.BootIn("persist-first", block)
		s.Admits("1.2.3.4", 2, 2)
		s.End()
		s = h.BootIn("persist-first", block)
		s.Admits("1.2.3.4", 1, 1)
		next := h.BootIn("persist-second", block)
		s.End()
		next.Admits("1.2.3.4", 1, 1)
		next.End()
		last := h.BootIn("persist-second", block)
		last.Admits("1.2.3.4", 20, 6)
		last.End()
	}
}

// messages are what an app wrote.
func messages(logs *observer.ObservedLogs) string {
	var all []string
	for _, e := range logs.TakeAll() {
		if e.Level >= zap.WarnLevel {
			all = append(all, e.Level.String()+" "+e.Message+" ("+errorIn(e.ContextMap())+")")
		} else if e.ContextMap()["too_old"] != int64(0) {
			all = append(all, e.Message)
		}
	}
	return strings.Join(all, "\n")
}

func errorIn(context map[string]any) string {
	text, _ := context["error"].(string)
	return text
}

// observed has a site go on with a keeper, and returns what that says, and what ends it.
func observed(s *sitetest.Site, k *lifecycle.Keeper) (says string, end func()) {
	core, logs := observer.New(zap.InfoLevel)
	_ = s.App.Stop()
	c := &lifecycle.Config{Logger: zap.New(core), Keeper: k}
	for _, z := range s.Handler.Zones() {
		c.Add(z)
	}
	c.Start()
	return messages(logs), func() {
		c.Stop()
		c.Close()
		s.End()
	}
}

// keeperIn is a keeper with this value of persist.
func keeperIn(t *testing.T, persist string, storage certmagic.Storage) *lifecycle.Keeper {
	t.Helper()
	k, err := lifecycle.OpenKeeper(persist, storage)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// written is what a snapshot looks like in a file: one report of a limit, from this instant.
func written(t *testing.T, at int64, limit string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "written")
	keys := table.SavedCounts{keys.IDOf([]byte("k")): {{Epoch: at / int64(30*24*time.Hour), Remote: 5, Own: 5}}}
	if err := keeperIn(t, path, nil).Store(t.Context(), lifecycle.Snapshot{At: at, Limits: map[string]table.SavedCounts{limit: keys}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Whatever is there in place of the counters, the node serves, and says clearly what is wrong. What
// isn't ours stays as it is.
//
// no clock: the window is one of a file that is no snapshot.
func TestPersistOfWhatCannotBeRead(t *testing.T) {
	const limit = `"" "persist-bad" s-720h`
	old := written(t, clock.Now()-int64(1500*time.Hour), limit)
	early := written(t, clock.Now()+int64(time.Hour), limit)
	whole := written(t, clock.Now(), limit)
	damaged := slices.Clone(whole)
	damaged[40] ^= 1
	for what, test := range map[string]struct {
		file  []byte
		says  string
		stays bool
	}{
		"damaged":         {damaged, "saved counters could not be read, so counting starts at zero (it is damaged or cut off)", false},
		"cut off":         {whole[:len(whole)-9], "saved counters could not be read, so counting starts at zero (it is damaged or cut off)", false},
		"empty":           {nil, "saved counters could not be read, so counting starts at zero (it is damaged or cut off)", false},
		"another version": {[]byte("tide counters 9\nsomething"), "(it was saved by another version)", false},
		"foreign":         {[]byte("example.com {\n\trate_limit 5/1m\n}\n"), "error persist is off: what is there is something else, which is left as it is", true},
		"too old":         {old, "except those that are too old to matter", false},
		"of the future":   {early, "counters were saved at a time in the future, so the clock was set back since; counting starts at zero", false},
	} {
		h := sitetest.NewHome(t, "")
		block := sitetest.ZoneBlock("persist-bad", "limit 10/30d")
		path := filepath.Join(h.Dir, "counters")
		if err := os.WriteFile(path, test.file, 0o600); err != nil {
			t.Fatal(err)
		}
		s := h.Boot(block)
		says, end := observed(s, keeperIn(t, path, nil))
		if !strings.Contains(says, test.says) {
			t.Errorf("%s: says %q, want %q", what, says, test.says)
		}
		s.Admits("1.2.3.4", 12, 10)
		end()
		left, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if stays := string(left) == string(test.file); stays != test.stays {
			t.Errorf("%s: the file is left as it was: %v, want %v", what, stays, test.stays)
		}
		if !test.stays {
			h.Persist = path
			s := h.Boot(block)
			s.Admits("1.2.3.4", 1, 0)
			s.End()
		}
	}
}

// Nodes that share a storage keep their counters apart, and those that are gone for good leave
// nothing there for ever.
func TestPersistInASharedStorage(t *testing.T) {
	h := sitetest.NewHome(t, "storage")
	block := sitetest.ZoneBlock("persist-shared", "limit 10/30d")
	// A namespace of its own, in which no other test has changed anything at run time.
	boot := func() *sitetest.Site { return h.BootIn("persist-shared", block) }
	s := boot()
	s.Admits("1.2.3.4", 6, 6)
	s.End()
	first := files(h)
	t.Setenv("XDG_DATA_HOME", filepath.Join(h.Dir, "data2"))
	s = boot()
	s.Admits("1.2.3.4", 10, 10)
	s.End()
	if got := files(h); len(got) != 2 {
		t.Fatalf("two nodes left the files %q, want two", got)
	}
	t.Setenv("XDG_DATA_HOME", filepath.Join(h.Dir, "data"))
	s = boot()
	s.Admits("1.2.3.4", 10, 4)
	s.End()
	long := time.Unix(0, 0)
	if err := os.Chtimes(filepath.Join(h.Dir, first[0]), long, long); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_DATA_HOME", filepath.Join(h.Dir, "data2"))
	boot().End()
	if got := files(h); len(got) != 1 || got[0] == first[0] {
		t.Errorf("there are %q, want only that of the node that came back", got)
	}
}

// caddy validate neither reads nor writes what is kept.
func TestValidateLeavesWhatIsKeptAlone(t *testing.T) {
	h := sitetest.NewHome(t, "")
	for _, persist := range []string{"storage", filepath.Join(h.Dir, "counters")} {
		app, err := json.Marshal(&ratelimit.App{Persist: persist})
		if err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(&caddy.Config{
			Admin:      &caddy.AdminConfig{Disabled: true},
			StorageRaw: []byte(`{"module": "file_system", "root": "` + h.Dir + `/storage"}`),
			AppsRaw:    caddy.ModuleMap{"rate_limit": app},
		}); err != nil {
			t.Errorf("Validate with persist %s: %v", persist, err)
		}
	}
	if got := files(h); len(got) > 0 {
		t.Errorf("validating left the files %q", got)
	}
}
