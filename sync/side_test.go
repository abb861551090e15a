package ratesync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// However regions are cut off from each other, none admits more than the part of its side by what
// it knows of, and all sides together at most the limit; where a cut divides a pair and not sides,
// at most (n+1)^2/4n limits. When the links are back, all have the same sums and admit the rest of
// the whole limit.
//
// bubble: it runs sides in one.
func TestSidesAdmitTheirParts(t *testing.T) {
	t.Parallel()
	window := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 18, Window: 24 * time.Hour}
	bucket := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 18, Burst: 18, Window: 30 * 24 * time.Hour}
	twoSides := [][2]int{{0, 1}, {1, 0}, {0, 2}, {2, 0}}
	for name, run := range map[string]func(*testing.T){
		"two sides, window": func(t *testing.T) { sides[algorithms.WindowState](t, window, twoSides, 18) },
		"three sides, bucket": func(t *testing.T) {
			sides[algorithms.BucketState](t, bucket, append(twoSides, [2]int{1, 2}, [2]int{2, 1}), 18)
		},
		"one way, window": func(t *testing.T) { sides[algorithms.WindowState](t, window, [][2]int{{0, 1}}, 24) },
	} {
		if redistest.Raced && name != "two sides, window" {
			continue
		}
		t.Run(name, func(t *testing.T) { synctest.Test(t, run) })
	}
}

// sides cuts links between three regions, each a way from one to another, floods one region after
// the other, and heals the links. All regions together may admit so much meanwhile.
//
// bubble: of the test.
func sides[S any](t *testing.T, alg algorithms.Params, cuts [][2]int, most int64) {
	w := newWorld[S](t, 1, alg, 3)
	w.names, w.divides = w.names[:1], true
	time.Sleep(12 * time.Hour)
	// A node learns of what another one has just admitted only by its own next request.
	const unseen = 2
	var admitted [3]int64
	for _, r := range w.regions {
		w.join(r)
		w.join(r)
	}
	time.Sleep(time.Minute)
	flood := func(region, requests int) { admitted[region] += w.flood(w.regions[region], requests) }
	total := func() int64 { return admitted[0] + admitted[1] + admitted[2] }
	for region := range w.regions {
		flood(region, 1)
	}
	var isCut [3][3]bool
	for _, c := range cuts {
		isCut[c[0]][c[1]] = true
		link := w.regions[c[0]].links[w.regions[c[1]].name]
		link.become(&link.lost, 1)
	}
	time.Sleep(lostRegionAfter + relayLease + 3*time.Second)
	start := admitted
	for region := range w.regions {
		heard, known := int64(0), int64(0)
		for other := range w.regions {
			if !isCut[region][other] && !isCut[other][region] {
				heard++
			}
			if known += start[other]; !isCut[region][other] { // counts are read
				known += admitted[other] - start[other]
			}
		}
		flood(region, 16)
		got, want := admitted[region]-start[region], max(0, alg.Limit*heard/3-known)
		if got < want || got > want+unseen {
			t.Errorf("region %d knows of %d, hears %d of 3 regions, and has admitted %d more, want %d", region, known, heard, got, want)
		}
	}
	if total() > most+3*unseen {
		t.Errorf("all sides together have admitted %d", total())
	}
	w.settle()
	w.compare()
	want := max(alg.Limit, total())
	for region := range w.regions {
		flood(region, 16)
	}
	if got := total(); got < want || got > want+3*unseen {
		t.Errorf("in the end all regions have admitted %d, want %d", got, want)
	}
	time.Sleep(10 * time.Second)
	w.compare()
	w.close()
}

// flood has a region admit what it does by the part of its side, two nodes in turn.
func (w *world[S]) flood(r *testRegion[S], requests int) (admitted int64) {
	for i := range requests {
		m, part := r.nodes[i%2], w.alg
		heard, of := m.rep.Side()
		part.Limit, part.Burst = part.Limit*heard/of, part.Burst*heard/of
		if w.takeBy(m, part, []byte(w.names[0]), 1) {
			admitted++
		}
		time.Sleep(1500 * time.Millisecond)
	}
	return admitted
}
