package cell

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// Which window of a calendar a request is in is decided by Redis' clock, whichever of the two
// windows at a boundary the node says, where their lengths differ.
func TestRedisClockDecidesOnTheWindowOfACalendar(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, date := range []string{"2026-03-29", "2026-10-25"} { // of 23 and of 25 hours
		at, _ := time.ParseInLocation(time.DateOnly, date, berlin)
		day := &algorithms.Calendar{Window: algorithms.Day, Zone: berlin, From: 1}
		span := day.At(at.UnixNano())
		for _, apart := range []time.Duration{-time.Minute, -time.Millisecond, -time.Microsecond, 0, time.Microsecond, time.Millisecond, time.Minute} {
			for _, boundary := range []int64{span.Begin, span.End} {
				for _, node := range []int64{boundary - 1000, boundary} {
					v := newVirtual(t)
					said := day.At(node)
					length := (said.End - said.Begin) / 1000
					f := Rule{Kind: Calendar, Window: time.Duration(said.End - said.Begin), Parts: 1, Kept: 1, Shift: said.Begin/1000 - said.Number*length}
					now := boundary + int64(apart)
					call := Call{Seq: 1, Cells: []Update{{"cell", f.String(), "a", State{Seq: 1, Epoch: said.Number}}}, Asks: []Ask{{3, 1, []Limit{{2, 0}}}}}
					keys, args := argsOf(&call)
					text, err := v.run(now/1000, keys, args)
					var got Answer
					if err == nil {
						err = call.Read(text, &got)
					}
					want := day.At(now)
					if sum := got.Cells[0].Sum; err != nil || got.Grants[0] != 2 || sum.In(want.Number) != 2 || f.Epoch(now/1000) != want.Number {
						t.Errorf("%s: %v from the boundary a node in window %d is granted %v, and all have %+v: want 2 in window %d; %v", date, apart, said.Number, got.Grants, sum, want.Number, err)
					}
					// The key stays for a day after the window, and a minute as all keys.
					end := want.End
					if want != said {
						end = now - 1 // its length is that of the other one
					}
					if stays := time.Duration(got.Cells[0].Sum.End*int64(time.Millisecond) - end); stays < 24*time.Hour || want == said && stays > 24*time.Hour+2*time.Minute {
						t.Errorf("%s: %v from the boundary the key stays %v after the window", date, apart, stays)
					}
				}
			}
		}
	}
}
