package statuspage

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/hostport"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// check returns the status for who may not see the page, and why; 0 for others.
func (h *Handler) check(r *http.Request) (status int, why string) {
	rejected := func(format string, args ...any) (int, string) {
		return http.StatusForbidden, fmt.Sprintf(format, args...)
	}
	if reqkey.IsEarly(r) {
		return http.StatusTooEarly, "Early data proves no address. Send the request again after the handshake."
	}
	if slices.Contains(h.Allow, "all") {
		return 0, ""
	}
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	if name := proxyHeader(r, server); name != "" && !trusted {
		return rejected("The peer %s sends %s and is no trusted proxy. Set trusted_proxies to its address.", r.RemoteAddr, name)
	}
	if name := severalClients(r, server); name != "" && trusted {
		return rejected("%s has several addresses, and the client may have written the first one itself. "+
			"Set trusted_proxies_strict: it takes the last one that is no trusted proxy.", name)
	}
	client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	addresses := []string{client, r.RemoteAddr}
	if trusted && within(thisMachine, r.RemoteAddr) {
		addresses = addresses[:1] // whoever allows a client needn't allow all of this machine
	}
	for _, address := range addresses {
		if !within(h.ranges, address) {
			return rejected("%s may not see this page. Write its address after allow, in the block of rate_limit_status.", hostport.Host(address))
		}
	}
	// A page of another site could have its name resolved to this machine, and read what its reader
	// may see. A name that stands in the configuration is not the name of such a page.
	switch {
	case isLocal(r.Host):
	case len(h.Allow) == 0:
		return rejected("The host %q may be another machine's name. Use localhost, or say who may see this page: allow, in the block of rate_limit_status.", r.Host)
	case !h.isConfigured(r, server):
		return rejected("The host %q may be another machine's name: no site address and no host matcher of this server has it. "+
			"Use the address of this machine, write the host into the address of the site, or write `allow all`.", r.Host)
	}
	return 0, ""
}

// proxyHeader returns a header by which a proxy tells of a client or of itself, "" if there is
// none.
func proxyHeader(r *http.Request, server *caddyhttp.Server) string {
	for _, name := range []string{"Via", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if len(r.Header[name]) > 0 {
			return name
		}
	}
	return reqkey.ForwardingHeader(r, server)
}

// severalClients returns a header in which the server takes the first of several addresses for the
// client's, "" if there is none.
func severalClients(r *http.Request, server *caddyhttp.Server) string {
	if server == nil || server.TrustedProxiesStrict > 0 {
		return ""
	}
	for _, name := range server.ClientIPHeaders {
		if lines := r.Header.Values(name); len(lines) > 1 || strings.Contains(strings.Join(lines, ""), ",") {
			return name
		}
	}
	return ""
}

// within reports whether an address is in one of the ranges. A unix socket has none; who can open
// it is on this machine.
func within(ranges []netip.Prefix, address string) bool {
	contain := func(ip netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	if address == "" || strings.HasPrefix(address, "@") || strings.HasPrefix(address, "/") {
		return contain(netip.IPv6Loopback()) || contain(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	ip, err := netip.ParseAddr(hostport.Host(address))
	return err == nil && contain(ip.WithZone("").Unmap())
}

// isLocal reports whether a host can only be this machine, or was written as an address.
func isLocal(host string) bool {
	host = strings.ToLower(strings.Trim(hostport.Host(host), "[]"))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// isConfigured reports whether a host matcher of the server has the host of a request.
func (h *Handler) isConfigured(r *http.Request, server *caddyhttp.Server) bool {
	if server == nil {
		return false
	}
	h.findHosts.Do(func() { operate.EachRoute(server, h.addHosts) })
	return slices.ContainsFunc(h.hosts, func(m caddyhttp.MatchHost) bool {
		matches, err := m.MatchWithError(r)
		return err == nil && matches
	})
}

// addHosts adds the host matchers of a route, except *.* and a part of the request, which are
// anybody's.
func (h *Handler) addHosts(route caddyhttp.Route) {
	for _, m := range slices.Concat(route.MatcherSets...) {
		hosts, ok := m.(caddyhttp.MatchHost)
		if p, isPointer := m.(*caddyhttp.MatchHost); isPointer {
			hosts, ok = *p, true
		}
		if ok {
			h.hosts = append(h.hosts, slices.DeleteFunc(slices.Clone(hosts), func(host string) bool {
				return strings.Trim(host, "*.") == "" || strings.Contains(host, "{http.")
			}))
		}
	}
}
