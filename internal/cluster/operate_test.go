package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// command runs caddy rate-limit against a node, as an operator does.
func command(t *testing.T, n *cluster.Node, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), caddy(t), append(append([]string{"rate-limit"}, args...), "--address", n.Admin, "--timeout", "30s")...)
	var all bytes.Buffer
	cmd.Stdout, cmd.Stderr = &all, &all
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return all.String(), cmd.ProcessState.ExitCode()
}

// done runs a command that must succeed and print something.
func done(t *testing.T, n *cluster.Node, prints, line string) {
	t.Helper()
	if out, code := command(t, n, strings.Fields(line)...); code != 0 || !strings.Contains(out, prints) {
		t.Errorf("%s: exit code %d, want 0 and %s:\n%s", line, code, prints, out)
	}
}

// doneAtLast runs a command again until it succeeds and prints something, such as on how many
// nodes and in how many regions it holds.
func doneAtLast(t *testing.T, n *cluster.Node, prints, line string) {
	t.Helper()
	eventually(t, line+" is done", func() error {
		if out, code := command(t, n, strings.Fields(line)...); code != 0 || !strings.Contains(out, prints) {
			return fmt.Errorf("exit code %d, want 0 and %s:\n%s", code, prints, out)
		}
		return nil
	})
}

// get makes a request to a node and returns the status.
func get(t *testing.T, n *cluster.Node, path string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// The overrides of a file are set on all nodes, and removed by the same file.
func TestOverridesOfAFileOnThreeNodes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "customers.csv")
	if err := os.WriteFile(file, []byte("127.0.0.1,unlimited\n192.0.2.1,deny,Example Ltd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, 3, config("redis "+redistest.Start(t).URL, zones(zone("none", "limit 0/"+far))))
	doneAtLast(t, c.Nodes[1], "none: 2 overrides set on 3 of 3 nodes", "override none --for forever -f "+file)
	for _, n := range c.Nodes {
		if got := get(t, n, "/none"); got != http.StatusOK {
			t.Errorf("node %d answers %d, want 200", n.Number, got)
		}
	}
	// A busy machine may say that a node has yet to apply it.
	if out, _ := command(t, c.Nodes[2], "override", "none", "--remove", "-f", file); !strings.Contains(out, "none: 2 overrides removed on ") {
		t.Errorf("the overrides of a file are removed: %s", out)
	}
	eventually(t, "no node has an override", func() error {
		for _, n := range c.Nodes {
			if got := get(t, n, "/none"); got != http.StatusTooManyRequests {
				return fmt.Errorf("node %d answers %d", n.Number, got)
			}
		}
		return nil
	})
	if out, code := command(t, c.Nodes[0], "override", "none", "--remove", "-f", file); code != 1 || !strings.Contains(out, "nothing to remove") {
		t.Errorf("overrides that are not there: exit code %d, want 1: %s", code, out)
	}
}

// What an operator changes on one node holds on all, also when Redis has just lost everything, and
// a node that does not answer is named.
func TestOperate(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := start(t, 3, config(slowRedis(r)+"\nsync_rate 100ms", zones(zone("none", "limit 0/"+far))))
	eventually(t, "all nodes are there", func() error {
		if out, _ := command(t, c.Nodes[0], "status"); strings.Count(out, "ago  yes") != 3 {
			return errors.New(out)
		}
		return nil
	})
	expect := func(want int) {
		t.Helper()
		for _, n := range c.Nodes {
			if got := get(t, n, "/none"); got != want {
				t.Errorf("node %d answers %d, want %d", n.Number, got, want)
			}
		}
	}
	expect(http.StatusTooManyRequests)
	doneAtLast(t, c.Nodes[1], "none: not enforced on 3 of 3 nodes, ends in 1h", "enforce none off")
	expect(http.StatusOK)
	done(t, c.Nodes[2], "none: enforced as configured on 3 of 3 nodes", "enforce none --remove")
	expect(http.StatusTooManyRequests)
	for i := range 3 {
		r.Do("FLUSHALL")
		doneAtLast(t, c.Nodes[i], "all zones: not enforced on 3 of 3 nodes", "enforce --all off --for 10m --note incident")
		eventually(t, "all nodes apply it", func() error {
			for _, n := range c.Nodes {
				if got := get(t, n, "/none"); got != http.StatusOK {
					return fmt.Errorf("node %d answers %d", n.Number, got)
				}
			}
			return nil
		})
	}
	done(t, c.Nodes[0], "on 3 of 3 nodes", "enforce --all --remove")
	expect(http.StatusTooManyRequests)

	if out, code := command(t, c.Nodes[0], "enforce", "nome", "off"); code != 1 || !strings.Contains(out, `did you mean`) {
		t.Errorf("a zone that is not there: exit code %d, want 1 and the nearest one:\n%s", code, out)
	}
	if err := c.Nodes[2].Suspend(); err != nil {
		t.Fatal(err)
	}
	out, code := command(t, c.Nodes[0], "enforce", "none", "off")
	if err := c.Nodes[2].Resume(); err != nil {
		t.Fatal(err)
	}
	if code != 2 || !strings.Contains(out, "on 2 of 3 nodes") || !strings.Contains(out, "last heard") {
		t.Errorf("with a node that does not answer: exit code %d, want 2 and its name:\n%s", code, out)
	}
	eventually(t, "it applies what it has missed", func() error {
		if got := get(t, c.Nodes[2], "/none"); got != http.StatusOK {
			return fmt.Errorf("it answers %d", got)
		}
		return nil
	})
}

// What was changed on a node that keeps its counters over a restart is there after a kill.
func TestChangesSurviveAKill(t *testing.T) {
	t.Parallel()
	site := config("persist "+t.TempDir()+"/counters", zones(zone("none", "limit 0/"+far)))
	c := start(t, 1, site)
	n := c.Nodes[0]
	done(t, n, "none: not enforced on this node", "enforce none off")
	n.Kill()
	if err := n.Start(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	if got := get(t, n, "/none"); got != http.StatusOK {
		t.Errorf("it answers %d after a kill, want 200", got)
	}
	done(t, n, "none: enforced as configured", "enforce none --remove")
	n.Kill()
	if err := n.Start(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	if got := get(t, n, "/none"); got != http.StatusTooManyRequests {
		t.Errorf("it answers %d after another kill, want 429", got)
	}
}
