package algorithms

import (
	"testing"
	"time"
)

// An event of a history: at this time after an aligned instant n units are asked for, and
// this is the answer. Times are in ms.
type event struct {
	at, n     int64
	allowed   bool
	remaining int64
	retry     int64
	next      int64
	reset     int64
}

const yes, no = true, false

// histories are what limiters meet, one for each algorithm.
var histories = []struct {
	name string
	s    subject
	life []event
}{
	{"fixed window, 3/1s", fixedWindow.make(3, time.Second, 0), []event{
		{0, 0, yes, 3, 0, 0, 0},
		{100, 1, yes, 2, 0, 900, 900},
		{200, 2, yes, 0, 0, 800, 800},
		{999, 1, no, 0, 1, 1, 1},
		{1000, 1, yes, 2, 0, 1000, 1000},
		{1500, 3, no, 2, 500, 500, 500},
		{1500, 4, no, 2, 1000, 500, 500},
		{4700, 3, yes, 0, 0, 300, 300},
	}},
	{"sliding window, 10/1s", slidingWindow.make(10, time.Second, 0), []event{
		{900, 10, yes, 0, 0, 200, 1100},
		{1000, 1, no, 0, 100, 100, 1000},
		{1100, 1, yes, 0, 0, 100, 1900}, // 1 + 10 x (1 - f) <= 9 from 1200 on.
		{1500, 4, yes, 0, 0, 100, 1500},
		{1500, 6, no, 0, 700, 100, 1500}, // 5 x (1 - f) <= 4 from 2200 on.
		{2000, 0, yes, 5, 0, 200, 1000},
		{3000, 0, yes, 10, 0, 0, 0},
	}},
	{"sliding window in 4 slices, 8/1s", slidingWindow.make(8, time.Second, 4), []event{
		{0, 4, yes, 4, 0, 1063, 1250}, // In [1000, 1250) 4 fade.
		{600, 4, yes, 0, 0, 463, 1150},
		{1000, 1, no, 0, 63, 63, 750},
		{1125, 2, yes, 0, 0, 63, 1125},
		{1250, 2, yes, 0, 0, 313, 1250},
		{1500, 1, no, 0, 63, 63, 1000},
	}},
	{"sliding log, 3/1s", slidingLog.make(3, time.Second, 0), []event{
		{100, 2, yes, 1, 0, 1000, 1000},
		{600, 1, yes, 0, 0, 500, 1000},
		{1099, 1, no, 0, 1, 1, 501},
		{1100, 1, yes, 1, 0, 500, 1000},
		{1100, 3, no, 1, 1000, 500, 1000},
		{1600, 4, no, 2, 1000, 500, 500},
		{2100, 0, yes, 3, 0, 0, 0},
	}},
	{"token bucket, 10/1s burst 3", tokenBucket.make(10, time.Second, 3), []event{
		{0, 3, yes, 0, 0, 100, 300},
		{50, 1, no, 0, 50, 50, 250},
		{100, 1, yes, 0, 0, 100, 300},
		{250, 2, no, 1, 50, 50, 150},
		{250, 4, no, 1, 1000, 50, 150},
		{300, 2, yes, 0, 0, 100, 300},
		{9000, 1, yes, 2, 0, 100, 100},
	}},
	{"GCRA, 10/1s burst 1", gcra.make(10, time.Second, 1), []event{
		{0, 1, yes, 0, 0, 100, 100},
		{99, 1, no, 0, 1, 1, 1},
		{100, 1, yes, 0, 0, 100, 100},
		{100, 2, no, 0, 1000, 100, 100},
	}},
	{"leaky bucket, 10/1s queue 2", leakyBucket.make(10, time.Second, 3), []event{
		{0, 1, yes, 2, 0, 100, 100},
		{0, 2, yes, 0, 0, 100, 300},
		{0, 1, no, 0, 100, 100, 300},
		{150, 1, yes, 0, 0, 50, 250},
	}},
}

func TestHistories(t *testing.T) {
	start := epoch - epoch%int64(time.Hour)
	for _, h := range histories {
		s := h.s.fresh()
		for _, e := range h.life {
			got := s.take(start+e.at*1e6, e.n, 0)
			seen := event{e.at, e.n, got.Allowed, got.Remaining, millis(got.Retry), millis(got.Next), millis(got.Reset)}
			if seen != e {
				t.Errorf("%s: got %+v, want %+v", h.name, seen, e)
			}
		}
	}
}

// millis rounds up, as a client that waits must.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
