package simulate

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/heap"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Options say how logs are replayed.
type Options struct {
	// Zone is the one that is shown, all where it is empty.
	Zone string
	// Nodes is how many share the requests, 1 or more, in turn; ByClient sends all requests of a
	// client to one of them. SyncRate is in place of that of all zones that sync, nil for their
	// own.
	Nodes    int
	ByClient bool
	SyncRate *config.SyncRate
	// Host is that of requests whose log has none.
	Host string
	// Reorder is by how much lines of the logs may be out of order.
	Reorder time.Duration
	// ShowKeys shows keys in full.
	ShowKeys bool
	// CostField is a field of the log that CostInLog stands for, empty for none.
	CostField string
	// Each, if it is not nil, is told of each request that came to a rate_limit whether one denied
	// it.
	Each func(rec *accesslog.Record, denied bool)
}

// sweepEvery is the time of the log between two sweeps of the counters.
const sweepEvery = int64(time.Minute)

// A replay is requests on their way through a configuration.
type replay struct {
	Options
	policy *Policy
	nodes  []*node
	turn   int
	// cluster syncs the nodes; nil for one node.
	cluster *cluster
	swept   int64 // when counters were swept last

	copies []*limits.Zone // those of all nodes
	zones  map[string]*zoneStats
	stats  map[*limits.Zone]*zoneStats // of each of the copies
	total  totals
	// counted is set where a zone has counted the request.
	counted bool
	pending heap.Heap[response] // that have not begun yet
	err     error
}

// node is the zones of one node, of each handler as that arranges them.
type node struct {
	namespace string
	zones     map[operate.Limiter][]*limits.Zone
}

// totals are those of all requests.
type totals struct {
	Report // its counts

	redacted, noHeaders, noHost, noCost int64
	// noAddress are those whose client has no address, and masked those where it ends in zeros.
	noAddress, masked int64
	first, last       int64
	clients           distinct
	uncounted         heavyHitters // responses and paths
}

// Run replays logs, and returns what came of it.
func Run(p *Policy, files *accesslog.Files, o Options) (*Report, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	o.Nodes = max(o.Nodes, 1)
	r := &replay{Options: o, policy: p, zones: map[string]*zoneStats{}, stats: map[*limits.Zone]*zoneStats{}, pending: heap.Heap[response]{Before: response.isBefore}}
	loaded++
	for i := range o.Nodes {
		r.nodes = append(r.nodes, &node{
			namespace: fmt.Sprintf("simulation %d, node %d", loaded, i), zones: map[operate.Limiter][]*limits.Zone{},
		})
	}
	if o.Nodes > 1 {
		r.cluster = &cluster{stores: map[string]*store{}}
	}
	defer r.release()
	if o.CostField == "" {
		p.warnUntold()
	}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	fields := p.answers
	if o.CostField != "" {
		fields = append(slices.Clone(fields), o.CostField)
	}
	read := files.Each(accesslog.Options{Reorder: o.Reorder, Headers: p.needsHeaders(), Fields: fields}, func(rec *accesslog.Record) bool {
		r.err = r.request(rec)
		return r.err == nil
	})
	if r.err != nil {
		return nil, r.err
	}
	return r.report(&read)
}

// prepare makes the zones of all handlers that requests can come to, so that those without any
// request are reported as well.
func (r *replay) prepare() error {
	found := false
	for _, s := range r.policy.servers {
		for _, l := range limitersOf(s) {
			for i, n := range r.nodes {
				if err := n.prepare(r, l); err != nil {
					return err
				}
				if r.cluster != nil {
					for _, z := range n.zones[l] {
						r.cluster.join(i, z)
					}
				}
			}
			for _, z := range l.Zones() {
				found = found || z.Name == r.Zone
			}
		}
	}
	if text := r.policy.leftOut[r.Zone]; r.Zone != "" && !found && text != "" {
		return fmt.Errorf("nothing of zone %q can be replayed: %s", r.Zone, text)
	}
	if r.Zone != "" && !found {
		return fmt.Errorf("the configuration has no zone %q", r.Zone)
	}
	return nil
}

// limitersOf returns the rate_limit handlers of a server.
func limitersOf(s *caddyhttp.Server) (all []operate.Limiter) {
	operate.EachRoute(s, func(route caddyhttp.Route) {
		for _, h := range route.Handlers {
			if l, ok := h.(operate.Limiter); ok {
				all = append(all, l)
			}
		}
	})
	return all
}

// prepare makes copies of a handler's zones, with counters of their own: nothing of them is synced
// by Redis, logged or measured.
func (n *node) prepare(r *replay, l operate.Limiter) error {
	if _, ok := n.zones[l]; ok {
		return nil
	}
	all := make([]*limits.Zone, 0, len(l.Zones()))
	for _, of := range l.Zones() {
		o := of.ZoneOptions
		o.Namespace, o.Redis, o.Regions, o.Metrics, o.LogKeys, o.Logger, o.Once = n.namespace, nil, false, false, false, zap.NewNop(), new(warning.Once)
		if o.SyncRate = r.rateOf(of); o.SyncRate == config.Strict {
			o.Namespace = r.nodes[0].namespace // Redis decides, so there is one count
		}
		if r.CostField == "" && slices.Contains(r.policy.untold, o.Name) {
			o.ResponseCost.Default = 0 // it is for responses that have no figure in truth
		}
		z, err := limits.NewZone(o)
		if err != nil {
			return err
		}
		z.Want = 0 // nobody is told when there is room again
		all, r.copies = append(all, z), append(r.copies, z)
		if r.zones[z.Name] == nil {
			r.zones[z.Name] = newZoneStats(z)
			if err := r.addTrials(r.zones[z.Name]); err != nil {
				return err
			}
		}
		r.stats[z] = r.zones[z.Name]
	}
	limits.Arrange(all)
	n.zones[l] = all
	return nil
}

