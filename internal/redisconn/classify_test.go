package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

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
			var err error
			var got string
			redistest.Eventually(t, "a stall of the machine is not taken for the error", func() bool {
				err = client(t, c.url).Set(context.Background(), "k", "v", 0).Err()
				got = Classify(err)
				return strings.Contains(got, c.want) || !strings.HasPrefix(got, "timeout")
			})
			if err == nil || !strings.Contains(got, c.want) {
				t.Errorf("Classify(%v) = %q, want %s", err, got, c.want)
			}
			if strings.Contains(got, "hunter2") || !strings.Contains(got, ";") {
				t.Errorf("Classify(%v) = %q, want a mend and no secret", err, got)
			}
		})
	}
	// A server that wants a password reads no more than ten arguments before it has one.
	many := client(t, "redis://"+server.Addr).MGet(context.Background(), strings.Fields("a b c d e f g h i j k l")...).Err()
	if got := Classify(many); !strings.HasPrefix(got, "NOAUTH") {
		t.Errorf("Classify(%v) = %q, want NOAUTH", many, got)
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
		"ERR Error running script (call to f_1b3d): @user_script:7: WRONGTYPE Operation":                          "WRONGTYPE",
		"ERR Error running script (call to f_1b3d): @user_script:7: -OOM command not allowed":                     "OOM",
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

// What is about the whole server is an outage, also in a script of Redis before 7.0.
func TestIsSevere(t *testing.T) {
	const before7 = "ERR Error running script (call to f_1b3d): @user_script:7: "
	for text, want := range map[string]bool{
		"READONLY You can't write":                           true,
		"NOREPLICAS Not enough good replicas to write":       true,
		"ERR max number of clients reached":                  true,
		"BUSY Redis is busy running a script":                true,
		"WRONGTYPE Operation":                                false,
		"NOSCRIPT No matching script":                        false,
		before7 + "@user_script: 7: -READONLY You can't":     true,
		before7 + "-OOM command not allowed":                 true,
		before7 + "@user_script: 7: -MISCONF Redis is":       true,
		before7 + "WRONGTYPE Operation":                      false,
		before7 + "@user_script: 7: value is not an integer": false,
	} {
		if got := IsSevere(fmt.Errorf("wrapped: %w", reply(text))); got != want {
			t.Errorf("IsSevere(%q) = %v", text, got)
		}
	}
	for text, want := range map[string]bool{
		"WRONGTYPE Operation":           true,
		before7 + "WRONGTYPE Operation": true,
		"READONLY You can't write":      false,
	} {
		if got := IsWrongType(fmt.Errorf("wrapped: %w", reply(text))); got != want {
			t.Errorf("IsWrongType(%q) = %v", text, got)
		}
	}
	if !IsSevere(syscall.ECONNREFUSED) {
		t.Error("a server that can't be reached is no outage")
	}
}

// Errors of the network and of TLS, in the wrapping in which the client returns them, name what to
// change.
func TestClassifyNetwork(t *testing.T) {
	wrap := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	sentinels := func(err error) error {
		return fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", errors.Join(err, err))
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{x509.UnknownAuthorityError{}, "tls_server_certs_path"},
		{x509.HostnameError{Certificate: new(x509.Certificate), Host: "h"}, "tls_server_name"},
		{x509.CertificateInvalidError{Cert: new(x509.Certificate), Reason: x509.Expired}, "renew it"},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, "in place of rediss://"},
		{tls.AlertError(116), "tls_client_cert"}, // certificate required
		{wrap(syscall.EACCES), "let this user write"},
		{wrap(syscall.EHOSTUNREACH), "no route"},
		{wrap(syscall.ENETUNREACH), "no route"},
		{wrap(syscall.ECONNRESET), "was closed"},
		{redis.ErrPoolTimeout, "pool_size"},
		{redis.ErrPoolExhausted, "pool_size"},
		{errors.New("redis: all sentinels specified in configuration are unreachable"), "master_name"},
		{sentinels(Rejection("NOAUTH Authentication required.")), "set sentinel_password"},
		{sentinels(Rejection("WRONGPASS invalid username-password pair")), "reject sentinel_username or sentinel_password"},
		{sentinels(x509.HostnameError{Certificate: new(x509.Certificate), Host: "h"}), "give both a certificate"},
		{sentinels(wrap(syscall.ECONNREFUSED)), "no sentinel can be asked: connection refused"},
		{sentinels(redis.Nil), "master_name"},
		{Rejection("NOPERM User app has no permissions to run the 'zadd' command"), "may not run zadd;"},
		{Rejection("NOPERM this user has no permissions to run the 'hset' command or its subcommand"), "may not run hset;"},
		{Rejection("ERR ACL failure in script: User app has no permissions to run the 'del' command"), "may not run del;"},
		{Rejection("NOPERM No permissions to access a key"), "the key pattern"},
		{&DownError{Cause: wrap(syscall.ECONNREFUSED)}, "start redis"},
		{ErrDown, "tried again"},
	} {
		if got := Classify(fmt.Errorf("wrapped: %w", c.err)); !strings.Contains(got, c.want) {
			t.Errorf("Classify(%v) = %q, want %s", c.err, got, c.want)
		}
	}
	down := &DownError{Cause: wrap(syscall.ECONNREFUSED)}
	if text := down.Error(); !strings.Contains(text, ErrDown.Error()) || !strings.Contains(text, "connection refused") {
		t.Errorf("DownError.Error() = %q, want that Redis is down, and its cause", text)
	}
}

func TestClassifyTooManyClients(t *testing.T) {
	server := redistest.Start(t)
	idle := server.Client().Conn() // has the only place
	defer idle.Close()
	if err := idle.ConfigSet(context.Background(), "maxclients", "1").Err(); err != nil {
		t.Fatal(err)
	}
	err := client(t, server.URL).Ping(context.Background()).Err()
	// or that it was cut, perhaps for that
	if got := Classify(err); !strings.Contains(got, "too many connections") {
		t.Errorf("Classify(%v) = %q, want too many connections", err, got)
	}
}
