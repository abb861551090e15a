package ratelimit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// backend is an upstream that says its name, and how often it was asked.
func backend(t *testing.T, name string) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Cache-Control", "max-age=60")
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), asked
}

// recipe starts a site of docs/recipes.md. Pairs of what is replaced follow its address.
func recipe(t *testing.T, address string, replace ...string) *served {
	t.Helper()
	global, site := siteInPage(t, "docs/recipes.md", address)
	return startCaddy(t, global, strings.NewReplacer(replace...).Replace(site))
}

// until sends requests until one is answered in a way that is looked for, so many at most.
func (s *served) until(count int, is func(reply) bool, change ...func(*http.Request)) (last reply, before int) {
	s.t.Helper()
	for before = range count {
		a, err := s.get(s.t.Context(), "HTTP/1.1", change...)
		if err != nil {
			s.t.Fatal(err)
		}
		if is(a) {
			return a, before
		}
	}
	s.t.Fatalf("none of %d requests was answered as expected, last %+v", count, last)
	return last, before
}

func hasStatus(status int) func(reply) bool { return func(a reply) bool { return a.status == status } }

// A page of one's own has the status of the denial, also for a form.
func TestRecipeOfAPage(t *testing.T) {
	www, errors := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(www, "index.html"): "home", filepath.Join(errors, "429.html"): `come back in {{placeholder "http.rate_limit.exceeded.wait"}} seconds`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := recipe(t, "www.example.com", "/srv/www", www, "/srv/errors", errors)
	page, before := s.until(300, hasStatus(http.StatusTooManyRequests))
	if before < 100 {
		t.Errorf("%d requests were admitted, want 100 at least", before)
	}
	wait := page.header.Get("Retry-After")
	if page.body != "come back in "+wait+" seconds" || page.header.Get("Cache-Control") != "no-store" || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
		t.Errorf("denied with %q, %v, want the page with Retry-After", page.body, page.header)
	}
	form, _ := s.until(100, hasStatus(http.StatusTooManyRequests), method(http.MethodPost))
	if !strings.HasPrefix(form.body, "come back in ") {
		t.Errorf("a form was denied with %+v, want the page", form)
	}
}

// Programs get JSON, browsers a sentence.
func TestRecipeOfJSON(t *testing.T) {
	upstream, _ := backend(t, "orders")
	s := recipe(t, "api.example.com", "localhost:9000", upstream, "600/1m", "2/1h")
	program := header("X-Api-Key", "k")
	s.answers("HTTP/1.1", 2, http.StatusOK, 2, program)
	a, err := s.get(t.Context(), "HTTP/1.1", program)
	var said struct {
		Error, Zone string
		RetryAfter  int `json:"retry_after"`
	}
	if err != nil || a.status != http.StatusTooManyRequests || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("a program is denied with %+v, %v", a, err)
	}
	if err := json.Unmarshal([]byte(a.body), &said); err != nil || said.Error != "rate_limited" || said.Zone != "api" || fmt.Sprint(said.RetryAfter) != a.header.Get("Retry-After") {
		t.Errorf("a program is told %s, %v, Retry-After %q", a.body, err, a.header.Get("Retry-After"))
	}
	a, err = s.get(t.Context(), "HTTP/1.1", program, header("Accept", "text/html,*/*"))
	if want := "Please come back in " + a.header.Get("Retry-After") + " seconds."; err != nil || a.status != http.StatusTooManyRequests || a.body != want {
		t.Errorf("a browser is denied with %+v, %v, want %q", a, err, want)
	}
}

// What is beyond the limit goes to another upstream, whose answer is as if there were no denial.
// What is beyond that one's limit is denied.
func TestRecipeOfACheaperUpstream(t *testing.T) {
	model, modelAsked := backend(t, "model")
	index, indexAsked := backend(t, "index")
	s := recipe(t, "search.example.com", "localhost:9000", model, "localhost:9001", index, "30/1m", "3/1h", "300/1m", "4/1h")
	search := onPath("/search")
	for _, want := range []string{"model", "model", "model", "index", "index", "index", "index"} {
		a, err := s.get(t.Context(), "HTTP/2.0", search)
		if err != nil || a.status != http.StatusOK || a.body != want {
			t.Fatalf("answered %+v, %v, want 200 by %s", a, err, want)
		}
		if a.header.Get("Retry-After") != "" || strings.Join(a.header["Cache-Control"], ",") != "max-age=60" {
			t.Errorf("the answer of %s has %v, want the upstream's headers alone", want, a.header)
		}
	}
	a, err := s.get(t.Context(), "HTTP/1.1", search)
	if err != nil || a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "search_index") {
		t.Errorf("beyond both limits: %+v, %v, want 429 by search_index", a, err)
	}
	if modelAsked.Load() != 3 || indexAsked.Load() != 4 {
		t.Errorf("the model was asked %d times and the index %d times, want 3 and 4", modelAsked.Load(), indexAsked.Load())
	}
	s.answers("HTTP/1.1", 9, http.StatusOK, 9, onPath("/cart"))
}

