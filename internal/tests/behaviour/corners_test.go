package behaviour_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A reload that changes a window begins that limit at zero, also where its number comes with the
// request. The other limits of the zone go on.
func TestAReloadThatChangesTheWindowOfALimitThatComesWithTheRequest(t *testing.T) {
	of := func(windows string) *sitetest.Site {
		return sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("windows", "limit "+windows+"\nalgorithm fixed_window\nlimit_default 3/"+
			strings.Join(strings.Fields(strings.ReplaceAll(windows, "{http.request.header.X-Plan}/", "")), " 3/")))
	}
	s := of("{http.request.header.X-Plan}/3000d {http.request.header.X-Plan}/3650d")
	s.Admits("7.7.8.1", 4, 4, sitetest.Plan("10"))
	next := of("{http.request.header.X-Plan}/2900d {http.request.header.X-Plan}/3650d")
	s.End()
	next.Admits("7.7.8.1", 9, 6, sitetest.Plan("10")) // by the longer window
	last := of("{http.request.header.X-Plan}/2800d")
	next.End()
	last.Admits("7.7.8.1", 12, 10, sitetest.Plan("10"))
}

// An operator gives a key in a queue more places, lets it pass, or bars it. Who waits goes on
// waiting.
func TestOverrideOfAQueue(t *testing.T) {
	s := sitetest.StartCaddy(t, "", "rate_limit {\n"+sitetest.ZoneBlock("override-queue", "limit 1/30d\nalgorithm leaky_bucket\nqueue 2")+"}\nrespond ok")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var denied atomic.Int64
	var all sync.WaitGroup
	ask := func(requests int) {
		for range requests {
			all.Go(func() {
				if a, err := s.Get(ctx, "HTTP/1.1"); err == nil && a.Status == http.StatusTooManyRequests {
					denied.Add(1)
				}
			})
		}
	}
	s.Answers("HTTP/1.1", 1, http.StatusOK, 1)
	ask(5)
	redistest.Eventually(t, "2 wait and 3 are denied", func() bool { return sitetest.InQueue(t) == 2 && denied.Load() == 3 })
	set := func(limit string) {
		sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":"override-queue","key":"127.0.0.1","limit":%q}`, limit))
	}
	set("2") // and with it a queue of 4
	ask(5)
	redistest.Eventually(t, "2 more wait and 3 are denied", func() bool { return sitetest.InQueue(t) == 4 && denied.Load() == 6 })
	set("unlimited")
	s.Answers("HTTP/1.1", 3, http.StatusOK, 3)
	set("deny")
	s.Answers("HTTP/1.1", 2, http.StatusForbidden, 2)
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"override-queue","key":"127.0.0.1"}`)
	s.Answers("HTTP/1.1", 2, http.StatusTooManyRequests, 2)
	if n := sitetest.InQueue(t); n != 4 {
		t.Errorf("%d wait, want 4 as before", n)
	}
	cancel()
	all.Wait()
}

// What an operator sets holds for keys beyond max_keys as well, which have no counter of their own.
func TestOverridesBeyondMaxKeys(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"} {
		zone := "override-full-" + algorithm
		s := sitetest.NewSite(t, &ratelimit.App{Namespace: zone}, sitetest.ZoneBlock(zone, "limit 3/3650d\nmax_keys 1\nalgorithm "+algorithm))
		set := func(key, limit string) {
			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":%q,"limit":%q}`, zone, key, limit))
		}
		s.Admits("198.51.100.1", 1, 1)
		set("198.51.100.2", "7")
		s.Admits("198.51.100.2", 10, 7)
		s.Admits("198.51.100.3", 10, 3)
		set("198.51.100.3", "5")
		s.Admits("198.51.100.3", 10, 2)
		set("198.51.100.3", "unlimited")
		s.Admits("198.51.100.3", 10, 10)
		set("198.51.100.4", "deny")
		if a := s.Get("198.51.100.4"); a.Status != http.StatusForbidden {
			t.Errorf("%s: a key beyond max_keys of which all is denied is answered %d, want 403", algorithm, a.Status)
		}
		sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":"198.51.100.3"}`, zone))
		s.Admits("198.51.100.3", 3, 0)
		s.End()
	}
}

