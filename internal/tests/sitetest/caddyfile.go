package sitetest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-tide/ratelimit"
)

// GoldenDashes part a golden's Caddyfile from what it must become.
const GoldenDashes = "\n----------\n"

// Goldens are the files of a directory. With UPDATE_GOLDENS set, what a test gets becomes what it
// wants: read the difference.
func Goldens(t *testing.T, pattern string, get func(t *testing.T, input string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob(%s) = %d files, %v", pattern, len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, ok := strings.Cut(string(text), GoldenDashes)
			if !ok {
				t.Fatalf("%s has no line of ten dashes", file)
			}
			got := get(t, input)
			if os.Getenv("UPDATE_GOLDENS") != "" {
				if err := os.WriteFile(file, []byte(input+GoldenDashes+got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != strings.TrimSpace(want) {
				t.Errorf("%s\ngot:\n%s\nwant:\n%s", file, got, want)
			}
		})
	}
}

func Adapt(input string) ([]byte, error) {
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(input), map[string]any{"filename": "Caddyfile"})
	return text, err
}

// HandlersIn are the rate_limit handlers of a configuration, wherever they are.
func HandlersIn(t testing.TB, config []byte) (found []*ratelimit.Handler) {
	t.Helper()
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			if v["handler"] == "rate_limit" {
				found = append(found, Strictly[ratelimit.Handler](t, v))
				return
			}
			for _, key := range slices.Sorted(KeysOf(v)) {
				walk(v[key])
			}
		}
	}
	var all any
	decoder := json.NewDecoder(bytes.NewReader(config))
	decoder.UseNumber() // an int64 has more digits than a float64
	if err := decoder.Decode(&all); err != nil {
		t.Fatal(err)
	}
	walk(all)
	return found
}

func KeysOf(m map[string]any) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// Strictly decodes as Caddy decodes a module.
func Strictly[T any](t testing.TB, v map[string]any) *T {
	t.Helper()
	delete(v, "handler")
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	decoded := new(T)
	if err := caddy.StrictUnmarshalJSON(text, decoded); err != nil {
		t.Fatalf("StrictUnmarshalJSON(%s): %v", text, err)
	}
	return decoded
}

// AppIn are the global options.
func AppIn(t testing.TB, config []byte) *ratelimit.App {
	t.Helper()
	var c struct {
		Apps map[string]json.RawMessage `json:"apps"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	app := new(ratelimit.App)
	if text := c.Apps["rate_limit"]; text != nil {
		if err := caddy.StrictUnmarshalJSON(text, app); err != nil {
			t.Fatalf("StrictUnmarshalJSON(%s): %v", text, err)
		}
	}
	return app
}
