package ratesync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

// What the nodes of another region have in a cell is read from that region's Redis, and said here
// as the state of a node that stands for the region: what all have there less what they have from
// other regions. How far that has come lies here, beside what was written: a Redis that forgets
// forgets both, and all is read again.

const (
	// fewChanges are so few that they are read more than once, by calls that are under way
	// together.
	fewChanges = 32
	// readAll is how often all there is is read, as single cells may have been evicted here. A new
	// relay reads all once nodes have said all again that a Redis may have lost before it began.
	readAll = 10 * time.Minute
	// heartbeatsWithin is how long it takes at most until all nodes have sent a heartbeat.
	heartbeatsWithin = 3 * heartbeatInterval / 2
	// mostShortfalls is the most cells that are watched until their lower totals are believed.
	// Those beyond that number are believed when all is read.
	mostShortfalls = 10_000
)

var (
	cursorScript = redis.NewScript(cursorLua)
	fieldsScript = redis.NewScript(fieldsLua + fetchLua)
)

// follow reads what comes after the cursor of one of the other region's sorted sets, of which page
// has the first keys. Earlier pages may have had some of them.
func (p *otherRegion) follow(ctx context.Context, shard int, page page) error {
	for at := p.cursors[shard]; ; page = p.page(ctx, shard, at, pageSize) {
		from, had := at, at
		switch {
		case page.err != nil:
		case 0 < page.highest && page.highest < page.after && page.after == at:
			had = 0 // that Redis has gone back to an older copy
			page = p.page(ctx, shard, 0, pageSize)
		case page.after > at: // the one here has forgotten since that was asked
			page = p.page(ctx, shard, at, pageSize)
		}
		if page.err != nil {
			p.x.logForbidden(p.name, page.err)
			return page.err
		}
		page.skip(had)
		if len(page.keys) == 0 {
			return nil
		}
		p.noteChanged(len(page.keys), page.read)
		if err := p.copyHere(ctx, page.fetched); err != nil {
			return err
		}
		if err := p.moveCursor(ctx, shard, from, page.last); err != nil || page.more == 0 {
			return err
		}
		if err := p.refresh(ctx); err != nil {
			return err
		}
		at = page.last
	}
}

// walk reads all there is in one of the other region's sorted sets.
func (p *otherRegion) walk(ctx context.Context, shard int) error {
	for at := int64(0); ; {
		page := p.page(ctx, shard, at, pageSize)
		if page.err != nil || len(page.keys) == 0 {
			return page.err
		}
		if err := errors.Join(p.copyHere(ctx, page.fetched), p.refresh(ctx)); err != nil {
			return err
		}
		at = page.last
	}
}

// skip drops the keys up to a score.
func (p *page) skip(at int64) {
	n := 0
	for n < len(p.scores) && p.scores[n] <= at {
		n++
	}
	if p.keys = p.keys[n:]; len(p.fields) > 0 {
		p.fields = p.fields[3*n:]
	}
}

// cursorKeys are where it lies up to which score a sorted set was read: in each shard here that its
// cells lie in.
func (p *otherRegion) cursorKeys(shard int) (keys []string) {
	x := p.x
	switch {
	case !x.r.cluster:
		return []string{x.r.keys.Pulled(0)}
	case p.keys.cluster:
		return []string{x.r.keys.Pulled(shard)}
	}
	for shard := range ShardCount {
		keys = append(keys, x.r.keys.Pulled(shard))
	}
	return keys
}

func (p *otherRegion) cursorField(shard int) string { return p.name + " " + strconv.Itoa(shard) }

// cursorLua reads how far another region was read. With two numbers it goes on first from the
// one to the other, unless it is elsewhere by now.
const cursorLua = `local at = redis.call('HGET', KEYS[1], ARGV[1]) or '0'
if ARGV[3] ~= '0' and at == ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return ARGV[3]
end
return at`

// readCursors reads once a second how far all was read: a Redis that has forgotten has none.
func (p *otherRegion) readCursors(ctx context.Context) (err error) {
	if time.Since(p.readAt) < time.Second {
		return nil
	}
	now := time.Now()
	for shard := range p.keys.shards() {
		if err = p.moveCursor(ctx, shard, 0, 0); err != nil {
			return err
		}
	}
	p.readAt = now
	return nil
}

// moveCursor reads how far a sorted set was read: the lowest of its cursors, after those that were
// at one score have moved to another one, 0 for none.
func (p *otherRegion) moveCursor(ctx context.Context, shard int, from, to int64) (err error) {
	called, cancel := CallContext(ctx, p.x.r.timeout)
	defer cancel()
	least := int64(0)
	for i, key := range p.cursorKeys(shard) {
		text, err := cursorScript.Run(called, p.x.r.client, []string{key}, p.cursorField(shard), from, to, toldTTL.Milliseconds()).Text()
		if err != nil {
			p.readAt = time.Time{}
			return err
		}
		if n, _ := strconv.ParseInt(text, 10, 64); i == 0 || n < least {
			least = n
		}
	}
	p.mu.Lock()
	p.cursors[shard] = least
	p.mu.Unlock()
	return nil
}

