package main

import (
	"testing"
	"time"
)

// TestSubjectsAdmitTheLimit guards the adapters: a comparison of limiters that don't limit alike is
// none.
func TestSubjectsAdmitTheLimit(t *testing.T) {
	for _, kind := range kinds {
		for _, s := range kind.subjects() {
			t.Run(kind.name+"/"+s.name, func(t *testing.T) {
				const limit = 7
				clients, end, err := s.open(limit, time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				defer end()
				keys, take := makeKeys(3), clients()
				for i := range keys {
					admitted := 0
					for range 3 * limit {
						if take(&keys[i]) {
							admitted++
						}
					}
					if admitted != limit {
						t.Errorf("%d requests of key %d: %d admitted, want %d", 3*limit, i, admitted, limit)
					}
				}
			})
		}
	}
}

func TestMedianOfRatiosIsOfTheSameRound(t *testing.T) {
	of, first := []result{{Ns: 10}, {Ns: 100}, {Ns: 1000}}, []result{{Ns: 10}, {Ns: 50}, {Ns: 250}}
	if got := median(of, first, func(r result) float64 { return r.Ns }); got != 2 {
		t.Errorf("median of 10/10, 100/50, 1000/250 = %v, want 2", got)
	}
}
