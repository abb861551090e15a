package ratesync

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	// linkTimeout is how long an answer of another region may take.
	linkTimeout = 3 * time.Second
	// linkCalls is how many calls to one other region are under way at once.
	linkCalls = 8
	// linkSecond is how many messages go to one other region in a second, and linkPace how much
	// time each of them has.
	linkSecond = 2000
	linkPace   = time.Second / linkSecond
	// lostRegionAfter is how long another region was not heard of that is lost, at most: nodes look
	// every relayRate, and take it for lost where it would be before the next time.
	lostRegionAfter = 10 * time.Second
	// back is how far a link goes back that had to be made again: what was answered just before may
	// be lost.
	back = int64(time.Minute / time.Microsecond)
	// all is further back than anything.
	all = int64(1) << 62
)

// A pair is the way from this region to another one.
type pair struct {
	x      *relay
	name   string
	client redis.UniversalClient
	keys   Keyspace
	node   string // what this region is called there
	places chan struct{}

	record RegionRecord // that of the other region
	due    cycle.Waker  // a heartbeat should not wait
	woken  cycle.Waker  // there is something that should not wait
	ready  atomic.Bool
	stats  pairStats
	// Only pulls uses these: of cells, and up to which score each sorted set there was read, as was
	// read here then.
	lower     map[string]lowered
	pulledTo  [ShardCount]int64
	cursorsAt [ShardCount]time.Time

	mu sync.Mutex // guards what follows
	// cursors are, by shard, up to which score the other region was told, and turned counts how
	// often they were set back.
	cursors [ShardCount]int64
	turned  int
	urgent  map[string]struct{}
	paid    time.Time // up to when the pace is used up
	// mark is the other Redis' last loss as its heartbeats tell, and answered the last number that
	// a heartbeat was answered with, -1 for none.
	mark, answered int64
	// lostAt is when the other Redis was last found to have lost something, and beaten when the
	// last heartbeat began that was answered there.
	lostAt, beaten time.Time
	// said is the number of the last heartbeat, 0 for none, and strange how many of them in a row
	// have found another one there that is later than the one before.
	said     int64
	strange  int
	stale    uint32 // connections that were found closed
	heard    time.Time
	recorded int64 // see RegionRecord.Clock
	// lost is set while the region is lost, as was logged, and why says the reason, "" while it is
	// not. failed is why its Redis last did not answer.
	lost           bool
	why, failed    string
	offset, unsure time.Duration // see compare
	apart          bool          // the clocks are, as was logged
	// told is when, by this region's Redis, the last pass began that told the other of all, 0
	// before that is known, and waiting is how many names wait, by shard.
	told    int64
	waiting [ShardCount]int64
	// pulled is as told, of all that was read there, and unheard how many cells have changed here
	// since.
	pulled, unheard int64
}

// pairStats are what metrics show.
type pairStats struct{ messages atomic.Int64 }

func newPair(x *relay, name string, client redis.UniversalClient) *pair {
	_, cluster := client.(*redis.ClusterClient)
	return &pair{
		x: x, name: name, client: client, keys: x.r.keys.In(cluster), node: "~" + x.Here, places: make(chan struct{}, linkCalls),
		record: x.r.record.OfRegion(client, x.r.keys.Control()), due: cycle.NewWaker(), woken: cycle.NewWaker(),
		urgent: map[string]struct{}{}, lower: map[string]lowered{},
	}
}

// saved is what is kept of a pair: the mark, and the cursors.
func (p *pair) saved() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strconv.AppendInt(nil, p.mark, 10)
	for shard := range p.x.shards() {
		text = strconv.AppendInt(append(text, ' '), p.cursors[shard], 10)
	}
	return string(text)
}

// silence is for how many milliseconds the other Redis has answered no heartbeat, as scripts have
// it; "" where it has answered none of this node's, unless it was lost before.
func (p *pair) silence() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.answered >= 0:
	case p.lost: // the clock may have been set back since
		return strconv.FormatInt(lostRegionAfter.Milliseconds(), 10)
	default:
		return ""
	}
	return strconv.FormatInt(time.Since(p.heard).Milliseconds(), 10)
}

// load begins with what was kept, from the start where that makes no sense. server is the time of
// this region's Redis.
func (p *pair) load(saved string, server int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready.Store(false)
	p.cursors, p.answered, p.turned, p.heard = [ShardCount]int64{}, -1, p.turned+1, time.Now()
	p.waiting = [ShardCount]int64{}
	p.cursorsAt = [ShardCount]time.Time{}
	if p.told == 0 {
		p.told = server
	}
	if p.pulled == 0 {
		p.pulled = server
	}
	p.said, p.strange = 0, 0
	fields := strings.Fields(saved)
	if len(fields) != p.x.shards()+1 {
		p.mark = 0
		return
	}
	p.mark, _ = strconv.ParseInt(fields[0], 10, 64)
	for i, f := range fields[1:] {
		p.cursors[i], _ = strconv.ParseInt(f, 10, 64)
	}
}

