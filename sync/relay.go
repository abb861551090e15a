package ratesync

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

var (
	//go:embed relay.lua
	relayLua string
	//go:embed told.lua
	toldLua string

	headOfRelay  = fmt.Sprintf("local toldTTL = %d\n", toldTTL.Milliseconds())
	relayScript  = redis.NewScript(headOfRelay + relayLua)
	toldScript   = redis.NewScript(toldLua)
	regionScript = redis.NewScript("return redis.call('GET', KEYS[1]) or ''")
)

const (
	// relayLease is how long a node is the relay after it has said so, and relayRate how often it
	// does.
	relayLease = 5 * time.Second
	relayRate  = heartbeatRate
	// hurryRate is how often the relay looks for what should not wait, where there was something in
	// the last second, and calmRate how often else.
	hurryRate = 10 * time.Millisecond
	calmRate  = 100 * time.Millisecond
	// sweepRate is how often names are dropped of what is gone.
	sweepRate = time.Minute
	// pageSize is how many names are read at once.
	pageSize = 800
)

// Regions say which other regions the limits go over.
type Regions struct {
	// Here is the name of this region, and Others are the ways to the Redis of each of the others.
	Here   string
	Others map[string]redis.UniversalClient
	// Rate is how often they are told of all that has changed.
	Rate time.Duration
	// Divides is set where this side enforces its part of the limits while another is not heard of.
	Divides bool
}

// A relay speaks with the other regions, where this node is the one that does: all nodes run one,
// and the one with the lease works. It reads what the nodes of another region have counted in that
// region's Redis and says it to its own, as a node that stands for the region, and tells the others
// of bans. So no request and no sync ever waits for another region.
//
//	relay.go      the lease
//	relaypair.go  the way to one other region: heartbeats, and how far it has been told of bans
//	pull.go       what its nodes have spent, read there
//	relayban.go   bans
//	relaystate.go how the other regions stand, for all nodes of this one
type relay struct {
	Regions
	r     *Replicator
	node  string      // that asks for the lease
	due   cycle.Waker // a heartbeat should not wait
	names string      // of the other regions
	pairs []*pair
	// heard is how many regions are not lost, with this one, and silent fires where this region's
	// Redis has not said so for so long that a region would be.
	heard  atomic.Int64
	silent *time.Timer
	// waits is set while somebody waits until other regions have the control record, version is the
	// last one, which only the heartbeat's goroutine uses.
	waits   atomic.Bool
	version string

	rejected string // the region that the server names, as it was logged

	holds bool
	works atomic.Bool // holds, for whoever asks
	held  time.Time   // when the lease was renewed
	// number is that of the last thing that this node has said as the relay, 0 before it has one.
	number atomic.Int64
	stop   context.CancelFunc
	work   sync.WaitGroup // of the pairs

	mu sync.Mutex // guards what follows
	// forbade are the regions whose Redis rejects a command, as was logged.
	forbade map[string]bool
}

// Relay has the Replicator share with other regions what it counts. It is to be called before
// Start.
func (r *Replicator) Relay(o Regions) {
	x := &relay{Regions: o, r: r, node: r.node, due: cycle.NewWaker(), forbade: make(map[string]bool)}
	for name, client := range o.Others {
		x.pairs = append(x.pairs, newPair(x, name, client))
		x.names += name + " "
	}
	x.heard.Store(int64(len(o.Others) + 1))
	r.relay = x
}

// Regions is how many regions limits go over.
func (r *Replicator) Regions() int {
	if r.relay == nil {
		return 1
	}
	return len(r.relay.Others) + 1
}

// Side is the side that this region is on: of how many regions it hears, with itself, and how many
// there are. Where that divides no limits it hears of all.
func (r *Replicator) Side() (heard, of int64) {
	of = int64(r.Regions())
	if r.relay == nil || !r.relay.Divides {
		return of, of
	}
	return r.relay.heard.Load(), of
}

