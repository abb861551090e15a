package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// processTimeout bounds every wait for a process. It is generous: what takes that long on a busy
// machine has failed.
const processTimeout = 30 * time.Second

// A Node is one Caddy process on ports of its own, which it keeps when it is started again. Reload,
// Status and Log can be used at any time; the methods that start and stop the process are for one
// goroutine.
type Node struct {
	// Number counts from 1.
	Number int
	// Addr is where it listens for requests and Admin where its admin API does, both host:port.
	Addr, Admin string
	// Log is what all of its processes wrote.
	Log *Log

	program string
	dir     string
	ports   [2]port
	process *Process // nil when it doesn't run
}

// values are what a template of a Caddyfile can use, as in {{.Port}}.
type values struct {
	Node              int
	Addr, Port, Admin string
}

func newNode(number int, program, dir string) (*Node, error) {
	n := &Node{Number: number, Log: new(Log), program: program, dir: filepath.Join(dir, fmt.Sprintf("node%d", number))}
	var err error
	if n.ports[0], err = takePort(); err != nil {
		return nil, err
	}
	if n.ports[1], err = takePort(); err != nil {
		n.ports[0].reserved.release()
		return nil, err
	}
	n.Addr, n.Admin = n.ports[0].addr(), n.ports[1].addr()
	return n, os.MkdirAll(n.dir, 0o700)
}

// render fills a template of a Caddyfile in for this node.
func (n *Node) render(caddyfile string) ([]byte, error) {
	t, err := template.New("Caddyfile").Option("missingkey=error").Parse(caddyfile)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, values{n.Number, n.Addr, fmt.Sprint(n.ports[0].number), n.Admin})
	return b.Bytes(), err
}

// Start starts the process with a template of a Caddyfile and returns when it serves.
func (n *Node) Start(ctx context.Context, caddyfile string) error {
	config, err := n.render(caddyfile)
	if err != nil {
		return err
	}
	path := filepath.Join(n.dir, "Caddyfile")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return err
	}
	serves := n.Log.next(`"serving initial configuration"`)
	cmd := exec.Command(n.program, "run", "--config", path, "--adapter", "caddyfile")
	cmd.Dir = n.dir
	cmd.Env = append(os.Environ(), "HOME="+n.dir, "XDG_DATA_HOME="+n.dir, "XDG_CONFIG_HOME="+n.dir)
	cmd.Stdout, cmd.Stderr = n.Log, n.Log
	if n.process, err = StartProcess(cmd); err != nil {
		return fmt.Errorf("starting Caddy: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	select {
	case <-serves:
		return nil
	case <-n.process.Exited():
		err = errors.New("it has ended")
	case <-ctx.Done():
		err = ctx.Err()
	}
	n.Kill()
	return fmt.Errorf("starting Caddy as node %d: %w; its last lines:\n%s", n.Number, err, n.Log.Tail(12))
}

// Stop asks the process to end, as SIGTERM does, and returns when it has.
func (n *Node) Stop() error {
	p := n.process
	n.process = nil
	if p != nil && !p.Stop() {
		return fmt.Errorf("node %d did not end within %s of SIGTERM and was killed", n.Number, processTimeout)
	}
	return nil
}

// Kill ends the process at once, as kill -9 does.
func (n *Node) Kill() {
	if n.process != nil {
		n.process.Kill()
		n.process = nil
	}
}

func (n *Node) close() {
	n.Kill()
	for _, p := range n.ports {
		p.reserved.release()
	}
}

// Reload gives the process another Caddyfile, by a template, and waits until only the servers of
// that one listen. The error is Caddy's own where it rejects it.
func (n *Node) Reload(ctx context.Context, caddyfile string) error {
	config, err := n.render(caddyfile)
	if err != nil {
		return err
	}
	before, err := n.listening(ctx)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"text/caddyfile"}, "Cache-Control": {"must-revalidate"}}
	if _, err = n.adminAgain(ctx, http.MethodPost, "/load", header, config); err != nil {
		return err
	}
	return n.endListening(ctx, before)
}

// adminAgain is admin for what may be asked twice. Caddy replaces the endpoint with each reload,
// and a connection that has reached the old one by then is reset or closed: that is asked again.
func (n *Node) adminAgain(ctx context.Context, method, path string, header http.Header, body []byte) (answer []byte, err error) {
	for range 4 {
		answer, err = n.admin(ctx, method, path, header, body)
		if !IsClosed(err) {
			break
		}
	}
	return answer, err
}

// Status returns what GET /rate_limit/ of the admin API answers.
func (n *Node) Status(ctx context.Context) (s Status, err error) {
	body, err := n.adminAgain(ctx, http.MethodGet, "/rate_limit/", nil, nil)
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// Goroutines returns how many goroutines the process has.
func (n *Node) Goroutines(ctx context.Context) (total int, profile string, err error) {
	body, err := n.admin(ctx, http.MethodGet, "/debug/pprof/goroutine?debug=1", nil, nil)
	if err != nil {
		return 0, "", err
	}
	_, err = fmt.Sscanf(string(body), "goroutine profile: total %d", &total)
	return total, string(body), err
}

var adminClient = &http.Client{Timeout: processTimeout, Transport: &http.Transport{DisableKeepAlives: true}}

func (n *Node) admin(ctx context.Context, method, path string, header http.Header, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.Admin+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range header {
		r.Header[name] = value
	}
	res, err := adminClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s on node %d: %s: %s", method, path, n.Number, res.Status, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}
