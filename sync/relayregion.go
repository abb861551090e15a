package ratesync

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	// regionTimeout is how long an answer of another region may take.
	regionTimeout = 3 * time.Second
	// regionCalls is how many calls to one other region are under way at once.
	regionCalls = 8
	// fewInterval is how often another region is read where few things have changed there in the
	// last second.
	fewInterval = 10 * time.Millisecond
)

// An otherRegion is the way from this region to another one, whose Redis it only reads.
type otherRegion struct {
	x        *relay
	name     string
	client   redis.UniversalClient
	keys     Keyspace
	record   RegionRecord
	messages atomic.Int64 // cells and bans that were read, for metrics

	// Only run uses these. shortfalls are cells that had less than before. readAt is when the
	// cursors were last read here, heartbeats when all nodes there had sent a heartbeat, lostAt
	// when one of them has found a loss, and compared when the clocks were compared.
	shortfalls                           map[string]shortfall
	readAt, heartbeats, lostAt, compared time.Time
	// readHereAt is when that region has last read of this node, and readsElsewhere set where it
	// has not for so long that it was logged.
	readHereAt     time.Time
	readsElsewhere bool

	mu sync.Mutex // guards what follows
	// cursors are, by shard, up to which score each sorted set told there was read; the Redis here
	// keeps them under pulled, and cursorsRead is set where it has said them. changed is when few
	// keys were read last.
	cursors     [ShardCount]int64
	cursorsRead bool
	changed     time.Time
	// answered is when its Redis has last, and readUsAt when it was known to have read this
	// region's, zero for never.
	answered, readUsAt time.Time
	// readerThere is which node reads there, ourRecordRead up to which revision it has read this
	// control record, and theirRecordRead up to which its record was read here.
	readerThere                    string
	ourRecordRead, theirRecordRead int64
	version                        string // of its record, as it was read
	// lost is set while the region is lost, as was logged, and why says the reason, "" while it is
	// not. failed is why its Redis last did not answer.
	lost        bool
	why, failed string
	offset      time.Duration // see compare
	apart       bool          // the clocks are, as was logged
	// caughtUpAt is when, by this region's Redis, all was read last that has changed there, 0
	// before that is known, and backlog how much has changed here since.
	caughtUpAt, backlog int64
}

func newOtherRegion(x *relay, name string, client redis.UniversalClient) *otherRegion {
	_, cluster := client.(*redis.ClusterClient)
	return &otherRegion{
		x: x, name: name, client: client, keys: x.r.keys.In(cluster), record: x.r.record.OfRegion(), shortfalls: map[string]shortfall{},
	}
}

// begin has the region be read by this node from now on.
func (p *otherRegion) begin() {
	server := p.x.r.serverNow()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered, p.readUsAt, p.heartbeats, p.lostAt, p.readHereAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Now()
	p.readAt, p.cursorsRead = time.Time{}, false
	if p.caughtUpAt == 0 {
		p.caughtUpAt = server
	}
}

// A call reads the first keys after the cursors, and how the region stands.
type call struct {
	readsKeys  bool // it reads what has changed, not only how the region stands
	server     int64
	start, end int64
	pages      []page
	done       chan struct{}
}

// run reads what has changed in the other region, until the end of ctx.
func (p *otherRegion) run(ctx context.Context) {
	calls := make(chan *call, regionCalls)
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { p.call(ctx, calls) })
	// An earlier relay may have known of cells of which the other region has less, and have told
	// nobody.
	walked, counted := time.Now().Add(p.x.resentWithin()-readAll), time.Time{}
	for c := range calls {
		<-c.done
		all := time.Since(walked) >= readAll
		switch err := p.take(ctx, c, all); {
		case ctx.Err() != nil:
		case err != nil && time.Since(counted) >= relayInterval:
			counted = time.Now()
			p.count(ctx)
		case err == nil && c.readsKeys:
			p.mu.Lock()
			p.caughtUpAt, p.backlog = c.server, 0
			p.mu.Unlock()
			if all {
				walked = time.Now()
			}
		}
	}
}

// call begins a call every waitInterval, or interval where that is shorter, until ctx ends.
func (p *otherRegion) call(ctx context.Context, calls chan<- *call) {
	defer close(calls)
	var read time.Time
	for ctx.Err() == nil {
		began := time.Now()
		c := &call{server: p.x.r.serverNow(), start: p.x.r.now(), done: make(chan struct{})}
		p.mu.Lock()
		after, interval := p.cursors, p.x.Interval
		if began.Sub(p.changed) < time.Second {
			interval = min(interval, fewInterval)
		}
		c.readsKeys = p.cursorsRead && began.Sub(read) >= interval
		p.mu.Unlock()
		most := 0
		if c.readsKeys {
			read, most = began, pageSize
		}
		go func() {
			defer close(c.done)
			c.pages = p.pages(ctx, after, most)
			c.end = p.x.r.now()
		}()
		calls <- c
		pauseFor(ctx, min(interval, waitInterval)-time.Since(began))
	}
}