// fetched is what keys held at an instant, three fields each.
type fetched struct {
	keys, fields []string
	server       int64     // the time there, in nanoseconds
	read         time.Time // when it was asked for
	at           int64     // the least that this region's Redis' time was then, in microseconds
}

const (
	// fieldsLua reads what all have of cells, what other regions have of that, and since when a
	// bucket is there; or a ban. A key of another type is as none. There is an error where one may
	// not be read.
	fieldsLua = `local function cells(keys)
  local all = {}
  for i, key in ipairs(keys) do
    local had = redis.pcall('HMGET', key, 'sum', '~', 'born')
    if had.err and string.find(had.err, '^WRONGTYPE') then had = {redis.pcall('GET', key)} end
    local err = had.err and had or type(had[1]) == 'table' and had[1]
    if err and not string.find(err.err, '^WRONGTYPE') then return {}, err end
    for j = 1, 3 do all[3 * i - 3 + j] = type(had[j]) == 'string' and had[j] or '' end
  end
  return all
end
`
	fetchLua = `local time, all, err = redis.call('TIME'), cells(KEYS)
return err or {time[1], time[2], all}`
)

// startRead begins to ask the other Redis.
func (p *otherRegion) startRead() fetched {
	clock := p.x.r.clockNow()
	return fetched{read: time.Now(), at: (p.x.r.now() + int64(clock.Offset-clock.Uncertainty)) / int64(time.Microsecond)}
}

