package ratelimit

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// warnedOf returns what caddy validate warns of in a configuration, code and text, in order.
// Servers are provisioned in no certain one.
func warnedOf(t *testing.T, config []byte) (all []string) {
	t.Helper()
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		t.Fatalf("StrictUnmarshalJSON(%s): %v", config, err)
	}
	path := filepath.Join(t.TempDir(), "log")
	c.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{
		Level: "WARN", WriterRaw: caddyconfig.JSON(map[string]string{"output": "file", "filename": path}, nil),
		EncoderRaw: caddyconfig.JSON(map[string]string{"format": "json"}, nil),
	}}}}
	if err := caddy.Validate(&c); err != nil {
		t.Fatalf("Validate: %v", err)
	}
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var line struct{ Logger, Code, Msg string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		if strings.Contains(line.Logger, "rate_limit") {
			all = append(all, line.Code+" "+line.Msg)
		}
	}
	slices.Sort(all)
	return all
}

// Each warning at load, with its place in the Caddyfile.
func TestWarningsAtLoad(t *testing.T) {
	goldens(t, "testdata/warnings/*.caddyfiletest", func(t *testing.T, input string) string {
		config, err := adapt(input)
		if err != nil {
			t.Fatalf("Adapt: %v", err)
		}
		return strings.Join(warnedOf(t, config), "\n")
	})
}

// And in JSON, where there are no lines.
func TestWarningsAtLoadOfJSON(t *testing.T) {
	goldens(t, "testdata/warnings/*.jsontest", func(t *testing.T, input string) string {
		return strings.Join(warnedOf(t, []byte(input)), "\n")
	})
}

// lineOfACaddyfile is one that an error tells to write.
var lineOfACaddyfile = regexp.MustCompile("(write|like|add|line) `[a-z_]+ [^`\"]*`")

// Errors of JSON name the field, and Caddy the handler. They say what to write in JSON.
func TestErrorsInJSONNameTheirPlace(t *testing.T) {
	goldens(t, "testdata/errors/*.jsontest", func(t *testing.T, input string) string {
		var c caddy.Config
		if err := caddy.StrictUnmarshalJSON([]byte(input), &c); err != nil {
			t.Fatalf("StrictUnmarshalJSON(%s): %v", input, err)
		}
		err := caddy.Validate(&c)
		if err == nil {
			t.Fatal("Validate = nil, want an error")
		}
		if line := lineOfACaddyfile.FindString(err.Error()); line != "" {
			t.Errorf("it is no Caddyfile: %s", line)
		}
		return err.Error()
	})
}
