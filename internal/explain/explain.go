// Package explain says what would happen to a request, or to the next one of a key, and why. It
// consumes nothing: it asks copies of the counters (limits.Zone.Fork), and Redis without a write.
package explain

import (
	"encoding/base64"
	"math"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/settings"
)

// A Decision is what would become of a request, in all or in one zone or limit.
type Decision string

// The decisions, as metrics name them where they have a name there.
const (
	Admitted    Decision = "admitted"
	Denied      Decision = "denied"
	WouldDeny   Decision = "would_deny"  // denied in shadow mode
	Skipped     Decision = "skipped"     // the zone doesn't limit the request
	Unavailable Decision = "unavailable" // the zone fails closed while Redis is unavailable
	TooEarly    Decision = "too_early"   // denied in early data
	NotAsked    Decision = "not_asked"   // another zone denies before, or Redis needs not be asked
)

// A Handler is what a rate_limit handler would do.
type Handler struct {
	// Decision is that of all its zones. Zone is the one that denies with the longest Wait, which
	// is in seconds. Delay is how many seconds an admitted request waits in queues.
	Decision Decision `json:"decision"`
	Zone     string   `json:"zone,omitempty"`
	Wait     float64  `json:"wait,omitempty"`
	Delay    float64  `json:"delay,omitempty"`
	// Zones are in the order in which they are asked.
	Zones []Zone `json:"zones"`
}

// A Zone is what one zone says.
type Zone struct {
	Zone     string   `json:"zone"`
	Decision Decision `json:"decision"`
	// Mismatch says why the zone doesn't limit the request: of each of its matcher sets the matcher
	// that did not match, except, or the reason in words.
	Mismatch []string `json:"mismatch,omitempty"`
	// Shadow is set where the zone is not enforced for the key.
	Shadow bool `json:"shadow,omitempty"`
	// Key is the key as text, and ID what names it to other nodes and in Redis.
	Key    string  `json:"key,omitempty"`
	ID     string  `json:"id,omitempty"`
	Limits []Limit `json:"limits,omitempty"`
}

// A Limit is how one limit stands, and what it says.
type Limit struct {
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
	// Used is how much is spent before the request, and Remaining how much is left. They are units
	// of the burst where there is one. Remote is the part of Used that other nodes counted, nil
	// where Redis decides, which knows only the sum.
	Used      int64  `json:"used"`
	Remote    *int64 `json:"remote,omitempty"`
	Remaining int64  `json:"remaining"`
	// After is what is left after the request, as its answer says.
	After    int64    `json:"after"`
	Decision Decision `json:"decision"`
	// Wait is how many seconds a denied request should wait.
	Wait float64 `json:"wait,omitempty"`
}

// Zones says what the zones of a handler would do with a request.
func Zones(zones []*limits.Zone, r *http.Request) (h Handler, err error) {
	x := &explanation{}
	for _, z := range zones {
		if err := x.request(z, r); err != nil {
			return h, err
		}
	}
	return x.decide(r)
}

// Key says what a zone would do with the next request of a key, whatever else such a request is. ok
// is false where the key is only known by its ID, and has no counter of its own here.
func Key(z *limits.Zone, k limits.Key) (h Handler, ok bool, err error) {
	x := &explanation{}
	if !x.fork(z, k) {
		return h, false, nil
	}
	r, _ := http.NewRequest(http.MethodGet, "http://localhost/", nil)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), discard{}, &caddyhttp.Server{})
	h, err = x.decide(r)
	return h, true, err
}

// explanation is a request's way through the zones of a handler.
type explanation struct {
	all   []Zone
	forks []*limits.Zone
	of    []int // in all, for each of forks
}

// request notes what a zone has to do with a request.
func (x *explanation) request(z *limits.Zone, r *http.Request) error {
	said := Zone{Zone: z.Name, Decision: Skipped}
	mismatch, err := mismatchOf(z.Matchers, r)
	if err != nil {
		return err
	}
	excepted, err := z.Excepts(r)
	if err != nil {
		return err
	}
	if excepted && mismatch == nil {
		mismatch = []string{"except"}
	}
	if said.Mismatch = mismatch; mismatch != nil {
		x.all = append(x.all, said)
		return nil
	}
	k, none := z.KeyOf(r)
	switch {
	case !none:
		x.fork(z, k)
		return nil
	case z.DeniesEmpty():
		x.fork(z, limits.KeyOf(nil))
		return nil
	default:
		said.Mismatch = []string{"the key is empty, and empty_key is skip"}
	}
	x.all = append(x.all, said)
	return nil
}

