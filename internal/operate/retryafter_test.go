package operate

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Clients that live by the header: alone with their key they wait as long as Retry-After says, and
// are admitted then.

// patientZone is any zone with as many limits, in which a client is denied soon.
func patientZone(rt *rapid.T, name string, kind algorithms.Kind, rate config.SyncRate, limits int) config.Settings {
	s := config.Settings{
		Name: name, Kind: kind, SubWindows: 1, SyncRate: rate, MaxKeys: 1000, CountDenied: rapid.Bool().Draw(rt, "count_denied"),
	}
	window := time.Duration(0)
	for range limits {
		window += time.Duration(rapid.IntRange(1, 20).Draw(rt, "window")) * rapid.SampledFrom([]time.Duration{time.Second, time.Second, 700 * time.Millisecond}).Draw(rt, "of")
		s.Limits = append(s.Limits, config.Rate{Limit: rapid.Int64Range(1, 6).Draw(rt, "limit"), Window: window})
	}
	switch kind {
	case algorithms.SlidingWindow:
		s.SubWindows = rapid.SampledFrom([]int{1, 1, 1, 4}).Draw(rt, "sub_windows")
	case algorithms.TokenBucket, algorithms.GCRA:
		s.Burst = rapid.Int64Range(0, 4).Draw(rt, "burst")
	case algorithms.LeakyBucket:
		s.Queue = rapid.Int64Range(0, 4).Draw(rt, "queue")
	}
	return s
}

// A patientCase is zones, and a client that comes again as soon as it may.
type patientCase struct {
	zones []config.Settings
	// pauses are those between its requests while it is admitted. early is the share of the first
	// wait after which it comes all the same, and late how long after the others it comes.
	pauses, late []time.Duration
	early        float64

	history []string
}

// inMemory is a Redis without a network, whose time is that of the bubble.
func inMemory() (server *miniredis.Miniredis, client *redis.Client) {
	server = miniredis.NewMiniRedis()
	return server, clientOf(server)
}

