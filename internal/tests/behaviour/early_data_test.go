package behaviour_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A gate is a socket whose owner hears nothing while it is shut, as one who sends from an address
// that is not his.
type gate struct {
	net.PacketConn
	open chan struct{}
}

func (g *gate) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := g.PacketConn.ReadFrom(b)
	<-g.open
	return n, from, err
}

// quicClient sends requests in early data from an address on loopback.
type quicClient struct {
	s         *sitetest.Served
	gate      *gate
	transport *http3.Transport
	open      func()
}

// ticket lets a client speak to the server from 127.0.0.1, which gives it what early data needs.
func ticket(s *sitetest.Served) tls.ClientSessionCache {
	s.T.Helper()
	got := make(chan struct{})
	cache := &watched{ClientSessionCache: tls.NewLRUClientSessionCache(0), put: sync.OnceFunc(func() { close(got) })}
	c := overQUIC(s, "127.0.0.1", cache)
	c.open()
	if a, err := c.get(s.T.Context(), http.MethodGet, sitetest.Header("K", "ticket")); err != nil || a.Status != http.StatusOK {
		s.T.Fatalf("to get a ticket: %d, %v", a.Status, err)
	}
	<-got
	return cache
}

// watched signals when a ticket is there.
type watched struct {
	tls.ClientSessionCache
	put func()
}

func (w *watched) Put(key string, state *tls.ClientSessionState) {
	w.ClientSessionCache.Put(key, state)
	w.put()
}

// overQUIC is a client at an address. It hears nothing before it is opened.
func overQUIC(s *sitetest.Served, address string, cache tls.ClientSessionCache) *quicClient {
	s.T.Helper()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		s.T.Skipf("no socket at %s: %v", address, err)
	}
	c := &quicClient{s: s, gate: &gate{PacketConn: socket, open: make(chan struct{})}}
	c.open = sync.OnceFunc(func() { close(c.gate.open) })
	tr := &quic.Transport{Conn: c.gate}
	config := s.Clients["HTTP/3.0"].Transport.(*http3.Transport).TLSClientConfig.Clone()
	config.ClientSessionCache = cache
	c.transport = &http3.Transport{
		TLSClientConfig: config,
		Dial: func(ctx context.Context, _ string, tlsConfig *tls.Config, quicConfig *quic.Config) (*quic.Conn, error) {
			return tr.DialEarly(ctx, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.Port}, tlsConfig, quicConfig)
		},
	}
	s.T.Cleanup(func() {
		c.open()
		_ = c.transport.Close()
		_ = tr.Close()
		_ = socket.Close()
	})
	return c
}

func (c *quicClient) get(ctx context.Context, method string, change ...func(*http.Request)) (sitetest.Reply, error) {
	r, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("https://127.0.0.1:%d/", c.s.Port), nil)
	if err != nil {
		return sitetest.Reply{}, err
	}
	r.Host = fmt.Sprintf("localhost:%d", c.s.Port)
	for _, f := range change {
		f(r)
	}
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		return sitetest.Reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return sitetest.Reply{Status: response.StatusCode, Header: response.Header, Body: string(body)}, err
}

// early sends requests in early data, and returns when the zone has decided on all of them. answers
// gives those that come back.
func (c *quicClient) early(zone string, count int, change ...func(*http.Request)) (answers func() []sitetest.Reply) {
	t := c.s.T
	t.Helper()
	decided := func() int { return decidedBy(t, zone) + sitetest.DecidedAs(t, zone, "skipped") }
	before := decided()
	all := make([]sitetest.Reply, count)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var done sync.WaitGroup
	for i := range all {
		done.Go(func() { all[i], all[i].Err = c.get(ctx, http3.MethodGet0RTT, change...) })
	}
	redistest.Eventually(t, "all early data is decided on", func() bool { return decided()-before == count })
	return func() []sitetest.Reply {
		done.Wait()
		return all
	}
}

// decidedBy is on how many requests a zone has decided.
func decidedBy(t *testing.T, zone string) (n int) {
	t.Helper()
	for _, decision := range []string{"admitted", "denied", "too_early", "would_deny"} {
		n += sitetest.DecidedAs(t, zone, decision)
	}
	return n
}

