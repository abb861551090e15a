package ratesync

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A file of a password that can't be read is the reason that is logged, once, and that the status
// gives. When it is there all is synced, without a reload.
func TestAFileThatCanNotBeReadIsTheReason(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, redistest.Password("secret"))
	file := filepath.Join(t.TempDir(), "password")
	o := &redisconn.Options{Address: []string{r.Addr}, Password: "{file." + file + "}", Timeout: caddy.Duration(30 * time.Second)}
	set, err := o.Resolve(caddy.NewReplacer())
	if err != nil {
		t.Fatal(err)
	}
	client, err := set.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	n := startNode(t, client, ten, time.Second/2, wallClock)
	n.take("k", 3)
	redistest.Eventually(t, "the trouble is logged", func() bool { return n.logged(fails) > 0 })
	want := fmt.Sprintf("can't open %s: no such file or directory; let Caddy's user read the file, or correct its path", file)
	redistest.Eventually(t, "the status gives the reason", func() bool { return n.rep.Status().Failing[HeartbeatName] == want })
	failures := n.rep.Status().Failures
	redistest.Eventually(t, "it fails again and again", func() bool { n.touch("k"); return n.rep.Status().Failures > failures+2 })
	n.reportedOnce(want)
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.knows("k", 3, 0)
	redistest.Eventually(t, "all is well", func() bool { n.touch("k"); return n.rep.Status().Up && n.logged(works) == n.logged(fails) })
	n.reportedOnce(want)
}