// fork copies what a zone holds of a key. It returns false where that is not found.
func (x *explanation) fork(z *limits.Zone, k limits.Key) bool {
	said := Zone{Zone: z.Name, Decision: NotAsked, Shadow: !z.Enforces(k)}
	f, ok := z.Fork(k)
	if !ok {
		return false
	}
	if len(k.Raw) == 0 {
		if said.Decision = Denied; said.Shadow {
			said.Decision = WouldDeny
		}
		said.Mismatch = []string{"the key is empty, and empty_key is deny"}
		x.forks, x.of = append(x.forks, f), append(x.of, len(x.all))
		x.all = append(x.all, said)
		return true
	}
	if said.ID = base64.RawURLEncoding.EncodeToString(k.ID[:]); !k.ByID {
		said.Key = z.Template.Text(k.Raw)
	}
	now := clock.Now()
	for _, s := range f.Stand(now) {
		remote := s.Remote
		said.Limits = append(said.Limits, Limit{
			Limit: s.Rate.Limit, Window: rates.WindowText(s.Rate.Window), Used: s.Used, Remote: &remote,
			Remaining: s.Size - s.Used, After: s.Size - s.Used, Decision: NotAsked,
		})
	}
	if f, ok = z.Fork(k); ok { // another one: to be asked is to be brought to now
		x.forks, x.of = append(x.forks, f), append(x.of, len(x.all))
		x.all = append(x.all, said)
	}
	return ok
}

// decide asks the zones together, as a request would, and each that was not asked then by itself.
func (x *explanation) decide(r *http.Request) (h Handler, err error) {
	h.Decision, h.Zones = Admitted, x.all
	if h.Zones == nil {
		h.Zones = []Zone{}
	}
	e, err := limits.Evaluate(x.forks, r, clock.Now())
	if err != nil {
		return h, err
	}
	defer e.Free()
	for i, f := range x.forks {
		said := &x.all[x.of[i]]
		o, asked := e.Of(f)
		if asked {
			said.Decision = Admitted
			said.add(o)
			continue
		}
		switch d := e.Denial(); {
		case said.Limits == nil: // it has no key
		case f.OnRedisLoss == settings.LossDeny && said.Shadow && !e.IsDenied():
			said.Decision = WouldDeny
		case !e.IsDenied():
			said.Decision, said.Mismatch = Skipped, []string{"redis is unavailable, and on_redis_loss is allow"}
		case d.Reason == answer.Unavailable && d.Zone == f.Name:
			said.Decision = Unavailable
		default:
			err = said.addAlone(f, r)
		}
		if err != nil {
			return h, err
		}
	}
	x.overall(&h, e)
	return h, nil
}

// addAlone adds how a zone stands that was not asked, as another one denies before it.
func (z *Zone) addAlone(f *limits.Zone, r *http.Request) error {
	e, err := limits.Evaluate([]*limits.Zone{f}, r, clock.Now())
	if err != nil {
		return err
	}
	defer e.Free()
	if o, ok := e.Of(f); ok {
		z.add(o)
	}
	for i := range z.Limits {
		l := &z.Limits[i]
		l.Decision, l.After, l.Wait = NotAsked, l.Remaining, 0
	}
	z.Decision = NotAsked
	return nil
}

// overall adds what would become of the request.
func (x *explanation) overall(h *Handler, e *limits.Evaluation) {
	h.Delay = seconds(e.Delay())
	if e.IsDenied() {
		d := e.Denial()
		h.Decision, h.Zone, h.Wait, h.Delay = Denied, d.Zone, seconds(d.Wait), 0
		switch d.Reason {
		case answer.Unavailable:
			h.Decision = Unavailable
		case answer.TooEarly:
			h.Decision = TooEarly
		}
	}
}

// add adds what was decided in a zone.
func (z *Zone) add(o limits.Outcome) {
	denied := Denied
	if o.Shadow {
		denied = WouldDeny
	}
	if o.Denied {
		z.Decision = denied
	}
	for i := range o.Results {
		l, d := &z.Limits[i], &o.Results[i]
		if l.Decision, l.After = Admitted, d.Remaining; o.ByRedis {
			size := l.Used + l.Remaining
			if l.Remote, l.Remaining = nil, d.Remaining; !o.Denied {
				l.Remaining++ // a unit is spent where all limits admit
			}
			l.Used = max(0, size-l.Remaining)
		}
		if !d.Allowed {
			l.Decision, l.Wait = denied, seconds(d.RetryAfter)
		}
	}
}

// seconds returns a wait in seconds, rounded up to a millisecond.
func seconds(d time.Duration) float64 { return math.Ceil(d.Seconds()*1000) / 1000 }

// discard is where the response of a request goes that is only explained.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
