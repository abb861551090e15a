package recipes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// recipe starts a site of docs/responses.md. Pairs of what is replaced follow its address.
func recipe(t *testing.T, address string, replace ...string) *sitetest.Served {
	t.Helper()
	global, site := sitetest.SiteInPage(t, "docs/responses.md", address)
	return sitetest.StartCaddy(t, global, strings.NewReplacer(replace...).Replace(site))
}

// until sends requests until one is answered in a way that is looked for, so many at most.
func until(s *sitetest.Served, count int, is func(sitetest.Reply) bool, change ...func(*http.Request)) (last sitetest.Reply, before int) {
	s.T.Helper()
	for before = range count {
		a, err := s.Get(s.T.Context(), "HTTP/1.1", change...)
		if err != nil {
			s.T.Fatal(err)
		}
		if is(a) {
			return a, before
		}
	}
	s.T.Fatalf("none of %d requests was answered as expected, last %+v", count, last)
	return last, before
}

func hasStatus(status int) func(sitetest.Reply) bool {
	return func(a sitetest.Reply) bool { return a.Status == status }
}

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
	page, before := until(s, 300, hasStatus(http.StatusTooManyRequests))
	if before < 100 {
		t.Errorf("%d requests were admitted, want 100 at least", before)
	}
	wait := page.Header.Get("Retry-After")
	if page.Body != "come back in "+wait+" seconds" || page.Header.Get("Cache-Control") != "no-store" || !strings.HasPrefix(page.Header.Get("Content-Type"), "text/html") {
		t.Errorf("denied with %q, %v, want the page with Retry-After", page.Body, page.Header)
	}
	form, _ := until(s, 100, hasStatus(http.StatusTooManyRequests), sitetest.Method(http.MethodPost))
	if !strings.HasPrefix(form.Body, "come back in ") {
		t.Errorf("a form was denied with %+v, want the page", form)
	}
}

// Where a wrong password is answered by the form again, as by WordPress, right ones don't count.
//
// no clock: the page's rates are replaced by longer ones.
func TestRecipeOfALoginThatAnswers200(t *testing.T) {
	global, site := sitetest.SiteInPage(t, "docs/login.md", "blog.example.com")
	s := sitetest.StartCaddy(t, global, strings.NewReplacer("reverse_proxy localhost:9000", "@right query right=yes\n\trespond @right 302\n\trespond form", "20/1h", "20/60d", "5/1m", "5/30d").Replace(site))
	guess := func(right string) func(*http.Request) {
		return func(r *http.Request) {
			r.Method, r.URL.Path, r.URL.RawQuery = http.MethodPost, "/wp-login.php", "right="+right
		}
	}
	s.Answers("HTTP/1.1", 8, http.StatusOK, 8, func(r *http.Request) { r.URL.Path = "/wp-login.php" })
	s.Answers("HTTP/1.1", 8, http.StatusFound, 8, guess("yes"))
	s.Answers("HTTP/1.1", 5, http.StatusOK, 5, guess("no"))
	s.Answers("HTTP/1.1", 2, http.StatusTooManyRequests, 2, guess("no"))
	s.Answers("HTTP/1.1", 2, http.StatusTooManyRequests, 2, guess("yes"))
}

// A right login clears what wrong ones of its user have spent.
//
// no clock: the page's rate is replaced by a longer one.
func TestRecipeOfARightLogin(t *testing.T) {
	global, site := sitetest.SiteInPage(t, "docs/login.md", "shop.example.com")
	s := sitetest.StartCaddy(t, global, strings.NewReplacer("reverse_proxy localhost:9000", "@right header Password right\n\trespond @right 303\n\trespond 401", "5/15m", "5/30d").Replace(site))
	guess := func(user, password string) func(*http.Request) {
		return func(r *http.Request) {
			r.Method, r.URL.Path, r.URL.RawQuery = http.MethodPost, "/login", "user="+user
			r.Header.Set("Password", password)
		}
	}
	s.Answers("HTTP/1.1", 4, http.StatusUnauthorized, 4, guess("alice", "wrong"))
	s.Answers("HTTP/1.1", 4, http.StatusUnauthorized, 4, guess("bob", "wrong"))
	s.Answers("HTTP/1.1", 1, http.StatusSeeOther, 1, guess("alice", "right"))
	s.Answers("HTTP/1.1", 5, http.StatusUnauthorized, 5, guess("alice", "wrong"))
	s.Answers("HTTP/1.1", 1, http.StatusTooManyRequests, 1, guess("alice", "right"))
	s.Answers("HTTP/1.1", 1, http.StatusUnauthorized, 1, guess("bob", "wrong"))
	s.Answers("HTTP/1.1", 1, http.StatusTooManyRequests, 1, guess("bob", "wrong"))
}