// copyHere writes here what was read there. What could not be read with the keys is read first.
func (p *otherRegion) copyHere(ctx context.Context, all fetched) error {
	if len(all.fields) == 3*len(all.keys) {
		return p.pushPage(ctx, all)
	}
	for keys := range slices.Chunk(all.keys, batchSize) {
		some, err := p.fetch(ctx, keys)
		if err != nil {
			p.x.logForbidden(p.name, err)
			return err
		}
		if err := p.pushPage(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// fetch reads what keys hold.
func (p *otherRegion) fetch(ctx context.Context, keys []string) (h fetched, err error) {
	called, cancel := CallContext(ctx, regionTimeout)
	defer cancel()
	h = p.startRead()
	reply, err := fieldsScript.Run(called, p.client, keys).Slice()
	if err != nil {
		return h, err
	}
	if len(reply) != 3 {
		return h, ErrReply
	}
	fields, _ := reply[2].([]any)
	for _, field := range fields {
		h.fields = append(h.fields, fmt.Sprint(field))
	}
	ok := false
	if h.server, ok = parseTime(reply[0], reply[1]); !ok || len(h.fields) != 3*len(keys) {
		return h, ErrReply
	}
	h.keys = keys
	return h, nil
}

// pushPage writes cells and bans here.
func (p *otherRegion) pushPage(ctx context.Context, all fetched) error {
	cells, bans := p.parse(all)
	for _, some := range byShard(p.x.r.cluster, cells, func(c remoteCell) keys.ID { return c.id }) {
		if err := p.pushCells(ctx, some); err != nil {
			p.x.logForbidden(p.x.Here, err)
			return err
		}
	}
	for _, some := range byShard(p.x.r.cluster, bans, func(b remoteBan) keys.ID { return b.ID }) {
		if err := p.sayBans(ctx, some); err != nil {
			p.x.logForbidden(p.x.Here, err)
			return err
		}
	}
	return nil
}

// A remoteCell is what the other region has of a cell.
type remoteCell struct {
	key   string
	id    keys.ID
	spec  Spec
	rule  cell.Rule
	state cell.State
	read  time.Time
}

// parse are the cells and bans of what was read: their sums, less what that region has from others.
func (p *otherRegion) parse(all fetched) (cells []remoteCell, bans []remoteBan) {
	p.messages.Add(int64(len(all.keys)))
	now := all.server / int64(time.Microsecond)
	for i, key := range all.keys {
		of := all.fields[3*i : 3*i+3]
		if b, ok := p.parseBan(key, of[0], now); ok {
			b.Begun += all.at - now
			bans = append(bans, b)
		} else if one, ok := parseCellKey(key); ok {
			one.read, one.rule = all.read, one.spec.Rule(all.server, false)
			if one.state, ok = cell.RegionState(of[0], of[1], of[2], &one.rule, now); ok {
				cells = append(cells, one)
			}
		}
	}
	return cells, bans
}

// parseCellKey takes the key of a cell apart.
func parseCellKey(key string) (c remoteCell, ok bool) {
	table, id, ok := parseKey(key)
	if !ok {
		return c, false
	}
	c.key, c.id = key, id
	c.spec, ok = parseSpec(table)
	return c, ok
}

// A remoteBan is a ban of the other region, by the clock of this region's Redis.
type remoteBan struct {
	ban.Message
	zone string
}

// parseBan reads a ban, by its key and what is there at now by the other Redis, in microseconds.
func (p *otherRegion) parseBan(key, value string, now int64) (b remoteBan, ok bool) {
	table, id, ok := parseKey(key)
	zone, isBan := strings.CutSuffix(table, ":ban")
	if !ok || !isBan {
		return b, false
	}
	b.ID, b.State, b.zone = id, ban.Parse(value), zone
	b.Begun = min(b.Begun, now)
	return b, b.IsRemembered(now)
}

// sayBans writes bans here.
func (p *otherRegion) sayBans(ctx context.Context, bans []remoteBan) error {
	ctx, cancel := CallContext(ctx, p.x.r.timeout)
	defer cancel()
	c := NewPushCall(p.x.next())
	defer c.Free()
	for _, b := range bans {
		c.Ban(p.x.r.keys.Zone(b.zone, "ban"), b.Message)
	}
	return c.Send(ctx, p.x.r.client)
}

// A shortfall is what the other region had less of than is said of it here, and when it was read.
type shortfall struct {
	state cell.State
	read  time.Time
}

// aDay is how far a number may be ahead, in microseconds: the script takes a higher one for none.
const aDay = int64(24 * time.Hour / time.Microsecond)

// errOvertaken is the error where another relay of this region has said more than this one's
// numbers go.
var errOvertaken = errors.New("another node says what another region has, and is ahead")

// pushCells says here what the other region has of cells. A total that is below what was said here
// may be that of a Redis that has lost something, which the next heartbeat there tells. So it stays
// as it was until then. Where another relay has said something under a higher number, what is said
// here has no effect, and fails: its numbers are above that one's from then on, and it is read and
// said again.
func (p *otherRegion) pushCells(ctx context.Context, all []remoteCell) error {
	r := p.x.r
	called, cancel := CallContext(ctx, r.timeout)
	defer cancel()
	c := NewPushCall(p.x.next())
	defer c.Free()
	c.Told = r.keys.Told(r.keys.shardOf(all[0].id)) // what both have is told back
	span := (p.x.Interval + p.x.longestInterval()).Microseconds()
	for i := range all {
		one := &all[i]
		state := one.state
		state.UnackedFor = span
		was, falls := p.shortfalls[one.key]
		if falls = falls && p.isConfirmed(was.read); falls {
			if was.state.Stamp == state.Stamp { // else it was forgiven since
				state.Totals = slices.Clone(state.Totals)
				state.RaiseAll(&was.state)
			}
		}
		one.rule.GrowOnly = !falls
		c.add(r.keys.Cells(one.spec), one.id, cell.Update{Rule: one.rule.String(), Node: "~" + p.name, State: state})
	}
	if err := c.Send(called, r.client); err != nil {
		return err
	}
	if err := c.Rejection(); redisconn.IsForbidden(err) {
		return err
	}
	for i := range all {
		if known := c.Answer.Cells[i].Previous.Seq; known >= c.Call.Seq && known < c.Call.Seq+aDay {
			p.x.goBeyond(known)
			return errOvertaken
		}
	}
	for i := range all {
		one, before := &all[i], &c.Answer.Cells[i].Previous
		if _, known := p.shortfalls[one.key]; known {
			if one.rule.GrowOnly {
				continue
			}
			before = &c.Call.Cells[i].State
		}
		if delete(p.shortfalls, one.key); one.state.IsBelow(before, one.spec.History+1) && len(p.shortfalls) < mostShortfalls {
			p.shortfalls[one.key] = shortfall{one.state, one.read}
		}
	}
	return nil
}

// confirmedShortfalls are the keys of cells of which the other region has less than is said here,
// where that is believed by now. Where that is a Cluster, those of a shard stand together.
func (p *otherRegion) confirmedShortfalls() (groups [][]string) {
	at := map[string]int{}
	for key, was := range p.shortfalls {
		if !p.isConfirmed(was.read) {
			continue
		}
		shard := ""
		if p.keys.cluster {
			shard, _, _ = strings.Cut(key, "}")
		}
		group, ok := at[shard]
		if !ok {
			group = len(groups)
			at[shard], groups = group, append(groups, nil)
		}
		groups[group] = append(groups[group], key)
	}
	return groups
}

// isConfirmed reports whether what was read of the other region's Redis at an instant was all that
// its nodes had: all have sent a heartbeat since, which has found no loss, nor was there one for so
// long that they may not have said all again.
func (p *otherRegion) isConfirmed(read time.Time) bool {
	return p.heartbeats.Sub(read) > heartbeatsWithin && (p.lostAt.IsZero() || time.Since(p.lostAt) > p.x.resentWithin())
}
