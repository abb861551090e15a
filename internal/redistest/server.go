// Package redistest starts real Redis servers on loopback for tests.
package redistest

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// What the client writes to stderr for each failed attempt is what tests of a lost Redis expect.
func init() { logging.Disable() }

// Program is the server that tests start: redis-server, or what REDIS_SERVER names, such as the
// path of a valkey-server.
var Program = cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server")

// before7 is whether it is a Redis before 7.0.
var before7 = sync.OnceValue(func() bool {
	version, _ := exec.Command(Program, "--version").Output()
	return strings.HasPrefix(string(version), "Redis server v=6.")
})

// A Server is a redis-server of its own for one test. It stops when the test ends.
type Server struct {
	// Addr is host:port, or the path of a unix socket.
	Addr string
	// URL leads to it, without user and password.
	URL string
	// CA is the certificate authority of a server with TLS, in PEM; ClientCert and ClientKey are a
	// certificate from it.
	CA, ClientCert, ClientKey string

	t        testing.TB
	dir      string
	port     int
	user     string
	password string
	sentinel bool
	tls      *tls.Config
	secure   Option // that of TLS, nil without it
	args     []string
	env      []string
	cmd      *exec.Cmd
	exited   chan struct{}
	watch    *exec.Cmd
}

// Option is a choice for Start.
type Option func(*Server)

// Config adds arguments of redis-server, as in Config("--maxclients", "10").
func Config(args ...string) Option { return func(s *Server) { s.args = append(s.args, args...) } }

// Password protects the default user.
func Password(password string) Option {
	return func(s *Server) {
		s.password = password
		s.args = append(s.args, "--requirepass", password)
	}
}

// User adds a user by its ACL rules, as in User("app", "on >secret ~caddy:* +evalsha").
func User(name, rules string) Option {
	return func(s *Server) { s.args = append(append(s.args, "--user", name), strings.Fields(rules)...) }
}

// Allow gives a user of a sentinel rules. Sentinels have users since Redis 6.2; with one before,
// the test is skipped.
func (s *Server) Allow(user, rules string) {
	s.t.Helper()
	if before7() {
		s.t.Skip("sentinels have users since Redis 6.2")
	}
	args := []any{"ACL", "SETUSER", user}
	for rule := range strings.FieldsSeq(rules) {
		args = append(args, rule)
	}
	s.Do(args...)
}

// As makes the clients of the test another user than the default one, with any password.
func As(name string) Option { return func(s *Server) { s.user, s.password = name, "any" } }

// Unix listens on a unix socket in place of a port.
func Unix() Option {
	return func(s *Server) {
		s.Addr = filepath.Join(s.dir, "s")
		s.URL = "unix://" + s.Addr
		s.args = append(s.args, "--port", "0", "--unixsocket", s.Addr)
	}
}

// Start starts a server and waits until it answers. Where there is no redis-server the test is
// skipped, but fails in CI.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	need(t)
	s := &Server{t: t, dir: tempDir(t)}
	for _, o := range options {
		o(s)
	}
	if s.Addr == "" {
		s.listen(FreePort(t))
	}
	s.args = append([]string{
		"--save", "", "--appendonly", "no", "--dir", s.dir, "--logfile", filepath.Join(s.dir, "log"), "--bind", "127.0.0.1",
	}, s.args...)
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

func (s *Server) listen(port int) {
	s.port = port
	s.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	if s.tls != nil {
		s.URL = "rediss://" + s.Addr
		s.args = append(s.args, "--port", "0", "--tls-port", fmt.Sprint(port))
		return
	}
	s.URL = "redis://" + s.Addr
	s.args = append(s.args, "--port", fmt.Sprint(port))
}

// Kill ends the server at once, as kill -9 does: what it knew is gone.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.watch.Process.Kill()
	_ = s.watch.Wait()
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// Restart starts it again on the same address, ending it first if it runs, and waits until it
// answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Boot()
	s.Wait()
}

