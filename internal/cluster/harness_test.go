package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/plot/picture"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// program is Caddy, built once for all tests of a run and removed after them.
var program struct {
	sync.Once
	dir, path string
	err       error
}

// atEnd are called after all tests.
var atEnd []func() error

func TestMain(m *testing.M) {
	flag.Parse()
	raiseParallel()
	code := m.Run()
	for _, end := range atEnd {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

func caddy(t *testing.T) string {
	t.Helper()
	program.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "tide-caddy"); program.err == nil {
			program.path, program.err = cluster.Build(context.Background(), program.dir, caddyForTests)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// start starts nodes that end with the test. Their logs are shown if it fails.
func start(t *testing.T, nodes int, caddyfile string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Program: caddy(t), Caddyfile: caddyfile, Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		for _, n := range c.Nodes {
			if t.Failed() {
				t.Logf("node %d wrote last:\n%s", n.Number, n.Log.Tail(6))
			}
			for _, line := range n.Log.With("panic") {
				t.Errorf("node %d: %s", n.Number, line)
			}
		}
	})
	return c
}

// config is a template of a Caddyfile with one site: options are those of the global rate_limit
// block, site is the rest.
func config(options, site string) string {
	return fmt.Sprintf(`{
	admin {{.Admin}}
	default_bind 127.0.0.1
	grace_period 5s
	log default {
		exclude admin http.log tls
	}
	rate_limit {
		%s
	}
}
http://:{{.Port}} {
	%s
	respond ok
}
`, strings.ReplaceAll(options, "\n", "\n\t\t"), strings.ReplaceAll(site, "\n", "\n\t"))
}

// zone is a zone for all requests to /<name>.
func zone(name string, options ...string) string {
	return fmt.Sprintf("zone %s {\nmatch {\npath /%s\n}\n%s\n}\n", name, name, strings.Join(options, "\n"))
}

func zones(all ...string) string { return "rate_limit {\n" + strings.Join(all, "") + "}" }

// far is a window whose boundary no test sees, except one that runs when 30 days end.
const far = "30d"

// client returns a client that is closed when the test ends.
func client(t *testing.T, concurrency int) *cluster.Client {
	c := cluster.NewClient(concurrency)
	t.Cleanup(c.Close)
	return c
}

// eventually waits for a condition that comes about in another process.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	const limit = redistest.Patience
	var err error
	if !redistest.Poll(limit, func() bool { err = condition(); return err == nil }) {
		t.Fatalf("waited %s, but not until %s: %v", limit, what, err)
	}
}

// status returns a zone of a node's status.
func status(t *testing.T, n *cluster.Node, zone string) cluster.Zone {
	t.Helper()
	s, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Zone(zone)
}

// awaitKnown waits until every node knows of so many requests in a zone.
func awaitKnown(t *testing.T, nodes []*cluster.Node, zone string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("all nodes know of %d requests in zone %s", want, zone), func() error {
		for _, n := range nodes {
			if z := status(t, n, zone); z.Known() != int64(want) {
				return fmt.Errorf("node %d knows %d: own %d, remote %d, unsent %d", n.Number, z.Known(), z.Own, z.Remote, z.Unsent)
			}
		}
		return nil
	})
}

// awaitSent waits until Redis confirmed all that the nodes have counted in a zone.
func awaitSent(t *testing.T, nodes []*cluster.Node, zone string) {
	t.Helper()
	eventually(t, "nothing is unsent in zone "+zone, func() error {
		for _, n := range nodes {
			if z := status(t, n, zone); z.Unsent != 0 {
				return fmt.Errorf("node %d has %d unsent", n.Number, z.Unsent)
			}
		}
		return nil
	})
}

// awaitFirstCycle waits until every zone that syncs has had its first cycle, which is at once. What
// it counts after that waits for the next one.
func awaitFirstCycle(t *testing.T, nodes []*cluster.Node) {
	t.Helper()
	eventually(t, "every zone has had its first sync cycle", func() error {
		for _, n := range nodes {
			s, err := n.Status(t.Context())
			if err != nil {
				return err
			}
			for _, z := range s.Zones {
				if z.Sync != nil && z.Sync.Cycles == 0 {
					return fmt.Errorf("zone %s of node %d has not", z.Zone, n.Number)
				}
			}
		}
		return nil
	})
}

