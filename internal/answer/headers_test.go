package answer

import (
	"bytes"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
)

const allSets = IETF | Kong | GitHub

// result is what a limit of a zone decided. suffix is what its name has beside the zone's.
func result(zone, suffix string, n int64, window time.Duration, r Result) Result {
	r.Limit, r.Size = n, n
	r.Policy = Policy{Zone: zone, Name: zone + suffix, Limit: n, Window: window}.Compile(allSets)
	return r
}

// fixed makes a result one of a fixed window.
func fixed(r Result) Result {
	p := *r.Policy
	p.Fixed, r.Policy = true, &p
	r.MoreAfter *= 2 // not the next one, but all
	return r
}

// admits is an admission with so many remaining, and nextAfter until there is one more.
func admits(remaining int64, nextAfter time.Duration) Result {
	return Result{Allowed: true, Remaining: remaining, MoreAfter: nextAfter}
}

func denies(after time.Duration) Result {
	return Result{RetryAfter: after, MoreAfter: after / 2}
}

func TestDraftHeaders(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name           string
		all            []Result
		policies, says string
	}{
		{
			"one limit",
			[]Result{result("login", "", 5, time.Minute, admits(4, 30*s))},
			`"login";q=5;w=60`, `"login";r=4;t=48`,
		},
		{
			"the next free unit is further than the pace",
			[]Result{result("login", "", 5, time.Minute, admits(4, 50*s+1))},
			`"login";q=5;w=60`, `"login";r=4;t=51`,
		},
		{
			"nothing remains",
			[]Result{result("login", "", 5, time.Minute, admits(0, 7*s+1))},
			`"login";q=5;w=60`, `"login";r=0;t=8`,
		},
		{
			"denied",
			[]Result{result("login", "", 5, time.Minute, denies(12*s+1))},
			`"login";q=5;w=60`, `"login";r=0;t=13`,
		},
		{
			"a fixed window ends when it ends",
			[]Result{fixed(result("login", "", 5, time.Minute, admits(4, 10*s)))},
			`"login";q=5;w=60`, `"login";r=4;t=20`,
		},
		{
			"a fixed window, denied",
			[]Result{fixed(result("login", "", 5, time.Minute, denies(10*s)))},
			`"login";q=5;w=60`, `"login";r=0;t=10`,
		},
		{
			"two limits of two zones",
			[]Result{
				result("login", "-1m", 5, time.Minute, admits(4, s)), result("login", "-1h", 20, time.Hour, admits(19, s)),
				result("all", "", 100, time.Second, admits(99, s/100)),
			},
			`"login-1m";q=5;w=60, "login-1h";q=20;w=3600, "all";q=100;w=1`,
			`"login-1m";r=4;t=48, "login-1h";r=19;t=3420, "all";r=99;t=1`,
		},
		{"nothing decided", nil, "", ""},
		{
			"less than a second",
			[]Result{result("fast", "-100ms", 3, 100*time.Millisecond, admits(2, s/100))},
			`"fast-100ms";q=3;w=1`, `"fast-100ms";r=2;t=1`,
		},
		{
			"a bucket larger than its limit",
			[]Result{result("b", "", 1, time.Minute, admits(100, s))},
			`"b";q=1;w=60`, `"b";r=100;t=6000`,
		},
		{
			"deny all",
			[]Result{result("none", "", 0, time.Minute, denies(time.Minute))},
			`"none";q=0;w=60`, `"none";r=0;t=60`,
		},
		{
			"the largest numbers",
			[]Result{result("big", "", math.MaxInt64, math.MaxInt64, admits(math.MaxInt64-1, math.MaxInt64))},
			`"big";q=99999999999999;w=9223372037`, `"big";r=99999999999999;t=9223372037`,
		},
		{
			"a bucket that would last for longer than there are numbers",
			[]Result{result("big", "", 1, math.MaxInt64, admits(math.MaxInt64, 0))},
			`"big";q=1;w=9223372037`, `"big";r=99999999999999;t=9223372037`,
		},
		{
			"a denial that knows of no end",
			[]Result{result("x", "", 5, time.Minute, Result{})},
			`"x";q=5;w=60`, `"x";r=0;t=60`,
		},
		{
			"names are quoted, or left out",
			[]Result{result(`a"b\c`, "", 5, time.Minute, admits(0, s)), result("ü", "", 5, time.Minute, admits(0, s))},
			`"a\"b\\c";q=5;w=60`, `"a\"b\\c";r=0;t=1`,
		},
		{"only a name that can't be said", []Result{result("ü", "", 5, time.Minute, admits(0, s))}, "", ""},
		{"two of those", []Result{result("ü", "", 5, s, admits(0, s)), result("ö", "", 5, s, admits(0, s))}, "", ""},
	} {
		h := http.Header{}
		new(Fields).writeHeaders(h, IETF, c.all, 0)
		if got := h.Get("RateLimit-Policy"); got != c.policies {
			t.Errorf("%s: RateLimit-Policy %s, want %s", c.name, got, c.policies)
		}
		if got := h.Get("RateLimit"); got != c.says {
			t.Errorf("%s: RateLimit %s, want %s", c.name, got, c.says)
		}
		if len(h) > 2 || c.says == "" && len(h) > 0 {
			t.Errorf("%s: headers %v", c.name, h)
		}
	}
}

