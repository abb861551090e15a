package ratesync

import (
	"crypto/rand"
	"encoding/base64"
	"hash/fnv"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A Keyspace names all that a namespace has in Redis. Each key begins with
//
//	<namespace>:<schema>:{<shard>}:
//
// and goes on with one of these:
//
//	<table>:<id>            hash    a cell, see say.lua
//	<zone>:ban:<id>         string  "begun length stamp memory": the ban of the key, see ban.State
//	<zone>:concurrent:<id>  hash    node -> "seq gauge expiry": what runs there, see slots.lua
//	told                    zset    cells and bans of which other regions have to know, by when
//	                                they changed; only in shard 0 where there is no Cluster
//	pulled                  hash    region and shard -> up to which score of told that was read
//	nodes                   hash    node -> "seq expiry since applied name", its last heartbeat
//	counted                 hash    nodes -> "at nodes", when they were counted last, and how
//	                                many there were, lost -> when a loss was found last
//	control                 hash    entry -> "stamp until keep length body", version -> what it
//	                                holds, see package control
//	region                  string  the name of the region of this server
//	relay                   hash    what the node keeps that reads the other regions: node -> its
//	                                name, until -> end of its lease, since -> from when on some
//	                                node did without a gap, number -> that of the last thing it
//	                                has said; and of each region answered -> when it has, readus
//	                                -> when it was known to have read this one, shown -> how it
//	                                stands, reader -> which node reads there, theirrecord -> up to
//	                                which revision its control record was read, ourrecord -> up
//	                                to which it has read that of this region
//	strict:probe            hash    what a probe writes; strict:probe:no is never there
//
// A table is <zone>:<kind>-<window>[-<sub-windows>], or <zone>:c-<window>-<time zone>[-<day>] where
// windows are those of a calendar, see Spec. An id is 128 bits of the SHA-256 of the key that
// requests are counted by, in base64: no byte of a client gets into Redis. The shard, a hash tag,
// keeps all keys of an id in one hash slot of a Cluster. From nodes to relay all is in shard 0.
//
// Everything expires: the nodes and their count after four Leases, the control record when its last
// entry has ended, a ban when it is over, a probe after SpareTTL, a cell some time after it counts,
// slots one to two leases of a gauge after they were said, what regions need toldTTL after it was
// written last.
type Keyspace struct {
	head    string
	cluster bool // what belongs to one shard lies apart from that of others
}

const (
	// schema is the version of all that is above. Nodes of two versions share nothing.
	schema = "3"
	// ShardCount is how many shards there are. A set of shards is a word with a bit for each.
	ShardCount = 64
	allShards  = cycle.AllShards

	// Lease is how long a node counts as there after a heartbeat.
	Lease = 10 * heartbeatInterval
	// toldTTL is how long other regions can read of something that was counted last.
	toldTTL = 30 * 24 * time.Hour
	// SpareTTL is how long the key of a probe stays beyond its last use.
	SpareTTL = time.Minute
)

// NewKeyspace returns the keyspace of a namespace.
func NewKeyspace(namespace string) Keyspace {
	return Keyspace{head: namespace + ":" + schema + ":{"}
}

// In is the keyspace in a Cluster, or in one server.
func (k Keyspace) In(cluster bool) Keyspace {
	k.cluster = cluster
	return k
}

// shardOf is the shard in which other regions are told of an id.
func (k Keyspace) shardOf(id keys.ID) int {
	if k.cluster {
		return ShardOf(id)
	}
	return 0
}

// ShardOf is the shard of an id.
func ShardOf(id keys.ID) int { return int(id[0] & (ShardCount - 1)) }

// HasShardOf reports whether a set of shards, as UnavailableShards returns it, has the shard of an
// id.
func HasShardOf(shards uint64, id keys.ID) bool { return shards>>ShardOf(id)&1 != 0 }

// Nodes is the key of the heartbeats where shard is 0. In other shards there is no such key.
func (k Keyspace) Nodes(shard int) string { return k.head + strconv.Itoa(shard) + "}:nodes" }

// Counted is the key of the count of nodes. It shares a hash slot with Nodes(0).
func (k Keyspace) Counted() string { return k.head + "0}:counted" }

// Control is the key of the control record. It shares a hash slot with Nodes(0).
func (k Keyspace) Control() string { return k.head + "0}:control" }

// Region and Relay are the keys of the region's name and of the relay. They share a hash slot with
// Nodes(0).
func (k Keyspace) Region() string { return k.head + "0}:region" }
func (k Keyspace) Relay() string  { return k.head + "0}:relay" }

// Told is the key of what other regions have to know. Where there is no Cluster, all is in shard 0.
func (k Keyspace) Told(shard int) string { return k.head + strconv.Itoa(shard) + "}:told" }

// Pulled is the key of how far other regions were read, for the cells of a shard.
func (k Keyspace) Pulled(shard int) string { return k.head + strconv.Itoa(shard) + "}:pulled" }

// Probe are the keys that a probe of a shard names.
func (k Keyspace) Probe(shard int) []string {
	key := k.head + strconv.Itoa(shard) + "}:strict:probe"
	return []string{key, key + ":no"}
}

// Cells are the keys of a table's cells.
func (k Keyspace) Cells(s Spec) Keys { return Keys{k.head, "}:" + s.Zone + ":" + s.Name() + ":"} }

// Zone are those keys of a zone that belong to no table: ban or concurrent.
func (k Keyspace) Zone(zone, what string) Keys { return Keys{k.head, "}:" + zone + ":" + what + ":"} }

// Keys are the keys of one table, or of one zone's records, with what stands before the shard and
// between shard and id.
type Keys struct{ head, middle string }

// Of is the key of an id.
func (k Keys) Of(id keys.ID) string { return string(k.append(nil, id)) }

func (k Keys) append(dst []byte, id keys.ID) []byte {
	dst = append(dst, k.head...)
	dst = strconv.AppendInt(dst, int64(ShardOf(id)), 10)
	dst = append(dst, k.middle...)
	return base64.RawURLEncoding.AppendEncode(dst, id[:])
}

// Spec names a table to other nodes and says how long its epochs matter.
type Spec struct {
	Zone string
	// Kind is one letter for the algorithm: f fixed window, c fixed window of a calendar, s sliding
	// window, l log, t token bucket, g GCRA, q leaky bucket; or Denials.
	Kind       byte
	Window     time.Duration
	Calendar   *algorithms.Calendar // nil where windows have one length
	SubWindows int
	// History is how many epochs before the current one count.
	History int
}

// Denials is the letter of a fixed window of denied requests, which lead to a ban.
const Denials = 'd'

// SpecOf is the Spec of a limit in a zone.
func SpecOf(zone string, p algorithms.Params) Spec {
	s := Spec{Zone: zone, Kind: p.Kind.Traits().Code, Window: p.Window, Calendar: p.Calendar, SubWindows: 1, History: p.Compile().History}
	if p.Calendar != nil {
		s.Kind = cell.Calendar
	}
	if p.Kind.Traits().TakesSubWindows {
		s.SubWindows = s.History
	}
	return s
}

// Rule is how the script of cells counts at now, in nanoseconds of its clock: see package cell.
// reserved is set where what is granted is reserved until it is settled.
func (s Spec) Rule(now int64, reserved bool) cell.Rule {
	if s.Calendar != nil {
		span := s.Calendar.At(now)
		length := (span.End - span.Begin) / int64(time.Microsecond)
		return cell.Rule{
			Kind: cell.Calendar, Window: time.Duration(span.End - span.Begin), Parts: 1, Kept: 1, Reserved: reserved,
			Shift: span.Begin/int64(time.Microsecond) - span.Number*length,
		}
	}
	parts, part := int64(s.SubWindows), s.Window.Microseconds()/int64(s.SubWindows)
	kind := byte(cell.Windows)
	switch {
	case s.isBucket():
		return cell.Rule{Kind: cell.Bucket, Window: s.Window, Parts: 1, Decided: true, Size: cell.MaxExact / 2, Reserved: reserved}
	case s.Kind == 'l':
		p := algorithms.Params{Kind: algorithms.SlidingLog, Window: s.Window}
		parts, part = int64(s.History), p.Epoch().Microseconds()
	case s.History > 0:
		kind = cell.Fades
	}
	r := cell.Rule{Kind: kind, Window: time.Duration(part*parts) * time.Microsecond, Parts: int(parts), Kept: s.History + 1, Reserved: reserved}
	r.TTL = time.Duration(part*int64(r.Kept)) * time.Microsecond
	return r
}

// isBucket reports whether the cells of a table are buckets.
func (s Spec) isBucket() bool { return s.Kind == 't' || s.Kind == 'g' || s.Kind == 'q' }

// RuleOf is Rule for what is said of a bucket of so much and such a rate. decided is set where
// that is the rate of a request since the last answer, and filled where a penalty has filled it.
func (s Spec) RuleOf(size, rate int64, decided, filled, reserved bool) cell.Rule {
	r := s.Rule(0, reserved)
	r.Size, r.Rate, r.Decided, r.Filled = size, rate, decided, filled
	full := float64(s.Window) * (float64(size)/float64(max(1, rate)) + 1)
	r.TTL = time.Duration(min(full, float64(100*365*24*time.Hour)))
	return r
}

// Name is the algorithm and window in the names of keys, see Keyspace. Nothing else is
// in them, so that nodes share what they count whatever else they are configured with.
func (s Spec) Name() string {
	if s.Calendar != nil {
		return string(s.Kind) + "-" + calendar.Text(s.Calendar)
	}
	window := s.Window.String()
	for _, zero := range []string{"m0s", "h0m"} { // 1h0m0s is 1h
		if strings.HasSuffix(window, zero) {
			window = window[:len(window)-2]
		}
	}
	name := string(s.Kind) + "-" + window
	if s.SubWindows > 1 {
		name += "-" + strconv.Itoa(s.SubWindows)
	}
	return name
}

// parseSpec reads the name of a table: see Keyspace.
func parseSpec(table string) (s Spec, ok bool) {
	i := strings.LastIndexByte(table, ':')
	kind, rest, _ := strings.Cut(table[i+1:], "-")
	if kind == string(cell.Calendar) && i >= 0 {
		by, err := calendar.Parse(rest)
		if err != nil {
			return s, false
		}
		return Spec{Zone: table[:i], Kind: cell.Calendar, Window: by.Window, Calendar: by, SubWindows: 1}, true
	}
	window, parts, cut := strings.Cut(rest, "-")
	var err, err2 error
	s.Window, err = time.ParseDuration(window)
	if s.SubWindows = 1; cut {
		s.SubWindows, err2 = strconv.Atoi(parts)
	}
	if i < 0 || len(kind) != 1 || err != nil || err2 != nil || s.Window < time.Millisecond || s.SubWindows < 1 || s.SubWindows > algorithms.MaxHistory {
		return s, false
	}
	s.Zone, s.Kind = table[:i], kind[0]
	switch s.Kind {
	case 's':
		s.History = s.SubWindows
	case 'l':
		p := algorithms.Params{Kind: algorithms.SlidingLog, Window: s.Window}
		s.History = p.Compile().History
	}
	return s, strings.IndexByte("fsl"+"tgq"+string(Denials), s.Kind) >= 0
}

// parseKey takes the key of an id apart: into what stands between it and the shard, and the id.
func parseKey(key string) (table string, id keys.ID, ok bool) {
	_, rest, _ := strings.Cut(key, "{")
	_, rest, _ = strings.Cut(rest, "}:")
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return "", id, false
	}
	id, ok = parseID(rest[i+1:])
	return rest[:i], id, ok
}

// parseID reads an id as it stands in keys.
func parseID(text string) (id keys.ID, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	return keys.ID(append(b, make([]byte, 16)...)[:16]), err == nil && len(b) == len(id)
}

// NewNode is a random name for a node, which is a field in these keys.
func NewNode() string {
	var b [9]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// NodeOffset is the part of a time that a node waits, so that not all do something at once. It goes
// by the node's name, which is random.
func NodeOffset(node string, of time.Duration) time.Duration {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(node))
	part, _ := bits.Mul64(hash.Sum64(), uint64(of)+1)
	return time.Duration(part)
}
