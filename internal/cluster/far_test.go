//go:build chaos

package cluster_test

import (
	"testing"
	"time"
)

// farAway is the round trip to a Redis that is far away.
const farAway = 50 * time.Millisecond

// The faults of one Redis, which is far away from all nodes and none the less kept.
func TestFaultFarAway(t *testing.T) {
	faults := []struct {
		name string
		test func(*testing.T)
	}{
		{"ReplyLost", TestFaultReplyLost},
		{"FlushAll", TestFaultFlushAll},
		{"OneNodeCutOff", TestFaultOneNodeCutOff},
		{"Latency", TestFaultLatency},
		{"NeverAnswers", TestFaultNeverAnswers},
		{"Reset", TestFaultReset},
		{"HalfClose", TestFaultHalfClose},
		{"OutOfMemory", TestFaultOutOfMemory},
		{"ReadOnly", TestFaultReadOnly},
		{"KilledMidSync", TestFaultKilledMidSync},
		{"ScriptFlush", TestFaultScriptFlush},
		{"Evicted", TestFaultEvicted},
		{"NodeKilled", TestFaultNodeKilled},
		{"NodeTerminated", TestFaultNodeTerminated},
		{"Flapping", TestFaultFlapping},
	}
	for _, f := range faults {
		t.Run(f.name, f.test)
	}
}