// awaitUp waits until a node's syncs work.
func awaitUp(t *testing.T, n *cluster.Node) {
	t.Helper()
	eventually(t, "the syncs work", func() error {
		s, err := n.Status(t.Context())
		if err != nil || s.Redis == nil || !s.Redis.Up || s.Redis.Syncs == 0 && s.Redis.Nodes == 0 {
			return fmt.Errorf("%+v, %v", s.Redis, err)
		}
		return nil
	})
}

// hashes are the fields of the hashes in a server whose names match a pattern, by their names.
func hashes(t *testing.T, s *redistest.Server, pattern string) map[string]map[string]string {
	t.Helper()
	c := s.Client()
	defer c.Close()
	names, err := c.Keys(t.Context(), pattern).Result()
	if err != nil {
		t.Fatal(err)
	}
	replies := make([]*redis.MapStringStringCmd, len(names))
	_, err = c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i, name := range names {
			replies[i] = p.HGetAll(t.Context(), name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]map[string]string)
	for i, name := range names {
		all[name] = replies[i].Val()
	}
	return all
}

// cells are the hashes of a zone that have a sum. Slots have none.
func cells(t *testing.T, s *redistest.Server, zone string) map[string]map[string]string {
	t.Helper()
	all := hashes(t, s, "*:"+zone+":*")
	maps.DeleteFunc(all, func(_ string, fields map[string]string) bool { return fields["sum"] == "" })
	return all
}

// sums are the totals of a zone in Redis, by the names of the hashes.
func sums(t *testing.T, s *redistest.Server, zone string) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for key, fields := range cells(t, s, zone) {
		all[key] = unitsOf(t, key, "sum", fields["sum"])
	}
	return all
}

// levels are how full the buckets of a zone are in Redis, by the names of the hashes.
func levels(t *testing.T, s *redistest.Server, zone string) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for key, fields := range cells(t, s, zone) {
		words := strings.Fields(fields["sum"])
		if len(words) != 9 {
			t.Fatalf("the sum of %s is %q", key, words)
		}
		level, err := strconv.Atoi(words[4])
		if err != nil {
			t.Fatalf("the sum of %s is %q", key, words)
		}
		if words[5] != "0" {
			level++
		}
		all[key] = max(0, level)
	}
	return all
}

// filled is the sum of levels.
func filled(t *testing.T, s *redistest.Server, zone string) (n int) {
	t.Helper()
	for _, level := range levels(t, s, zone) {
		n += level
	}
	return n
}

// aloneIn is what the nodes' own fields of a cell hold: of a strict zone, what they have decided by
// themselves. What Redis has decided is in the sum only.
func aloneIn(t *testing.T, key string, fields map[string]string) (n int) {
	t.Helper()
	for name, value := range fields {
		if name != "sum" && name != "fields" && name != "born" {
			n += unitsOf(t, key, name, value)
		}
	}
	return n
}

// total is the sum of sums.
func total(t *testing.T, s *redistest.Server, zone string) (n int) {
	t.Helper()
	for _, sum := range sums(t, s, zone) {
		n += sum
	}
	return n
}

// awaitTotal waits until Redis holds a total.
func awaitTotal(t *testing.T, s *redistest.Server, zone string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("redis counts %d requests of zone %s", want, zone), func() error {
		if got := total(t, s, zone); got != want {
			return fmt.Errorf("it counts %d", got)
		}
		return nil
	})
}

// admit sends requests and fails unless all are admitted.
func admit(t *testing.T, c *cluster.Client, nodes []*cluster.Node, zone string, requests int) {
	t.Helper()
	if tally := c.Burst(t.Context(), nodes, "/"+zone, requests, nil); tally.Admitted() != requests {
		_, err := tally.Errors()
		t.Fatalf("%d of %d requests were admitted in zone %s, %d denied, want all (first error: %v)", tally.Admitted(), requests, zone, tally.Denied(), err)
	}
}

// load sends requests at an even rate, to the nodes in turn, until stop is called, which returns
// the tally of them.
func load(t *testing.T, c *cluster.Client, nodes []*cluster.Node, zone string, rate float64) (tally *cluster.Tally, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	tally = new(cluster.Tally)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Steady(ctx, nodes, "/"+zone, rate, 0, func(i int) int { return i % len(nodes) }, tally)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return tally, stop
}