// from is a client that speaks HTTP/1.1 from an address, which its handshake proves.
func from(s *sitetest.Served, address string, count int, change ...func(*http.Request)) (admitted int) {
	s.T.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := s.Clients["HTTP/1.1"].Transport.(*http.Transport).Clone()
	transport.DialContext = dialer.DialContext
	defer transport.CloseIdleConnections()
	proven := *s
	proven.Clients = map[string]*http.Client{"HTTP/1.1": {Transport: transport}}
	for range count {
		a, err := proven.Get(s.T.Context(), "HTTP/1.1", change...)
		if err != nil {
			s.T.Fatal(err)
		}
		if a.Status == http.StatusOK {
			admitted++
		}
	}
	return admitted
}

var earlyZones atomic.Int64

// attack matches what does not come for a ticket.
const attack = "@attack not header K ticket\n"

// A client whose early data is refused is told to come again when its address is proven, and is
// admitted then. Nobody takes the refusal for a denial.
func TestEarlyDataIsRefusedWith425(t *testing.T) {
	for _, errorRoutes := range []bool{false, true} {
		zone, site := fmt.Sprint("early-", earlyZones.Add(1)), ""
		if errorRoutes {
			site = "\nhandle_errors {\nrespond \"page {err.status_code}\"\n}"
		}
		s := sitetest.StartCaddy(t, "", attack+"rate_limit @attack {\nheaders ietf kong github\nmessage \"slow down\"\n"+
			sitetest.ZoneBlock(zone, "limit 3/30d\nalgorithm sliding_log")+"}\nrespond ok"+site)
		cache := ticket(s)
		c := overQUIC(s, "127.0.0.1", cache)
		answers := c.early(zone, 4)
		c.open()
		var early []sitetest.Reply
		for _, a := range answers() {
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			if a.Status == http.StatusTooEarly {
				early = append(early, a)
			}
		}
		if len(early) != 4 {
			t.Fatalf("4 requests in early data: %d have 425, want all", len(early))
		}
		a := early[0]
		for name := range a.Header {
			if name == "Retry-After" || strings.Contains(strings.ToLower(name), "ratelimit") {
				t.Errorf("a denial with 425 has %s: %q", name, a.Header[name])
			}
		}
		if got := a.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("Cache-Control of 425: %q", got)
		}
		if got := a.Header.Get("Content-Type"); !errorRoutes && (got != "application/problem+json" || !strings.Contains(a.Body, `"status":425`)) {
			t.Errorf("425 has a body of type %q: %s", got, a.Body)
		}
		if errorRoutes && a.Body != "page 425" {
			t.Errorf("the error route's answer to 425: %q", a.Body)
		}
		for i := range 4 {
			want := http.StatusOK
			if i == 3 {
				want = http.StatusTooManyRequests
			}
			if a, err := c.get(t.Context(), http.MethodGet); err != nil || a.Status != want {
				t.Errorf("request %d after the handshake: %d, %v, want %d", i+1, a.Status, err, want)
			}
		}
		if n := loggedMessages(s, "rate limit exceeded"); n != 1 {
			t.Errorf("%d lines of denials, want one: nobody is named for early data", n)
		}
		if early, denied := sitetest.DecidedAs(t, zone, "too_early"), sitetest.DecidedAs(t, zone, "denied"); early != 4 || denied != 1 {
			t.Errorf("%d decisions are too early and %d denials, want 4 and 1", early, denied)
		}
	}
}

// loggedMessages counts the lines with a message.
func loggedMessages(s *sitetest.Served, message string) (n int) {
	s.T.Helper()
	written, err := os.ReadFile(s.Log)
	if err != nil {
		s.T.Fatal(err)
	}
	return strings.Count(string(written), `"msg":"`+message+`"`)
}

// victim is the address that is forged, and other one that is not.
const victim, other = "127.0.0.5", "127.0.0.6"

