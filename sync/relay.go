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
	//go:embed regional.lua
	regionalLua string

	headOfRelay    = fmt.Sprintf("local toldTTL = %d\n", toldTTL.Milliseconds())
	relayScript    = redis.NewScript(headOfRelay + relayLua)
	toldScript     = redis.NewScript(toldLua)
	regionalScript = redis.NewScript(headOfRelay + regionalLua)
	regionScript   = redis.NewScript("return redis.call('GET', KEYS[1]) or ''")
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

// A relay tells the other regions what the nodes of this one have counted, where this node is the
// one that does: all nodes run one, and the one with the lease works. It reads what was told in
// this region's Redis and pushes it to the others', as a node that stands for the region, so that
// no request and no sync ever waits for one of them.
//
//	relay.go      the lease, and what has to be known of this region's Redis
//	relaypair.go  the way to one other region: how far it has been told
//	relaycrowd.go the order where more waits than a second can tell
//	relayban.go   bans
//	relaystate.go how the other regions stand, for all nodes of this one
//	regional.go   what a reading has, and the push of it
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
	// began is the first number that this node was given as the relay, and base the one before it.
	began, base int64
	said        atomic.Int64 // calls that say what other regions have
	stop        context.CancelFunc
	work        sync.WaitGroup // of the pairs

	mu sync.Mutex // guards what follows
	// known is, by shard, the number of the last reading, and above is one that another region has
	// seen.
	known [ShardCount]int64
	above int64
	// doubt is until when this region's Redis may have less than it once had, and noted whether
	// that was written there. doubtful is set until the other regions have been told once more.
	doubt           time.Time
	noted, doubtful bool
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

// errLost says that this region's Redis does not know what it knew.
var errLost = errors.New("redis has forgotten what it knew")

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
	args := []any{x.node, relayLease.Milliseconds(), x.Here, x.doubtInLua(), (lostRegionAfter - relayRate - calmRate).Milliseconds(), x.names}
	if x.holds {
		for _, p := range x.pairs {
			args = append(args, p.name, p.saved(), p.silence(), p.shown(), p.recordedInLua())
		}
	}
	reply, err := relayScript.Run(called, x.r.client, x.keys(), args...).Slice()
	fields, ok := map[string]string{}, false
	var lost []any
	if err == nil && len(reply) == 6 {
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
	x.lead(ctx, fields, server)
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
func (x *relay) lead(ctx context.Context, fields map[string]string, server int64) {
	until, err := strconv.ParseInt(fields["doubt"], 10, 64)
	switch {
	case err != nil:
		x.lose() // nothing was kept, or it was lost
		if !x.holds && fields["node"] != x.node {
			return // the relay of before learns of it by its next heartbeat, or as it reads
		}
	case !x.holds:
		rest := min(time.Duration(until*int64(time.Millisecond)-server), x.doubtTime())
		x.mu.Lock()
		x.doubt, x.noted, x.doubtful = time.Now().Add(rest), true, rest > 0
		x.known = [ShardCount]int64{}
		x.mu.Unlock()
	}
	if x.doubtEnds() {
		for _, p := range x.pairs {
			p.rewind(all)
		}
	}
	if x.holds {
		return
	}
	if x.began, x.base, err = x.number(ctx); err != nil {
		return // the next heartbeat tries again
	}
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

// doubtTime is how long it takes until all nodes have sent once more what they hold.
func (x *relay) doubtTime() time.Duration {
	longest := time.Duration(0)
	for _, s := range x.r.attached() {
		if at := s.at.Load(); at != nil {
			longest = max(longest, time.Duration(at.rate.Load()))
		}
	}
	return table.ResentUnsettled + 2*longest
}

// lose notes that this region's Redis has lost something. Until the nodes have sent it once more,
// other regions are told of nothing that is less than what they have: it would free a limit there.
func (x *relay) lose() {
	until := time.Now().Add(x.doubtTime())
	x.mu.Lock()
	x.doubt, x.noted, x.doubtful = until, false, true
	for shard, n := range x.known {
		x.above = max(x.above, n)
		x.known[shard] = 0
	}
	x.mu.Unlock()
	for _, p := range x.pairs {
		p.rewind(all)
	}
}

// inDoubt reports whether this region's Redis may have less than it had.
func (x *relay) inDoubt() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.doubtful
}

// doubtEnds reports, once, that the doubt is over.
func (x *relay) doubtEnds() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.doubtful || time.Now().Before(x.doubt) {
		return false
	}
	x.doubtful = false
	return true
}

// doubtInLua is for how many milliseconds from now there is doubt, "" where that is written down.
func (x *relay) doubtInLua() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.noted || x.doubt.IsZero() {
		return ""
	}
	x.noted = true
	return strconv.FormatInt(max(0, time.Until(x.doubt).Milliseconds()), 10)
}

// number takes the next number of a shard, which is that of a reading of nothing.
func (x *relay) number(ctx context.Context) (number, before int64, err error) {
	reply, err := x.read(ctx, 0, nil, nil)
	if err != nil {
		return 0, 0, err
	}
	first, last, _ := strings.Cut(reply[0], " ")
	number, _ = strconv.ParseInt(first, 10, 64)
	before, _ = strconv.ParseInt(last, 10, 64)
	return number, before, nil
}

// read reads hashes and fills of this region, which in a Cluster are of one shard. It returns the
// lines of the reply.
func (x *relay) read(ctx context.Context, shard int, hashes, fills []string) ([]string, error) {
	ctx, cancel := CallContext(ctx, x.r.timeout)
	defer cancel()
	x.mu.Lock()
	known, above := x.known[shard], x.above
	x.mu.Unlock()
	keys := append([]string{x.r.keys.Read(shard), x.r.keys.Told(shard)}, hashes...)
	text, err := regionalScript.Run(ctx, x.r.client, append(keys, fills...), above, known, len(fills)).Text()
	if err != nil {
		x.forbids(x.Here, err)
		return nil, err
	}
	if text == "!" {
		x.lose()
		return nil, errLost
	}
	lines := strings.Split(text, "\n")
	first, _, _ := strings.Cut(lines[0], " ")
	number, ok := count(first)
	if !ok || len(lines) != 1+len(hashes)+len(fills) {
		return nil, ErrReply
	}
	x.mu.Lock()
	x.known[shard] = max(x.known[shard], number)
	x.mu.Unlock()
	return lines, nil
}

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
	scores        []int64
	totals        []int64 // what their hashes have
	err           error
}

// told reads names that were told after a score. take removes them, sweep those that are gone, and
// weigh reads their scores and totals, too.
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
	if len(reply) != 6 {
		return p
	}
	names, ok := reply[2].([]any)
	scores, ok2 := reply[4].([]any)
	totals, ok3 := reply[5].([]any)
	if !ok || !ok2 || !ok3 || len(scores) != len(totals) || len(scores) > len(names) {
		return p
	}
	for _, name := range names {
		text := fmt.Sprint(name)
		if !strings.HasPrefix(text, head) {
			text = ""
		}
		p.names = append(p.names, text)
	}
	for i := range scores {
		score, _ := strconv.ParseFloat(fmt.Sprint(scores[i]), 64)
		total, _ := totals[i].(int64)
		p.scores, p.totals = append(p.scores, int64(score)), append(p.totals, total)
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

// nextSeq numbers what this relay says of other regions: above what an earlier one has said.
func (x *relay) nextSeq() int64 { return x.began + x.said.Add(1) }

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
