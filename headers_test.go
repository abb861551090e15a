package ratelimit

import (
	"bytes"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
)

const allSets = draftHeaders | kongHeaders | githubHeaders

// said is what a limit of a zone decided.
func said(zone string, several bool, n int64, window time.Duration, k kind, d decision) decided {
	d.Limit = n
	return decided{newPolicy(zone, several, n, window, k, allSets), d}
}

// admits is an admission with so many remaining, and nextAfter until there is one more.
func admits(remaining int64, nextAfter time.Duration) decision {
	return decision{Allowed: true, Remaining: remaining, NextAfter: nextAfter, ResetAfter: 2 * nextAfter}
}

func refuses(after time.Duration) decision {
	return decision{RetryAfter: after, NextAfter: after / 2, ResetAfter: 2 * after}
}

func TestDraftHeaders(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name           string
		all            []decided
		policies, says string
	}{
		{
			"one limit",
			[]decided{said("login", false, 5, time.Minute, slidingWindow, admits(4, 30*s))},
			`"login";q=5;w=60`, `"login";r=4;t=48`,
		},
		{
			"the next free unit is further than the pace",
			[]decided{said("login", false, 5, time.Minute, slidingWindow, admits(4, 50*s+1))},
			`"login";q=5;w=60`, `"login";r=4;t=51`,
		},
		{
			"nothing remains",
			[]decided{said("login", false, 5, time.Minute, slidingWindow, admits(0, 7*s+1))},
			`"login";q=5;w=60`, `"login";r=0;t=8`,
		},
		{
			"refused",
			[]decided{said("login", false, 5, time.Minute, slidingWindow, refuses(12*s+1))},
			`"login";q=5;w=60`, `"login";r=0;t=13`,
		},
		{
			"a fixed window ends when it ends",
			[]decided{said("login", false, 5, time.Minute, fixedWindow, admits(4, 10*s))},
			`"login";q=5;w=60`, `"login";r=4;t=20`,
		},
		{
			"a fixed window, refused",
			[]decided{said("login", false, 5, time.Minute, fixedWindow, refuses(10*s))},
			`"login";q=5;w=60`, `"login";r=0;t=10`,
		},
		{
			"two limits of two zones",
			[]decided{
				said("login", true, 5, time.Minute, slidingWindow, admits(4, s)), said("login", true, 20, time.Hour, slidingWindow, admits(19, s)),
				said("all", false, 100, time.Second, gcra, admits(99, s/100)),
			},
			`"login-1m";q=5;w=60, "login-1h";q=20;w=3600, "all";q=100;w=1`,
			`"login-1m";r=4;t=48, "login-1h";r=19;t=3420, "all";r=99;t=1`,
		},
		{
			"less than a second",
			[]decided{said("fast", true, 3, 100*time.Millisecond, tokenBucket, admits(2, s/100))},
			`"fast-100ms";q=3;w=1`, `"fast-100ms";r=2;t=1`,
		},
		{
			"a bucket larger than its limit",
			[]decided{said("b", false, 1, time.Minute, tokenBucket, admits(100, s))},
			`"b";q=1;w=60`, `"b";r=100;t=6000`,
		},
		{
			"deny all",
			[]decided{said("none", false, 0, time.Minute, slidingWindow, refuses(time.Minute))},
			`"none";q=0;w=60`, `"none";r=0;t=60`,
		},
		{
			"the largest numbers",
			[]decided{said("big", false, math.MaxInt64, math.MaxInt64, slidingWindow, admits(math.MaxInt64-1, math.MaxInt64))},
			`"big";q=99999999999999;w=9223372037`, `"big";r=99999999999999;t=9223372037`,
		},
		{
			"a bucket that would last for longer than there are numbers",
			[]decided{said("big", false, 1, math.MaxInt64, tokenBucket, admits(math.MaxInt64, 0))},
			`"big";q=1;w=9223372037`, `"big";r=99999999999999;t=9223372037`,
		},
		{
			"a refusal that knows of no end",
			[]decided{said("x", false, 5, time.Minute, slidingLog, decision{})},
			`"x";q=5;w=60`, `"x";r=0;t=60`,
		},
		{
			"names are quoted, or left out",
			[]decided{said(`a"b\c`, false, 5, time.Minute, slidingLog, admits(0, s)), said("ü", false, 5, time.Minute, slidingLog, admits(0, s))},
			`"a\"b\\c";q=5;w=60`, `"a\"b\\c";r=0;t=1`,
		},
		{"only a name that can't be said", []decided{said("ü", false, 5, time.Minute, slidingLog, admits(0, s))}, "", ""},
		{"two of those", []decided{said("ü", false, 5, s, slidingLog, admits(0, s)), said("ö", false, 5, s, slidingLog, admits(0, s))}, "", ""},
		{"nothing decided", nil, "", ""},
	} {
		h := http.Header{}
		writeHeaders(h, draftHeaders, test.all, 0)
		if got := h.Get("RateLimit-Policy"); got != test.policies {
			t.Errorf("%s: RateLimit-Policy %s, want %s", test.name, got, test.policies)
		}
		if got := h.Get("RateLimit"); got != test.says {
			t.Errorf("%s: RateLimit %s, want %s", test.name, got, test.says)
		}
		if len(h) > 2 || test.says == "" && len(h) > 0 {
			t.Errorf("%s: headers %v", test.name, h)
		}
	}
}

