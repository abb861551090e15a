package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrDown is the error of a call that was not made, as Redis did not answer lately.
var ErrDown = errors.New("redis did not answer lately")

// A DownError is ErrDown with its cause.
type DownError struct{ Cause error }

func (e *DownError) Error() string        { return fmt.Sprintf("%v: %v", ErrDown, e.Cause) }
func (e *DownError) Is(target error) bool { return target == ErrDown }

// A FarError says that Redis answers, but later than calls wait.
type FarError struct{ Took, Timeout time.Duration }

// Error is its text for logs. strict_timeout should have three round trips.
func (e *FarError) Error() string {
	return fmt.Sprintf("redis answers in %s, strict_timeout is %s; set strict_timeout to %s, or use a redis that is nearer",
		e.Took.Round(time.Millisecond), e.Timeout, (3 * e.Took).Round(10*time.Millisecond))
}

// A FileError says that a file that the user, the password or the URL stands in can't be read. It
// unwraps to nothing: the client passes on what an error wraps, and what is missing is no socket.
type FileError struct{ cause error }

func (e *FileError) Error() string {
	return fmt.Sprintf("can't %v; let Caddy's user read the file, or correct its path", e.cause)
}

// A Rejection is an error of the server that a script passes on in its reply.
type Rejection string

func (r Rejection) Error() string { return string(r) }

// RedisError makes it an error like those that the client returns.
func (Rejection) RedisError() {}

var _ redis.Error = Rejection("")

// IsLate reports whether an error says no more of Redis than that no answer came in time.
func IsLate(err error) bool {
	if down, ok := errors.AsType[*DownError](err); ok {
		return IsLate(down.Cause)
	}
	return is[*FarError](err) || IsQueued(err) || isTimeout(err)
}

// is reports whether an error is, or wraps, one of a type.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout()
}

