package ratesync

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
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

	headOfRelay = fmt.Sprintf("local toldTTL = %d\n", toldTTL.Milliseconds())
	relayScript = redis.NewScript(headOfRelay + relayLua)
	toldScript  = redis.NewScript(fieldsLua + recordLua + toldLua)
	sweepScript = redis.NewScript(sweepLua)
)

// sweepLua drops the keys of what is gone. KEYS: the sorted set, and some that are in it.
const sweepLua = `for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then redis.call('ZREM', KEYS[1], KEYS[i]) end
end`

const (
	// relayLease is how long a node is the relay after it has said so, and relayInterval how often
	// it does.
	relayLease    = 5 * time.Second
	relayInterval = heartbeatInterval
	// waitInterval is how often it does while somebody waits.
	waitInterval = 100 * time.Millisecond
	// sweepInterval is how often the keys of what is gone are dropped.
	sweepInterval = time.Minute
	// pageSize is how many keys are read at once.
	pageSize = 400
	// lostRegionAfter is after how long without an answer another region counts as lost, at most:
	// nodes look every relayInterval, and take it for lost where it would be before the next time.
	lostRegionAfter = 10 * time.Second
)

// Regions say which other regions the limits go over.
type Regions struct {
	// Here is the name of this region, and Others are the ways to the Redis of each of the others.
	Here   string
	Others map[string]redis.UniversalClient
	// Interval is how often they are asked for what has changed there.
	Interval time.Duration
	// Divides is set where this side enforces its part of the limits while another is not heard of.
	Divides bool
}

// A relay reads the other regions, where this node is the one that does: all nodes run one, and the
// one with the lease works. It reads from another region's Redis what has changed there, and writes
// it to its own: counts as the state of a node that stands for the region. So no request and no
// sync ever waits for another region, and nobody writes to the Redis of one.
//
//	relay.go       the lease
//	relayregion.go the way to one other region: what is read there
//	relaycell.go   cells and bans, and how far they were read
//	relaystate.go  how the other regions stand, for all nodes of this one
type relay struct {
	Regions
	r       *Replicator
	node    string      // that asks for the lease
	renew   cycle.Waker // the lease is to be renewed at once, and what is kept with it
	names   string      // of the other regions
	regions []*otherRegion
	// reached is how many regions are not lost, with this one, and silent fires where this region's
	// own Redis has not answered for so long that it counts as lost itself.
	reached atomic.Int64
	silent  *time.Timer
	waits   atomic.Bool // somebody waits until other regions have the control record

	rejected string // the region that the server names, as it was logged

	holds   atomic.Bool
	renewed time.Time // when the lease was
	// number is that of the last thing that this node has said as the relay, 0 before it has one.
	number atomic.Int64
	stop   context.CancelFunc
	work   sync.WaitGroup // of the regions, and the sweep
	// forbade are the names of the regions whose Redis rejects a command, as was logged.
	forbade sync.Map
}

