package behaviour_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A page that includes others of its server is one request, whatever the protocol. The header of
// such a request frees no client.
func TestIncludesOfTemplatesAreNotCounted(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"index.html": `<p>{{httpInclude "/part.html"}}{{httpInclude "/part.html"}}</p>`, "part.html": "part"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := sitetest.StartCaddy(t, "", "root "+root+"\nrate_limit 6/30d\ntemplates\nfile_server")
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"} {
		a, err := s.Get(t.Context(), protocol)
		if err != nil || a.Status != http.StatusOK || a.Body != "<p>partpart</p>" {
			t.Errorf("%s: answered %+v, %v, want the page with its parts", protocol, a, err)
		}
	}
	forged := sitetest.Header("Caddy-Templates-Include", "1")
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"} {
		s.Answers(protocol, 1, http.StatusOK, 1, forged)
	}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"} {
		s.Answers(protocol, 1, http.StatusTooManyRequests, 1, forged)
	}
}