// awaitAnswers waits until so many more requests have been answered.
func awaitAnswers(t *testing.T, tally *cluster.Tally, more int) {
	t.Helper()
	want := tally.Sent() + more
	eventually(t, "requests are answered", func() error {
		if got := tally.Sent(); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

// draw writes a picture of a terminal, or wants that there is one with these lines.
func (n newcomer) draw(t *testing.T, s step, printed string) {
	t.Helper()
	file, printed := filepath.Join("../../docs", filepath.FromSlash(s.picture)), n.asOnThePage(printed)
	if redistest.UpdateGoldens {
		if err := os.WriteFile(file, picture.Terminal(s.command, printed), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	drawn, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	shown := picture.LinesOf(drawn)
	if len(shown) < 2 || shown[0] != "$ "+s.command {
		t.Fatalf("%s shows %q", s.picture, shown)
	}
	for i, line := range strings.Split(strings.TrimSpace(printed), "\n") {
		if i+1 >= len(shown) || anyTime(shown[i+1]) != anyTime(line) {
			t.Errorf("%s does not show what %q prints now:\n%s\nIf that is right, UPDATE_GOLDENS=1 draws it.", s.picture, s.command, printed)
			return
		}
	}
}

// raiseParallel has more tests at once than there are CPUs: what they do most is to wait for other
// processes.
func raiseParallel() {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0)))
	}
}

// caddyForTests asks the names of its Redis from the tests.
const caddyForTests = "github.com/caddy-tide/ratelimit/internal/cluster/caddy"

// asOnThePage is what was printed with the ports of the page, on a machine that is called web1.
func (n newcomer) asOnThePage(printed string) string {
	if host, err := os.Hostname(); err == nil {
		names := regexp.MustCompile(`(?m)^(NODE|` + regexp.QuoteMeta(host) + `/\d+) +`)
		printed = names.ReplaceAllStringFunc(printed, func(cell string) string {
			name := strings.Replace(strings.TrimSpace(cell), host+"/", "web1/", 1)
			return fmt.Sprintf("%-*s", len(cell)+len("web1")-len(host), name)
		})
	}
	back := regexp.MustCompile(`\b(` + strings.Join(slices.Collect(maps.Keys(n.shown)), "|") + `)\b`)
	return back.ReplaceAllStringFunc(printed, func(port string) string { return n.shown[port] })
}

// anyTime makes lines comparable that differ in waits and dates as well, and in how wide the
// columns are that have some. A wait of a minute or more is shown without seconds.
func anyTime(line string) string {
	line = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d+m?[\d.]*s\b|Date: .*|_after": \d+`).ReplaceAllString(asShown(line), "n")
	line = regexp.MustCompile(` \d+m\b`).ReplaceAllString(line, " n")
	return regexp.MustCompile(` {2,}`).ReplaceAllString(line, "  ")
}

const wide = "limit 1000000/" + far

// faulty are two nodes that sync a window and a bucket through a proxy, and what was spent of each.
type faulty struct {
	t     *testing.T
	r     *redistest.Server
	proxy *faultproxy.Proxy
	spend func()
	zones []string
	spent int
}

// counted waits until Redis has counted all.
func (f *faulty) counted() {
	f.t.Helper()
	for _, z := range f.zones {
		awaitTotal(f.t, f.r, z, f.spent)
	}
}

const nodeCount = 3

// loseReplies loses the reply of a message that arrives. What goes over an open connection arrives,
// though the node gets no reply. A new connection fails in its handshake. Where heartbeats come
// first and take the open connections nothing arrives; then it is tried again.
func (f *faulty) loseReplies() {
	t, r, proxy := f.t, f.r, f.proxy
	t.Helper()
	for arrived, tries := false, 0; !arrived; tries++ {
		if tries == 20 {
			t.Fatal("no message arrives whose reply is lost")
		}
		before := total(t, r, "fixed") + total(t, r, "bucket")
		proxy.Set(faultproxy.DropReplies)
		f.spend()
		arrived = redistest.Poll(time.Second, func() bool {
			return total(t, r, "fixed")+total(t, r, "bucket") > before
		})
		proxy.Set(faultproxy.None)
		f.spend()
		f.counted()
	}
}

// deliverLate holds messages, and delivers them late, and then late once more.
func (f *faulty) deliverLate() {
	t, proxy := f.t, f.proxy
	t.Helper()
	proxy.Set(faultproxy.Hold)
	before := proxy.Held()
	f.spend()
	eventually(t, "messages are held", func() error {
		if held := proxy.Held(); held < before+8 {
			return fmt.Errorf("%d", held)
		}
		return nil
	})
	proxy.Set(faultproxy.None)
	f.spend()
	f.counted()
	held := proxy.Pieces()
	for range 2 {
		if _, err := proxy.Deliver(held...); err != nil {
			t.Logf("delivering what was held: %v", err)
		}
		for _, z := range f.zones {
			if got := total(t, f.r, z); got != f.spent {
				t.Errorf("after a late duplicate redis counts %d requests of zone %s, want %d", got, z, f.spent)
			}
		}
	}
}

// restart starts a node again with what it left on its disk.
func restart(t *testing.T, n *cluster.Node, caddyfile string) {
	t.Helper()
	if err := n.Start(t.Context(), caddyfile); err != nil {
		t.Fatal(err)
	}
}

// sites is a Caddyfile whose sites have all the same unnamed limit.
func sites(options string, names ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\n\tadmin {{.Admin}}\n\thttp_port {{.Port}}\n\tdefault_bind 127.0.0.1\n\tgrace_period 5s\n\trate_limit {\n\t\t%s\n\t}\n}\n", options)
	for _, name := range names {
		fmt.Fprintf(&b, "http://%s {\n\trate_limit 3/%s\n\trespond ok\n}\n", name, far)
	}
	return b.String()
}

