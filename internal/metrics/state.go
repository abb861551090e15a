package metrics

import (
	"errors"
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A Metric is one that is made of the state of the process.
type Metric struct {
	*prometheus.Desc
	kind   prometheus.ValueType
	labels int
	// join makes one of two values with the same labels, the sum where it is nil: a zone has a
	// table for each limit, and two namespaces may have a zone of one name. Labels that came twice
	// would fail the whole scrape.
	join func(a, b float64) float64
}

// Described are all that there are.
var Described []*Metric

func describe(name, help string, labels ...string) *Metric {
	m := &Metric{prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil), prometheus.GaugeValue, len(labels), nil}
	if strings.HasSuffix(name, "_total") {
		m.kind = prometheus.CounterValue
	}
	Described = append(Described, m)
	return m
}

// joined sets how values are joined.
func (m *Metric) joined(join func(a, b float64) float64) *Metric {
	m.join = join
	return m
}

// greatest is 1 where one value is, least where all are; of two times it is the one that is further
// behind.
func greatest(a, b float64) float64 { return max(a, b) }
func least(a, b float64) float64    { return min(a, b) }
func latest(_, b float64) float64   { return b }
func further(a, b float64) float64 {
	if math.Abs(b) > math.Abs(a) {
		return b
	}
	return a
}

// What there is to show of zones, of each Redis and namespace, and of regions.
var (
	Keys        = describe("keys", "Counters in this node's memory: one for each key and rate, one for a key with concurrent, and one for a key on its way to a ban.", "zone")
	SketchInUse = describe("sketch_in_use", "1 while new keys of a zone share counters, because it has max_keys of them, else 0.", "zone").joined(greatest)
	LastSync    = describe("last_sync_timestamp_seconds", "Unix time of the last sync cycle in which Redis answered for all keys of a zone that syncs; 0 for none.", "zone").joined(least)

	LimitRequests = describe("limit_requests", "Requests that a zone admits in a window, as configured, unless the limit comes with the request.", "zone", "window").joined(latest)
	Concurrent    = describe("concurrent_requests", "Requests that run on this node, in a zone with concurrent.", "zone")
	Burst         = describe("burst_requests", "Requests that a token_bucket or gcra admits at once; of several rates, the smallest.", "zone").joined(least)

	OpenResponses = describe("bandwidth_responses", "Responses that a zone with bandwidth slows down.", "zone")
	Bytes         = describe("bandwidth_bytes_total", "Bytes of bodies from a zone with bandwidth.", "zone")
	Waited        = describe("bandwidth_wait_seconds_total", "Time that responses waited for the bandwidth of their key.", "zone")

	RedisUp        = describe("redis_up", "1 while Redis answers all calls, else 0.", "namespace").joined(least)
	Syncs          = describe("syncs_total", "Calls to Redis to sync counts, by result: ok or failed.", "namespace", "result")
	SyncedKeys     = describe("synced_keys_total", "Counts in answered calls.", "namespace")
	FailedKeys     = describe("failed_keys_total", "Counts in answered calls that Redis rejected, or whose reply made no sense; they are sent again.", "namespace")
	CircuitsOpen   = describe("circuits_open", "Open circuits: 1 while requests to strict zones don't wait for Redis; in a Cluster up to 64.", "namespace")
	CircuitTrips   = describe("circuit_trips_total", "Times that a circuit has opened.", "namespace")
	ControlApplied = describe("control_applied", "1 while this node has applied all changes at run time that it knows of, else 0.", "namespace").joined(least)
	Overrides      = describe("overrides", "Keys with limits that were set at run time.", "namespace")
	BannedKeys     = describe("banned_keys", "Banned keys that this node knows of.", "zone")

	RegionUp          = describe("region_up", "0 while another region is lost, else 1.", "region").joined(least)
	RegionLag         = describe("region_lag_seconds", "How long ago all was read that has changed in another region.", "region").joined(greatest)
	RegionBacklog     = describe("region_backlog", "Counts and bans that have changed here since all was read in another region.", "region").joined(greatest)
	RegionClockOffset = describe("region_clock_offset_seconds", "How far another region's Redis clock is ahead.", "region").joined(further)
	RegionMessages    = describe("region_messages_total", "Counts and bans that this node has read in another region.", "region")

	StrictTimeouts = describe("strict_timeouts_total", "Requests to strict zones that waited for Redis until strict_timeout.", "namespace")
)

// Register adds the metrics to a configuration's registry, however often it is called. collect adds
// the state of the whole process when it is scraped, so that nothing is kept up for a scrape that
// may never come.
func Register(registry *prometheus.Registry, collect func(Scrape)) error {
	all := []prometheus.Collector{collector(collect)}
	for _, c := range allCounts() {
		all = append(all, c)
	}
	for _, c := range all {
		err := registry.Register(c)
		if already := (prometheus.AlreadyRegisteredError{}); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}

// collector shows the state of the process.
type collector func(Scrape)

// Describe gives the descriptions of all that Collect sends.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range Described {
		ch <- m.Desc
	}
}

// Collect sends the state as it is now.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := Scrape{}
	c(now)
	for of, value := range now {
		ch <- prometheus.MustNewConstMetric(of.Desc, of.kind, value, of.labels[:of.Metric.labels]...)
	}
}

// A Scrape is the values of one scrape.
type Scrape map[sample]float64

type sample struct {
	*Metric
	labels [2]string
}

// Add adds a value, or joins it to the one that has the same labels.
func (s Scrape) Add(m *Metric, value float64, labels ...string) {
	of := sample{Metric: m}
	for i, text := range labels {
		of.labels[i] = label(text)
	}
	if before, ok := s[of]; ok && m.join != nil {
		value = m.join(before, value)
	} else {
		value += before
	}
	s[of] = value
}

// AddBool adds 1 for true, and 0 for false.
func (s Scrape) AddBool(m *Metric, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	s.Add(m, value, labels...)
}
