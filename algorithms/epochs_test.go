package algorithms

import (
	"math"
	"testing"
	"time"
)

// Nodes whose limits, bursts or queues differ count into the same epochs.
func TestTheEpochsOfABucketDependOnItsWindowAlone(t *testing.T) {
	for _, k := range bucketKinds {
		for window, want := range map[time.Duration]time.Duration{
			100 * time.Millisecond: 10 * time.Second, 10 * time.Second: 10 * time.Second, time.Minute: time.Minute, 720 * time.Hour: 720 * time.Hour,
		} {
			for _, limit := range []int64{0, 1, 50, 1 << 40} {
				for _, size := range []int64{0, 1, 100, 1 << 40} {
					s := k.make(limit, window, size)
					s.take(epoch, 1, 0)
					if got := time.Duration(s.span()); got != want || s.history() != 1 {
						t.Errorf("%s %d/%v of size %d: epochs of %v, %d live; want %v, 1", k.name, limit, window, size, got, s.history(), want)
					}
				}
			}
		}
	}
}

// What a ledger lets go of unsent is carried over as far as it still stands in the bucket.
func TestWhatIsUnsentIsCarriedOverWhileItStands(t *testing.T) {
	const minute = int64(time.Minute)
	start := epoch - epoch%minute
	for _, k := range bucketKinds {
		for _, test := range []struct {
			name         string
			limit        int64
			acked        int64
			then         int64 // admitted an epoch later
			epochs, want int64 // carried when so many have passed
		}{
			{"an epoch later it is held", 1, 0, 0, 1, 0},
			{"two epochs later it has left", 1, 0, 0, 2, 58},
			{"what was confirmed is known", 1, 40, 0, 2, 20},
			{"what came later stands before it", 1, 0, 30, 2, 58},
			{"some epochs later", 1, 0, 0, 5, 55},
			{"it has drained", 60, 0, 0, 2, 0},
		} {
			s := k.make(test.limit, time.Minute, 100)
			s.take(start, 60, 0)
			s.ledger().Cur.Acked = test.acked
			if test.then > 0 {
				s.take(start+minute, test.then, 0)
			}
			s.advance(start + test.epochs*minute)
			if got := s.ledger().Cur.Own; got != test.want {
				t.Errorf("%s: %s: %d carried over, want %d", k.name, test.name, got, test.want)
			}
			got, want := s.ledger().Unsent(1), int64(math.Ceil(s.level(start+test.epochs*minute)))
			if test.epochs > 1 && got > want {
				t.Errorf("%s: %s: %d unsent, with %d in the bucket", k.name, test.name, got, want)
			}
		}
	}
}
