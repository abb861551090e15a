package answer

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A Policy is what answers tell of one limit, whoever asks. Compile makes it ready; it is not
// changed afterwards.
type Policy struct {
	// Zone is the name of the limit's zone.
	Zone string
	// Name is the zone's name, with -<window> where the zone has several limits.
	Name   string
	Limit  int64
	Window time.Duration
	// Varies is set where the number comes with each request; then Limit is the default.
	Varies bool
	// Size is what may come at once where that is not the limit: the burst of a bucket, or the
	// places of a queue; 0 where it is. Then answers tell of it, and of when all of it is back.
	Size int64
	// Fixed is set for a fixed window, which frees all of its limit at its end. The other
	// algorithms give it back bit by bit.
	Fixed bool
	// Calendar has the windows, nil where they have one length.
	Calendar *algorithms.Calendar
	// Bytes is set where the limit counts them.
	Bytes bool
	// Concurrent is set where requests that run are counted: there is no window then.
	Concurrent bool

	// quoted is the name as a string of a structured field, item the limit's member of
	// RateLimit-Policy, and tail what follows the number in it. All are empty for a name that can't
	// be quoted, and item is where the number varies.
	quoted string
	item   string
	tail   string
	unit   string // the part of tail before the window

	// windowLimit and windowRemaining are Kong's header names for this window.
	windowLimit     string
	windowRemaining string

	sets HeaderSets // that tell of the limit
}

// Compile returns the policy with its texts for these sets of headers. Others don't tell of it.
func (p Policy) Compile(sets HeaderSets) *Policy {
	p.sets = sets
	if p.Concurrent {
		p.sets &= IETF // the others have no word for it
	}
	if quoted, err := httpsfv.Marshal(httpsfv.NewItem(p.Name)); err == nil {
		p.quoted = quoted
		q, w := p.Limit, p.Window
		if p.Size > 0 {
			q, w = p.Size, Fill(p.Size, p.Limit, p.Window)
		}
		if p.Bytes {
			p.unit = `;qu="content-bytes"`
		}
		if p.tail = `;qu="concurrent-requests"`; !p.Concurrent {
			p.tail = fmt.Sprintf("%s;w=%d", p.unit, windowSeconds(w))
		}
		if !p.Varies && p.Calendar == nil {
			p.item = fmt.Sprintf("%s;q=%d%s", quoted, integer(q), p.tail)
		}
	}
	if sets&Kong != 0 && p.Size == 0 {
		name := cmp.Or(kongWindows[p.Window], strconv.FormatInt(max(ceilSeconds(p.Window), 1), 10))
		p.windowLimit = http.CanonicalHeaderKey("X-RateLimit-Limit-" + name)
		p.windowRemaining = http.CanonicalHeaderKey("X-RateLimit-Remaining-" + name)
	}
	return &p
}

// Fill returns how long it takes until so many requests come back at a limit of others in a window.
func Fill(size, limit int64, window time.Duration) time.Duration {
	return time.Duration(saturate.MulDivUp(size, int64(window), 0, max(limit, 1)))
}

// windowSeconds is a window as RateLimit-Policy tells it.
func windowSeconds(w time.Duration) int64 { return max(integer(ceilSeconds(w)), 1) }

// WithoutIETF returns the policy of which the draft's headers don't tell.
func (p *Policy) WithoutIETF() *Policy {
	c := *p
	c.sets &^= IETF
	return &c
}

// kongWindows are the windows that have a name in Kong's headers. Others are told in seconds.
var kongWindows = map[time.Duration]string{
	time.Second: "Second", time.Minute: "Minute", time.Hour: "Hour", 24 * time.Hour: "Day", 30 * 24 * time.Hour: "Month", 365 * 24 * time.Hour: "Year",
	algorithms.Day: "Day", algorithms.Week: "Week", algorithms.Month: "Month", algorithms.Year: "Year",
}

// A Result is what one limit decided for a request.
type Result struct {
	Policy  *Policy
	Allowed bool
	// Shadow is set where the limit is not enforced for the request. Then no client is told of it,
	// and nobody is denied where it is not Allowed.
	Shadow bool
	// Overridden is set where Quota is another number than the policy's, though that does not vary:
	// an operator has set it, or a part is reserved for others.
	Overridden bool
	// Quota is the number of requests in a window: the policy's, or what came with the request. Of
	// a policy with a Size it is what may come at once, and Window is set where it comes back in
	// another time than the policy's.
	Quota  int64
	Window time.Duration
	// Limit is the number that was enforced: the quota, or a share of it while Redis is
	// unavailable.
	Limit int64
	// Size is how many requests may come at once: the limit, the burst of a bucket, or the places
	// of a queue.
	Size      int64
	Remaining int64
	// RetryAfter is how long a denied request must wait to be admitted, 0 where that is unknown. A
	// limit that admits has one where the request took its last unit and keeps it.
	RetryAfter time.Duration
	// Cost is how many units the request takes, 0 for one, and Free for none. TooLarge is set where
	// the limit never admits as many at once.
	Cost     int64
	TooLarge bool
	// MoreAfter is how long until more remains: of a fixed window all of it, of others the next
	// unit.
	MoreAfter time.Duration
}

// Free is the Cost of a request that takes nothing.
const Free = -1

// most returns how many requests may come at once, of which some remain.
func (r *Result) most() int64 {
	if r.Policy.Size > 0 {
		return r.Size
	}
	return r.Limit
}

// left returns how many requests of the same cost remain.
func (r *Result) left() int64 { return leftOf(r.Remaining, r.Cost) }

func leftOf(remaining, cost int64) int64 {
	switch {
	case cost > 1:
		return remaining / cost
	case cost == Free:
		return math.MaxInt64
	}
	return remaining
}

// reset returns how long until there is more to be had, in the terms of the limit's algorithm. It
// is never later than the Retry-After of a denial.
func (r *Result) reset() time.Duration {
	switch {
	case !r.Allowed && r.RetryAfter > 0:
		return r.RetryAfter
	case r.Policy.Concurrent:
		return 0 // nobody knows
	case !r.Allowed && !r.TooLarge:
		return r.Policy.Window
	case r.Policy.Fixed || r.Remaining <= 0:
		return r.MoreAfter
	}
	return max(r.MoreAfter, r.pace())
}

// pace returns how long what remains lasts at the limit's own rate.
func (r *Result) pace() time.Duration {
	limit, window := r.Limit, r.Policy.Window
	if limit <= 0 {
		limit = r.Policy.Limit
	}
	if limit <= 0 || window <= 0 {
		return 0
	}
	return time.Duration(saturate.MulDiv(r.Remaining, int64(window), limit))
}

// tightest returns the limit that single-valued headers show: the one with the least remaining, the
// longest window on a tie.
func tightest(results []Result) *Result {
	best := &results[0]
	for i := range results[1:] {
		r := &results[i+1]
		if r.left() < best.left() || r.left() == best.left() && r.Policy.Window > best.Policy.Window {
			best = r
		}
	}
	return best
}

// ceilSeconds returns d in whole seconds, rounded up; 0 for what is past.
func ceilSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return seconds
}

// maxInteger has one digit less than an integer of a structured field may have (RFC 9651, section
// 3.3.1): Go's parser of them, dunglas/httpsfv 1.1.1, rejects one of 15 digits that something
// follows.
const maxInteger = 99_999_999_999_999

// integer clamps n to what a structured field can hold; none here is negative.
func integer(n int64) int64 { return min(max(n, 0), maxInteger) }
