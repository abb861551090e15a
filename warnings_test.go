package ratelimit

import (
	"encoding/json"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"go/types"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// parsed are the Go files of a directory, except tests.
func parsed(t *testing.T, dir string) (all []*ast.File) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := goparser.ParseFile(token.NewFileSet(), name, nil, goparser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file)
	}
	return all
}

// packages are the directories of this module that have Go files.
func packages(t *testing.T) (dirs []string) {
	t.Helper()
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if dir := filepath.Dir(name); !strings.HasPrefix(dir, "bench") && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// warningCodes are the codes in the code, in order.
func warningCodes(t *testing.T) (codes []string) {
	t.Helper()
	for _, dir := range packages(t) {
		for _, file := range parsed(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && regexp.MustCompile(`^"TIDE\d{3}"$`).MatchString(l.Value) {
					codes = append(codes, strings.Trim(l.Value, `"`))
				}
				return true
			})
		}
	}
	slices.Sort(codes)
	return codes
}

func TestEveryWarningHasACodeAndAnEntry(t *testing.T) {
	codes := warningCodes(t)
	if once := slices.Compact(slices.Clone(codes)); len(once) != len(codes) || len(codes) < 10 {
		t.Errorf("codes %q, want each once, and more than ten", codes)
	}
	var entries []string
	page := readPage(t, "docs/warnings.md")
	for _, m := range regexp.MustCompile(`(?m)^## (TIDE\d{3})$`).FindAllStringSubmatch(page, -1) {
		entries = append(entries, m[1])
	}
	if !slices.Equal(entries, codes) {
		t.Errorf("docs/warnings.md has entries for %q, the code has %q", entries, codes)
	}
}

// A call of a logger's Warn or Error has a code among its arguments, and so has one of warn, which
// makes a line for later.
func TestEveryWarningIsLoggedWithItsCode(t *testing.T) {
	calls := 0
	for _, dir := range packages(t) {
		for _, file := range parsed(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "warn" {
					calls++
					if !slices.ContainsFunc(call.Args, namesACode) {
						t.Errorf("%s is logged without a code", types.ExprString(call))
					}
					return true
				}
				f, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || len(call.Args) == 0 || f.Sel.Name != "Warn" && f.Sel.Name != "Error" {
					return true
				}
				if text, ok := call.Args[0].(*ast.BasicLit); !ok || text.Kind != token.STRING {
					return true
				}
				calls++
				if !slices.ContainsFunc(call.Args[1:], namesACode) {
					t.Errorf("%s is logged without a code", types.ExprString(call.Args[0]))
				}
				return true
			})
		}
	}
	if calls < 6 {
		t.Errorf("found %d calls of Warn and Error, want more", calls)
	}
}

// namesACode says that an argument is a code's field, or begins a list with one.
func namesACode(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			from, ok := s.X.(*ast.Ident)
			found = found || ok && from.Name == "warning"
		}
		return !found
	})
	return found
}

// Each reason that the sync can give stands in the page.
func TestEveryReasonIsDocumented(t *testing.T) {
	page := readPage(t, "docs/internals/redis-errors.md")
	reasons := 0
	source, err := os.ReadFile("internal/redisconn/classify.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)"([^"\n]+; [^"\n]+)"`).FindAllStringSubmatch(string(source), -1) {
		reasons++
		what, mend, _ := strings.Cut(m[1], "; ")
		like := strings.ReplaceAll(regexp.QuoteMeta("| `"+what+"` | "+mend+" |"), "%s", `\d+ms`)
		like = strings.ReplaceAll(like, "%v", ".+") // which file, and why
		if text := m[1]; !strings.HasPrefix(text, ", ") && !regexp.MustCompile(like).MatchString(page) {
			t.Errorf("docs/internals/redis-errors.md doesn't have the reason %q", text)
		}
	}
	if reasons < 40 {
		t.Errorf("found %d reasons, want more", reasons)
	}
}

// A warning that a page shows is one that the code logs: it has its code, and message and reason
// are in the source.
func TestLogSamplesOfThePagesAreOfThisVersion(t *testing.T) {
	var source strings.Builder
	for _, pattern := range []string{"*.go", "sync/*.go", "internal/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(name, "_test.go") {
				source.Write(text)
			}
		}
	}
	samples := 0
	for _, page := range pages(t) {
		for _, b := range blocksOf(t, page, "json") {
			for line := range strings.Lines(b.text) {
				var sample struct{ Level, Msg, Code, Reason string }
				if err := json.Unmarshal([]byte(line), &sample); err != nil || sample.Msg == "" {
					continue
				}
				samples++
				if !strings.Contains(source.String(), sample.Msg) || !strings.Contains(source.String(), sample.Reason) || (sample.Level == "warn") != (sample.Code != "") {
					t.Errorf("%v: no such line is logged: %s", b, line)
				}
			}
		}
	}
	if samples < 3 {
		t.Errorf("found %d log lines in the pages, want more", samples)
	}
}

