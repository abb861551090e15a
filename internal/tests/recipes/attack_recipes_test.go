package recipes_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func init() {
	caddy.RegisterModule(foldingBackend{})
	caddy.RegisterModule(knownUser{})
}

// foldingBackend stands for what a recipe's site serves. It takes a request as Flask, Express or
// net/http would.
type foldingBackend struct {
	// Name is the upstream of the recipe, "files" or "respond".
	Name string `json:"name,omitempty"`
}

func (foldingBackend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.folding_backend", New: func() caddy.Module { return new(foldingBackend) }}
}

func (b *foldingBackend) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	s := underAttack.Load()
	if (s.upstream == "" || s.upstream == b.Name) && s.takes(r) {
		s.reached.Add(1)
		if s.held > 0 {
			s.arrived <- struct{}{}
			<-r.Context().Done()
		}
	}
	if s.fails != nil {
		s.fails(w.Header())
	}
	w.WriteHeader(max(s.status, http.StatusOK))
	return nil
}

// knownUser stands for the handlers that find out who a client is. Whatever the password, it is the
// user that the client names.
type knownUser struct{}

func (knownUser) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.known_user", New: func() caddy.Module { return new(knownUser) }}
}

func (knownUser) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	user, _, _ := r.BasicAuth()
	r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).Set("http.auth.user.id", user)
	return next.ServeHTTP(w, r)
}

var underAttack atomic.Pointer[attackRun]

// An attackRun is an attack on one zone of a recipe.
type attackRun struct {
	attack
	t       *testing.T
	host    string
	zone    string
	server  *caddyhttp.Server
	ctx     context.Context
	reached atomic.Int64
	arrived chan struct{}
	sent    int
}

// An attack is what clients try against a zone, and what of that the page promises to hold.
type attack struct {
	// send is the request that the zone limits, like "POST /login". A path that ends in a star is a
	// route for all below it.
	send string
	// most is how many of them reach the handler, however they are written.
	most int
	// again is how many more do that leave open which key they have: all those share one count.
	again int
	// each is what each request has, and vary what further ones try in addition.
	each func(n int, r *http.Request)
	vary []func(n int, r *http.Request)
	// status and fails are the backend's answer, 200 unless there is one.
	status int
	fails  func(http.Header)
	// upstream is the one that is protected, where there are several, and spared how many requests
	// go to another one before.
	upstream string
	spared   int
	// held is how many requests may be at the backend at once, and queue how many may wait.
	held, queue int
	// slow means that the zone limits bytes: all requests of the client are to be in it.
	slow bool
	// nothing is why the zone holds nobody.
	nothing string
}

// A recipeZone is a Caddyfile for users, and a zone of it.
type recipeZone struct {
	where, text, zone string
	at                place
}

// A place is the server of a zone and the host of its site.
type place struct{ server, host string }

// recipesOf are all zones in Caddyfiles for users, by the file and the name of the zone.
func recipesOf(t *testing.T) map[string]recipeZone {
	t.Helper()
	var files []sitetest.Block
	for _, page := range sitetest.Pages(t) {
		files = append(files, sitetest.BlocksOf(t, page, "caddyfile")...)
	}
	examples, err := filepath.Glob("examples/*/*Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(examples, "Caddyfile.example") {
		files = append(files, sitetest.Block{Page: file, Text: sitetest.ReadPage(t, file)})
	}
	all := map[string]recipeZone{}
	for _, file := range files {
		_, zones := attackable(t, file.Text, "")
		for _, zone := range slices.Sorted(maps.Keys(zones)) {
			name := file.Page + " " + zone
			for n := 2; all[name].text != ""; n++ {
				name = fmt.Sprintf("%s %s (%d)", file.Page, zone, n)
			}
			all[name] = recipeZone{where: file.String(), text: file.Text, zone: zone, at: zones[zone]}
		}
	}
	return all
}

