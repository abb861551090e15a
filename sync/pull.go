package ratesync

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// What the nodes of another region have in a cell is read from that region's Redis, and said here
// as the state of a node that stands for the region: what all have there less what they have from
// other regions. How far that has come lies here, beside what was written: a Redis that forgets
// forgets both, and all is read again.

const (
	// pullRate is how often another region is asked for what has changed there, and pullAll how
	// often for all, as single cells may have been evicted here. A new relay asks for all once
	// nodes have said all again that a Redis may have lost before it began.
	pullRate = 100 * time.Millisecond
	pullAll  = 10 * time.Minute
	// mostLowered is the most cells that are looked after until what they have less is believed.
	// Those beyond are when all is read.
	mostLowered = 10_000
)

var (
	cursorScript = redis.NewScript(cursorLua)
	cellsScript  = redis.NewScript(cellsLua)
)

// pulls reads what has changed in the other region, until the end of ctx.
func (p *pair) pulls(ctx context.Context) {
	// An earlier relay may have known of cells of which the other region has less, and have told
	// nobody.
	walked, counted := time.Now().Add(p.x.resentWithin()-pullAll), time.Time{}
	for ctx.Err() == nil {
		began, server := time.Now(), p.x.r.serverNow()
		all := began.Sub(walked) >= pullAll
		switch {
		case p.ready.Load() && p.pullRound(ctx, all):
			p.mu.Lock()
			p.pulled, p.unheard = server, 0
			p.mu.Unlock()
			if all {
				walked = began
			}
		case began.Sub(counted) >= relayRate:
			counted = began
			p.countCells(ctx)
		}
		pauseFor(ctx, pullRate-time.Since(began))
	}
}

// pullRound reads what has changed since the last one, or all there is, and reports whether all was
// answered.
func (p *pair) pullRound(ctx context.Context, all bool) bool {
	ok := true
	for _, names := range p.fallen() {
		ok = p.pull(ctx, names) == nil && ok
	}
	for shard := range p.shards() {
		ok = p.pullShard(ctx, shard, false) == nil && ok
		if all {
			ok = p.pullShard(ctx, shard, true) == nil && ok
		}
	}
	return ok
}

// countCells notes how many cells have changed here since the other region was heard of, which
// waits as long to hear of them.
func (p *pair) countCells(ctx context.Context) {
	p.mu.Lock()
	since := p.pulled / int64(time.Microsecond)
	p.mu.Unlock()
	n := int64(0)
	for _, page := range p.x.toldInAll(ctx, p.x.r.keys.ToldCells, sinceIn(since), "") {
		if page.err != nil {
			return
		}
		n += int64(len(page.names)) + page.more
	}
	p.mu.Lock()
	p.unheard = n
	p.mu.Unlock()
}

// sinceIn is a score for each shard.
func sinceIn(score int64) (all [ShardCount]int64) {
	for shard := range all {
		all[shard] = score
	}
	return all
}

// shards is how many sorted sets the other region has.
func (p *pair) shards() int {
	if p.keys.cluster {
		return ShardCount
	}
	return 1
}

// pullShard reads all after the cursor of one of the other region's sorted sets, or all there is.
func (p *pair) pullShard(ctx context.Context, shard int, all bool) (err error) {
	after := int64(0)
	if !all {
		if after, err = p.cursorOf(ctx, shard); err != nil {
			return err
		}
	}
	for noted := after; ; {
		page, err := p.page(ctx, shard, after)
		if err != nil {
			return err
		}
		if page.highest < after { // that Redis has gone back to an older copy
			after = 0
			continue
		}
		if len(page.names) == 0 {
			return nil
		}
		if err = p.pull(ctx, page.names); err != nil {
			return err
		}
		if !all {
			if err = p.setCursor(ctx, shard, noted, page.last); err != nil {
				return err
			}
		}
		after, noted = page.last, page.last
	}
}