// release gives all counters up.
func (r *replay) release() {
	for _, z := range r.copies {
		z.Release()
	}
}

// request replays one request. One of early data that was answered with 425 has come again.
func (r *replay) request(rec *accesslog.Record) error {
	if rec.Status == http.StatusTooEarly {
		return nil
	}
	t := &r.total
	if t.Requests == 0 {
		t.first, r.swept = rec.Start, rec.Start
	}
	t.Requests++
	t.last = rec.Start
	if rec.Status == http.StatusTooManyRequests {
		t.DeniedInLog++
	}
	if r.CostField != "" {
		if _, ok := config.ParseUnits(rec.Fields[r.CostField]); !ok {
			t.noCost++
		}
	}
	client := cmp.Or(rec.ClientIP, rec.RemoteIP)
	t.address(client)
	hash := hashOf(client)
	t.clients.Add(hash)
	r.begin(rec.Start)
	if r.cluster != nil {
		r.cluster.until(rec.Start)
	}
	if rec.Start-r.swept >= sweepEvery {
		r.sweep(rec.Start)
	}
	n := r.nodes[0]
	if len(r.nodes) > 1 {
		if r.turn++; r.ByClient {
			r.turn = int(hash >> 33)
		}
		n = r.nodes[r.turn%len(r.nodes)]
	}
	r.counted = false
	if err := r.offer(n, rec); err != nil {
		return err
	}
	if !r.counted && (rec.Status == http.StatusUnauthorized || rec.Status == http.StatusForbidden || rec.Status == http.StatusTooManyRequests) {
		path, _, _ := strings.Cut(rec.URI, "?")
		text := fmt.Sprintf("%d %s", rec.Status, spelling.Clip(path))
		t.uncounted.Add(hashOf(text), func() string { return text })
	}
	return nil
}

// address notes what a client's address looks like.
func (t *totals) address(text string) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		t.noAddress++
		return
	}
	if raw := a.As16(); a.Unmap().Is4() && raw[15] == 0 || a.Is6() && binary.BigEndian.Uint64(raw[8:]) == 0 {
		t.masked++
	}
}

// sweep drops the counters that no longer matter.
func (r *replay) sweep(now int64) {
	r.swept = now
	if r.cluster != nil {
		r.cluster.expire()
	}
	for _, z := range r.copies {
		for l := range z.EachWithDenials {
			table, _ := l.ForSimulator()
			table.Sweep(now)
		}
		if b := z.Bans(); b != nil {
			b.Set.Sweep(now)
			b.Shadow.Sweep(now)
		}
	}
}

// offer takes a request through the routes of the server that it came to: the first one at which it
// comes to a rate_limit.
func (r *replay) offer(n *node, rec *accesslog.Record) error {
	if rec.Host = cmp.Or(rec.Host, r.Host); rec.Host == "" {
		r.total.noHost++
	}
	reached, denied := false, false
	for _, server := range r.policy.servers {
		q, ok := requestOf(server, rec, rec.Fields[r.CostField])
		if !ok {
			return nil // no server would have taken it
		}
		err := operate.WalkRoutes(server, &q, func(l operate.Limiter, _ []string) (goOn bool, err error) {
			if !reached {
				reached = true
				r.total.Reached++
				r.missing(rec, q)
			}
			goOn, err = r.ask(n.zones[l], rec, q)
			denied = denied || !goOn
			return goOn, err
		})
		if err != nil {
			return fmt.Errorf("replaying a request of %s: %w", time.Unix(0, rec.Start).UTC().Format(time.RFC3339), err)
		}
		if reached {
			break
		}
	}
	if reached && r.Each != nil {
		r.Each(rec, denied)
	}
	return nil
}

// missing counts requests whose keys or limits need what the log doesn't have.
func (r *replay) missing(rec *accesslog.Record, q *http.Request) {
	for _, name := range r.policy.fields {
		field, ok := strings.CutPrefix(name, "http.request.header.")
		if strings.HasPrefix(name, "http.request.cookie.") {
			field, ok = "Cookie", true
		}
		switch {
		case !ok:
		case q.Header.Get(field) == "REDACTED":
			r.total.redacted++
			return
		case rec.Text:
			r.total.noHeaders++
			return
		}
	}
}

// ask asks the zones of a handler. It returns whether the request goes on.
func (r *replay) ask(zones []*limits.Zone, rec *accesslog.Record, q *http.Request) (goOn bool, err error) {
	e, err := limits.Evaluate(zones, q, rec.Start)
	if err != nil {
		return false, err
	}
	defer e.Free()
	for _, z := range zones {
		s := r.stats[z]
		o, ok := e.Of(z)
		if len(s.windows) > 0 && z.Settles() {
			o.N = z.Settled(o.N, r.response(rec))
			s.counted += o.N
		}
		if r.zones[z.Name] == s { // and no trial
			r.counted = r.counted || o.Outright || ok && (o.Denied || o.N > 0)
		}
		if ok {
			s.count(z, &o, rec)
		} else if o.Outright {
			s.countClosed(z, &o, rec)
		}
		if ok || o.Rest > 0 {
			if err := r.try(s, rec, q); err != nil {
				return false, err
			}
		}
	}
	if e.Denied {
		return false, nil
	}
	if h := e.Hold(); h != nil {
		r.hold(h, rec)
	}
	return true, nil
}
