//go:build unix

package redis_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddyserver/certmagic"

	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func TestPersistWhereNothingCanBeWritten(t *testing.T) {
	h := sitetest.NewHome(t, "")
	block := sitetest.ZoneBlock("persist-unwritable", "limit 10/30d")
	file, pipe := filepath.Join(h.Dir, "file"), filepath.Join(h.Dir, "pipe")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	const cannot, isOff = "error counters can't be saved, so zones that don't use redis start at zero with the next process", "error persist is off"
	for what, test := range map[string]struct {
		persist string
		says    string
	}{
		"below a file":         {filepath.Join(file, "counters"), cannot},
		"a directory":          {h.Dir, isOff},
		"a pipe":               {pipe, isOff},
		"a storage that fails": {lifecycle.InStorage, cannot},
	} {
		s := h.Boot(block)
		says, end := observed(s, keeperIn(t, test.persist, broken{}))
		if !strings.Contains(says, test.says) {
			t.Errorf("%s: says %q at the start, want %q", what, says, test.says)
		}
		s.Admits("1.2.3.4", 12, 10)
		end()
	}
}

// broken is a storage that is away.
type broken struct{ certmagic.Storage }

var errAway = errors.New("the storage is away")

func (broken) Load(context.Context, string) ([]byte, error) { return nil, errAway }

func (broken) Store(context.Context, string, []byte) error { return errAway }

func (broken) List(context.Context, string, bool) ([]string, error) { return nil, errAway }