// IsQueued reports whether there was no free connection.
func IsQueued(err error) bool {
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// IsForbidden reports whether the server's user may not do what was asked.
func IsForbidden(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	text := fmt.Sprint(reply)
	return ok && (strings.HasPrefix(text, "NOPERM") || isForbiddenInScript(text))
}

// isForbiddenInScript knows what Redis 7.0 says, and later ones.
func isForbiddenInScript(text string) bool {
	return strings.Contains(text, "The user executing the script can't") || strings.Contains(text, "ACL failure in script")
}

// replies are the errors that a server answers with, by their first words, and what to do about
// them.
var replies = []struct{ prefix, text string }{
	{"READONLY", "READONLY: this server is a replica; point the address at the master, or use mode failover"},
	{"LOADING", "LOADING: redis is reading its data from disk; wait, nothing need be done"},
	{"OOM", "OOM: redis has no memory left; raise maxmemory, and leave maxmemory-policy at noeviction"},
	{"BUSY", "BUSY: another script holds redis up; find it, SCRIPT KILL ends it"},
	{"NOAUTH", "NOAUTH: redis wants a password; set username and password"},
	{"ERR Protocol error: unauthenticated", "NOAUTH: redis wants a password; set username and password"},
	{"WRONGPASS", "WRONGPASS: redis rejects the user name or password; correct them"},
	{"NOPERM", "NOPERM: the redis user may not do this; give it the commands and the key pattern that the documentation lists"},
	{"CLUSTERDOWN", "CLUSTERDOWN: slots of the cluster have no master; bring its nodes up"},
	{"MASTERDOWN", "MASTERDOWN: the replica can't reach its master; bring the master up"},
	{"NOREPLICAS", "NOREPLICAS: redis has fewer replicas than min-replicas-to-write; bring replicas up"},
	{"MISCONF", "MISCONF: redis can't save its data and rejects writes; see its log, usually the disk is full"},
	{"TRYAGAIN", "TRYAGAIN: slots of the cluster are being moved; wait, nothing need be done"},
	{"MOVED", "MOVED: the server is part of a cluster; set mode cluster"},
	{"ASK", "ASK: the server is part of a cluster; set mode cluster"},
	{"CROSSSLOT", "CROSSSLOT: the server is part of a cluster; set mode cluster"},
	{"WRONGTYPE", "WRONGTYPE: another program uses a key of ours; give this one a namespace of its own"},
	{"NOSCRIPT", "NOSCRIPT: redis has dropped a script; it is sent again by itself"},
	{"NOPROTO", "NOPROTO: redis speaks RESP2 only; add protocol=2 to the URL"},
	{"ERR max number of clients", "redis has too many connections (maxclients); raise its maxclients, or lower pool_size"},
	{"ERR invalid password", "redis rejects the password; correct it"},
	{"ERR AUTH", "redis has no password set but got one; remove username and password"},
	{"ERR Client sent AUTH", "redis has no password set but got one; remove username and password"},
	{"ERR DB index", "redis has fewer databases than that; correct db"},
	{"ERR SELECT is not allowed", "the server is part of a cluster; set mode cluster and remove db"},
}

// Classify turns an error of the Redis client into a short text for logs: what happened and what to
// do. The text is the same for the same trouble, so it can be compared. It never holds a password,
// which some servers repeat in their errors.
func Classify(err error) string {
	if err == nil {
		return ""
	}
	if strings.Contains(fmt.Sprint(err), allSentinels) {
		return classifySentinels(err)
	}
	if text := classifyReply(err); text != "" {
		return text
	}
	return classifyNetwork(err)
}

// allSentinels is what the client says in plain text where no sentinel names a master. It wraps
// what each of them said.
const allSentinels = "all sentinels specified"

// classifySentinels says what keeps sentinels from naming the master, which have a user and a
// password of their own.
func classifySentinels(err error) string {
	text := classifyReply(err)
	switch {
	case strings.HasPrefix(text, "NOAUTH"):
		return "NOAUTH: the sentinels want a password of their own; set sentinel_password, and sentinel_username where they have users"
	case strings.HasPrefix(text, "WRONGPASS"):
		return "WRONGPASS: the sentinels reject sentinel_username or sentinel_password; correct them"
	case text != "":
		return "a sentinel says: " + text
	case is[x509.HostnameError](err):
		return "the certificate of a sentinel is for another name than tls_server_name, which is that of servers and sentinels; give both a certificate for it"
	}
	if text = classifyNetwork(err); text == ReasonUnreachable {
		return "no sentinel knows the master; check their addresses and master_name"
	}
	return "no sentinel can be asked: " + text
}

// classifyReply returns "" for what is not an answer of a server.
func classifyReply(err error) string {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok || errors.Is(err, redis.Nil) {
		return ""
	}
	text := inScript(fmt.Sprint(reply))
	_, forbidden, _ := strings.Cut(text, "permissions to run the '")
	if command, _, ok := strings.Cut(forbidden, "' command"); ok && !strings.ContainsAny(command, " '") {
		return fmt.Sprintf("NOPERM: the redis user may not run %s; give it the commands and the key pattern that the documentation lists", command)
	}
	for _, r := range replies {
		if strings.HasPrefix(text, r.prefix) {
			return r.text
		}
	}
	switch {
	case isForbiddenInScript(text):
		return "the redis user may not run a command that the scripts use; give it the commands that the documentation lists"
	case strings.Contains(text, "cluster support disabled"):
		return "the server is not part of a cluster; use mode simple"
	case strings.HasPrefix(text, "ERR unknown command"):
		return "redis doesn't know a command that is needed; use Redis 5 or later, or something that speaks its protocol in full"
	}
	code, _, _ := strings.Cut(text, " ")
	for _, c := range code {
		if c < 'A' || c > 'Z' {
			return "redis answers with an error; see its log"
		}
	}
	return "redis answers with an error, " + code + "; see its log"
}

// inScript returns the error of a command in a script as Redis has it since 7.0. Before, the line
// stands before it, twice where the command did not run: "ERR Error running script (call to
// f_1b3d): @user_script:7: @user_script: 7: -READONLY ...".
func inScript(text string) string {
	if strings.HasPrefix(text, "ERR Error running script") {
		_, text, _ = strings.Cut(text, ": ")
	}
	for strings.HasPrefix(text, "@user_script:") {
		_, text, _ = strings.Cut(text[len("@user_script:"):], ": ")
	}
	return strings.TrimPrefix(text, "-")
}

func classifyNetwork(err error) string {
	if down, ok := errors.AsType[*DownError](err); ok {
		return Classify(down.Cause)
	}
	if far, ok := errors.AsType[*FarError](err); ok {
		return far.Error()
	}
	if file, ok := errors.AsType[*FileError](err); ok {
		return file.Error()
	}
	switch {
	case errors.Is(err, ErrDown):
		return ReasonDown
	case is[*net.DNSError](err):
		return "the name of the redis server doesn't resolve; correct the address or the DNS"
	case is[x509.UnknownAuthorityError](err):
		return "the redis server's certificate is from an unknown authority; set tls_server_certs_path"
	case is[x509.HostnameError](err):
		return "the redis server's certificate is for another name; set tls_server_name"
	case is[x509.CertificateInvalidError](err):
		return "the redis server's certificate is not valid, perhaps expired; renew it"
	case is[tls.RecordHeaderError](err):
		return "the redis server doesn't speak TLS on this port; use redis:// in place of rediss://, or its TLS port"
	case is[tls.AlertError](err):
		return "the redis server rejects the TLS handshake; perhaps it wants tls_client_cert and tls_client_key"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused; start redis, or correct the address"
	case errors.Is(err, syscall.ENOENT):
		return "no such unix socket; start redis, or correct the path"
	case errors.Is(err, os.ErrPermission):
		return "permission denied; let this user write to the redis socket"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to the redis server; check the network and the address"
	case errors.Is(err, context.Canceled):
		return "given up: this node is shutting down or reloading"
	case errors.Is(err, redis.ErrClosed):
		return "the redis client is closed"
	case IsQueued(err):
		return "all connections to redis are busy; raise pool_size, or find what slows redis down"
	case isTimeout(err):
		return "timeout: redis did not answer in time; check its load, the network, and whether it speaks TLS on this port, or raise timeout, of strict zones strict_timeout"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return ReasonClosed
	}
	return ReasonUnreachable
}

// ReasonClosed is the text for a connection that the other side has closed: the next attempt often
// knows better why.
const ReasonClosed = "the connection to redis was closed (EOF); perhaps it restarts, wants TLS, has too many connections (maxclients), or is a proxy that doesn't know HELLO"

// ReasonUnreachable is the text where nothing else is known.
const ReasonUnreachable = "redis can't be reached; check address, network and its log"

// ReasonDown is the text for a call that was not made: why, somebody else knows, who asked before.
const ReasonDown = "redis did not answer lately; it is tried again by itself"
