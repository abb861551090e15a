package ratesync

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A heldCharger is a Charger whose first calls get no reply until they are given up. Calls after
// that are counted at once.
type heldCharger struct {
	held     int32         // how many calls get no reply
	timeout  time.Duration // of a call that a request waits for, 10s if 0
	giveUp   chan struct{} // ends one of them
	calls    atomic.Int32
	contexts atomic.Int32
	// beforeContext is called with the number of each context that CallContext makes.
	beforeContext func(number int32)
}

var errNoReply = errors.New("no reply")

func (c *heldCharger) Charge(ctx context.Context, _ string, charges []Charge) []Receipt {
	receipts := make([]Receipt, len(charges))
	if c.calls.Add(1) > c.held {
		return receipts
	}
	select {
	case <-c.giveUp:
	case <-ctx.Done():
	}
	for i := range receipts {
		receipts[i] = Receipt{Err: errNoReply, Unknown: true}
	}
	return receipts
}

func (c *heldCharger) CallContext(parent context.Context) (context.Context, context.CancelFunc) {
	c.beforeContext(c.contexts.Add(1))
	return context.WithTimeout(parent, cmp.Or(c.timeout, 10*time.Second))
}

func (c *heldCharger) Unavailable(keys.ID) error         { return nil }
func (c *heldCharger) Failed(_ keys.ID, err error) error { return err }

// chargedTable is the table of a bucket of 10, whose decisions are charged.
func chargedTable(maxKeys int) (algorithms.Params, *table.Table[algorithms.BucketState], *Source) {
	alg := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Window: time.Hour, Burst: 10}
	tab := tableOf[algorithms.BucketState](alg, maxKeys)
	tab.Configure(table.SyncConfig{Params: alg, Rate: time.Hour, Charges: true}, maxKeys)
	return alg, tab, NewSource(tab, Spec{Zone: "z", Kind: 't', Window: alg.Window, Buckets: 1})
}

// A request that waits for a charge that another request sends waits for that call only: not for
// the next one, which may begin before the request has begun to wait.
func TestARequestWaitsForTheCallThatItFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		alg, tab, source := chargedTable(100)
		raw := []byte("k")
		charge := func() error { return source.ChargeNow(context.Background(), keys.KeyOf(raw)) }

		c := &heldCharger{held: 2, giveUp: make(chan struct{})}
		c.beforeContext = func(number int32) {
			switch number {
			case 2: // of the request that found the first call: that ends, and a second one begins
				c.giveUp <- struct{}{}
				synctest.Wait()
				go charge()
				synctest.Wait()
			case 4: // of the same request, which has found the second call
				c.giveUp <- struct{}{}
			}
		}
		n.rep.AttachCharged(source, time.Hour, c)
		synctest.Wait() // the first cycle has found nothing
		tab.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0)
		go charge()
		synctest.Wait() // the first call is under way

		start := time.Now()
		if err := charge(); err != nil || time.Since(start) != 0 {
			t.Errorf("the request that found the first call waited %s: %v, want no wait after it", time.Since(start), err)
		}
		if calls := c.calls.Load(); calls != 3 {
			t.Errorf("%d calls, want 3: two that were given up, and that of the request", calls)
		}
		if _, unsent, _ := tab.Unsent(wallClock()); unsent != 0 {
			t.Errorf("%d requests are not charged", unsent)
		}
		source.Detach()
		n.rep.Close()
	})
}

// A request waits for another one's call no longer than Redis has for an answer, and not at all
// once its client has gone.
func TestARequestGivesUpWaitingForACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		alg, tab, source := chargedTable(100)
		raw := []byte("k")

		c := &heldCharger{held: 1, giveUp: make(chan struct{}), beforeContext: func(int32) {}}
		n.rep.AttachCharged(source, time.Hour, c)
		synctest.Wait()
		tab.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0)
		go source.ChargeNow(context.Background(), keys.KeyOf(raw)) // with the longer timeout
		synctest.Wait()

		gone, leave := context.WithCancel(context.Background())
		time.AfterFunc(time.Millisecond, leave)
		if err := source.ChargeNow(gone, keys.KeyOf(raw)); !errors.Is(err, context.Canceled) {
			t.Errorf("ChargeNow() = %v for a client that has gone, want that", err)
		}
		c.timeout = 10 * time.Millisecond
		start := time.Now()
		if err := source.ChargeNow(context.Background(), keys.KeyOf(raw)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != c.timeout {
			t.Errorf("ChargeNow() = %v after %v, want that its time was over after %v", err, time.Since(start), c.timeout)
		}
		c.giveUp <- struct{}{}
		source.Detach()
		n.rep.Close()
	})
}

// While Redis is known to be unavailable, requests leave their charges in the table, however many
// keys have some. Those that are pending when it comes back are sent a few at a time.
func TestFewChargesArePending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keyCount = 5 * maxCharges / 2
		n := newVnode(t)
		alg, tab, source := chargedTable(2 * keyCount)
		c := &outage{}
		n.rep.AttachCharged(source, time.Hour, c)
		synctest.Wait()
		charge := func(first, last int) {
			for i := first; i < last; i++ {
				raw := []byte{byte(i), byte(i >> 8)}
				tab.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0)
				_ = source.ChargeNow(t.Context(), keys.KeyOf(raw))
			}
		}
		charge(0, keyCount) // not noticed yet
		c.known.Store(true)
		charge(keyCount, 2*keyCount)
		if pending := len(source.unanswered()); pending != keyCount {
			t.Errorf("%d charges are pending, want %d: those that were sent", pending, keyCount)
		}
		c.known.Store(false)
		c.over.Store(true)
		source.Detach() // has all sent
		if most := c.most.Load(); most != maxCharges {
			t.Errorf("%d charges in one round trip, want %d", most, maxCharges)
		}
		if counted := c.counted.Load(); counted != 2*keyCount {
			t.Errorf("%d charges are counted, want %d", counted, 2*keyCount)
		}
		n.rep.Close()
	})
}

// An outage is a Charger whose Redis doesn't answer before it is over.
type outage struct {
	heldCharger
	known, over   atomic.Bool
	most, counted atomic.Int64
}

func (c *outage) Charge(_ context.Context, _ string, charges []Charge) []Receipt {
	receipts := make([]Receipt, len(charges))
	c.most.Store(max(c.most.Load(), int64(len(charges))))
	if c.over.Load() {
		c.counted.Add(int64(len(charges)))
		return receipts
	}
	for i := range receipts {
		receipts[i] = Receipt{Err: errNoReply, Unknown: true}
	}
	return receipts
}

func (c *outage) CallContext(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(parent, time.Second)
}

func (c *outage) Unavailable(keys.ID) error {
	if c.known.Load() {
		return errNoReply
	}
	return nil
}
