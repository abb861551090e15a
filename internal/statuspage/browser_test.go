//go:build chaos

package statuspage_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/browsertest"
)

// A browser shows what the JSON says, and has nothing to complain of. The page is complete before
// its script has run.
func TestInABrowser(t *testing.T) {
	s := serve(t, "", "", zone("api", "")+zone(hostile, "enforce 25%"))
	for range 7 {
		s.get("GET", "/")
	}
	dom, log := browsertest.Open(t, s.base+"/limits", "--dump-dom")
	if strings.Contains(log, "CONSOLE") {
		t.Errorf("the console has\n%s", log)
	}
	_, text := s.get("GET", "/limits")
	for from, page := range map[string]string{"browser": dom, "server": text} {
		want := []string{"<h1>Rate limits</h1>", ">api</th>", "&lt;script&gt;document.title", ">enforced for 25%</small>", "5/30d", "sliding_window, local"}
		for _, want := range want {
			if !strings.Contains(page, want) {
				t.Errorf("the page of the %s has no %s:\n%s", from, want, page)
			}
		}
		if strings.Contains(page, "<title>owned") || regexp.MustCompile(`<img|<script>`).MatchString(page) {
			t.Errorf("the name of a zone is more than text:\n%s", page)
		}
	}
}

// The script asks for the page again, and puts in what is new; it asks for nothing else.
func TestThePageRefreshes(t *testing.T) {
	s := serve(t, "", "", zone("api", ""))
	target, err := url.Parse(s.base)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked := map[string]int{}
	between := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding")
			mu.Lock()
			defer mu.Unlock()
			asked[r.In.URL.String()]++
		},
		ModifyResponse: func(r *http.Response) error {
			mu.Lock()
			defer mu.Unlock()
			if asked["/limits"] < 2 {
				return nil
			}
			body, err := io.ReadAll(r.Body)
			body = bytes.ReplaceAll(body, []byte(">Health<"), []byte(">Newest<"))
			r.Body = io.NopCloser(bytes.NewReader(body))
			return err
		},
	})
	defer between.Close()
	dom, log := browsertest.Open(t, between.URL+"/limits", "--dump-dom", "--virtual-time-budget=12000")
	if !strings.Contains(dom, ">Newest<") || strings.Contains(log, "CONSOLE") {
		t.Errorf("the page is as it was, or the console has something to say:\n%s\n%s", dom, log)
	}
	mu.Lock()
	defer mu.Unlock()
	delete(asked, "/favicon.ico") // a browser wants it of each page
	if len(asked) != 2 || asked["/limits"] < 2 || asked["/limits?script"] != 1 {
		t.Errorf("the browser asked for %v", asked)
	}
}

// A picture of the page is not empty, whatever the colours and the width.
func TestPictures(t *testing.T) {
	s := serve(t, "", "", zone("api", "")+zone("shadow", "enforce off")+options["slots"].zone+options["downloads"].zone+options["login"].zone+options["banned"].zone)
	for range 7 {
		s.get("GET", "/")
	}
	for name, flags := range map[string][]string{
		"light":  {"--window-size=1200,700", "--blink-settings=preferredColorScheme=1"},
		"dark":   {"--window-size=1200,700", "--blink-settings=preferredColorScheme=0"},
		"narrow": {"--window-size=500,900", "--blink-settings=preferredColorScheme=1"},
	} {
		dir := t.TempDir()
		if keep := os.Getenv("TIDE_PICTURES"); keep != "" {
			dir = keep
		}
		path := filepath.Join(dir, "status-"+name+".png")
		browsertest.Open(t, s.base+"/limits", append(flags, "--hide-scrollbars", "--screenshot="+path)...)
		checkPicture(t, path, name == "dark")
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
	target, err := url.Parse(s.base)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	// A sandbox runs no script.
	between := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, r.In.URL.String())
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Add("Content-Security-Policy", "sandbox allow-same-origin")
			return nil
		},
	})
	defer between.Close()
	dom, log := browsertest.Open(t, between.URL+"/limits", "--dump-dom")
	if strings.Count(dom, `<tr><th scope="row">`) != 50+1 || !strings.Contains(dom, "950 are not") || !strings.Contains(dom, "</html>") || strings.Contains(dom, "<title>owned") {
		t.Errorf("without a script the page has %d zones:\n%.3000s", strings.Count(dom, `<tr><th scope="row">`), dom)
	}
	if strings.Count(log, "CONSOLE") != strings.Count(log, "Blocked script execution") || !strings.Contains(log, "Blocked script execution") {
		t.Errorf("a script ran, or the console has\n%s", log)
	}
	path := filepath.Join(t.TempDir(), "page.png")
	browsertest.Open(t, between.URL+"/limits", "--hide-scrollbars", "--window-size=1200,700", "--blink-settings=preferredColorScheme=1", "--screenshot="+path)
	checkPicture(t, path, false)
	// The script is asked for as well, and nothing waits for it.
	mu.Lock()
	defer mu.Unlock()
	for _, url := range asked {
		if url != "/limits" && url != "/limits?script" && url != "/favicon.ico" {
			t.Errorf("without a script the browser asked for %v", asked)
		}
	}
	if _, page := s.get("GET", "/limits"); strings.Count(page, "<script") != 1 || !strings.Contains(page, `<script src="?script" defer>`) || strings.Contains(page, "<link") || strings.Contains(page, "url(") || strings.Contains(page, "@import") {
		t.Errorf("something holds the first paint up: %.3000s", page)
	}
	if _, log := browsertest.Open(t, s.base+"/limits", "--dump-dom"); strings.Contains(log, "CONSOLE") {
		t.Errorf("with a script the console has\n%s", log)
	}
}
