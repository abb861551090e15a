//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// mark is in every hostile key. It must not be anywhere else.
const mark = "sEcReT"

// hostile are keys as attackers send them, in a query.
func hostile() map[string]string {
	return map[string]string{
		"20 kB":        mark + strings.Repeat("x", 20_000),
		"20 kB, again": mark + strings.Repeat("x", 19_999) + "y",
		"binary":       mark + "\x00\xff\xfe\x1b[2J",
		"line breaks":  mark + "\r\nX-Evil: 1\r\n",
		"braces":       "{}" + mark,
		"hash tag":     "{0}" + mark,
		"placeholder":  "{client_ip}" + mark,
		"separators":   mark + ":a|b\x1f",
		"not UTF-8":    mark + "\xc3\x28",
	}
}

// Whatever the key is, it has a limit of its own; nothing of it stands in Redis or in a log, and a
// flood of denials writes a few lines.
func TestHostileKeys(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	const key = "key {http.request.uri.query.k}"
	c := start(t, 2, config("redis "+r.URL+"\nstrict_timeout 20s\nsync_rate 100ms", zones(
		zone("shared", "limit 10/"+far, "algorithm fixed_window", key),
		zone("strict", "limit 10/"+far, "algorithm sliding_window", key, "sync_rate 0"),
		zone("log", "limit 10/"+far, "algorithm sliding_log", key, "sync_rate 0"),
		zone("header", "limit 10/"+far, "algorithm token_bucket", "key {http.request.header.X-Key}"),
	)))
	requests := client(t, 20)
	for name, text := range hostile() {
		for _, z := range []string{"shared", "strict", "log"} {
			path := "/" + z + "?k=" + url.QueryEscape(text)
			expectTen(t, requests.Burst(t.Context(), c.Nodes[:1], path, 30, nil), z+", key "+name)
		}
	}
	big := func(r *http.Request) { r.Header.Set("X-Key", mark+strings.Repeat("y", 20_000)) }
	expectTen(t, requests.Burst(t.Context(), c.Nodes[:1], "/header", 30, big), "a header of 20 kB")
	// An empty key is the client's address, by default.
	expectTen(t, requests.Burst(t.Context(), c.Nodes[:1], "/shared?k=", 15, nil), "an empty key")
	if got := requests.Burst(t.Context(), c.Nodes[:1], "/shared", 15, nil).Admitted(); got != 0 {
		t.Errorf("a missing key after an empty one: %d requests were admitted, want none, for both are the client's address", got)
	}
	// Ten thousand denials, of one key and of many.
	flood := requests.Burst(t.Context(), c.Nodes[:1], "/strict?k="+url.QueryEscape(hostile()["binary"]), 2000, nil)
	for name := range hostile() {
		flood := requests.Burst(t.Context(), c.Nodes[:1], "/shared?k="+url.QueryEscape(hostile()[name]), 1000, nil)
		if flood.Denied() != 1000 {
			t.Errorf("of 1000 requests with a spent key %d were denied", flood.Denied())
		}
	}
	if flood.Denied() != 2000 {
		t.Errorf("of 2000 requests with a spent key %d were denied", flood.Denied())
	}
	awaitSent(t, c.Nodes, "shared")
	awaitTotal(t, r, "shared", 10*(len(hostile())+1))
	searchRedis(t, r)
	checkLogs(t, c)
}

func expectTen(t *testing.T, tally *cluster.Tally, what string) {
	t.Helper()
	if tally.Admitted() != 10 || tally.Denied() != tally.Sent()-10 {
		_, err := tally.Errors()
		t.Errorf("%s: of %d requests %d were admitted and %d denied, want 10 admitted (first error: %v)",
			what, tally.Sent(), tally.Admitted(), tally.Denied(), err)
	}
}

// searchRedis fails if anything in Redis is not plain text, is long, or holds the mark.
func searchRedis(t *testing.T, r *redistest.Server) {
	t.Helper()
	rc := r.Client()
	found := 0
	keys := rc.Scan(t.Context(), 0, "*", 1000).Iterator()
	for keys.Next(t.Context()) {
		name := keys.Val()
		found++
		content := name
		switch kind := rc.Type(t.Context(), name).Val(); kind {
		case "hash":
			content += fmt.Sprint(rc.HGetAll(t.Context(), name).Val())
		case "string":
			content += rc.Get(t.Context(), name).Val()
		case "zset":
			content += fmt.Sprint(rc.ZRange(t.Context(), name, 0, -1).Val())
		case "none": // it has ended meanwhile
		default:
			t.Errorf("redis has %q, a %s that this test can't look into", name, kind)
		}
		if strings.Contains(content, mark) || strings.ContainsFunc(content, func(c rune) bool { return c < ' ' || c > '~' }) || len(name) > 128 {
			t.Errorf("redis has bytes of a client: %.200q", content)
		}
	}
	if err := keys.Err(); err != nil || found < len(hostile()) {
		t.Errorf("SCAN found %d keys, %v", found, err)
	}
}

// checkLogs fails if a node wrote much, or bytes of a client.
func checkLogs(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		if lines := n.Log.With("rate limit exceeded"); len(lines) > 40 {
			t.Errorf("node %d wrote %d lines about denials, the last: %s", n.Number, len(lines), lines[len(lines)-1])
		}
		if lines := n.Log.Lines(); len(lines) > 100 {
			t.Errorf("node %d wrote %d lines, the last: %s", n.Number, len(lines), lines[len(lines)-1])
		}
		for _, line := range n.Log.With(mark) {
			t.Errorf("node %d wrote bytes of a key: %.200q", n.Number, line)
		}
	}
}
