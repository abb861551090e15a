package ratesync

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What a node has admitted by itself counts as of when it did, though a bucket or a log is full, and once.
func TestStrictChargesWhatANodeAdmittedByItself(t *testing.T) {
	v := newVirtual(t)
	const second = int64(1e6)
	for name, c := range map[string]struct {
		rule Rule
		want []int // admitted when it is charged, and in each of the seconds after it
	}{
		// 6 of 10 seconds ago have drained by 1 when the others come, and drain by 1 each 10 s.
		"token bucket": {Rule{Kind: 't', Limit: 6, Window: time.Minute, Burst: 8}, []int{0, 0, 1, 1}},
		"gcra":         {Rule{Kind: 'g', Limit: 6, Window: time.Minute, Burst: 8}, []int{0, 0, 1, 1}},
		"leaky bucket": {Rule{Kind: 'q', Limit: 6, Window: time.Minute, Queue: 7}, []int{0, 0, 1, 1}},
		// 6 leave a minute after they came, which is 50 s after the charge.
		"log": {Rule{Kind: 'l', Limit: 8, Window: time.Minute}, []int{0, 0, 0, 0, 0, 4}},
	} {
		v.use(name, c.rule)
		now := v.now
		uses := []localUse{{rule: 0, at: now - 10*second, n: 6}, {rule: 0, at: now, n: 4}}
		all, err := v.charge(context.Background(), name, []Rule{c.rule}, id(1), uses, nil)
		if err != nil || all[0].Decision.Remaining != 0 || all[0].Decision.Allowed {
			t.Fatalf("%s: charge(6, 4) = %+v, %v, want none remaining", name, all, err)
		}
		for i, want := range c.want {
			v.set(now + int64(i)*10*second)
			if got := drain(t, v.Strict, name, id(1), c.rule); got != want {
				t.Errorf("%s: %d admitted %d s after the charge, want %d", name, got, i*10, want)
			}
		}
	}
}

// A charge whose reply is lost is sent again, and counts once. The caller hears of it when that is known.
func TestStrictChargeIsDoneOnce(t *testing.T) {
	server := redistest.Start(t)
	for name, rule := range kinds {
		proxy := faultproxy.Start(t, server.Addr)
		s := NewStrict(client(t, "redis://"+proxy.Addr), "test", 100*time.Millisecond)
		soon(t, s, name, id(1), rule)
		proxy.Set(faultproxy.DropReplies)
		result := make(chan error, 1)
		go func() {
			_, err := s.charge(context.Background(), name, []Rule{rule}, id(1), []localUse{{at: time.Now().UnixMicro(), n: 10}}, nil)
			result <- err
		}()
		redistest.Eventually(t, "the circuit opens", s.Down)
		if _, err := s.charge(context.Background(), name, []Rule{rule}, id(1), []localUse{{n: 10}}, nil); !errors.Is(err, ErrDown) {
			t.Errorf("%s: charge() = %v while Redis is known not to answer, want ErrDown", name, err)
		}
		proxy.Set(faultproxy.None)
		if err := <-result; err != nil {
			t.Errorf("%s: charge() = %v after Redis is back", name, err)
		}
		if got := drain(t, strict(t, server.URL), name, id(1), rule); got != 89 {
			t.Errorf("%s: %d admitted after one and 10 that were charged, want 89", name, got)
		}
		s.Close()
	}
}
