//go:build chaos

package cluster_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A day ends on three nodes at once: until then all of them together have admitted the limit, told
// those that they deny to wait until the end, and after it they have another whole limit.
func TestADayEndsOnThreeNodes(t *testing.T) {
	zonesDir := t.TempDir()
	t.Setenv("ZONEINFO", zonesDir)
	r := redistest.Start(t)
	site := func(name string) string {
		plan := func(zoneName, rate string) string {
			return zone(zoneName, "limit 30/day", "calendar "+name, "sync_rate "+rate)
		}
		return zones(plan("soon", "100ms"), plan("strict", "strict"))
	}
	c := start(t, 3, config(slowRedis(r), site("UTC")))
	awaitNodes(t, c.Nodes)
	for i, ahead := 0, 20*time.Second; ; i, ahead = i+1, 2*ahead {
		name := fmt.Sprint("Test/Soon", i)
		end := time.Now().Add(ahead).Truncate(time.Second)
		end = end.In(writeZone(t, filepath.Join(zonesDir, filepath.FromSlash(name)), end))
		if err := c.Reload(t.Context(), config(slowRedis(r), site(name))); err != nil {
			t.Fatal(err)
		}
		if spendDay(t, c, end) {
			nextDay(t, c, end)
			return
		}
		// This machine was too slow for such a day: what was seen of it says nothing.
	}
}

// writeZone writes the data of a time zone in which it is midnight at an instant: one offset from
// UTC, for ever (RFC 8536).
func writeZone(t *testing.T, path string, midnight time.Time) *time.Location {
	t.Helper()
	const day = 24 * 60 * 60
	offset := (day - midnight.Unix()%day) % day
	if offset > day/2 {
		offset -= day
	}
	data := append([]byte("TZif"), make([]byte, 16)...)
	for _, count := range []uint32{0, 0, 0, 0, 1, 5} { // one type, and the bytes of its name
		data = binary.BigEndian.AppendUint32(data, count)
	}
	data = binary.BigEndian.AppendUint32(data, uint32(int32(offset)))
	data = append(data, 0, 0)
	data = append(data, "SOON\x00"...)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return time.FixedZone("SOON", int(offset))
}

// spendDay spends all of a day that ends soon. ok is false where it has ended meanwhile.
func spendDay(t *testing.T, c *cluster.Cluster, end time.Time) (ok bool) {
	t.Helper()
	var wrong []string
	check := func(is bool, format string, args ...any) {
		if !is {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	in := func(condition func() bool) { redistest.Poll(time.Until(end), condition) }
	load := client(t, 3)
	check(load.Burst(t.Context(), c.Nodes, "/soon", 30, nil).Admitted() == 30, "the day's first 30 requests are not all admitted")
	strict := load.Burst(t.Context(), c.Nodes, "/strict", 45, nil)
	check(strict.Admitted() == 30 && strict.Denied() == 15, "redis admits %d of 45 requests and denies %d, want 30 and 15", strict.Admitted(), strict.Denied())
	for _, n := range c.Nodes {
		in(func() bool { return status(t, n, "soon").Known() == 30 })
		for _, name := range []string{"soon", "strict"} {
			before := time.Now()
			a := answerTo(t, "http://"+n.Addr+"/"+name)
			check(a.status == http.StatusTooManyRequests, "node %d answers /%s with %d, want a denial", n.Number, name, a.status)
			early, late := end.Sub(time.Now().Add(a.wait())), before.Add(a.wait()).Sub(end)
			check(early < time.Second && late < 2*time.Second, "node %d tells a client of /%s to wait %v, where the day ends in %v", n.Number, name, a.wait(), time.Until(end))
			out, _ := command(t, n, "explain", name, "127.0.0.1")
			if !time.Now().Before(end) {
				return false
			}
			check(strings.Contains(out, "until "+end.Format(time.RFC3339)), "explain says of %s, where the day ends at %s:\n%s", name, end.Format(time.RFC3339), out)
		}
	}
	if !time.Now().Before(end) {
		return false
	}
	for _, what := range wrong {
		t.Error(what)
	}
	return true
}

// nextDay has requests come over the end of the day, and looks at the next one.
func nextDay(t *testing.T, c *cluster.Cluster, end time.Time) {
	t.Helper()
	tally, stop := load(t, client(t, 6), c.Nodes, "strict", 60)
	eventually(t, "redis admits the next day's limit", func() error {
		if n := tally.Admitted(); n < 30 {
			return fmt.Errorf("%d were admitted", n)
		}
		return nil
	})
	if time.Now().Before(end.Add(-time.Second)) {
		t.Errorf("redis admits them %v before the end of the day", time.Until(end))
	}
	awaitAnswers(t, tally, 30)
	if stop(); tally.Admitted() != 30 {
		t.Errorf("over the end of the day redis admits %d, want 30", tally.Admitted())
	}
	// Between two syncs a node may take the others to have spent more than they have.
	for i := range 30 {
		eventually(t, "a request of the next day is admitted", func() error {
			if a := answerTo(t, "http://"+c.Nodes[i%3].Addr+"/soon"); a.status != http.StatusOK {
				return fmt.Errorf("request %d: %d", i, a.status)
			}
			return nil
		})
	}
	awaitKnown(t, c.Nodes, "soon", 30)
	for _, n := range c.Nodes {
		for _, name := range []string{"soon", "strict"} {
			a := answerTo(t, "http://"+n.Addr+"/"+name)
			if a.status != http.StatusTooManyRequests || a.wait() < 20*time.Hour || a.wait() > 24*time.Hour {
				t.Errorf("on the next day node %d answers /%s with %d and to wait %v, want a denial and nearly a day", n.Number, name, a.status, a.wait())
			}
		}
	}
}
