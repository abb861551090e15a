package metrics

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ZoneState is the state of one table of a zone, which has one for each limit.
type ZoneState struct {
	Zone string
	Keys int64
	// Sketch is set where keys share counters, because the table holds max_keys keys.
	Sketch bool
	// Syncs is set where counts are synced. Synced is when all of them were, the zero time for
	// never.
	Syncs  bool
	Synced time.Time
	// Window is that of the limit, "" where the current configuration has none that is the same for
	// all requests. Then Requests is how many it admits in a window, and Burst how many a bucket
	// with a burst admits at once, 0 for other kinds.
	Window          string
	Requests, Burst int64
	// Concurrent is set for requests that run in place of counters: InUse is how many do on this
	// node.
	Concurrent bool
	InUse      int64
}

// RedisState is the state of one Redis and namespace.
type RedisState struct {
	Namespace string
	Up        bool
	Syncs     int64 // that succeeded
	Failures  int64
	Keys      int64 // synced
	// FailedKeys are those that Redis could not do, or of which its reply made no sense.
	FailedKeys int64
	// CircuitsOpen, CircuitTrips and Timeouts are of the zones that Redis decides for.
	CircuitsOpen, CircuitTrips, Timeouts int64
}

// RegionState is how another region stands.
type RegionState struct {
	Region      string
	Up          bool
	Lag         float64
	Backlog     int64
	ClockOffset float64
	Messages    int64
}

// BandwidthState is how a zone slows responses.
type BandwidthState struct {
	Zone   string
	Open   int64
	Bytes  int64
	Waited time.Duration
}

// ControlState is the state of one control record.
type ControlState struct {
	Namespace string
	Overrides int64
	// Applied is set where this node has applied what Redis has, as far as it knows.
	Applied bool
}

// A metric is one that is made of the state of the process.
type metric struct {
	*prometheus.Desc
	kind   prometheus.ValueType
	labels int
	// join makes one of two values with the same labels, the sum where it is nil: a zone has a
	// table for each limit, and two namespaces may have a zone of one name. Labels that came twice
	// would fail the whole scrape.
	join func(a, b float64) float64
}

// described are all that there are.
var described []*metric

func describe(name, help string, labels ...string) *metric {
	m := &metric{prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil), prometheus.GaugeValue, len(labels), nil}
	if strings.HasSuffix(name, "_total") {
		m.kind = prometheus.CounterValue
	}
	described = append(described, m)
	return m
}

// joined sets how values are joined.
func (m *metric) joined(join func(a, b float64) float64) *metric {
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

var (
	keysMetric   = describe("keys", "Counters in this node's memory, one for each key and rate, and one for a key on its way to a ban.", "zone")
	sketchMetric = describe("sketch_in_use", "1 while new keys of a zone share counters, because it has max_keys of them, else 0.", "zone").joined(greatest)
	syncedMetric = describe("last_sync_timestamp_seconds", "Unix time of the last sync cycle in which Redis answered for all keys of a zone that syncs; 0 if there was none.", "zone").joined(least)

	limitMetric = describe("limit_requests", "Requests that a zone admits in a window, as configured, unless the limit comes with the request.", "zone", "window").joined(latest)
	inUseMetric = describe("concurrent_requests", "Requests that run on this node, in a zone with concurrent.", "zone")
	burstMetric = describe("burst_requests", "Requests that a token_bucket or gcra admits at once; of several rates, the smallest.", "zone").joined(least)

	openResponsesMetric = describe("bandwidth_responses", "Responses that a zone with bandwidth slows down.", "zone")
	bytesMetric         = describe("bandwidth_bytes_total", "Bytes of bodies from a zone with bandwidth.", "zone")
	waitedMetric        = describe("bandwidth_wait_seconds_total", "Time that responses waited for the bandwidth of their key.", "zone")

	redisMetric    = describe("redis_up", "1 while Redis answers all calls, else 0.", "namespace").joined(least)
	syncsMetric    = describe("syncs_total", "Calls to Redis to sync counts, by result: ok or failed.", "namespace", "result")
	syncKeysMetric = describe("synced_keys_total", "Counts in answered calls.", "namespace")
	failedMetric   = describe("failed_keys_total", "Counts in answered calls that Redis rejected, or whose reply made no sense; they are sent again.", "namespace")
	openMetric     = describe("circuits_open", "Open circuits: 1 while requests to strict zones don't wait for Redis; in a Cluster up to 64.", "namespace")
	tripsMetric    = describe("circuit_trips_total", "Times that a circuit has opened.", "namespace")
	appliedMetric  = describe("control_applied", "1 while this node has applied all changes at run time that it knows of, else 0.", "namespace").joined(least)
	overrideMetric = describe("overrides", "Keys with limits that were set at run time.", "namespace")
	bannedMetric   = describe("banned_keys", "Banned keys that this node knows of.", "zone")

	regionMetric   = describe("region_up", "0 while another region is lost, else 1.", "region").joined(least)
	lagMetric      = describe("region_lag_seconds", "How long ago all was read that has changed in another region.", "region").joined(greatest)
	backlogMetric  = describe("region_backlog", "Counts and bans that have changed here since all was read in another region.", "region").joined(greatest)
	apartMetric    = describe("region_clock_offset_seconds", "How far another region's Redis clock is ahead.", "region").joined(further)
	messagesMetric = describe("region_messages_total", "Counts and bans that this node has read in another region.", "region")

	timeoutsMetric = describe("strict_timeouts_total", "Requests to strict zones that waited for Redis until strict_timeout.", "namespace")
)

// Register adds the metrics to a configuration's registry, however often it is called. state tells
// the state of the whole process when it is scraped, so that nothing is kept up for a scrape that
// may never come; entries of one name are added up.
func Register(registry *prometheus.Registry, state func() State) error {
	all := []prometheus.Collector{collector(state)}
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

// State is the state of the process.
type State struct {
	Zones      []ZoneState
	Bandwidths []BandwidthState
	Redis      []RedisState
	Regions    []RegionState
	Controls   []ControlState
	Bans       []BanState
}

// BanState is how many keys of a zone with bans are banned.
type BanState struct {
	Zone string
	Keys int64
}

// collector shows the state of the process.
type collector func() State

// Describe gives the descriptions of all that Collect sends.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range described {
		ch <- m.Desc
	}
}

