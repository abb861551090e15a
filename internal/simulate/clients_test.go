package simulate

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What a client sent in any window is never too low, and too high by what comes in a tenth of the
// window at most.
func TestMostOfAClient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.Int64Range(parts, 1e12).Draw(t, "window")
		part := partOf(time.Duration(window))
		var c client
		var at []int64
		now := rapid.Int64Range(0, 1e12).Draw(t, "begin")
		var got int64
		for range rapid.IntRange(1, 200).Draw(t, "requests") {
			now += rapid.Int64Range(0, window/3).Draw(t, "gap")
			at = append(at, now)
			c.advance(now / part)
			got = max(got, c.add(1))
		}
		most := func(in int64) (most int64) {
			for i := range at {
				n := int64(0)
				for j := i; j < len(at) && at[j] < at[i]+in; j++ {
					n++
				}
				most = max(most, n)
			}
			return most
		}
		if exact, wider := most(parts*part), most((parts+1)*part); got < exact || got > wider || got != c.most {
			t.Fatalf("the most in a window is %d, want %d to %d", got, exact, wider)
		}
	})
}

// Beyond so many clients a sample of them says what all did.
func TestManyClients(t *testing.T) {
	const n = 5 * maxClients
	var all clients
	rng := rand.New(rand.NewPCG(1, 2))
	for range n {
		if c := all.of(rng.Uint64()); c != nil {
			for range 1 + rng.IntN(100) {
				c.add(1)
			}
		}
	}
	if len(all.all) > maxClients || math.Abs(float64(all.count())-n) > .02*n {
		t.Errorf("of %d clients %d are counted, and %d held", n, all.count(), len(all.all))
	}
	mosts := all.mosts()
	for share, want := range map[float64]float64{.5: 50, .9: 90, .99: 99} {
		if got := float64(quantile(mosts, share)); math.Abs(got-want) > 2 {
			t.Errorf("%g of the clients sent at most %g, want %g", share, got, want)
		}
	}
	for i := range all.all {
		if c := all.of(all.all[i].hash); c != &all.all[i] {
			t.Fatalf("client %d is found as another one", i)
		}
	}
}

func TestQuantiles(t *testing.T) {
	for _, test := range []struct {
		all   []int64
		share float64
		want  int64
	}{
		{nil, .5, 0}, {[]int64{7}, .5, 7}, {[]int64{7}, .999, 7}, {[]int64{1, 2}, .5, 1}, {[]int64{1, 2, 3}, .5, 2}, {[]int64{1, 2, 3, 4}, .9, 4},
	} {
		if got := quantile(test.all, test.share); got != test.want {
			t.Errorf("quantile %g of %v is %d, want %d", test.share, test.all, got, test.want)
		}
	}
}

func TestNumbersAround(t *testing.T) {
	for limit, want := range map[int64][]int64{
		1: {1, 2, 5, 10}, 5: {1, 2, 5, 10, 20, 50}, 100: {10, 20, 50, 100, 200, 500, 1000}, 30: {5, 10, 20, 30, 50, 100, 200},
	} {
		if got := numbersAround(limit); !slices.Equal(got, want) {
			t.Errorf("around %d are %v, want %v", limit, got, want)
		}
	}
	for _, limit := range []int64{3, 999, 1e12} {
		if got := numbersAround(limit); len(got) > 8 || !slices.Contains(got, limit) || !slices.IsSorted(got) {
			t.Errorf("around %d are %v", limit, got)
		}
	}
}

func TestMasked(t *testing.T) {
	for key, want := range map[string]string{
		"203.0.113.9": "203.0.113.0/24", "2001:db8:1:2::/64": "2001:db8:1::/48", "client_ip:203.0.113.9": "client_ip:203.0.113.0/24", "203.0.113.9/24": "203.0.113.0/24",
	} {
		if got := masked(key); got != want {
			t.Errorf("%s is shown as %s, want %s", key, got, want)
		}
	}
	for _, secret := range []string{"secret-token-4711", "203.0.113.9 /login", "alice@example.com", ""} {
		if got := masked(secret); !strings.HasPrefix(got, "(key ") || secret != "" && strings.Contains(got, secret) || got != masked(secret) {
			t.Errorf("%q is shown as %s", secret, got)
		}
	}
}

func TestPlaceholders(t *testing.T) {
	for text, want := range map[string][]string{"": nil, "all": nil, "{a} {b.c}": {"a", "b.c"}, "{a": nil, "x{a}y}{b}": {"a", "b"}} {
		var p Policy
		if p.goBy(text); !slices.Equal(p.fields, want) {
			t.Errorf("in %q are %v, want %v", text, p.fields, want)
		}
	}
}

// Matchers that look at no header don't make all headers be read.
func TestWhatMatchersDo(t *testing.T) {
	for text, want := range map[string]bool{
		`[]`: false, `[{"path":["/a"],"method":["GET"]}]`: false, `[{"not":[{"client_ip":{"ranges":["10.0.0.0/8"]}}]}]`: false,
		`[{"header":{"X":["y"]}}]`: true, `[{"path_regexp":{"pattern":"a"}}]`: false, `[{"share":0.2,"match":[{"path":["/"]}]}]`: false,
	} {
		var p Policy
		if p.note(decoded(t, text)); p.sees != want {
			t.Errorf("of %s: sees %t, want %t", text, p.sees, want)
		}
	}
}

func decoded(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
