package ratelimit

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// The counters belong to the process, so that they go on over a reload; each configuration has a registry of its own to which they are
// added. Labels are names from the configuration, never a key or an address: those are without bound, and may be personal data.
var (
	decisionCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "rate_limit", Name: "decisions_total",
		Help: "Requests that a zone decided on.",
	}, []string{"zone", "decision"})
	overflowCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "rate_limit", Name: "overflow_decisions_total",
		Help: "Decisions that came from the sketch, because the zone held max_keys keys already.",
	}, []string{"zone"})
)

// zoneCounters are one zone's counters, looked up once. A nil *zoneCounters counts nothing.
type zoneCounters struct {
	zone string

	admitted, refused, tooEarly, skipped, unavailable, overflow prometheus.Counter
}

// countedZones says how many handlers have a zone's counters.
var countedZones struct {
	sync.Mutex
	users map[string]int
}

// newZoneCounters returns the counters of a zone. They begin with the first handler that asks for
// them and go on until each has released them: a reload provisions the new handlers before it
// cleans up the old ones, so a zone that stays keeps its counters.
func newZoneCounters(zone string) *zoneCounters {
	zone = strings.ToValidUTF8(zone, "?")
	countedZones.Lock()
	defer countedZones.Unlock()
	if countedZones.users == nil {
		countedZones.users = map[string]int{}
	}
	countedZones.users[zone]++
	return &zoneCounters{
		zone:        zone,
		admitted:    decisionCount.WithLabelValues(zone, "admitted"),
		refused:     decisionCount.WithLabelValues(zone, "refused"),
		tooEarly:    decisionCount.WithLabelValues(zone, "too_early"),
		skipped:     decisionCount.WithLabelValues(zone, "skipped"),
		unavailable: decisionCount.WithLabelValues(zone, "unavailable"),
		overflow:    overflowCount.WithLabelValues(zone),
	}
}

// release gives the counters up. The metrics of a zone that no handler has any more are removed:
// otherwise every rename would leave some behind, as long as the process lives.
func (c *zoneCounters) release() {
	if c == nil {
		return
	}
	countedZones.Lock()
	defer countedZones.Unlock()
	if countedZones.users[c.zone]--; countedZones.users[c.zone] > 0 {
		return
	}
	delete(countedZones.users, c.zone)
	decisionCount.DeletePartialMatch(prometheus.Labels{"zone": c.zone})
	overflowCount.DeleteLabelValues(c.zone)
}

// admit counts a request that the zone admitted.
func (c *zoneCounters) admit() {
	if c != nil {
		c.admitted.Inc()
	}
}

// refuse counts a request that the zone refused.
func (c *zoneCounters) refuse() {
	if c != nil {
		c.refused.Inc()
	}
}

// early counts a request that the zone refused in early data, for an address that is not proven.
func (c *zoneCounters) early() {
	if c != nil {
		c.tooEarly.Inc()
	}
}

// skip counts a request without a key that the zone lets pass uncounted.
func (c *zoneCounters) skip() {
	if c != nil {
		c.skipped.Inc()
	}
}

// lost counts a request that the zone refused because Redis is lost.
func (c *zoneCounters) lost() {
	if c != nil {
		c.unavailable.Inc()
	}
}

// overflowed counts a decision that came from the sketch, beside what was decided.
func (c *zoneCounters) overflowed() {
	if c != nil {
		c.overflow.Inc()
	}
}

// zoneStats is the state of one zone's tables.
type zoneStats struct {
	zone   string
	keys   int64
	sketch bool // holds more keys than max_keys
	// exchange is nil where nothing is exchanged.
	exchange *ratesync.ExchangeStatus
}

// storeStats is the state of one exchange with Redis.
type storeStats struct {
	namespace string
	up        bool
	exchanges int64 // that succeeded
	failures  int64
	keys      int64 // exchanged
	// failedKeys are those that Redis could not do, or of which it said what makes no sense.
	failedKeys int64
	circuits   strict.Status
}

var (
	keysDesc      = prometheus.NewDesc("caddy_rate_limit_keys", "Keys that a zone holds counters of.", []string{"zone"}, nil)
	sketchDesc    = prometheus.NewDesc("caddy_rate_limit_sketch_in_use", "Whether keys of a zone share the sketch, because it has reached max_keys.", []string{"zone"}, nil)
	syncedDesc    = prometheus.NewDesc("caddy_rate_limit_synced_timestamp_seconds", "When a zone last had a turn in which all that was due was sent to Redis and answered, as a Unix time; 0 if never.", []string{"zone"}, nil)
	redisDesc     = prometheus.NewDesc("caddy_rate_limit_redis_up", "Whether the last exchange with Redis succeeded.", []string{"namespace"}, nil)
	exchangesDesc = prometheus.NewDesc("caddy_rate_limit_exchanges_total", "Exchanges with Redis.", []string{"namespace", "result"}, nil)
	exchangedDesc = prometheus.NewDesc("caddy_rate_limit_exchanged_keys_total", "Keys exchanged with Redis.", []string{"namespace"}, nil)
	failedDesc    = prometheus.NewDesc("caddy_rate_limit_failed_keys_total", "Keys that Redis could not do in an exchange, or of which it said what makes no sense.", []string{"namespace"}, nil)
	openDesc      = prometheus.NewDesc("caddy_rate_limit_circuits_open", "Circuits that are open: strict zones don't wait for Redis.", []string{"namespace"}, nil)
	tripsDesc     = prometheus.NewDesc("caddy_rate_limit_circuit_trips_total", "How often a circuit has opened.", []string{"namespace"}, nil)
	timeoutsDesc  = prometheus.NewDesc("caddy_rate_limit_strict_timeouts_total", "Requests to strict zones that waited for Redis in vain.", []string{"namespace"}, nil)
)

