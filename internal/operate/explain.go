// Explain says what would happen to a request, or to the next one of a key, and why. It consumes
// nothing: it asks dry runs of the zones (limits.Zone.DryRun).

package operate

import (
	"errors"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// Except stands in Mismatch for an exception that matches.
const Except = "except"

// An Explained is what a rate_limit handler would do.
type Explained struct {
	// Decision is that of all its zones. Zone is the one that denies with the longest Wait, which
	// is in seconds. Delay is how many seconds an admitted request waits in queues.
	Decision answer.Reason `json:"decision"`
	Zone     string        `json:"zone,omitempty"`
	Wait     float64       `json:"wait,omitempty"`
	Delay    float64       `json:"delay,omitempty"`
	// Zones are in the order in which they are asked.
	Zones []ExplainedZone `json:"zones"`
}

// An ExplainedZone is what one zone says.
type ExplainedZone struct {
	Zone     string        `json:"zone"`
	Decision answer.Reason `json:"decision"`
	// Mismatch says why the zone doesn't limit the request: of each of its matcher sets the matcher
	// that did not match, except, or the reason in words.
	Mismatch []string `json:"mismatch,omitempty"`
	// Shadow is set where the zone is not enforced for the key.
	Shadow bool `json:"shadow,omitempty"`
	// Key is the key as text, nil where it is not known, and ID what names it to other nodes and in
	// Redis.
	Key *string `json:"key,omitempty"`
	ID  string  `json:"id,omitempty"`
	// Override is what an operator has set for the key at run time.
	Override string `json:"override,omitempty"`
	// BannedUntil is when the ban of the key ends, or would where Shadow is set; nil for none.
	BannedUntil *time.Time `json:"banned_until,omitempty"`
	// Bandwidth is how many bytes a second the responses of the key share, where they are slowed.
	Bandwidth config.Bandwidth `json:"bandwidth,omitempty"`
	// Cost is how many units the request takes, nil where each takes one.
	Cost *int64 `json:"cost,omitempty"`
	// FromRedis is set where Redis was asked what the other nodes have counted. Where it had to be
	// asked and did not answer, SyncedAgo is how many seconds ago this node heard of them, nil
	// where it never has, and Unknown says why.
	FromRedis bool     `json:"from_redis,omitempty"`
	Unknown   string   `json:"redis_error,omitempty"`
	SyncedAgo *float64 `json:"synced_ago,omitempty"`
	// OnRedisLoss is what decides in Redis' place, where it had to decide and did not answer.
	OnRedisLoss string `json:"on_redis_loss,omitempty"`
	// LimitDefault is set where a limit comes with requests, and so is limit_default for a key.
	LimitDefault bool `json:"limit_default,omitempty"`
	// Missing are the placeholders of limits and costs that bring no number, so that defaults hold.
	Missing []string         `json:"missing,omitempty"`
	Limits  []ExplainedLimit `json:"limits,omitempty"`
}

// An ExplainedLimit is how one limit stands, and what it says.
type ExplainedLimit struct {
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
	// AtOnce is the burst of a bucket, or the places of a queue; 0 where all of the limit may come
	// at once.
	AtOnce int64 `json:"at_once,omitempty"`
	// Concurrent is set where the limit is on what runs at once: it has no window then.
	Concurrent bool `json:"concurrent,omitempty"`
	// Overridden is set where the limit is the Override's.
	Overridden bool `json:"overridden,omitempty"`
	// Used is how much is spent before the request, and Remaining how much is left, of AtOnce where
	// there is one. Remote is the part of Used that other nodes counted, nil
	// where Redis decides, which knows only the sum. Used is more than the limit where responses
	// have cost more than was left, or the limit was higher.
	Used   int64  `json:"used"`
	Remote *int64 `json:"remote,omitempty"`
	// Regions is set where other regions counted some of Remote.
	Regions   bool  `json:"regions,omitempty"`
	Remaining int64 `json:"remaining"`
	// Share is how much of the limit this node admits while Redis or a region is away, with divide;
	// 0 where the limit is not divided.
	Share int64 `json:"share,omitempty"`
	// After is what is left after the request, as its answer says.
	After    int64         `json:"after"`
	Decision answer.Reason `json:"decision"`
	// Wait is how many seconds a denied request should wait.
	Wait float64 `json:"wait,omitempty"`
	// Until is when a window of a calendar ends, in its time zone; nil for one of a length.
	Until *time.Time `json:"until,omitempty"`
}

// ExplainZones says what the zones of a handler would do with a request.
func ExplainZones(zones []*limits.Zone, r *http.Request) (h Explained, err error) {
	x := &explanation{all: []ExplainedZone{}}
	for _, z := range zones {
		if err := x.request(z, r); err != nil {
			return h, err
		}
	}
	return x.decide(r)
}

// ExplainKey says what a zone would do with the next request of a key, whatever else such a request
// is. cost is what it takes, nil for what is taken where that is not known. ok is false where the
// key is only known by its ID, and this node has nothing of it.
func ExplainKey(z *limits.Zone, k limits.Key, cost *int64) (h Explained, ok bool, err error) {
	x := &explanation{}
	d, ok := z.DryRun(k)
	if !ok {
		return h, false, nil
	}
	x.ask(d)
	d.ForKey(cost)
	r, _ := http.NewRequest(http.MethodGet, "http://localhost/", nil)
	r = caddyhttp.PrepareRequest(reqkey.OnLoopback(r), caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	r.ContentLength = -1 // not known
	h, err = x.decide(r)
	comes := func(l limits.Limit) bool { return l.Number != nil }
	only := &x.all[0]
	only.LimitDefault = len(only.Limits) > 0 && only.Override == "" && slices.ContainsFunc(z.AllLimits, comes)
	return h, true, err
}

// explanation is a request's way through the zones of a handler.
type explanation struct {
	all   []ExplainedZone
	asked []*limits.Zone // dry runs
	at    []int          // where each of them is in all
}

// request notes what a zone has to do with a request.
func (x *explanation) request(z *limits.Zone, r *http.Request) error {
	report := ExplainedZone{Zone: z.Name, Decision: answer.Skipped}
	mismatch, err := mismatchOf(z.Matchers, r)
	if err != nil {
		return err
	}
	ok, excepted, err := z.Selects(r, nil)
	switch {
	case err != nil:
		return err
	case excepted:
		mismatch = []string{Except}
	case ok:
		mismatch = nil // a method of lower case
	}
	k, none := limits.Key{}, false
	if mismatch == nil {
		if k, none = z.KeyOf(r); none && z.EmptyKey != config.EmptyDeny {
			mismatch = []string{"the key is empty, and empty_key is skip"}
		}
	}
	if report.Mismatch = mismatch; mismatch != nil {
		x.all = append(x.all, report)
		return nil
	}
	d, _ := z.DryRun(k)
	if x.ask(d); !none {
		x.all[len(x.all)-1].Missing = d.Missing(r)
	}
	return nil
}

// ask notes that a dry run is to be asked.
func (x *explanation) ask(d *limits.Zone) {
	k := d.Dry.Key
	report := ExplainedZone{Zone: d.Name, Decision: answer.NotAsked, Shadow: !d.EnforcesRaw(k.Raw)}
	o := d.Override(k.Hash, k.Raw)
	if len(k.Raw) > 0 {
		report.ID = k.ID.String()
		if !k.ByID {
			report.Key = new(d.Template.Text(k.Raw))
		}
		if o != nil {
			report.Override = textOf(o)
		}
	}
	if !report.Shadow && (o == nil || !o.Unlimited && !o.Deny) {
		report.Bandwidth = d.Bandwidth
	}
	x.asked, x.at = append(x.asked, d), append(x.at, len(x.all))
	x.all = append(x.all, report)
}

// textOf says what an operator has set, as it is written.
func textOf(o *control.Override) string {
	var all []string
	for _, r := range o.Rates {
		text := r.String()
		if r.Window == 0 {
			text = strconv.FormatInt(r.Limit, 10)
		}
		all = append(all, text)
	}
	if o.Deny {
		all = append(all, control.Deny)
	}
	if o.Unlimited {
		all = append(all, control.Unlimited)
	}
	return strings.Join(all, " ")
}

// decide asks the zones together, as a request would, and each that was not asked then by itself.
func (x *explanation) decide(r *http.Request) (h Explained, err error) {
	h.Decision, h.Zones = answer.Admitted, x.all
	e, err := limits.Evaluate(x.asked, r, clock.Now())
	if err != nil {
		return h, err
	}
	defer e.Free()
	var denial *answer.Denial // nil for none
	if e.Denied {
		denial = &e.Denial
	}
	for i, d := range x.asked {
		report := &x.all[x.at[i]]
		o, ok := e.Of(d)
		if ok {
			report.Decision = answer.Admitted
			report.add(o, d)
		} else if err := report.uncounted(d, o, denial, r); err != nil {
			return h, err
		}
		report.noteRedis(d, o.Why == answer.TooLarge)
	}
	if h.Delay = seconds(e.Delay); denial != nil {
		h.deny(denial)
	}
	return h, nil
}

// noteRedis adds what Redis has said to a dry run.
func (z *ExplainedZone) noteRedis(d *limits.Zone, isTooLarge bool) {
	lost := d.Dry.Lost
	if z.FromRedis = d.Dry.Answered && !d.IsStrict(); lost == nil {
		return
	}
	z.Unknown = redisconn.Classify(lost)
	if d.IsStrict() {
		if !isTooLarge {
			z.OnRedisLoss = d.OnRedisLoss.String()
		}
		return
	}
	if why := slices.Sorted(maps.Values(d.Redis.Replicator.Status().Failing)); errors.Is(lost, redisconn.ErrDown) && len(why) > 0 {
		z.Unknown = why[0]
	}
	if age := d.SyncedAgo(); age > 0 {
		z.SyncedAgo = new(seconds(age))
	}
}

// uncounted says why a zone has not asked its limits. d is nil for a request that is not denied.
func (z *ExplainedZone) uncounted(f *limits.Zone, o limits.Outcome, d *answer.Denial, r *http.Request) error {
	denied := answer.Denied
	if z.Shadow {
		denied = answer.WouldDeny
	}
	why := func(d answer.Reason, text ...string) error {
		z.Decision, z.Mismatch = d, text
		return nil
	}
	isLost := func() bool { return f.Dry.Lost != nil || f.IsUnavailable(f.Dry.Raw) }
	lost := func(d answer.Reason) error {
		z.OnRedisLoss = f.OnRedisLoss.String()
		return why(d)
	}
	switch {
	case len(f.Dry.Raw) == 0:
		return why(denied, "the key is empty, and empty_key is deny")
	case z.Override == control.Deny:
		return why(denied)
	case o.Rest > 0:
		until := time.Unix(0, clock.Now()).Add(o.Rest).UTC()
		if z.BannedUntil = &until; !z.Shadow {
			denied = answer.Banned
		}
		return why(denied)
	case f.OnlyThrottles() && z.Shadow:
		return why(answer.Skipped, "the zone is not enforced for the key, so it does not slow its responses")
	case f.OnlyThrottles() && d == nil && z.Override != control.Unlimited:
		return why(answer.Admitted)
	case z.Override == control.Unlimited:
		return why(answer.Skipped)
	case d == nil && f.OnRedisLoss == config.LossDeny && z.Shadow && isLost():
		return lost(answer.WouldDeny)
	case d == nil && f.OnRedisLoss == config.LossAllow && isLost():
		return lost(answer.Skipped)
	case d == nil:
		return why(answer.Skipped, "every limit is unlimited for the request")
	case d.Reason == answer.Unavailable && d.Zone == f.Name:
		return lost(answer.Unavailable)
	}
	return z.addAlone(f, r)
}

// addAlone adds how a zone stands that was not asked, as another one denies before it.
func (z *ExplainedZone) addAlone(f *limits.Zone, r *http.Request) error {
	e, err := limits.Evaluate([]*limits.Zone{f}, r, clock.Now())
	if err != nil {
		return err
	}
	defer e.Free()
	if o, ok := e.Of(f); ok {
		z.add(o, f)
	}
	for i := range z.Limits {
		l := &z.Limits[i]
		l.Decision, l.After, l.Wait = answer.NotAsked, l.Remaining, 0
	}
	z.Decision = answer.NotAsked
	return nil
}

// deny says that the request would be denied.
func (h *Explained) deny(d *answer.Denial) {
	h.Decision, h.Zone, h.Wait, h.Delay = answer.Denied, d.Zone, seconds(d.Wait), 0
	for i := range h.Zones {
		if h.Zones[i].Zone == d.Zone && h.Zones[i].Decision == answer.Reserved {
			h.Decision = answer.Reserved
		}
	}
	switch {
	case d.Reason == answer.Barred:
		h.Wait = 0
	case d.Reason == answer.TooLarge:
		h.Decision, h.Wait = d.Reason, 0
	case d.Reason == answer.Unavailable, d.Reason == answer.Banned && !d.Begins:
		h.Decision = d.Reason
	}
}

// add adds what was decided in a zone by f, and how it stood before.
func (z *ExplainedZone) add(o limits.Outcome, f *limits.Zone) {
	denied := o.Why
	if f.CountsUnits() {
		z.Cost = &o.N
	}
	if o.Shadow {
		denied = answer.WouldDeny
	}
	if o.Denied {
		z.Decision = denied
	}
	if o.Taken.By != nil {
		z.addSlots(o, denied)
	}
	for i := range o.Results {
		rate, d, s := o.Limits[i].Rate, &o.Results[i], &f.Dry.Stands[i]
		l := ExplainedLimit{
			Limit: d.Quota, Window: config.WindowText(rate.Window), Used: s.Used, Remote: &s.Remote, Regions: s.Regions,
			Remaining: max(0, s.Size-s.Used), Decision: answer.Admitted, After: d.Remaining,
			Overridden: o.Limits[i].IsOverridden,
		}
		if d.Policy.Size > 0 {
			l.Limit, l.AtOnce = rate.Limit, d.Quota
		}
		if c := d.Policy.Calendar; c != nil {
			l.Until = new(time.Unix(0, c.At(clock.Now()).End).In(c.Zone))
		}
		if o.Limits[i].IsDivided() {
			l.Share = s.Size
		}
		if f.IsStrict() {
			l.Remote = nil // what Redis last told this node is the sum of all
		}
		if !d.Allowed {
			l.Decision, l.Wait = denied, seconds(d.RetryAfter)
		}
		z.Limits = append(z.Limits, l)
	}
}

// addSlots adds what runs at once, without the request.
func (z *ExplainedZone) addSlots(o limits.Outcome, denied answer.Reason) {
	t, d := o.Taken, &o.SlotResult
	l := ExplainedLimit{Limit: o.Taken.By.Max, Concurrent: true, Overridden: o.Taken.By.IsOverridden, Used: t.Own + t.Others, Remote: &t.Others, After: d.Remaining, Decision: answer.Admitted}
	if d.Allowed {
		l.Used--
	} else {
		l.Decision, l.Wait = denied, seconds(d.RetryAfter)
	}
	l.Remaining = max(0, t.Bound-l.Used)
	z.Limits = append(z.Limits, l)
}

// seconds returns a wait in seconds, rounded up to a millisecond.
func seconds(d time.Duration) float64 { return math.Ceil(d.Seconds()*1000) / 1000 }
