package behaviour_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// traffic is requests to one zone, one after the other, and what came of them.
type traffic struct {
	zone                     string
	admitted, denied, failed atomic.Int64
	first                    atomic.Value
}

// run sends requests until stop is closed.
func (f *traffic) run(l *sitetest.Lifetime, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		switch status, _, err := l.Post("/"+f.zone, "K", strconv.Itoa(i%8)); {
		case err != nil || status != http.StatusOK && status != http.StatusTooManyRequests:
			f.failed.Add(1)
			f.first.CompareAndSwap(nil, fmt.Sprint(status, " ", err))
		case status == http.StatusOK:
			f.admitted.Add(1)
		default:
			f.denied.Add(1)
		}
	}
}

func (f *traffic) answered() int64 { return f.admitted.Load() + f.denied.Load() + f.failed.Load() }

// under runs f under the load of all traffic.
func under(l *sitetest.Lifetime, all []*traffic, f func()) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, one := range all {
		wg.Go(func() { one.run(l, stop) })
	}
	f()
	close(stop)
	wg.Wait()
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what the first one found only to be finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// reloads are the ways in which a configuration is replaced, in turn.
type reloads struct {
	*sitetest.Lifetime
	redis [2]*redistest.Server
	taken int // a port that is in use
	at    int // which redis
	begun time.Time
	tight int // the limit of the tight zone
}

func (r *reloads) written(more string) []byte {
	var zones strings.Builder
	for _, z := range []struct{ name, options string }{
		{"life-fixed", "algorithm fixed_window"}, {"life-bucket", "algorithm token_bucket"}, {"life-local", "algorithm fixed_window\nsync_rate local"},
		{"life-strict", "algorithm fixed_window\nsync_rate strict"},
	} {
		zones.WriteString(sitetest.ZoneBlock(z.name, fmt.Sprintf("match {\npath /%s\n}\nkey {http.request.header.K}\nlimit %d/30d\n%s", z.name, 1_000_000+r.tight, z.options)))
	}
	zones.WriteString(sitetest.ZoneBlock("life-tight", fmt.Sprintf("match {\npath /life-tight\n}\nkey all\nlimit %d/30d\nsync_rate local", r.tight)))
	// Both timeouts are longer than a busy machine may hold a call up: what a node decides by
	// itself after one, Redis may have decided as well.
	return r.Config("redis "+r.redis[r.at].URL+"?timeout=30s\nnamespace test\nsync_rate 100ms\nstrict_timeout 30s", "rate_limit {\n"+zones.String()+"}\nrespond ok", more)
}

// reload replaces the configuration for the i-th time.
func (r *reloads) reload(i int) {
	r.T.Helper()
	switch i % 5 {
	case 0: // the same again
	case 1:
		r.tight++
	case 2:
		r.at = 1 - r.at
	case 3:
		broken := bytes.Replace(r.written(""), []byte("token_bucket"), []byte("no_bucket"), 1)
		if caddy.Load(broken, true) == nil {
			r.T.Fatal("a configuration with an unknown algorithm was loaded")
		}
		return
	case 4: // this one fails when it starts, before or after the app, and may have served by then
		r.at = 1 - r.at
		broken := r.written(fmt.Sprintf("http://:%d {\n\tbind 127.0.0.1\n\trespond no\n}\n", r.taken))
		r.at = 1 - r.at
		if caddy.Load(broken, true) == nil {
			r.T.Fatal("a configuration with a port that is taken was loaded")
		}
		return
	}
	r.Load(r.written(""))
}

// Fifty reloads of all kinds under load: no request fails, no count is lost or doubled, and nothing
// is left in memory.
//
// no clock: by it is reckoned what has drained.
func TestFiftyReloadsUnderLoad(t *testing.T) {
	r := &reloads{redis: [2]*redistest.Server{redistest.Start(t), redistest.Start(t)}, tight: 50, begun: time.Now()}
	taken, free := takenPort(t)
	defer free()
	r.taken = taken
	before := goleak.IgnoreCurrent()
	r.Lifetime = sitetest.NewLifetime(t)
	r.Load(r.written(""))
	var all []*traffic
	for _, zone := range []string{"life-fixed", "life-bucket", "life-local", "life-strict", "life-tight"} {
		all = append(all, &traffic{zone: zone})
	}
	rounds := func(n int) {
		under(r.Lifetime, all, func() {
			for i := range n {
				r.reload(i)
				for _, f := range all {
					want := f.answered() + 2
					redistest.Eventually(t, "requests to "+f.zone+" are answered", func() bool { return f.answered() >= want })
				}
			}
		})
	}
	rounds(20) // what stays after the first reloads is no leak
	base := heap()
	rounds(50)
	var after uint64
	redistest.Eventually(t, "the heap is back within 5 %", func() bool {
		after = heap()
		return after <= base+base/20
	})
	t.Logf("heap: %d bytes before 50 reloads, %d after", base, after)
	r.checkCounts(all)
	if err := caddy.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	r.Client.CloseIdleConnections()
	goleak.VerifyNone(t, append(sitetest.CaddysOwn, before)...)
}

