package redisconn

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nextURL finds where one URL of a list ends and the next begins. A user name or a password can't
// have a slash that is not escaped.
var nextURL = regexp.MustCompile(`,\s*(redis|rediss|unix)://`)

// ParseURL reads redis://, rediss:// (with TLS) and unix:// URLs as go-redis has them:
//
//	redis[s]://[<user>:<password>@]<host>[:<port>][,<host>[:<port>]…][/<db>][?<option>=<value>&…]
//	unix://[<user>:<password>@]/<path>[?db=<db>]
//
// Options: addr (one more address, may be repeated), db, master_name, sentinel_username,
// sentinel_password, pool_size, protocol, timeout (or the longest of dial_timeout, read_timeout and
// write_timeout), skip_verify. Several addresses are a Cluster, with a master_name they are
// sentinels. Whole URLs can be joined by commas as well, if they differ in their address only.
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
	return all.complete()
}

// complete fills in what follows from the rest, and checks that all of it goes together.
func (s Settings) complete() (Settings, error) {
	switch {
	case s.MasterName != "":
		s.Mode = Failover
	case len(s.Addresses) > 1:
		s.Mode = Cluster
	default:
		s.Mode = Simple
	}
	port := DefaultPort
	if s.Mode == Failover {
		port = DefaultSentinelPort
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

// errAddress returns what is wrong with an address of a URL. It does not show the address: where
// the @ is forgotten, that holds the password.
func errAddress(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err == nil && WithPort(host, DefaultPort) != "" {
		return errors.New("the URL's port is not a number from 1 to 65535; write host:port, as in redis://localhost:6379/0, and an @ before it where there is a password")
	}
	return errors.New("the URL's host can't be read; write host:port, as in redis://localhost:6379/0, and an IPv6 address in brackets, as in redis://[::1]:6379/0")
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
	if scheme != "unix" && cutShort(authority, path, query) || strings.Contains(path+query, "#") {
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
