package metrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ZoneState is the state of one table of a zone, which has one for each limit.
type ZoneState struct {
	Zone string
	Keys int64
	// Sketch is set where keys share a sketch, because the table holds max_keys keys.
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

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
}

var (
	keysDesc   = describe("keys", "Counters in the memory of this node, one for each key and limit of a zone.", "zone")
	sketchDesc = describe("sketch_in_use", "1 while new keys of a zone share the overflow sketch, because it has max_keys counters; else 0.", "zone")
	syncedDesc = describe("last_sync_timestamp_seconds", "Unix time of the last sync cycle of a zone in which Redis answered for every dirty key; 0 if there was none.", "zone")

	limitDesc = describe("limit_requests", "Requests that a zone admits in a window.", "zone", "window")
	inUseDesc = describe("concurrent_requests", "Requests of a zone with concurrent that run on this node.", "zone")
	burstDesc = describe("burst_requests", "Requests that a zone with a bucket admits at once.", "zone")

	openResponsesDesc = describe("bandwidth_responses", "Open responses that a zone slows.", "zone")
	bytesDesc         = describe("bandwidth_bytes_total", "Bytes of bodies that a zone with bandwidth has let through.", "zone")
	waitedDesc        = describe("bandwidth_wait_seconds_total", "Time that responses waited for the bandwidth of their key, all together.", "zone")

	redisDesc    = describe("redis_up", "1 while everything that is sent to Redis is answered, else 0.", "namespace")
	syncsDesc    = describe("syncs_total", "Calls to Redis that sync counts, by result: ok or failed.", "namespace", "result")
	syncKeysDesc = describe("synced_keys_total", "Counts in sync calls that Redis answered.", "namespace")
	failedDesc   = describe("failed_keys_total", "Counts in answered sync calls that Redis rejected, or whose reply made no sense.", "namespace")
	openDesc     = describe("circuits_open", "Open circuits: strict zones do not wait for the Redis behind them.", "namespace")
	tripsDesc    = describe("circuit_trips_total", "Times that a circuit has opened.", "namespace")
	appliedDesc  = describe("control_applied", "1 while this node has applied all that was changed at run time, as far as it knows, else 0.", "namespace")
	overrideDesc = describe("overrides", "Keys with limits of their own that were set at run time.", "namespace")
	bannedDesc   = describe("banned_keys", "Keys that are banned, as far as this node knows; of zones with ban.", "zone")
	timeoutsDesc = describe("strict_timeouts_total", "Requests to strict zones that waited for Redis until strict_timeout.", "namespace")
)

// Register adds the metrics to a configuration's registry, however often it is called. state tells
// the state of the whole process when it is scraped, so that nothing is kept up for a scrape that
// may never come; entries of one name are added up.
func Register(registry *prometheus.Registry, state func() State) error {
	for _, c := range []prometheus.Collector{decisionCount, overflowCount, nearCount, defaultCount, collector(state)} {
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
	Controls   []ControlState
	Bans       []BanState
}

// BanState is how many keys of a zone with bans are banned.
type BanState struct {
	Zone string
	Keys int64
}

func (s BanState) name() string { return s.Zone }

// plus adds up two namespaces.
func (s BanState) plus(other BanState) BanState {
	s.Keys += other.Keys
	return s
}

// collector shows the state of the process.
type collector func() State

// Describe gives the descriptions of all that Collect sends.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		keysDesc, sketchDesc, syncedDesc, limitDesc, inUseDesc, burstDesc, redisDesc, syncsDesc, syncKeysDesc, failedDesc, openDesc, tripsDesc, timeoutsDesc,
		appliedDesc, overrideDesc, bannedDesc, openResponsesDesc, bytesDesc, waitedDesc,
	} {
		ch <- d
	}
}

