package ratesync

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A trouble is a state of a real server in which it answers with an error.
type trouble struct {
	name string
	// code is what the server answers with, and stands in the reason that is logged.
	code       string
	options    []redistest.Option
	begin, end []string // commands, by a connection that was there before
	// prepare is called before begin, and ends what begin can't.
	prepare func(t *testing.T, r *redistest.Server, admin *redis.Conn)
	// async are commands that don't return while the trouble lasts.
	async []string
}

const killAll = "CLIENT KILL TYPE normal SKIPME yes"

var troubles = []trouble{
	{name: "wrong password", code: "WRONGPASS", begin: []string{"ACL SETUSER app resetpass >hunter3", killAll}, end: []string{"ACL SETUSER app >secret"}},
	{name: "user switched off", code: "WRONGPASS", begin: []string{"ACL SETUSER app off", killAll}, end: []string{"ACL SETUSER app on"}},
	{name: "permission withdrawn", code: "NOPERM", begin: []string{"ACL SETUSER app -evalsha -eval"}, end: []string{"ACL SETUSER app +evalsha +eval"}},
	{name: "permission within scripts withdrawn", code: "the redis user may not run a command", begin: []string{"ACL SETUSER app -hset"}, end: []string{"ACL SETUSER app +hset"}},
	{name: "keys withdrawn", code: "NOPERM", begin: []string{"ACL SETUSER app resetkeys ~other:*"}, end: []string{"ACL SETUSER app resetkeys ~*"}},
	{name: "replica", code: "READONLY", begin: []string{"REPLICAOF 127.0.0.1 1"}, end: []string{"REPLICAOF NO ONE"}},
	{name: "replica without its master", code: "MASTERDOWN", begin: []string{"CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"}, end: []string{"REPLICAOF NO ONE"}},
	{name: "too few replicas", code: "NOREPLICAS", begin: []string{"CONFIG SET min-replicas-to-write 1"}, end: []string{"CONFIG SET min-replicas-to-write 0"}},
	{name: "no memory", code: "OOM", begin: []string{"CONFIG SET maxmemory 1"}, end: []string{"CONFIG SET maxmemory 0"}},
	{name: "too many connections", code: "maxclients", begin: []string{"CONFIG SET maxclients 1", killAll}, end: []string{"CONFIG SET maxclients 1000"}},
	{
		name: "busy", code: "BUSY", options: []redistest.Option{redistest.Config("--lua-time-limit", "20")},
		async: []string{"EVAL", "while true do end", "0"}, end: []string{"SCRIPT KILL"},
	},
	{
		name: "loading", code: "LOADING",
		options: []redistest.Option{redistest.Config("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024")},
		prepare: func(_ *testing.T, r *redistest.Server, admin *redis.Conn) {
			r.Do("DEBUG", "POPULATE", 3000)
			admin.Do(context.Background(), "CONFIG", "SET", "key-load-delay", 800) // microseconds
		},
		async: []string{"DEBUG", "RELOAD"},
	},
	{
		name: "can't save", code: "MISCONF",
		prepare: func(t *testing.T, r *redistest.Server, admin *redis.Conn) {
			dir := r.Do("CONFIG", "GET", "dir").(map[any]any)["dir"].(string)
			if err := os.MkdirAll(filepath.Join(dir, "dump.rdb", "full"), 0o700); err != nil {
				t.Fatal(err)
			}
			r.Do("CONFIG", "SET", "save", "3600 1")
			r.Do("BGSAVE")
			redistest.Eventually(t, "saving fails", func() bool {
				return strings.Contains(r.Do("INFO", "persistence").(string), "rdb_last_bgsave_status:err")
			})
		},
		end: []string{"CONFIG SET stop-writes-on-bgsave-error no"},
	},
}

// Each trouble is told once with what to do, passes without a reload, and costs no count.
func TestTroublesAreToldOnceAndPass(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := redistest.Start(t, append(c.options, redistest.User("app", "on >secret ~* +@all"))...)
			admin := r.Client().Conn()
			defer admin.Close()
			url := strings.Replace(r.URL, "://", "://app:secret@", 1)
			n := startNode(t, clientOf(t, url), anHour, time.Second/2, wallClock) // so long a call may take, also on a busy machine
			s := strict(t, url)
			n.take("k", 3)
			n.knows("k", 3, 0)
			take(t, s, "strict", id(1), tenAnHour)
			redistest.Eventually(t, "the node is up", func() bool { return n.rep.Status().Nodes == 1 })

			done := c.start(t, r, admin)
			redistest.Eventually(t, "the trouble is told", func() bool { n.touch("k"); return n.told(fails) > 0 })
			if got := n.take("k", 2); got != 2 {
				t.Errorf("in trouble %d of 2 requests were admitted, want 2", got)
			}
			_, _, err := s.Take(context.Background(), "strict", []Rule{tenAnHour}, id(1), nil)
			if err == nil {
				t.Error("strict: Redis decided, want an error")
			}
			redistest.Eventually(t, "the status gives the reason", func() bool { n.touch("k"); return strings.Contains(fmt.Sprint(n.rep.Status().Failing), c.code) })
			failures := n.rep.Status().Failures
			redistest.Eventually(t, "it fails again and again", func() bool { n.touch("k"); return n.rep.Status().Failures > failures+2 })
			c.finish(t, admin)
			<-done
			n.knows("k", 5, 0)
			redistest.Eventually(t, "all is well", func() bool { n.touch("k"); return n.rep.Status().Up && !s.Down() && n.told(works) == n.told(fails) })
			take(t, s, "strict", id(1), tenAnHour)
			if odd := n.told("refuses some counts"); odd > 0 {
				t.Errorf("told %d times of another program's keys, which it is not", odd)
			}
			c.check(t, n)
			if text := fmt.Sprint(n.logs.All()); strings.Contains(text, "secret") || strings.Contains(text, "hunter3") {
				t.Errorf("the log shows a password: %s", text)
			}
		})
	}
}

