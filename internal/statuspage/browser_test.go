//go:build chaos

package statuspage_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/browsertest"
)

// between returns where a site is behind a proxy that changes its answers, and what is asked for.
func between(t *testing.T, s site, change func(asked map[string]int, r *http.Response) error) (base string, asked func() map[string]int) {
	t.Helper()
	target, err := url.Parse(s.base)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	all := map[string]int{}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding")
			mu.Lock()
			defer mu.Unlock()
			all[r.In.URL.String()]++
		},
		ModifyResponse: func(r *http.Response) error {
			mu.Lock()
			defer mu.Unlock()
			return change(all, r)
		},
	})
	t.Cleanup(proxy.Close)
	return proxy.URL, func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		delete(all, "/favicon.ico") // a browser wants it of each page
		return maps.Clone(all)
	}
}

// The script asks for the page again, and puts in what is new; it asks for nothing else.
func TestThePageRefreshes(t *testing.T) {
	s := serve(t, "", "", zone("api", ""))
	base, asked := between(t, s, func(asked map[string]int, r *http.Response) error {
		if asked["/limits"] < 2 {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte(">Health<"), []byte(">Newest<"))))
		return err
	})
	dom, log := browsertest.Open(t, base+"/limits", "--dump-dom", "--virtual-time-budget=12000")
	if !strings.Contains(dom, ">Newest<") || strings.Contains(log, "CONSOLE") {
		t.Errorf("the page is as it was, or the console has something to say:\n%s\n%s", dom, log)
	}
	if all := asked(); len(all) != 2 || all["/limits"] < 2 || all["/limits?script"] != 1 {
		t.Errorf("the browser asked for %v", all)
	}
}

// The first request paints the whole page, with a thousand hostile zones and without a script: 50
// of them, and all together.
func TestOneRequestPaintsThePage(t *testing.T) {
	var zones strings.Builder
	for i := range 1000 {
		zones.WriteString(zone(fmt.Sprintf("%d %s", i, hostile), ""))
	}
	s := serve(t, "", "", zones.String())
	// A sandbox runs no script.
	base, asked := between(t, s, func(_ map[string]int, r *http.Response) error {
		r.Header.Add("Content-Security-Policy", "sandbox allow-same-origin")
		return nil
	})
	dom, log := browsertest.Open(t, base+"/limits", "--dump-dom")
	if strings.Count(dom, `<tr><th scope="row">`) != 50+1 || !strings.Contains(dom, "950 are not") || !strings.Contains(dom, "</html>") || strings.Contains(dom, "<title>owned") {
		t.Errorf("without a script the page has %d zones:\n%.3000s", strings.Count(dom, `<tr><th scope="row">`), dom)
	}
	if strings.Count(log, "CONSOLE") != strings.Count(log, "Blocked script execution") || !strings.Contains(log, "Blocked script execution") {
		t.Errorf("a script ran, or the console has\n%s", log)
	}
	path := filepath.Join(t.TempDir(), "page.png")
	browsertest.Open(t, base+"/limits", "--hide-scrollbars", "--window-size=1200,700", "--blink-settings=preferredColorScheme=1", "--screenshot="+path)
	checkPicture(t, path)
	// The script is asked for as well, and nothing waits for it.
	for url := range asked() {
		if url != "/limits" && url != "/limits?script" {
			t.Errorf("without a script the browser asked for %v", asked())
		}
	}
	if _, page := s.get("GET", "/limits"); strings.Count(page, "<script") != 1 || !strings.Contains(page, `<script src="?script" defer>`) || strings.Contains(page, "<link") || strings.Contains(page, "<img") || strings.Contains(page, "url(") || strings.Contains(page, "@import") {
		t.Errorf("something holds the first paint up: %.3000s", page)
	}
	if _, log := browsertest.Open(t, s.base+"/limits", "--dump-dom"); strings.Contains(log, "CONSOLE") {
		t.Errorf("with a script the console has\n%s", log)
	}
}
