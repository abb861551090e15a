package reqkey

import (
	"context"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Matchers of addresses match nobody on a Unix socket, and what negates them everybody, without a
// word of Caddy's in the log: theirs have no logger here, so they would panic. With an address they
// are Caddy's.
func TestMatchersOfAddressesWithoutOne(t *testing.T) {
	client, remote := &caddyhttp.MatchClientIP{Ranges: []string{"192.0.2.0/24"}}, &caddyhttp.MatchRemoteIP{Ranges: []string{"192.0.2.0/24"}}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	for _, m := range []caddy.Provisioner{client, remote} {
		if err := m.Provision(ctx); err != nil {
			t.Fatal(err)
		}
	}
	sets := []caddyhttp.MatcherSet{{client}, {remote}, {&caddyhttp.MatchNot{MatcherSets: []caddyhttp.MatcherSet{{client}}}}, {caddyhttp.MatchMethod{"GET"}}}
	GuardMatchers(sets)
	var w ProxyWatch
	if w.NoteMatchers(sets); !w.addresses {
		t.Error("guarded matchers of addresses are not watched")
	}
	for address, want := range map[string][]bool{"192.0.2.7": {true, true, false, true}, "198.51.100.1": {false, false, true, true}, "": {false, false, true, true}} {
		r := request("/")
		if r.RemoteAddr = "@"; address != "" {
			r.RemoteAddr = address + ":1234"
		}
		r, _ = prepared(t, r, address)
		for i, set := range sets {
			if ok, err := set.MatchWithError(r); ok != want[i] || err != nil {
				t.Errorf("%q, set %d: %v, %v, want %v", address, i, ok, err, want[i])
			}
		}
	}
	if name := sets[0][0].(caddy.Module).CaddyModule().ID.Name(); name != "client_ip" {
		t.Errorf("a guarded matcher is called %s", name)
	}
}
