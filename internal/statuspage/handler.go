package statuspage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

func init() {
	caddy.RegisterModule(new(Handler))
	httpcaddyfile.RegisterHandlerDirective("rate_limit_status", parse)
	httpcaddyfile.RegisterDirectiveOrder("rate_limit_status", httpcaddyfile.Before, "respond")
}

// Handler shows how the rate limits of this node stand: as a page, or as JSON where a client asks
// for application/json. It changes nothing, and shows keys of
// zones with log_key alone.
type Handler struct {
	// Allow are the clients that may see it: addresses or ranges of them, "private" for private
	// networks and this machine, or "all". Both the address of the client behind trusted proxies
	// and that of the peer must be among them; a trusted proxy on this machine needn't be. Except
	// with "all", the host that is asked for must be localhost, an address, or one that a host
	// matcher of the server has. Default: this machine, by localhost or an address.
	Allow []string `json:"allow,omitempty"`

	ranges []netip.Prefix
	opened bool

	findHosts sync.Once
	hosts     []caddyhttp.MatchHost // of the server, once they were needed

	mu   sync.Mutex
	view *View // made less than fresh ago
	made time.Time
}

const (
	// fresh is how long a view is shown again: however many clients ask, it is made once.
	fresh = time.Second
	// peerTimeout is how long other nodes are waited for.
	peerTimeout = 500 * time.Millisecond
)

var thisMachine = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

var private = []string{"127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "169.254.0.0/16", "fe80::/10"}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.rate_limit_status", New: func() caddy.Module { return new(Handler) }}
}

// parse reads the directive:
//
//	rate_limit_status [<matcher>] {
//	    allow private|all|<address>|<cidr>...
//	}
func parse(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile reads the directive.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.Errf("%q: rate_limit_status takes nothing on its line but a matcher; write `allow %[1]s` into a block after it", d.Val())
	}
	for d.NextBlock(0) {
		if d.Val() != "allow" {
			return d.Errf("there is no option %q here; there is allow", d.Val())
		}
		args := d.RemainingArgs()
		if len(args) == 0 {
			return d.Err("allow needs who may see the page; write private, all, or addresses like 192.0.2.0/24")
		}
		h.Allow = append(h.Allow, args...)
		if _, err := parseRanges(h.Allow); err != nil {
			return d.WrapErr(err)
		}
	}
	return nil
}

// Provision begins to sample what zones count.
func (h *Handler) Provision(caddy.Context) error {
	var err error
	if h.ranges, err = parseRanges(h.Allow); err != nil {
		return err
	}
	shared.open()
	h.opened = true
	return nil
}

// Cleanup ends that.
func (h *Handler) Cleanup() error {
	if h.opened {
		shared.close()
		h.opened = false
	}
	return nil
}

// parseRanges reads who may see the page.
func parseRanges(allow []string) (all []netip.Prefix, err error) {
	if len(allow) == 0 {
		return thisMachine, nil
	}
	for _, text := range allow {
		switch text {
		case "all":
			all = append(all, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
			continue
		case "private", "private_ranges":
			for _, one := range private {
				all = append(all, netip.MustParsePrefix(one))
			}
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if address, bad := netip.ParseAddr(text); bad == nil {
			prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("parsing allow: %q is no address; write private, all, or addresses like 192.0.2.7 and 192.0.2.0/24", text)
		}
		all = append(all, prefix.Masked())
	}
	return all, nil
}

// ServeHTTP shows the page.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	protect(w.Header())
	if status, why := h.check(r); status != 0 {
		return write(w, r, status, "text/plain; charset=utf-8", []byte(why+"\n"))
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return write(w, r, http.StatusMethodNotAllowed, "text/plain; charset=utf-8", []byte("This page can only be read: use GET.\n"))
	}
	if r.URL.RawQuery == "script" {
		return write(w, r, http.StatusOK, "text/javascript; charset=utf-8", script)
	}
	w.Header().Set("Vary", "Accept")
	v := h.current(r.Context())
	if wantsJSON(r) {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return write(w, r, http.StatusOK, "application/json", append(text, '\n'))
	}
	page := *v
	page.choose(r.URL.Query().Get("zone"))
	var text bytes.Buffer
	if err := html.Execute(&text, pageData{&page, style}); err != nil {
		return err
	}
	return write(w, r, http.StatusOK, "text/html; charset=utf-8", text.Bytes())
}

// protect sets what keeps the page from being read, framed or run by others.
func protect(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
}

func write(w http.ResponseWriter, r *http.Request, status int, contentType string, body []byte) error {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err := w.Write(body)
	return err
}

// wantsJSON reports whether a client asks for JSON and not for a page.
func wantsJSON(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

// current returns a view that is no older than fresh.
func (h *Handler) current(ctx context.Context) *View {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.view == nil || time.Since(h.made) > fresh {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerTimeout)
		defer cancel()
		s := operate.StateWithChanges(ctx)
		h.view = viewOf(s, &shared, time.Now())
		if config := lifecycle.Current(); config != nil {
			h.view.Denied = operate.MostDenied(config, deniedKeys)
			h.view.Bans = operate.BansOf(config, s.Overrides, "", operate.TopKeys)
		}
		h.made = time.Now()
	}
	return h.view
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