// noteChanged notes that so many keys were read that had changed. Few are read soon again.
func (p *otherRegion) noteChanged(changed int, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed = at; changed > fewChanges {
		p.changed = time.Time{}
	}
}

// take takes in what a call has read, and where it has read keys reads what comes after, or all
// there is.
func (p *otherRegion) take(ctx context.Context, c *call, all bool) error {
	own := p.readCursors(ctx)
	p.mu.Lock()
	p.cursorsRead = own == nil // else this region's Redis has a trouble
	p.mu.Unlock()
	err := c.pages[0].err
	if err == nil {
		err = p.readStatus(&c.pages[0])
	}
	if err != nil {
		p.fail(err)
		return err
	}
	if read := c.pages[0].read; read.Sub(p.compared) >= relayInterval {
		p.compared = read
		own, half := p.x.r.clockNow(), time.Duration(c.end-c.start)/2
		p.compare(time.Duration(c.pages[0].server-c.start)-half-own.Offset, half+own.Uncertainty)
	}
	if !c.readsKeys || own != nil {
		return own
	}
	for _, keys := range p.confirmedShortfalls() {
		err = errors.Join(err, p.copyHere(ctx, fetched{keys: keys}))
	}
	for shard, page := range c.pages {
		err = errors.Join(err, p.follow(ctx, shard, page))
		if all {
			err = errors.Join(err, p.walk(ctx, shard))
		}
	}
	return err
}

// refresh reads once more how the region stands, where that was read a second ago: it would be
// taken for lost while much is read.
func (p *otherRegion) refresh(ctx context.Context) error {
	p.mu.Lock()
	read := p.answered
	p.mu.Unlock()
	if time.Since(read) < relayInterval {
		return nil
	}
	page := p.page(ctx, 0, 0, 0)
	if page.err != nil {
		return page.err
	}
	return p.readStatus(&page)
}

// readStatus notes how the region stands, by what was read. A clock there that has stepped back
// makes nothing older than it is.
func (p *otherRegion) readStatus(page *page) error {
	if len(page.rest) != 9 {
		return ErrReply
	}
	var status [8]string
	for i := range status {
		status[i], _ = page.rest[i].(string)
	}
	if status[0] != p.name {
		return &regionError{status[0], p.keys.Region()}
	}
	at := func(text string) (t time.Time) {
		if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms <= page.server/int64(time.Millisecond) {
			t = page.read.Add(-time.Duration(page.server - ms*int64(time.Millisecond)))
		}
		return t
	}
	p.heartbeats, p.lostAt = later(p.heartbeats, at(status[1])), later(p.lostAt, at(status[2]))
	p.noteReader(status[5], page.read)
	has, _ := count(status[6])
	entries, _ := page.rest[8].([]any)
	if why, rejected := strings.CutPrefix(status[7], "!"); rejected {
		p.x.logForbidden(p.name, redisconn.Rejection(why))
	}
	p.record.Receive(status[7], entries)
	p.mu.Lock()
	changed := p.answered.IsZero() || p.ourRecordRead != has || p.theirRecordRead != p.record.Revision()
	p.answered, p.readUsAt, p.readerThere, p.ourRecordRead, p.theirRecordRead = later(p.answered, page.read), later(p.readUsAt, at(status[3])), status[4], has, p.record.Revision()
	p.version = p.record.Version()
	p.mu.Unlock()
	if changed {
		p.x.renew.Wake()
	}
	return nil
}