// Boot is Restart without the wait: a server with much data reads that first.
func (s *Server) Boot() {
	s.t.Helper()
	s.Kill()
	args := s.args
	if s.sentinel {
		args = append([]string{filepath.Join(s.dir, "sentinel.conf"), "--sentinel"}, args...)
	}
	s.cmd = exec.Command(Program, args...)
	s.cmd.Dir = s.dir
	s.cmd.Env = append(os.Environ(), s.env...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("starting redis-server: %v", err)
	}
	exited, cmd := make(chan struct{}), s.cmd
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	s.exited = exited
	s.watchOver()
}

// watchOver starts a process that ends the server if the test process dies without its cleanup: it
// waits for the end of a pipe.
func (s *Server) watchOver() {
	s.watch = exec.Command("sh", "-c", fmt.Sprintf("cat >/dev/null; kill -9 %d", s.cmd.Process.Pid))
	if _, err := s.watch.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	if err := s.watch.Start(); err != nil {
		s.t.Fatalf("starting sh: %v", err)
	}
}

// Wait returns when the server answers.
func (s *Server) Wait() {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	Eventually(s.t, "redis-server answers", func() bool {
		select {
		case <-s.exited:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.t.Fatalf("redis-server has ended: %s", log)
		default:
		}
		return c.Ping(context.Background()).Err() == nil
	})
}

// Client returns a client of the default user, or of the one that As named. It is closed when the
// test ends.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: s.Addr, Username: s.user, Password: s.password, TLSConfig: s.tls,
		MaxRetries: -1, DialerRetries: 1, DialTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second,
		PipelinePoolSize: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Do runs a command and fails the test if it fails.
func (s *Server) Do(args ...any) any {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil {
		s.t.Fatalf("redis: %v: %v", args, err)
	}
	return v
}

// try runs a command and returns "" if it fails, as it may while servers change their parts.
func (s *Server) try(args ...any) string {
	c := s.Client()
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil {
		return ""
	}
	return fmt.Sprint(v)
}

// Info is a number in a section of INFO, 0 if it isn't there.
func (s *Server) Info(section, name string) int {
	s.t.Helper()
	_, text, _ := strings.Cut(s.Do("INFO", section).(string), "\n"+name+":")
	text, _, _ = strings.Cut(text, "\r\n")
	n, _ := strconv.Atoi(text)
	return n
}

// Calls is how often the server has run a command since it started or since CONFIG RESETSTAT.
func (s *Server) Calls(command string) int {
	s.t.Helper()
	return int(s.stat(command, "calls"))
}

// TimeOf is how many microseconds a call of a command took on average, by the server's own measure.
func (s *Server) TimeOf(command string) float64 {
	s.t.Helper()
	return s.stat(command, "usec_per_call")
}

func (s *Server) stat(command, field string) float64 {
	s.t.Helper()
	_, stat, _ := strings.Cut(s.Do("INFO", "commandstats").(string), "cmdstat_"+command+":")
	stat, _, _ = strings.Cut(stat, "\r\n")
	for pair := range strings.SplitSeq(stat, ",") {
		if value, ok := strings.CutPrefix(pair, field+"="); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.t.Fatalf("redis: INFO commandstats: %v", err)
			}
			return n
		}
	}
	return 0
}

// given are the ports that FreePort has returned.
var given sync.Map

// FreePort returns a port that nobody listens on, and none twice: tests beside each other would
// both start a server there. It is below those that the system gives to connections and to who
// listens on any: a server that is stopped for a while finds it free again.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 11_000 + rand.IntN(21_000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = l.Close()
		if _, again := given.LoadOrStore(port, nil); !again {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// need skips the test where there is no redis-server.
func need(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath(Program); err == nil {
		return
	}
	mend := Program + " is not installed; for the tests with a real Redis: apt-get install redis-server"
	if os.Getenv("CI") != "" || os.Getenv("TIDE_REQUIRE_REDIS") == "1" {
		t.Fatal(mend)
	}
	t.Skip(mend)
}

// tempDir is like t.TempDir, but short: the path of a unix socket has 107 bytes at most.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tide")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// hostPort splits an address for commands that want it so.
func hostPort(addr string) []any {
	host, port, _ := net.SplitHostPort(addr)
	return slices.Clone([]any{host, port})
}