// attackable is the configuration of a Caddyfile with backends of ours, and its zones with their
// sites. Windows are an hour for each second, so that an attack takes place within one.
func attackable(t *testing.T, text, redis string) (config []byte, zones map[string]place) {
	t.Helper()
	adapted, err := sitetest.Adapt(text)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	var c struct {
		Apps map[string]map[string]any `json:"apps"`
	}
	decoder := json.NewDecoder(strings.NewReader(string(adapted)))
	decoder.UseNumber()
	if err := decoder.Decode(&c); err != nil {
		t.Fatal(err)
	}
	zones = map[string]place{}
	servers, _ := c.Apps["http"]["servers"].(map[string]any)
	for name, server := range servers {
		s := server.(map[string]any)
		s["listen"], s["automatic_https"] = []string{strings.Replace(name, "srv", "127.0.0.1", 1) + ":0"}, map[string]bool{"disable": true}
		delete(s, "tls_connection_policies")
		delete(s, "logs")
		exchange(s["routes"], place{server: name}, false, zones)
		// Where the Caddyfile says nothing of what is served:
		served := []any{map[string]string{"handler": "folding_backend"}}
		for _, route := range s["routes"].([]any) {
			if site := route.(map[string]any); site["terminal"] == true {
				site["handle"] = append(site["handle"].([]any), served...)
			}
		}
		s["routes"] = append(s["routes"].([]any), map[string]any{"handle": served})
		if errs, ok := s["errors"].(map[string]any); ok {
			exchange(errs["routes"], place{server: name}, true, zones)
		}
	}
	apps := map[string]any{"http": c.Apps["http"]}
	if app := c.Apps["rate_limit"]; app != nil {
		delete(app, "persist")
		if app["redis"] != nil {
			app["redis"] = map[string]string{"url": redis}
		}
		apps["rate_limit"] = app
	}
	config, err = json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true, "config": map[string]bool{"persist": false}},
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{"writer": map[string]string{"output": "discard"}}}},
		"apps":    apps,
	})
	if err != nil {
		t.Fatal(err)
	}
	return config, zones
}

// exchange replaces backends in routes, and finds the zones with the host of their site.
func exchange(v any, at place, ofErrors bool, zones map[string]place) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			exchange(e, at, ofErrors, zones)
		}
	case map[string]any:
		if matchers, ok := v["match"].([]any); ok {
			for _, m := range matchers {
				if hosts, ok := m.(map[string]any)["host"].([]any); ok {
					at.host = hosts[0].(string)
				}
			}
		}
		switch v["handler"] {
		case "rate_limit":
			for name, zone := range v["rate_limits"].(map[string]any) {
				zones[name] = at
				stretch(zone)
			}
			return
		case "reverse_proxy":
			become(v, "folding_backend", v["upstreams"].([]any)[0].(map[string]any)["dial"])
		case "file_server", "static_response":
			if !ofErrors && fmt.Sprint(v["status_code"]) != "204" {
				become(v, "folding_backend", "")
			}
		case "authentication":
			become(v, "known_user", nil)
		}
		for _, e := range v {
			exchange(e, at, ofErrors, zones)
		}
	}
}

func become(v map[string]any, handler string, name any) {
	clear(v)
	v["handler"] = handler
	if name != nil {
		v["name"] = name
	}
}

// stretched is by how much windows are longer than on the page, so that none ends meanwhile.
const stretched = int64(60 * 24 * time.Hour)

func stretch(zone any) {
	limits, _ := zone.(map[string]any)["limits"].([]any)
	for _, l := range limits {
		rate := l.(map[string]any)
		if name, ok := rate["window"].(string); ok { // of a calendar
			if name == "day" {
				rate["window"] = "year"
			}
			continue
		}
		window, _ := rate["window"].(json.Number).Int64()
		rate["window"] = window + stretched
	}
	if window, ok := zone.(map[string]any)["window"].(json.Number); ok {
		n, _ := window.Int64()
		zone.(map[string]any)["window"] = n + stretched
	}
}

