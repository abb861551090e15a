// Package redisconn connects to Redis: the settings of a connection, their URL, TLS, dialing, and
// errors as short texts. It knows nothing of Caddy and nothing of what is sent.
package redisconn

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Mode is the kind of service that the addresses lead to.
type Mode string

const (
	Simple   Mode = "simple"   // one server
	Failover Mode = "failover" // sentinels, which know the master
	Cluster  Mode = "cluster"  // nodes of a Redis Cluster
)

const (
	// DefaultTimeout bounds connecting, reading and writing, each.
	DefaultTimeout = time.Second
	// DefaultPort is where Redis listens unless told otherwise.
	DefaultPort = "6379"
	// DefaultSentinelPort is where a sentinel listens unless told otherwise.
	DefaultSentinelPort = "26379"
)

// Settings say how to reach Redis. They hold everything that was read from files, so that equal
// Settings mean equal connections. They print as their addresses: no secret gets into a log by way
// of %v.
type Settings struct {
	Mode Mode
	// Addresses are host:port, or the absolute path of a unix socket.
	Addresses []string
	Username  string
	Password  string
	// Credentials returns the user and the password of each new connection, in place of Username
	// and Password. It is nil where these can't change.
	Credentials func(context.Context) (username, password string, err error)
	// DB is the number of the database, 0 or more. A Cluster has only 0.
	DB int
	// Timeout bounds connecting, reading and writing, each. 0 stands for DefaultTimeout.
	Timeout time.Duration
	// PoolSize is how many connections are kept to one server at most. 0 stands for ten per CPU,
	// and 40 at least.
	PoolSize int
	// Protocol is the version of RESP, 2 or 3. 0 stands for 3.
	Protocol int

	// MasterName is what the sentinels know the master by. It is for Failover only.
	MasterName string
	// SentinelUsername and SentinelPassword are for the sentinels, those above for the master.
	SentinelUsername string
	SentinelPassword string

	TLS TLS
}

// String returns the addresses and the database, without anything secret.
func (s Settings) String() string {
	scheme := "redis"
	if s.TLS.Enabled {
		scheme = "rediss"
	}
	text := fmt.Sprintf("%s://%s/%d", scheme, strings.Join(s.Addresses, ","), s.DB)
	if len(s.Addresses) == 1 && strings.HasPrefix(s.Addresses[0], "/") {
		text = fmt.Sprintf("unix://%s?db=%d", s.Addresses[0], s.DB)
	}
	if s.MasterName != "" {
		text += " master " + s.MasterName
	}
	return text
}

// GoString is String: %#v must not show a password either.
func (s Settings) GoString() string { return s.String() }

// Key returns a text that is the same for equal settings and differs for others. It shows no
// secret: they go into a hash.
func (s Settings) Key() string {
	type plain Settings // which prints in full
	p := plain(s)
	p.Credentials = nil
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", p))
	return s.String() + "#" + hex.EncodeToString(sum[:16])
}

// Check reports settings that don't go together, and the mend.
func (s Settings) Check() error {
	unix := slices.ContainsFunc(s.Addresses, func(a string) bool { return strings.HasPrefix(a, "/") })
	switch {
	case s.Mode == Cluster && s.DB != 0:
		return fmt.Errorf("database %d: a Redis Cluster has only database 0; remove the number, or name one server only", s.DB)
	case s.Mode == Failover && s.MasterName == "":
		return errors.New("mode failover needs master_name, the name that the sentinels know the master by")
	case s.Mode != Failover && s.MasterName != "":
		return fmt.Errorf("master_name is for mode failover only, not for %s; remove one of the two", s.Mode)
	case s.Mode == Simple && len(s.Addresses) > 1:
		return fmt.Errorf("%d addresses in mode simple; name one server, or say which service they are: mode cluster, or failover with master_name", len(s.Addresses))
	case unix && s.Mode != Simple:
		return fmt.Errorf("a unix socket leads to one server and can't be used in mode %s", s.Mode)
	case unix && s.TLS.Enabled:
		return errors.New("TLS is not used on a unix socket; remove one of the two")
	case s.DB < 0:
		return fmt.Errorf("database %d is negative; write 0 or more", s.DB)
	case s.Timeout < 0:
		return fmt.Errorf("timeout %s is negative; write a duration such as 1s", s.Timeout)
	case s.PoolSize < 0:
		return fmt.Errorf("pool_size %d is negative; leave it out for ten connections per CPU and 40 at least", s.PoolSize)
	case s.Protocol != 0 && s.Protocol != 2 && s.Protocol != 3:
		return fmt.Errorf("protocol %d is not known; write 2 or 3", s.Protocol)
	}
	return nil
}

// WithPort completes an address: with localhost where the host is missing, and with port where the
// port is. An absolute path is a unix socket and stays as it is. WithPort returns "" for what can't
// be an address.
func WithPort(address, port string) string {
	if strings.HasPrefix(address, "/") {
		return address
	}
	host := address
	if h, p, err := net.SplitHostPort(address); err == nil {
		host, port = h, cmp.Or(p, port)
	} else if strings.HasPrefix(address, "[") && strings.HasSuffix(address, "]") {
		host = address[1 : len(address)-1]
	} else if strings.Contains(address, ":") && net.ParseIP(address) == nil {
		return ""
	}
	host = cmp.Or(host, "localhost")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strings.ContainsAny(host, "@/?#,{}[] \t\r\n") {
		return ""
	}
	return net.JoinHostPort(host, port)
}
