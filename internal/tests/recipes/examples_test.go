package recipes_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// expectation is a line of an example's requests.txt: so many requests, and what each of them gets.
type expectation struct {
	times        int
	method, path string
	headers      http.Header
	status       int
	// has are headers of the answer, and says is a part of its body.
	has  []string
	says string
}

var expectationLine = regexp.MustCompile(`^(\d+)\s+([A-Z]+)\s+(/\S*)((?:\s+[\w-]+:\S+)*)\s+=>\s+(\d{3})((?:\s+[\w-]+)*)(?:\s+"(.*)")?$`)

func expectationsOf(t *testing.T, file string) (all []expectation) {
	t.Helper()
	for i, line := range strings.Split(sitetest.ReadPage(t, file), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := expectationLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("%s:%d: %q is no request", file, i+1, line)
		}
		e := expectation{method: m[2], path: m[3], headers: http.Header{}, has: strings.Fields(m[6]), says: m[7]}
		e.times, _ = strconv.Atoi(m[1])
		e.status, _ = strconv.Atoi(m[5])
		for _, h := range strings.Fields(m[4]) {
			name, value, _ := strings.Cut(h, ":")
			e.headers.Set(name, strings.ReplaceAll(value, "+", " "))
		}
		all = append(all, e)
	}
	return all
}

// Each example loads without a warning, as caddy fmt writes it, and does what its requests.txt
// says.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("examples/*/Caddyfile")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			validateCaddyfile(t, file, sitetest.ReadPage(t, file))
			requests := filepath.Join(dir, "requests.txt")
			port := strconv.Itoa(redistest.FreePort(t))
			config, err := sitetest.Adapt(strings.NewReplacer("localhost:8080", ":"+port, "admin localhost:2019", "admin off\n\tpersist_config off", "persist storage", "persist off").Replace(sitetest.ReadPage(t, file)))
			if err != nil {
				t.Fatal(err)
			}
			sitetest.LoadConfig(t, config)
			for _, e := range expectationsOf(t, requests) {
				for i := range e.times {
					if err := e.check("http://127.0.0.1:" + port); err != nil {
						t.Fatalf("%s: %s %s, %d of %d: %v", requests, e.method, e.path, i+1, e.times, err)
					}
				}
			}
		})
	}
}

// check makes one of the requests.
func (e expectation) check(base string) error {
	r, err := http.NewRequest(e.method, base+e.path, nil)
	if err != nil {
		return err
	}
	r.Header = e.headers
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != e.status || !strings.Contains(string(body), e.says) {
		return fmt.Errorf("got %d and %q, want %d and %q", response.StatusCode, body, e.status, e.says)
	}
	for _, name := range e.has {
		if response.Header.Get(name) == "" {
			return fmt.Errorf("the answer has no %s: %v", name, response.Header)
		}
	}
	return nil
}
