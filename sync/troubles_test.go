package ratesync

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Each trouble is logged once with what to do, passes without a reload, and costs no count.
func TestTroublesAreToldOnceAndPass(t *testing.T) {
	for _, c := range redistest.Troubles() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r, url := c.Server(t)
			// So long a call may take, also on a busy machine.
			n := startNode(t, clientOf(t, url), ten, time.Second/2, wallClock)
			n.take("k", 3)
			n.knows("k", 3, 0)
			redistest.Eventually(t, "the node is up", func() bool { return n.rep.Status().Nodes == 1 })

			end := c.Begin(t, r)
			redistest.Eventually(t, "the trouble is logged", func() bool { n.touch("k"); return n.logged(fails) > 0 })
			if got := n.take("k", 2); got != 2 {
				t.Errorf("in trouble %d of 2 requests were admitted, want 2", got)
			}
			redistest.Eventually(t, "the status gives the reason", func() bool { n.touch("k"); return strings.Contains(fmt.Sprint(n.rep.Status().Failing), c.Code) })
			failures := n.rep.Status().Failures
			redistest.Eventually(t, "it fails again and again", func() bool { n.touch("k"); return n.rep.Status().Failures > failures+2 })
			end()
			n.knows("k", 5, 0)
			redistest.Eventually(t, "all is well", func() bool { n.touch("k"); return n.rep.Status().Up && n.logged(works) == n.logged(fails) })
			if odd := n.logged("rejects some counts"); odd > 0 {
				t.Errorf("logged %d times of another program's keys, which it is not", odd)
			}
			n.reportedOnce(c.Code)
			if text := fmt.Sprint(n.logs.All()); strings.Contains(text, "secret") || strings.Contains(text, "hunter3") {
				t.Errorf("the log shows a password: %s", text)
			}
		})
	}
}

const fails, works = "sync with redis fails", "sync with redis works again"

// reportedOnce wants a trouble logged once, with what to do. A machine that is busy may add
// timeouts, each logged once as well.
func (n *rnode) reportedOnce(code string) {
	t := n.t
	t.Helper()
	own, timeouts := 0, 0
	for _, line := range n.logs.FilterMessageSnippet(fails).All() {
		why := line.ContextMap()["reason"].(string)
		switch {
		case strings.Contains(why, code):
			own++
		case strings.Contains(why, "timeout"):
			timeouts++
		default:
			t.Errorf("the reason is %q, want %s", why, code)
		}
		if !strings.Contains(why, ";") || line.ContextMap()["code"] != warning.SyncFails {
			t.Errorf("logged %v, want what to do, and a code", line.ContextMap())
		}
	}
	if own > 1 || own == 0 && timeouts == 0 {
		t.Errorf("logged %d times of %s and %d times of timeouts, want once: %v", own, code, timeouts, n.logs.All())
	}
}

// logged counts the lines with a text.
func (n *rnode) logged(text string) int { return n.logs.FilterMessageSnippet(text).Len() }
