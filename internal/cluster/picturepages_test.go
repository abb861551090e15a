//go:build chaos

package cluster_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/plot/picture"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A shownPage has a picture of what a command prints that the page doesn't have. What it does show
// at a prompt, TestTaskPages runs.
type shownPage struct {
	site    string   // the Caddyfile, if not a block of the page
	block   int      // which block of the page is the Caddyfile, from 0
	starts  []string // what runs, in this order
	restart bool     // the last of these ends as by SIGTERM and starts again, after before
	before  string   // what happens before the command
	command string   // or several, a line each
	wants   string   // what the command prints, once all has happened
}

const (
	aRedis = "redis-server --port 6379 --save ''"
	aCaddy = "./caddy run --config Caddyfile"
)

var shownPages = map[string]shownPage{
	"readme": {
		starts: []string{aRedis, aCaddy},
		before: `caddy rate-limit enforce address --remove >/dev/null; seq 6 | xargs -n 1 curl -s -o /dev/null https://api.example.com/login -d`,
		command: `caddy rate-limit simulate --limit 100/1m access.log | head -4
caddy rate-limit explain -X POST https://api.example.com/login
caddy rate-limit override login 203.0.113.9 20/1m
caddy rate-limit enforce address 25%`,
		wants: "denied by login",
	},
	"limitations": {
		site: `http://localhost:8080 {
	rate_limit {
		zone api {
			key {http.request.header.X-Api-Key}
			limit 3/1h
		}
	}
}
`,
		starts:  []string{aCaddy},
		before:  "curl -s 'localhost:8080/?[1-3]' -H 'X-Api-Key: k1'",
		command: "for key in k1 made-up; do caddy rate-limit explain api $key; done",
		wants:   "denied by api",
	},
	"warnings": {
		site: `example.com {
	rate_limit {
		zone api {
			limt 100/1m
		}
	}
}
`,
		command: `caddy adapt --config Caddyfile 2>&1 | grep -o '"msg".*' | fold -sw 90`,
		wants:   "limt",
	},
	"migration": {
		starts:  []string{aCaddy},
		before:  "curl -so /dev/null 'https://api.example.com/?[1-101]'",
		command: "caddy rate-limit explain https://api.example.com/",
		wants:   "would_deny",
	},
	"migration/apisix": {
		starts:  []string{aRedis, aCaddy},
		command: "caddy rate-limit explain https://api.example.com/v1/users -H 'X-Api-Key: k1'",
		wants:   "k1 127.0.0.1",
	},
	"migration/envoy": {
		block: 1, starts: []string{aRedis, aCaddy},
		before:  "curl -so /dev/null 'https://api.example.com/login?[1-6]' -d password=1",
		command: "caddy rate-limit explain https://api.example.com/login -X POST",
		wants:   "50/1s  0     50      ", // a second later, and WAIT has that of login
	},
	"migration/haproxy": {
		block: 1, starts: []string{aCaddy},
		before:  "curl -so /dev/null 'https://example.com/missing?[1-11]'",
		command: "caddy rate-limit explain https://example.com/",
		wants:   "banned by abuse",
	},
	"migration/kong": {
		starts:  []string{aRedis, aCaddy},
		command: "curl -si https://api.example.com/",
		wants:   "x-ratelimit-remaining-minute",
	},
	"migration/mholt": {
		site: `example.com {
	rate_limit /foo {header.X-Api-Key} 10r/s 100000 503
}
`,
		command: `caddy adapt --config Caddyfile 2>&1 | grep -o '"msg".*' | fold -sw 90`,
		wants:   "parsing rate",
	},
	"migration/nginx": {
		block: 1, starts: []string{aCaddy},
		command: "caddy rate-limit explain https://example.com/api/users",
		wants:   "perip_api",
	},
	"migration/traefik": {
		starts:  []string{aRedis, aCaddy},
		command: "caddy rate-limit explain https://api.example.com/",
		wants:   "200",
	},
	"outages": {
		starts: []string{aCaddy}, restart: true,
		before:  "curl -sf --retry 9 --retry-delay 1 --retry-all-errors 'https://example.com/?[1-3]'",
		command: "caddy rate-limit explain https://example.com/",
		wants:   "9997",
	},
	"responses": {
		starts:  []string{aCaddy},
		before:  "curl -so /dev/null 'https://example.com/?[1-101]'",
		command: "curl -si https://example.com/",
		wants:   "Try again",
	},
	"sizing": {
		starts:  []string{"./caddy run --config examples/login/Caddyfile"},
		before:  "curl -s 'localhost:8080/login?user=[1-3]' -d password=1",
		command: "curl -s localhost:2019/metrics | grep caddy_rate_limit_keys | fold -sw 80",
		wants:   `"login_name"} 3`,
	},
}

// What a page shows in its picture is what the command prints today, where the page's Caddyfile
// runs, with a Redis if it names one, in front of a server.
func TestTaskPagesThatOnlyShow(t *testing.T) {
	t.Parallel()
	redistest.Start(t) // says what to install where it is missing
	for name, p := range shownPages {
		t.Run(name, func(t *testing.T) {
			n := p.arrive(t, name)
			var last *cluster.Process
			for _, command := range p.starts {
				last = n.serve(t, n.ports.Replace(command))
			}
			if p.restart {
				n.print(t, p.before)
				last.Stop()
				n.serve(t, p.starts[len(p.starts)-1])
				p.before = "true"
			}
			n.show(t, name, p)
		})
	}
}

