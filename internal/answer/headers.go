package answer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
)

// HeaderSets are the sets of informational headers to send; 0 is off.
type HeaderSets uint8

// The sets of headers.
const (
	// IETF is draft-ietf-httpapi-ratelimit-headers-11: RateLimit-Policy and RateLimit.
	IETF HeaderSets = 1 << iota
	// Kong is what Kong's rate-limiting-advanced sends.
	Kong
	// GitHub is what GitHub's API sends.
	GitHub
)

// HeaderSetNames are the values of the option headers. All but the last are the sets in their
// order.
var HeaderSetNames = []string{"ietf", "kong", "github", "off"}

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

// ParseHeaderSets reads the option headers. No name at all is ietf.
func ParseHeaderSets(names []string) (HeaderSets, error) {
	if len(names) == 0 {
		return IETF, nil
	}
	var sets HeaderSets
	for i, name := range names {
		switch at := slices.Index(HeaderSetNames, name); {
		case at < 0:
			return 0, fmt.Errorf("there are no headers %q; write ietf, kong, github, or off", name)
		case slices.Contains(names[:i], name):
			return 0, fmt.Errorf("%s is given twice; write it once", name)
		case name == "off" && len(names) > 1:
			return 0, errors.New("off is given together with a header set; write either off or the sets, like ietf kong")
		case name != "off":
			sets |= 1 << at
		}
	}
	return sets, nil
}

// Fields collects headers whose values stand one after the other in one text, so that all of them
// cost two allocations: the text, and the slice that the header map points into. The rest is
// reused, and so is the buffer for the body of a denial. The zero value is ready.
type Fields struct {
	text []byte
	list []field
	kept []Result
	body []byte
}

// field is a header. Its value is ready, or the text up to end.
type field struct {
	name  string
	ready string
	end   int
}

// clear begins the headers of another response.
func (f *Fields) clear() {
	f.text = f.text[:0]
	f.list = f.list[:0]
	f.body = f.body[:0]
}

// maxKeptBody bounds the buffers that are used again.
const maxKeptBody = 64 << 10

// writeHeaders writes what the limits decided into h. It is called before the response is made.
func (f *Fields) writeHeaders(h http.Header, sets HeaderSets, results []Result, now int64) {
	if sets == 0 || len(results) == 0 {
		return
	}
	f.clear()
	f.addResults(h, sets, results, now)
	f.writeTo(h)
}

// addResults adds what the limits decided at now (nanoseconds since the Unix epoch). Headers that
// earlier handlers wrote stay: the draft's lists are appended to, and Caddy's reverse_proxy adds
// those of an upstream. The other sets hold single numbers; there the lower of two handlers' stays.
func (f *Fields) addResults(h http.Header, sets HeaderSets, results []Result, now int64) {
	if sets&IETF != 0 {
		f.addIETF(f.inSet(IETF, results))
	}
	if sets&Kong != 0 {
		f.addKong(h, f.inSet(Kong, results))
	}
	if sets&GitHub != 0 {
		f.addGitHub(h, f.inSet(GitHub, results), now)
	}
}

// inSet returns the results that a set of headers tells of: a zone may have sets of its own, or be
// in shadow mode. They are valid until the next call.
func (f *Fields) inSet(set HeaderSets, results []Result) []Result {
	f.kept = f.kept[:0]
	for i := range results {
		if results[i].isToldBy(set) {
			f.kept = append(f.kept, results[i])
		}
	}
	return f.kept
}

// isToldBy reports whether a set of headers tells of a result.
func (r *Result) isToldBy(set HeaderSets) bool { return r.Policy.sets&set != 0 && !r.Shadow }

// maxItems bounds the members of the draft's lists: proxies in front reject headers of a few
// kilobytes.
const maxItems = 8

// nearest returns the results that are nearest to their limits, those first.
func (f *Fields) nearest(results []Result) []Result {
	f.kept = append(f.kept[:0], results...)
	slices.SortStableFunc(f.kept, func(a, b Result) int { return cmp.Compare(a.share(), b.share()) })
	return f.kept[:maxItems]
}

// share is the part of a limit that is left, less than 0 where it denies.
func (r *Result) share() float64 {
	if !r.Allowed {
		return -1
	}
	return float64(r.Remaining) / float64(max(1, r.Size))
}

// addIETF adds the draft's two lists, with a member for each limit, maxItems at most.
func (f *Fields) addIETF(results []Result) {
	if len(results) > maxItems {
		results = f.nearest(results)
	}
	if len(results) == 0 {
		return
	}
	if len(results) == 1 && results[0].item() != "" {
		f.addReady(rateLimitPolicy, results[0].item())
	} else {
		for i := range results {
			f.addPolicy(&results[i])
		}
		if len(f.text) == f.start() {
			return
		}
		f.end(rateLimitPolicy)
	}
	b, start := f.text, f.start()
	for i := range results {
		r := &results[i]
		if r.Policy.quoted == "" {
			continue
		}
		if len(b) > start {
			b = append(b, ", "...)
		}
		b = append(b, r.Policy.quoted...)
		b = append(b, ";r="...)
		b = strconv.AppendInt(b, integer(r.Remaining), 10)
		if r.Policy.Concurrent && r.Allowed || r.TooLarge {
			continue // nobody knows when there is more, or it doesn't help
		}
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, integer(ceilSeconds(r.reset())), 10)
	}
	f.text = b
	f.end(rateLimit)
}