const fails, works = "exchange with redis fails", "exchange with redis works again"

// check wants the trouble told once, with what to do. A machine that is busy may add timeouts, each told once as well.
func (c *trouble) check(t *testing.T, n *rnode) {
	t.Helper()
	own, timeouts := 0, 0
	for _, line := range n.logs.FilterMessageSnippet(fails).All() {
		why := line.ContextMap()["reason"].(string)
		switch {
		case strings.Contains(why, c.code):
			own++
		case strings.Contains(why, "timeout"):
			timeouts++
		default:
			t.Errorf("the reason is %q, want %s", why, c.code)
		}
		if !strings.Contains(why, ";") || line.ContextMap()["code"] != warning.SyncFails {
			t.Errorf("told %v, want what to do, and a code", line.ContextMap())
		}
	}
	if own > 1 || own == 0 && timeouts == 0 {
		t.Errorf("told %d times of %s and %d times of timeouts, want once: %v", own, c.code, timeouts, n.logs.All())
	}
}

// told counts the lines with a text.
func (n *rnode) told(text string) int { return n.logs.FilterMessageSnippet(text).Len() }

// start begins the trouble. What it returns is closed when a command that lasts as long has ended.
func (c *trouble) start(t *testing.T, r *redistest.Server, admin *redis.Conn) chan struct{} {
	t.Helper()
	if c.prepare != nil {
		c.prepare(t, r, admin)
	}
	c.run(t, admin, c.begin)
	done := make(chan struct{})
	client := r.Client()
	client.Options().ReadTimeout = time.Minute
	go func() {
		defer close(done)
		if c.async != nil {
			args := make([]any, len(c.async))
			for i, word := range c.async {
				args[i] = word
			}
			client.Do(context.Background(), args...) // ends with an error where it is killed
		}
	}()
	return done
}

func (c *trouble) finish(t *testing.T, admin *redis.Conn) {
	t.Helper()
	c.run(t, admin, c.end)
}

func (c *trouble) run(t *testing.T, admin *redis.Conn, commands []string) {
	t.Helper()
	for _, command := range commands {
		var args []any
		for word := range strings.FieldsSeq(command) {
			args = append(args, word)
		}
		if err := admin.Do(context.Background(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
}

// That a connection was closed is told only if the next attempt doesn't know better.
func TestAClosedConnectionIsNoReason(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	r := NewReplicator(nil, "test", time.Second, wallClock, zap.New(core))
	r.note(nil, "z", io.EOF)
	if logs.Len() != 0 || r.Status().Up {
		t.Errorf("after a closed connection: logged %v, up %t, want nothing yet, and down", logs.All(), r.Status().Up)
	}
	r.note(nil, "z", nil)
	if logs.Len() != 0 || !r.Status().Up {
		t.Errorf("after the next attempt: logged %v, up %t, want nothing, and up", logs.All(), r.Status().Up)
	}
	r.note(nil, "z", io.EOF)
	for range 3 {
		r.note(nil, "z", reply("WRONGPASS invalid username-password pair"))
	}
	r.note(nil, "z", nil)
	if all := logs.All(); len(all) != 2 || !strings.HasPrefix(all[0].ContextMap()["reason"].(string), "WRONGPASS") {
		t.Errorf("logged %v, want once that the password is refused, and once that all is well", all)
	}
	r.health.warnedAt = r.health.warnedAt.Add(-warnRate) // another outage, later
	r.note(nil, "z", io.EOF)
	r.health.since = r.health.since.Add(-2 * minWait)
	r.note(nil, "z", io.EOF)
	if all := logs.All(); len(all) != 3 || all[2].ContextMap()["reason"] != redisconn.ReasonClosed {
		t.Errorf("logged %v, want one more line, as connections are closed over and over", all)
	}
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}