func TestKongHeaders(t *testing.T) {
	const day = 24 * time.Hour
	h := http.Header{}
	new(Fields).writeHeaders(h, Kong, []Result{
		result("a", "-1s", 10, time.Second, admits(9, time.Second)),
		result("a", "-1m", 50, time.Minute, admits(3, time.Second)),
		result("b", "", 40, time.Minute, admits(2, time.Second)),
		result("c", "", 40, time.Minute, admits(30, time.Second)),
		result("d", "-90s", 100, 90*time.Second, admits(2, 7*time.Second+1)),
		result("d", "-1h", 100, time.Hour, admits(50, 0)),
		result("d", "-1d", 100, day, admits(51, 0)),
		result("d", "-30d", 100, 30*day, admits(52, 0)),
		result("d", "-365d", 100, 365*day, admits(53, 0)),
		result("d", "-300ms", 100, 300*time.Millisecond, admits(54, 0)),
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
		all                           []Result
		limit, remaining, used, reset string
	}{
		{[]Result{result("a", "", 5, time.Minute, admits(0, 100*time.Millisecond))}, "5", "0", "5", "1700000001"},
		{[]Result{result("a", "", 5, time.Minute, denies(59200*time.Millisecond))}, "5", "0", "5", "1700000061"},
		{[]Result{result("a", "", 5, time.Minute, admits(7, time.Second))}, "5", "7", "0", "1700000085"},
		{
			[]Result{result("a", "-1m", 5, time.Minute, admits(3, 0)), fixed(result("a", "-1h", 6, time.Hour, admits(3, time.Minute)))},
			"6", "3", "3", "1700000121",
		},
		{[]Result{result("a", "", 5, math.MaxInt64, denies(math.MaxInt64))}, "5", "0", "5", "9223372037"},
	} {
		h := http.Header{}
		new(Fields).writeHeaders(h, GitHub, test.all, now)
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
	all := []Result{result("a", "", 5, time.Minute, admits(4, 0))}
	new(Fields).writeHeaders(h, allSets, all, 0)
	if got, want := h.Values("RateLimit"), []string{`"before";r=1;t=1`, `"a";r=4;t=48`}; !slices.Equal(got, want) {
		t.Errorf("RateLimit %q, want %q", got, want)
	}
	if spill := shared[:2][1]; spill != "" {
		t.Errorf("%q was written into a slice of somebody else", spill)
	}
	// The second handler's limit is wider: single numbers stay the first's, lists have both.
	new(Fields).writeHeaders(h, allSets, []Result{result("b", "", 100, time.Minute, admits(99, 0))}, 0)
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
	new(Fields).writeHeaders(h, allSets, []Result{result("c", "", 7, time.Minute, denies(time.Second))}, 0)
	if got := h.Values("X-RateLimit-Remaining"); !slices.Equal(got, []string{"0"}) {
		t.Errorf("X-RateLimit-Remaining after a denial: %q, want 0", got)
	}
}

func TestValuesOfOneRequestDoNotTouch(t *testing.T) {
	all := []Result{result("a", "", 5, time.Minute, admits(4, 0))}
	one, two := http.Header{}, http.Header{}
	new(Fields).writeHeaders(one, allSets, all, 0)
	new(Fields).writeHeaders(two, allSets, all, 0)
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

// Fields that were used before write what new ones do, whichever zones a set of headers tells of.
func TestUsedFieldsWriteWhatNewOnesDo(t *testing.T) {
	random, used := rand.New(rand.NewPCG(1, 1)), new(Fields)
	for range 500 {
		var all []Result
		for i := range 1 + random.IntN(4) {
			r := result(string(rune('a'+i)), "", 1+random.Int64N(9), time.Minute, admits(random.Int64N(9), time.Second))
			policy := *r.Policy
			policy.sets, r.Policy, r.Shadow = HeaderSets(random.IntN(int(allSets)+1)), &policy, random.IntN(4) == 0
			all = append(all, r)
		}
		got, want, sets := http.Header{}, http.Header{}, HeaderSets(random.IntN(int(allSets)+1))
		used.writeHeaders(got, sets, all, 0)
		new(Fields).writeHeaders(want, sets, all, 0)
		if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Fatalf("used fields write %q, new ones %q", got, want)
		}
	}
}

func TestHeaderNamesAreCanonical(t *testing.T) {
	h := http.Header{}
	new(Fields).writeHeaders(h, allSets, []Result{result("a", "", 5, 90*time.Second, admits(4, 0))}, 0)
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
		want  HeaderSets
		err   string
	}{
		{"", IETF, ""},
		{"ietf", IETF, ""},
		{"off", 0, ""},
		{"kong github", Kong | GitHub, ""},
		{"github ietf kong", allSets, ""},
		{"off ietf", 0, "together with a header set"},
		{"kong off", 0, "together with a header set"},
		{"ietf ietf", 0, "twice"},
		{"Draft", 0, "write ietf, kong, github, or off"},
	} {
		got, err := ParseHeaderSets(strings.Fields(test.names))
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || got != test.want && test.err == "" {
			t.Errorf("ParseHeaderSets(%s) = %b, %v; want %b, %s", test.names, got, err, test.want, test.err)
		}
	}
	h := http.Header{}
	new(Fields).writeHeaders(h, 0, []Result{result("a", "", 5, time.Minute, admits(4, 0))}, 0)
	if len(h) != 0 {
		t.Errorf("headers off: %v", h)
	}
}

func TestHeadersCostFewAllocations(t *testing.T) {
	for _, test := range []struct {
		name string
		sets HeaderSets
		all  []Result
		most float64
	}{
		{"ietf", IETF, []Result{result("login", "", 5, time.Minute, admits(4, 0))}, 2},
		{"ietf, two limits", IETF, []Result{
			result("login", "-1m", 5, time.Minute, admits(4, 0)), result("login", "-1h", 5, time.Hour, admits(4, 0)),
		}, 2},
		{"kong", Kong, []Result{result("login", "", 5, time.Minute, admits(4, 0))}, 2},
		{"off", 0, []Result{result("login", "", 5, time.Minute, admits(4, 0))}, 0},
	} {
		h, f := make(http.Header, 16), new(Fields)
		if n := fewestAllocs(func() {
			clear(h)
			f.writeHeaders(h, test.sets, test.all, 0)
		}); n > test.most {
			t.Errorf("%s: %v allocations, want %v", test.name, n, test.most)
		}
	}
}

// fewestAllocs is what one of many runs allocates: under the race detector a sync.Pool forgets at
// random.
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
		d := Result{Allowed: allowed, Remaining: remaining, MoreAfter: time.Duration(next)}
		if !allowed {
			d.RetryAfter, d.Remaining = time.Duration(next), 0
		}
		suffix := ""
		if several {
			suffix = "-" + time.Duration(window).String()
		}
		all := []Result{
			result(zone, suffix, n, time.Duration(window), d),
			result("fixed", "", 10, time.Minute, admits(3, time.Second)),
		}
		if k%6 == 1 {
			all[0] = fixed(all[0])
		}
		h := http.Header{"Ratelimit": {string(upstream)}}
		new(Fields).writeHeaders(h, allSets, all, now)
		if got := h["Ratelimit"][0]; got != string(upstream) {
			t.Errorf("upstream's %q became %q", upstream, got)
		}
		checkItem(t, h["Ratelimit-Policy"], &all[0], "q", "w")
		checkItem(t, h["Ratelimit"][1:], &all[0], "r", "t")
		// A member after it shows whether the parser can read on: it stumbles over an integer of 15
		// digits before a comma, which RFC 9651 allows.
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
			seconds < ceilSeconds(all[0].reset()) {
			t.Errorf("Retry-After %d ends before t=%d", seconds, ceilSeconds(all[0].reset()))
		}
	})
}