// takenPort is a port that is in use until free is called.
func takenPort(t *testing.T) (port int, free func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close
}

// checkCounts holds what clients saw against the counters.
//
// no clock: by it is reckoned what has drained.
func (r *reloads) checkCounts(all []*traffic) {
	t := r.T
	for _, f := range all {
		admitted := f.admitted.Load()
		t.Logf("%s: %d admitted, %d denied", f.zone, admitted, f.denied.Load())
		if f.failed.Load() > 0 {
			t.Errorf("%s: %d requests failed, the first with %v", f.zone, f.failed.Load(), f.first.Load())
		}
		switch f.zone {
		case "life-tight":
			if admitted != int64(r.tight) {
				t.Errorf("%s: %d admitted, want the last limit, %d", f.zone, admitted, r.tight)
			}
		case "life-local":
			sitetest.Shows(t, f.zone, fmt.Sprintf("has counted %d", admitted), func(z operate.LimitState) bool { return z.Own == admitted })
		case "life-bucket":
			// Of each of its eight keys some has drained.
			drained := func() int64 { return 8 * (1 + int64(1_000_100*time.Since(r.begun)/(30*24*time.Hour))) }
			sitetest.Shows(t, f.zone, fmt.Sprintf("has counted %d", admitted), func(z operate.LimitState) bool {
				return z.Own <= admitted && z.Own >= admitted-drained() && z.Remote == 0 && z.Unsent == 0
			})
			if got := sitetest.LevelIn(t, r.redis[r.at], f.zone); got > admitted || got < admitted-drained() {
				t.Errorf("%s: redis holds %d, want the %d that were admitted, less at most %d", f.zone, got, admitted, drained())
			}
		default:
			sitetest.Shows(t, f.zone, fmt.Sprintf("has counted %d", admitted), func(z operate.LimitState) bool { return z.Own == admitted && z.Unsent == 0 })
			if got := sitetest.SumIn(t, r.redis[r.at], f.zone); got != admitted {
				t.Errorf("%s: redis holds %d, want the %d that were admitted", f.zone, got, admitted)
			}
		}
		if f.zone != "life-tight" && f.denied.Load() > 0 {
			t.Errorf("%s: %d requests were denied", f.zone, f.denied.Load())
		}
	}
}

// While a reload hands over, requests that the old configuration took and those that the new one
// takes share their counters, each under its own limit, also where the old one has stopped already:
// Caddy stops apps in any order.
func TestTwoConfigurationsServeAtOnce(t *testing.T) {
	r := redistest.Start(t)
	for _, rate := range []string{"local", "100ms", "strict"} {
		for _, stopped := range []bool{false, true} {
			site := func(limit int) *sitetest.Site {
				options := fmt.Sprintf("limit %d/30d\nalgorithm fixed_window\nsync_rate %s", limit, rate)
				return sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock(fmt.Sprintf("both-%s-%t", rate, stopped), options))
			}
			old, next := site(10), site(15)
			if stopped {
				old.Ended = true
				t.Cleanup(old.Cancel)
				if err := old.App.Stop(); err != nil {
					t.Error(err)
				}
			}
			next.Admits("1.2.3.4", 12, 12)
			old.Admits("1.2.3.4", 6, 0)
			next.Admits("1.2.3.4", 6, 3)
			old.End()
			next.End()
		}
	}
}

// A reload that changes a window begins that limit at zero, also where its number comes with the
// request. The other limits of the zone go on.
func TestAReloadThatChangesTheWindowOfALimitThatComesWithTheRequest(t *testing.T) {
	of := func(windows string) *sitetest.Site {
		return sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("windows", "limit "+windows+"\nalgorithm fixed_window\nlimit_default 3/"+
			strings.Join(strings.Fields(strings.ReplaceAll(windows, "{http.request.header.X-Plan}/", "")), " 3/")))
	}
	s := of("{http.request.header.X-Plan}/3000d {http.request.header.X-Plan}/3650d")
	s.Admits("7.7.8.1", 4, 4, sitetest.Plan("10"))
	next := of("{http.request.header.X-Plan}/2900d {http.request.header.X-Plan}/3650d")
	s.End()
	next.Admits("7.7.8.1", 9, 6, sitetest.Plan("10")) // by the longer window
	last := of("{http.request.header.X-Plan}/2800d")
	next.End()
	last.Admits("7.7.8.1", 12, 10, sitetest.Plan("10"))
}
