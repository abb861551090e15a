package main

import (
	"os"
	"slices"
	"testing"
)

func TestNoTypeIsAnotherNameOfANeighbours(t *testing.T) {
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
	want := []string{
		"p.go:11: Key is an alias of keys.Key: write that instead",
		"p.go:12: Source is an alias of ratesync.Source: write that instead",
	}
	if got := findings(t, source); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestNobodyComparesKinds(t *testing.T) {
	source := `package p

import "github.com/caddy-tide/ratelimit/algorithms"

var (
	settings = algorithms.Params{Kind: algorithms.GCRA}
	known    = map[algorithms.Kind]bool{algorithms.LeakyBucket: true}
	fixed    = settings.Kind == algorithms.FixedWindow
	not      = algorithms.SlidingLog != settings.Kind && settings.Kind.Traits().Queues
	waits    = settings.Want == algorithms.WantNext
)

func f(k algorithms.Kind) {
	switch k {
	case algorithms.TokenBucket, algorithms.GCRA:
	}
}
`
	const instead = ": have algorithms.Kind say what is wanted of it"
	want := []string{
		"p.go:7: asks for algorithms.LeakyBucket" + instead, "p.go:8: asks for algorithms.FixedWindow" + instead,
		"p.go:9: asks for algorithms.SlidingLog" + instead,
		"p.go:15: asks for algorithms.TokenBucket" + instead, "p.go:15: asks for algorithms.GCRA" + instead,
	}
	if got := findings(t, source); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// findings returns what the linter says of a file p.go.
func findings(t *testing.T, source string) []string {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("p.go", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLinter()
	if err := l.goFile("p.go"); err != nil {
		t.Fatal(err)
	}
	for _, c := range l.packages {
		l.owners(c)
	}
	return l.findings
}