// run is the relay of a node, until the end of ctx.
func (x *relay) run(ctx context.Context) {
	defer x.end()
	x.silent = time.AfterFunc(lostRegionAfter, x.hearNothing)
	defer x.silent.Stop()
	var beat, urgent, swept time.Time
	for ctx.Err() == nil {
		now := time.Now()
		if rate := x.beatRate(); now.Sub(beat) >= rate {
			beat = now
			x.beat(ctx)
		}
		wait := x.beatRate()
		if x.holds {
			wait = calmRate
			if x.hurry(ctx) {
				urgent = now
			}
			if now.Sub(urgent) < time.Second {
				wait = hurryRate
			}
			if now.Sub(swept) >= sweepRate {
				swept = now
				x.sweep(ctx)
			}
		}
		select {
		case <-ctx.Done():
		case <-x.due:
			beat = time.Time{}
		case <-time.After(wait):
		}
	}
}

func (x *relay) beatRate() time.Duration {
	if x.waits.Load() {
		return calmRate
	}
	return relayRate
}

// end gives the lease up, so that another node goes on at once.
func (x *relay) end() {
	if !x.holds {
		return
	}
	x.rest()
	ctx, cancel := context.WithTimeout(context.Background(), min(x.r.timeout, closeLeast))
	defer cancel()
	_ = relayScript.Run(ctx, x.r.client, x.keys(), x.node, 0, x.Here).Err()
}

func (x *relay) keys() []string {
	return []string{x.r.keys.Relay(), x.r.keys.Region(), x.r.keys.Regions()}
}

// rest ends the work for all other regions.
func (x *relay) rest() {
	if !x.holds {
		return
	}
	x.stop()
	x.work.Wait()
	x.holds = false
	x.works.Store(false)
}

// beat renews the lease or asks for it, and keeps what has to outlive this node. A node that gets
// no answer for as long as its lease is no longer the relay.
func (x *relay) beat(ctx context.Context) {
	called, cancel := context.WithTimeout(ctx, min(x.r.timeout, relayRate))
	defer cancel()
	args := []any{x.node, relayLease.Milliseconds(), x.Here, x.numberInLua(), (lostRegionAfter - relayRate - calmRate).Milliseconds(), x.names}
	if x.holds {
		for _, p := range x.pairs {
			args = append(args, p.name, p.saved(), p.silence(), p.shown(), p.recordedInLua())
		}
	}
	reply, err := relayScript.Run(called, x.r.client, x.keys(), args...).Slice()
	fields, ok := map[string]string{}, false
	var lost []any
	if err == nil && len(reply) == 7 {
		var list []any
		list, _ = reply[4].([]any)
		lost, _ = reply[5].([]any)
		ok = len(lost) == len(x.pairs)
		for i := 0; i+1 < len(list); i += 2 {
			fields[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
		}
	}
	if !ok {
		x.forbids(x.Here, err)
		if time.Since(x.held) >= relayLease {
			x.rest()
		}
		return
	}
	x.silent.Reset(lostRegionAfter)
	defer x.hear(lost)
	x.heardRecords(fields)
	if name := fmt.Sprint(reply[3]); name != x.Here {
		x.reject(name)
	}
	if mine, _ := reply[2].(int64); mine != 1 {
		x.rest()
		for _, p := range x.pairs {
			p.show(fields["shown:"+p.name])
		}
		return
	}
	x.held = time.Now()
	server, _ := parseTime(reply[0], reply[1])
	number, _ := count(fmt.Sprint(reply[6]))
	x.lead(ctx, fields, server, number)
}

// hear notes which regions are lost, as this region's Redis says: see relay.lua.
func (x *relay) hear(lost []any) {
	heard := int64(1)
	for i, p := range x.pairs {
		if p.hear(fmt.Sprint(lost[i])) {
			heard++
		}
	}
	x.heard.Store(heard)
}

// hearNothing has all regions be lost, as nothing is known of them.
func (x *relay) hearNothing() {
	for _, p := range x.pairs {
		p.mu.Lock()
		p.why = cmp.Or(p.why, "the redis of this region does not answer")
		p.mu.Unlock()
	}
	x.heard.Store(1)
}

// heardRecords notes how far other regions have been told of the control record.
func (x *relay) heardRecords(fields map[string]string) {
	told := make(map[string]int64, len(x.pairs))
	for _, p := range x.pairs {
		told[p.name], _ = strconv.ParseInt(fields["record:"+p.name], 10, 64)
	}
	x.r.record.Told(told)
}

// recordMoves notes the version of the control record here, and whether somebody waits until other
// regions have been told of it.
func (x *relay) recordMoves(version string, waits bool) {
	if x.waits.Store(waits); waits {
		x.due.Wake()
	}
	if x.version == version {
		return
	}
	x.version = version
	for _, p := range x.pairs {
		p.due.Wake()
	}
}

// reject says once that the server belongs to another region.
func (x *relay) reject(name string) {
	if x.rejected == name {
		return
	}
	x.rejected = name
	x.r.logger.Error("redis belongs to another region, and this node tells no region what it counts; correct `here`, or the region's URL; if that name is wrong, delete the key "+x.r.keys.Region()+" there",
		warning.Field(warning.WrongRegion), zap.String("here", x.Here), zap.String("redis", name))
}

// forbids logs once that the user may not do at the Redis of a region what regions need, or that
// another program uses a key there: nothing else would tell, as that region is heard of all the
// while.
func (x *relay) forbids(region string, err error) {
	if !redisconn.IsForbidden(err) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return
	}
	x.mu.Lock()
	known := x.forbade[region]
	x.forbade[region] = true
	x.mu.Unlock()
	if !known {
		x.r.logger.Error("other regions are told too little, as redis rejects a command; ACL LOG there shows one that its user may not run",
			warning.Field(warning.RegionLost), zap.String("region", region), zap.String("reason", redisconn.Classify(err)))
	}
}