// values are those of one scrape.
type values map[sample]float64

type sample struct {
	*metric
	labels [2]string
}

// add adds a value, or joins it to the one that has the same labels.
func (v values) add(m *metric, value float64, labels ...string) {
	of := sample{metric: m}
	for i, text := range labels {
		of.labels[i] = label(text)
	}
	if before, ok := v[of]; ok && m.join != nil {
		value = m.join(before, value)
	} else {
		value += before
	}
	v[of] = value
}

// Collect sends the state as it is now.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now, all := c(), values{}
	for _, s := range now.Zones {
		all.addZone(s)
	}
	for _, s := range now.Bandwidths {
		all.add(openResponsesMetric, float64(s.Open), s.Zone)
		all.add(bytesMetric, float64(s.Bytes), s.Zone)
		all.add(waitedMetric, s.Waited.Seconds(), s.Zone)
	}
	for _, s := range now.Redis {
		all.add(redisMetric, one(s.Up), s.Namespace)
		all.add(syncsMetric, float64(s.Syncs), s.Namespace, "ok")
		all.add(syncsMetric, float64(s.Failures), s.Namespace, "failed")
		all.add(syncKeysMetric, float64(s.Keys), s.Namespace)
		all.add(failedMetric, float64(s.FailedKeys), s.Namespace)
		all.add(openMetric, float64(s.CircuitsOpen), s.Namespace)
		all.add(tripsMetric, float64(s.CircuitTrips), s.Namespace)
		all.add(timeoutsMetric, float64(s.Timeouts), s.Namespace)
	}
	for _, s := range now.Regions {
		all.add(regionMetric, one(s.Up), s.Region)
		all.add(lagMetric, s.Lag, s.Region)
		all.add(backlogMetric, float64(s.Backlog), s.Region)
		all.add(apartMetric, s.ClockOffset, s.Region)
		all.add(messagesMetric, float64(s.Messages), s.Region)
	}
	for _, s := range now.Controls {
		all.add(overrideMetric, float64(s.Overrides), s.Namespace)
		all.add(appliedMetric, one(s.Applied), s.Namespace)
	}
	for _, s := range now.Bans {
		all.add(bannedMetric, float64(s.Keys), s.Zone)
	}
	for of, value := range all {
		ch <- prometheus.MustNewConstMetric(of.Desc, of.kind, value, of.labels[:of.metric.labels]...)
	}
}

// addZone adds one table of a zone.
func (v values) addZone(s ZoneState) {
	v.add(keysMetric, float64(s.Keys), s.Zone)
	v.add(sketchMetric, one(s.Sketch), s.Zone)
	if s.Syncs {
		v.add(syncedMetric, seconds(s.Synced), s.Zone)
	}
	if s.Concurrent {
		v.add(inUseMetric, float64(s.InUse), s.Zone)
	}
	if s.Window != "" {
		v.add(limitMetric, float64(s.Requests), s.Zone, s.Window)
	}
	if s.Burst > 0 {
		v.add(burstMetric, float64(s.Burst), s.Zone)
	}
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