// gauges reads states when it is asked, so that nothing is kept up for a scrape that may never come.
type gauges struct {
	stats func() ([]zoneStats, []storeStats)
}

// registerMetrics adds the metrics to a configuration's registry, however often it is called. stats tells the state of the whole process;
// entries of one name are added up.
func registerMetrics(registry *prometheus.Registry, stats func() ([]zoneStats, []storeStats)) error {
	for _, c := range []prometheus.Collector{decisionCount, overflowCount, gauges{stats}} {
		err := registry.Register(c)
		if already := (prometheus.AlreadyRegisteredError{}); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}

func (gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{keysDesc, sketchDesc, syncedDesc, redisDesc, exchangesDesc, exchangedDesc, failedDesc, openDesc, tripsDesc, timeoutsDesc} {
		ch <- d
	}
}

func (g gauges) Collect(ch chan<- prometheus.Metric) {
	zones, stores := g.stats()
	for name, s := range mergeZones(zones) {
		ch <- prometheus.MustNewConstMetric(keysDesc, prometheus.GaugeValue, float64(s.keys), name)
		ch <- prometheus.MustNewConstMetric(sketchDesc, prometheus.GaugeValue, one(s.sketch), name)
		if s.exchange != nil {
			ch <- prometheus.MustNewConstMetric(syncedDesc, prometheus.GaugeValue, seconds(s.exchange.Synced), name)
		}
	}
	for name, s := range mergeStores(stores) {
		ch <- prometheus.MustNewConstMetric(redisDesc, prometheus.GaugeValue, one(s.up), name)
		ch <- prometheus.MustNewConstMetric(exchangesDesc, prometheus.CounterValue, float64(s.exchanges), name, "ok")
		ch <- prometheus.MustNewConstMetric(exchangesDesc, prometheus.CounterValue, float64(s.failures), name, "failed")
		ch <- prometheus.MustNewConstMetric(exchangedDesc, prometheus.CounterValue, float64(s.keys), name)
		ch <- prometheus.MustNewConstMetric(failedDesc, prometheus.CounterValue, float64(s.failedKeys), name)
		ch <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(s.circuits.Open), name)
		ch <- prometheus.MustNewConstMetric(tripsDesc, prometheus.CounterValue, float64(s.circuits.Trips), name)
		ch <- prometheus.MustNewConstMetric(timeoutsDesc, prometheus.CounterValue, float64(s.circuits.Timeouts), name)
	}
}

// mergeZones adds up the tables of one zone: it has one for each limit, and two namespaces may have a zone of one name. A label that
// came twice would fail the whole scrape.
func mergeZones(zones []zoneStats) map[string]zoneStats {
	merged := make(map[string]zoneStats, len(zones))
	for _, s := range zones {
		name := strings.ToValidUTF8(s.zone, "?")
		sum := merged[name]
		merged[name] = zoneStats{zone: name, keys: sum.keys + s.keys, sketch: sum.sketch || s.sketch, exchange: later(sum.exchange, s.exchange)}
	}
	return merged
}

// later is the exchange that is further behind.
func later(a, b *ratesync.ExchangeStatus) *ratesync.ExchangeStatus {
	if a == nil || b != nil && b.Synced.Before(a.Synced) {
		return b
	}
	return a
}

func mergeStores(stores []storeStats) map[string]storeStats {
	merged := make(map[string]storeStats, len(stores))
	for _, s := range stores {
		name := strings.ToValidUTF8(s.namespace, "?")
		sum, ok := merged[name]
		merged[name] = storeStats{
			namespace:  name,
			up:         s.up && (!ok || sum.up),
			exchanges:  sum.exchanges + s.exchanges,
			failures:   sum.failures + s.failures,
			keys:       sum.keys + s.keys,
			failedKeys: sum.failedKeys + s.failedKeys,
			circuits: strict.Status{
				Open: sum.circuits.Open + s.circuits.Open, Trips: sum.circuits.Trips + s.circuits.Trips, Timeouts: sum.circuits.Timeouts + s.circuits.Timeouts,
			},
		}
	}
	return merged
}

// seconds is a Unix time, 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / float64(time.Second)
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
