package ratesync

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

func TestParseURL(t *testing.T) {
	for _, c := range []struct {
		url  string
		want Settings
	}{
		{"redis://localhost:6379/0", Settings{Mode: Simple, Addresses: []string{"localhost:6379"}}},
		{"redis://", Settings{Mode: Simple, Addresses: []string{"localhost:6379"}}},
		{"redis://h", Settings{Mode: Simple, Addresses: []string{"h:6379"}}},
		{"redis://[::1]", Settings{Mode: Simple, Addresses: []string{"[::1]:6379"}}},
		{"redis://:6380/5", Settings{Mode: Simple, Addresses: []string{"localhost:6380"}, DB: 5}},
		{"redis://u:p%40%2F%3A@h:1/2", Settings{Mode: Simple, Addresses: []string{"h:1"}, Username: "u", Password: "p@/:", DB: 2}},
		{"redis://:p,w@h", Settings{Mode: Simple, Addresses: []string{"h:6379"}, Password: "p,w"}},
		{"redis://u:a@b@h", Settings{Mode: Simple, Addresses: []string{"h:6379"}, Username: "u", Password: "a@b"}},
		{"rediss://h/?skip_verify=true", Settings{Mode: Simple, Addresses: []string{"h:6379"}, TLS: TLS{Enabled: true, Insecure: true}}},
		{"unix:///run/redis.sock?db=3", Settings{Mode: Simple, Addresses: []string{"/run/redis.sock"}, DB: 3}},
		{"unix://u:p@/run/redis.sock", Settings{Mode: Simple, Addresses: []string{"/run/redis.sock"}, Username: "u", Password: "p"}},
		{"redis://a:1,b:2,c", Settings{Mode: Cluster, Addresses: []string{"a:1", "b:2", "c:6379"}}},
		{"redis://u:p@a:1?addr=b:2&addr=c:3", Settings{Mode: Cluster, Addresses: []string{"a:1", "b:2", "c:3"}, Username: "u", Password: "p"}},
		{"redis://u:p@a, redis://u:p@b", Settings{Mode: Cluster, Addresses: []string{"a:6379", "b:6379"}, Username: "u", Password: "p"}},
		{
			"redis://u:p@a,b:2/1?master_name=m&sentinel_username=su&sentinel_password=sp",
			Settings{
				Mode: Failover, Addresses: []string{"a:26379", "b:2"}, Username: "u", Password: "p", DB: 1,
				MasterName: "m", SentinelUsername: "su", SentinelPassword: "sp",
			},
		},
		{"redis://h?pool_size=7&protocol=2&timeout=250ms", Settings{Mode: Simple, Addresses: []string{"h:6379"}, PoolSize: 7, Protocol: 2, Timeout: 250 * time.Millisecond}},
		{"redis://h?dial_timeout=1&read_timeout=3&write_timeout=2s", Settings{Mode: Simple, Addresses: []string{"h:6379"}, Timeout: 3 * time.Second}},
	} {
		got, err := ParseURL(c.url)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("ParseURL(%q) = %s, %v, want %s", c.url, show(got), err, show(c.want))
		}
	}
}

// show is all of Settings, which don't show their secrets by themselves.
func show(s Settings) string {
	type plain Settings
	return fmt.Sprintf("%+v", plain(s))
}

