package ratelimit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// redisOff is the URL for no Redis. It is for a default, as in {$REDIS_URL:off}.
const redisOff = "off"

// resolve replaces the placeholders, fills in defaults and checks the settings, without network I/O. Errors name the option and the
// mend, and never show a secret. empty says that an address is configured but comes out empty or off, which means no Redis.
func (r *Redis) resolve(repl *caddy.Replacer) (s ratesync.Settings, empty bool, err error) {
	known := r.replaced(repl)
	if known.URL != "" || r.URL != "" {
		if given := known.besidesURL(); given != "" {
			return s, false, fmt.Errorf("%s is given beside a URL, which can say the same; write it in one place", given)
		}
	}
	switch {
	case known.URL == redisOff:
		return s, true, nil
	case known.URL != "":
		s, err = ratesync.ParseURL(known.URL)
	case r.URL != "", known.isZero(), len(known.Address) == 0 && len(r.Address) > 0:
		return s, true, nil
	default:
		s, err = known.block()
	}
	if err != nil {
		return ratesync.Settings{}, false, err
	}
	if err := known.mode(&s); err != nil {
		return ratesync.Settings{}, false, err
	}
	if s.Timeout == 0 {
		s.Timeout = ratesync.DefaultTimeout
	}
	if err := known.tls(&s.TLS); err != nil {
		return ratesync.Settings{}, false, err
	}
	if strings.Contains(r.URL+r.Username+r.Password, "{file.") {
		s.Credentials = r.credentials
	}
	if err := s.Check(); err != nil {
		return ratesync.Settings{}, false, err
	}
	return s, false, nil
}

// credentials are the user and the password as the files that they stand in have them now: a secret that is rotated needs no reload.
func (r *Redis) credentials() (username, password string) {
	known := r.replaced(caddy.NewReplacer())
	if known.URL == "" {
		return known.Username, known.Password
	}
	s, err := ratesync.ParseURL(known.URL)
	if err != nil {
		return "", "" // which Redis refuses, and so it is tried again
	}
	return s.Username, s.Password
}

// replaced is a copy without placeholders. What is not a placeholder that Caddy knows stays: a password may hold braces.
func (r *Redis) replaced(repl *caddy.Replacer) *Redis {
	c := *r
	for _, field := range []*string{
		&c.URL, &c.Mode, &c.Username, &c.Password, &c.KeyPrefix, &c.MasterName, &c.SentinelUsername, &c.SentinelPassword,
		&c.TLSServerCertsPEM, &c.TLSServerCertsPath, &c.TLSClientCert, &c.TLSClientKey, &c.TLSServerName,
	} {
		*field = repl.ReplaceKnown(*field, "")
	}
	c.URL = strings.TrimSpace(c.URL)
	c.Address = nil
	for _, address := range r.Address {
		for one := range strings.SplitSeq(repl.ReplaceKnown(address, ""), ",") {
			if one = strings.TrimSpace(one); one != "" {
				c.Address = append(c.Address, one)
			}
		}
	}
	return &c
}

// isZero says that nothing is given but the prefix.
func (r *Redis) isZero() bool {
	return r.besidesURL() == "" && r.URL == "" && r.Mode == "" &&
		r.TLSServerCertsPEM+r.TLSServerCertsPath+r.TLSClientCert+r.TLSClientKey+r.TLSServerName == ""
}

// besidesURL names an option that is given and that a URL can say as well.
func (r *Redis) besidesURL() string {
	for _, o := range []struct {
		name  string
		given bool
	}{
		{"address", len(r.Address) > 0},
		{"username", r.Username != ""},
		{"password", r.Password != ""},
		{"db", r.DB != 0},
		{"timeout", r.Timeout != 0},
		{"master_name", r.MasterName != ""},
		{"sentinel_username", r.SentinelUsername != ""},
		{"sentinel_password", r.SentinelPassword != ""},
		{"tls_enabled", r.TLSEnabled},
		{"tls_insecure", r.TLSInsecure},
		{"pool_size", r.PoolSize != 0},
	} {
		if o.given {
			return o.name
		}
	}
	return ""
}

// block is the settings of the options without a URL.
func (r *Redis) block() (ratesync.Settings, error) {
	s := ratesync.Settings{
		Mode: ratesync.Simple, Username: r.Username, Password: r.Password, DB: r.DB,
		Timeout: time.Duration(r.Timeout), PoolSize: r.PoolSize,
		MasterName: r.MasterName, SentinelUsername: r.SentinelUsername, SentinelPassword: r.SentinelPassword,
		TLS: ratesync.TLS{Enabled: r.TLSEnabled, Insecure: r.TLSInsecure},
	}
	port := "6379"
	if r.MasterName != "" || r.Mode == string(ratesync.Failover) {
		s.Mode, port = ratesync.Failover, "26379"
	}
	if len(r.Address) == 0 {
		s.Addresses = []string{ratesync.WithPort("", port)}
	}
	for _, a := range r.Address {
		switch path, unix := strings.CutPrefix(a, "unix/"); {
		case strings.Contains(a, "@"):
			return s, errors.New("an address holds an @; write host:port only, and user and password in their own options")
		case strings.Contains(a, "://"):
			return s, errors.New("an address is a URL; write it as the argument of redis, in place of the block, or write host:port")
		case unix:
			a = path
		}
		address := ratesync.WithPort(a, port)
		if address == "" {
			return s, fmt.Errorf("address %q is not host:port; write localhost:6379, [::1]:6379 or the path of a socket such as /run/redis/redis.sock", a)
		}
		s.Addresses = append(s.Addresses, address)
	}
	return s, nil
}

