package command

import (
	"net/http"
	"strings"
	"testing"
)

func TestAResetIsPrinted(t *testing.T) {
	for answer, want := range map[string]string{
		`{"zone":"login","forgiven":8,"nodes":3,"applied":3,"shared":true}`:               "login: reset 203.0.113.9 on 3 of 3 nodes, 8 requests of this node forgiven\n",
		`{"zone":"login","forgiven":80,"units":true,"nodes":3,"applied":3,"shared":true}`: "login: reset 203.0.113.9 on 3 of 3 nodes, 80 units of this node forgiven\n",
		`{"zone":"login","forgiven":1,"nodes":1,"applied":1}`:                             "login: reset 203.0.113.9 on this node, which counts for itself, 1 request forgiven\n",
		`{"zone":"login","nodes":1,"applied":1,"stays":["see \u001b[1m"]}`:                "login: reset 203.0.113.9 on this node, which counts for itself, 0 requests forgiven\nlogin: see \\x1b[1m\n",
	} {
		c, _ := endpoint(t, http.StatusOK, answer)
		if out, err := execute(t, c, "reset", "login", "203.0.113.9"); err != nil || out != want {
			t.Errorf("reset prints %q, %v, want %q", out, err, want)
		}
	}
	c, _ := endpoint(t, http.StatusOK, `{"zone":"login","unknown":true,"nodes":3,"applied":3,"shared":true}`)
	if out, err := execute(t, c, "reset", "login", "203.0.113.9"); err == nil || out != "" || !strings.Contains(err.Error(), "no node counts the key 203.0.113.9") {
		t.Errorf("a key that nobody counts comes out as %q, %v", out, err)
	}
	c, _ = endpoint(t, http.StatusOK, `{"zone":"login","forgiven":8,"nodes":3,"applied":2,"shared":true,"missing":[{"name":"web3/88","heard":"2026-05-01T12:00:00Z"}]}`)
	if out, err := execute(t, c, "reset", "login", "--all"); err == nil || !strings.Contains(err.Error(), "web3/88") || !strings.Contains(out, "reset all keys on 2 of 3 nodes") {
		t.Errorf("a missing node comes out as %q, %v", out, err)
	}
}
