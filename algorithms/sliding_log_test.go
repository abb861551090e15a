package algorithms

import (
	"testing"
	"time"
)

func TestALogKeepsWhatAnUnreportedEpochHolds(t *testing.T) {
	log := keyOf[LogState](Params{Kind: SlidingLog, Limit: 10, Window: time.Minute})
	at := func(sec int64) int64 { return sec * int64(time.Second) }
	log.merge(at(50), Report{Epoch: 0, Remote: 10})
	log.take(at(80), 0, 0)
	log.ledger().Synced = false                    // the table does this for a key that paused,
	log.merge(at(80), Report{Epoch: 1, Remote: 0}) // and asks for nothing that it knows to be final
	if d := log.take(at(81), 1, 0); d.Allowed {
		t.Errorf("10 of 10 were spent on other nodes 31 s ago: got %+v, want a denial", d)
	}
}

func TestALogGivesBackOnlyWhatIsInTheWindow(t *testing.T) {
	log := keyOf[LogState](Params{Kind: SlidingLog, Limit: 2, Window: time.Minute})
	at := func(sec int64) int64 { return sec * int64(time.Second) }
	log.take(at(0), 1, 0)
	log.take(at(70), 1, 0)
	log.refund(at(0), 1) // later than a window after it was taken
	if d := log.take(at(70), 0, 0); d.Remaining != 1 {
		t.Errorf("what was taken 70 s ago is refunded: %+v, want one remaining, as the request of now still counts", d)
	}
}
