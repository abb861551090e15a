package strict

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
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

func wallClock() int64 { return time.Now().UnixNano() }

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
	m.rep = ratesync.NewReplicator(c, "test", 300*time.Millisecond, wallClock, zap.NewNop())
	charged := !alg.Kind.Traits().Windowed && rate == 0
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
			m.table.Import(m.alg.Compile(), keys.KeyOf(raw), raw, wallClock(), all[0].Reports)
			return g.Admitted()
		}
	}
	return m.alone(key)
}

func (m *peerOf[S]) alone(key string) bool {
	return m.table.Take(m.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), wallClock(), 1, 0).Allowed
}

func (m *peerOf[S]) lost() bool {
	return m.source.Lost() != 0 || m.strict != nil && m.strict.Down()
}

func (m *peerOf[S]) unsent() int64 {
	_, requests, _ := m.table.Unsent(wallClock())
	return requests
}

// settled reports whether Redis has all that was decided, and has taken back what nobody got.
func (m *peerOf[S]) settled() bool {
	return !m.lost() && m.unsent() == 0 && (m.strict == nil || m.strict.isIdle() && m.strict.suspended.Load() == 0)
}

func (m *peerOf[S]) reset(set *reset.Set) {
	m.strict.Reset(m.zone, set)
	m.table.Reset(wallClock(), set)
}

func (m *peerOf[S]) end() {
	m.source.Detach()
	if m.strict != nil {
		m.strict.Close()
	}
	m.rep.Close()
}

// TestDecisionsMadeAloneAreChargedLater: whatever nodes decide while they can't ask Redis, or
// don't, is counted there when they can again: in every algorithm, strict or with an interval, to
// the request. Then what is left of the limit is left, and no more.
func TestDecisionsMadeAloneAreChargedLater(t *testing.T) {
	server := redistest.Start(t)
	for name, rule := range kinds {
		rule.Window = 20 * time.Hour // nothing drains or leaves meanwhile
		for _, rate := range []time.Duration{0, 50 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, sync_rate %s", name, rate), func(t *testing.T) {
				t.Parallel()
				zone := fmt.Sprint(name, rate.Milliseconds())
				random := rand.New(rand.NewPCG(uint64(rule.Kind), uint64(rate)))
				admitted := 0
				var nodes []peer
				var proxies []*faultproxy.Proxy
				for range 2 {
					proxies = append(proxies, faultproxy.Start(t, server.Addr))
					nodes = append(nodes, newPeer(t, proxies[len(nodes)].Addr, zone, rule, rate))
				}
				for _, fault := range []faultproxy.Fault{faultproxy.None, faultproxy.DropReplies, faultproxy.None, faultproxy.Reset, faultproxy.Blackhole} {
					for i, p := range proxies {
						if random.IntN(3) > 0 || i == 0 {
							p.Set(fault)
						}
					}
					for range 6 {
						if nodes[random.IntN(2)].decides("k") {
							admitted++
						}
						redistest.Pause(time.Duration(random.IntN(30)) * time.Millisecond)
					}
				}
				for _, p := range proxies {
					p.Set(faultproxy.None)
				}
				for i, n := range nodes {
					redistest.Eventually(t, fmt.Sprintf("node %d has sent all", i), n.settled)
				}
				if admitted != 30 {
					t.Fatalf("%d of 30 admitted far below the limit", admitted)
				}
				if rate > 0 {
					if sum := countedIn(t, server, zone); sum != 30 {
						t.Errorf("redis counts %d, want 30", sum)
					}
				} else if left := drain(t, limiter(t, server.URL), zone, keys.IDOf([]byte("k")), rule); left != 70 {
					t.Errorf("redis admits %d more, want 70 of 100", left)
				}
				for _, n := range nodes {
					n.end()
				}
			})
		}
	}
}

// A charge that arrives and whose answer is lost is sent again, and counts once. What is decided
// meanwhile is charged as well.
func TestAChargeWhoseReplyIsLostCountsOnce(t *testing.T) {
	server := redistest.Start(t)
	for name, rule := range kinds {
		if rule.Kind == algorithms.FixedWindow || rule.Kind == algorithms.SlidingWindow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule.Window = 20 * time.Hour
			proxy := faultproxy.Start(t, server.Addr)
			n := newPeer(t, proxy.Addr, name, rule, 0)
			defer n.end()
			charged := func() int {
				c := server.Client()
				defer c.Close()
				records := c.Keys(context.Background(), "test:*:"+name+":*:charged").Val()
				if len(records) == 0 {
					return 0
				}
				sum := 0
				for _, seq := range c.HVals(context.Background(), records[0]).Val() {
					n, _ := strconv.Atoi(seq)
					sum += n
				}
				return sum
			}
			admitted := 0
			alone := func(count int) {
				for range count {
					if n.alone("k") {
						admitted++
					}
				}
			}
			// A new connection is not even greeted, so nothing may arrive where a heartbeat took
			// the connections that there were. Then it is tried again.
			for arrived, tries := false, 0; !arrived; tries++ {
				if tries == 20 {
					t.Fatal("no charge arrives whose reply is lost")
				}
				redistest.Eventually(t, "all is charged", n.settled)
				if n.decides("k") {
					admitted++
				}
				before := charged()
				proxy.Set(faultproxy.DropReplies)
				alone(2)
				arrived = redistest.Poll(200*time.Millisecond, func() bool { return charged() > before })
				alone(1)
				proxy.Set(faultproxy.None)
			}
			redistest.Eventually(t, "all is charged", n.settled)
			if left := drain(t, limiter(t, server.URL), name, keys.IDOf([]byte("k")), rule); left != 100-admitted {
				t.Errorf("after %d admitted redis admits %d more, want %d", admitted, left, 100-admitted)
			}
		})
	}
}

// countedIn is what the hashes of a zone count in all.
func countedIn(t *testing.T, server *redistest.Server, zone string) (sum int64) {
	t.Helper()
	c := server.Client()
	for _, key := range c.Keys(context.Background(), "test:*:"+zone+":*").Val() {
		total, _, _ := strings.Cut(c.HGet(context.Background(), key, "sum").Val(), " ")
		n, _ := strconv.ParseInt(total, 10, 64)
		sum += n
	}
	return sum
}
