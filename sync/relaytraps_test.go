//go:build chaos

package ratesync

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Very many names are never read by one script: each page has a bounded number, none ends within a
// score, and all of them together have each name once.
func TestManyNamesAreReadInPages(t *testing.T) {
	t.Parallel()
	const many, together = 30_000, 70
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	for first := 0; first < many; first += 1000 {
		var all []redis.Z
		for i := first; i < first+1000; i++ {
			all = append(all, redis.Z{Score: float64(1e15 + i/together), Member: fmt.Sprint("name", i)})
		}
		client.ZAdd(t.Context(), "told", all...)
	}
	seen, after := make(map[string]bool), int64(0)
	for {
		p := parsePage(toldScript.Run(t.Context(), client, []string{"told"}, after, pageSize, ""), "name")
		if p.err != nil || len(p.keys) == 0 {
			break
		}
		if len(p.keys) > pageSize+together {
			t.Fatalf("a page has %d names", len(p.keys))
		}
		for _, name := range p.keys {
			if seen[name] {
				t.Fatalf("%s is read twice", name)
			}
			seen[name] = true
		}
		if p.more != int64(many-len(seen)) {
			t.Fatalf("after %d of %d names come %d", len(seen), many, p.more)
		}
		after = p.last
	}
	if len(seen) != many {
		t.Errorf("%d of %d names are read", len(seen), many)
	}
}
