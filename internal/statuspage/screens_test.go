//go:build chaos

package statuspage

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/browsertest"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// exampleView is what a node shows after five minutes in which a login was attacked.
func exampleView() *View {
	now := time.Date(2026, 11, 22, 17, 56, 27, 0, time.UTC)
	synced := &ratesync.TableStatus{Synced: now}
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	h := history{zones: map[string][]metrics.Counts{}}
	for zone, rate := range map[string]func(i float64) metrics.Counts{
		"login": func(i float64) metrics.Counts {
			return metrics.Counts{Admitted: 4 + 3*math.Sin(i/3), Denied: max(0, 60*math.Sin((i-20)/13))}
		},
		"api": func(i float64) metrics.Counts {
			return metrics.Counts{Admitted: 180 + 60*math.Sin(i/8), Denied: max(0, 40*math.Sin(i/5)-28), Near: 14}
		},
		"search": func(i float64) metrics.Counts {
			return metrics.Counts{Admitted: 30 + 9*math.Cos(i/6), WouldDeny: 4}
		},
	} {
		sum := metrics.Counts{}
		for i := range kept + 1 {
			c, s := rate(float64(i)), step.Seconds()
			sum.Admitted, sum.Denied, sum.WouldDeny, sum.Near = sum.Admitted+s*c.Admitted, sum.Denied+s*c.Denied, sum.WouldDeny+s*c.WouldDeny, sum.Near+s*c.Near
			h.zones[zone] = append(h.zones[zone], sum)
		}
	}
	second := config.SyncRate(time.Second)
	v := viewOf(operate.State{
		Zones: []operate.LimitState{
			{Zone: "login", Algorithm: "sliding_window", Limit: 5, Window: "1m", SyncRate: config.Strict, Enforce: 1, Keys: 41, MaxKeys: 1000000, Banned: new(int64(2)), Sync: synced},
			{Zone: "api", Algorithm: "token_bucket", Limit: 600, Window: "1m", SyncRate: second, Enforce: 1, Keys: 212, MaxKeys: 1000000, Sync: synced},
			{Zone: "search", Algorithm: "sliding_window", Limit: 120, Window: "1m", SyncRate: second, Enforce: 0.25, Keys: 96, MaxKeys: 1000000, Sync: synced},
		},
		Redis:   &ratesync.Status{Up: true},
		Control: &control.Summary{Shared: true},
		Nodes: []control.Node{
			{Name: "web-1/18980", Version: "v0.1.0", Heard: now, Applied: true, Self: true},
			{Name: "web-2/18982", Version: "v0.1.0", Heard: ago(time.Second), Applied: true},
		},
		Overrides: []control.EntryState{{Zone: "api", ID: "2ca8bc42f0e1d3c5b7a99f8e7d6c5b4a", Limit: "1200/1m", Until: now.Add(time.Hour), Note: "ticket 4711"}},
	}, &h, now)
	v.Denied = []operate.DeniedKey{
		{Zone: "login", ID: "71f0c3aa52e1d3c5b7a99f8e7d6c5b4a", Key: "203.0.113.7", Denied: 4180},
		{Zone: "login", ID: "0b8de911aae1d3c5b7a99f8e7d6c5b4a", Key: "198.51.100.24", Denied: 2914},
		{Zone: "api", ID: "2ca8bc42f0e1d3c5b7a99f8e7d6c5b4a", Denied: 61},
		{Zone: "search", ID: "c90e4d11b7e1d3c5b7a99f8e7d6c5b4a", WouldDeny: 1140},
	}
	v.Bans.Bans = []operate.BanState{
		{Zone: "login", ID: "71f0c3aa52e1d3c5b7a99f8e7d6c5b4a", Key: "203.0.113.7", Why: "denied by 5/1m", Since: ago(2 * time.Minute), Until: now.Add(time.Hour)},
		{Zone: "login", ID: "0b8de911aae1d3c5b7a99f8e7d6c5b4a", Key: "198.51.100.24", Why: "denied by 5/1m", Since: ago(3 * time.Minute), Until: now.Add(time.Hour)},
	}
	return v
}

// A shown is a part of the page as a browser lays it out.
type shown struct {
	What                    string
	X, Y, W, H              float64
	Covered, Clipped, Below bool
	Contrast                float64
	Colour                  string
}

// look measures what is looked at first, and every text: whether something covers it, cuts it or
// puts it below the first screen, and how well its colour stands out from its ground.
const look = `(() => {
	const part = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
	const linear = (c) => c <= 10.31475 ? c / 3294.6 : ((c / 255 + .055) / 1.055) ** 2.4;
	const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
	const ground = (e) => {
		for (; e; e = e.parentElement) {
			const c = part(getComputedStyle(e).backgroundColor);
			if (c.length < 4 || c[3] === 1) return c;
		}
	};
	const contrast = (e, colour) => {
		const [a, b] = [light(part(colour)), light(ground(e))].sort((a, b) => b - a);
		return (a + .05) / (b + .05);
	};
	const measure = (what, e, colour) => {
		const b = e.getBoundingClientRect();
		const top = document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2);
		return {What: what, X: b.x, Y: b.y, W: b.width, H: b.height,
			Covered: b.bottom <= innerHeight && !(top && (e.contains(top) || top.contains(e))),
			Clipped: e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline",
			Below: b.bottom > innerHeight || b.right > innerWidth || b.x < 0 || b.y < 0,
			Contrast: contrast(e, colour), Colour: colour};
	};
	const row = document.querySelector(".zones tbody tr");
	const cell = (e) => measure(e.textContent, e, getComputedStyle(e).color);
	const first = [...row.querySelectorAll("th, .big"), ...row.querySelectorAll(".p .denied"), row.querySelector("svg")].map(cell);
	const texts = [...document.querySelectorAll("h1, h2, p, th, td, small, code, a:not(.skip), li")].
		filter((e) => !e.closest("thead") || e.getBoundingClientRect().right > 0).map(cell);
	const curves = [...row.querySelectorAll(".a, .d")].map((e) => measure("a curve", e, getComputedStyle(e).stroke));
	return {First: first, Texts: texts, Curves: curves, Wider: document.documentElement.scrollWidth - innerWidth};
})()`

