package reqkey

import (
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// The watch looks at the first thousand requests, then at one in a thousand or so, and never takes
// longer than a load of a flag otherwise.
func TestProxyWatchLooksRarely(t *testing.T) {
	w := new(ProxyWatch)
	if w.due(0) {
		t.Error("a watch without a key by address looks")
	}
	w.Note(mustKey(t, "all", 32, 64))
	if w.due(0) {
		t.Error("a watch of a key without the address looks")
	}
	w.Note(mustKey(t, Default, 32, 64))
	r, _ := prepared(t, request("/"), "1.2.3.4")
	looks := 0
	for now := range int64(100_000) {
		if w.due(now) {
			looks++
		}
		w.Watch(new(warning.Once), zap.NewNop(), r, now)
	}
	if looks < watchedFirst || looks > watchedFirst+100 {
		t.Errorf("%d looks at 100000 requests, want the first %d and one in 1024", looks, watchedFirst)
	}
	if n := testing.AllocsPerRun(100, func() { w.due(1) }); n != 0 {
		t.Errorf("%v allocations where nothing is due", n)
	}
}

// A matcher of the client's address is worth a watch as much as a key of it.
func TestProxyWatchOfMatchers(t *testing.T) {
	address := caddyhttp.MatcherSet{new(caddyhttp.MatchPath), new(caddyhttp.MatchClientIP)}
	for name, c := range map[string]struct {
		sets caddyhttp.MatcherSets
		want bool
	}{
		"none": {nil, false}, "a path": {caddyhttp.MatcherSets{{new(caddyhttp.MatchPath)}}, false}, "an address": {caddyhttp.MatcherSets{{}, address}, true},
		"a negation": {caddyhttp.MatcherSets{{&caddyhttp.MatchNot{MatcherSets: caddyhttp.MatcherSets{address}}}}, true},
		"the peer":   {caddyhttp.MatcherSets{{new(caddyhttp.MatchRemoteIP)}}, false},
	} {
		w := new(ProxyWatch)
		w.Note(mustKey(t, "all", 32, 64))
		if w.NoteMatchers(c.sets); w.due(0) != c.want {
			t.Errorf("%s: watched %t, want %t", name, w.due(0), c.want)
		}
	}
}