// watched replaces a site's logger by one that is looked at.
func (s *site) watched() *observer.ObservedLogs {
	core, logs := observer.New(zap.WarnLevel)
	s.handler.logger = zap.New(core)
	for _, z := range s.handler.zones {
		z.Logger = s.handler.logger
	}
	return logs
}

func coded(logs *observer.ObservedLogs, code string) int {
	return logs.FilterField(zap.String("code", code)).Len()
}

// through is a request that came from a peer, as a server with such trusted proxies prepares it.
func through(trusted bool, strict int, name, value string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set(name, value)
		server := &caddyhttp.Server{TrustedProxiesStrict: strict, ClientIPHeaders: []string{"X-Forwarded-For"}}
		*r = *caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, server)
		caddyhttp.SetVar(r.Context(), caddyhttp.TrustedProxyVarKey, trusted)
	}
}

func TestForwardingHeadersAreWarnedOfOnce(t *testing.T) {
	for _, c := range []struct {
		name       string
		change     func(*http.Request)
		key        string
		untrusted  int
		permissive int
	}{
		{"no header", through(false, 0, "Accept", "*/*"), "", 0, 0},
		{"not trusted", through(false, 0, "X-Forwarded-For", "9.9.9.9"), "", 1, 0},
		{"another header", through(false, 0, "Forwarded", "for=9.9.9.9"), "", 1, 0},
		{"trusted, not strict", through(true, 0, "X-Forwarded-For", "9.9.9.9"), "", 0, 1},
		{"trusted and strict", through(true, 1, "X-Forwarded-For", "9.9.9.9"), "", 0, 0},
		{"no address in the key", through(false, 0, "X-Forwarded-For", "9.9.9.9"), "key {http.request.header.X-Api-Key}\n", 0, 0},
		{"an exception by address", through(false, 0, "X-Forwarded-For", "9.9.9.9"), "key {http.request.header.X-Api-Key}\nexcept private_ranges\n", 1, 0},
		{"a matcher by address", through(true, 0, "X-Forwarded-For", "9.9.9.9"), "key {http.request.header.X-Api-Key}\nmatch not client_ip 10.0.0.0/8\n", 0, 1},
	} {
		block := zoneBlock("proxies", c.key+"limit 1/1h") + zoneBlock("proxies2", c.key+"limit 2/1h")
		s := newSite(t, &App{}, block)
		logs := s.watched()
		for range 50 {
			s.send(behind(s, c.change))
		}
		if n, m := coded(logs, warning.UntrustedProxy), coded(logs, warning.TrustNotStrict); n != c.untrusted || m != c.permissive {
			t.Errorf("%s: warned %d times of an untrusted proxy and %d times of trust that is not strict, want %d and %d: %v", c.name, n, m, c.untrusted, c.permissive, logs.All())
		}
		s.end()
	}
}

// behind is a request whose server is the change's, not the site's.
func behind(s *site, change func(*http.Request)) *http.Request {
	r := s.request("1.2.3.4")
	change(r)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "1.2.3.4")
	return r
}

func TestFullTableIsWarnedOfOnce(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("full", "limit 2/1h\nmax_keys 3")+zoneBlock("roomy", "limit 2/1h"))
	logs := s.watched()
	for i := range 3 {
		s.admits(fmt.Sprintf("1.2.3.%d", i), 1, 1)
	}
	if n := coded(logs, warning.MaxKeys); n != 0 {
		t.Errorf("warned %d times of a table that has just room enough", n)
	}
	for i := range 20 {
		s.admits(fmt.Sprintf("1.2.4.%d", i), 3, 2)
	}
	if n := coded(logs, warning.MaxKeys); n != 1 {
		t.Errorf("warned %d times of a full table, want once", n)
	}
}

func TestOneWarningForASnippetInManySites(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	said := new(warning.Once)
	for range 50 {
		said.Warn(zap.New(core), warning.PoorKey, "the same")
	}
	said.Warn(zap.New(core), warning.PoorKey, "another")
	if logs.Len() != 2 || coded(logs, warning.PoorKey) != 2 {
		t.Errorf("logged %v, want one of each", logs.All())
	}
}
