package ratelimit

import (
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// benchmarkServeHTTP sends requests from 10,000 addresses through one zone.
func benchmarkServeHTTP(b *testing.B, options string) {
	benchmarkHandler(b, newSite(b, &App{}, "headers off\ndisable_placeholders\n"+zoneBlock(b.Name(), options)).handler)
}

func benchmarkHandler(b *testing.B, h caddyhttp.MiddlewareHandler) {
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		repl := caddy.NewReplacer()
		r = caddyhttp.PrepareRequest(r, repl, httptest.NewRecorder(), &caddyhttp.Server{})
		fresh := *repl
		var ips [10_000]string
		for i := range ips {
			ips[i] = net.IP(binary.BigEndian.AppendUint32(nil, 0x0a000000+uint32(i))).String()
		}
		w := sink{http.Header{}}
		vars := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
		boxed := make([]any, len(ips))
		for i := range ips {
			boxed[i] = ips[i]
		}
		for i := 0; pb.Next(); i++ {
			vars[caddyhttp.ClientIPVarKey] = boxed[i%len(ips)]
			clear(w.h)
			*repl = fresh // as for a request of its own
			_ = h.ServeHTTP(w, r, next)
		}
	})
}

type sink struct{ h http.Header }

func (d sink) Header() http.Header         { return d.h }
func (d sink) Write(b []byte) (int, error) { return len(b), nil }
func (d sink) WriteHeader(int)             {}

func BenchmarkServeHTTPAdmitted(b *testing.B) {
	benchmarkServeHTTP(b, "limit 1000000000/1m\nkey {client_ip}")
}

// nothing is what a request takes without the handler: what the benchmark itself does.
type nothing struct{}

func (nothing) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(w, r)
}

func BenchmarkServeHTTPNextAlone(b *testing.B) { benchmarkHandler(b, nothing{}) }

func BenchmarkServeHTTPRefused(b *testing.B) { benchmarkServeHTTP(b, "limit 0/1m\nkey {client_ip}") }
