// The options of a configuration that say how to reach Redis, which become settings and clients.

package redisconn

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// Off is the URL for no Redis. It serves as a default, as in {$REDIS_URL:off}.
const Off = "off"

// DefaultNamespace is the namespace where none is given.
const DefaultNamespace = "caddy"

// CheckNamespace reports what is wrong with the namespace of an app.
func CheckNamespace(name string) error {
	if strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c > '~' || c == '{' || c == '}' }) {
		return fmt.Errorf("namespace %q: write printable ASCII without braces, which say in a Redis Cluster where a key belongs", name)
	}
	return nil
}

// Options say how to reach Redis. Every string may hold {env.*} and {file.*} placeholders.
type Options struct {
	// URL is that of a server, or several separated by commas. No other option may stand beside it.
	// "off" is no Redis. Range: redis://, rediss:// or unix://. Default: none.
	URL string `json:"url,omitempty"`
	// Storage borrows the client of Caddy's global storage, if that is a Redis and lends it. The
	// others have no effect then. Default: false.
	Storage bool `json:"storage,omitempty"`
	// Mode is simple, one server; sentinel or failover, sentinels and the master they know; or
	// cluster. Default: simple; sentinel where master_name is set.
	Mode string `json:"mode,omitempty"`
	// Address holds a host and port, or the path of a unix socket; several of sentinels or a
	// cluster. Default: localhost:6379, of sentinels port 26379.
	Address []string `json:"address,omitempty"`
	// Username is the ACL user. Default: the default user.
	Username string `json:"username,omitempty"`
	// Password is that of the user, or of requirepass. Default: none.
	Password string `json:"password,omitempty"`
	// DB is the number of the database; a cluster has only 0. Range: 0 or more. Default: 0.
	DB int `json:"db,omitempty"`
	// Timeout bounds connecting, reading and writing, each. Default: 1s.
	Timeout caddy.Duration `json:"timeout,omitempty"`
	// MasterName is what the sentinels call the master. Default: none.
	MasterName string `json:"master_name,omitempty"`
	// SentinelUsername is the ACL user of the sentinels. Default: the default user.
	SentinelUsername string `json:"sentinel_username,omitempty"`
	// SentinelPassword is the password of the sentinels. Default: none.
	SentinelPassword string `json:"sentinel_password,omitempty"`
	// TLSEnabled turns TLS on, 1.2 or later. Default: false; true for a rediss:// URL.
	TLSEnabled bool `json:"tls_enabled,omitempty"`
	// TLSInsecure accepts any certificate of the server, for tests only. Default: false.
	TLSInsecure bool `json:"tls_insecure,omitempty"`
	// TLSServerCertsPath is a PEM file with the certificates to trust, or a directory of .pem, .crt
	// and .cer files. Default: the system's.
	TLSServerCertsPath string `json:"tls_server_certs_path,omitempty"`
	// TLSClientCert is this node's certificate: a file, or PEM. It needs tls_client_key. Default:
	// none.
	TLSClientCert string `json:"tls_client_cert,omitempty"`
	// TLSClientKey is its private key: a file, or PEM. Default: none.
	TLSClientKey string `json:"tls_client_key,omitempty"`
	// TLSServerName is the name in the server's certificate. Default: the host of the address.
	TLSServerName string `json:"tls_server_name,omitempty"`
	// PoolSize is how many connections are kept to each server. Range: 1 or more. Default: ten per
	// CPU, at least 40; half of that in a cluster.
	PoolSize int `json:"pool_size,omitempty"`
}