// administrator is somebody with a certificate of his own.
func administrator(t *testing.T, name string) (client *http.Client, publicKey string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Unix(0, 0), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, base64.StdEncoding.EncodeToString(der)
}

// askRemote sends a request and reads the answer.
func askRemote(t *testing.T, c *http.Client, method, url, body string) (status int, text string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	all, err := io.ReadAll(a.Body)
	return a.StatusCode, string(all), err
}

// Over Caddy's remote admin endpoint an operator can do what his certificate is allowed to, path by
// path and method by method, and nothing else.
func TestRemoteAdmin(t *testing.T) {
	looks, looksKey := administrator(t, "looks")
	changes, changesKey := administrator(t, "changes")
	stranger, _ := administrator(t, "stranger")
	local, remote := redistest.FreePort(t), redistest.FreePort(t)
	config := fmt.Sprintf(`{
		"admin": {"listen": "localhost:%d", "config": {"persist": false},
			"identity": {"identifiers": ["localhost"], "issuers": [{"module": "internal"}]},
			"remote": {"listen": "localhost:%d", "access_control": [
				{"public_keys": [%q], "permissions": [{"paths": ["/rate_limit/"], "methods": ["GET"]}]},
				{"public_keys": [%q], "permissions": [{"paths": ["/rate_limit/overrides"], "methods": ["GET", "POST", "DELETE"]}]}]}},
		"storage": {"module": "file_system", "root": %q},
		"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
		"apps": {"pki": {"certificate_authorities": {"local": {"install_trust": false}}}, "http": {"servers": {"s": {
			"listen": ["127.0.0.1:%d"], "routes": [{"handle": [{"handler": "rate_limit", "rate_limits": {"remote": {"limits": [{"max_events": 5, "window": "30d"}]}}}]}]}}}}
	}`, local, remote, looksKey, changesKey, t.TempDir(), redistest.FreePort(t))
	sitetest.LoadConfig(t, []byte(config))
	ask := func(c *http.Client, method, path, body string) (int, string, error) {
		return askRemote(t, c, method, fmt.Sprintf("https://localhost:%d%s", remote, path), body)
	}
	redistest.Eventually(t, "the remote endpoint has its certificate", func() bool {
		_, _, err := ask(looks, http.MethodGet, "/rate_limit/", "")
		return err == nil
	})
	const override = `{"zone":"remote","key":"203.0.113.9","limit":"50","note":"from afar"}`
	for _, c := range []struct {
		who                *http.Client
		method, path, body string
		status             int
		says               string
	}{
		{looks, http.MethodGet, "/rate_limit/", "", 200, `"zone":"remote"`},
		{looks, http.MethodGet, "/rate_limit/top?zone=remote", "", 200, `"keys"`},
		{looks, http.MethodPost, "/rate_limit/overrides", override, 403, ""},
		{looks, http.MethodPost, "/rate_limit/reset", `{"zone":"remote","all":true}`, 403, ""},
		{looks, http.MethodGet, "/config/", "", 403, ""},
		{changes, http.MethodPost, "/rate_limit/overrides", override, 200, `"limit":"50"`},
		{changes, http.MethodGet, "/rate_limit/overrides", "", 200, "from afar"},
		{changes, http.MethodPost, "/rate_limit/enforcement", `{"all":true,"share":0}`, 403, ""},
		{changes, http.MethodGet, "/rate_limit/", "", 403, ""},
		{changes, http.MethodDelete, "/rate_limit/overrides", `{"zone":"remote","key":"203.0.113.9"}`, 200, ""},
	} {
		status, text, err := ask(c.who, c.method, c.path, c.body)
		if err != nil || status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %s, %v; want %d with %s", c.method, c.path, status, text, err, c.status, c.says)
		}
	}
	nobody := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer nobody.CloseIdleConnections()
	for who, c := range map[string]*http.Client{"a stranger": stranger, "nobody": nobody} {
		if status, text, err := ask(c, http.MethodGet, "/rate_limit/", ""); err == nil && status < 400 {
			t.Errorf("%s is answered %d %s", who, status, text)
		}
	}
}