// A shadowban can't be told from a comment that was taken.
func TestRecipeOfAShadowban(t *testing.T) {
	upstream, asked := backend(t, "Thank you.")
	s := recipe(t, "comments.example.com", "localhost:9000", upstream, "5/10m", "5/1h")
	post := func() reply {
		a, err := s.get(t.Context(), "HTTP/1.1", method(http.MethodPost), onPath("/comments"))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for i := range 8 {
		a := post()
		if a.status != http.StatusOK || a.body != "Thank you." {
			t.Errorf("comment %d was answered %+v", i+1, a)
		}
		for name := range a.header {
			if name == "Retry-After" || strings.Contains(strings.ToLower(name), "ratelimit") || i >= 5 && name == "Cache-Control" {
				t.Errorf("comment %d was answered with %s: %q", i+1, name, a.header[name])
			}
		}
	}
	grpc := []func(*http.Request){method(http.MethodPost), onPath("/comments"), header("Content-Type", "Application/gRPC")}
	s.answers("HTTP/2.0", 1, http.StatusUnsupportedMediaType, 1, grpc...)
	if asked.Load() != 5 || decidedAs(t, "comments", "denied") != 3 {
		t.Errorf("the upstream got %d comments, the metrics say %d denied; want 5 and 3", asked.Load(), decidedAs(t, "comments", "denied"))
	}
}

// Who doesn't pay waits in a queue, and finds it full. Who pays passes by.
func TestRecipeOfAQueueForThoseWhoDoNotPay(t *testing.T) {
	upstream, _ := backend(t, "shop")
	s := recipe(t, "shop.example.com", "localhost:9000", upstream, "limit 10/s", "limit 1/1h")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var denied atomic.Int64
	var all sync.WaitGroup
	s.answers("HTTP/1.1", 1, http.StatusOK, 1)
	for range 25 {
		all.Go(func() {
			if a, err := s.get(ctx, "HTTP/1.1"); err == nil && a.status == http.StatusTooManyRequests {
				denied.Add(1)
			}
		})
	}
	redistest.Eventually(t, "20 wait and 5 are denied", func() bool { return inQueue(t) == 20 && denied.Load() == 5 })
	s.answers("HTTP/1.1", 30, http.StatusOK, 30, header("X-Api-Key", "5ddc4eb2"))
	if n := inQueue(t); n != 20 {
		t.Errorf("%d requests wait after those that paid, want 20 as before", n)
	}
	cancel()
	all.Wait()
}

// Below 400 an answer has neither Retry-After nor Cache-Control of the denial, whichever handler
// gives it; what the route sets itself stays. From 400 on it has them.
func TestHeadersOfErrorRoutes(t *testing.T) {
	upstream, _ := backend(t, "cheap")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "page"), []byte("file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for route, want := range map[string]struct {
		status       int
		cacheControl string
		hasWait      bool
	}{
		"respond page 429": {429, "no-store", true},
		"respond page 503": {503, "no-store", true},
		"respond page 400": {400, "no-store", true},
		"respond page 200": {200, "", false},
		"respond 204":      {204, "", false},
		"respond page 302": {302, "", false},
		"header Cache-Control max-age=5\nrespond page 200":                {200, "max-age=5", false},
		"header Retry-After 7\nrespond page 200":                          {200, "", true},
		"header Cache-Control max-age=5\nrespond page 429":                {429, "max-age=5", true},
		"reverse_proxy " + upstream:                                       {200, "max-age=60", false},
		"root " + dir + "\nrewrite * /page\nfile_server {\nstatus 200\n}": {200, "", false},
		"root " + dir + "\nrewrite * /page\nfile_server":                  {429, "no-store", true},
		"header Page none":                           {429, "no-store", true},
		"handle {\nencode gzip\nrespond page 200\n}": {200, "", false},
	} {
		s := startCaddy(t, "", "rate_limit 0/1h\nrespond ok\nhandle_errors {\n"+route+"\n}")
		a, err := s.get(t.Context(), "HTTP/1.1")
		if err != nil || a.status != want.status || strings.Join(a.header["Cache-Control"], ",") != want.cacheControl || (a.header.Get("Retry-After") != "") != want.hasWait {
			t.Errorf("%q: %d, %v, %v; want %+v", route, a.status, a.header, err, want)
		}
	}
	// An error that is none of ours keeps what handlers had set.
	s := startCaddy(t, "", "rate_limit 9/1h\nheader Cache-Control max-age=9\nerror 404\nhandle_errors {\nrespond page 200\n}")
	if a, err := s.get(t.Context(), "HTTP/1.1"); err != nil || a.status != 200 || a.header.Get("Cache-Control") != "max-age=9" {
		t.Errorf("another error: %+v, %v", a, err)
	}
}