// What one looks at first is seen first, on a desk and on a phone, by day and at night: who is
// denied and banned, what is admitted, and the curve of the zone that denies most. Everything can
// be read. And the page is as the pictures have it.
func TestScreens(t *testing.T) {
	url, tab := serveExample(t), browsertest.NewTab(t)
	for _, screen := range []struct{ width, height int }{{390, 844}, {1280, 800}} {
		for _, scheme := range []string{"light", "dark"} {
			name := fmt.Sprintf("status-%d-%s.png", screen.width, scheme)
			tab.Show(screen.width, screen.height, scheme)
			tab.Go(url)
			checkScreen(t, tab, name)
			tab.LooksLike("../../docs/pictures/"+name, redistest.UpdateGoldens, "UPDATE_GOLDENS=1 go test ./internal/statuspage -run TestScreens")
		}
	}
}

// serveExample returns where the page of exampleView is.
func serveExample(t *testing.T) string {
	h := &Handler{Allow: []string{"all"}, view: exampleView(), made: time.Now().Add(time.Hour)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.ServeHTTP(w, r, nil); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// What the comparison of pictures allows is what other fonts do, and less than what a mistake does.
func TestWhatPicturesAllow(t *testing.T) {
	url, tab := serveExample(t), browsertest.NewTab(t)
	for _, width := range []int{390, 1280} {
		tab.Show(width, 844, "light")
		tab.Go(url)
		before := tab.Screen()
		for style, same := range map[string]bool{
			"body { font-family: serif }":                               true,
			"body { font-family: 'DejaVu Sans Condensed', sans-serif }": true,
			"body { font-family: monospace; letter-spacing: -.05em }":   true,
			"body { letter-spacing: .02em }":                            true,
			"* { font-weight: 400 !important }":                         true,
			"svg { visibility: hidden }":                                false,
			".d { visibility: hidden }":                                 false,
			".zones thead, .zones .big:nth-child(2) { display: none }":  false,
			".health { display: none }":                                 false,
			":root { --bad: var(--good) }":                              false,
			".zones th { background: var(--soft) }":                     false,
			"svg { height: 24px }":                                      false,
		} {
			tab.Go(url)
			var ok bool
			tab.Eval(fmt.Sprintf(`(() => { const s = new CSSStyleSheet(); s.replaceSync(%q); document.adoptedStyleSheets = [s]; return true })()`, style), &ok)
			d := browsertest.Compare(tab.Screen(), before)
			t.Logf("%d %s: %+v", width, style, d)
			if d.IsSmall() != same {
				t.Errorf("%d pixels wide, with %s it is %+v", width, style, d)
			}
		}
	}
}

func checkScreen(t *testing.T, tab *browsertest.Tab, name string) {
	t.Helper()
	var page struct {
		First, Texts, Curves []shown
		Wider                float64
	}
	tab.Eval(look, &page)
	want := []string{"login", "8.5", "6.1", "0", "2", "banned: 203.0.113.7", "banned: 198.51.100.24", ""}
	for i, s := range page.First {
		if i >= len(want) || s.What != want[i] || s.Below || s.Covered || s.Clipped || s.W < 6 || s.H < 10 {
			t.Errorf("%s: of what is seen first, number %d: %+v, want %q", name, i, s, want)
		}
	}
	if len(page.First) != len(want) || page.First[len(want)-1].W < 250 {
		t.Fatalf("%s: the first row has %+v, want %q and a curve", name, page.First, want)
	}
	if bad := page.First[1].Colour; bad == page.First[2].Colour || bad == page.First[3].Colour || bad != page.First[4].Colour {
		t.Errorf("%s: what is denied is %s, as what is admitted or would be denied, or other than what is banned", name, bad)
	}
	for _, s := range page.Texts {
		if s.Covered || s.Clipped || s.Contrast < 4.5 {
			t.Errorf("%s: %+v can't be read", name, s)
		}
	}
	for _, s := range page.Curves {
		if s.Contrast < 3 {
			t.Errorf("%s: %+v can't be seen", name, s)
		}
	}
	if page.Wider > 0 || len(page.Texts) < 30 || len(page.Curves) != 2 {
		t.Errorf("%s: the page is %v pixels wider than the screen, with %d texts and %d curves", name, page.Wider, len(page.Texts), len(page.Curves))
	}
}
