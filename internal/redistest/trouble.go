package redistest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Trouble is a state of a real server in which it answers with an error.
type Trouble struct {
	Name string
	// Code is what the server answers with, and stands in the reason that is logged.
	Code       string
	options    []Option
	begin, end []string // commands, by a connection that was there before
	// prepare is called before begin, and ends what begin can't.
	prepare func(t *testing.T, r *Server, admin *redis.Conn)
	// since7 is a trouble that Redis knows since 7.0: before, scripts write with too few replicas,
	// and no option makes a server load slowly.
	since7 bool
	// async are commands that don't return while the trouble lasts.
	async []string
}

const killAll = "CLIENT KILL TYPE normal SKIPME yes"

// Troubles are all that the server can get into. They go by a user named app, with the password
// secret.
func Troubles() []Trouble {
	return slices.DeleteFunc(slices.Clone(troubles), func(c Trouble) bool { return c.since7 && before7() })
}

var troubles = []Trouble{
	{Name: "wrong password", Code: "WRONGPASS", begin: []string{"ACL SETUSER app resetpass >hunter3", killAll}, end: []string{"ACL SETUSER app >secret"}},
	{Name: "user switched off", Code: "WRONGPASS", begin: []string{"ACL SETUSER app off", killAll}, end: []string{"ACL SETUSER app on"}},
	{Name: "permission withdrawn", Code: "NOPERM", begin: []string{"ACL SETUSER app -evalsha -eval"}, end: []string{"ACL SETUSER app +evalsha +eval"}},
	{Name: "permission within scripts withdrawn", Code: "the redis user may not run", begin: []string{"ACL SETUSER app -hset"}, end: []string{"ACL SETUSER app +hset"}},
	{Name: "keys withdrawn", Code: "NOPERM", begin: []string{"ACL SETUSER app resetkeys ~other:*"}, end: []string{"ACL SETUSER app resetkeys ~*"}},
	{Name: "replica", Code: "READONLY", begin: []string{"REPLICAOF 127.0.0.1 1"}, end: []string{"REPLICAOF NO ONE"}},
	{Name: "replica without its master", Code: "MASTERDOWN", begin: []string{"CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"}, end: []string{"REPLICAOF NO ONE"}},
	{Name: "too few replicas", Code: "NOREPLICAS", since7: true, begin: []string{"CONFIG SET min-replicas-to-write 1"}, end: []string{"CONFIG SET min-replicas-to-write 0"}},
	{Name: "no memory", Code: "OOM", begin: []string{"CONFIG SET maxmemory 1"}, end: []string{"CONFIG SET maxmemory 0"}},
	{Name: "too many connections", Code: "maxclients", begin: []string{"CONFIG SET maxclients 1", killAll}, end: []string{"CONFIG SET maxclients 1000"}},
	{
		Name: "busy", Code: "BUSY", options: []Option{Config("--lua-time-limit", "20")},
		async: []string{"EVAL", "while true do end", "0"}, end: []string{"SCRIPT KILL"},
	},
	{
		Name: "loading", Code: "LOADING", since7: true,
		options: []Option{Config("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024")},
		prepare: func(_ *testing.T, r *Server, admin *redis.Conn) {
			r.Do("DEBUG", "POPULATE", 30_000)
			const µs = 20_000 // ten minutes in all
			admin.Do(context.Background(), "CONFIG", "SET", "key-load-delay", µs)
		},
		async: []string{"DEBUG", "RELOAD"}, end: []string{"CONFIG SET key-load-delay 0"},
	},
	{
		Name: "can't save", Code: "MISCONF",
		prepare: func(t *testing.T, r *Server, admin *redis.Conn) {
			dir := r.Do("CONFIG", "GET", "dir").(map[any]any)["dir"].(string)
			if err := os.MkdirAll(filepath.Join(dir, "dump.rdb", "full"), 0o700); err != nil {
				t.Fatal(err)
			}
			r.Do("CONFIG", "SET", "save", "3600 1")
			r.Do("BGSAVE")
			Eventually(t, "saving fails", func() bool {
				return strings.Contains(r.Do("INFO", "persistence").(string), "rdb_last_bgsave_status:err")
			})
		},
		end: []string{"CONFIG SET stop-writes-on-bgsave-error no"},
	},
}

// Server starts a server that can get into the trouble. Its URL is for the user that gets into it.
func (c *Trouble) Server(t *testing.T) (r *Server, url string) {
	t.Helper()
	r = Start(t, append(c.options, User("app", "on >secret ~* +@all"))...)
	return r, strings.Replace(r.URL, "://", "://app:secret@", 1)
}

// Begin gets a server into the trouble. The function that it returns ends it.
func (c *Trouble) Begin(t *testing.T, r *Server) (end func()) {
	t.Helper()
	admin := r.Client().Conn()
	done := c.start(t, r, admin)
	return func() {
		t.Helper()
		c.run(t, admin, c.end)
		<-done
		admin.Close()
	}
}

// start begins the trouble. What it returns is closed when a command that lasts as long has ended.
func (c *Trouble) start(t *testing.T, r *Server, admin *redis.Conn) chan struct{} {
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

func (c *Trouble) run(t *testing.T, admin *redis.Conn, commands []string) {
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
