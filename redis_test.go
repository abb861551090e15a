package ratelimit

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

func TestRedisResolve(t *testing.T) {
	t.Setenv("TIDE_URL", "redis://u:p@h:1/2")
	t.Setenv("TIDE_PASSWORD", "s3cret")
	t.Setenv("TIDE_NOTHING", "")
	t.Setenv("TIDE_ADDRESSES", "a, b:2")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in    Redis
		want  ratesync.Settings
		empty bool
	}{
		"url": {
			in:   Redis{URL: "{env.TIDE_URL}", KeyPrefix: "x"},
			want: ratesync.Settings{Mode: "simple", Addresses: []string{"h:1"}, Username: "u", Password: "p", DB: 2, Timeout: time.Second},
		},
		"url in cluster mode": {
			in:   Redis{URL: "redis://h", Mode: "cluster"},
			want: ratesync.Settings{Mode: "cluster", Addresses: []string{"h:6379"}, Timeout: time.Second},
		},
		"url with a server name": {
			in:   Redis{URL: "rediss://h", TLSServerName: "n"},
			want: ratesync.Settings{Mode: "simple", Addresses: []string{"h:6379"}, Timeout: time.Second, TLS: ratesync.TLS{Enabled: true, ServerName: "n"}},
		},
		"empty url":     {in: Redis{URL: "{env.TIDE_NOTHING}"}, empty: true},
		"nothing":       {in: Redis{}, empty: true},
		"prefix only":   {in: Redis{KeyPrefix: "x"}, empty: true},
		"empty address": {in: Redis{Address: []string{"{env.TIDE_NOTHING}"}, Password: "p"}, empty: true},
		"default address": {
			in:   Redis{Password: "{env.TIDE_PASSWORD}", DB: 3, Timeout: caddy.Duration(5 * time.Second), PoolSize: 4},
			want: ratesync.Settings{Mode: "simple", Addresses: []string{"localhost:6379"}, Password: "s3cret", DB: 3, Timeout: 5 * time.Second, PoolSize: 4},
		},
		"password with braces": {
			in:   Redis{Password: "a{b}c{"},
			want: ratesync.Settings{Mode: "simple", Addresses: []string{"localhost:6379"}, Password: "a{b}c{", Timeout: time.Second},
		},
		"password in a file": {
			in:   Redis{Username: "u", Password: "{file." + file + "}"},
			want: ratesync.Settings{Mode: "simple", Addresses: []string{"localhost:6379"}, Username: "u", Password: "from file", Timeout: time.Second},
		},
		"socket": {
			in:   Redis{Address: []string{"unix//run/redis.sock"}},
			want: ratesync.Settings{Mode: "simple", Addresses: []string{"/run/redis.sock"}, Timeout: time.Second},
		},
		"failover by its master": {
			in: Redis{Address: []string{"{env.TIDE_ADDRESSES}"}, MasterName: "m", SentinelUsername: "su", SentinelPassword: "sp"},
			want: ratesync.Settings{
				Mode: "failover", Addresses: []string{"a:26379", "b:2"}, MasterName: "m", SentinelUsername: "su", SentinelPassword: "sp", Timeout: time.Second,
			},
		},
		"cluster": {
			in:   Redis{Mode: "cluster", Address: []string{"a", "b"}, TLSEnabled: true, TLSInsecure: true},
			want: ratesync.Settings{Mode: "cluster", Addresses: []string{"a:6379", "b:6379"}, Timeout: time.Second, TLS: ratesync.TLS{Enabled: true, Insecure: true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, empty, err := c.in.resolve(caddy.NewReplacer())
			if strings.Contains(name, "file") != (got.Credentials != nil) {
				t.Errorf("credentials are read anew: %t, want that for files only", got.Credentials != nil)
			}
			got.Credentials = nil // functions don't compare
			if err != nil || empty != c.empty || !reflect.DeepEqual(got, c.want) {
				t.Errorf("resolve() = %s, %t, %v, want %s, %t", got.Key(), empty, err, c.want.Key(), c.empty)
			}
		})
	}
}

func TestRedisResolveErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in   Redis
		want []string
	}{
		"url and address":      {Redis{URL: "redis://h", Address: []string{"h"}}, []string{"address", "one place"}},
		"url and password":     {Redis{URL: "redis://h", Password: "hunter2"}, []string{"password", "one place"}},
		"empty url and more":   {Redis{URL: "{env.TIDE_NOTHING}", Password: "hunter2"}, []string{"password", "one place"}},
		"bad url":              {Redis{URL: "redis://u:hunter2@h:x"}, []string{"port", "from 1 to 65535"}},
		"port of a url":        {Redis{URL: "redis://u:hunter2@h:99999"}, []string{"port", "from 1 to 65535"}},
		"no @ in a url":        {Redis{URL: "redis://:hunter2"}, []string{"port", "an @ before it"}},
		"host of a url":        {Redis{URL: "redis://u:hunter2@[::1/0"}, []string{"host", "in brackets"}},
		"@ and / in a secret":  {Redis{URL: "redis://u:hun@ter/hunter2@h:6379/0"}, []string{"percent-encode", "%2F"}},
		"/ in a secret":        {Redis{URL: "redis://u:hunter2/x@h:6379/0"}, []string{"percent-encode", "%2F"}},
		"@ and ? in a secret":  {Redis{URL: "redis://u:hun@ter?hunter2@h:6379/0"}, []string{"percent-encode", "%3F"}},
		"# in a secret":        {Redis{URL: "redis://u:hunter2#x@h:6379/0"}, []string{"percent-encode", "%23"}},
		"database of a url":    {Redis{URL: "redis://u:hunter2@h:6379/x"}, []string{"database", "redis://localhost:6379/0"}},
		"unknown mode":         {Redis{Mode: "sentinel"}, []string{`"sentinel"`, "simple, failover or cluster"}},
		"two in simple mode":   {Redis{Address: []string{"a", "b"}}, []string{"2 addresses", "cluster", "failover"}},
		"db in a cluster":      {Redis{Mode: "cluster", Address: []string{"a", "b"}, DB: 3}, []string{"database 3", "remove"}},
		"failover, no master":  {Redis{Mode: "failover"}, []string{"master_name"}},
		"master in a cluster":  {Redis{Mode: "cluster", MasterName: "m"}, []string{"master_name", "remove"}},
		"password in address":  {Redis{Address: []string{"u:hunter2@h"}}, []string{"@"}},
		"url in address":       {Redis{Address: []string{"redis://h"}}, []string{"URL"}},
		"bad port":             {Redis{Address: []string{"h:x"}}, []string{`"h:x"`, "host:port"}},
		"negative timeout":     {Redis{Timeout: -1}, []string{"timeout", "negative"}},
		"negative pool":        {Redis{PoolSize: -1}, []string{"pool_size"}},
		"negative db":          {Redis{DB: -1}, []string{"database -1"}},
		"certs without tls":    {Redis{TLSServerCertsPath: missing}, []string{"tls_server_certs_path", "tls_enabled"}},
		"insecure without tls": {Redis{TLSInsecure: true}, []string{"tls_insecure", "tls_enabled"}},
		"skip_verify":          {Redis{URL: "redis://h?skip_verify=1"}, []string{"skip_verify", "rediss"}},
		"certs missing":        {Redis{TLSEnabled: true, TLSServerCertsPath: missing}, []string{"tls_server_certs_path", missing}},
		"certs empty dir":      {Redis{TLSEnabled: true, TLSServerCertsPath: t.TempDir()}, []string{"tls_server_certs_path", ".pem"}},
		"certs no pem":         {Redis{TLSEnabled: true, TLSServerCertsPEM: "hunter2"}, []string{"PEM"}},
		"certs twice":          {Redis{TLSEnabled: true, TLSServerCertsPEM: "x", TLSServerCertsPath: empty}, []string{"remove one"}},
		"cert without key":     {Redis{TLSEnabled: true, TLSClientCert: empty}, []string{"tls_client_key", "both"}},
		"key missing":          {Redis{TLSEnabled: true, TLSClientCert: "-----BEGIN X", TLSClientKey: missing}, []string{"tls_client_key", missing}},
		"key empty":            {Redis{TLSEnabled: true, TLSClientCert: "-----BEGIN X", TLSClientKey: empty}, []string{"tls_client_key", "empty"}},
		"key no pem":           {Redis{TLSEnabled: true, TLSClientCert: "-----BEGIN X", TLSClientKey: "-----BEGIN hunter2"}, []string{"PEM"}},
		"tls on a socket":      {Redis{TLSEnabled: true, Address: []string{"/run/redis.sock"}}, []string{"unix socket"}},
		"socket in a cluster":  {Redis{Mode: "cluster", Address: []string{"/run/redis.sock"}}, []string{"unix socket"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := c.in.resolve(caddy.NewReplacer())
			if err == nil {
				t.Fatal("resolve() = nil, want an error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("resolve() = %v, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("resolve() = %v: shows a secret", err)
			}
		})
	}
}

// TestRedisResolveReadsCertificates: what Settings hold is enough to talk to a server that asks for a certificate.
func TestRedisResolveReadsCertificates(t *testing.T) {
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
	for name, r := range map[string]Redis{
		"paths":     {TLSServerCertsPath: ca, TLSClientCert: write("c.crt", server.ClientCert), TLSClientKey: write("c.key", server.ClientKey)},
		"directory": {TLSServerCertsPath: dir, TLSClientCert: server.ClientCert, TLSClientKey: server.ClientKey},
		"pem":       {TLSServerCertsPEM: server.CA, TLSClientCert: server.ClientCert, TLSClientKey: server.ClientKey, TLSServerName: "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			r.URL = server.URL
			set, _, err := r.resolve(caddy.NewReplacer())
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

type lendsAny struct{ client any }

func (l lendsAny) GetClient() any { return l.client }

type lendsClient struct{ client redis.UniversalClient }

func (l lendsClient) GetClient() redis.UniversalClient { return l.client }

func TestRedisBorrowsTheClientOfTheStorage(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	for _, storage := range []any{lendsAny{client}, lendsClient{client}} {
		if got, err := clientOf(storage); err != nil || got != redis.UniversalClient(client) {
			t.Errorf("clientOf(%T) = %v, %v, want the client", storage, got, err)
		}
	}
	for _, storage := range []any{nil, "x", lendsAny{}, lendsAny{"x"}, lendsClient{}} {
		_, err := clientOf(storage)
		if err == nil || !strings.Contains(fmt.Sprint(err), "write redis redis://") {
			t.Errorf("clientOf(%T) = %v, want an error that says what to write", storage, err)
		}
	}
}
