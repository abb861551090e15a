// Package harness is the benchmark code that all programs under comparison share: each is a Caddy
// with one handler of the ID http.handlers.rate_limit, or none, and is told apart by its imports
// only.
package harness

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard" // what a Caddy has
)

// A Result is one line of what "measure" prints.
type Result struct {
	Case string  `json:"case"`
	Ns   float64 `json:"ns"`
	// CPU is nanoseconds of CPU time of the whole process, with its garbage collector, and without
	// the time others had the CPU.
	CPU    float64 `json:"cpu"`
	Allocs int64   `json:"allocs"`
	Bytes  int64   `json:"bytes"`
	// PerKey is bytes of heap for each key, in cases of memory.
	PerKey float64 `json:"per_key,omitempty"`
}

// Main is the main function of a program under comparison: "measure" runs the cases, all else is
// Caddy.
func Main(who string) {
	if len(os.Args) < 2 || os.Args[1] != "measure" {
		caddycmd.Main()
		return
	}
	testing.Init()
	flags := flag.NewFlagSet("measure", flag.ExitOnError)
	benchtime := flags.String("benchtime", "200ms", "how long each case runs")
	only := flags.String("case", "", "run one case only")
	memory := flags.Bool("memory", false, "measure memory per key")
	_ = flags.Parse(os.Args[2:])
	if err := flag.Set("test.benchtime", *benchtime); err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	for _, c := range cases(who) {
		if c.memory != *memory || *only != "" && *only != c.name {
			continue
		}
		if err := out.Encode(c.run()); err != nil {
			log.Fatal(err)
		}
	}
}

// Load provisions a handler from its JSON, as a configuration of Caddy does.
func Load(config, app string) (h caddyhttp.MiddlewareHandler, end func()) {
	cfg := &caddy.Config{
		Admin:   &caddy.AdminConfig{Disabled: true},
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{Level: "ERROR"}}}},
	}
	base, err := caddy.ProvisionContext(cfg)
	if err != nil {
		log.Fatal(err)
	}
	if app != "" {
		cfg.AppsRaw = caddy.ModuleMap{"rate_limit": json.RawMessage(app)}
	}
	ctx, cancel := caddy.NewContext(base)
	v, err := ctx.LoadModuleByID("http.handlers.rate_limit", json.RawMessage(config))
	if err != nil {
		log.Fatal(err)
	}
	stop := func() error { return nil }
	if a, err := ctx.AppIfConfigured("rate_limit"); err == nil {
		app := a.(caddy.App)
		if err := app.Start(); err != nil {
			log.Fatal(err)
		}
		stop = app.Stop
	}
	return v.(caddyhttp.MiddlewareHandler), func() { _ = stop(); cancel() }
}

// A Client sends requests as Caddy's server does. It is not safe for concurrent use.
type Client struct {
	Request *http.Request
	repl    *caddy.Replacer
	fresh   caddy.Replacer
	vars    map[string]any
	w       sink
}

// NewClient prepares a request, with or without error routes on its server.
func NewClient(errorRoutes bool) *Client {
	server := &caddyhttp.Server{}
	if errorRoutes {
		server.Errors = &caddyhttp.HTTPErrorConfig{Routes: caddyhttp.RouteList{{}}}
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", "an-api-key-of-some-length-0123456789")
	c := &Client{repl: caddy.NewReplacer(), w: sink{http.Header{}}}
	c.Request = caddyhttp.PrepareRequest(r, c.repl, httptest.NewRecorder(), server)
	c.fresh = *c.repl
	c.vars = c.Request.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	return c
}

// Send sends one request from an address, a string, with headers and a replacer of its own as in a
// server, where nothing is left of the request before.
func (c *Client) Send(ip any, h caddyhttp.MiddlewareHandler, next caddyhttp.Handler) {
	c.vars[caddyhttp.ClientIPVarKey] = ip
	clear(c.w.h)
	*c.repl = c.fresh
	_ = h.ServeHTTP(c.w, c.Request, next)
}

// A crowd is a Client of many addresses, which it takes in turn.
type crowd struct {
	*Client
	ips []any
	at  int
}

func newCrowd(ips []any, errorRoutes bool) *crowd {
	return &crowd{Client: NewClient(errorRoutes), ips: ips}
}

func (c *crowd) send(h caddyhttp.MiddlewareHandler, next caddyhttp.Handler) {
	c.Send(c.ips[c.at], h, next)
	if c.at++; c.at == len(c.ips) {
		c.at = 0
	}
}

// addresses are made once, so that they are not among the allocations of a case.
func addresses(n int) []any {
	ips := make([]any, n)
	for i := range ips {
		ips[i] = Address(i)
	}
	return ips
}

// Address is the i-th of 16 million addresses.
func Address(i int) string {
	return net.IP(binary.BigEndian.AppendUint32(nil, 0x0a000000+uint32(i))).String()
}

type sink struct{ h http.Header }

func (d sink) Header() http.Header         { return d.h }
func (d sink) Write(b []byte) (int, error) { return len(b), nil }
func (d sink) WriteHeader(int)             {}

func (c *bench) run() Result {
	if c.memory {
		return c.perKey()
	}
	ips := addresses(c.keys)
	var worst string
	var used time.Duration // of the last and longest run
	r := testing.Benchmark(func(b *testing.B) {
		h, end := Load(c.config, "")
		defer end()
		var admitted, sent atomic.Int64
		next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
		if c.denies {
			warm := newCrowd(ips, false)
			for range c.keys { // the one request of each key that the limit admits
				warm.send(h, next)
			}
		}
		counting := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { admitted.Add(1); return nil })
		check := newCrowd(ips, c.errorRoutes)
		for range c.keys {
			check.send(h, counting)
			sent.Add(1)
		}
		if want := map[bool]int64{true: 0, false: sent.Load()}[c.denies]; admitted.Load() != want {
			worst = fmt.Sprintf("%s: %d of %d admitted, want %d", c.name, admitted.Load(), sent.Load(), want)
		}
		b.ReportAllocs()
		if c.parallel {
			start := CPUTime()
			defer func() { used = CPUTime() - start }()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				client := newCrowd(ips, c.errorRoutes)
				for pb.Next() {
					client.send(h, next)
				}
			})
			return
		}
		client := newCrowd(ips, c.errorRoutes)
		start := CPUTime()
		b.ResetTimer()
		for range b.N {
			client.send(h, next)
		}
		used = CPUTime() - start
	})
	if worst != "" {
		log.Fatal(worst)
	}
	return Result{Case: c.name, Ns: float64(r.T.Nanoseconds()) / float64(r.N), CPU: float64(used) / float64(r.N), Allocs: r.AllocsPerOp(), Bytes: r.AllocedBytesPerOp()}
}

// perKey sends one request of each key.
func (c *bench) perKey() Result {
	h, end := Load(c.config, "")
	defer end()
	client := newCrowd(addresses(c.keys), false)
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	before := Heap()
	for range c.keys {
		client.send(h, next)
	}
	after := Heap()
	runtime.KeepAlive(client)
	return Result{Case: c.name, PerKey: float64(after-before) / float64(c.keys)}
}

// Heap is how many bytes are live.
func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
