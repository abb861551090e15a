package cluster_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A step is a command of a page, the lines that it is shown to print, and the picture that shows
// all of them.
type step struct {
	line    int
	command string
	prints  []string
	picture string
}

// stepsOf reads the commands of a page's console blocks.
func stepsOf(t *testing.T, page string) (all []step) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside, picture := false, regexp.MustCompile(`^!\[.*\]\((pictures/.*\.svg)\)$`)
	for i, line := range strings.Split(string(text), "\n") {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case inside && isCommand:
			all = append(all, step{line: i + 1, command: command})
		case inside && strings.TrimSpace(line) != "":
			last := &all[len(all)-1]
			last.prints = append(last.prints, line)
		case len(all) > 0 && picture.MatchString(line):
			all[len(all)-1].picture = picture.FindStringSubmatch(line)[1]
		}
	}
	return all
}

// asShown makes lines comparable that differ only in times, names of nodes and columns. A line that
// is a number alone stays, as it is a status.
func asShown(line string) string {
	line = strings.Join(strings.Fields(line), " ")
	if _, err := strconv.Atoi(line); err == nil {
		return line
	}
	line = regexp.MustCompile(`^\S+/\d+ \S+`).ReplaceAllString(line, "node version")
	return regexp.MustCompile(`;t=\d+|-After: \d+|\d+s ago|in \d+ seconds`).ReplaceAllStringFunc(line, func(s string) string {
		return regexp.MustCompile(`\d+`).ReplaceAllString(s, "n")
	})
}

// A newcomer is who follows a page: in a directory of its own, on ports that are free.
type newcomer struct {
	dir   string
	ports *strings.Replacer
	shown map[string]string // by a port that is used, the one of the page
}

func arrive(t *testing.T, examples string, ports ...string) newcomer {
	t.Helper()
	n := newcomer{dir: t.TempDir(), shown: map[string]string{}}
	var pairs []string
	for _, p := range ports {
		free := strconv.Itoa(redistest.FreePort(t))
		pairs = append(pairs, p, free)
		n.shown[free] = p
	}
	n.ports = strings.NewReplacer(pairs...)
	files, err := filepath.Glob(filepath.Join(examples, "*", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(n.dir, "examples", filepath.Base(filepath.Dir(file)), filepath.Base(file))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, []byte(n.ports.Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// command is one that runs where the newcomer is, and keeps what Caddy stores there.
func (n newcomer) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = n.dir, append(os.Environ(), "HOME="+n.dir, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=")
	return cmd
}

// builds has the program that is built for the tests lie where the newcomer builds it.
func (n newcomer) builds(t *testing.T) {
	t.Helper()
	if err := os.Symlink(caddy(t), filepath.Join(n.dir, "caddy")); err != nil {
		t.Fatal(err)
	}
}

// serve starts a program that runs until the test ends, or until the next block that needs its
// ports, and returns when it listens.
func (n newcomer) serve(t *testing.T, command string) *cluster.Process {
	t.Helper()
	args := strings.Fields(strings.ReplaceAll(command, "''", ""))
	if args[0] == "caddy" {
		args[0] = "./caddy"
	}
	if strings.HasSuffix(command, "''") {
		args = append(args, "")
	}
	listens := regexp.MustCompile(`--port (\d+)|http://localhost:(\d+)|https_port (\d+)`)
	text := command
	if i := slices.Index(args, "--config"); i >= 0 {
		file, err := os.ReadFile(filepath.Join(n.dir, args[i+1]))
		if err != nil {
			t.Fatal(err)
		}
		text = string(file)
	}
	m := listens.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s: where does it listen?", command)
	}
	p, err := cluster.StartProcess(n.command(t, args[0], args[1:]...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	redistest.Eventually(t, command+" listens", func() bool {
		c, err := net.Dial("tcp", "localhost:"+m[1]+m[2]+m[3])
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return p
}

// The commands of the page do what it shows, in its order. Only the build is that of all tests.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	redistest.Start(t) // says what to install where it is missing
	n := arrive(t, "../../examples", "8080", "8081", "8082", "2019", "2020", "6379")
	served, path := 0, os.Getenv("PATH")
	var running *cluster.Process
	for _, s := range stepsOf(t, "../../docs/getting-started.md") {
		where := fmt.Sprintf("docs/getting-started.md:%d: %s", s.line, s.command)
		command := n.ports.Replace(s.command)
		switch {
		case s.command == "CGO_ENABLED=0 go build -tags nobadger,nomysql,nopgx ./cmd/caddy":
			n.builds(t)
			continue
		case s.command == `export PATH="$PWD:$PATH"`:
			path = n.dir + ":" + path
			continue
		case strings.HasPrefix(command, "caddy ") && !strings.HasPrefix(path, n.dir):
			t.Errorf("%s: nobody has said where caddy is", where)
		case strings.HasPrefix(command, "redis-server "), strings.HasPrefix(command, "caddy run "):
			if served++; served == 2 {
				running.Stop() // by Ctrl-C, as the page says at the end of its first part
			}
			running = n.serve(t, command)
			continue
		}
		if strings.Contains(command, "rate-limit status") && !strings.Contains(command, "--address") {
			command += " --address " + n.ports.Replace("localhost:2019")
		}
		cmd := n.command(t, "bash", "-c", command)
		cmd.Env = append(cmd.Env, "PATH="+path)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, out)
		}
		n.compare(t, where, s.prints, string(out))
		if s.picture != "" {
			n.draw(t, s, string(out))
		}
	}
	if served != 4 {
		t.Errorf("%d programs were started, want 4", served)
	}
}

// The README's first limit takes one command, and its second terminal shows what it shows.
func TestFirstLimitOfTheReadme(t *testing.T) {
	t.Parallel()
	n := arrive(t, "../../examples", "8080", "2019")
	n.builds(t)
	steps := stepsOf(t, "../../README.md")
	run, ok := strings.CutPrefix(steps[0].command, "go run -tags nobadger,nomysql,nopgx ./cmd/caddy run ")
	if !ok {
		t.Fatalf("the README begins with %s", steps[0].command)
	}
	n.serve(t, "caddy run "+n.ports.Replace(run))
	out, err := n.command(t, "bash", "-c", n.ports.Replace(steps[1].command)).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", steps[1].command, err, out)
	}
	n.compare(t, "README.md: "+steps[1].command, steps[1].prints, string(out))
}

// compare wants every line that is shown among those that were printed, as often.
func (n newcomer) compare(t *testing.T, where string, shown []string, printed string) {
	t.Helper()
	var all []string
	for line := range strings.Lines(printed) {
		all = append(all, asShown(line))
	}
	for _, line := range shown {
		i := slices.Index(all, asShown(n.ports.Replace(line)))
		if i < 0 {
			t.Errorf("%s does not print\n%s\nbut\n%s", where, line, printed)
			return
		}
		all = slices.Delete(all, i, i+1)
	}
}
