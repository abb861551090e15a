package redisconn

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

func TestResolve(t *testing.T) {
	t.Setenv("TIDE_URL", "redis://u:p@h:1/2")
	t.Setenv("TIDE_NOTHING", "")
	t.Setenv("TIDE_ADDRESSES", "a, b:2")
	t.Setenv("TIDE_PASSWORD", "s3cret")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in    Options
		want  Settings
		empty bool
	}{
		"url": {
			in:   Options{URL: "{env.TIDE_URL}"},
			want: Settings{Mode: "simple", Addresses: []string{"h:1"}, Username: "u", Password: "p", DB: 2, Timeout: time.Second},
		},
		"url in cluster mode": {
			in:   Options{URL: "redis://h", Mode: "cluster"},
			want: Settings{Mode: "cluster", Addresses: []string{"h:6379"}, Timeout: time.Second},
		},
		"url with a server name": {
			in:   Options{URL: "rediss://h", TLSServerName: "n"},
			want: Settings{Mode: "simple", Addresses: []string{"h:6379"}, Timeout: time.Second, TLS: TLS{Enabled: true, ServerName: "n"}},
		},
		"empty url":     {in: Options{URL: "{env.TIDE_NOTHING}"}, empty: true},
		"nothing":       {in: Options{}, empty: true},
		"empty address": {in: Options{Address: []string{"{env.TIDE_NOTHING}"}, Password: "p"}, empty: true},
		"socket": {
			in:   Options{Address: []string{"unix//run/redis.sock"}},
			want: Settings{Mode: "simple", Addresses: []string{"/run/redis.sock"}, Timeout: time.Second},
		},
		"failover by its master": {
			in: Options{Address: []string{"{env.TIDE_ADDRESSES}"}, MasterName: "m", SentinelUsername: "su", SentinelPassword: "sp"},
			want: Settings{
				Mode: "failover", Addresses: []string{"a:26379", "b:2"}, MasterName: "m", SentinelUsername: "su", SentinelPassword: "sp", Timeout: time.Second,
			},
		},
		"cluster": {
			in:   Options{Mode: "cluster", Address: []string{"a", "b"}, TLSEnabled: true, TLSInsecure: true},
			want: Settings{Mode: "cluster", Addresses: []string{"a:6379", "b:6379"}, Timeout: time.Second, TLS: TLS{Enabled: true, Insecure: true}},
		},
		"default address": {
			in:   Options{Password: "{env.TIDE_PASSWORD}", DB: 3, Timeout: caddy.Duration(5 * time.Second), PoolSize: 4},
			want: Settings{Mode: "simple", Addresses: []string{"localhost:6379"}, Password: "s3cret", DB: 3, Timeout: 5 * time.Second, PoolSize: 4},
		},
		"password with braces": {
			in:   Options{Password: "a{b}c{"},
			want: Settings{Mode: "simple", Addresses: []string{"localhost:6379"}, Password: "a{b}c{", Timeout: time.Second},
		},
		"password in a file": {
			in:   Options{Username: "u", Password: "{file." + file + "}"},
			want: Settings{Mode: "simple", Addresses: []string{"localhost:6379"}, Username: "u", Password: "from file", Timeout: time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.in.Resolve(caddy.NewReplacer())
			if err != nil || (got == nil) != c.empty {
				t.Fatalf("Resolve() = %v, %v, want nil: %t", got, err, c.empty)
			}
			if got == nil {
				return
			}
			if strings.Contains(name, "file") != (got.Credentials != nil) {
				t.Errorf("credentials are read again: %t, want that for files only", got.Credentials != nil)
			}
			got.Credentials = nil // functions don't compare
			if !reflect.DeepEqual(*got, c.want) {
				t.Errorf("Resolve() = %s, want %s", got.Key(), c.want.Key())
			}
		})
	}
}

func TestResolveErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	empty, secret := filepath.Join(dir, "empty.pem"), filepath.Join(dir, "secret.pem")
	if err := errors.Join(os.WriteFile(empty, nil, 0o600), os.WriteFile(secret, []byte("hunter2"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in   Options
		want []string
	}{
		"url and address":      {Options{URL: "redis://h", Address: []string{"h"}}, []string{"address", "one place"}},
		"url and password":     {Options{URL: "redis://h", Password: "hunter2"}, []string{"password", "one place"}},
		"empty url and more":   {Options{URL: "{env.TIDE_NOTHING}", Password: "hunter2"}, []string{"password", "one place"}},
		"bad url":              {Options{URL: "redis://u:hunter2@h:x"}, []string{"port", "from 1 to 65535"}},
		"port of a url":        {Options{URL: "redis://u:hunter2@h:99999"}, []string{"port", "from 1 to 65535"}},
		"no @ in a url":        {Options{URL: "redis://:hunter2"}, []string{"port", "an @ before it"}},
		"host of a url":        {Options{URL: "redis://u:hunter2@[::1/0"}, []string{"host", "in brackets"}},
		"@ and / in a secret":  {Options{URL: "redis://u:hun@ter/hunter2@h:6379/0"}, []string{"percent-encode", "%2F"}},
		"/ in a secret":        {Options{URL: "redis://u:hunter2/x@h:6379/0"}, []string{"percent-encode", "%2F"}},
		"@ and ? in a secret":  {Options{URL: "redis://u:hun@ter?hunter2@h:6379/0"}, []string{"percent-encode", "%3F"}},
		"# in a secret":        {Options{URL: "redis://u:hunter2#x@h:6379/0"}, []string{"percent-encode", "%23"}},
		"database of a url":    {Options{URL: "redis://u:hunter2@h:6379/x"}, []string{"database", "redis://localhost:6379/0"}},
		"unknown mode":         {Options{Mode: "sentinels"}, []string{`"sentinels"`, "simple, sentinel or cluster"}},
		"two in simple mode":   {Options{Address: []string{"a", "b"}}, []string{"2 addresses", "cluster", "failover"}},
		"db in a cluster":      {Options{Mode: "cluster", Address: []string{"a", "b"}, DB: 3}, []string{"database 3", "remove"}},
		"failover, no master":  {Options{Mode: "failover"}, []string{"master_name"}},
		"master in a cluster":  {Options{Mode: "cluster", MasterName: "m"}, []string{"master_name", "remove"}},
		"password in address":  {Options{Address: []string{"u:hunter2@h"}}, []string{"@"}},
		"url in address":       {Options{Address: []string{"redis://h"}}, []string{"URL"}},
		"bad port":             {Options{Address: []string{"h:x"}}, []string{`"h:x"`, "host:port"}},
		"negative timeout":     {Options{Timeout: -1}, []string{"timeout", "negative"}},
		"negative pool":        {Options{PoolSize: -1}, []string{"pool_size"}},
		"negative db":          {Options{DB: -1}, []string{"database -1"}},
		"skip_verify":          {Options{URL: "redis://h?skip_verify=1"}, []string{"skip_verify", "rediss"}},
		"socket in a cluster":  {Options{Mode: "cluster", Address: []string{"/run/redis.sock"}}, []string{"unix socket"}},
		"certs without tls":    {Options{TLSServerCertsPath: missing}, []string{"tls_server_certs_path", "tls_enabled"}},
		"insecure without tls": {Options{TLSInsecure: true}, []string{"tls_insecure", "tls_enabled"}},
		"certs missing":        {Options{TLSEnabled: true, TLSServerCertsPath: missing}, []string{"tls_server_certs_path", missing}},
		"certs empty dir":      {Options{TLSEnabled: true, TLSServerCertsPath: t.TempDir()}, []string{"tls_server_certs_path", ".pem"}},
		"certs no pem":         {Options{TLSEnabled: true, TLSServerCertsPath: secret}, []string{"PEM"}},
		"cert without key":     {Options{TLSEnabled: true, TLSClientCert: empty}, []string{"tls_client_key", "both"}},
		"key missing":          {Options{TLSEnabled: true, TLSClientCert: "-----BEGIN X", TLSClientKey: missing}, []string{"tls_client_key", missing}},
		"key empty":            {Options{TLSEnabled: true, TLSClientCert: "-----BEGIN X", TLSClientKey: empty}, []string{"tls_client_key", "empty"}},
		"key no pem":           {Options{TLSEnabled: true, TLSClientCert: "-----BEGIN X", TLSClientKey: "-----BEGIN hunter2"}, []string{"PEM"}},
		"tls on a socket":      {Options{TLSEnabled: true, Address: []string{"/run/redis.sock"}}, []string{"unix socket"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.in.Resolve(caddy.NewReplacer())
			if err == nil {
				t.Fatal("Resolve() = nil, want an error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Resolve() = %v, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Resolve() = %v: shows a secret", err)
			}
		})
	}
}

// TestResolveReadsCertificates: what Settings hold is enough to talk to a server that asks for a
// certificate.
func TestResolveReadsCertificates(t *testing.T) {
	server := redistest.Start(t, redistest.TLS(true))
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := write("ca.pem", server.CA)
	write("ignored.txt", "no certificate")
	for name, r := range map[string]Options{
		"paths":     {TLSServerCertsPath: ca, TLSClientCert: write("c.crt", server.ClientCert), TLSClientKey: write("c.key", server.ClientKey)},
		"directory": {TLSServerCertsPath: dir, TLSClientCert: server.ClientCert, TLSClientKey: server.ClientKey},
		"name":      {TLSServerCertsPath: ca, TLSClientCert: server.ClientCert, TLSClientKey: server.ClientKey, TLSServerName: "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			r.URL = server.URL
			set, err := r.Resolve(caddy.NewReplacer())
			if err != nil {
				t.Fatal(err)
			}
			client, err := set.Client()
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if err := client.Ping(t.Context()).Err(); err != nil {
				t.Errorf("PING = %v", err)
			}
		})
	}
}

func TestNamespace(t *testing.T) {
	for name, want := range map[string]string{"": "", "shop": "", "{shop}": "without braces", "b\u00fccher": "printable ASCII", "a\nb": "printable ASCII", "\xff": "printable ASCII"} {
		if err := CheckNamespace(name); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("CheckNamespace(%q) = %v, want %s", name, err, want)
		}
	}
}
