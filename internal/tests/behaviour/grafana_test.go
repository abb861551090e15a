//go:build chaos

package behaviour_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

const boardFile = "deploy/grafana/tide.json"

// promtool runs Prometheus' own checker in a directory.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" || os.Getenv("TIDE_REQUIRE_REDIS") == "1" {
			t.Fatal("promtool is not installed; Debian has it in the package prometheus")
		}
		t.Skip("promtool is not installed")
	}
	command := exec.Command(program, args...)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestAlerts(t *testing.T) {
	promtool(t, "deploy/grafana", "check", "rules", "alerts.yml")
	promtool(t, "deploy/grafana", "test", "rules", "alerts_test.yml", "alerts_week_test.yml")
	// This fails without its rule file, too.
	promtool(t, ".", "check", "config", "examples/prometheus/prometheus.yml")
}

// withoutVariables is what an expression of the board asks for when nothing was chosen.
var withoutVariables = strings.NewReplacer("$__rate_interval", "5m", "$zone", ".*", "$instance", ".*", "$namespace", ".*")

// Above all else the board has four big numbers, and they are right for two nodes.
func TestBigNumbersOfTheBoard(t *testing.T) {
	var board struct {
		Panels []struct {
			Type    string
			GridPos struct{ W, X, Y int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(sitetest.ReadPage(t, boardFile)), &board); err != nil {
		t.Fatal(err)
	}
	test := `rule_files: []
tests:
  - interval: 1m
    input_series:
      - {series: 'caddy_rate_limit_decisions_total{instance="a",zone="api",decision="denied"}', values: '0+60x10'}
      - {series: 'caddy_rate_limit_decisions_total{instance="b",zone="login",decision="banned"}', values: '0+180x10'}
      - {series: 'caddy_rate_limit_decisions_total{instance="a",zone="api",decision="would_deny"}', values: '0+900x10'}
      - {series: 'caddy_rate_limit_decisions_total{instance="b",zone="api",decision="admitted"}', values: '0+600x10'}
      - {series: 'caddy_rate_limit_banned_keys{instance="a",zone="login"}', values: '3x10'}
      - {series: 'caddy_rate_limit_banned_keys{instance="b",zone="login"}', values: '2x10'}
      - {series: 'caddy_rate_limit_banned_keys{instance="b",zone="api"}', values: '1x10'}
      - {series: 'caddy_rate_limit_redis_up{instance="a",namespace="caddy"}', values: '0x10'}
      - {series: 'caddy_rate_limit_redis_up{instance="b",namespace="caddy"}', values: '1x10'}
    promql_expr_test:
`
	none := "  - interval: 1m\n    input_series: []\n    promql_expr_test:\n"
	for i, want := range []float64{4, 10, 4, 1} { // denied, admitted, banned, without Redis
		p := board.Panels[i]
		if p.Type != "stat" || p.GridPos.Y != 0 || p.GridPos.X != 6*i || p.GridPos.W != 6 || len(p.Targets) != 1 {
			t.Fatalf("panel %d is no big number in the first row: %+v", i, p)
		}
		const expect = "      - {expr: %q, eval_time: 10m, exp_samples: [{value: %v}]}\n"
		expr := withoutVariables.Replace(p.Targets[0].Expr)
		test += fmt.Sprintf(expect, expr, want)
		none += fmt.Sprintf(expect, expr, 0)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "board.yml"), []byte(test+none), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "test", "rules", "board.yml")
}

// What few people need is folded, and denials lead to the command that says who they are.
func TestTheBoardIsFolded(t *testing.T) {
	type link struct{ Title, URL string }
	var board struct {
		Panels []struct {
			Title, Type string
			Collapsed   bool
			Panels      []struct{ Title string }
			Links       []link
			FieldConfig struct{ Defaults struct{ Links []link } }
		}
	}
	if err := json.Unmarshal([]byte(sitetest.ReadPage(t, boardFile)), &board); err != nil {
		t.Fatal(err)
	}
	var folded []string
	for _, p := range board.Panels {
		if p.Collapsed != (len(p.Panels) > 0) {
			t.Errorf("row %q is folded: %t, with %d panels in it", p.Title, p.Collapsed, len(p.Panels))
		}
		if p.Collapsed {
			folded = append(folded, p.Title)
		}
		links := slices.Concat(p.Links, p.FieldConfig.Defaults.Links)
		if denials := p.Title == "Denied" || p.Title == "Denied now"; denials != (len(links) == 1) || denials && !strings.HasPrefix(links[0].Title, "caddy rate-limit top ") {
			t.Errorf("panel %q has the links %+v", p.Title, links)
		}
	}
	if want := []string{"Redis", "Units of zones with cost", "Regions"}; !slices.Equal(folded, want) {
		t.Errorf("folded are %q, want %q", folded, want)
	}
}

// expressionsOf are what the board asks Prometheus, by panel.
func expressionsOf(t *testing.T) map[string]string {
	t.Helper()
	type panel struct {
		Title   string
		Targets []struct{ Expr string }
		Panels  []panel
	}
	var board panel
	if err := json.Unmarshal([]byte(sitetest.ReadPage(t, boardFile)), &board); err != nil {
		t.Fatal(err)
	}
	for _, row := range board.Panels {
		board.Panels = append(board.Panels, row.Panels...)
	}
	all := map[string]string{}
	for _, p := range board.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("%s %d", p.Title, i)] = target.Expr
		}
	}
	if len(all) < 10 {
		t.Fatalf("%s has %d expressions", boardFile, len(all))
	}
	return all
}

