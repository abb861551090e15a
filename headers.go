package ratelimit

import (
	"fmt"
	"math"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// headerSets are the sets of informational headers to send; none is off.
type headerSets uint8

const (
	draftHeaders headerSets = 1 << iota
	kongHeaders
	githubHeaders
)

// The names as Go's header maps spell them.
const (
	rateLimitPolicy = "Ratelimit-Policy"
	rateLimit       = "Ratelimit"

	kongLimit     = "Ratelimit-Limit"
	kongRemaining = "Ratelimit-Remaining"
	kongReset     = "Ratelimit-Reset"

	githubLimit     = "X-Ratelimit-Limit"
	githubRemaining = "X-Ratelimit-Remaining"
	githubUsed      = "X-Ratelimit-Used"
	githubReset     = "X-Ratelimit-Reset"
)

// largestInteger has one digit less than an integer of a structured field may have (RFC 9651, section 3.3.1): Go's parser of them,
// dunglas/httpsfv 1.1.1, refuses one of 15 digits that something follows.
const largestInteger = 99_999_999_999_999

// parseHeaderSets reads the option headers. No name at all is draft.
func parseHeaderSets(names []string) (headerSets, error) {
	if len(names) == 0 {
		return draftHeaders, nil
	}
	var sets headerSets
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return 0, fmt.Errorf("%q is given twice", name)
		}
		switch name {
		case "draft":
			sets |= draftHeaders
		case "kong":
			sets |= kongHeaders
		case "github":
			sets |= githubHeaders
		case "off":
			if len(names) > 1 {
				return 0, fmt.Errorf("%q stands alone", name)
			}
		default:
			return 0, fmt.Errorf("unknown headers %q: choose from draft, kong, github, or off", name)
		}
	}
	return sets, nil
}

// A policy is what the headers say of one limit whoever asks. It is made at load and not changed.
type policy struct {
	// name is the zone's, with -<window> where the zone has several limits.
	name   string
	zone   string
	limit  int64
	window time.Duration
	kind   kind

	// quoted is the name as a string of a structured field, item what RateLimit-Policy says. Both are empty for a name that
	// can't be one.
	quoted string
	item   string

	// windowLimit and windowRemaining are Kong's header names for this window.
	windowLimit     string
	windowRemaining string
}

// newPolicy makes the policy of one of a zone's limits; several says that the zone has more than one.
func newPolicy(zone string, several bool, n int64, window time.Duration, k kind, sets headerSets) *policy {
	p := &policy{name: zone, zone: zone, limit: n, window: window, kind: k}
	if several {
		p.name += "-" + windowText(window)
	}
	if quoted, ok := structuredString(p.name); ok {
		p.quoted = quoted
		p.item = fmt.Sprintf("%s;q=%d;w=%d", quoted, integer(n), max(integer(ceilSeconds(window)), 1))
	}
	if sets&kongHeaders != 0 {
		name := kongWindow(window)
		p.windowLimit = http.CanonicalHeaderKey("X-RateLimit-Limit-" + name)
		p.windowRemaining = http.CanonicalHeaderKey("X-RateLimit-Remaining-" + name)
	}
	return p
}

// kongWindow is the end of Kong's header names: the window's name, or its seconds.
func kongWindow(window time.Duration) string {
	const day = 24 * time.Hour
	switch window {
	case time.Second:
		return "Second"
	case time.Minute:
		return "Minute"
	case time.Hour:
		return "Hour"
	case day:
		return "Day"
	case 30 * day:
		return "Month"
	case 365 * day:
		return "Year"
	}
	return strconv.FormatInt(max(ceilSeconds(window), 1), 10)
}

// structuredString quotes s as RFC 9651, section 4.1.6, says. Only printable ASCII can be quoted.
func structuredString(s string) (quoted string, ok bool) {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~':
			return "", false
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteByte(s[i])
		}
	}
	b.WriteByte('"')
	return b.String(), true
}

// resetIn is what t is made of: how long until there is more to be had, in the terms of the limit's algorithm. It never lies behind
// the Retry-After of a refusal.
func (d *decided) resetIn() time.Duration {
	switch {
	case !d.Allowed && d.RetryAfter > 0:
		return d.RetryAfter
	case !d.Allowed:
		return d.window
	case d.kind == fixedWindow:
		return d.ResetAfter
	case d.Remaining <= 0:
		return d.NextAfter
	}
	return max(d.NextAfter, d.pace())
}

// pace is how long what remains lasts at the limit's own rate.
func (d *decided) pace() time.Duration {
	limit := d.Limit
	if limit <= 0 {
		limit = d.policy.limit
	}
	if limit <= 0 || d.window <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(d.Remaining), uint64(d.window))
	if hi >= uint64(limit) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(limit))
	return time.Duration(min(quotient, math.MaxInt64))
}

// tightest is the limit that single-valued headers show: the one with least remaining, the longest window on a tie.
func tightest(all []decided) *decided {
	best := &all[0]
	for i := range all[1:] {
		d := &all[i+1]
		if d.Remaining < best.Remaining || d.Remaining == best.Remaining && d.window > best.window {
			best = d
		}
	}
	return best
}

// writeHeaders says in h what the limits decided at now (nanoseconds since the Unix epoch). It is called before the response is
// made. What earlier handlers wrote stays: to the draft's lists ours is appended, and Caddy's reverse_proxy adds what an upstream sent
// to ours. The other sets hold single numbers; there the lower of two handlers' remains.
func writeHeaders(h http.Header, sets headerSets, all []decided, now int64) {
	if sets == 0 || len(all) == 0 {
		return
	}
	f := newFields()
	f.limits(h, sets, all, now)
	f.writeTo(h)
}