// byAnotherName are zones that know an address by another name.
var byAnotherName = map[string]struct {
	before, zone string
	passed       int // of 9 requests in early data
	owner, rest  int // of 5 requests each, after the handshake
	change       func(*http.Request)
}{
	"the default key":                    {zone: "limit 3/30d", owner: 3, rest: 3},
	"networks":                           {zone: "ipv4_prefix 24\nlimit 3/30d", owner: 3, rest: 0},
	"the peer, not counted without":      {zone: "key {remote_host}\nempty_key skip\nlimit 3/30d", owner: 3, rest: 3},
	"in place of an empty key":           {zone: "key {http.request.header.X-Api-Key}\nlimit 3/30d", owner: 3, rest: 3},
	"a key by map":                       {zone: "key {customer}\nlimit 3/30d", owner: 3, rest: 3},
	"a key by map, with a ban":           {zone: "key {customer}\nlimit 3/30d\nban 1h", owner: 3, rest: 3},
	"a key by vars":                      {before: "vars owner {customer}", zone: "key {http.vars.owner}\nlimit 3/30d", owner: 3, rest: 3},
	"a key by a header":                  {before: "request_header X-C {customer}", zone: "key {http.request.header.X-C}\nlimit 3/30d", owner: 3, rest: 3},
	"a key by the host":                  {before: "request_header Host {customer}", zone: "key {host}\nlimit 3/30d", owner: 3, rest: 3},
	"a key by the path":                  {before: "rewrite * /{customer}{uri}", zone: "key {path.0}\nlimit 3/30d", owner: 3, rest: 3},
	"a key that is empty by map":         {before: "map {client_ip} {known} {\n" + victim + " \"\"\ndefault other\n}", zone: "key {known}\nempty_key skip\nlimit 3/30d", owner: 5, rest: 3},
	"an exception by vars":               {zone: "key all\nlimit 3/30d\nexcept vars {customer} acme", owner: 5, rest: 3},
	"an exception by an expression":      {zone: "key all\nlimit 3/30d\nexcept `{customer} == \"acme\"`", owner: 5, rest: 3},
	"an exception by a header":           {before: "request_header X-C {customer}", zone: "key all\nlimit 3/30d\nexcept header X-C acme", owner: 5, rest: 3},
	"an exception by a rewritten path":   {before: "rewrite * /{customer}{uri}", zone: "key all\nlimit 3/30d\nexcept path /acme/*", owner: 5, rest: 3},
	"an exception by the path":           {zone: "key all\nlimit 3/30d\nexcept path /free", passed: 9, owner: 5, rest: 5, change: at("/free")},
	"a matcher by vars":                  {zone: "key all\nlimit 3/30d\nmatch vars {customer} acme", owner: 3, rest: 5},
	"a reserve by vars":                  {zone: "key all\nlimit 4/30d\nreserve @acme 50%", owner: 4, rest: 0},
	"a limit by map":                     {zone: "key all\nlimit {plan}/30d\nlimit_default 3/30d", owner: 5, rest: 3},
	"a count for all, whoever asks":      {zone: "key all\nlimit 3/30d", passed: 3, owner: 0, rest: 0},
	"a key that the server itself knows": {zone: "key {http.request.tls.server_name}\nlimit 3/30d", passed: 3, owner: 0, rest: 0},
}

// Whatever a site makes of the address, by its own variables or by what it rewrites, who sends
// early data from an address that is not his spends, bans, excepts and reserves nothing of
// anybody's.
func TestEarlyDataOfAnAddressByAnotherName(t *testing.T) {
	names := "map {client_ip} {customer} {plan} {\n" + victim + " acme unlimited\ndefault other 3\n}\n"
	for name, c := range byAnotherName {
		t.Run(name, func(t *testing.T) {
			zone := fmt.Sprint("early-", earlyZones.Add(1))
			s := sitetest.StartCaddy(t, "", "@acme vars {customer} acme\n"+attack+"route {\n"+names+c.before+"\nrate_limit @attack {\n"+
				sitetest.ZoneBlock(zone, "algorithm sliding_log\n"+c.zone)+"}\nrespond ok\n}")
			change := []func(*http.Request){func(*http.Request) {}}
			if c.change != nil {
				change = append(change, c.change)
			}
			attacker := overQUIC(s, victim, ticket(s))
			answers := attacker.early(zone, 9, change...)
			attacker.open()
			passed := 0
			for _, a := range answers() {
				switch {
				case a.Err != nil:
					t.Fatal(a.Err)
				case a.Status == http.StatusOK:
					passed++
				case a.Status != http.StatusTooEarly && c.owner+c.rest > 0:
					t.Errorf("early data that is denied: %d, want 425", a.Status)
				}
			}
			if passed != c.passed {
				t.Errorf("%d of 9 requests in early data pass, want %d", passed, c.passed)
			}
			if n := loggedMessages(s, "rate limit banned"); n != 0 {
				t.Errorf("%d bans by early data", n)
			}
			if got := from(s, victim, 5, change...); got != c.owner {
				t.Errorf("the owner of the address: %d of 5 requests admitted, want %d", got, c.owner)
			}
			if got := from(s, other, 5, change...); got != c.rest {
				t.Errorf("another client: %d of 5 requests admitted, want %d", got, c.rest)
			}
		})
	}
}

// at is a request for a path.
func at(path string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = path } }
