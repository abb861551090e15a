package limits

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Of any keys in any order the heap keeps those that sorting finds.
func TestMostKeepsTheGreatest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		amounts := rapid.SliceOfN(rapid.Int64Range(0, 30), 0, 200).Draw(rt, "amounts")
		n := rapid.IntRange(0, 40).Draw(rt, "n")
		by := rapid.SampledFrom([]TopBy{ByUsed, ByAsked}).Draw(rt, "by")
		m := NewTopKeys(by, n)
		for i, a := range amounts {
			s := table.Spend{ID: keys.ID{byte(i)}, Used: 1, Asked: 1}
			switch by {
			case ByUsed:
				s.Used = a
			case ByAsked:
				s.Asked = a
			}
			m.Add(s)
		}
		slices.SortFunc(amounts, func(a, b int64) int { return cmp.Compare(b, a) })
		amounts = slices.DeleteFunc(amounts, func(a int64) bool { return a == 0 })
		var got []int64
		for _, s := range m.Rows() {
			got = append(got, by.of(s))
		}
		if want := amounts[:min(n, len(amounts))]; !slices.Equal(got, want) {
			rt.Fatalf("%d by %s of %d: %d, want %d", n, by, len(amounts), got, want)
		}
	})
}

// Add runs under a lock of requests.
func TestAddAllocatesNothing(t *testing.T) {
	m, i := NewTopKeys(ByUsed, 20), int64(0)
	if n := testing.AllocsPerRun(1000, func() { i++; m.Add(table.Spend{Used: i}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNamesOfWantedKeys(t *testing.T) {
	var n KeyNames
	a, b := keys.KeyOf([]byte("a")), keys.KeyOf([]byte("b"))
	const now = 1e18
	leave := func(key keys.Key, at int64, text string) bool {
		wants := n.Wants(key, at)
		if wants {
			n.Put(key, text)
		}
		return wants
	}
	if leave(a, now, "a") || n.Of(a) != "" {
		t.Error("a name was left that nobody wants")
	}
	n.Want([]table.Spend{{Key: a}}, now)
	if leave(b, now, "b") || !leave(a, now, "a") || leave(a, now, "again") || fmt.Sprint(n.Of(a), n.Of(b)) != "a" {
		t.Errorf("the names are %q and %q", n.Of(a), n.Of(b))
	}
	n.Want([]table.Spend{{Key: a}, {Key: b}}, now+wantedFor/2)
	if n.Of(a) != "a" {
		t.Error("a known name was forgotten")
	}
	if leave(b, now+2*wantedFor, "b") || n.wanted.Load() != nil {
		t.Error("names are wanted a minute later")
	}
}
