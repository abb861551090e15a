package strict

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"go.uber.org/zap"
)

// A peer is a node of several with one limit, which it shares by sync_rate 0 or an interval.
type peer interface {
	// decides reports whether one request of a key is admitted.
	decides(key string) bool
	// alone is decides for a node that doesn't ask Redis.
	alone(key string) bool
	// lost reports that Redis is known not to answer.
	lost() bool
	unsent() int64
	settled() bool
	// reset applies resets of its zone.
	reset(set *reset.Set)
	end()
}

type peerOf[S any] struct {
	t      *testing.T
	table  *table.Table[S]
	alg    algorithms.Params
	source *ratesync.Source
	rep    *ratesync.Replicator
	strict *Limiter // nil with an interval
	zone   string
	rule   Rule
}

func newPeer(t *testing.T, addr, zone string, rule Rule, rate time.Duration) peer {
	switch k := rule.Kind; {
	case k.Traits().Windowed:
		return peerFor[algorithms.WindowState](t, addr, zone, rule, rate)
	case k.Traits().Draining:
		return peerFor[algorithms.BucketState](t, addr, zone, rule, rate)
	}
	return peerFor[algorithms.LogState](t, addr, zone, rule, rate)
}

func peerFor[S any](t *testing.T, addr, zone string, rule Rule, rate time.Duration) peer {
	c, alg := client(t, "redis://"+addr), algorithms.Params(rule)
	m := &peerOf[S]{t: t, table: tableOf[S](alg, 1000), alg: alg, zone: zone, rule: rule}
	m.source = ratesync.NewSource(m.table, rule.spec(zone))
	m.rep = ratesync.NewReplicator(c, "test", 300*time.Millisecond, clock.Now, zap.NewNop())
	charged := alg.Kind.Traits().Draining && rate == 0
	every := rate
	if rate == 0 {
		m.strict = New(c, "test", 300*time.Millisecond)
		every = 50 * time.Millisecond
	}
	m.table.Configure(table.SyncConfig{Params: alg, Rate: every, Charges: charged, Waker: m.source.Waker}, 1000)
	if charged {
		m.rep.AttachCharged(m.source, every, m.strict.Charger(zone, rule))
	} else {
		m.rep.Attach(m.source, every)
	}
	return m
}

func (m *peerOf[S]) decides(key string) bool {
	raw := []byte(key)
	if m.strict != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_ = m.source.ChargeNow(ctx, keys.KeyOf(raw))
		all, g, err := m.strict.Take(ctx, m.zone, []Rule{m.rule}, keys.IDOf(raw), 1, nil)
		if err == nil {
			m.table.Import(m.alg.Compile(), keys.KeyOf(raw), raw, clock.Now(), 0, all[0].Reports)
			return g.Admitted()
		}
	}
	return m.alone(key)
}

func (m *peerOf[S]) alone(key string) bool {
	return m.table.Take(m.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), clock.Now(), 1, 0).Allowed
}

func (m *peerOf[S]) lost() bool {
	return m.source.Lost() != 0 || m.strict != nil && m.strict.Down()
}

func (m *peerOf[S]) unsent() int64 {
	_, requests, _ := m.table.Unsent(clock.Now())
	return requests
}

// settled reports whether Redis has all that was decided, and has taken back what nobody got.
func (m *peerOf[S]) settled() bool {
	return !m.lost() && m.unsent() == 0 && (m.strict == nil || m.strict.isIdle() && m.strict.suspended.Load() == 0)
}

func (m *peerOf[S]) reset(set *reset.Set) {
	m.strict.Reset(m.zone, set)
	m.table.Reset(clock.Now(), set)
}

func (m *peerOf[S]) end() {
	m.source.Detach()
	if m.strict != nil {
		m.strict.Close()
	}
	m.rep.Close()
}
