package behaviour_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A line names who was denied and what for, and what a client sent does no harm in it. Of the key
// it has a digest, and the text only if wanted.
func TestLineOfADenial(t *testing.T) {
	const secret = "sk-0123456789"
	// the tag of text, its length, the text
	key := append([]byte{0x01, byte(len(secret))}, secret...)
	digest := fmt.Sprintf("%x", sha256.Sum256(key))[:8]
	for _, logKey := range []bool{false, true} {
		options := "log_key off\n"
		if logKey {
			options = "log_key\n"
		}
		s := sitetest.StartCaddy(t, "servers {\ntrusted_proxies static 127.0.0.1\ntrusted_proxies_strict\n}",
			"rate_limit {\n"+options+sitetest.ZoneBlock(fmt.Sprint("line-", logKey), "limit 0/30d\nkey {http.request.header.X-Api-Key}")+"}\nrespond ok")
		hostile := "/%0d%0a%1b[31m%22%7d\u202e/" + strings.Repeat("long", 100)
		a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Header("X-Api-Key", secret), sitetest.Header("X-Forwarded-For", "198.51.100.7"), func(r *http.Request) {
			r.Method = "REPORT"
			u, err := r.URL.Parse(hostile + "?token=" + secret)
			if err != nil {
				t.Fatal(err)
			}
			r.URL = u
		})
		if err != nil || a.Status != http.StatusTooManyRequests {
			t.Fatalf("%d, %v", a.Status, err)
		}
		written, err := os.ReadFile(s.Log)
		if err != nil {
			t.Fatal(err)
		}
		var line map[string]any
		for text := range strings.Lines(string(written)) {
			if strings.Contains(text, `"rate limit exceeded"`) {
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatalf("%v in %s", err, text)
				}
			}
		}
		path, _ := line["path"].(string)
		delete(line, "path")
		for name, want := range map[string]any{
			"remote_ip": "127.0.0.1", "client_ip": "198.51.100.7", "method": "REPORT", "host": fmt.Sprint("localhost:", s.Port), "key_id": digest,
			"zone": fmt.Sprint("line-", logKey), "limit": 0.,
		} {
			if line[name] != want {
				t.Errorf("%s: %v, want %v", name, line[name], want)
			}
		}
		if !strings.HasPrefix(path, "/%0D%0A%1B") && !strings.HasPrefix(path, "/%0d%0a%1b") || len(path) > reqkey.MaxText+len("...") {
			t.Errorf("path: %q", path)
		}
		if key := line["key"]; logKey != (key == secret) || logKey != strings.Contains(string(written), secret) {
			t.Errorf("log_key %v: the key is %v in\n%s", logKey, key, written)
		}
	}
}
