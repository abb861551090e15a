package deploy

import (
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/plot/picture"
)

var pictures = os.Getenv("UPDATE_GOLDENS") != ""

// What docs/containers.md has people type answers as it shows: requests through the balancer, and
// commands in a container.
func TestThePageOfContainers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	d := deployWith(t, "LIMIT=100") // the default
	for _, name := range []string{"node1", "node2"} {
		eventually(t, name+" knows the other", func() bool {
			s := d.status(name)
			return s.Redis != nil && s.Redis.Up && s.Redis.Nodes == 2
		})
	}
	eventually(t, "the balancer leads to a node", func() bool {
		status, _ := d.get("balancer", "8000", "/")
		return status == http.StatusOK
	})
	// As far as the page shows what it prints.
	asks := regexp.MustCompile(`(?m)^\$ (for .*)\n((?:\d+\n)+)`).FindAllStringSubmatch(string(page), -1)
	for _, ask := range asks {
		command := strings.ReplaceAll(ask[1], "localhost:8000", hosts["balancer"]+":"+d.port["8000"])
		if output, err := exec.Command("sh", "-c", command).Output(); err != nil || string(output) != ask[2] {
			t.Errorf("%s: %v, printed\n%s, want\n%s", ask[1], err, output, ask[2])
		}
	}
	commands := regexp.MustCompile(`(?m)^\$ (?:kubectl exec deployment/tide --|docker compose -f deploy/compose.yaml exec node1) caddy (.*)$`).FindAllStringSubmatch(string(page), -1)
	for _, c := range commands {
		args := append([]string{"/usr/bin/caddy"}, strings.Fields(c[1])...)
		output, err := d.nodes["node1"].command(t, args...).CombinedOutput()
		if err != nil {
			t.Errorf("caddy %s: %v\n%s", c[1], err, output)
		}
		if strings.HasPrefix(c[0], "$ docker") {
			draw(t, strings.TrimPrefix(c[0], "$ "), string(output))
		}
	}
	if len(asks) == 0 || len(commands) < 3 {
		t.Errorf("found %d requests and %d commands on the page", len(asks), len(commands))
	}
}

// draw writes the picture of the page, or wants that it has the columns, zones and nodes of what is
// printed.
func draw(t *testing.T, command, printed string) {
	t.Helper()
	const file = "../docs/pictures/containers.svg"
	if pictures {
		if err := os.WriteFile(file, picture.Terminal(command, printed), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	drawn, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first := func(lines []string) (all []string) {
		for _, line := range lines {
			name, _, _ := strings.Cut(strings.Join(strings.Fields(line), " "), " ")
			name, _, _ = strings.Cut(name, "/")
			all = append(all, name)
		}
		return all
	}
	shown := picture.LinesOf(drawn)
	if len(shown) < 2 || shown[0] != "$ "+command || !slices.Equal(first(shown[1:]), first(strings.Split(strings.TrimSpace(printed), "\n"))) {
		t.Errorf("%s shows %q, and this is printed now:\n%s", file, shown, printed)
	}
}
