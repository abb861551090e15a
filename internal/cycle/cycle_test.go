package cycle

import (
	"testing"
	"time"
)

func TestTurn(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name  string
		due   time.Duration
		early bool
		next  time.Duration
	}{
		{"in time", 0, false, s},
		{"a little late", -s / 4, false, 3 * s / 4},
		{"an interval late", -s, false, 0},
		{"later than that", -5 * s, false, s},
		{"early", s / 4, true, s / 4},
		{"the interval has become shorter", 5 * s, true, s},
	} {
		if early, next := Turn(c.due, s); early != c.early || next != c.next {
			t.Errorf("%s: Turn(%v, %v) = %t, %v, want %t, %v", c.name, c.due, s, early, next, c.early, c.next)
		}
	}
}

func TestRetry(t *testing.T) {
	for _, c := range []struct {
		rate        time.Duration
		first, then time.Duration
	}{
		{20 * time.Millisecond, 20 * time.Millisecond, MinWait},
		{time.Second, MinWait, time.Second},
		{time.Hour, MinWait, time.Hour},
	} {
		if first, then := Retry(c.rate, true), Retry(c.rate, false); first != c.first || then != c.then {
			t.Errorf("Retry(%v) = %v and then %v, want %v and %v", c.rate, first, then, c.first, c.then)
		}
	}
}

func TestCalls(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 100: 1, 101: 2, 250: 3} {
		if got := Calls(n); got != want {
			t.Errorf("Calls(%d) = %d, want %d", n, got, want)
		}
	}
}