func clientOf(server *miniredis.Miniredis) *redis.Client {
	return redis.NewClient(&redis.Options{
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		MaxRetries: -1, DialerRetries: 1, PipelinePoolSize: -1, DisableIdentity: true, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// run has the client live by the header. It returns what is wrong, "" for nothing.
func (c *patientCase) run(t *testing.T) string {
	server, client := inMemory()
	defer server.Close()
	defer client.Close()
	redis := borrowed(client, "test", time.Second)
	defer redis.Close()
	zones := handler(t, redis, c.zones...)
	_, stop := running(redis, "", zones)
	defer stop()
	p := &patient{t: t, zones: zones}
	defer p.admitted.Wait()
	sleep := func(d time.Duration) {
		time.Sleep(d)
		server.FastForward(d)
		synctest.Wait()
	}
	for i, waits := 0, 0; waits < len(c.late); i++ {
		wait, what := p.request()
		c.history = p.history
		switch {
		case what != "":
			return what
		case i == 2000:
			return "it is never denied"
		case wait > 0 && c.early > 0:
			sleep(time.Duration(c.early * float64(wait)))
			c.early, p.waited = 0, false
		case wait > 0:
			sleep(wait + c.late[waits])
			waits++
		case i%20 < 10: // else it never stops
			sleep(c.pauses[i%10])
		}
	}
	return ""
}

// A patient is a client. It has waited where it has done so since it was denied last.
type patient struct {
	t        *testing.T
	zones    []*limits.Zone
	waited   bool
	admitted sync.WaitGroup
	history  []string
}

// answers are those of a handler.
var answers = answer.NewResponder(answer.Options{Status: http.StatusTooManyRequests, Headers: answer.IETF})

// request sends a request, and returns how long the client is told to wait, 0 where it is admitted,
// and what is wrong, "" for nothing.
func (p *patient) request() (wait time.Duration, what string) {
	said, err := ExplainZones(p.zones, request("a"))
	if err != nil {
		return 0, err.Error()
	}
	r := request("a")
	e, err := limits.Evaluate(p.zones, r, clock.Now())
	if err != nil {
		return 0, err.Error()
	}
	what = differAll(p.zones, said, e, 2*time.Millisecond)
	if !e.Denied {
		p.history = append(p.history, fmt.Sprint(clock.Now()/1e6%1e6, " admitted"))
		p.waited = false
		p.admitted.Go(func() { // it may wait in a queue, while the client sends the next one
			defer e.Free()
			if err := e.Enter(r.Context()); err != nil {
				p.t.Error(err)
			}
		})
		return 0, what
	}
	defer e.Free()
	w := httptest.NewRecorder()
	if err := answers.Deny(w, r, &e.Denial); err != nil {
		return 0, err.Error()
	}
	seconds, _ := strconv.Atoi(w.Header().Get("Retry-After"))
	p.history = append(p.history, fmt.Sprint(clock.Now()/1e6%1e6, " denied for ", seconds, ": ", e.Denial.Wait, " ", w.Header().Get("RateLimit")))
	if p.waited {
		return 0, "it is denied though it has waited"
	}
	p.waited = true
	return time.Duration(seconds) * time.Second, what + disagrees(w.Header().Get("RateLimit"), seconds)
}

// disagrees says what is wrong with the header RateLimit of a denied request: of a limit that has
// nothing left it tells no longer wait than Retry-After.
func disagrees(header string, seconds int) string {
	for item := range strings.SplitSeq(header, ", ") {
		_, t, ok := strings.Cut(item, ";r=0;t=")
		if n, _ := strconv.Atoi(t); ok && n > seconds {
			return fmt.Sprintf("RateLimit is %s beside Retry-After %d", header, seconds)
		}
	}
	return ""
}

// modes are all values of sync_rate that differ in who decides.
var modes = []config.SyncRate{config.Local, config.SyncRate(time.Second), config.Strict}

// A client that is alone with its key and waits as long as Retry-After says is admitted at the
// first attempt after that, and explain says so before: in every algorithm and mode, with one
// and two limits and zones, whether denied requests count or not.
func TestAClientThatLivesByTheHeader(t *testing.T) {
	number := 0
	for _, kind := range kinds {
		for _, mode := range modes {
			for _, size := range [][2]int{{1, 1}, {1, 2}, {2, 1}, {2, 2}} {
				name := fmt.Sprintf("%s, sync_rate %s, %d zones with %d limits", kind, mode, size[0], size[1])
				draw := rapid.Custom(func(rt *rapid.T) (c patientCase) {
					for i := range size[0] {
						rate, k := mode, kind
						if i > 0 {
							rate, k = rapid.SampledFrom(modes).Draw(rt, "sync_rate"), rapid.SampledFrom(kinds).Draw(rt, "kind")
						}
						c.zones = append(c.zones, patientZone(rt, "", k, rate, size[1]))
					}
					c.pauses = rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 300 * time.Millisecond, time.Second}), 10, 10).Draw(rt, "pauses")
					c.late = rapid.SliceOfN(rapid.SampledFrom([]time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}), 8, 8).Draw(rt, "late")
					c.early = rapid.Float64Range(0, 0.99).Draw(rt, "early")
					return c
				})
				t.Run(name, func(t *testing.T) {
					for i := range redistest.Times(1, 20) {
						c := draw.Example(i)
						number++
						for j := range c.zones {
							c.zones[j].Name = fmt.Sprint("patient ", number, " ", j)
						}
						synctest.Test(t, func(t *testing.T) {
							if what := c.run(t); what != "" {
								t.Errorf("%s\n%s\n%s", what, c.describe(), strings.Join(c.history, "\n"))
							}
						})
					}
				})
			}
		}
	}
}

func (c *patientCase) describe() string {
	var b strings.Builder
	for _, s := range c.zones {
		fmt.Fprintf(&b, "zone %s: %s, sync_rate %s, limits %v, burst %d, queue %d, sub_windows %d, count_denied %t\n", s.Name, s.Kind, s.SyncRate, s.Limits, s.Burst, s.Queue, s.SubWindows, s.CountDenied)
	}
	return b.String()
}
