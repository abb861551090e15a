package ratesync

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Mode is what kind of service the addresses lead to.
type Mode string

const (
	Simple   Mode = "simple"   // one server
	Failover Mode = "failover" // sentinels, which know the master
	Cluster  Mode = "cluster"  // nodes of a Redis Cluster
)

const (
	// DefaultAddress is where Redis listens unless told otherwise.
	DefaultAddress = "localhost:6379"
	// DefaultTimeout bounds connecting, reading and writing, each.
	DefaultTimeout = time.Second

	defaultPort         = "6379"
	defaultSentinelPort = "26379"
)

// Settings say how to reach Redis. They hold everything that was read from files, so that equal Settings mean equal connections.
// They print as their addresses: no secret gets into a log by way of %v.
type Settings struct {
	Mode Mode
	// Addresses are host:port, or the absolute path of a unix socket.
	Addresses []string
	Username  string
	Password  string
	// Credentials gives the user and the password of each new connection, in place of Username and Password, where they can change.
	Credentials func() (username, password string)
	DB          int
	// Timeout bounds connecting, reading and writing, each. 0 stands for DefaultTimeout.
	Timeout time.Duration
	// PoolSize is how many connections are kept to one server, 0 for ten per CPU.
	PoolSize int
	// Protocol is the version of RESP, 2 or 3. 0 stands for 3.
	Protocol int

	MasterName       string
	SentinelUsername string
	SentinelPassword string

	TLS TLS
}

// TLS says how connections are secured.
type TLS struct {
	Enabled bool
	// Insecure accepts every certificate.
	Insecure bool
	// ServerName is the name in the server's certificate. Default: the host of the address.
	ServerName string
	// ServerCerts are the certificates to trust in place of the system's, in PEM.
	ServerCerts string
	// ClientCert and ClientKey, in PEM, prove who this node is.
	ClientCert string
	ClientKey  string
}

// String is the addresses and the database, without anything secret.
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

// Key is the same for equal settings and differs for others. It shows no secret: they go into a hash.
func (s Settings) Key() string {
	h := sha256.New()
	for _, part := range []string{
		string(s.Mode), s.Username, s.Password, s.Timeout.String(), strconv.Itoa(s.PoolSize), strconv.Itoa(s.Protocol),
		s.MasterName, s.SentinelUsername, s.SentinelPassword, strconv.FormatBool(s.TLS.Insecure), s.TLS.ServerName,
		s.TLS.ServerCerts, s.TLS.ClientCert, s.TLS.ClientKey,
	} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return s.String() + "#" + hex.EncodeToString(h.Sum(nil)[:16])
}