// limits collects what writeHeaders says.
func (f *fields) limits(h http.Header, sets headerSets, all []decided, now int64) {
	if len(all) == 0 {
		return
	}
	if sets&draftHeaders != 0 {
		f.draft(all)
	}
	if sets&^draftHeaders != 0 {
		shown := tightest(all)
		if sets&kongHeaders != 0 {
			f.kong(h, all, shown)
		}
		if sets&githubHeaders != 0 {
			f.github(h, shown, now)
		}
	}
}

// fields collects headers whose values stand one after the other in one text, so that all of them cost two allocations: the text
// and the slice that the header map points into. The rest is reused.
type fields struct {
	text []byte
	list []field
}

var fieldPool = sync.Pool{New: func() any { return new(fields) }}

func newFields() *fields {
	f := fieldPool.Get().(*fields)
	f.text, f.list = f.text[:0], f.list[:0]
	return f
}

// field is a header. Its value is ready, or the text up to end.
type field struct {
	name  string
	ready string
	end   int
}

// draft is draft-ietf-httpapi-ratelimit-headers-11: a list item for each limit.
func (f *fields) draft(all []decided) {
	if len(all) == 1 {
		if all[0].item == "" {
			return
		}
		f.ready(rateLimitPolicy, all[0].item)
	} else {
		for i := range all {
			f.item(all[i].item)
		}
		if len(f.text) == 0 {
			return
		}
		f.close(rateLimitPolicy)
	}
	for i := range all {
		d := &all[i]
		if d.quoted == "" {
			continue
		}
		f.item(d.quoted)
		f.text = append(f.text, ";r="...)
		f.text = strconv.AppendInt(f.text, integer(d.Remaining), 10)
		f.text = append(f.text, ";t="...)
		f.text = strconv.AppendInt(f.text, integer(ceilSeconds(d.resetIn())), 10)
	}
	f.close(rateLimit)
}

// item begins a member of a list.
func (f *fields) item(s string) {
	if s == "" {
		return
	}
	if len(f.text) > f.start() {
		f.text = append(f.text, ", "...)
	}
	f.text = append(f.text, s...)
}

// start is where the text of the field being written begins.
func (f *fields) start() int {
	for i := len(f.list) - 1; i >= 0; i-- {
		if f.list[i].ready == "" {
			return f.list[i].end
		}
	}
	return 0
}

func (f *fields) close(name string) {
	f.list = append(f.list, field{name: name, end: len(f.text)})
}

// ready adds a header with a value that is not empty.
func (f *fields) ready(name, value string) {
	f.list = append(f.list, field{name: name, ready: value})
}

func (f *fields) number(name string, n int64) {
	f.text = strconv.AppendInt(f.text, n, 10)
	f.close(name)
}

// kong is what Kong's rate-limiting-advanced sends: a pair for each window, and the tightest limit without its window.
func (f *fields) kong(h http.Header, all []decided, shown *decided) {
	for i := range all {
		d := &all[i]
		if d.windowLimit == "" || hiddenByAnother(all, i) || holdsLess(h, d.windowRemaining, d.Remaining) {
			continue
		}
		f.number(d.windowLimit, d.Limit)
		f.number(d.windowRemaining, d.Remaining)
	}
	if holdsLess(h, kongRemaining, shown.Remaining) {
		return
	}
	f.number(kongLimit, shown.Limit)
	f.number(kongRemaining, shown.Remaining)
	f.number(kongReset, ceilSeconds(shown.resetIn()))
}

// hiddenByAnother reports that another limit of the same window has less remaining.
func hiddenByAnother(all []decided, i int) bool {
	for j := range all {
		if j == i || all[j].windowLimit != all[i].windowLimit {
			continue
		}
		if all[j].Remaining < all[i].Remaining || all[j].Remaining == all[i].Remaining && j < i {
			return true
		}
	}
	return false
}

// holdsLess reports that a handler before this one has less remaining.
func holdsLess(h http.Header, name string, remaining int64) bool {
	values := h[name]
	if len(values) == 0 {
		return false
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	return err == nil && n < remaining
}

// github is what GitHub sends; its reset is a point in time.
func (f *fields) github(h http.Header, shown *decided, now int64) {
	if holdsLess(h, githubRemaining, shown.Remaining) {
		return
	}
	f.number(githubLimit, shown.Limit)
	f.number(githubRemaining, shown.Remaining)
	f.number(githubUsed, max(shown.Limit-shown.Remaining, 0))
	reset := time.Duration(math.MaxInt64)
	if in := shown.resetIn(); now < math.MaxInt64-int64(in) {
		reset = time.Duration(now) + in
	}
	f.number(githubReset, ceilSeconds(reset))
}

// writeTo puts the fields into h, and ends their use. Nothing in h shares memory with another request: handlers downstream may change values in place.
func (f *fields) writeTo(h http.Header) {
	text := string(f.text)
	values := make([]string, len(f.list))
	start := 0
	for i, field := range f.list {
		values[i] = field.ready
		if field.ready == "" {
			values[i] = text[start:field.end]
			start = field.end
		}
		value := values[i : i+1 : i+1]
		if field.name == rateLimit || field.name == rateLimitPolicy {
			if before := h[field.name]; len(before) > 0 {
				value = append(slices.Clip(before), value...)
			}
		}
		h[field.name] = value
	}
	fieldPool.Put(f)
}

// ceilSeconds is d in whole seconds, rounded up; 0 for what is past.
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

// integer clamps n to what a structured field can hold; none here is negative.
func integer(n int64) int64 {
	return min(max(n, 0), largestInteger)
}