// lead goes on as the relay, or begins to be it, with what was kept.
func (x *relay) lead(ctx context.Context, fields map[string]string, server, number int64) {
	if x.holds {
		return
	}
	x.number.Store(number)
	inner, stop := context.WithCancel(ctx)
	x.holds, x.stop = true, stop
	x.works.Store(true)
	for _, p := range x.pairs {
		p.show(fields["shown:"+p.name])
		p.load(fields["told:"+p.name], server)
		for _, f := range []func(context.Context){p.beats, p.passes, p.hurries, p.pulls} {
			x.work.Go(func() { f(inner) })
		}
	}
}

// isRelay reports whether this region's Redis answers that this node is the relay.
func (x *relay) isRelay(ctx context.Context) bool {
	ctx, cancel := CallContext(ctx, x.r.timeout)
	defer cancel()
	node, err := cursorScript.Run(ctx, x.r.client, []string{x.r.keys.Relay()}, "node", "", "", 0).Text()
	return err == nil && node == x.node
}

// next numbers what this relay says: above what an earlier one has said.
func (x *relay) next() int64 { return x.number.Add(1) }

// goBeyond has the next number be above one that another relay has given.
func (x *relay) goBeyond(number int64) {
	for mine := x.number.Load(); mine < number && !x.number.CompareAndSwap(mine, number); mine = x.number.Load() {
	}
}

// numberInLua is the last of these numbers, "" where this node is not the relay.
func (x *relay) numberInLua() string {
	if !x.holds {
		return ""
	}
	return strconv.FormatInt(x.number.Load(), 10)
}

// longestRate is the longest time between syncs.
func (x *relay) longestRate() (longest time.Duration) {
	for _, s := range x.r.attached() {
		if at := s.at.Load(); at != nil {
			longest = max(longest, time.Duration(at.rate.Load()))
		}
	}
	return longest
}

