package main

import (
	"go/ast"
	"go/token"
	"os"
	"slices"
	"testing"
)

func TestNoTypeIsAnotherNameOfANeighbours(t *testing.T) {
	t.Chdir(t.TempDir())
	source := `package p

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

type (
	Key    = keys.Key
	Source = ratesync.Source
	Time   = time.Time
	ID     keys.ID
)
`
	if err := os.WriteFile("p.go", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	l := linter{set: token.NewFileSet(), root: map[string]*ast.File{}}
	if err := l.goFile("p.go"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"p.go:11: Key is an alias of keys.Key: write that instead",
		"p.go:12: Source is an alias of ratesync.Source: write that instead",
	}
	if !slices.Equal(l.findings, want) {
		t.Errorf("found %q, want %q", l.findings, want)
	}
}
