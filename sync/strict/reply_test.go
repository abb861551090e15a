package strict

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// replyOf makes of JSON what the client makes of a reply: whole numbers are int64, all else that is
// no list is text or nil.
func replyOf(text []byte) (any, bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil, false
	}
	return fromJSON(v), true
}

func fromJSON(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		return v.String()
	case []any:
		for i := range v {
			v[i] = fromJSON(v[i])
		}
		return v
	case string:
		return v
	}
	return nil
}

// sane fails unless a decision can be sent to a client.
func sane(t *testing.T, d algorithms.Decision, limit int64) {
	t.Helper()
	if d.Remaining < 0 || d.Remaining > limit || d.Retry < 0 || d.Next < 0 || d.Reset < 0 || d.Delay < 0 || !d.Allowed && d.Retry == 0 {
		t.Errorf("decision %+v of a limit of %d", d, limit)
	}
}

const replied = int64(1_795_249_670_000_000) // microseconds

// FuzzReply: whatever answers in Redis' place, a request gets an error or a decision that makes
// sense.
//
// no clock: the time is that of the reply.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		`[1, 1795249670000000, [5, 29920827, 3, 1]]`, `[0, 1795249670000000, [0, 29920827, 10, 0]]`, `[2, 1795249670000000, [1, 4, 100], [7, 1, 2]]`,
		`[1, 1795249670000000, [9, 1, 1795249670000000, 1795249670000000]]`, `[0, 1795249670000000, [0, 10, 1795249669999999, 1795249669999999]]`,
		`[1, 1795249670000000, [3, 7, 59999999]]`, `[-1, 1795249670000000]`, `[9007199254740993, 0, [0, 0]]`, `[1, -5, [1, 1]]`, `["x", null, []]`, `{}`,
		`[0, 1795249670000000, [0, 9007199254740992, -9007199254740992, 1795249670000000]]`,
	} {
		for k := range uint8(len(fuzzedKinds)) {
			f.Add([]byte(seed), k, int64(2), int64(1))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, k uint8, wanted, position int64) {
		reply, ok := replyOf(text)
		if wanted < 1 || wanted > 1024 || position < 1 || position > wanted || !ok {
			t.Skip()
		}
		r := Rule{Kind: fuzzedKinds[k%uint8(len(fuzzedKinds))], Limit: 10, Window: time.Minute, Buckets: 1 + int(k)%7, Burst: int64(k) % 20, Queue: int64(k) % 15}
		rules := []Rule{r}
		if list, _ := reply.([]any); len(list) > 3 {
			r.Window = time.Hour
			rules = append(rules, r)
		}
		b := like(rules, run{wanted, 1 + int64(k)/4})
		all, err := parseOutcomes(reply, len(rules), b.runs)
		if err != nil {
			return
		}
		o := all[0]
		o.deny()
		b.tell(o, reset.Reset{})
		at, denied := b.waiters[position-1].place, false
		for _, v := range verdicts(rules, o, at, nil) {
			sane(t, v.Decision, max(10, r.size(), exact))
			denied = denied || !v.Decision.Allowed
			merge(t, v.Reports)
		}
		if denied == at.admitted {
			t.Errorf("the %d. of %d granted: %+v, denied %v", position, o.granted, at, denied)
		}
	})
}

// fuzzedKinds are in the order that the fuzz corpus was made with.
var fuzzedKinds = [...]algorithms.Kind{
	algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket,
}

// merge takes reports in as a node does, and asks.
//
// no clock: the time is that of the reply.
func merge(t *testing.T, reports []algorithms.Report) {
	t.Helper()
	now, alg := replied*int64(time.Microsecond), algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Window: time.Minute}
	m := &modelOf[algorithms.BucketState]{Machine: algorithms.MachineOf[algorithms.BucketState](alg.Kind), limit: alg.Compile()}
	for range 2 {
		m.Merge(&m.state, m.limit, now, reports)
		sane(t, m.take(now), 10)
		now += int64(time.Second)
	}
}