// resentWithin is how long it takes until all nodes have sent once more what they hold.
func (x *relay) resentWithin() time.Duration { return table.ResentUnsettled + 2*x.longestRate() }

// shards are those in which nodes tell of what has changed.
func (x *relay) shards() int {
	if x.r.cluster {
		return ShardCount
	}
	return 1
}

// A page are names that were told.
type page struct {
	highest, last int64
	names         []string
	more          int64 // names after these
	err           error
}

// told reads names that were told after a score. take removes them, and sweep those that are gone.
func (x *relay) told(ctx context.Context, key string, after int64, how string) page {
	ctx, cancel := CallContext(ctx, x.r.timeout)
	defer cancel()
	p := parsePage(toldScript.Run(ctx, x.r.client, []string{key}, after, pageSize, how), x.r.keys.head)
	x.forbids(x.Here, p.err)
	return p
}

// toldInAll is told for each shard, in a Cluster by one pipeline for each of its masters.
func (x *relay) toldInAll(ctx context.Context, key func(shard int) string, after [ShardCount]int64, how string) []page {
	if !x.r.cluster {
		return []page{x.told(ctx, key(0), after[0], how)}
	}
	ctx, cancel := CallContext(ctx, x.r.timeout)
	defer cancel()
	replies := make([]*redis.Cmd, ShardCount)
	for _, eval := range []func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd{toldScript.EvalSha, toldScript.Eval} {
		pipe := x.r.client.Pipeline()
		for shard, reply := range replies {
			if reply == nil || redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
				replies[shard] = eval(ctx, pipe, []string{key(shard)}, after[shard], pageSize, how)
			}
		}
		if pipe.Len() > 0 {
			_, _ = pipe.Exec(ctx) // each reply has its error
		}
	}
	pages := make([]page, ShardCount)
	for shard, reply := range replies {
		pages[shard] = parsePage(reply, x.r.keys.head)
		x.forbids(x.Here, pages[shard].err)
	}
	return pages
}

// parsePage reads a page. In the place of a name that doesn't begin with head, and so is of another
// program, stands none.
func parsePage(cmd *redis.Cmd, head string) (p page) {
	reply, err := cmd.Slice()
	if p.err = err; err != nil {
		return p
	}
	p.err = ErrReply
	if len(reply) != 4 {
		return p
	}
	names, ok := reply[2].([]any)
	if !ok {
		return p
	}
	for _, name := range names {
		text := fmt.Sprint(name)
		if !strings.HasPrefix(text, head) {
			text = ""
		}
		p.names = append(p.names, text)
	}
	highest, err1 := strconv.ParseFloat(fmt.Sprint(reply[0]), 64)
	last, err2 := strconv.ParseFloat(fmt.Sprint(reply[1]), 64)
	p.highest, p.last = int64(highest), int64(last)
	p.more, _ = reply[3].(int64)
	p.err = errors.Join(err1, err2)
	return p
}

// hurry takes what should not wait, and reports whether there was something.
func (x *relay) hurry(ctx context.Context) (some bool) {
	for more := true; more; {
		more = false
		for _, page := range x.toldInAll(ctx, x.r.keys.Hurry, [ShardCount]int64{}, "take") {
			if page.err != nil || len(page.names) == 0 {
				continue // a hint that is lost goes with all that has changed
			}
			some, more = true, more || page.more > 0
			for _, p := range x.pairs {
				p.hurry(page.names)
			}
		}
	}
	return some
}

// sweep drops the names of what is gone.
func (x *relay) sweep(ctx context.Context) {
	for _, key := range []func(int) string{x.r.keys.Told, x.r.keys.ToldCells} {
		for shard, page := range x.toldInAll(ctx, key, [ShardCount]int64{}, "sweep") {
			for page.err == nil && len(page.names) >= pageSize {
				page = x.told(ctx, key(shard), page.last, "sweep")
			}
		}
	}
}