// Collect sends the state as it is now.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := c()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	for name, s := range merge(now.Zones) {
		send(keysDesc, gauge, float64(s.Keys), name)
		send(sketchDesc, gauge, one(s.Sketch), name)
		if s.Syncs {
			send(syncedDesc, gauge, seconds(s.Synced), name)
		}
		if s.Concurrent {
			send(inUseDesc, gauge, float64(s.InUse), name)
		}
	}
	requests, bursts := configured(now.Zones)
	for of, n := range requests {
		send(limitDesc, gauge, float64(n), of[0], of[1])
	}
	for name, n := range bursts {
		send(burstDesc, gauge, float64(n), name)
	}
	for name, s := range merge(now.Bandwidths) {
		send(openResponsesDesc, gauge, float64(s.Open), name)
		send(bytesDesc, counter, float64(s.Bytes), name)
		send(waitedDesc, counter, s.Waited.Seconds(), name)
	}
	for name, s := range merge(now.Redis) {
		send(redisDesc, gauge, one(s.Up), name)
		send(syncsDesc, counter, float64(s.Syncs), name, "ok")
		send(syncsDesc, counter, float64(s.Failures), name, "failed")
		send(syncKeysDesc, counter, float64(s.Keys), name)
		send(failedDesc, counter, float64(s.FailedKeys), name)
		send(openDesc, gauge, float64(s.CircuitsOpen), name)
		send(tripsDesc, counter, float64(s.CircuitTrips), name)
		send(timeoutsDesc, counter, float64(s.Timeouts), name)
	}
	for name, s := range merge(now.Controls) {
		send(overrideDesc, gauge, float64(s.Overrides), name)
		send(appliedDesc, gauge, one(s.Applied), name)
	}
	for name, s := range merge(now.Bans) {
		send(bannedDesc, gauge, float64(s.Keys), name)
	}
}

type entry[S any] interface {
	name() string
	plus(other S) S
}

// merge adds up entries of one name: a zone has a table for each limit, and two namespaces may have
// a zone of one name. A label that came twice would fail the whole scrape.
func merge[S entry[S]](all []S) map[string]S {
	merged := make(map[string]S, len(all))
	for _, s := range all {
		name := label(s.name())
		if sum, ok := merged[name]; ok {
			s = sum.plus(s)
		}
		merged[name] = s
	}
	return merged
}

// configured returns the limits by zone and window, and the burst of each zone that has one: of
// several limits the smallest, which decides.
func configured(zones []ZoneState) (requests map[[2]string]int64, bursts map[string]int64) {
	requests, bursts = map[[2]string]int64{}, map[string]int64{}
	for _, s := range zones {
		name := label(s.Zone)
		if s.Window != "" {
			requests[[2]string{name, s.Window}] = s.Requests
		}
		if least, ok := bursts[name]; s.Burst > 0 && (!ok || s.Burst < least) {
			bursts[name] = s.Burst
		}
	}
	return requests, bursts
}

func (s ZoneState) name() string { return s.Zone }

// plus adds up two tables. Of their syncs it shows the one that is further behind.
func (s ZoneState) plus(other ZoneState) ZoneState {
	if !s.Syncs || other.Syncs && other.Synced.Before(s.Synced) {
		s.Syncs, s.Synced = other.Syncs, other.Synced
	}
	s.Keys += other.Keys
	s.Sketch = s.Sketch || other.Sketch
	s.Concurrent, s.InUse = s.Concurrent || other.Concurrent, s.InUse+other.InUse
	return s
}

func (s BandwidthState) name() string { return s.Zone }

// plus adds up the zones of one name in two namespaces.
func (s BandwidthState) plus(other BandwidthState) BandwidthState {
	s.Open += other.Open
	s.Bytes += other.Bytes
	s.Waited += other.Waited
	return s
}

func (s RedisState) name() string { return s.Namespace }

// plus adds up two connections to the same namespace, which is up where both are.
func (s RedisState) plus(other RedisState) RedisState {
	s.Up = s.Up && other.Up
	s.Syncs += other.Syncs
	s.Failures += other.Failures
	s.Keys += other.Keys
	s.FailedKeys += other.FailedKeys
	s.CircuitsOpen += other.CircuitsOpen
	s.CircuitTrips += other.CircuitTrips
	s.Timeouts += other.Timeouts
	return s
}

func (s ControlState) name() string { return s.Namespace }

// plus adds up two records of one namespace, in two Redis.
func (s ControlState) plus(other ControlState) ControlState {
	s.Overrides += other.Overrides
	s.Applied = s.Applied && other.Applied
	return s
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