// spends sends requests to a site and fails unless the first ones are admitted and one more is
// denied.
func spends(t *testing.T, c *cluster.Client, n *cluster.Node, site string, admitted int) {
	t.Helper()
	for i := range admitted + 1 {
		want := http.StatusOK
		if i == admitted {
			want = http.StatusTooManyRequests
		}
		if got := c.Get(t.Context(), n.Addr, "/", func(r *http.Request) { r.Host = site }, new(cluster.Tally)); got != want {
			t.Fatalf("request %d to %s got status %d, want %d", i+1, site, got, want)
		}
	}
}

func reload(t *testing.T, n *cluster.Node, caddyfile string) {
	t.Helper()
	if err := n.Reload(t.Context(), caddyfile); err != nil {
		t.Fatal(err)
	}
}

// slowRedis gives Redis all the time that a busy machine may need: this is no test of requests that
// are decided without it.
func slowRedis(r *redistest.Server) string {
	return "redis " + r.URL + "?timeout=20s\nstrict_timeout 20s"
}

// startRegions starts regions of so many nodes, with so much time between two of them, and with
// these options beside them.
func startRegions(t *testing.T, regions, nodes int, away time.Duration, site string, beside ...string) (all []*realRegion) {
	t.Helper()
	writes, reads := rulesOfTheDocs(t)
	for i := range regions {
		r := redistest.Start(t, redistest.User("tide", writes), redistest.User("us", reads))
		all = append(all, &realRegion{name: fmt.Sprintf("r%d", i), redis: r})
		t.Cleanup(func() {
			if denied, _ := r.Do("ACL", "LOG").([]any); len(denied) > 0 {
				t.Errorf("a user of the documentation lacks permissions: %v", denied)
			}
		})
	}
	for _, r := range all {
		options := "regions {\n\t" + strings.Join(append(beside, "here "+r.name), "\n\t")
		for _, other := range all {
			url := "redis://tide:secret@" + other.redis.Addr + "/0"
			if other != r {
				link := faultproxy.Start(t, other.redis.Addr)
				link.SetDelay(away)
				r.links = append(r.links, link)
				url = "redis://us:secret@" + link.Addr + "/0"
			}
			options += "\n\tregion " + other.name + " " + url
		}
		r.text = config(options+"\n}", site)
		r.nodes = start(t, nodes, r.text).Nodes
	}
	return all
}

// A realRegion is a Redis with nodes of its own, and the links of these to the other regions.
type realRegion struct {
	name  string
	redis *redistest.Server
	links []*faultproxy.Proxy
	text  string // the Caddyfile
	nodes []*cluster.Node
}

