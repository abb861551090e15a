//go:build chaos

package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// ruleOfTheDocs is what docs/redis.md has in the place of a group.
func ruleOfTheDocs(t *testing.T, pattern string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(pattern).FindSubmatch(page)
	if found == nil {
		t.Fatalf("docs/redis.md has nothing like %s", pattern)
	}
	return string(found[1])
}

// The Redis of a region may be a Cluster, watched by Sentinel or reached by TLS, each with the
// users of the documentation and nothing more: the nodes of a region may write in their own, and
// only read in the others. What one of them counts is known to the others, also in strict mode,
// and after a failover.
func TestRegionsOfEachKindOfRedis(t *testing.T) {
	t.Parallel()
	writes, reads := rulesOfTheDocs(t), ruleOfTheDocs(t, `(?m)^user us (on >secret .*)$`)
	ofClusters := " " + ruleOfTheDocs(t, "for a Cluster: `([^`]+)`")
	writer, reader := redistest.User("tide", writes), redistest.User("reader", reads)
	shards := redistest.StartCluster(t, 3, redistest.User("tide", writes+ofClusters), redistest.User("reader", reads+ofClusters))
	watched := redistest.StartSentinels(t, 3, writer, reader)
	secure := redistest.Start(t, redistest.TLS(false), writer, reader)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte(secure.CA), 0o600); err != nil {
		t.Fatal(err)
	}
	regionsOf := func(here string) string {
		user := map[string]string{"shards": "reader", "watched": "reader", "secure": "reader"}
		user[here] = "tide"
		url := func(name, url string) string {
			return strings.Replace(url, "redis://", "redis://"+user[name]+":secret@", 1)
		}
		return "regions {\nhere " + here + "\nregion shards " + url("shards", shards.URL) + "\nregion watched " + url("watched", watched.URL) +
			"\nregion secure {\naddress " + secure.Addr + "\nusername " + user["secure"] + "\npassword secret\ntls_enabled\ntls_server_certs_path " + ca + "\n}\n}"
	}
	site := zones(zone("window", "key all", "limit 60/"+far), zone("bucket", "key all", "limit 60/"+far, "algorithm token_bucket"),
		zone("strict", "key all", "limit 60/"+far, "sync_rate strict"))
	servers := map[string]func() []*redistest.Server{
		"shards": func() []*redistest.Server { return shards.Nodes }, "watched": func() []*redistest.Server { return []*redistest.Server{watched.Master} },
		"secure": func() []*redistest.Server { return []*redistest.Server{secure} },
	}
	nodes, c := make(map[string][]*cluster.Node), client(t, 4)
	for name := range servers {
		nodes[name] = start(t, 1, config(regionsOf(name), site)).Nodes
	}
	names, sent := []string{"window", "bucket", "strict"}, 0
	round := func(n int) {
		t.Helper()
		for _, of := range nodes {
			sent += n
			for _, zone := range names {
				admit(t, c, of, zone, n)
			}
		}
		for _, servers := range servers {
			for _, zone := range names {
				awaitTotalOfAll(t, servers, zone, sent)
			}
		}
	}
	round(4)
	if n := watched.Master.Do("WAIT", 1, 4000).(int64); n != 1 {
		t.Fatal("the replica has not caught up within 4 s")
	}
	watched.Failover()
	awaitUp(t, nodes["watched"][0])
	round(3)
	doneAtLast(t, nodes["secure"][0], "told to 2 of 2 regions", "reset window --all")
	for _, servers := range servers {
		for _, r := range servers() {
			if denied, _ := r.Do("ACL", "LOG").([]any); len(denied) > 0 {
				t.Errorf("the user of the documentation lacks permissions: %v", denied)
			}
		}
	}
}

// awaitTotalOfAll waits until servers hold a total together.
func awaitTotalOfAll(t *testing.T, servers func() []*redistest.Server, zone string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("redis counts %d requests of zone %s", want, zone), func() error {
		got := 0
		for _, r := range servers() {
			got += total(t, r, zone)
		}
		if got != want {
			return fmt.Errorf("it counts %d", got)
		}
		return nil
	})
}
