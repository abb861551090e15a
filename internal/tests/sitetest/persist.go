package sitetest

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
)

// Home is a machine of its own: a data directory, and a storage.
type Home struct {
	T       *testing.T
	Dir     string
	Persist string
}

func NewHome(t *testing.T, persist string) *Home {
	dir := t.TempDir()
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	t.Setenv("TIDE_TEST_STATE", dir)
	return &Home{t, dir, persist}
}

// Boot is a process that begins with a configuration.
func (h *Home) Boot(block string) *Site {
	h.T.Helper()
	return h.BootIn("", block)
}

func (h *Home) BootIn(namespace, block string) *Site {
	h.T.Helper()
	storage, err := json.Marshal(map[string]string{"module": "file_system", "root": filepath.Join(h.Dir, "storage")})
	if err != nil {
		h.T.Fatal(err)
	}
	return NewSiteWith(h.T, &caddy.Config{StorageRaw: storage}, &ratelimit.App{Persist: h.Persist, Namespace: namespace}, block)
}