// item is the member as its policy has it, "" where the number is another one.
func (r *Result) item() string {
	if r.Overridden {
		return ""
	}
	return r.Policy.item
}

// addPolicy adds a limit's member of RateLimit-Policy, unless its name can't be quoted.
func (f *Fields) addPolicy(r *Result) {
	if r.Policy.quoted == "" {
		return
	}
	if len(f.text) > f.start() {
		f.text = append(f.text, ", "...)
	}
	if item := r.item(); item != "" {
		f.text = append(f.text, item...)
		return
	}
	f.text = append(f.text, r.Policy.quoted...)
	f.text = append(f.text, ";q="...)
	f.text = strconv.AppendInt(f.text, integer(r.Quota), 10)
	window := r.Window
	if c := r.Policy.Calendar; c != nil {
		span := c.At(clock.Now())
		window = time.Duration(span.End - span.Begin)
	}
	if window == 0 {
		f.text = append(f.text, r.Policy.tail...)
		return
	}
	f.text = append(f.text, r.Policy.unit...)
	f.text = append(f.text, ";w="...)
	f.text = strconv.AppendInt(f.text, windowSeconds(window), 10)
}

// start returns where the text of the header being written begins.
func (f *Fields) start() int {
	for i := len(f.list) - 1; i >= 0; i-- {
		if f.list[i].ready == "" {
			return f.list[i].end
		}
	}
	return 0
}

// end ends the header being written.
func (f *Fields) end(name string) {
	f.list = append(f.list, field{name: name, end: len(f.text)})
}

// addReady adds a header with a value that is not empty.
func (f *Fields) addReady(name, value string) {
	f.list = append(f.list, field{name: name, ready: value})
}

func (f *Fields) addNumber(name string, n int64) {
	if 0 <= n && n < 100 { // strconv has these ready
		f.addReady(name, strconv.Itoa(int(n)))
		return
	}
	f.text = strconv.AppendInt(f.text, n, 10)
	f.end(name)
}

// addKong adds a pair for each window, and the tightest limit without its window.
func (f *Fields) addKong(h http.Header, results []Result) {
	if len(results) == 0 {
		return
	}
	shown := tightest(results)
	for i := range results {
		r := &results[i]
		p := r.Policy
		if p.windowLimit == "" || hiddenByAnother(results, i) || hasLess(h, p.windowRemaining, r.Remaining) {
			continue
		}
		f.addNumber(p.windowLimit, r.Limit)
		f.addNumber(p.windowRemaining, r.Remaining)
	}
	if hasLess(h, kongRemaining, shown.Remaining) {
		return
	}
	f.addNumber(kongLimit, shown.most())
	f.addNumber(kongRemaining, shown.Remaining)
	f.addNumber(kongReset, ceilSeconds(shown.reset()))
}

// hiddenByAnother reports whether another limit of the same window has less remaining.
func hiddenByAnother(results []Result, i int) bool {
	for j := range results {
		if j == i || results[j].Policy.windowLimit != results[i].Policy.windowLimit {
			continue
		}
		if results[j].Remaining < results[i].Remaining || results[j].Remaining == results[i].Remaining && j < i {
			return true
		}
	}
	return false
}

// hasLess reports whether an earlier handler's limit has less remaining.
func hasLess(h http.Header, name string, remaining int64) bool {
	values := h[name]
	if len(values) == 0 {
		return false
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	return err == nil && n < remaining
}

// addGitHub adds GitHub's headers, whose reset is a point in time.
func (f *Fields) addGitHub(h http.Header, results []Result, now int64) {
	if len(results) == 0 {
		return
	}
	shown := tightest(results)
	if hasLess(h, githubRemaining, shown.Remaining) {
		return
	}
	f.addNumber(githubLimit, shown.most())
	f.addNumber(githubRemaining, shown.Remaining)
	f.addNumber(githubUsed, max(shown.most()-shown.Remaining, 0))
	reset := time.Duration(math.MaxInt64)
	if in := shown.reset(); now < math.MaxInt64-int64(in) {
		reset = time.Duration(now) + in
	}
	f.addNumber(githubReset, ceilSeconds(reset))
}

// writeTo puts the headers into h. Nothing in h shares memory with another request: handlers
// downstream may change values in place.
func (f *Fields) writeTo(h http.Header) {
	text := string(f.text)
	values := make([]string, len(f.list))
	start := 0
	for i := range f.list {
		field := &f.list[i]
		if values[i] = field.ready; field.ready == "" {
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
}