// cursorKeys are where it lies up to which score a sorted set was read: in each shard here that its
// cells lie in.
func (p *pair) cursorKeys(shard int) (keys []string) {
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

func (p *pair) cursorField(shard int) string { return p.name + " " + strconv.Itoa(shard) }

// cursorLua reads how far another region was read. With two numbers it goes on first from the one
// to the other, unless it is elsewhere by now.
const cursorLua = `local at = redis.call('HGET', KEYS[1], ARGV[1]) or '0'
if ARGV[3] ~= '' and at == ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return ARGV[3]
end
return at`

// cursorOf is up to which score a sorted set there was read. Once a second it is read here: a Redis
// that has forgotten has none.
func (p *pair) cursorOf(ctx context.Context, shard int) (after int64, err error) {
	if at := p.cursorsAt[shard]; time.Since(at) < time.Second {
		return p.pulledTo[shard], nil
	}
	return p.moveCursor(ctx, shard, "", "")
}

// setCursor notes that it was read up to another score.
func (p *pair) setCursor(ctx context.Context, shard int, from, to int64) error {
	_, err := p.moveCursor(ctx, shard, strconv.FormatInt(from, 10), strconv.FormatInt(to, 10))
	return err
}

// moveCursor is the lowest of a sorted set's cursors, after those that were at one score have moved
// to another one, if there is one.
func (p *pair) moveCursor(ctx context.Context, shard int, from, to string) (least int64, err error) {
	called, cancel := CallContext(ctx, p.x.r.timeout)
	defer cancel()
	p.cursorsAt[shard] = time.Time{}
	for i, key := range p.cursorKeys(shard) {
		text, err := cursorScript.Run(called, p.x.r.client, []string{key}, p.cursorField(shard), from, to, toldTTL.Milliseconds()).Text()
		if err != nil {
			return 0, err
		}
		if n, _ := strconv.ParseInt(text, 10, 64); i == 0 || n < least {
			least = n
		}
	}
	p.cursorsAt[shard], p.pulledTo[shard] = time.Now(), least
	return least, nil
}

// page reads names after a score there. Several have one score, and those are never parted.
func (p *pair) page(ctx context.Context, shard int, after int64) (page, error) {
	called, cancel := CallContext(ctx, linkTimeout)
	defer cancel()
	got := parsePage(toldScript.Run(called, p.client, []string{p.keys.ToldCells(shard)}, after, pageSize, ""), p.keys.cells)
	p.x.forbids(p.name, got.err)
	return got, got.err
}

// pull reads cells there, and says them here.
func (p *pair) pull(ctx context.Context, names []string) error {
	for len(names) > 0 {
		batch := names[:min(len(names), batchSize)]
		names = names[len(batch):]
		cells, err := p.readCells(ctx, batch)
		if p.x.forbids(p.name, err); err != nil {
			return err
		}
		for _, some := range p.byShard(cells) {
			err := p.sayCells(ctx, some)
			if p.x.forbids(p.x.Here, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// A pulled is what the other region has of a cell.
type pulled struct {
	name   string
	id     keys.ID
	spec   Spec
	family cell.Family
	state  cell.State
	read   time.Time
}

// cellsLua reads what all have of cells, what other regions have of that, and since when a bucket
// is there. The time comes last. A key of another type is as none.
const cellsLua = `local all, time = {}, redis.call('TIME')
for i, key in ipairs(KEYS) do
  local had = redis.pcall('HMGET', key, 'sum', '~', 'born')
  if had.err and string.sub(had.err, 1, 9) ~= 'WRONGTYPE' then return had end
  for j = 1, 3 do all[3 * i - 3 + j] = had[j] or '' end
end
all[#all + 1] = time[1]
all[#all + 1] = time[2]
return all`

// readCells reads cells there: their sums, less what they have from other regions.
func (p *pair) readCells(ctx context.Context, names []string) (all []pulled, err error) {
	called, cancel := CallContext(ctx, linkTimeout)
	defer cancel()
	read := time.Now()
	replies, err := cellsScript.Run(called, p.client, names).StringSlice()
	if err != nil {
		return nil, err
	}
	n := len(replies) - 2
	if n != 3*len(names) {
		return nil, ErrReply
	}
	now, ok := parseTime(replies[n], replies[n+1])
	if !ok {
		return nil, ErrReply
	}
	p.stats.messages.Add(int64(len(names)))
	for i, name := range names {
		one, ok := parseCellName(name)
		if !ok {
			continue
		}
		one.read, one.family = read, one.spec.Family(false)
		if one.state, ok = cell.Here(replies[3*i], replies[3*i+1], replies[3*i+2], &one.family, now/int64(time.Microsecond)); ok {
			all = append(all, one)
		}
	}
	return all, nil
}

// parseCellName takes the key of a cell apart.
func parseCellName(name string) (c pulled, ok bool) {
	_, rest, _ := strings.Cut(name, "{")
	_, rest, ok = strings.Cut(rest, "}:")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i < 0 {
		return c, false
	}
	c.name = name
	if c.id, ok = parseID(rest[i+1:]); !ok {
		return c, false
	}
	c.spec, ok = parseSpec(rest[:i])
	return c, ok
}

// byShard are cells that one call can say: of one shard, where there is a Cluster here.
func (p *pair) byShard(all []pulled) (batches [][]pulled) {
	if !p.x.r.cluster {
		return [][]pulled{all}
	}
	slices.SortStableFunc(all, func(a, b pulled) int { return ShardOf(a.id) - ShardOf(b.id) })
	for first, i := 0, 1; i <= len(all); i++ {
		if i == len(all) || ShardOf(all[i].id) != ShardOf(all[first].id) {
			batches = append(batches, all[first:i])
			first = i
		}
	}
	return batches
}

// A lowered is what the other region had less of than is said of it here, and when it was read.
type lowered struct {
	state cell.State
	read  time.Time
}

// errOvertaken is the error where another relay of this region has said more than this one's
// numbers go.
var errOvertaken = errors.New("another node says what another region has, and is ahead")

// sayCells says here what the other region has of cells. A total that is below what was said here
// may be that of a Redis that has lost something, which the next heartbeat there tells. So it stays
// as it was until then. Where another relay has said something under a higher number, what is said
// here has no effect, and fails: its numbers are above that one's from then on, and it is read and
// said again.
func (p *pair) sayCells(ctx context.Context, all []pulled) error {
	if len(all) == 0 {
		return nil
	}
	r := p.x.r
	called, cancel := CallContext(ctx, r.timeout)
	defer cancel()
	node := &Source{link: link{node: "~" + p.name}}
	c := NewSayCall(p.x.next())
	defer c.Free()
	c.Told = r.keys.ToldCells(r.keys.shardOf(all[0].id)) // what both have is told back
	span := (pullRate + p.x.longestRate()).Microseconds()
	for i := range all {
		one := &all[i]
		state := one.state
		state.Span = span
		was, falls := p.lower[one.name]
		if falls = falls && p.believes(was.read); falls {
			state.Totals = slices.Clone(state.Totals)
			state.RaiseAll(&was.state)
		}
		one.family.Opens = !falls
		node.family = one.family.String()
		c.Say(node, r.keys.Cells(one.spec), &table.Said{ID: one.id, State: state}, false)
	}
	if err := c.Send(called, r.client); err != nil {
		return err
	}
	if err := c.Rejection(); redisconn.IsForbidden(err) {
		return err
	}
	for i := range all {
		if held := c.Answer.Cells[i].Held.Seq; held >= c.Call.Seq {
			p.x.goBeyond(held)
			return errOvertaken
		}
	}
	for i := range all {
		one, before := &all[i], &c.Answer.Cells[i].Held
		if was, known := p.lower[one.name]; known {
			if !p.believes(was.read) {
				continue
			}
			before = &c.Call.Cells[i].State
		}
		if delete(p.lower, one.name); one.state.IsBelow(before, one.spec.Live+1) && len(p.lower) < mostLowered {
			p.lower[one.name] = lowered{one.state, one.read}
		}
	}
	return nil
}

// fallen are the names of cells of which the other region has less than is said here, where that is
// believed by now. Where that is a Cluster, those of a shard stand together.
func (p *pair) fallen() (groups [][]string) {
	at := map[string]int{}
	for name, was := range p.lower {
		if !p.believes(was.read) {
			continue
		}
		shard := ""
		if p.keys.cluster {
			shard, _, _ = strings.Cut(name, "}")
		}
		group, ok := at[shard]
		if !ok {
			group = len(groups)
			at[shard], groups = group, append(groups, nil)
		}
		groups[group] = append(groups[group], name)
	}
	return groups
}

// believes reports whether what was read of the other region's Redis at an instant was all that its
// nodes had: a heartbeat there that began later has found no loss, nor was there one for so long
// that they may not have said all again.
func (p *pair) believes(read time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beaten.After(read) && (p.lostAt.IsZero() || time.Since(p.lostAt) > p.x.resentWithin())
}
