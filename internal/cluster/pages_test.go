//go:build chaos

package cluster_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A taskPage is a page whose commands run as they stand. Before that, a Caddyfile of a page may be
// saved and started.
type taskPage struct {
	saved   string // the page with the block that is saved as Caddyfile
	block   int    // which one of that page, from 0
	started bool   // it runs, though the page does not say so
	log     bool   // the access log of docs/simulate.md is there
	bare    bool   // its picture is of something else: shownPages has it
	plain   bool   // what its commands print stands in the page, as a picture would be of one month
}

var taskPages = map[string]taskPage{
	"ban":             {},
	"bandwidth":       {},
	"concurrent":      {},
	"configuration":   {saved: "configuration", started: true},
	"cost":            {},
	"keys":            {saved: "keys", started: true},
	"login":           {},
	"observability":   {},
	"operate":         {},
	"quotas":          {plain: true},
	"redis":           {},
	"reserve":         {},
	"responses":       {bare: true},
	"security":        {saved: "security", block: 1, started: true},
	"shadow":          {},
	"simulate":        {saved: "login", log: true},
	"status-page":     {saved: "status-page"},
	"tiers":           {},
	"troubleshooting": {saved: "login", started: true},
}

// elsewhere are commands that no test can run as they stand, and why.
var elsewhere = map[string]string{
	"cp -r deploy/grafana/provisioning/. /etc/grafana/provisioning/":                         "Grafana is not needed for tests: the lint compares the page with the files",
	"mkdir -p /var/lib/grafana/dashboards":                                                   "the same",
	"cp deploy/grafana/tide.json /var/lib/grafana/dashboards/":                               "the same",
	"prometheus --config.file examples/prometheus/prometheus.yml":                            "it needs port 9090: TestBoard starts one, TestAlerts checks the file",
	"caddy rate-limit override api_key gold-0001 6000/1m --for forever --note \"plan gold\"": "its zone is of another site than the one that runs: TestOverridesKeepRatios",
}

// The commands of each task page do what the page shows, in its order: programs that serve are
// started, a new one in place of one that has the same ports. What the page shows in a picture is
// what the last command before it prints.
func TestTaskPages(t *testing.T) {
	t.Parallel()
	redistest.Start(t) // says what to install where it is missing
	unused := maps.Clone(elsewhere)
	for name, p := range taskPages {
		page := filepath.Join("../../docs", name+".md")
		steps := stepsOf(t, page)
		if text, err := os.ReadFile(page); err != nil || len(steps) == 0 || !p.plain && !strings.Contains(string(text), "\n![") {
			t.Errorf("%s has %d commands, and needs some and a picture: %v", page, len(steps), err)
		}
		for _, s := range steps {
			delete(unused, s.command)
		}
		t.Run(name, func(t *testing.T) {
			n := p.arrive(t)
			for _, s := range steps {
				if p.bare {
					s.picture = ""
				}
				if elsewhere[s.command] == "" {
					n.follow(t, fmt.Sprintf("docs/%s.md:%d: %s", name, s.line, s.command), s)
				}
			}
		})
	}
	for command := range unused {
		t.Errorf("no page has %s", command)
	}
}

// arrive is somebody who has built a Caddy and done what the page assumes.
func (p taskPage) arrive(t *testing.T) newcomer {
	t.Helper()
	n := arrive(t, "../../examples", "8080", "8081", "8082", "2019", "2020", "6379")
	n.builds(t)
	if p.log {
		n.hasLog(t)
	}
	if p.saved != "" {
		block, _, _ := strings.Cut(strings.Split(pageText(t, p.saved), "```caddyfile\n")[p.block+1], "```\n")
		// Without a Redis, which these pages are not about, and with certificates of its own.
		site := block
		if strings.HasPrefix(block, "{\n") {
			_, site, _ = strings.Cut(block, "\n}\n")
		}
		block = optionsOf(site) + "}\n" + site
		if err := os.WriteFile(filepath.Join(n.dir, "Caddyfile"), []byte(n.ports.Replace(block)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p.started {
		n.serve(t, "caddy run --config Caddyfile")
	}
	return n
}

// optionsOf begins the global options with which a site runs here.
func optionsOf(site string) string {
	if strings.Contains(site, "http://localhost") {
		return "{\n\tadmin localhost:2019\n"
	}
	return "{\n\tadmin localhost:2019\n\thttp_port 8081\n\thttps_port 8082\n\tlocal_certs\n\tskip_install_trust\n"
}

// hasLog writes the access log of docs/simulate.md.
func (n newcomer) hasLog(t *testing.T) {
	t.Helper()
	awk := n.command(t, "awk", "-f", absolute(t, "../simulate/testdata/example.awk"))
	out, err := os.Create(filepath.Join(n.dir, "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	awk.Stdout = out
	if err := awk.Run(); err != nil {
		t.Fatal(err)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// follow runs a command, compares what it prints to what the page shows, and draws it if the page
// shows it as a picture.
func (n newcomer) follow(t *testing.T, where string, s step) {
	t.Helper()
	command := strings.ReplaceAll(n.ports.Replace(s.command), "/etc/caddy/", n.dir+"/")
	switch {
	case strings.HasPrefix(command, "redis-server "), strings.HasPrefix(command, "caddy run --config "):
		n.serve(t, command)
		return
	case command == "caddy run":
		n.serve(t, "caddy run --config Caddyfile")
		return
	}
	if strings.Contains(command, "caddy rate-limit") && !strings.Contains(command, "--address") && !strings.Contains(command, "simulate") {
		command = regexp.MustCompile(`caddy rate-limit \w+`).ReplaceAllString(command, "$0 --address "+n.ports.Replace("localhost:2019"))
	}
	cmd := n.command(t, "bash", "-c", command)
	cmd.Env = append(cmd.Env, "PATH="+n.dir+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, out)
	}
	n.compare(t, where, s.prints, string(out))
	if s.picture != "" {
		n.draw(t, s, string(out))
	}
}