// mode applies a mode that is given.
func (r *Redis) mode(s *ratesync.Settings) error {
	switch mode := ratesync.Mode(r.Mode); mode {
	case "":
	case ratesync.Simple, ratesync.Failover, ratesync.Cluster:
		s.Mode = mode
	default:
		return fmt.Errorf("mode %q is not known; write simple, failover or cluster", r.Mode)
	}
	return nil
}

// tls reads the certificates, so that a file that has changed means new connections.
func (r *Redis) tls(t *ratesync.TLS) (err error) {
	if !t.Enabled {
		if name := r.tlsOption(t); name != "" {
			return fmt.Errorf("%s has no effect without TLS; add tls_enabled, or write rediss:// in the URL", name)
		}
		return nil
	}
	if r.TLSServerCertsPEM != "" && r.TLSServerCertsPath != "" {
		return errors.New("tls_server_certs_pem and tls_server_certs_path are both given; remove one of them")
	}
	if (r.TLSClientCert != "") != (r.TLSClientKey != "") {
		return errors.New("tls_client_cert and tls_client_key belong together; give both, or neither")
	}
	t.ServerName, t.ServerCerts = r.TLSServerName, r.TLSServerCertsPEM
	if r.TLSServerCertsPath != "" {
		if t.ServerCerts, err = readCerts(r.TLSServerCertsPath); err != nil {
			return fmt.Errorf("tls_server_certs_path: %w", err)
		}
	}
	if t.ClientCert, err = pemOrFile(r.TLSClientCert); err != nil {
		return fmt.Errorf("tls_client_cert: %w", err)
	}
	if t.ClientKey, err = pemOrFile(r.TLSClientKey); err != nil {
		return fmt.Errorf("tls_client_key: %w", err)
	}
	_, err = t.Config()
	return err
}

// tlsOption names an option that is given and means TLS.
func (r *Redis) tlsOption(t *ratesync.TLS) string {
	switch {
	case t.Insecure && r.URL != "":
		return "skip_verify"
	case t.Insecure:
		return "tls_insecure"
	case r.TLSServerCertsPEM != "":
		return "tls_server_certs_pem"
	case r.TLSServerCertsPath != "":
		return "tls_server_certs_path"
	case r.TLSClientCert != "":
		return "tls_client_cert"
	case r.TLSClientKey != "":
		return "tls_client_key"
	case r.TLSServerName != "":
		return "tls_server_name"
	}
	return ""
}

// pemOrFile returns PEM as it is and reads what else is given as the path of a file.
func pemOrFile(s string) (string, error) {
	if s == "" || strings.Contains(s, "-----BEGIN ") {
		return s, nil
	}
	return readFile(s)
}

func readFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w; correct the path, or let the user that runs Caddy read the file", err)
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		return "", fmt.Errorf("%s is empty; put PEM there", path)
	}
	return string(text), nil
}

// readCerts reads a file, or all .pem, .crt and .cer files of a directory.
func readCerts(path string) (string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return readFile(path)
	}
	files, err := os.ReadDir(path)
	if err != nil {
		return "", fmt.Errorf("%w; let the user that runs Caddy read the directory", err)
	}
	var all strings.Builder
	for _, file := range files {
		if !slices.Contains([]string{".pem", ".crt", ".cer"}, filepath.Ext(file.Name())) {
			continue
		}
		text, err := readFile(filepath.Join(path, file.Name()))
		if err != nil {
			return "", err
		}
		all.WriteString(text + "\n")
	}
	if all.Len() == 0 {
		return "", fmt.Errorf("%s has no .pem, .crt or .cer file; put the certificates there, or name a file", path)
	}
	return all.String(), nil
}

// borrowClient takes the client of Caddy's global storage. It stays the storage's: nobody here closes it.
func borrowClient(ctx caddy.Context) (redis.UniversalClient, error) { return clientOf(ctx.Storage()) }

func clientOf(storage any) (redis.UniversalClient, error) {
	var client any
	switch s := storage.(type) {
	case interface{ GetClient() any }:
		client = s.GetClient()
	case interface{ GetClient() redis.UniversalClient }:
		client = s.GetClient()
	default:
		return nil, fmt.Errorf("redis storage: Caddy's storage (%T) doesn't lend its Redis client; write redis redis://localhost:6379/0 with the address of your Redis", storage)
	}
	c, ok := client.(redis.UniversalClient)
	if !ok || c == nil {
		return nil, fmt.Errorf("redis storage: what Caddy's storage lends (%T) is not a client of go-redis v9; write redis redis://localhost:6379/0 with the address of your Redis", client)
	}
	return c, nil
}