// Every expression of the board and of the pages is one: as rules, Prometheus reads them.
func TestExpressionsParse(t *testing.T) {
	all := expressionsOf(t)
	for _, page := range sitetest.Pages(t) {
		for _, b := range sitetest.BlocksOf(t, page, "promql") {
			all[fmt.Sprintf("%s:%d", page, b.Line)] = b.Text
		}
	}
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: expressions\n    rules:\n")
	for i, name := range slices.Sorted(maps.Keys(all)) {
		expr := withoutVariables.Replace(all[name])
		if strings.Contains(expr, "$") {
			t.Errorf("%s: a variable that Grafana doesn't know here: %s", name, expr)
		}
		text, err := json.Marshal(strings.TrimSpace(expr))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&rules, "      - {record: 'e%d', labels: {from: %q}, expr: %s}\n", i, name, text)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "rules.yml")
}

// The metrics of a running node are those of docs/names.md, by which the lint goes for all that
// names one.
func TestMetricsOfARunningNode(t *testing.T) {
	redis := redistest.Start(t)
	s := sitetest.StartCaddy(t, "rate_limit {\nregions {\nhere eu\nregion eu "+redis.URL+"\nregion us redis://127.0.0.1:1\n}\n}", `
rate_limit {
	zone running {
		limit 100/1m
		algorithm token_bucket
		ban 15m
		bandwidth 1MiB/s
		concurrent 10
	}
	zone strict {
		limit 100/1m
		sync_rate strict
		regions off
	}
	zone tokens {
		limit 1000/1m
		cost 2
		response_cost header X-Cost
	}
}
handle /metrics {
	metrics
}
handle {
	respond ok
}`)
	s.Answers("HTTP/2.0", 2, http.StatusOK, 2)
	a, err := s.Get(t.Context(), "HTTP/2.0", sitetest.OnPath("/metrics"))
	if err != nil || a.Status != http.StatusOK {
		t.Fatalf("%d, %v", a.Status, err)
	}
	running := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(caddy_rate_limit_\w+)[{ ]`).FindAllStringSubmatch(a.Body, -1) {
		running[m[1]] = true
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (caddy_rate_limit_\w+)$`).FindAllStringSubmatch(sitetest.ReadPage(t, "docs/names.md"), -1) {
		listed[m[1]] = true
	}
	if !maps.Equal(running, listed) {
		t.Errorf("a running node has the metrics\n%q\ndocs/names.md has\n%q", slices.Sorted(maps.Keys(running)), slices.Sorted(maps.Keys(listed)))
	}
}

// The page's access log says who denied and what was left.
func TestAccessLogOfThePage(t *testing.T) {
	_, site := sitetest.SiteInPage(t, "docs/observability.md", "api.example.com")
	file := filepath.Join(t.TempDir(), "access.log")
	s := sitetest.StartCaddy(t, "", strings.NewReplacer("100/1m", "2/1h", "output file access.log", "output file "+file).Replace(site))
	for range 3 {
		if _, err := s.Get(t.Context(), "HTTP/1.1"); err != nil {
			t.Fatal(err)
		}
	}
	type line struct {
		Status int `json:"status"`
		Zone   any `json:"denied_by"`
		Left   any `json:"rate_limit_left"`
	}
	want := []line{{200, nil, 1.0}, {200, nil, 0.0}, {429, "api", 0.0}}
	var got []line
	redistest.Eventually(t, "all requests are in the access log", func() bool {
		got = nil
		text, _ := os.ReadFile(file)
		for text := range strings.Lines(string(text)) {
			var l line
			if json.Unmarshal([]byte(text), &l) == nil {
				got = append(got, l)
			}
		}
		return len(got) == len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("the access log has %+v, want %+v", got, want)
	}
}