// The country is what the CDN says, and a header of anybody else is not read.
//
// no clock: the page's rates are replaced by longer ones.
func TestRecipeOfCountries(t *testing.T) {
	upstream, _ := sitetest.Backend(t, "world")
	global, site := sitetest.SiteInPage(t, "docs/keys.md", "world.example.com")
	site = strings.NewReplacer("localhost:9000", upstream, " 600\n", " 6\n", "default 60\n", "default 2\n", "60/1m", "2/30d", "300/1m", "4/30d", "100/1m", "3/30d", "/1m", "/30d").Replace(site)
	const cdn, here = "192.0.2.0/24", "127.0.0.1"
	client := func(address, country string) []func(*http.Request) {
		return []func(*http.Request){sitetest.Header("X-Forwarded-For", address), sitetest.Header("CF-IPCountry", country)}
	}
	s := sitetest.StartCaddy(t, strings.ReplaceAll(global, cdn, here), strings.ReplaceAll(site, cdn, here))
	s.Answers("HTTP/1.1", 9, http.StatusOK, 6, client("203.0.113.7", "DE")...)
	s.Answers("HTTP/1.1", 9, http.StatusOK, 2, client("203.0.113.8", "US")...)
	s.Answers("HTTP/1.1", 9, http.StatusOK, 2, client("203.0.113.9", "")...)
	s.Answers("HTTP/1.1", 9, http.StatusOK, 4, client("198.51.100.1", "DE")...)
	s.Answers("HTTP/1.1", 9, http.StatusOK, 0, client("198.51.100.2", "DE")...)
	s.Answers("HTTP/1.1", 9, http.StatusOK, 3, append(client("203.0.113.10", "DE"), sitetest.Header("User-Agent", "Googlebot/2.1"))...)
	s = sitetest.StartCaddy(t, global, site)
	s.Answers("HTTP/1.1", 9, http.StatusOK, 2, client("203.0.113.11", "DE")...)
}

// Programs get JSON, browsers a sentence.
//
// no clock: the example's rate is replaced by a longer one.
func TestRecipeOfJSON(t *testing.T) {
	_, site, _ := strings.Cut(sitetest.ReadPage(t, "examples/json/Caddyfile"), "http://localhost:8080 {")
	s := sitetest.StartCaddy(t, "", strings.Replace(strings.TrimSuffix(strings.TrimSpace(site), "}"), "2/1m", "2/30d", 1))
	program := sitetest.Header("X-Api-Key", "k")
	s.Answers("HTTP/1.1", 2, http.StatusOK, 2, program)
	a, err := s.Get(t.Context(), "HTTP/1.1", program)
	var said struct {
		Error, Zone string
		RetryAfter  int `json:"retry_after"`
	}
	if err != nil || a.Status != http.StatusTooManyRequests || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("a program is denied with %+v, %v", a, err)
	}
	if err := json.Unmarshal([]byte(a.Body), &said); err != nil || said.Error != "rate_limited" || said.Zone != "api" || fmt.Sprint(said.RetryAfter) != a.Header.Get("Retry-After") {
		t.Errorf("a program is told %s, %v, Retry-After %q", a.Body, err, a.Header.Get("Retry-After"))
	}
	a, err = s.Get(t.Context(), "HTTP/1.1", program, sitetest.Header("Accept", "text/html,*/*"))
	if want := "Please come back in " + a.Header.Get("Retry-After") + " seconds."; err != nil || a.Status != http.StatusTooManyRequests || a.Body != want {
		t.Errorf("a browser is denied with %+v, %v, want %q", a, err, want)
	}
}

// What is beyond the limit goes to another upstream.
// What is beyond that one's limit is denied.
//
// no clock: the page's rate is replaced by a longer one.
func TestRecipeOfACheaperUpstream(t *testing.T) {
	model, modelAsked := sitetest.Backend(t, "model")
	index, indexAsked := sitetest.Backend(t, "index")
	s := recipe(t, "search.example.com", "localhost:9000", model, "localhost:9001", index, "30/1m", "3/30d", "300/1m", "4/30d")
	search := sitetest.OnPath("/search")
	for _, want := range []string{"model", "model", "model", "index", "index", "index", "index"} {
		a, err := s.Get(t.Context(), "HTTP/2.0", search)
		if err != nil || a.Status != http.StatusOK || a.Body != want {
			t.Fatalf("answered %+v, %v, want 200 by %s", a, err, want)
		}
		if cached := strings.Join(a.Header["Cache-Control"], ","); !strings.HasSuffix(cached, "max-age=60") || strings.Contains(cached, "no-store") != (want == "index") {
			t.Errorf("the answer of %s has %v, want the upstream's headers, those of the denial before them", want, a.Header)
		}
	}
	a, err := s.Get(t.Context(), "HTTP/1.1", search)
	if err != nil || a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || !strings.Contains(a.Body, "search_index") {
		t.Errorf("beyond both limits: %+v, %v, want 429 by search_index", a, err)
	}
	if modelAsked.Load() != 3 || indexAsked.Load() != 4 {
		t.Errorf("the model was asked %d times and the index %d times, want 3 and 4", modelAsked.Load(), indexAsked.Load())
	}
	s.Answers("HTTP/1.1", 9, http.StatusOK, 9, sitetest.OnPath("/cart"))
}

