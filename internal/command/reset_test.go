package command

import (
	"net/http"
	"strings"
	"testing"
)

func TestAResetIsPrinted(t *testing.T) {
	for answer, want := range map[string]string{
		`{"zone":"login","forgiven":8,"nodes":3,"applied":3,"shared":true}`:               "RESET  KEY          REQUESTS FORGIVEN HERE\nlogin  203.0.113.9  8\nApplied by 3 of 3 nodes.\n",
		`{"zone":"login","forgiven":80,"units":true,"nodes":3,"applied":3,"shared":true}`: "RESET  KEY          UNITS FORGIVEN HERE\nlogin  203.0.113.9  80\nApplied by 3 of 3 nodes.\n",
		`{"zone":"login","forgiven":1,"nodes":1,"applied":1}`:                             "RESET  KEY          REQUESTS FORGIVEN\nlogin  203.0.113.9  1\nApplied by this node, which counts for itself.\n",
		`{"zone":"login","nodes":1,"applied":1,"stays":["see \u001b[1m"]}`:                "RESET  KEY          REQUESTS FORGIVEN\nlogin  203.0.113.9  0\nlogin: see \\x1b[1m\nApplied by this node, which counts for itself.\n",
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
	if out, err := execute(t, c, "reset", "login", "--all"); err == nil || !strings.Contains(err.Error(), "web3/88") || !strings.Contains(out, "Applied by 2 of 3 nodes") {
		t.Errorf("a missing node comes out as %q, %v", out, err)
	}
}
