package strict

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A window in strict mode has other regions told of what it admits as the sync does: from the
// threshold on, and whatever another region has told of; at once when it grows by much of what is
// left. What others have told counts. Without regions nothing is told.
func TestStrictWindowsTellOtherRegions(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	s := New(client, "ns", patience)
	defer s.Close()
	rules := []Rule{{Kind: algorithms.FixedWindow, Limit: 640, Window: 30 * 24 * time.Hour}}
	take := func(key [16]byte, n int64) (admitted bool, left int64) {
		t.Helper()
		all, g, err := s.Take(t.Context(), "z", rules, key, n, nil)
		if err != nil {
			t.Fatal(err)
		}
		return g.Admitted(), all[0].Decision.Remaining
	}
	keys := ratesync.NewKeyspace("ns")
	expect := func(what, set string, want ...[16]byte) {
		t.Helper()
		got := client.ZRange(t.Context(), set, 0, -1).Val()
		for i, name := range got {
			got[i] = name[:strings.LastIndexByte(name, ':')] // without the epoch
		}
		slices.Sort(got)
		var names []string
		for _, key := range want {
			names = append(names, keys.Table(rules[0].spec("z")).Of(key))
		}
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Errorf("%s: %s has %q, want %q", what, set, got, names)
		}
	}
	told, hurry := keys.Told(0), keys.Hurry(0)
	take(id(1), 600)
	expect("without regions", told)
	s.Tell("other", 2)
	s.Tell("z", 2)
	take(id(2), 9)
	expect("below a sixty-fourth", told)
	take(id(2), 1)
	expect("at a sixty-fourth", told, id(2))
	expect("it has not grown by a sixteenth of what is left", hurry)
	take(id(2), 30)
	expect("it has", hurry, id(2))
	client.Del(t.Context(), told, hurry)
	take(id(3), 1)
	hash := fmt.Sprint(keys.Table(rules[0].spec("z")).Of(id(3)), ":", clock.Now()/int64(rules[0].Window))
	client.HSet(t.Context(), hash, "~eu", "7 500 500", "~", "500 500 500", "sum", "501 501")
	if admitted, left := take(id(3), 2); !admitted || left != 137 {
		t.Errorf("beside 500 of another region: admitted %t, %d left, want 137 of 640", admitted, left)
	}
	expect("another region has it", told, id(3))
	if admitted, _ := take(id(3), 138); admitted {
		t.Error("more is admitted than another region has left")
	}
	s.Tell("z", 1)
	client.Del(t.Context(), told, hurry)
	take(id(2), 100)
	expect("regions off", told)
}