// runAttack loads a recipe and attacks it: the plain requests get as far as the page says, and then
// nothing of whatever spelling.
func runAttack(t *testing.T, r recipeZone, a attack, redis string) {
	t.Helper()
	config, _ := attackable(t, r.text, redis)
	s := &attackRun{attack: a, t: t, host: cmp.Or(r.at.host, "example.net"), zone: r.zone, arrived: make(chan struct{})}
	underAttack.Store(s)
	if err := caddy.Load(config, true); err != nil {
		t.Fatalf("%s: %v", r.where, err)
	}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443}))
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		t.Fatal(err)
	}
	s.server = app.(*caddyhttp.App).Servers[r.at.server]
	plain, further := s.attempts()
	cancel()
	if err := caddy.Stop(); err != nil {
		t.Error(err)
	}
	if !a.slow && plain != a.most {
		t.Errorf("%s: zone %q: of %s %d reach the handler, want %d", r.where, r.zone, a.send, plain, a.most)
	}
	if len(further) > a.again {
		t.Errorf("%s: zone %q: after %d of %s, %d more reach the handler, want at most %d: %q", r.where, r.zone, plain, a.send, len(further), a.again, shortened(further))
	}
}

func shortened(all []string) []string {
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), 12)]
}

// attempts sends the plain requests, and then every variant, often enough to spend another count.
// It returns how many of the first reached the handler, and those of the others that did.
func (s *attackRun) attempts() (plain int, further []string) {
	method, route, _ := strings.Cut(s.send, " ")
	path := strings.Replace(route, "*", "a", 1)
	for range s.most + s.spared + 1 {
		if s.sends(method, path, nil) {
			plain++
		}
	}
	var variants []func() bool
	var names []string
	add := func(method, path string, vary func(int, *http.Request), name string) {
		variants = append(variants, func() bool { return s.sends(method, path, vary) })
		names = append(names, name)
	}
	for _, m := range methodsLike(method) {
		for _, p := range []string{path, path + "/"} {
			add(m, p, nil, m+" "+p)
		}
	}
	for _, p := range pathsLike(path) {
		add(method, p, nil, method+" "+p)
	}
	for i, vary := range s.vary {
		add(method, path, vary, fmt.Sprintf("%s, variant %d", s.send, i+1))
	}
	for i := range 2 * len(variants) {
		if variants[i%len(variants)]() {
			further = append(further, names[i%len(variants)])
		}
	}
	for i := len(variants) - len(s.vary); i < len(variants); i++ {
		for range s.again {
			if variants[i]() {
				further = append(further, names[i])
			}
		}
	}
	return plain, further
}

// sends sends a request, and reports whether it reached the handler without being counted.
func (s *attackRun) sends(method, path string, vary func(int, *http.Request)) bool {
	s.t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n\r\n", method, path, s.host))))
	if err != nil {
		s.t.Fatal(err)
	}
	r = r.WithContext(s.ctx)
	r.RemoteAddr = "198.51.100.7:4711"
	s.sent++
	if s.each != nil {
		s.each(s.sent, r)
	}
	if vary != nil {
		vary(s.sent, r)
	}
	before, counted := s.reached.Load(), 0
	if s.slow {
		counted = sitetest.DecidedAs(s.t, s.zone, "admitted")
	}
	done := make(chan struct{})
	serve := func() {
		s.server.ServeHTTP(httptest.NewRecorder(), r)
		close(done)
	}
	if s.queue > 0 && s.reached.Load() == 1 && s.sent <= s.most {
		go serve()
		want := s.sent - 1
		redistest.Eventually(s.t, "it waits in the queue", func() bool { return sitetest.InQueue(s.t) == want })
		return true
	}
	if s.held == 0 {
		serve()
	} else {
		go serve()
		select {
		case <-done:
		case <-s.arrived:
		}
	}
	reached := s.reached.Load() > before
	return reached && (!s.slow || sitetest.DecidedAs(s.t, s.zone, "admitted") == counted)
}