// noteReader notes of which node of this region that one has read. It logs once that it is another
// one for longer than it takes until it has noticed that the relay changes.
func (p *otherRegion) noteReader(node string, at time.Time) {
	switch {
	case node == "" || node == p.x.node:
		p.readHereAt, p.readsElsewhere = at, false
	case !p.readsElsewhere && at.Sub(p.readHereAt) > relayLease+2*relayInterval:
		p.readsElsewhere = true
		p.x.r.logger.Error("a region reads another redis under the name of this one, and nothing that is counted here; give each region a name of its own in `here`, and all nodes the same URLs",
			warning.Field(warning.WrongRegion), zap.String("here", p.x.Here), zap.String("region", p.name))
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// pages reads keys after scores there, of a Cluster by one pipeline for each of its masters.
func (p *otherRegion) pages(ctx context.Context, after [ShardCount]int64, most int) []page {
	if !p.keys.cluster {
		return []page{p.page(ctx, 0, after[0], most)}
	}
	ctx, cancel := CallContext(ctx, regionTimeout)
	defer cancel()
	asked, replies := p.startRead(), make([]*redis.Cmd, ShardCount)
	for _, eval := range []func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd{toldScript.EvalSha, toldScript.Eval} {
		pipe := p.client.Pipeline()
		for shard, reply := range replies {
			if reply == nil || redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
				keys, args := p.asks(shard, after[shard], most)
				replies[shard] = eval(ctx, pipe, keys, args...)
			}
		}
		if pipe.Len() > 0 {
			_, _ = pipe.Exec(ctx) // each reply has its error
		}
	}
	pages := make([]page, ShardCount)
	for shard, reply := range replies {
		pages[shard] = p.parsed(asked, shard, after[shard], reply)
	}
	return pages
}

// page reads keys after a score there. Several have one score, and those are never parted.
func (p *otherRegion) page(ctx context.Context, shard int, after int64, most int) page {
	ctx, cancel := CallContext(ctx, regionTimeout)
	defer cancel()
	asked := p.startRead()
	keys, args := p.asks(shard, after, most)
	return p.parsed(asked, shard, after, toldScript.Run(ctx, p.client, keys, args...))
}

// parsed is the page of a reply to what was asked.
func (p *otherRegion) parsed(asked fetched, shard int, after int64, reply *redis.Cmd) page {
	head := p.keys.head
	if p.keys.cluster {
		head += strconv.Itoa(shard) + "}:"
	}
	got := parsePage(reply, head)
	got.read, got.at, got.after = asked.read, asked.at, after
	return got
}

// asks are the keys and arguments of told.lua at the other region. Shard 0 has how that stands.
func (p *otherRegion) asks(shard int, after int64, most int) (keys []string, args []any) {
	keys, args = []string{p.keys.Told(shard)}, []any{after, most, "read"}
	if shard > 0 {
		return keys, args
	}
	p.mu.Lock()
	version := p.version
	p.mu.Unlock()
	return append(keys, p.keys.Counted(), p.keys.Region(), p.keys.Relay(), p.keys.Control()), append(args, p.x.Here, version)
}

// count notes how much has changed here since all was read there, which waits as long to be read by
// that region.
func (p *otherRegion) count(ctx context.Context) {
	p.mu.Lock()
	since := p.caughtUpAt / int64(time.Microsecond)
	p.mu.Unlock()
	n := int64(0)
	for shard := range p.x.r.keys.shards() {
		page := p.x.told(ctx, shard, since)
		if page.err != nil {
			return
		}
		n += int64(len(page.keys)) + page.more
	}
	p.mu.Lock()
	p.backlog = n
	p.mu.Unlock()
}

// A regionError says that a Redis is not that of the region whose URL leads to it.
type regionError struct{ name, key string }

func (e *regionError) Error() string {
	if e.name == "" {
		return "the redis there belongs to no region yet; start a node with `regions` there"
	}
	return fmt.Sprintf("the redis there belongs to region %q; correct the URL, or delete the key %s there if that name is wrong", e.name, e.key)
}

// fail notes why the other Redis does not answer.
func (p *otherRegion) fail(err error) {
	why := redisconn.Classify(err)
	if _, ok := err.(*regionError); ok {
		why = err.Error()
	}
	p.mu.Lock()
	p.failed = why
	p.mu.Unlock()
}

// reported is what is kept of the region, in the order of relay.lua. Of one that was lost and was
// not heard of since it is kept that it is, as the clock may have been set back.
func (p *otherRegion) reported() []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	ago := func(at time.Time) string {
		switch {
		case !at.IsZero():
			return strconv.FormatInt(time.Since(at).Milliseconds(), 10)
		case p.lost:
			return strconv.FormatInt(lostRegionAfter.Milliseconds(), 10)
		}
		return ""
	}
	shown := fmt.Sprint(!p.lost, " ", p.caughtUpAt, " ", p.backlog, " ", int64(p.offset), " ", p.failed)
	return []any{p.name, ago(p.answered), ago(p.readUsAt), shown, p.readerThere, p.theirRecordRead, p.ourRecordRead}
}

// noteReach notes why the region is lost, as relay.lua says, and reports whether it is not. The
// relay logs once that it is, and once that it is back.
func (p *otherRegion) noteReach(why string) (reached bool) {
	reached, changed := p.setReach(why)
	if !changed {
		return reached
	}
	p.x.renew.Wake() // so that the next relay knows what was logged
	if reached {
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

// setReach sets why the region is lost. changed is set where that is to be logged.
func (p *otherRegion) setReach(why string) (reached, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if why == "?" {
		return p.why == "", false
	}
	p.why, reached = why, why == ""
	if changed = p.x.holds.Load() && p.lost == reached; changed {
		p.lost = !reached
	}
	return reached, changed
}
