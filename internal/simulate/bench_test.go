package simulate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// browsed are lines as Caddy writes them of requests by browsers, of which some clients send many.
func browsed(lines int, combined bool) string {
	const agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
	rng := rand.New(rand.NewPCG(7, 7))
	var b strings.Builder
	at := 0.
	for i := range lines {
		at += rng.Float64() / 250
		k := int(50_000 * rng.Float64() * rng.Float64() * rng.Float64())
		ip, uri := fmt.Sprintf("10.0.%d.%d", k>>8, k&255), fmt.Sprintf("/articles/%d?page=%d", rng.IntN(5000), i%7)
		if combined {
			fmt.Fprintf(&b, `%s - - [%s] "GET %s HTTP/2.0" 200 5321 "https://example.com/" "%s"`+"\n", ip, time.Unix(begin+int64(at), 0).UTC().Format("02/Jan/2006:15:04:05 -0700"), uri, agent)
			continue
		}
		fmt.Fprintf(&b, `{"level":"info","ts":%.7f,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"%s","remote_port":"%d","client_ip":"%s","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"%s",`+
			`"headers":{"Accept":["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],"Accept-Encoding":["gzip, deflate, br, zstd"],"Accept-Language":["en-US,en;q=0.5"],"Cookie":["REDACTED"],"Referer":["https://example.com/"],"User-Agent":["%s"]},`+
			`"tls":{"resumed":true,"version":772,"cipher_suite":4865,"proto":"h2","server_name":"example.com"}},"bytes_read":0,"user_id":"","duration":%.9f,"size":5321,"status":200,"resp_headers":{"Server":["Caddy"],"Content-Type":["text/html; charset=utf-8"],"Alt-Svc":["h3=\":443\"; ma=2592000"]}}`+"\n",
			begin+at, ip, 1024+i%60_000, ip, uri, agent, rng.Float64()/100)
	}
	return b.String()
}

// BenchmarkReplay replays a log of 100,000 lines.
func BenchmarkReplay(b *testing.B) {
	const lines = 100_000
	for name, combined := range map[string]bool{"json": false, "combined": true} {
		b.Run(name, func(b *testing.B) {
			log := browsed(lines, combined)
			b.SetBytes(int64(len(log)))
			b.ReportAllocs()
			for b.Loop() {
				p, err := simulate.Load(oneZone(b, 100, ""))
				if err != nil {
					b.Fatal(err)
				}
				f, err := accesslog.Open([]string{"-"}, strings.NewReader(log))
				if err != nil {
					b.Fatal(err)
				}
				if r, err := simulate.Run(p, f, simulate.Options{Reorder: time.Minute}); err != nil || r.Requests != lines {
					b.Fatal(r, err)
				}
			}
		})
	}
}
