package sitetest

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// WarnedOf returns what caddy validate warns of in a configuration, code and text, in order.
// Servers are provisioned in no certain one.
func WarnedOf(t *testing.T, config []byte) (all []string) {
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