// Relay has the Replicator share with other regions what it counts. It is to be called before
// Start.
func (r *Replicator) Relay(o Regions) {
	x := &relay{Regions: o, r: r, node: r.node, renew: cycle.NewWaker()}
	for name, client := range o.Others {
		x.regions = append(x.regions, newOtherRegion(x, name, client))
		x.names += name + " "
	}
	x.reached.Store(int64(len(o.Others) + 1))
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
func (r *Replicator) Side() (reached, of int64) {
	of = int64(r.Regions())
	if r.relay == nil || !r.relay.Divides {
		return of, of
	}
	return r.relay.reached.Load(), of
}

// run is the relay of a node, until the end of ctx.
func (x *relay) run(ctx context.Context) {
	defer x.end()
	x.silent = time.AfterFunc(lostRegionAfter, x.reachNothing)
	defer x.silent.Stop()
	var beat time.Time
	for ctx.Err() == nil {
		if now := time.Now(); now.Sub(beat) >= x.beatInterval() {
			beat = now
			x.renewLease(ctx)
		}
		select {
		case <-ctx.Done():
		case <-x.renew:
			beat = time.Time{}
		case <-time.After(x.beatInterval()):
		}
	}
}

func (x *relay) beatInterval() time.Duration {
	if x.waits.Load() {
		return waitInterval
	}
	return relayInterval
}

// end gives the lease up, so that another node goes on at once.
func (x *relay) end() {
	if !x.holds.Load() {
		return
	}
	x.stepDown()
	ctx, cancel := context.WithTimeout(context.Background(), min(x.r.timeout, closeLeast))
	defer cancel()
	_ = relayScript.Run(ctx, x.r.client, x.keys(), x.node, 0, x.Here).Err()
}

func (x *relay) keys() []string {
	return []string{x.r.keys.Relay(), x.r.keys.Region()}
}

// stepDown ends the work for all other regions.
func (x *relay) stepDown() {
	if !x.holds.Load() {
		return
	}
	x.stop()
	x.work.Wait()
	x.holds.Store(false)
}

// renewLease renews the lease or asks for it, and keeps what has to outlive this node. A node that
// gets no answer for as long as its lease is no longer the relay.
func (x *relay) renewLease(ctx context.Context) {
	called, cancel := context.WithTimeout(ctx, min(x.r.timeout, relayInterval))
	defer cancel()
	args := []any{x.node, relayLease.Milliseconds(), x.Here, x.numberInLua(), (lostRegionAfter - relayInterval - waitInterval).Milliseconds(), x.names}
	if x.holds.Load() {
		for _, p := range x.regions {
			args = append(args, p.reported()...)
		}
	}
	reply, err := relayScript.Run(called, x.r.client, x.keys(), args...).Slice()
	fields, ok := map[string]string{}, false
	var lost []any
	if err == nil && len(reply) == 7 {
		var list []any
		list, _ = reply[4].([]any)
		lost, _ = reply[5].([]any)
		ok = len(lost) == len(x.regions)
		for i := 0; i+1 < len(list); i += 2 {
			fields[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
		}
	}
	if !ok {
		x.logForbidden(x.Here, err)
		if time.Since(x.renewed) >= relayLease {
			x.stepDown()
		}
		return
	}
	x.silent.Reset(lostRegionAfter)
	defer x.noteReach(lost)
	x.mergeRecords(fields)
	if name := fmt.Sprint(reply[3]); name != x.Here {
		x.logWrongRegion(name)
	}
	if mine, _ := reply[2].(int64); mine != 1 {
		x.stepDown()
		for _, p := range x.regions {
			p.show(fields["shown:"+p.name])
		}
		return
	}
	x.renewed = time.Now()
	number, _ := count(fmt.Sprint(reply[6]))
	x.lead(ctx, fields, number)
}

// noteReach notes which regions are lost, as this region's Redis says: see relay.lua.
func (x *relay) noteReach(lost []any) {
	reached := int64(1)
	for i, p := range x.regions {
		if p.noteReach(fmt.Sprint(lost[i])) {
			reached++
		}
	}
	x.reached.Store(reached)
}

// reachNothing has all regions be lost, as nothing is known of them.
func (x *relay) reachNothing() {
	for _, p := range x.regions {
		p.mu.Lock()
		p.why = cmp.Or(p.why, "the redis of this region does not answer")
		p.mu.Unlock()
	}
	x.reached.Store(1)
}

// mergeRecords notes how far other regions have read the control record.
func (x *relay) mergeRecords(fields map[string]string) {
	readUpTo := make(map[string]int64, len(x.regions))
	for _, p := range x.regions {
		readUpTo[p.name], _ = strconv.ParseInt(fields["ourrecord:"+p.name], 10, 64)
	}
	x.r.record.ReadBy(readUpTo)
}

// wait notes whether somebody waits until other regions have the control record.
func (x *relay) wait(waits bool) {
	if x.waits.Store(waits); waits {
		x.renew.Wake()
	}
}

// logWrongRegion says once that the server belongs to another region.
func (x *relay) logWrongRegion(name string) {
	if x.rejected == name {
		return
	}
	x.rejected = name
	x.r.logger.Error("redis belongs to another region, and this node reads no other one; correct `here`, or the region's URL; if that name is wrong, delete the key "+x.r.keys.Region()+" there",
		warning.Field(warning.WrongRegion), zap.String("here", x.Here), zap.String("redis", name))
}

// logForbidden logs once that the user may not do at the Redis of a region what regions need, or
// that another program uses a key there: nothing else would tell, as that region is heard of all
// the while.
func (x *relay) logForbidden(region string, err error) {
	if !redisconn.IsForbidden(err) && !redisconn.IsWrongType(err) {
		return
	}
	if _, known := x.forbade.LoadOrStore(region, true); !known {
		x.r.logger.Error("redis rejects a command that regions need; ACL LOG there shows one that its user may not run",
			warning.Field(warning.RegionLost), zap.String("region", region), zap.String("reason", redisconn.Classify(err)))
	}
}

// lead goes on as the relay, or begins to be it, with what was kept.
func (x *relay) lead(ctx context.Context, fields map[string]string, number int64) {
	if x.holds.Load() {
		return
	}
	x.number.Store(number)
	inner, stop := context.WithCancel(ctx)
	x.holds.Store(true)
	x.stop = stop
	for _, p := range x.regions {
		p.show(fields["shown:"+p.name])
		p.begin()
		x.work.Go(func() { p.run(inner) })
	}
	x.work.Go(func() { // apart, as it may take longer than the lease
		for inner.Err() == nil {
			x.sweep(inner)
			pauseFor(inner, sweepInterval)
		}
	})
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
	if !x.holds.Load() {
		return ""
	}
	return strconv.FormatInt(x.number.Load(), 10)
}

// longestInterval is the longest time between syncs.
func (x *relay) longestInterval() (longest time.Duration) {
	for _, s := range x.r.attached() {
		if a := s.current.Load(); a != nil {
			longest = max(longest, time.Duration(a.interval.Load()))
		}
	}
	return longest
}

// resentWithin is how long it takes until all nodes have sent once more what they hold.
func (x *relay) resentWithin() time.Duration { return table.ResentReserved + 2*x.longestInterval() }

// A page are keys that were told, what they hold, and what else is read with them.
type page struct {
	fetched
	after, highest, last int64
	scores               []int64
	more                 int64 // keys after these
	rest                 []any
	err                  error
}

// told reads keys that were told here after a score.
func (x *relay) told(ctx context.Context, shard int, after int64) page {
	ctx, cancel := CallContext(ctx, x.r.timeout)
	defer cancel()
	p := parsePage(toldScript.Run(ctx, x.r.client, []string{x.r.keys.Told(shard)}, after, pageSize, ""), x.r.keys.head)
	x.logForbidden(x.Here, p.err)
	return p
}

// shards are those in which nodes tell of what has changed.
func (k Keyspace) shards() int {
	if k.cluster {
		return ShardCount
	}
	return 1
}

// parsePage reads a page. In the place of a key that doesn't begin with head, and so is of another
// program, stands none.
func parsePage(cmd *redis.Cmd, head string) (p page) {
	reply, err := cmd.Slice()
	if p.err = err; err != nil {
		return p
	}
	p.err = ErrReply
	if len(reply) < 8 {
		return p
	}
	server, ok := parseTime(reply[0], reply[1])
	keys, ok2 := reply[4].([]any)
	scores, ok3 := reply[5].([]any)
	fields, ok4 := reply[7].([]any)
	if !ok || !ok2 || !ok3 || !ok4 || len(scores) != len(keys) {
		return p
	}
	for i, key := range keys {
		text := fmt.Sprint(key)
		if !strings.HasPrefix(text, head) {
			text = ""
		}
		score, _ := strconv.ParseFloat(fmt.Sprint(scores[i]), 64)
		p.keys, p.scores = append(p.keys, text), append(p.scores, int64(score))
	}
	for _, field := range fields {
		p.fields = append(p.fields, fmt.Sprint(field))
	}
	highest, err1 := strconv.ParseFloat(fmt.Sprint(reply[2]), 64)
	last, err2 := strconv.ParseFloat(fmt.Sprint(reply[3]), 64)
	p.server, p.highest, p.last, p.rest = server, int64(highest), int64(last), reply[8:]
	p.more, _ = reply[6].(int64)
	p.err = errors.Join(err1, err2)
	return p
}

// sweep drops the keys of what is gone.
func (x *relay) sweep(ctx context.Context) {
	for shard := range x.r.keys.shards() {
		for after, more := int64(0), true; more && ctx.Err() == nil; {
			page := x.told(ctx, shard, after)
			more, after = page.err == nil && len(page.keys) >= pageSize, page.last
			x.drop(ctx, x.r.keys.Told(shard), page.keys)
		}
	}
}

// drop drops those keys from a set that are gone. What fails is dropped by the next sweep.
func (x *relay) drop(ctx context.Context, told string, keys []string) {
	if keys = slices.DeleteFunc(keys, func(key string) bool { return key == "" }); len(keys) == 0 {
		return
	}
	ctx, cancel := CallContext(ctx, x.r.timeout)
	defer cancel()
	_ = sweepScript.Run(ctx, x.r.client, append([]string{told}, keys...)).Err()
}
