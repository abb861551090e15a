package recipes_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// The page's labels become a Caddyfile by the rules that caddy-docker-proxy documents: dots nest,
// numbers before and after a name are left out, and what has no name are the global options.
func TestLabelsOfThePage(t *testing.T) {
	type block struct {
		line   string
		within map[string]*block
	}
	root := &block{within: map[string]*block{}}
	number := regexp.MustCompile(`^\d+_|_\d+$`)
	labels := regexp.MustCompile(`(?m)^  (caddy\S*): (.*)$`).FindAllStringSubmatch(sitetest.BlocksOf(t, "docs/containers.md", "yaml")[0].Text, -1)
	for _, label := range labels {
		at := root
		for part := range strings.SplitSeq(label[1], ".") {
			if at.within[part] == nil {
				at.within[part] = &block{line: number.ReplaceAllString(part, ""), within: map[string]*block{}}
				if at == root {
					at.within[part].line = ""
				}
			}
			at = at.within[part]
		}
		at.line += " " + strings.Trim(strings.ReplaceAll(label[2], "{{upstreams 80}}", "127.0.0.1:80"), `"`)
	}
	var write func(b *block) string
	write = func(b *block) (text string) {
		for _, name := range slices.Sorted(maps.Keys(b.within)) {
			one := b.within[name]
			text += one.line
			if len(one.within) > 0 {
				text += " {\n" + write(one) + "}"
			}
			text += "\n"
		}
		return text
	}
	text := write(root)
	config, err := sitetest.Adapt(text)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	handlers := sitetest.HandlersIn(t, config)
	if warned := sitetest.WarnedOf(t, config); len(labels) < 9 || len(handlers) != 1 || len(handlers[0].RateLimits) != 2 || sitetest.AppIn(t, config).Redis == nil || len(warned) > 0 {
		t.Errorf("%d labels make %d handlers, and warn of %q:\n%s", len(labels), len(handlers), warned, text)
	}
}

// The set-up of docs/migration.md, in which the old limit and the new one both decide: each line of
// the access log has what the one did, and what the other would have done.
//
// no clock: the page's rate is replaced by a longer one.
func TestThePageOfMigrationHasBothAnswersInTheLog(t *testing.T) {
	var asked atomic.Int64
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 5 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer old.Close()
	log := filepath.Join(t.TempDir(), "access.log")
	global, site := sitetest.SiteInPage(t, "docs/migration.md", "api.example.com")
	s := sitetest.StartCaddy(t, global, strings.NewReplacer(
		"/var/log/caddy/access.log", log, "localhost:8000", old.Listener.Addr().String(), "100/1m", "3/30d",
	).Replace(site))
	s.Answers("HTTP/1.1", 8, http.StatusTooManyRequests, 3)

	want := []string{"200", "200", "200", "200 api", "200 api", "429 api", "429 api", "429 api"}
	var got []string
	redistest.Eventually(t, "the access log is complete", func() bool {
		got = answersInLog(t, log)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("the access log has %q, want %q", got, want)
	}
	shown := regexp.MustCompile(`(?m)^\$ (grep .*)\n((?: +\d.*\n)+)`).FindStringSubmatch(sitetest.ReadPage(t, "docs/migration.md"))
	if shown == nil {
		t.Fatal("docs/migration.md compares nothing")
	}
	// macOS has another column for counts.
	columns := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	printed, err := exec.Command("bash", "-c", strings.ReplaceAll(shown[1], "/var/log/caddy/access.log", log)).CombinedOutput()
	if err != nil || columns(string(printed)) != columns(shown[2]) {
		t.Errorf("%s: %v\n%swant\n%s", shown[1], err, printed, shown[2])
	}
}

// answersInLog are status and would_deny of the complete lines of an access log.
func answersInLog(t *testing.T, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Status    int
			WouldDeny *string `json:"would_deny"`
		}
		if !strings.HasSuffix(line, "\n") {
			continue
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.WouldDeny == nil {
			t.Fatalf("a line of the access log is %s, %v, want one with would_deny", line, err)
		}
		all = append(all, strings.TrimSpace(fmt.Sprint(entry.Status, " ", *entry.WouldDeny)))
	}
	return all
}