// rewind goes back so many microseconds: what was told since is told again.
func (p *pair) rewind(by int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turned++
	for shard := range p.cursors {
		p.cursors[shard] = max(0, p.cursors[shard]-by)
	}
}

// hurry has names sent at once. Where more than a second can tell wait for that, as the link hangs,
// the next pass has what is left out.
func (p *pair) hurry(names []string) {
	p.mu.Lock()
	for _, name := range names[:min(len(names), linkSecond-len(p.urgent))] {
		p.urgent[name] = struct{}{}
	}
	p.mu.Unlock()
	p.woken.Wake()
}

// beats says each second that this region is there, and notices that the other Redis has forgotten.
func (p *pair) beats(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		err := p.beat(ctx)
		if ctx.Err() == nil {
			p.note(err)
		}
		if !p.ready.Load() {
			p.count(ctx) // what nobody sends
		}
		select {
		case <-ctx.Done():
		case <-p.due:
		case <-time.After(relayRate - time.Since(began)):
		}
	}
}

// beat is one heartbeat. Nothing is sent before the first one is answered, or to a Redis that is
// not the other region's.
func (p *pair) beat(ctx context.Context) error {
	began := time.Now()
	if !p.x.isRelay(ctx) {
		return nil // it is this region that has a trouble
	}
	number := p.x.next()
	called, cancel := CallContext(ctx, linkTimeout)
	defer cancel()
	name, err := regionScript.Run(called, p.client, []string{p.keys.Region()}).Text()
	if err != nil {
		return err
	}
	if name != p.name {
		p.ready.Store(false)
		return &regionError{name, p.keys.Region()}
	}
	p.mu.Lock()
	answered, said := p.answered, p.said
	p.said = number
	p.mu.Unlock()
	start := p.x.r.now()
	// A lease that ended in a silence would look like a loss there, and all be told again.
	args := append([]any{p.x.Here, number, toldTTL.Milliseconds(), answered}, p.record.Ask()...)
	reply, err := heartbeatScript.Run(called, p.client, []string{p.keys.Regions(), p.keys.Control(), p.keys.Regions() + ":counted"}, args...).Slice()
	end := p.x.r.now()
	if err != nil {
		return err
	}
	if len(reply) != 9 {
		return ErrReply
	}
	server, ok := parseTime(reply[0], reply[1])
	held, ok2 := reply[2].(int64)
	mark, ok3 := reply[4].(int64)
	if !ok || !ok2 || !ok3 {
		return ErrReply
	}
	p.recordOf(HeartbeatReply{Seq: number, Server: server, Now: start + (end-start)/2, Record: reply[5:]})
	p.mu.Lock()
	turn := mark != p.mark || held < 0
	p.meet(said > 0 && held > said)
	if turn {
		p.lostAt = time.Now()
	}
	p.beaten = began
	p.mark, p.answered, p.heard = mark, number, time.Now()
	p.mu.Unlock()
	own := p.x.r.clockNow()
	p.compare(time.Duration(server-start-(end-start)/2)-own.Offset, time.Duration(end-start)/2+own.Uncertainty)
	if turn {
		p.rewind(all)
	}
	p.ready.Store(true)
	return nil
}

// meet notes whether the other region has a heartbeat under the name of this one that this node has
// not made. So many in a row no other relay of this region has made. The lock is held.
func (p *pair) meet(stranger bool) {
	if !stranger {
		p.strange = 0
		return
	}
	if p.strange++; p.strange == int(relayLease/relayRate)+1 {
		p.x.r.logger.Error("another redis tells a region its counts under the name of this one, and they take each other's place; give each region a name of its own in `here`",
			warning.Field(warning.WrongRegion), zap.String("here", p.x.Here), zap.String("region", p.name))
	}
}

// recordOf tells the other region's control record what it lacks, by the answer to a heartbeat. It
// fails where another program uses the record's key: nothing else depends on it, and the nodes
// there log that.
func (p *pair) recordOf(h HeartbeatReply) {
	again, err := p.record.Merge(h)
	if again {
		p.due.Wake()
	}
	p.mu.Lock()
	changes := p.recorded != p.record.Clock()
	p.recorded = p.record.Clock()
	p.mu.Unlock()
	if err == nil && changes {
		p.x.due.Wake()
	}
}

// recordedInLua is up to which clock of the control record the other region has it, "" where that
// is not known.
func (p *pair) recordedInLua() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recorded == 0 {
		return ""
	}
	return strconv.FormatInt(p.recorded, 10)
}

// A regionError says that a Redis is not that of the region whose URL leads to it.
type regionError struct{ name, key string }

