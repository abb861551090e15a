//go:build chaos

package cluster_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/plot"
	"github.com/caddy-tide/ratelimit/internal/plot/picture"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A panel is one of deploy/grafana/tide.json.
type panel struct {
	Title, Type string
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct{ Expr, LegendFormat string }
	Panels      []panel // of a row that is folded
}

// boardSite has a zone for all that the board shows.
var boardSite = "respond /files " + strings.Repeat("0", 2000) + "\n" + zones(
	zone("api", "key all", "limit 200/10s", "sync_rate 200ms"),
	zone("login", "key all", "limit 20/10s", "algorithm token_bucket", "sync_rate strict", "regions off", "ban 10s"),
	zone("search", "key all", "limit 50/10s", "enforce off"),
	zone("files", "key all", "limit 1000/10s", "bandwidth 1KiB/s", "concurrent 20"),
	zone("tokens", "key all", "limit 1000/10s", "cost 2", "response_cost header X-Cost"),
	zone("visitors", "key {http.request.header.X-User}", "limit 100/10s", "empty_key skip"),
)

// Every panel of the board has data of real nodes in a real Prometheus, asked for what Grafana asks
// for. With UPDATE_GOLDENS=1 the board is drawn after a minute, as docs/observability.md has it.
func TestBoard(t *testing.T) {
	t.Parallel()
	regions := "regions {\n\there %s\n\tregion eu " + redistest.Start(t).URL + "\n\tregion us " + redistest.Start(t).URL + "\n}"
	nodes := start(t, 2, config(fmt.Sprintf(regions, "eu"), boardSite)).Nodes
	start(t, 1, config(fmt.Sprintf(regions, "us"), boardSite))
	api, began := startPrometheus(t, nodes), time.Now()
	c := client(t, 100)
	for zone, rate := range map[string]float64{"search": 8, "files": 1, "tokens": 12, "visitors": 4} {
		load(t, c, nodes, zone, rate)
	}
	rounds := 1
	if redistest.UpdateGoldens {
		rounds = 12
	}
	for i := range rounds { // the login is attacked in the second half
		if i == 6 {
			load(t, c, nodes, "login", 40)
		}
		rate := 20 + 12*math.Sin(float64(i)/2)
		c.Steady(t.Context(), nodes, "/api", rate, int(5*rate), func(i int) int { return i % len(nodes) }, new(cluster.Tally))
		c.Burst(t.Context(), nodes, "/login", 4, nil)
	}
	board := picture.Board{
		Title:       "The board of deploy/grafana/tide.json",
		Description: "A minute of two nodes under load. The queries are those of the board; the drawing is not Grafana's.",
	}
	for _, p := range panelsOf(t) {
		f := picture.Field{X: p.GridPos.X, Y: p.GridPos.Y, W: p.GridPos.W, H: p.GridPos.H, Title: p.Title, Kind: p.Type, Unit: p.FieldConfig.Defaults.Unit}
		for _, target := range p.Targets {
			eventually(t, p.Title+" has data", func() error {
				lines, err := ask(api, target.Expr, target.LegendFormat, began)
				if err == nil && len(lines) == 0 {
					err = fmt.Errorf("nothing answers %s", target.Expr)
				}
				if err == nil {
					f.Lines = append(f.Lines, lines...)
				}
				return err
			})
		}
		highest := func(l plot.Line) float64 { return slices.Max(l.Y) }
		slices.SortStableFunc(f.Lines, func(a, b plot.Line) int { return cmp.Compare(highest(b), highest(a)) })
		for i := range f.Lines {
			f.Lines[i].Style = 1 + i%5
		}
		board.Fields = append(board.Fields, f)
	}
	compareBoard(t, board)
}

// compareBoard wants the picture of the page to have all panels, or draws it.
func compareBoard(t *testing.T, board picture.Board) {
	t.Helper()
	const file = "../../docs/pictures/board.svg"
	if redistest.UpdateGoldens {
		if err := os.WriteFile(file, board.SVG(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	drawn, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range board.Fields {
		if !strings.Contains(string(drawn), ">"+f.Title+"<") {
			t.Errorf("%s doesn't show %q; UPDATE_GOLDENS=1 draws it", file, f.Title)
		}
	}
}

// startPrometheus starts one that scrapes nodes every second, and returns where its API is.
func startPrometheus(t *testing.T, nodes []*cluster.Node) string {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("CI") != "" || os.Getenv("TIDE_REQUIRE_REDIS") == "1" {
			t.Fatal("prometheus is not installed; Debian has it in the package prometheus")
		}
		t.Skip("prometheus is not installed")
	}
	dir, addr := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	text := "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n  - job_name: caddy\n    static_configs:\n"
	for _, n := range nodes {
		text += fmt.Sprintf("      - {targets: [%q], labels: {instance: node%d}}\n", n.Admin, n.Number)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := cluster.StartProcess(exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+dir, "--web.listen-address="+addr, "--log.level=error"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	eventually(t, "Prometheus is ready", func() error {
		r, err := http.Get("http://" + addr + "/-/ready")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", r.StatusCode)
		}
		return nil
	})
	return "http://" + addr + "/api/v1/query_range"
}

func panelsOf(t *testing.T) []panel {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/tide.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct{ Panels []panel }
	if err := json.Unmarshal(text, &board); err != nil || len(board.Panels) == 0 {
		t.Fatal(len(board.Panels), err)
	}
	for _, p := range board.Panels {
		board.Panels = append(board.Panels, p.Panels...)
	}
	return board.Panels
}

// chosen is what Grafana writes for its variables when nothing is chosen. The shortest interval of
// rates that it takes is four scrapes; this is ten, as a busy machine may miss some.
var chosen = strings.NewReplacer("$__rate_interval", "10s", "$zone", ".*", "$instance", ".*", "$namespace", ".*")

// ask returns what a query of the board answers, from a time on. Points without a number are left
// out.
func ask(api, expr, legend string, since time.Time) (lines []plot.Line, err error) {
	now := time.Now()
	values := url.Values{"query": {chosen.Replace(expr)}, "step": {"2"}}
	values.Set("start", strconv.FormatInt(since.Unix(), 10))
	values.Set("end", strconv.FormatInt(now.Unix(), 10))
	r, err := http.Get(api + "?" + values.Encode())
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Error != "" {
		return nil, fmt.Errorf("%s: %w %s", expr, err, answer.Error)
	}
	for _, series := range answer.Data.Result {
		name := regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(legend, func(s string) string { return series.Metric[s[2:len(s)-2]] })
		l := plot.Line{Name: name}
		for _, v := range series.Values {
			at, isNumber := v[0].(float64)
			text, _ := v[1].(string)
			y, err := strconv.ParseFloat(text, 64)
			if !isNumber || err != nil || math.IsNaN(y) || math.IsInf(y, 0) {
				continue
			}
			l.X, l.Y = append(l.X, at-float64(since.Unix())), append(l.Y, y)
		}
		if len(l.X) > 0 {
			lines = append(lines, l)
		}
	}
	slices.SortFunc(lines, func(a, b plot.Line) int { return strings.Compare(a.Name, b.Name) })
	return lines, nil
}
