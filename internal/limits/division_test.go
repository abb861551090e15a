package limits

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/config"
)

// Sides that share no region take at most the limit together, where it is as much as there are
// regions. None takes nothing of something, and the nodes of a side take what it has, rounded up.
func TestSidesTakeNoMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.Int64Range(2, 16).Draw(t, "regions")
		n := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 1<<62)).Draw(t, "limit")
		sum := int64(0)
		for left := of; left > 0; {
			k := rapid.Int64Range(1, left).Draw(t, "side")
			left -= k
			part := division{k, of, 1}.part(n)
			if n > 0 && part < 1 || part > n {
				t.Fatalf("%d of %d regions take %d of %d", k, of, part, n)
			}
			nodes := rapid.Int64Range(1, 50).Draw(t, "nodes")
			if one := (division{k, of, nodes}).part(n); one*nodes < part || (one-1)*nodes >= part && part > 0 {
				t.Fatalf("each of %d nodes takes %d of %d", nodes, one, part)
			}
			sum += part
		}
		if sum > max(n, of) {
			t.Fatalf("the sides take %d of %d", sum, n)
		}
	})
}

// A side's limits are the zone's, divided: the same ones each time, for Redis as well, and those of
// a request are its own. What answers tell of is the whole limit.
func TestLimitsOfASide(t *testing.T) {
	z := arranged(t, config.Settings{Name: "side", Key: "all", Kind: algorithms.TokenBucket, Burst: 7, Limits: []config.Rate{{Limit: 100, Window: 30 * 24 * time.Hour}}})[0]
	s := division{1, 3, 1}
	all := z.divide(z.AllLimits, s, &z.bySides)
	if again := z.divide(all, s, &z.bySides); &again[0] != &all[0] {
		t.Error("the limits of a side are made for each request")
	}
	if e := all[0].Effective; e.N != 33 || e.Size != 2 || all[0].Rate.Limit != 100 || z.AllLimits[0].Effective.N != 100 {
		t.Errorf("a third is %+v, of %+v", e, z.AllLimits[0].Effective)
	}
	if e := (&check{Zone: z, limits: all}).request().Limits[0]; e.N != 33 || e.Size != 2 {
		t.Errorf("Redis is asked for %+v", e)
	}
	own := []Limit{z.AllLimits[0].With(10)}
	if got := z.divide(own, s, &z.bySides); &got[0] != &own[0] || got[0].Effective.N != 3 {
		t.Errorf("a third of a limit of 10 is %+v", got[0].Effective)
	}
	if got := z.divide(own, division{1, 1, 6}, &z.byNodes); got[0].Effective.N != 2 {
		t.Errorf("the part of one of 6 nodes of a limit of 10, of which a side had a third, is %+v", got[0].Effective)
	}
	if got := z.divide(nil, s, &z.bySides); len(got) > 0 {
		t.Errorf("a request without limits has %d", len(got))
	}
}