func (e *regionError) Error() string {
	if e.name == "" {
		return "the redis there belongs to no region yet; start a node with `regions` there"
	}
	return fmt.Sprintf("the redis there belongs to region %q; correct the URL, or delete the key %s there if that name is wrong", e.name, e.key)
}

// note notes why the other Redis does not answer.
func (p *pair) note(err error) {
	if err == nil {
		return
	}
	why := redisconn.Classify(err)
	if _, ok := err.(*regionError); ok {
		why = err.Error()
	}
	p.mu.Lock()
	p.failed = why
	p.mu.Unlock()
}

// hear notes why the region is lost, as relay.lua says, and reports whether it is not. The relay
// logs once that it is, and once that it is back.
func (p *pair) hear(why string) (heard bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if why == "?" {
		return p.why == ""
	}
	p.why, heard = why, why == ""
	if !p.x.holds || p.lost != heard {
		return heard
	}
	p.lost = !heard
	p.x.due.Wake() // so that the next relay knows what was logged
	if heard {
		p.x.r.logger.Info("another region is back", zap.String("region", p.name))
		return true
	}
	message := "another region is lost; until it is back, its last counts stay, and each side may admit the whole limit"
	if p.x.Divides {
		message = "another region is lost; until it is back, its last counts stay, and this side admits its part of each limit"
	}
	p.x.r.logger.Warn(message,
		warning.Field(warning.RegionLost), zap.String("region", p.name), zap.String("reason", why))
	return false
}

// passes tells the other region of all that has changed, every rate, and at once where something
// is left.
func (p *pair) passes(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		began := time.Now()
		if p.ready.Load() {
			p.checkLink()
			server := p.x.r.serverNow()
			left, ok := p.pass(ctx)
			if ok && !left {
				p.mu.Lock()
				p.told = server
				p.mu.Unlock()
			}
			if !ok && !failing && ctx.Err() == nil {
				p.rewind(back)
			}
			if failing = !ok; ok && left {
				continue
			}
		}
		wait := p.x.Rate
		if !p.ready.Load() {
			wait = min(wait, calmRate)
		}
		pauseFor(ctx, wait-time.Since(began))
	}
}

// checkLink goes back where connections were found closed: a failover may be the reason, and lose
// what was answered last.
func (p *pair) checkLink() {
	stale := p.client.PoolStats().StaleConns
	p.mu.Lock()
	was := p.stale
	p.stale = stale
	p.mu.Unlock()
	if stale != was {
		p.rewind(back)
	}
}

// pass tells the other region of what has changed since the cursors. It reports whether something
// is left, and whether all was answered.
func (p *pair) pass(ctx context.Context) (left, ok bool) {
	ok = true
	p.mu.Lock()
	after, turned := p.cursors, p.turned
	p.mu.Unlock()
	pages := p.x.toldInAll(ctx, p.x.r.keys.Told, after, "")
	for shard, page := range pages {
		more, answered := p.passShard(ctx, shard, page, after[shard], turned)
		left, ok = left || more, ok && answered
	}
	return left, ok
}

// passShard is pass for one shard, of which page is what comes after a score, which was read when
// the cursors had been set back so often.
func (p *pair) passShard(ctx context.Context, shard int, page page, after int64, turned int) (left, ok bool) {
	if page.err != nil {
		return false, false
	}
	p.wait(shard, page)
	last, left := page.last, page.more > 0
	if page.highest < after { // it was lost, or all is gone
		last, left = 0, page.highest > 0
	} else if !p.send(ctx, page.names) {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turned == turned {
		p.cursors[shard] = last
		p.waiting[shard] = page.more
	}
	return left || p.turned != turned, true
}

// hurries sends what should not wait, while calls for more of it are under way.
func (p *pair) hurries(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.woken:
		}
		select {
		case <-ctx.Done():
			return
		case p.places <- struct{}{}: // more that comes meanwhile goes along
		}
		p.mu.Lock()
		names := slices.Collect(maps.Keys(p.urgent))
		clear(p.urgent)
		late := time.Until(p.paid) > time.Second
		p.mu.Unlock()
		if len(names) == 0 || late || !p.ready.Load() {
			<-p.places
			continue // the next pass has it
		}
		calls.Go(func() {
			defer func() { <-p.places }()
			p.sendBans(ctx, names, false)
		})
	}
}

// pay waits until the pace allows so many messages.
func (p *pair) pay(ctx context.Context, n int, waits bool) {
	p.mu.Lock()
	now := time.Now()
	if p.paid.Before(now) {
		p.paid = now
	}
	wait := p.paid.Sub(now)
	p.paid = p.paid.Add(time.Duration(n) * linkPace)
	p.mu.Unlock()
	if waits && wait > 0 {
		pauseFor(ctx, wait)
	}
}

// send tells of bans, and reports whether all were answered.
func (p *pair) send(ctx context.Context, names []string) bool {
	return p.sendBans(ctx, names, true) && ctx.Err() == nil
}
