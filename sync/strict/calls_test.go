package strict

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// What a call may have done is sent again for half a minute, not longer: Redis may not remember it.
func TestOldCorrectionsAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{sent: &group{since: time.Now()}, rollBack: 5, rollBackSince: time.Now()}
		time.Sleep(correctionTime)
		if q.expire(); q.sent == nil || q.rollBack == 0 {
			t.Errorf("after %s: sent %v, rollBack %d, want both kept", correctionTime, q.sent, q.rollBack)
		}
		time.Sleep(time.Second)
		if q.expire(); q.sent != nil || q.rollBack != 0 {
			t.Errorf("later: sent %v, rollBack %d, want none", q.sent, q.rollBack)
		}
	})
}

// Replies that are no outcome are errors, whatever is wrong with them.
func TestRepliesThatAreNoOutcome(t *testing.T) {
	state := []any{int64(9), int64(3)}
	if _, err := parseOutcomes([]any{int64(1), replied, state}, 1, []run{{2, 1}}); err != nil {
		t.Fatalf("parseOutcomes() = %v of what is one", err)
	}
	for _, reply := range []any{
		nil, "OK", int64(1), []any{}, []any{int64(1), replied}, []any{int64(1), replied, state, state},
		[]any{"1", replied, state}, []any{int64(-1), replied, state}, []any{int64(3), replied, state}, []any{int64(1), int64(-1), state},
		[]any{int64(1), int64(math.MaxInt64), state}, []any{int64(1), replied, "9 3"}, []any{int64(1), replied, []any{int64(9)}},
		[]any{int64(1), replied, []any{int64(9), "3"}}, []any{int64(1), replied, []any{int64(9), nil}}, []any{int64(1), replied, []any{int64(9), int64(math.MaxInt64)}},
	} {
		if o, err := parseOutcomes(reply, 1, []run{{2, 1}}); !errors.Is(err, ratesync.ErrReply) {
			t.Errorf("parseOutcomes(%v) = %+v, %v, want ErrReply", reply, o, err)
		}
	}
}

func TestDrainsIsBounded(t *testing.T) {
	for _, c := range []struct {
		limit, whole, rest int64
		window, want       time.Duration
	}{
		{10, -1, 5, time.Second, 0},
		{10, 3, 0, time.Second, 300 * time.Millisecond},
		{3, 1, 0, time.Second, 333334 * time.Microsecond},
		{1, 4000, 0, 30 * 24 * time.Hour, math.MaxInt64},
		{1, 1 << 40, 0, 30 * 24 * time.Hour, math.MaxInt64},
	} {
		r := Rule{Kind: algorithms.TokenBucket, Limit: c.limit, Window: c.window}
		if got := r.drains(c.whole, c.rest); got != c.want {
			t.Errorf("%d + %d/window at %d in %v drain in %v, want %v", c.whole, c.rest, c.limit, c.window, got, c.want)
		}
	}
}

// Rules that have no script in common are an error, and so is everything after Close.
//
// no clock: no Redis is asked.
func TestTakeRejectsWhatItCantAsk(t *testing.T) {
	t.Parallel()
	s := New(client(t, redistest.Start(t).URL), "test", time.Second)
	fixed := Rule{Kind: algorithms.TokenBucket, Limit: 1, Window: time.Minute}
	for name, rules := range map[string][]Rule{
		"none":          nil,
		"two kinds":     {fixed, {Kind: algorithms.GCRA, Limit: 1, Window: time.Minute}},
		"no window":     {{Kind: algorithms.TokenBucket, Limit: 1}},
		"an odd window": {{Kind: algorithms.TokenBucket, Limit: 1, Window: -time.Minute}},
	} {
		if _, g, err := s.Take(context.Background(), "z", rules, id(1), 1, nil); err == nil || g.Admitted() {
			t.Errorf("%s: admitted %t, %v, want an error", name, g.Admitted(), err)
		}
	}
	c := s.Charger("z", Rule{Kind: algorithms.TokenBucket, Limit: 1, Window: time.Minute})
	s.Close()
	if _, _, err := s.Take(context.Background(), "z", []Rule{fixed}, id(1), 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Take() = %v after Close, want ErrClosed", err)
	}
	if err := c.Unavailable(id(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("Unavailable() = %v after Close, want ErrClosed", err)
	}
	if err := c.Failed(id(1), context.DeadlineExceeded); err != nil {
		t.Errorf("Failed() = %v after Close, want that the request asks by itself", err)
	}
}