// arrive is somebody who has built a Caddy, saved the page's Caddyfile and started the server
// behind it, and whose machine has the names of the sites.
func (p shownPage) arrive(t *testing.T, name string) newcomer {
	t.Helper()
	n := arrive(t, "../../examples", "8080", "8081", "8082", "2019", "2020", "6379", "9000")
	n.builds(t)
	site := p.site
	if blocks := strings.Split(pageText(t, name), "```caddyfile\n"); site == "" && len(blocks) > p.block+1 {
		site, _, _ = strings.Cut(blocks[p.block+1], "```\n")
	}
	if len(p.starts) > 0 {
		options := optionsOf(site)
		if !strings.HasPrefix(site, "{\n") {
			options += "}\n"
		}
		site = options + strings.TrimPrefix(site, "{\n")
	}
	site = strings.NewReplacer("redis.internal", "localhost", "localhost:8000", "localhost:9000", "/var/log", filepath.Join(n.dir, "log")).Replace(site)
	here := "insecure\n"
	for _, host := range []string{"example.com", "api.example.com"} {
		here += fmt.Sprintf("connect-to = \"%s:443:127.0.0.1:8082\"\n", host)
	}
	for file, text := range map[string]string{"Caddyfile": site, ".curlrc": here} {
		if err := os.WriteFile(filepath.Join(n.dir, file), []byte(n.ports.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(p.command, "access.log") {
		n.hasLog(t)
	}
	serveHello(t, n.ports.Replace("127.0.0.1:9000"))
	return n
}

func pageText(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join("../../docs", filepath.FromSlash(name)+".md")
	if name == "readme" {
		file = "../../README.md"
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// serveHello is the server of the pages. It has everything but what is missing, and no password is
// right.
func serveHello(t *testing.T, addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/missing":
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Path == "/login" && r.Method == http.MethodPost:
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprintln(w, "Hello.")
	}))
	s.Listener.Close()
	s.Listener = listener
	s.Start()
	t.Cleanup(s.Close)
}

// print is what a command prints, asking the node of the page.
func (n newcomer) print(t *testing.T, command string) string {
	t.Helper()
	command = strings.ReplaceAll(command, "caddy rate-limit ", "caddy rate-limit --address localhost:2019 ")
	cmd := n.command(t, "bash", "-c", n.ports.Replace(command))
	cmd.Env = append(cmd.Env, "PATH="+n.dir+":"+os.Getenv("PATH"))
	out, _ := cmd.Output() // what fails prints something else, or is tried again
	return strings.ReplaceAll(n.asOnThePage(string(out)), "\r", "")
}

// show draws what the command prints, or wants the picture of it on the page. All that happens
// before it is repeated until it prints that: a window may just have ended.
func (n newcomer) show(t *testing.T, name string, p shownPage) {
	t.Helper()
	shown := "pictures/" + strings.ReplaceAll(name, "/", "-") + ".svg"
	if !strings.Contains(pageText(t, name), shown+")") {
		t.Errorf("the page %s does not show %s", name, shown)
	}
	file := filepath.Join("../../docs", filepath.FromSlash(shown))
	drawn, err := os.ReadFile(file)
	if err != nil && !redistest.UpdateGoldens {
		t.Fatal(err)
	}
	first, others, _ := strings.Cut(p.command, "\n")
	printed := ""
	if !redistest.Poll(30*time.Second, func() bool {
		n.print(t, p.before)
		printed = n.print(t, first)
		for command := range strings.Lines(others) {
			printed += "\n$ " + strings.TrimSpace(command) + "\n" + n.print(t, command)
		}
		return strings.Contains(printed, p.wants) && (redistest.UpdateGoldens || isPictureOf(drawn, first, printed))
	}) {
		t.Errorf("%s, with %q, does not show what %q prints now:\n%s\nIf that is right, UPDATE_GOLDENS=1 draws it.", shown, p.wants, p.command, printed)
		return
	}
	if redistest.UpdateGoldens {
		if err := os.WriteFile(file, picture.Terminal(first, printed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// isPictureOf reports whether a terminal has these lines, at any time. Nodes come in any order.
func isPictureOf(drawn []byte, command, printed string) bool {
	passing := regexp.MustCompile(`(?i)\b(date|content-length|retry-after|ratelimit-reset|[a-z-]*remaining[a-z-]*): .*|\b(\d+h)?\d+m\b|\b\d+h\b|\b\d+ seconds`)
	steady := func(lines []string) (all []string) {
		for _, line := range lines {
			all = append(all, passing.ReplaceAllString(anyTime(line), "n"))
		}
		slices.Sort(all)
		return all
	}
	lines := append([]string{"$ " + command}, strings.Split(strings.TrimSpace(printed), "\n")...)
	return slices.Equal(steady(picture.LinesOf(drawn)), steady(lines))
}
