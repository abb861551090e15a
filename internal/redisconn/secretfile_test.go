package redisconn

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What is wrong with a file of a password is said of the file, not of Redis, however the client is
// made; with the file there it connects.
func TestAPasswordFileThatAppearsLater(t *testing.T) {
	server := redistest.Start(t, redistest.Password("hunter2"))
	for name, of := range map[string]func(file string) *Options{
		"password": func(file string) *Options {
			return &Options{Address: []string{server.Addr}, Password: "{file." + file + "}"}
		},
		"url": func(file string) *Options { return &Options{URL: "redis://:{file." + file + "}@" + server.Addr} },
		"cluster": func(file string) *Options {
			return &Options{Mode: "cluster", Address: []string{server.Addr}, Password: "{file." + file + "}"}
		},
	} {
		file := filepath.Join(t.TempDir(), "password")
		set, err := of(file).Resolve(caddy.NewReplacer())
		if err != nil {
			t.Fatal(err)
		}
		set.Timeout = 30 * time.Second // on a busy machine the default may be too short
		c, err := set.Client()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ask := func(what, want string) {
			t.Helper()
			if got := Classify(c.Set(context.Background(), "k", "v", 0).Err()); got != want {
				t.Errorf("%s, %s: %q, want %q", name, what, got, want)
			}
		}
		const mend = "; let Caddy's user read the file, or correct its path"
		ask("missing", "can't open "+file+": no such file or directory"+mend)
		if err := os.Mkdir(file, 0o700); err != nil {
			t.Fatal(err)
		}
		ask("a directory", "can't read "+file+": is a directory"+mend)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("hunter2\r\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "cluster" {
			ask("there", "the server is not part of a cluster; use mode simple")
			continue
		}
		ask("there", "")
	}
}

// A path that begins nowhere is shown whole.
func TestARelativePathIsShownWhole(t *testing.T) {
	t.Chdir(t.TempDir())
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = (&Options{Password: "{file.missing}"}).credentials(t.Context())
	if want := filepath.Join(wd, "missing"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("credentials: %v, want %s in it", err, want)
	}
}

// A file has for a new connection what Caddy takes from it for a placeholder.
func TestSecretFilesAreReadAsCaddyDoes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z{}%]{0,5}(\r|\n){0,3}`).Draw(t, "text")
		if rapid.IntRange(0, 20).Draw(t, "long") == 0 {
			text += strings.Repeat("x", secretMost)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		around := rapid.SampledFrom([]string{"%s", "a%sb", "%[1]s%[1]s", "{env.TIDE_NOTHING}%s"}).Draw(t, "around")
		o := &Options{Username: "u", Password: fmt.Sprintf(around, "{file."+file+"}")}
		want := o.replaced(caddy.NewReplacer()).Password
		if username, password, err := o.credentials(context.Background()); err != nil || username != "u" || password != want {
			t.Fatalf("of %q credentials has %d bytes, %v, and Caddy %d", text, len(password), err, len(want))
		}
	})
}
