package sitetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A served is a Caddy in this process that answers on loopback by HTTP/1.1, HTTP/2 and HTTP/3.
type Served struct {
	T       *testing.T
	Port    int
	Log     string
	Config  []byte
	Clients map[string]*http.Client
}

// StartCaddy loads a Caddyfile: global options, and what stands in the only site. It ends with the
// test.
func StartCaddy(t *testing.T, global, site string) *Served {
	t.Helper()
	dir := t.TempDir()
	roots := Certificate(t, dir)
	s := &Served{T: t, Port: redistest.FreePort(t), Log: filepath.Join(dir, "log")}
	config, err := Adapt(fmt.Sprintf(`{
	admin off
	persist_config off
	auto_https off
	log {
		output file %s
		format json
	}
	%s
}
https://localhost:%d {
	bind 127.0.0.1
	tls %s/cert.pem %[4]s/key.pem
	%s
}
`, s.Log, global, s.Port, dir, site))
	if err != nil {
		t.Fatal(err)
	}
	s.Config = config
	LoadConfig(t, config)
	s.Connect(&tls.Config{RootCAs: roots, ServerName: "localhost"})
	return s
}

// LoadSites loads a Caddyfile of sites, without an admin endpoint and a log.
func LoadSites(t *testing.T, sites string) {
	t.Helper()
	config, err := Adapt("{\nadmin off\npersist_config off\nauto_https off\nlog {\noutput discard\n}\n}\n" + sites)
	if err != nil {
		t.Fatal(err)
	}
	LoadConfig(t, config)
}

// LoadConfig loads a configuration. It ends with the test.
func LoadConfig(t testing.TB, config []byte) {
	t.Helper()
	ReplaceConfig(t, config)
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// ReplaceConfig loads a configuration and waits until no server of the one before listens.
func ReplaceConfig(t testing.TB, config []byte) {
	t.Helper()
	before := cluster.Listening(StackTraces(t))
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "the servers of the configuration before listen no longer", func() bool {
		return !cluster.AnyOf(before, cluster.Listening(StackTraces(t)))
	})
}

// StackTraces are those of all goroutines of this process.
func StackTraces(t testing.TB) string {
	t.Helper()
	var stacks strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	return stacks.String()
}

// Certificate writes one for localhost with its key, and returns whom to trust.
//
// no clock: a certificate has dates.
func Certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return pool
}

func (s *Served) Connect(config *tls.Config) {
	one, two := new(http.Protocols), new(http.Protocols)
	one.SetHTTP1(true)
	two.SetHTTP2(true)
	first := &http.Transport{Protocols: one, TLSClientConfig: config.Clone()}
	second := &http.Transport{Protocols: two, TLSClientConfig: config.Clone()}
	third := &http3.Transport{TLSClientConfig: config.Clone()}
	s.Clients = map[string]*http.Client{"HTTP/1.1": {Transport: first}, "HTTP/2.0": {Transport: second}, "HTTP/3.0": {Transport: third}}
	s.T.Cleanup(func() {
		first.CloseIdleConnections()
		second.CloseIdleConnections()
		_ = third.Close()
	})
}

// Get sends a request by a protocol. The error is that of a client who went away.
func (s *Served) Get(ctx context.Context, protocol string, change ...func(*http.Request)) (Reply, error) {
	s.T.Helper()
	response, err := s.Open(ctx, protocol, change...)
	if err != nil {
		return Reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Reply{Status: response.StatusCode, Header: response.Header, Body: string(body)}, err
}

// Open is Get that reads nothing of the body.
func (s *Served) Open(ctx context.Context, protocol string, change ...func(*http.Request)) (*http.Response, error) {
	s.T.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/", s.Port), nil)
	if err != nil {
		s.T.Fatal(err)
	}
	r.Host = fmt.Sprintf("localhost:%d", s.Port)
	for _, f := range change {
		f(r)
	}
	response, err := s.Clients[protocol].Do(r)
	if err == nil && response.Proto != protocol {
		s.T.Errorf("asked by %s, answered by %s", protocol, response.Proto)
	}
	return response, err
}

// Answers sends count requests by a protocol and wants so many with a status.
func (s *Served) Answers(protocol string, count, status, want int, change ...func(*http.Request)) {
	s.T.Helper()
	got := 0
	for range count {
		a, err := s.Get(s.T.Context(), protocol, change...)
		if err != nil {
			s.T.Fatalf("%s: %v", protocol, err)
		}
		if a.Status == status {
			got++
		}
	}
	if got != want {
		s.T.Errorf("%s: %d of %d requests were answered by %d, want %d", protocol, got, count, status, want)
	}
}

// InQueue is how many requests wait in leaky buckets of this process.
func InQueue(t *testing.T) int {
	t.Helper()
	return strings.Count(StackTraces(t), "clock.Sleep(")
}

// Backend is an upstream that says its name, and how often it was asked.
func Backend(t *testing.T, name string) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Cache-Control", "max-age=60")
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), asked
}