// A shadowban can't be told from a comment that was taken.
//
// no clock: the page's rate is replaced by a longer one.
func TestRecipeOfAShadowban(t *testing.T) {
	upstream, asked := sitetest.Backend(t, "Thank you.")
	s := recipe(t, "comments.example.com", "localhost:9000", upstream, "5/10m", "5/30d")
	post := func() sitetest.Reply {
		a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Method(http.MethodPost), sitetest.OnPath("/comments"))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for i := range 8 {
		a := post()
		if a.Status != http.StatusOK || a.Body != "Thank you." {
			t.Errorf("comment %d was answered %+v", i+1, a)
		}
		for name := range a.Header {
			if name == "Retry-After" || strings.Contains(strings.ToLower(name), "ratelimit") || i >= 5 && name == "Cache-Control" {
				t.Errorf("comment %d was answered with %s: %q", i+1, name, a.Header[name])
			}
		}
	}
	grpc := []func(*http.Request){sitetest.Method(http.MethodPost), sitetest.OnPath("/comments"), sitetest.Header("Content-Type", "Application/gRPC")}
	s.Answers("HTTP/2.0", 1, http.StatusUnsupportedMediaType, 1, grpc...)
	if asked.Load() != 5 || sitetest.DecidedAs(t, "comments", "denied") != 3 {
		t.Errorf("the upstream got %d comments, the metrics say %d denied; want 5 and 3", asked.Load(), sitetest.DecidedAs(t, "comments", "denied"))
	}
}

// Who doesn't pay waits in a queue, and finds it full. Who pays passes by.
//
// no clock: the page's rate is replaced by a longer one.
func TestRecipeOfAQueueForThoseWhoDoNotPay(t *testing.T) {
	upstream, _ := sitetest.Backend(t, "shop")
	s := recipe(t, "shop.example.com", "localhost:9000", upstream, "limit 10/s", "limit 1/30d")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var denied atomic.Int64
	var all sync.WaitGroup
	s.Answers("HTTP/1.1", 1, http.StatusOK, 1)
	for range 25 {
		all.Go(func() {
			if a, err := s.Get(ctx, "HTTP/1.1"); err == nil && a.Status == http.StatusTooManyRequests {
				denied.Add(1)
			}
		})
	}
	redistest.Eventually(t, "20 wait and 5 are denied", func() bool { return sitetest.InQueue(t) == 20 && denied.Load() == 5 })
	s.Answers("HTTP/1.1", 30, http.StatusOK, 30, sitetest.Header("X-Api-Key", "5ddc4eb2"))
	if n := sitetest.InQueue(t); n != 20 {
		t.Errorf("%d requests wait after those that paid, want 20 as before", n)
	}
	cancel()
	all.Wait()
}

// Below 400 an answer has neither Retry-After nor Cache-Control of the denial, whichever handler
// gives it; what the route sets itself stays. From 400 on it has them.
func TestHeadersOfErrorRoutes(t *testing.T) {
	upstream, _ := sitetest.Backend(t, "cheap")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "page"), []byte("file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for route, want := range map[string]struct {
		status       int
		cacheControl string
	}{
		"respond page 429": {429, "no-store"},
		"respond page 503": {503, "no-store"},
		"respond page 400": {400, "no-store"},
		"respond page 200": {200, "no-store"},
		"respond 204":      {204, "no-store"},
		"respond page 302": {302, "no-store"},
		"header Cache-Control max-age=5\nrespond page 200":                {200, "max-age=5"},
		"header Retry-After 7\nrespond page 200":                          {200, "no-store"},
		"header Cache-Control max-age=5\nrespond page 429":                {429, "max-age=5"},
		"reverse_proxy " + upstream:                                       {200, "no-store,max-age=60"},
		"root " + dir + "\nrewrite * /page\nfile_server {\nstatus 200\n}": {200, "no-store"},
		"root " + dir + "\nrewrite * /page\nfile_server":                  {429, "no-store"},
		"header Page none":                           {429, "no-store"},
		"handle {\nencode gzip\nrespond page 200\n}": {200, "no-store"},
	} {
		s := sitetest.StartCaddy(t, "", "rate_limit 0/30d\nrespond ok\nhandle_errors {\n"+route+"\n}")
		a, err := s.Get(t.Context(), "HTTP/1.1")
		if err != nil || a.Status != want.status || strings.Join(a.Header["Cache-Control"], ",") != want.cacheControl || a.Header.Get("Retry-After") == "" {
			t.Errorf("%q: %d, %v, %v; want %+v, and Retry-After", route, a.Status, a.Header, err, want)
		}
	}
}
