package reqkey

import (
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// A request on a Unix socket has no address, and Caddy's matchers of addresses write an error for
// each one. So they are not asked about it: it has none of the addresses.

type clientIPMatcher struct{ *caddyhttp.MatchClientIP }

func (m clientIPMatcher) MatchWithError(r *http.Request) (bool, error) {
	if _, ok := parseIP(toText(caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey))); !ok {
		return false, nil
	}
	return m.MatchClientIP.MatchWithError(r)
}

type remoteIPMatcher struct{ *caddyhttp.MatchRemoteIP }

func (m remoteIPMatcher) MatchWithError(r *http.Request) (bool, error) {
	if _, ok := parseIP(RemoteHost(r)); !ok {
		return false, nil
	}
	return m.MatchRemoteIP.MatchWithError(r)
}

// GuardMatchers has no matcher of addresses among the sets, also within not, asked where there is
// no address.
func GuardMatchers(sets []caddyhttp.MatcherSet) {
	for _, set := range sets {
		for i, m := range set {
			switch m := m.(type) {
			case *caddyhttp.MatchClientIP:
				set[i] = clientIPMatcher{m}
			case *caddyhttp.MatchRemoteIP:
				set[i] = remoteIPMatcher{m}
			case *caddyhttp.MatchNot:
				GuardMatchers(m.MatcherSets)
			}
		}
	}
}
