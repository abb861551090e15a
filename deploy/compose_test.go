package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// hosts are the services of compose.yaml as they are found on loopback, each with an address.
var hosts = map[string]string{"node1": "127.0.0.2", "node2": "127.0.0.3", "redis": "127.0.0.4", "balancer": "127.0.0.5"}

// fromBalancer is where requests of the balancer come from, as from any process on loopback that
// chooses no address.
const fromBalancer = "127.0.0.1"

func readProject(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"compose.yaml"}, cli.WithWorkingDirectory("."))
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A deployment is compose.yaml as it runs: processes in roots of their own, with other ports.
type deployment struct {
	project *types.Project
	ports   *strings.Replacer
	port    map[string]string // by that of the files
	admin   map[string]string // by service: an address that Caddy takes for its own
	nodes   map[string]*container
	secret  string // the file
	client  *http.Client

	variable string // of each node, beside those of its service, or in place of one
}

// deploy has a limit of more than a test asks for.
func deploy(t *testing.T) *deployment { return deployWith(t, "LIMIT=100000") }

// deployWith gives all nodes a variable.
func deployWith(t *testing.T, variable string) *deployment {
	t.Helper()
	needRoot(t)
	d := &deployment{
		project: readProject(t), port: map[string]string{}, admin: map[string]string{}, nodes: map[string]*container{}, variable: variable,
		secret: filepath.Join(t.TempDir(), "redis_password"), client: &http.Client{Timeout: 30 * time.Second},
	}
	var pairs []string
	for _, p := range []string{"6379", "8000", "8080", "9180"} {
		d.port[p] = fmt.Sprint(redistest.FreePort(t))
		pairs = append(pairs, p, d.port[p])
	}
	d.ports = strings.NewReplacer(pairs...)
	if err := os.WriteFile(d.secret, []byte("a password of yours\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.startRedis(t)
	i := readImage(t)
	for _, name := range []string{"node1", "node2", "balancer"} {
		d.nodes[name] = d.prepare(t, i, name)
		d.start(t, i, name)
	}
	return d
}

// startRedis runs the command of the service as it stands, at another address.
func (d *deployment) startRedis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatal(err)
	}
	args := slices.Clone(d.project.Services["redis"].Command)
	last := &args[len(args)-1]
	*last = strings.ReplaceAll(*last, "/run/secrets/redis_password", d.secret)
	*last = strings.ReplaceAll(*last, "redis-server ", fmt.Sprintf("redis-server --bind %s --port %s --dir '%s' ", hosts["redis"], d.port["6379"], t.TempDir()))
	p, err := cluster.StartProcess(exec.Command(args[0], args[1:]...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
}

// prepare makes the container of a service: its environment, configuration and secrets.
func (d *deployment) prepare(t *testing.T, i image, name string) *container {
	t.Helper()
	service, c := d.project.Services[name], newContainer(t, name, build(t, i))
	c.user, c.env = i.user, i.env
	balancer := d.project.Services["balancer"].Networks["default"].Ipv4Address
	for key, value := range service.Environment {
		if !strings.HasPrefix(d.variable, key+"=") {
			c.env = append(c.env, key+"="+strings.ReplaceAll(d.ports.Replace(*value), balancer, fromBalancer))
		}
	}
	// An address of its own for what is on loopback in a container.
	d.admin[name] = fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	c.env = append(c.env, d.variable, "CADDY_ADMIN="+d.admin[name])
	slices.Sort(c.env)
	table := "127.0.0.1 localhost\n"
	for host, addr := range hosts {
		table += addr + " " + host + "\n"
	}
	c.write(t, "/etc/hosts", table)
	for _, config := range service.Configs {
		text, err := os.ReadFile(d.project.Configs[config.Source].File)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.Replace(d.ports.Replace(string(text)), "{\n", "{\n\tdefault_bind "+hosts[name]+"\n", 1)
		c.write(t, config.Target, at)
	}
	for _, secret := range service.Secrets {
		text, err := os.ReadFile(d.secret)
		if err != nil {
			t.Fatal(err)
		}
		c.write(t, "/run/secrets/"+secret.Source, string(text))
	}
	if !service.ReadOnly || service.User != "" || !slices.Contains(service.CapDrop, "ALL") {
		t.Errorf("%s may do more than it needs", name)
	}
	for _, mount := range service.Tmpfs {
		at, options, _ := strings.Cut(mount, ":")
		c.tmpfs[at] = options
	}
	return c
}

func (d *deployment) start(t *testing.T, i image, name string) {
	t.Helper()
	d.nodes[name].start(t, append(slices.Clone(i.entrypoint), i.command...)...)
}

// get returns the status and the body of an answer of a service, 0 where there is none.
func (d *deployment) get(name, port, path string) (int, string) {
	return d.ask("http://" + hosts[name] + ":" + d.port[port] + path)
}

func (d *deployment) ask(url string) (int, string) {
	answer, err := d.client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

// awaitBoth waits until the balancer sends requests to both nodes.
func (d *deployment) awaitBoth(t *testing.T) {
	t.Helper()
	eventually(t, "both nodes answer through the balancer", func() bool {
		d.get("balancer", "8000", "/")
		return d.status("node1").Zone("everybody").Own > 0 && d.status("node2").Zone("everybody").Own > 0
	})
}

func (d *deployment) status(name string) (s cluster.Status) {
	if status, body := d.ask("http://" + d.admin[name] + "/rate_limit/"); status == http.StatusOK {
		_ = json.Unmarshal([]byte(body), &s)
	}
	return s
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if !redistest.Poll(40*time.Second, condition) {
		t.Fatalf("waited, but not until %s", what)
	}
}

// What compose.yaml describes serves through the balancer, keeps a limit over both nodes, and goes
// on answering probes and scrapes while it denies.
func TestComposeSharesALimit(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.awaitBoth(t)
	var admitted atomic.Int32
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if status, _ := d.get("balancer", "8000", "/login"); status == http.StatusOK {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != 5 {
		t.Errorf("%d of 40 requests at once were admitted, want 5", n)
	}
	if status, body := d.get("balancer", "8000", "/login"); status != http.StatusTooManyRequests {
		t.Errorf("/login: %d %s, want 429", status, body)
	}
	for _, name := range []string{"node1", "node2"} {
		if status, body := d.get(name, "9180", "/ready"); status != http.StatusOK {
			t.Errorf("%s: /ready while a limit denies: %d %s", name, status, body)
		}
		if _, body := d.get(name, "9180", "/metrics"); !strings.Contains(body, `caddy_rate_limit_decisions_total{decision="denied",zone="login"}`) {
			t.Errorf("%s has no metric of what it denied:\n%s", name, body)
		}
		test := d.project.Services[name].HealthCheck.Test
		if test[0] != "CMD" {
			t.Fatalf("%s: %q needs a shell, which the image doesn't have", name, test)
		}
		eventually(t, fmt.Sprintf("%q on %s knows both nodes", test, name), func() bool {
			output, err := d.nodes[name].command(t, test[1:]...).CombinedOutput()
			return err == nil && strings.Contains(string(output), "node1/") && strings.Contains(string(output), "node2/")
		})
	}
}

// A node that is told to end says that it isn't ready, serves what still comes, and leaves its
// counts to the other one. A new one takes its place.
func TestComposeReplacesANode(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.awaitBoth(t)
	ctx, stop := context.WithCancel(t.Context())
	var wrong, right atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if status, body := d.get("balancer", "8000", "/"); status == http.StatusOK {
					right.Add(1)
				} else if wrong.Add(1) == 1 {
					t.Errorf("while a node is replaced: %d %s", status, body)
				}
				redistest.Pause(10 * time.Millisecond)
			}
		})
	}
	old := d.nodes["node1"].process
	stopped := make(chan bool)
	go func() { stopped <- old.Stop() }()
	eventually(t, "the node says that it is about to end", func() bool {
		status, _ := d.get("node1", "9180", "/ready")
		return status == http.StatusServiceUnavailable
	})
	if !<-stopped {
		t.Error("the node did not end")
	}
	if last := d.nodes["node1"].log.Tail(3); !strings.Contains(last, `"exit_code":0`) {
		t.Errorf("the node ended otherwise than asked:\n%s", last)
	}
	before := right.Load()
	eventually(t, "the other node serves all", func() bool { return right.Load() > before+20 })
	stop()
	wg.Wait()
	eventually(t, "the other node knows of all requests", func() bool {
		z := d.status("node2").Zone("everybody")
		return z.Known() >= int64(right.Load())
	})
	d.start(t, readImage(t), "node1")
	eventually(t, "the new node is ready", func() bool {
		status, _ := d.get("node1", "9180", "/ready")
		return status == http.StatusOK
	})
	if status, body := d.get("node1", "8080", "/"); status != http.StatusOK {
		t.Errorf("the new node is ready, and answers %d %s", status, body)
	}
	eventually(t, "the new node has met Redis", func() bool {
		s := d.status("node1")
		return s.Redis != nil && s.Redis.Up && s.Redis.Nodes == 2
	})
}
