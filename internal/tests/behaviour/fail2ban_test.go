//go:build chaos

package behaviour_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// The filter finds the bans of a real log, and nothing that clients write into it. A ban that is
// only noted is none.
func TestFail2banFindsBans(t *testing.T) {
	program, err := exec.LookPath("fail2ban-regex")
	if err != nil {
		if os.Getenv("CI") != "" || os.Getenv("TIDE_REQUIRE_REDIS") == "1" {
			t.Fatal("fail2ban is not installed; on Debian apt-get install fail2ban")
		}
		t.Skip("fail2ban is not installed")
	}
	s := sitetest.StartCaddy(t, "servers {\ntrusted_proxies static 127.0.0.0/8\n}", "rate_limit {\n"+
		sitetest.ZoneBlock("login", "match path /login*\nlimit 1/1h\nban 1h")+
		sitetest.ZoneBlock("noted", "match path /noted\nlimit 1/1h\nban 1h\nenforce off")+
		sitetest.ZoneBlock("denied", "match path /denied*\nlimit 1/1h")+"}\nrespond in")
	from := func(path, client string) func(*http.Request) {
		return func(r *http.Request) {
			r.URL.Path = path
			r.Header.Set("X-Forwarded-For", client)
			r.Header.Set("User-Agent", forged)
		}
	}
	for _, client := range []string{"198.51.100.1", "2001:db8:1::1"} {
		s.Answers("HTTP/1.1", 3, http.StatusTooManyRequests, 2, from("/login"+forged, client))
	}
	s.Answers("HTTP/1.1", 3, http.StatusOK, 3, from("/noted", "198.51.100.2"))
	s.Answers("HTTP/1.1", 3, http.StatusTooManyRequests, 2, from("/denied"+forged, "198.51.100.3"))
	filter, err := filepath.Abs("docs/fail2ban/tide.conf")
	if err != nil {
		t.Fatal(err)
	}
	if n := loggedMessages(s, "rate limit banned, not enforced"); n != 1 {
		t.Fatalf("%d lines of bans that are not enforced, want 1", n)
	}
	found, err := exec.Command(program, "-o", "<ip>", s.Log, filter).CombinedOutput()
	if got := strings.Fields(string(found)); err != nil || !slices.Equal(got, []string{"198.51.100.1", "2001:db8:1::1"}) {
		t.Errorf("fail2ban finds %q, %v, want the two clients that are banned", found, err)
	}
}
