package control

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/reset"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

var (
	//go:embed control.lua
	writeSource string
	writeScript = redis.NewScript(writeSource)
)

const (
	// WaitFor is how long a change waits until every node has applied it.
	WaitFor = 5 * time.Second
	// idleBeat, waitingBeat and busyBeat are the times between two heartbeats: as ever, while a
	// change waits for other nodes, and while there is more to read or to write.
	idleBeat    = time.Second
	waitingBeat = 100 * time.Millisecond
	busyBeat    = 10 * time.Millisecond
	// settleFor is how long it takes after a loss until all nodes have had a heartbeat.
	settleFor = 3 * idleBeat
	// fewNodes are so many that all of them may list the others when their number changes: one list
	// costs Redis 2 µs a node.
	fewNodes = 100
	// batch is how many entries one call of the script takes, and rounds how many calls are made
	// between two heartbeats.
	batch  = 100
	rounds = 20
)

// ErrFull is the error for one entry too many.
var ErrFull = fmt.Errorf("the control record holds %d entries, deleted ones that could come back included; remove some, or wait until some end; `enforce --all` works all the same", MaxEntries)

// Options say what a Control works with.
type Options struct {
	// Client is nil for a record that is this node's own.
	Client redis.UniversalClient
	// Store names the Redis and the namespace, without secrets: a saved record is of one of them.
	Store string
	// Keys is the keyspace of the namespace.
	Keys ratesync.Keyspace
	// Timeout bounds a call to the server.
	Timeout time.Duration
	// Now is this node's clock, in nanoseconds since the Unix epoch, which never steps.
	Now func() int64
	// Beat has the next heartbeat come at once, without waiting for it. It is nil without a client.
	Beat func()
	// Name names this node to people, in printable ASCII.
	Name   string
	Logger *zap.Logger
}

// A Control is a node's copy of the control record of one Redis and namespace at work, or a record
// of its own where there is no Redis. It is safe for concurrent use. No lock is held over I/O.
type Control struct {
	Options

	waitFor time.Duration // WaitFor; tests wait for what they expect, however busy a machine is

	mu         sync.Mutex
	record     *Record
	failing    string // why the record can't be had, "" if it can
	agains     int    // heartbeats in a row that left something to say
	changes    int64  // of the record, and ahead of it, when the rules were compiled
	ahead      int64
	node       string           // of this node's lease
	leases     []Lease          // of all nodes, as they were listed last, by name
	listed     int64            // when that was, 0 never
	heard      int64            // when a heartbeat was answered last, 0 never
	knownSince int64            // by its last answer, see HeartbeatReply
	settled    int64            // when all nodes have had a heartbeat since the last loss
	waiting    int              // changes that wait for other nodes
	asked      bool             // somebody wants to see the leases
	beats      chan struct{}    // closed and replaced with each heartbeat
	regions    map[string]int64 // up to which revision each other one has the record
	zones      map[string]*Zone
	parsed     map[string]parsed // by name, to parse nothing twice
	ends       int64             // when the first active entry ends
	keep       *keeper           // where the record is saved, nil for nowhere
	saving     chan struct{}     // closed when the goroutine that saves ends, nil for none

	// resets are the active ones, by zone. Each change replaces the map.
	resets map[string]*reset.Set

	resetting sync.Mutex // one applies resets at a time; taken before mu
	forgivers map[string]map[Forgiver]struct{}
	forgiven  map[string]forgiven
}

// New returns a Control. It does no I/O.
func New(o Options) *Control {
	return &Control{
		Options: o, waitFor: WaitFor, record: NewRecord(), beats: make(chan struct{}),
		zones: make(map[string]*Zone), parsed: make(map[string]parsed),
		forgivers: make(map[string]map[Forgiver]struct{}), forgiven: make(map[string]forgiven),
	}
}

// Zone returns where requests find the rules of a zone. It is the same for all zones of a name.
func (c *Control) Zone(name string) *Zone {
	c.mu.Lock()
	defer c.mu.Unlock()
	z := c.zones[name]
	if z == nil {
		z = new(Zone)
		c.zones[name] = z
		c.compile()
	}
	return z
}

// IsShared reports whether the record is shared with other nodes.
func (c *Control) IsShared() bool { return c.Client != nil }

// compile gives the zones the rules that are active now. The lock is held.
func (c *Control) compile() {
	now, known := c.Now(), c.parsed
	c.ends, c.changes, c.ahead = 0, c.record.changes, c.record.ahead
	c.parsed = make(map[string]parsed, len(known))
	for e := range c.record.Active(now) {
		if end := c.record.Ends(e); c.ends == 0 || end < c.ends {
			c.ends = end
		}
		p := known[e.ID]
		ok := p.Entry == e
		if !ok {
			p, ok = parse(e)
		}
		if ok {
			c.parsed[e.ID] = p
		}
	}
	c.resets = c.resetsOf(now)
	zones, others := compile(maps.Values(c.parsed))
	for name, z := range c.zones {
		z.Store(cmp.Or(zones[name], others))
	}
}

// Tick ends what is over, and tries again to save what could not be saved. It is to be called every
// second.
func (c *Control) Tick() {
	c.mu.Lock()
	now := c.Now()
	if c.ends != 0 && now >= c.ends {
		c.compile()
	}
	c.record.Forget(now)
	c.mu.Unlock()
	c.applyResets()
	c.save()
}
