package deploy

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// What docs/containers.md has people type answers as it shows: requests through the balancer, and
// commands in a container.
func TestThePageOfContainers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	d := deploy(t)
	d.awaitBoth(t)
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
		if output, err := d.nodes["node1"].command(t, args...).CombinedOutput(); err != nil {
			t.Errorf("caddy %s: %v\n%s", c[1], err, output)
		}
	}
	if len(asks) == 0 || len(commands) < 3 {
		t.Errorf("found %d requests and %d commands on the page", len(asks), len(commands))
	}
}