// checkItem reads a field with an independent parser: it is one value, a list of what can be said.
func checkItem(t *testing.T, values []string, r *Result, amount, seconds string) {
	t.Helper()
	if len(values) != 1 {
		t.Fatalf("%d values, want 1: %q", len(values), values)
	}
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		t.Fatalf("parsing %q: %v", values, err)
	}
	items := 1
	if r.Policy.quoted != "" {
		items = 2
	}
	if len(list) != items {
		t.Fatalf("%d items in %q, want %d", len(list), values, items)
	}
	item := list[0].(httpsfv.Item)
	if r.Policy.quoted != "" && item.Value != r.Policy.Name {
		t.Errorf("name %q, want %q", item.Value, r.Policy.Name)
	}
	n, _ := item.Params.Get(amount)
	want := map[string]int64{"q": r.Policy.Limit, "r": r.Remaining}[amount]
	if r.Policy.quoted != "" && n != min(want, maxInteger) {
		t.Errorf("%s = %v, want %d", amount, n, want)
	}
	if s, _ := item.Params.Get(seconds); s.(int64) < 0 || seconds == "w" && s.(int64) < 1 {
		t.Errorf("%s = %v", seconds, s)
	}
}

// Many limits are told of by the eight that are nearest, those first, so that the headers fit into
// what a proxy in front takes: nginx takes 4 kilobytes. The other sets tell of them as before.
func TestManyLimitsAreToldByTheNearest(t *testing.T) {
	var all []Result
	for i := range int64(60) {
		all = append(all, result("zone", strconv.FormatInt(i, 10), 100, time.Hour, admits((i*37+11)%60+40, time.Second)))
	}
	all[50] = result("zone", "50", 100, time.Hour, denies(time.Minute))
	all[7] = result("zone", "7", 1000, time.Hour, admits(90, time.Second))
	h := http.Header{}
	new(Fields).writeHeaders(h, allSets, slices.Clone(all), 0)
	byShare := func(a, b Result) int {
		x, y := float64(a.Remaining)/float64(a.Size), float64(b.Remaining)/float64(b.Size)
		return int(math.Copysign(1, x-y))
	}
	slices.SortFunc(all, byShare)
	var want []string
	for _, r := range all[:8] {
		want = append(want, strconv.Quote(r.Policy.Name))
	}
	for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
		var got []string
		for _, item := range strings.Split(h.Get(name), ", ") {
			got = append(got, strings.SplitN(item, ";", 2)[0])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s tells of %q, want %q", name, got, want)
		}
	}
	if got := h.Get("X-RateLimit-Limit-Hour") + " " + h.Get("X-RateLimit-Remaining"); got != "100 0" {
		t.Errorf("the other sets tell of %q, want the limit that denies", got)
	}
	size := 0
	for name, values := range h {
		size += len(name) + len(values[0]) + 4
	}
	if size > 2000 {
		t.Errorf("the headers have %d bytes, want 2000 at most", size)
	}
}