// rulesOfTheDocs are those of the users in docs/redis.md: of the own region, and of others, which
// only read.
func rulesOfTheDocs(t *testing.T) (writes, reads string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	user := regexp.MustCompile(`(?m)^user tide (on >secret .*)$`).FindSubmatch(page)
	more := regexp.MustCompile("for \\[regions\\].*: `([^`]+)`").FindSubmatch(page)
	other := regexp.MustCompile(`(?m)^user us (on >secret .*)$`).FindSubmatch(page)
	if user == nil || more == nil || other == nil {
		t.Fatal("docs/redis.md doesn't say what users for regions may do")
	}
	return string(user[1]) + " " + string(more[1]), string(other[1])
}

// awaitEqual waits until the Redis of each region counts as much.
func awaitEqual(t *testing.T, all []*realRegion, zone string, want int) {
	t.Helper()
	for _, r := range all {
		awaitTotal(t, r.redis, zone, want)
	}
}

// cut sets a fault of all links between regions.
func cut(all []*realRegion, fault faultproxy.Fault) {
	for _, r := range all {
		for _, link := range r.links {
			link.Set(fault)
		}
	}
}

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

// An answer is what a node has answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// wait is what the client is told to wait.
func (a answer) wait() time.Duration {
	wait, _ := time.ParseDuration(a.header.Get("Retry-After") + "s")
	return wait
}

// send sends a request with headers, each a name and a value.
func send(ctx context.Context, method, url, body string, headers ...string) (a answer, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

// answerTo is the answer to a GET.
func answerTo(t *testing.T, url string, headers ...string) answer {
	t.Helper()
	a, err := send(t.Context(), http.MethodGet, url, "", headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// get makes a request to a node and returns the status.
func get(t *testing.T, n *cluster.Node, path string) int {
	t.Helper()
	return answerTo(t, "http://"+n.Addr+path).status
}

// awaitStatus waits until each of some nodes answers with a status.
func awaitStatus(t *testing.T, path string, want int, nodes ...*cluster.Node) {
	t.Helper()
	eventually(t, fmt.Sprintf("all nodes answer %s with %d", path, want), func() error {
		for _, n := range nodes {
			if got := get(t, n, path); got != want {
				return fmt.Errorf("node %d answers %d", n.Number, got)
			}
		}
		return nil
	})
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

// done runs a command that must succeed and print something.
func done(t *testing.T, n *cluster.Node, prints, line string) {
	t.Helper()
	if out, code := command(t, n, strings.Fields(line)...); code != 0 || !strings.Contains(out, prints) {
		t.Errorf("%s: exit code %d, want 0 and %s:\n%s", line, code, prints, out)
	}
}

// strictSlowRedis gives Redis all the time that a busy machine may need: a node that gives up on it
// decides by itself, and is no longer exact.
const strictSlowRedis = "sync_rate strict\nstrict_timeout 20s"

// takenPort is a port that nobody else can listen at.
func takenPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// unchanged fails unless a node's limits are the old ones and its syncs go on.
func unchanged(t *testing.T, n *cluster.Node, after string) {
	t.Helper()
	before, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, z := range before.Zones {
		if z.Limit != 1000000 || z.SyncRate != "100ms" || z.Own == 0 {
			t.Errorf("after a reload that failed for %s: %+v", after, z)
		}
	}
	eventually(t, "the syncs go on after a reload that failed for "+after, func() error {
		now, err := n.Status(t.Context())
		if err != nil || now.Redis == nil || !now.Redis.Up || now.Redis.Syncs <= before.Redis.Syncs {
			return fmt.Errorf("%+v, %v", now.Redis, err)
		}
		return nil
	})
}

// isBucket reports whether a cell is a bucket.
func isBucket(key string) bool {
	return strings.Contains(key, ":t-") || strings.Contains(key, ":g-") || strings.Contains(key, ":q-")
}

// unitsOf is what a field of a cell says that was admitted: of a node, or "sum". Of a bucket a
// former state of a node is in the sum alone.
func unitsOf(t *testing.T, key, field, text string) (n int) {
	t.Helper()
	words := strings.Fields(text)
	if len(words) < 4 {
		t.Fatalf("%s of %s is %q", field, key, text)
	}
	numbers := words[3:4]
	switch {
	case isBucket(key):
	case field == "sum": // older epochs are at the end
		numbers = slices.Concat(words[:1], words[5:])
	default: // the number of a node's message stands before
		numbers = slices.Concat(words[1:2], words[4:])
	}
	for _, word := range numbers {
		units, err := strconv.Atoi(word)
		if err != nil {
			t.Fatalf("%s of %s is %q", field, key, text)
		}
		n += units
	}
	return n
}