func TestKongHeaders(t *testing.T) {
	const day = 24 * time.Hour
	h := http.Header{}
	writeHeaders(h, kongHeaders, []decided{
		said("a", true, 10, time.Second, slidingWindow, admits(9, time.Second)),
		said("a", true, 50, time.Minute, slidingWindow, admits(3, time.Second)),
		said("b", false, 40, time.Minute, slidingWindow, admits(2, time.Second)),
		said("c", false, 40, time.Minute, slidingWindow, admits(30, time.Second)),
		said("d", true, 100, 90*time.Second, slidingWindow, admits(2, 7*time.Second+1)),
		said("d", true, 100, time.Hour, slidingWindow, admits(50, 0)),
		said("d", true, 100, day, slidingWindow, admits(51, 0)),
		said("d", true, 100, 30*day, slidingWindow, admits(52, 0)),
		said("d", true, 100, 365*day, slidingWindow, admits(53, 0)),
		said("d", true, 100, 300*time.Millisecond, slidingWindow, admits(54, 0)),
	}, 0)
	for name, want := range map[string]string{
		"X-RateLimit-Limit-Second": "10", "X-RateLimit-Remaining-Second": "9",
		"X-RateLimit-Limit-Minute": "40", "X-RateLimit-Remaining-Minute": "2",
		"X-RateLimit-Limit-90": "100", "X-RateLimit-Remaining-90": "2",
		"X-RateLimit-Limit-Hour": "100", "X-RateLimit-Remaining-Hour": "50",
		"X-RateLimit-Limit-Day": "100", "X-RateLimit-Remaining-Day": "51",
		"X-RateLimit-Limit-Month": "100", "X-RateLimit-Remaining-Month": "52",
		"X-RateLimit-Limit-Year": "100", "X-RateLimit-Remaining-Year": "53",
		"X-RateLimit-Limit-1": "100", "X-RateLimit-Remaining-1": "54",
		"RateLimit-Limit": "100", "RateLimit-Remaining": "2", "RateLimit-Reset": "8",
	} {
		if got := h.Values(name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		h.Del(name)
	}
	if len(h) > 0 {
		t.Errorf("headers too many: %v", h)
	}
}

func TestGitHubHeaders(t *testing.T) {
	const now = 1_700_000_000_900_000_000
	for _, test := range []struct {
		all                           []decided
		limit, remaining, used, reset string
	}{
		{[]decided{said("a", false, 5, time.Minute, slidingWindow, admits(0, 100*time.Millisecond))}, "5", "0", "5", "1700000001"},
		{[]decided{said("a", false, 5, time.Minute, slidingWindow, refuses(59200*time.Millisecond))}, "5", "0", "5", "1700000061"},
		{[]decided{said("a", false, 5, time.Minute, tokenBucket, admits(7, time.Second))}, "5", "7", "0", "1700000085"},
		{
			[]decided{said("a", true, 5, time.Minute, slidingWindow, admits(3, 0)), said("a", true, 6, time.Hour, fixedWindow, admits(3, time.Minute))},
			"6", "3", "3", "1700000121",
		},
		{[]decided{said("a", false, 5, math.MaxInt64, slidingWindow, refuses(math.MaxInt64))}, "5", "0", "5", "9223372037"},
	} {
		h := http.Header{}
		writeHeaders(h, githubHeaders, test.all, now)
		got := [4]string{h.Get("x-ratelimit-limit"), h.Get("x-ratelimit-remaining"), h.Get("x-ratelimit-used"), h.Get("x-ratelimit-reset")}
		if want := [4]string{test.limit, test.remaining, test.used, test.reset}; got != want || len(h) != 4 {
			t.Errorf("limit, remaining, used, reset: %v, want %v", got, want)
		}
	}
}

func TestEarlierHandlersHeadersStay(t *testing.T) {
	shared := make([]string, 1, 4) // room that belongs to someone else
	shared[0] = `"before";r=1;t=1`
	h := http.Header{"Ratelimit": shared}
	all := []decided{said("a", false, 5, time.Minute, slidingWindow, admits(4, 0))}
	writeHeaders(h, allSets, all, 0)
	if got, want := h.Values("RateLimit"), []string{`"before";r=1;t=1`, `"a";r=4;t=48`}; !slices.Equal(got, want) {
		t.Errorf("RateLimit %q, want %q", got, want)
	}
	if spill := shared[:2][1]; spill != "" {
		t.Errorf("%q was written into a slice of somebody else", spill)
	}
	// The second handler's limit is wider: single numbers stay the first's, lists have both.
	writeHeaders(h, allSets, []decided{said("b", false, 100, time.Minute, slidingWindow, admits(99, 0))}, 0)
	for name, want := range map[string]string{
		"RateLimit-Remaining": "4", "RateLimit-Limit": "5", "X-RateLimit-Remaining": "4", "X-RateLimit-Limit": "5", "X-RateLimit-Remaining-Minute": "4",
	} {
		if got := h.Values(name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s after a wider limit: %q, want %q", name, got, want)
		}
	}
	if got := h.Values("RateLimit-Policy"); len(got) != 2 {
		t.Errorf("RateLimit-Policy after two handlers: %q", got)
	}
	// A third one is tighter.
	writeHeaders(h, allSets, []decided{said("c", false, 7, time.Minute, slidingWindow, refuses(time.Second))}, 0)
	if got := h.Values("X-RateLimit-Remaining"); !slices.Equal(got, []string{"0"}) {
		t.Errorf("X-RateLimit-Remaining after a refusal: %q, want 0", got)
	}
}

func TestValuesOfOneRequestDoNotTouch(t *testing.T) {
	all := []decided{said("a", false, 5, time.Minute, slidingWindow, admits(4, 0))}
	one, two := http.Header{}, http.Header{}
	writeHeaders(one, allSets, all, 0)
	writeHeaders(two, allSets, all, 0)
	for name := range one {
		one.Add(name, "added") // as reverse_proxy does
		one[name][0] = "replaced"
	}
	for name, values := range one {
		if !slices.Equal(values, []string{"replaced", "added"}) {
			t.Errorf("%s: %q, want the replaced and the added value only", name, values)
		}
	}
	for name, values := range two {
		if len(values) != 1 || values[0] == "replaced" {
			t.Errorf("%s of another request: %q", name, values)
		}
	}
}

func TestHeaderNamesAreCanonical(t *testing.T) {
	h := http.Header{}
	writeHeaders(h, allSets, []decided{said("a", false, 5, 90*time.Second, slidingWindow, admits(4, 0))}, 0)
	if len(h) != 11 {
		t.Errorf("%d headers, want 11: %v", len(h), h)
	}
	for name := range h {
		if c := http.CanonicalHeaderKey(name); c != name {
			t.Errorf("header %s is not canonical, %s is", name, c)
		}
	}
}

func TestParseHeaderSets(t *testing.T) {
	for _, test := range []struct {
		names string
		want  headerSets
		err   string
	}{
		{"", draftHeaders, ""},
		{"draft", draftHeaders, ""},
		{"off", 0, ""},
		{"kong github", kongHeaders | githubHeaders, ""},
		{"github draft kong", allSets, ""},
		{"off draft", 0, "stands alone"},
		{"kong off", 0, "stands alone"},
		{"draft draft", 0, "twice"},
		{"Draft", 0, "choose from draft, kong, github, or off"},
	} {
		got, err := parseHeaderSets(strings.Fields(test.names))
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || got != test.want && test.err == "" {
			t.Errorf("parseHeaderSets(%s) = %b, %v; want %b, %s", test.names, got, err, test.want, test.err)
		}
	}
	h := http.Header{}
	writeHeaders(h, 0, []decided{said("a", false, 5, time.Minute, slidingWindow, admits(4, 0))}, 0)
	if len(h) != 0 {
		t.Errorf("headers off: %v", h)
	}
}

func TestHeadersCostFewAllocations(t *testing.T) {
	for _, test := range []struct {
		name string
		sets headerSets
		all  []decided
		most float64
	}{
		{"draft", draftHeaders, []decided{said("login", false, 5, time.Minute, slidingWindow, admits(4, 0))}, 2},
		{"draft, two limits", draftHeaders, []decided{
			said("login", true, 5, time.Minute, slidingWindow, admits(4, 0)), said("login", true, 5, time.Hour, slidingWindow, admits(4, 0)),
		}, 2},
		{"kong", kongHeaders, []decided{said("login", false, 5, time.Minute, slidingWindow, admits(4, 0))}, 2},
		{"off", 0, []decided{said("login", false, 5, time.Minute, slidingWindow, admits(4, 0))}, 0},
	} {
		h := make(http.Header, 16)
		if n := fewestAllocs(func() {
			clear(h)
			writeHeaders(h, test.sets, test.all, 0)
		}); n > test.most {
			t.Errorf("%s: %v allocations, want %v", test.name, n, test.most)
		}
	}
}

// fewestAllocs is what one of many runs allocates: under the race detector a sync.Pool forgets at random.
func fewestAllocs(run func()) float64 {
	fewest := math.Inf(1)
	for range 50 {
		fewest = min(fewest, testing.AllocsPerRun(1, run))
	}
	return fewest
}

func FuzzHeaders(f *testing.F) {
	f.Add("login", true, int64(5), int64(time.Minute), uint8(0), true, int64(4), int64(time.Second), int64(time.Second), []byte(`"up";r=1;t=2`))
	f.Add(`a"\`, false, int64(0), int64(1), uint8(1), false, int64(-1), int64(-1), int64(math.MaxInt64), []byte("\r\n,;="))
	f.Add("ü", false, int64(math.MaxInt64), int64(math.MaxInt64), uint8(3), true, int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MinInt64), []byte(`"`))
	f.Fuzz(func(t *testing.T, zone string, several bool, n, window int64, k uint8, allowed bool, remaining, next, now int64, upstream []byte) {
		if n < 0 || window <= 0 || remaining < 0 {
			t.Skip()
		}
		d := decision{Allowed: allowed, Remaining: remaining, NextAfter: time.Duration(next), ResetAfter: time.Duration(next)}
		if !allowed {
			d.RetryAfter, d.Remaining = time.Duration(next), 0
		}
		all := []decided{
			said(zone, several, n, time.Duration(window), kind(k%6), d),
			said("fixed", false, 10, time.Minute, slidingWindow, admits(3, time.Second)),
		}
		h := http.Header{"Ratelimit": {string(upstream)}}
		writeHeaders(h, allSets, all, now)
		if got := h["Ratelimit"][0]; got != string(upstream) {
			t.Errorf("upstream's %q became %q", upstream, got)
		}
		checkItem(t, h["Ratelimit-Policy"], &all[0], "q", "w")
		checkItem(t, h["Ratelimit"][1:], &all[0], "r", "t")
		// A member after it shows whether the parser can read on: it stumbles over an integer of 15 digits before a comma, which RFC 9651 allows.
		if _, err := httpsfv.UnmarshalList([]string{string(upstream), "a"}); err == nil {
			if _, err := httpsfv.UnmarshalList(h["Ratelimit"]); err != nil && len(bytes.TrimSpace(upstream)) > 0 {
				t.Errorf("with upstream's %q: %v", upstream, err)
			}
		}
		for name, values := range h {
			if strings.HasPrefix(name, "X-") || strings.HasPrefix(name, "Ratelimit-") && name != rateLimitPolicy {
				if _, err := strconv.ParseUint(values[0], 10, 64); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if seconds := retryAfterSeconds(d.RetryAfter, 0); !allowed && d.RetryAfter > 0 && d.RetryAfter < math.MaxInt32*time.Second &&
			seconds < ceilSeconds(all[0].resetIn()) {
			t.Errorf("Retry-After %d ends before t=%d", seconds, ceilSeconds(all[0].resetIn()))
		}
	})
}

// checkItem reads a field with an independent parser: it is one value, a list of what can be said.
func checkItem(t *testing.T, values []string, d *decided, amount, seconds string) {
	t.Helper()
	if len(values) != 1 {
		t.Fatalf("%d values, want 1: %q", len(values), values)
	}
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		t.Fatalf("parsing %q: %v", values, err)
	}
	said := 1
	if d.quoted != "" {
		said = 2
	}
	if len(list) != said {
		t.Fatalf("%d items in %q, want %d", len(list), values, said)
	}
	item := list[0].(httpsfv.Item)
	if d.quoted != "" && item.Value != d.name {
		t.Errorf("name %q, want %q", item.Value, d.name)
	}
	n, _ := item.Params.Get(amount)
	want := map[string]int64{"q": d.policy.limit, "r": d.Remaining}[amount]
	if d.quoted != "" && n != min(want, largestInteger) {
		t.Errorf("%s = %v, want %d", amount, n, want)
	}
	if s, _ := item.Params.Get(seconds); s.(int64) < 0 || seconds == "w" && s.(int64) < 1 {
		t.Errorf("%s = %v", seconds, s)
	}
}

func BenchmarkDraftHeaders(b *testing.B) {
	all := []decided{said("login", false, 5, time.Minute, slidingWindow, admits(4, 0))}
	h := make(http.Header, 8)
	b.ReportAllocs()
	for b.Loop() {
		delete(h, rateLimit)
		delete(h, rateLimitPolicy)
		writeHeaders(h, draftHeaders, all, 0)
	}
}
