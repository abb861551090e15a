//go:build chaos

package recipes_test

import (
	"fmt"
	"image/color"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/browsertest"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// readingPage sends what a browser asks for first: a header of its own, and JSON. It shows what it
// got to read.
const readingPage = `<!doctype html><pre id=got></pre><script>
const read = (method, headers, body) => {
	let line
	const r = new XMLHttpRequest()
	try {
		r.open(method, "%s", false)
		for (const name in headers) r.setRequestHeader(name, headers[name])
		r.send(body)
		line = [r.status, r.getResponseHeader("RateLimit"), r.getResponseHeader("RateLimit-Policy"), r.getResponseHeader("Retry-After")].join(" | ")
	} catch (e) {
		line = e.name
	}
	document.getElementById("got").textContent += line + "\n"
}
read("GET", {"X-Api-Key": "k"})
read("POST", {"Content-Type": "application/json"}, "{}")
read("GET", {"X-Api-Key": "k"})
</script>`

// A page of another origin reads the answers and how much is left, also when it is denied.
func TestCrossOriginExampleInABrowser(t *testing.T) {
	_, site, _ := strings.Cut(sitetest.ReadPage(t, "examples/preflights/Caddyfile"), "http://localhost:8080 {\n")
	port := redistest.FreePort(t)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, readingPage, "http://127.0.0.1:"+strconv.Itoa(port)+"/")
	}))
	defer app.Close()
	sitetest.LoadSites(t, fmt.Sprintf("http://127.0.0.1:%d {\n%s}\n", port, strings.NewReplacer(
		"https://app.example.com", app.URL, "2/1m", "2/1h").Replace(strings.TrimSuffix(strings.TrimSpace(site), "}"))))
	dom, log := browsertest.Open(t, app.URL, "--dump-dom")
	_, got, _ := strings.Cut(dom, `<pre id="got">`)
	got, _, _ = strings.Cut(got, "</pre>")
	lines := strings.Split(strings.TrimSpace(got), "\n")
	for i, want := range []string{`200 | "api";r=1`, `200 | "api";r=0`, `429 | "api";r=0`} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) || !strings.Contains(lines[i], ` | "api";q=2;w=3600 | `) || strings.HasSuffix(lines[i], " | ") == (i == 2) {
			t.Errorf("request %d: the page reads %q, want %s; the console has %s", i+1, lines, want, log)
			break
		}
	}
}

// The report can be read at night as well, its charts included, and is what the page shows.
func TestReportInABrowser(t *testing.T) {
	if _, err := simulateCommand(t, "--limit", "100/1m", "access.log", "--html", "report.html"); err != nil {
		t.Fatal(err)
	}
	report, err := filepath.Abs("report.html")
	if err != nil {
		t.Fatal(err)
	}
	tab := browsertest.NewTab(t)
	for _, scheme := range []string{"light", "dark"} {
		tab.Show(900, 860, scheme)
		tab.Go("file://" + report)
		var at struct{ X, Y, Wider, Charts int }
		tab.Eval(`(() => {
			const b = document.images[0].getBoundingClientRect();
			const shown = [...document.images].filter((i) => i.complete && i.naturalWidth > 0).length;
			return {X: Math.ceil(b.x) + 3, Y: Math.ceil(b.y) + 3, Wider: document.documentElement.scrollWidth - innerWidth, Charts: shown};
		})()`, &at)
		ground := color.GrayModel.Convert(tab.Screen().At(at.X, at.Y)).(color.Gray).Y
		if scheme == "light" && ground < 224 || scheme == "dark" && ground > 32 || at.Wider > 0 || at.Charts != 3 {
			t.Errorf("%s: a chart's ground is %d of 255, %d charts are shown, and %d pixels are beside the window", scheme, ground, at.Charts, at.Wider)
		}
		tab.LooksLike(filepath.Join(root, "docs/pictures/simulate-"+scheme+".png"), redistest.UpdateGoldens, "UPDATE_GOLDENS=1 go test . -run TestReportInABrowser")
	}
}
