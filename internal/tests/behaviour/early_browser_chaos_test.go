//go:build chaos

package behaviour_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/browsertest"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A browser that comes back sends its request in early data, gets 425, sends it again after the
// handshake, and shows the page as if nothing had been.
func TestABrowserComesAgainAfterEarlyData(t *testing.T) {
	zone := fmt.Sprint("early-", earlyZones.Add(1))
	s := sitetest.StartCaddy(t, "servers {\ntimeouts {\nidle 1s\n}\n}", "header Content-Type text/html\nrate_limit {\n"+
		sitetest.ZoneBlock(zone, "limit 50/30d")+"}\nrespond \"<title>page</title><link rel=icon href=data:,>\"")
	tab := browsertest.NewTab(t, "--enable-quic", fmt.Sprintf("--origin-to-force-quic-on=localhost:%d", s.Port),
		"--ignore-certificate-errors-spki-list="+publicKeyOf(t, s), "--host-resolver-rules=MAP localhost 127.0.0.1")
	url := fmt.Sprintf("https://localhost:%d/", s.Port)
	visits := 0
	redistest.Eventually(t, "the browser sends early data", func() bool {
		tab.Go(url)
		visits++
		var title string
		if tab.Eval("document.title", &title); title != "page" {
			t.Fatalf("visit %d: the page is called %q", visits, title)
		}
		if admitted := sitetest.DecidedAs(t, zone, "admitted"); admitted != visits {
			t.Fatalf("%d of %d visits are counted", admitted, visits)
		}
		time.Sleep(1500 * time.Millisecond) // no clock: the server closes what is idle
		return sitetest.DecidedAs(t, zone, "too_early") > 0
	})
	if denied := sitetest.DecidedAs(t, zone, "denied"); denied != 0 {
		t.Errorf("%d requests are denied", denied)
	}
}

// publicKeyOf is the hash of the server's public key, by which a browser trusts it.
func publicKeyOf(t *testing.T, s *sitetest.Served) string {
	t.Helper()
	conn, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(s.Port)), &tls.Config{ServerName: "localhost", InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hash := sha256.Sum256(conn.ConnectionState().PeerCertificates[0].RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(hash[:])
}
