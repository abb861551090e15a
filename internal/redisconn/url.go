package redisconn

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// nextURL finds where one URL of a list ends and the next begins. A user name or a password
	// can't have a slash that is not escaped.
	nextURL = regexp.MustCompile(`,\s*(redis|rediss|unix)://`)
	// hostsIn finds the hosts of a URL, behind the last @ before its path.
	hostsIn = regexp.MustCompile(`(?s)^(\w+://(?:[^/?#]*@)?)([^/?#@]*)((?:[/?#].*)?)$`)
	// unescaped finds what net/url rejects in a password, and many have there.
	unescaped = regexp.MustCompile(`[^\w.~!$&'()*+,;=:@%/-]`)
)

// urlOptions are the options that a URL may have. To another one of go-redis, as how often it
// retries, the client doesn't listen.
var urlOptions = []string{
	"addr", "db", "master_name", "sentinel_username", "sentinel_password", "pool_size", "protocol", "skip_verify",
	"timeout", "dial_timeout", "read_timeout", "write_timeout",
}

// No error shows any part of the URL, which could belong to a password. Those of go-redis and of
// net/url do.
var (
	errScheme = errors.New("the URL must begin with redis://, rediss:// (with TLS) or unix://, as in redis://localhost:6379/0")
	errURL    = errors.New("the URL can't be read; write host:port with a port from 1 to 65535, as in redis://localhost:6379/0, an IPv6 address in brackets, as in redis://[::1]:6379/0, " +
		"and an @ before it where there is a password; percent-encode special characters in the user name and password (/ is %2F, @ is %40, : is %3A, # is %23, ? is %3F, % is %25)")
	errSocket = errors.New("a unix:// URL needs the absolute path of the socket, with three slashes: unix:///run/redis/redis.sock")
	errOption = errors.New("the URL has an option that has no effect here; known are addr, db, master_name, sentinel_username, sentinel_password, pool_size, protocol, timeout and skip_verify")
	errValue  = errors.New("the URL has a value that can't be read; write a number for the database, as in redis://localhost:6379/0, for pool_size and for protocol, " +
		"true or false for skip_verify, which needs rediss://, and a duration such as 1s for a timeout")
	errDiffer = errors.New("the URLs differ in more than their address; give user, password, database and options the same in each, or once: redis://user:password@host1,host2/0")
)

// ParseURL reads redis://, rediss:// (with TLS) and unix:// URLs as go-redis has them, with several
// hosts:
//
//	redis[s]://[<user>:<password>@]<host>[:<port>][,<host>[:<port>]…][/<db>][?<option>=<value>&…]
//	unix://[<user>:<password>@]/<path>[?db=<db>]
//
// Of urlOptions addr is one more address, and timeout the longest of it and of dial_timeout,
// read_timeout and write_timeout. Several addresses are a Cluster, with a master_name they are
// sentinels: go-redis has other functions for these, of which one takes the user and the password
// for the sentinels'. Whole URLs can be joined by commas as well, if they differ in their address
// only.
func ParseURL(text string) (all Settings, err error) {
	for i, one := range strings.Split(nextURL.ReplaceAllString(text, "\n$1://"), "\n") {
		s, err := parseOne(strings.TrimSpace(one))
		if err != nil {
			return Settings{}, err
		}
		if i > 0 {
			addresses := append(all.Addresses, s.Addresses...)
			all.Addresses, s.Addresses = nil, nil
			if all.Key() != s.Key() {
				return Settings{}, errDiffer
			}
			s.Addresses = addresses
		}
		all = s
	}
	return all.complete()
}

// complete fills in what follows from the rest, and checks that all of it goes together.
func (s Settings) complete() (Settings, error) {
	port := DefaultPort
	switch s.Mode = Simple; {
	case s.MasterName != "":
		s.Mode, port = Failover, DefaultSentinelPort
	case len(s.Addresses) > 1:
		s.Mode = Cluster
	}
	for i, a := range s.Addresses {
		if s.Addresses[i] = WithPort(a, port); s.Addresses[i] == "" {
			return Settings{}, errURL
		}
	}
	return s, s.Check()
}

// parseOne reads one URL that may have several hosts.
func parseOne(text string) (Settings, error) {
	if scheme, _, ok := strings.Cut(text, "://"); !ok || !slices.Contains([]string{"redis", "rediss", "unix"}, scheme) {
		return Settings{}, errScheme
	}
	m := hostsIn.FindStringSubmatch(text)
	if m == nil || strings.Contains(text, "#") {
		return Settings{}, errURL
	}
	hosts := strings.Split(m[2], ",")
	u, err := url.Parse(unescaped.ReplaceAllStringFunc(m[1], url.PathEscape) + hosts[0] + m[3])
	if err != nil || strings.Contains(u.Path, "@") { // the path begins in the password
		return Settings{}, errURL
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Settings{}, errURL
	}
	for name := range q {
		switch {
		case strings.Contains(name, "@"): // so does the query
			return Settings{}, errURL
		case !slices.Contains(urlOptions, name):
			return Settings{}, errOption
		}
	}
	s := Settings{
		Addresses:  slices.Concat(hosts, q["addr"]),
		MasterName: q.Get("master_name"), SentinelUsername: q.Get("sentinel_username"), SentinelPassword: q.Get("sentinel_password"),
	}
	for _, name := range []string{"addr", "master_name", "sentinel_username", "sentinel_password"} {
		q.Del(name)
	}
	if timeout := q.Get("timeout"); timeout != "" {
		q.Del("timeout")
		q.Set("pool_timeout", timeout) // which go-redis reads
	}
	if u.Scheme == "unix" {
		if u.Host != "" || len(u.Path) < 2 {
			return Settings{}, errSocket
		}
		s.Addresses[0] = u.Path
	}
	u.RawQuery = q.Encode()
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return Settings{}, errValue
	}
	s.Username, s.Password, s.DB, s.Protocol, s.PoolSize = o.Username, o.Password, o.DB, o.Protocol, o.PoolSize
	s.Timeout = max(0, o.PoolTimeout, o.DialTimeout, o.ReadTimeout, o.WriteTimeout)
	s.TLS = TLS{Enabled: o.TLSConfig != nil, Insecure: o.TLSConfig != nil && o.TLSConfig.InsecureSkipVerify}
	return s, nil
}