// Client makes a client and does no network I/O. It never retries by itself: a repeated increment counts twice, and the exchange has its own
// backoff. It sends nothing on a new connection but HELLO (or AUTH) and SELECT, which a restricted user may.
func (s Settings) Client() (redis.UniversalClient, error) {
	timeout := s.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	o := redis.UniversalOptions{
		Addrs: s.Addresses, DB: s.DB, Protocol: s.Protocol,
		Username: s.Username, Password: s.Password, CredentialsProvider: s.Credentials,
		MasterName: s.MasterName, SentinelUsername: s.SentinelUsername, SentinelPassword: s.SentinelPassword,
		IsClusterMode: s.Mode == Cluster,
		MaxRetries:    -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
		PoolSize: s.PoolSize, PipelinePoolSize: -1,
		FailingTimeoutSeconds: 1, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 10 * time.Millisecond,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	var err error
	if o.TLSConfig, err = s.TLS.Config(); err != nil {
		return nil, err
	}
	o.Dialer = dialer(timeout, o.TLSConfig)
	if s.Mode == Failover {
		return redis.NewFailoverClient(o.Failover()), nil // switches maintenance notifications off by itself
	}
	return redis.NewUniversalClient(&o), nil
}

// Config is nil where TLS is off.
func (t TLS) Config() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure}
	if t.ServerCerts != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(t.ServerCerts)) {
			return nil, errors.New("tls server certificates hold no certificate; give them in PEM (-----BEGIN CERTIFICATE-----)")
		}
	}
	if t.ClientCert != "" || t.ClientKey != "" {
		pair, err := tls.X509KeyPair([]byte(t.ClientCert), []byte(t.ClientKey))
		if err != nil {
			return nil, fmt.Errorf("tls client certificate and key: %w; both must be given in PEM and belong together", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// nextURL finds where one URL of a list ends and the next begins. A slash can't stand unescaped in a user name or password.
var nextURL = regexp.MustCompile(`,\s*(redis|rediss|unix)://`)

// ParseURL reads redis://, rediss:// (with TLS) and unix:// URLs as go-redis has them:
//
//	redis[s]://[<user>:<password>@]<host>[:<port>][,<host>[:<port>]…][/<db>][?<option>=<value>&…]
//	unix://[<user>:<password>@]/<path>[?db=<db>]
//
// Options: addr (one more address, may be repeated), db, master_name, sentinel_username, sentinel_password, pool_size, protocol, timeout
// (or the longest of dial_timeout, read_timeout and write_timeout), skip_verify. Several addresses are a Cluster,
// with a master_name they are sentinels. Whole URLs can be joined by commas as well, if they differ in their address only.
//
// No error shows any part of the URL that could belong to a password.
func ParseURL(s string) (Settings, error) {
	var all Settings
	for first := true; s != ""; first = false {
		one := s
		s = ""
		if at := nextURL.FindStringIndex(one); at != nil {
			one, s = one[:at[0]], strings.TrimLeft(one[at[0]:], ", \t")
		}
		set, err := parseOne(strings.TrimSpace(one))
		if err != nil {
			return Settings{}, err
		}
		if !first {
			addresses := append(all.Addresses, set.Addresses...)
			all.Addresses, set.Addresses = nil, nil
			if all.Key() != set.Key() {
				return Settings{}, errors.New("the URLs differ in more than their address; give user, password, database and options the same in each, or once: redis://user:password@host1,host2/0")
			}
			set.Addresses = addresses
		}
		all = set
	}
	return all.settle()
}

// settle fills in what follows from the rest and checks what doesn't go together.
func (s Settings) settle() (Settings, error) {
	switch {
	case s.MasterName != "":
		s.Mode = Failover
	case len(s.Addresses) > 1:
		s.Mode = Cluster
	default:
		s.Mode = Simple
	}
	port := defaultPort
	if s.Mode == Failover {
		port = defaultSentinelPort
	}
	if len(s.Addresses) == 0 {
		s.Addresses = []string{""}
	}
	s.Addresses = slices.Clone(s.Addresses)
	for i, a := range s.Addresses {
		if s.Addresses[i] = WithPort(a, port); s.Addresses[i] == "" {
			return Settings{}, errAddress(a)
		}
	}
	return s, s.Check()
}

// errAddress says what is wrong with an address of a URL, without showing it: where the @ is
// forgotten, it holds the password.
func errAddress(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err == nil && WithPort(host, defaultPort) != "" {
		return errors.New("the URL's port is not a number from 1 to 65535; write host:port, as in redis://localhost:6379/0, and an @ before it where there is a password")
	}
	return errors.New("the URL's host can't be read; write host:port, as in redis://localhost:6379/0, and an IPv6 address in brackets, as in redis://[::1]:6379/0")
}

// Check says what doesn't go together, and the mend.
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
		return fmt.Errorf("pool_size %d is negative; leave it out for ten connections per CPU", s.PoolSize)
	case s.Protocol != 0 && s.Protocol != 2 && s.Protocol != 3:
		return fmt.Errorf("protocol %d is not known; write 2 or 3", s.Protocol)
	}
	return nil
}

// WithPort completes an address: localhost where the host is missing, port where the port is. Absolute paths are unix sockets and stay as they are.
// It returns "" for what can't be an address.
func WithPort(address, port string) string {
	if strings.HasPrefix(address, "/") {
		return address
	}
	host := address
	if h, p, err := net.SplitHostPort(address); err == nil {
		host = h
		if p != "" {
			port = p
		}
	} else if strings.HasPrefix(address, "[") && strings.HasSuffix(address, "]") {
		host = address[1 : len(address)-1]
	} else if strings.Contains(address, ":") && net.ParseIP(address) == nil {
		return ""
	}
	if host == "" {
		host = "localhost"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strings.ContainsAny(host, "@/?#,{}[] \t\r\n") {
		return ""
	}
	return net.JoinHostPort(host, port)
}

var errPassword = errors.New("the URL can't be read; percent-encode special characters in the user name and password (/ is %2F, @ is %40, : is %3A, # is %23, ? is %3F, % is %25)")

// parseOne reads one URL that may have several hosts.
func parseOne(s string) (Settings, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || (scheme != "redis" && scheme != "rediss" && scheme != "unix") {
		return Settings{}, errors.New("the URL must begin with redis://, rediss:// (with TLS) or unix://, as in redis://localhost:6379/0")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, rest := rest[:end], rest[end:]
	path, query, _ := strings.Cut(rest, "?")
	var set Settings
	set.TLS.Enabled = scheme == "rediss"
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		if err := set.parseUser(authority[:at]); err != nil {
			return Settings{}, err
		}
	}
	if cutShort(authority, path, query) && scheme != "unix" {
		return Settings{}, errPassword
	}
	if strings.Contains(path, "#") || strings.Contains(query, "#") {
		return Settings{}, errPassword
	}
	if scheme == "unix" {
		p, err := url.PathUnescape(path)
		if err != nil || hosts != "" || len(p) < 2 {
			return Settings{}, errors.New("a unix:// URL needs the absolute path of the socket, with three slashes: unix:///run/redis/redis.sock")
		}
		set.Addresses = []string{p}
	} else {
		set.Addresses = strings.Split(hosts, ",")
		if path = strings.Trim(path, "/"); path != "" {
			db, err := strconv.Atoi(path)
			if err != nil {
				return Settings{}, errors.New("the URL's path is not the number of a database, as in redis://localhost:6379/0")
			}
			set.DB = db
		}
	}
	return set, set.parseOptions(query)
}

// cutShort reports whether a special character has cut the user name or password short: the @ that
// ends them stands too late then.
func cutShort(authority, path, query string) bool {
	if !strings.Contains(authority, "@") {
		return strings.Contains(path+query, "@")
	}
	name, _, _ := strings.Cut(query, "=")
	return strings.Contains(path+name, "@")
}

func (s *Settings) parseUser(text string) (err error) {
	user, password, _ := strings.Cut(text, ":")
	if s.Username, err = url.PathUnescape(user); err != nil {
		return errPassword
	}
	if s.Password, err = url.PathUnescape(password); err != nil {
		return errPassword
	}
	return nil
}

func (s *Settings) parseOptions(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errPassword
	}
	for name, all := range values {
		value := all[len(all)-1]
		switch name {
		case "addr":
			s.Addresses = append(s.Addresses, all...)
		case "master_name":
			s.MasterName = value
		case "sentinel_username":
			s.SentinelUsername = value
		case "sentinel_password":
			s.SentinelPassword = value
		case "db":
			s.DB, err = strconv.Atoi(value)
		case "pool_size":
			s.PoolSize, err = strconv.Atoi(value)
		case "protocol":
			s.Protocol, err = strconv.Atoi(value)
		case "skip_verify":
			s.TLS.Insecure, err = strconv.ParseBool(value)
		case "timeout", "dial_timeout", "read_timeout", "write_timeout":
			var d time.Duration
			d, err = parseTimeout(value)
			s.Timeout = max(s.Timeout, d)
		default:
			return errors.New("the URL has an option that has no effect here; known are addr, db, master_name, sentinel_username, sentinel_password, pool_size, protocol, timeout and skip_verify")
		}
		if err != nil {
			return fmt.Errorf("the URL's option %s has a value that can't be read; write a number for db, pool_size and protocol, true or false for skip_verify, a duration such as 1s for a timeout", name)
		}
	}
	return nil
}

// parseTimeout reads a duration, or a number of seconds as go-redis does.
func parseTimeout(s string) (time.Duration, error) {
	if n, err := strconv.Atoi(s); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(s)
}