// takes reports whether a backend has the handler answer a request, by how it reads it.
func (s *attackRun) takes(r *http.Request) bool {
	method, route, _ := strings.Cut(s.send, " ")
	route, below := strings.CutSuffix(route, "*")
	is := func(p string) bool { return p == route || below && strings.HasPrefix(p, route) }
	switch {
	case route == "/":
		return true
	// net/http: the method as it came, and clean paths.
	case r.Method == method && is(r.URL.Path) && cleaned(r.URL.Path) == r.URL.Path:
		return true
	// Flask: any case of the method, decoded paths.
	case strings.EqualFold(r.Method, method) && is(r.URL.Path):
		return true
	// Express: any case of the path as it came, with or without a slash at its end.
	case r.Method == method && is(strings.ToLower(strings.TrimSuffix(r.URL.EscapedPath(), "/"))):
		return true
	}
	// And one that folds whatever can be folded.
	return strings.EqualFold(r.Method, method) && is(strings.ToLower(strings.TrimSuffix(cleaned(r.URL.Path), "/")))
}

func cleaned(p string) string {
	c := path.Clean(p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return c
}

func methodsLike(method string) []string {
	return []string{method, strings.ToLower(method), method[:1] + strings.ToLower(method[1:])}
}

// pathsLike are spellings of a path.
func pathsLike(p string) []string {
	first := p[:1] + strings.ToUpper(p[1:])
	all := []string{first, "/" + p, p + "//", "/." + p, "/x/.." + p, "/x/%2e%2e" + p, p + "?n=1", p + ";n=1", p + "/.", p + "%2f"}
	if len(p) > 1 {
		all = append(all, fmt.Sprintf("/%%%02x%s", p[1], p[2:]), p+"/..%2f"+path.Base(p), "/%2f"+p[1:])
	}
	return all
}

// Variants of a request.

// line adds another line of a header.
func line(name string, value func(n int) string) func(int, *http.Request) {
	return func(n int, r *http.Request) { r.Header[name] = append(slices.Clone(r.Header[name]), value(n)) }
}

// as sets a header.
func as(name string, value func(n int) string) func(int, *http.Request) {
	return func(n int, r *http.Request) { r.Header.Set(name, value(n)) }
}

func fresh(n int) string { return fmt.Sprintf("made-up-%d", n) }

func always(value string) func(int) string { return func(int) string { return value } }

// cases writes a text in another case each time.
func cases(text string) func(int) string {
	return func(n int) string {
		b := []byte(strings.ToLower(text))
		for i := range b {
			if n>>(i%8)&1 == 1 {
				b[i] = strings.ToUpper(string(b[i]))[0]
			}
		}
		return string(b)
	}
}

// query sets the query.
func query(value func(n int) string) func(int, *http.Request) {
	return func(n int, r *http.Request) {
		r.URL.RawQuery = value(n)
		r.RequestURI = r.URL.RequestURI()
	}
}

// by is a client at an address behind a trusted proxy, which appends it to what the client claims.
func by(address string, claimed func(n int) string) func(int, *http.Request) {
	return func(n int, r *http.Request) {
		r.RemoteAddr = "127.0.0.1:4711"
		r.Header.Set("X-Forwarded-For", strings.TrimPrefix(claimed(n)+", "+address, ", "))
	}
}

// from makes the address of the n-th request of its number.
func from(format string, nets int) func(int, *http.Request) {
	return func(n int, r *http.Request) { r.RemoteAddr = fmt.Sprintf(format, n%nets) }
}

// many are the addresses of a botnet.
func many(n int, r *http.Request) {
	r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:4711", n>>16, n>>8&255, n&255)
}

// with is several of them, one after the other.
func with(all ...func(int, *http.Request)) func(int, *http.Request) {
	return func(n int, r *http.Request) {
		for _, f := range all {
			f(n, r)
		}
	}
}

// onURI is on another path, as it is written.
func onURI(path func(n int) string) func(int, *http.Request) {
	return func(n int, r *http.Request) {
		r.URL, _ = url.ParseRequestURI(path(n))
		r.RequestURI = path(n)
	}
}

// byMethod has another method.
func byMethod(method string) func(int, *http.Request) {
	return func(_ int, r *http.Request) { r.Method = method }
}