// Resolve replaces the placeholders, fills in defaults and checks the settings, without network
// I/O. It returns nil for no Redis: the address is off, or comes out empty. Errors name the option
// and the mend, and never show a secret.
func (o *Options) Resolve(repl *caddy.Replacer) (*Settings, error) {
	known := o.replaced(repl)
	if known.URL != "" || o.URL != "" {
		if given := known.given(besidesURL); given != "" {
			return nil, fmt.Errorf("%s is given beside a URL, which can say the same; write it in one place", given)
		}
	}
	var s Settings
	var err error
	switch {
	case known.URL == Off:
		return nil, nil
	case known.URL != "":
		s, err = ParseURL(known.URL)
	case o.URL != "", reflect.ValueOf(*known).IsZero(), len(known.Address) == 0 && len(o.Address) > 0:
		return nil, nil
	default:
		s, err = known.block()
	}
	if err != nil {
		return nil, err
	}
	if err := known.mode(&s); err != nil {
		return nil, err
	}
	s.Timeout = cmp.Or(s.Timeout, DefaultTimeout)
	if err := known.tls(&s.TLS); err != nil {
		return nil, err
	}
	if strings.Contains(o.URL+o.Username+o.Password, "{file.") {
		s.Credentials = o.credentials
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	return &s, nil
}

// IsOff reports whether Redis is off, and does not just come out empty.
func (o *Options) IsOff(repl *caddy.Replacer) bool { return o.replaced(repl).URL == Off }

// ResolveAsWritten does what Resolve does as far as that needs no placeholders and files: these are
// there only on the machine that the configuration is for. s is nil where they are needed, and
// where there will be no Redis: then empty is set.
func (o *Options) ResolveAsWritten() (s *Settings, empty bool, err error) {
	text, err := json.Marshal(o)
	if err != nil || o.Storage || bytes.Count(text, []byte("{")) > 1 {
		return nil, false, err
	}
	c := *o
	c.TLSServerCertsPath, c.TLSClientCert, c.TLSClientKey = "", "", ""
	s, err = c.Resolve(caddy.NewReplacer())
	return s, s == nil && err == nil, err
}

// replaced returns a copy without placeholders. What is not a placeholder that Caddy knows stays: a
// password may hold braces.
func (o *Options) replaced(repl *caddy.Replacer) *Options {
	c := *o
	for _, field := range reflect.ValueOf(&c).Elem().Fields() {
		if field.Kind() == reflect.String {
			field.SetString(repl.ReplaceKnown(field.String(), ""))
		}
	}
	c.URL = strings.TrimSpace(c.URL)
	c.Address = nil
	for _, address := range o.Address {
		for one := range strings.SplitSeq(repl.ReplaceKnown(address, ""), ",") {
			if one = strings.TrimSpace(one); one != "" {
				c.Address = append(c.Address, one)
			}
		}
	}
	return &c
}

// besidesURL are the options that a URL can say as well.
var besidesURL = []string{
	"address", "username", "password", "db", "timeout", "master_name", "sentinel_username", "sentinel_password",
	"tls_enabled", "tls_insecure", "pool_size",
}

// given returns the name of the first one of some options that is given, "" if none is.
func (o *Options) given(names []string) string {
	for field, value := range reflect.ValueOf(*o).Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if slices.Contains(names, name) && !value.IsZero() {
			return name
		}
	}
	return ""
}

// block returns the settings of the options without a URL.
func (o *Options) block() (Settings, error) {
	s := Settings{
		Mode: Simple, Username: o.Username, Password: o.Password, DB: o.DB,
		Timeout: time.Duration(o.Timeout), PoolSize: o.PoolSize,
		MasterName: o.MasterName, SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
		TLS: TLS{Enabled: o.TLSEnabled, Insecure: o.TLSInsecure},
	}
	port := DefaultPort
	if o.MasterName != "" || o.Mode == string(Failover) || o.Mode == sentinel {
		s.Mode, port = Failover, DefaultSentinelPort
	}
	if len(o.Address) == 0 {
		s.Addresses = []string{WithPort("", port)}
	}
	for _, a := range o.Address {
		switch path, unix := strings.CutPrefix(a, "unix/"); {
		case strings.Contains(a, "@"):
			return s, errors.New("an address holds an @; write host:port only, and user and password in their own options")
		case strings.Contains(a, "://"):
			return s, errors.New("an address is a URL; write it as the argument of redis, in place of the block, or write host:port")
		case unix:
			a = path
		}
		address := WithPort(a, port)
		if address == "" {
			return s, fmt.Errorf("address %q is not host:port; write localhost:6379, [::1]:6379 or the path of a socket such as /run/redis/redis.sock", a)
		}
		s.Addresses = append(s.Addresses, address)
	}
	return s, nil
}

// sentinel is another word for Failover.
const sentinel = "sentinel"

// mode applies the mode, if one is given.
func (o *Options) mode(s *Settings) error {
	switch mode := Mode(o.Mode); mode {
	case "":
	case sentinel:
		s.Mode = Failover
	case Simple, Failover, Cluster:
		s.Mode = mode
	default:
		return fmt.Errorf("mode %q is not known; write simple, sentinel or cluster", o.Mode)
	}
	return nil
}