// TestParseURLErrorsShowNoPassword: an error says what to write and nothing of what may be secret.
func TestParseURLErrorsShowNoPassword(t *testing.T) {
	for _, url := range []string{
		"http://u:hunter2@h", "hunter2", "://hunter2", "redis://u:hunter2%zz@h", "redis://u:hunter2/x@h", "redis://u:hunter2?x@h", "redis://u:hunter2#x@h",
		"redis://u:hunter2@h:notaport", "redis://u:hunter2@h:99999", "redis://u:hunter2@h/notadb", "redis://u:hunter2@h?db=hunter2", "redis://u:p@h?hunter2=1",
		"redis://u:hunter2@h?sentinel_password=hunter2&db=x", "redis://u:hunter2@h?timeout=hunter2", "redis://u:hunter2@h?%zz=hunter2",
		"unix://hunter2", "unix://u:hunter2@", "unix://u:hunter2@rel/path", "redis://u:hunter2@a,redis://u:other@b",
		"redis://u:hunter2@a,b/3", "redis://u:hunter2@h?protocol=9", "redis://u:hunter2@h/-1", "redis://u:hun[ter2", "redis://u:hunter2@h?pool_size=-1",
		"redis://u:hunter2@h?max_retries=3", "redis://u: hunter2@h\x00", "redis://@hunter2@", "redis://h:hunter2", "redis://hunter2:hunter2",
	} {
		_, err := ParseURL(url)
		if err == nil {
			if !strings.Contains(url, "@hunter2@") && !strings.Contains(url, "\x00") {
				t.Errorf("ParseURL(%q) = nil, want an error", url)
			}
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseURL(%q) = %v: shows a secret", url, err)
		}
		if !strings.ContainsAny(err.Error(), ";,") {
			t.Errorf("ParseURL(%q) = %v: says no mend", url, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("redis://u:p@a,b:2/1?master_name=m")
	f.Add("unix://u:p@/s?db=1")
	f.Add("rediss://[::1]:1/0,rediss://x")
	f.Fuzz(func(t *testing.T, url string) {
		set, err := ParseURL(url)
		if err != nil {
			return
		}
		if len(set.Addresses) == 0 || set.Check() != nil {
			t.Fatalf("ParseURL(%q) = %s, which doesn't go together", url, show(set))
		}
	})
}

func TestSettingsShowNoSecret(t *testing.T) {
	set := Settings{
		Mode: Failover, Addresses: []string{"a:1"}, Username: "u", Password: "hunter2", MasterName: "m", SentinelPassword: "hunter2",
		TLS: TLS{Enabled: true, ClientKey: "hunter2"},
	}
	for _, text := range []string{set.Key(), fmt.Sprint(set), fmt.Sprintf("%+v", set), fmt.Sprintf("%#v", set), fmt.Sprintf("%v", &set), fmt.Sprintf("%s", []any{set})} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%q shows a secret", text)
		}
	}
}

func TestKeyTellsSettingsApart(t *testing.T) {
	base := Settings{Mode: Simple, Addresses: []string{"a:1"}}
	seen := map[string]string{base.Key(): "base"}
	other := base
	if base.Key() != other.Key() {
		t.Error("equal settings have different keys")
	}
	for name, change := range map[string]func(*Settings){
		"mode": func(s *Settings) { s.Mode = Cluster }, "address": func(s *Settings) { s.Addresses = []string{"a:2"} },
		"addresses": func(s *Settings) { s.Addresses = []string{"a:1", "a:2"} }, "user": func(s *Settings) { s.Username = "x" },
		"password": func(s *Settings) { s.Password = "x" }, "db": func(s *Settings) { s.DB = 1 }, "timeout": func(s *Settings) { s.Timeout = 1 },
		"pool": func(s *Settings) { s.PoolSize = 1 }, "protocol": func(s *Settings) { s.Protocol = 2 }, "master": func(s *Settings) { s.MasterName = "x" },
		"sentinel user": func(s *Settings) { s.SentinelUsername = "x" }, "sentinel password": func(s *Settings) { s.SentinelPassword = "x" },
		"tls": func(s *Settings) { s.TLS.Enabled = true }, "insecure": func(s *Settings) { s.TLS.Insecure = true },
		"server name": func(s *Settings) { s.TLS.ServerName = "x" }, "certs": func(s *Settings) { s.TLS.ServerCerts = "x" },
		"cert": func(s *Settings) { s.TLS.ClientCert = "x" }, "key": func(s *Settings) { s.TLS.ClientKey = "x" },
	} {
		s := base
		change(&s)
		if was, ok := seen[s.Key()]; ok {
			t.Errorf("settings with another %s have the key of %s", name, was)
		}
		seen[s.Key()] = name
	}
}

// TestClientDoesNoNetworkIO: caddy validate makes clients too.
func TestClientDoesNoNetworkIO(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, url := range []string{"redis://%s", "redis://%s,%[1]s", "redis://%s?master_name=m", "rediss://%s"} {
		set, err := ParseURL(fmt.Sprintf(url, l.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		c, err := set.Client()
		if err != nil {
			t.Fatal(err)
		}
		NewStrict(c, "test", time.Second).Close()
		c.Close()
	}
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := l.Accept(); err == nil {
		t.Error("a client connected before it was used")
	}
}

// TestClientNeverRetries: a repeated increment would count twice.
func TestClientNeverRetries(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	set, err := ParseURL("redis://" + proxy.Addr + "?timeout=100ms")
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, set)
	if err := c.Ping(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	proxy.Set(faultproxy.DropReplies)
	if err := c.Incr(context.Background(), "n").Err(); err == nil {
		t.Fatal("INCR = nil without a reply")
	}
	if got := server.Do("GET", "n"); got != "1" {
		t.Errorf("n = %v after one INCR whose reply was lost, want 1", got)
	}
}

func TestTLSConfigErrors(t *testing.T) {
	for _, set := range []TLS{
		{Enabled: true, ServerCerts: "no pem"}, {Enabled: true, ClientCert: "no pem", ClientKey: "hunter2"}, {Enabled: true, ClientKey: "hunter2"},
	} {
		_, err := Settings{Mode: Simple, Addresses: []string{"a:1"}, TLS: set}.Client()
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Client() = %v with %+v, want an error without the key", err, set)
		}
	}
}

// TestClassifyRealErrors provokes the errors of real servers and networks.
func TestClassifyRealErrors(t *testing.T) {
	server := redistest.Start(t, redistest.Password("hunter2"), redistest.User("app", "on >hunter2 ~* +ping"), redistest.Config("--databases", "4"))
	plain := redistest.Start(t)
	secure := redistest.Start(t, redistest.TLS(false))
	dead := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	hole := faultproxy.Start(t, server.Addr)
	hole.Set(faultproxy.Blackhole)
	cut := faultproxy.Start(t, server.Addr)
	cut.Set(faultproxy.HalfClose)
	for _, c := range []struct{ url, want string }{
		{"redis://" + server.Addr, "NOAUTH"},
		{"redis://:hunter2x@" + server.Addr, "WRONGPASS"},
		{"redis://app:hunter2@" + server.Addr, "NOPERM"},
		{"redis://:hunter2@" + server.Addr + "/9", "fewer databases"},
		{"redis://" + dead, "refused"},
		{"redis://no.such.host.invalid", "resolve"},
		{"redis://:hunter2@" + hole.Addr + "?timeout=100ms", "timeout"},
		{"redis://:hunter2@" + cut.Addr, "EOF"},
		{"unix:///no/such/socket", "no such unix socket"},
		{"rediss://" + server.Addr + "?timeout=100ms", "TLS"},
		{"rediss://" + secure.Addr, "unknown authority"},
		{"redis://" + secure.Addr, "wants TLS"},
		{"redis://" + dead + "?master_name=m", "refused"},
		{"redis://:hunter2@" + server.Addr + "?master_name=m", ""},
		{"redis://" + plain.Addr + "," + plain.Addr, "not part of a cluster"},
	} {
		t.Run(c.want, func(t *testing.T) {
			err := client(t, c.url).Set(context.Background(), "k", "v", 0).Err()
			got := Classify(err)
			if err == nil || !strings.Contains(got, c.want) {
				t.Errorf("Classify(%v) = %q, want %s", err, got, c.want)
			}
			if strings.Contains(got, "hunter2") || !strings.Contains(got, ";") {
				t.Errorf("Classify(%v) = %q, want a mend and no secret", err, got)
			}
		})
	}
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestClassifyReplies(t *testing.T) {
	for text, want := range map[string]string{
		"LOADING Redis is loading the dataset in memory":                                                          "LOADING",
		"BUSY Redis is busy running a script":                                                                     "BUSY",
		"CLUSTERDOWN Hash slot not served":                                                                        "CLUSTERDOWN",
		"MASTERDOWN Link with MASTER is down":                                                                     "MASTERDOWN",
		"NOREPLICAS Not enough good replicas to write":                                                            "NOREPLICAS",
		"ERR max number of clients reached":                                                                       "too many connections",
		"ERR unknown command 'AUTH', with args beginning with: 'hunter2'":                                         "doesn't know a command",
		"ERR The user executing the script can't run this command or subcommand script: hunter2, on @user_script": "may not run",
		"ERR something hunter2":                                                                                   "answers with an error",
		"hunter2 hunter2":                                                                                         "answers with an error",
		"WRONGTYPE Operation":                                                                                     "WRONGTYPE",
		"OOM command not allowed":                                                                                 "OOM",
		"MISCONF Redis is":                                                                                        "MISCONF",
		"TRYAGAIN Multiple keys":                                                                                  "TRYAGAIN",
		"READONLY You can't write":                                                                                "READONLY",
	} {
		got := Classify(fmt.Errorf("wrapped: %w", reply(text)))
		if !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
			t.Errorf("Classify(%q) = %q, want %s", text, got, want)
		}
	}
	if got := Classify(nil); got != "" {
		t.Errorf("Classify(nil) = %q", got)
	}
	for _, err := range []error{errors.New("x hunter2"), redis.Nil, context.Canceled, context.DeadlineExceeded, ErrDown, redis.ErrClosed} {
		if got := Classify(err); got == "" || strings.Contains(got, "hunter2") {
			t.Errorf("Classify(%v) = %q", err, got)
		}
	}
}

func TestClassifyTooManyClients(t *testing.T) {
	server := redistest.Start(t)
	server.Do("CONFIG", "SET", "maxclients", "1")
	idle := server.Client().Conn() // takes the only place
	defer idle.Close()
	_ = idle.Ping(context.Background())
	err := client(t, server.URL).Ping(context.Background()).Err()
	if got := Classify(err); !strings.Contains(got, "too many connections") { // or that it was cut, perhaps for that
		t.Errorf("Classify(%v) = %q, want too many connections", err, got)
	}
}
