package ratesync

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A regional is what this region has in one hash, on its way to another one.
type regional struct {
	hashName

	total int64
	rest  string // "attempts[ settled]"
	ttl   time.Duration
	// ask is set where the total is not told, but what the other region has of it asked for.
	ask bool
	// unsent is the part of the total that still stands in a bucket. fill is set in the first hash
	// of a bucket's client: "drain level[ stamp end]".
	unsent int64
	fill   string
}

// A hashName is the name of a hash, taken apart.
type hashName struct {
	name, table, id string // the table without its shard
	shard           int
	epoch, stamp    int64
}

// parseHashName takes the name of a hash apart: see Keyspace.
func parseHashName(name string) (h hashName, ok bool) {
	h.name = name
	_, rest, _ := strings.Cut(name, "{")
	shard, rest, _ := strings.Cut(rest, "}:")
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return h, false
	}
	j := strings.LastIndexByte(rest[:i], ':')
	if j < 0 {
		return h, false
	}
	h.table, h.id = rest[:j], rest[j+1:i]
	epoch, stamp, stamped := strings.Cut(rest[i+1:], "@")
	var err, err2, err3 error
	h.shard, err = strconv.Atoi(shard)
	if h.epoch, err2 = strconv.ParseInt(epoch, 10, 64); stamped {
		h.stamp, err3 = strconv.ParseInt(stamp, 10, 64)
	}
	return h, err == nil && err2 == nil && err3 == nil && h.shard >= 0 && h.shard < ShardCount
}

// fillKey is the key of the fill of the hash's client, where it is a bucket.
func (h *hashName) fillKey() string {
	return h.name[:strings.LastIndexByte(h.name, ':')] + ":fill"
}

// precedes reports whether the hash was counted before the reset that a fill is under.
func (h *hashName) precedes(stamp int64) bool {
	_, window, _ := strings.Cut(h.table[strings.LastIndexByte(h.table, ':')+1:], "-")
	d, err := time.ParseDuration(window)
	if h.stamp == stamp || stamp == 0 || err != nil || d <= 0 {
		return false
	}
	span := algorithms.Params{Kind: algorithms.TokenBucket, Window: d}.Epoch()
	return h.epoch <= stamp*int64(time.Microsecond)/int64(span)
}

// compareHashes puts hashes in the order in which they are sent: those of one table, and of one
// client of it, together, the newest first.
func (p *pair) compareHashes(a, b hashName) int {
	c := 0
	if p.keys.cluster || p.x.r.cluster {
		c = a.shard - b.shard
	}
	return cmp.Or(c, cmp.Compare(a.table, b.table), a.shard-b.shard, cmp.Compare(a.id, b.id), cmp.Compare(b.epoch, a.epoch), cmp.Compare(b.stamp, a.stamp))
}

// batches are the calls that names make: those of one table, in a Cluster of one shard, and those
// of one client in one of them.
func (p *pair) batches(names []string) (batches [][]hashName) {
	all := make([]hashName, 0, len(names))
	for _, name := range names {
		if h, ok := parseHashName(name); ok {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, p.compareHashes)
	first := 0
	for i := range all {
		if i == first {
			continue
		}
		last, next := &all[i-1], &all[i]
		together := last.table == next.table && (last.shard == next.shard || !p.keys.cluster && !p.x.r.cluster)
		if !together || i-first >= batchSize && last.id != next.id {
			batches = append(batches, all[first:i])
			first = i
		}
	}
	if first < len(all) {
		batches = append(batches, all[first:])
	}
	return batches
}

// batch reads hashes and tells the other region of them, and reports whether it has answered. What
// was told meanwhile by another relay, with a higher number, is read and told once more.
func (p *pair) batch(ctx context.Context, hashes []hashName, urgent bool) bool {
	for range 3 {
		turned := p.turns()
		number, messages, err := p.readBatch(ctx, hashes)
		if err != nil {
			return false
		}
		doubt := p.x.inDoubt() // asked for after the reading, which notices a loss
		if !urgent && !doubt {
			messages = slices.DeleteFunc(messages, func(m regional) bool { return p.isSent(&m) })
		}
		if len(messages) == 0 {
			return true
		}
		p.pay(ctx, len(messages), !urgent)
		if doubt {
			if messages, err = p.higher(ctx, number, messages); err != nil || len(messages) == 0 {
				return err == nil
			}
		}
		again, err := p.push(ctx, number, messages, turned, urgent)
		if err != nil {
			return false
		}
		if !again {
			return true
		}
	}
	return false
}

// turns is how often the cursors were set back.
func (p *pair) turns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turned
}

// isSent reports whether the other region has a message already.
func (p *pair) isSent(m *regional) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent[m.name] == m.counts()
}

func (m *regional) counts() string { return strconv.FormatInt(m.total, 10) + " " + m.rest }

// readBatch is one reading of hashes of this region, without those that are gone.
func (p *pair) readBatch(ctx context.Context, hashes []hashName) (number int64, messages []regional, err error) {
	names := make([]string, len(hashes))
	var fills []string
	for i := range hashes {
		names[i] = hashes[i].name
		if i == 0 || hashes[i].id != hashes[i-1].id {
			fills = append(fills, hashes[i].fillKey())
		}
	}
	shard := 0
	if p.x.r.cluster {
		shard = hashes[0].shard
	}
	lines, err := p.x.read(ctx, shard, names, fills)
	if err != nil {
		return 0, nil, err
	}
	first, _, _ := strings.Cut(lines[0], " ")
	number, _ = count(first)
	counts, levels := lines[1:1+len(hashes)], lines[1+len(hashes):]
	client, began := -1, false
	for i := range hashes {
		if i == 0 || hashes[i].id != hashes[i-1].id {
			client++
			began = false
		}
		m, ok := parseRegional(hashes[i], counts[i])
		if !ok {
			continue
		}
		if !began {
			m.fill, began = levels[client], true
			if m.fill == "" {
				m.fill = "0.000 0"
			}
		}
		messages = append(messages, m)
	}
	if strings.Join(levels, "") == "" { // no buckets
		for i := range messages {
			messages[i].fill = ""
		}
	}
	setUnsent(messages)
	return number, messages, nil
}

// parseRegional reads what a reading has of one hash: "ttl total attempts[ settled]".
func parseRegional(h hashName, line string) (m regional, ok bool) {
	m.hashName = h
	lives, counts, _ := strings.Cut(line, " ")
	total, rest, _ := strings.Cut(counts, " ")
	ttl, ok := count(lives)
	var ok2 bool
	m.total, ok2 = count(total)
	m.rest = rest
	for number := range strings.FieldsSeq(rest) {
		_, isCount := count(number)
		ok = ok && isCount
	}
	m.ttl = time.Duration(min(ttl, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	return m, ok && ok2 && rest != ""
}

// setUnsent works out what of each total still stands in its bucket: the newest came last, and is
// what drains last. What was counted before a reset stands nowhere.
func setUnsent(messages []regional) {
	var stands, stamp int64
	for i := range messages {
		m := &messages[i]
		if m.fill != "" {
			fields := strings.Fields(m.fill)
			level, _ := strconv.ParseFloat(fields[0], 64)
			stands, stamp = int64(math.Ceil(min(level, MaxExact))), 0
			if len(fields) > 2 {
				stamp, _ = strconv.ParseInt(fields[2], 10, 64)
			}
			fields[0], fields[1] = fields[1], fields[0]
			m.fill = strings.Join(fields, " ")
		}
		if !m.precedes(stamp) {
			m.unsent = min(m.total, stands)
			stands -= m.unsent
		}
	}
}

// higher asks what the other region has of messages, and returns those that have more. Where those
// of a client are among them, all are, so that they stand together.
func (p *pair) higher(ctx context.Context, number int64, messages []regional) ([]regional, error) {
	asks := slices.Clone(messages)
	for i := range asks {
		asks[i].ask = true
	}
	answers, err := p.call(ctx, number, asks)
	if err != nil {
		return nil, err
	}
	more := make(map[string]bool)
	for i, a := range answers {
		messages[i].ask = messages[i].total <= a.total
		more[messages[i].id] = more[messages[i].id] || !messages[i].ask
	}
	return slices.DeleteFunc(messages, func(m regional) bool { return !more[m.id] }), nil
}

// A regionalAnswer is what another region had of a hash: the number, and the total.
type regionalAnswer struct {
	rejected      bool
	number, total int64
}

// push tells the other region of messages, which were read when the cursors had been set back so
// often. It reports whether some have to be read once more.
func (p *pair) push(ctx context.Context, number int64, messages []regional, turned int, urgent bool) (again bool, err error) {
	answers, err := p.call(ctx, number, messages)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	highest := int64(0)
	for i, a := range answers {
		switch m := &messages[i]; {
		case a.rejected:
			p.rejected[m.name] = struct{}{}
		case m.ask:
		case a.number >= number:
			highest = max(highest, a.number)
		case urgent && turned == p.turned: // else it may be lost by now
			p.sent[m.name] = m.counts()
		}
	}
	if highest == 0 {
		return false, nil
	}
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	p.x.above = max(p.x.above, highest)
	return true, nil
}

// call is one call of push.lua at the other region.
func (p *pair) call(ctx context.Context, number int64, messages []regional) ([]regionalAnswer, error) {
	ctx, cancel := CallContext(ctx, linkTimeout)
	defer cancel()
	c := pushCalls.Get().(*pushCall)
	defer pushCalls.Put(c)
	c.writeRegional(p, number, messages)
	p.stats.calls.Add(1)
	p.stats.messages.Add(int64(len(messages)))
	reply, err := c.send(ctx, p.client)
	if err != nil {
		p.stats.failures.Add(1)
		p.x.forbids(p.name, err)
		return nil, err
	}
	lines := strings.Split(reply, "\n")
	if len(lines) != 2+2*len(messages) {
		return nil, ErrReply
	}
	answers := make([]regionalAnswer, len(messages))
	for i := range answers {
		held := lines[2+2*i]
		fields := strings.Fields(held)
		switch {
		case held == "!" || held == "@":
			answers[i].rejected = true
		case len(fields) >= 2:
			answers[i].number, _ = count(fields[0])
			answers[i].total, _ = count(fields[1])
		}
	}
	return answers, nil
}

// writeRegional lays out a call: see push.lua.
func (c *pushCall) writeRegional(p *pair, number int64, messages []regional) {
	fills := 0
	var ttl time.Duration
	for i := range messages {
		if messages[i].fill != "" {
			fills++
		}
		ttl = max(ttl, messages[i].ttl)
	}
	c.Reset()
	c.End("evalsha")
	c.End(pushScript.Hash())
	c.Number(int64(len(messages) + fills + 2))
	for i := range messages {
		c.End(messages[i].name)
	}
	for i := range messages {
		if messages[i].fill != "" {
			c.End(messages[i].fillKey())
		}
	}
	shard := 0
	if p.keys.cluster {
		shard = messages[0].shard
	}
	c.End(p.keys.Told(shard))
	c.End(p.keys.Hurry(shard))
	c.End(p.node)
	c.Number(number)
	c.Number(int64(fills))
	c.ttl(ttl, 1, false)
	for i := range messages {
		m := &messages[i]
		if m.ask {
			c.End("")
			c.End("")
		} else {
			c.Number(m.total)
			c.End(m.rest)
		}
		if fills == 0 {
			continue
		}
		c.Text = strconv.AppendInt(c.Text, m.unsent, 10)
		if m.fill != "" {
			c.Text = append(c.Text, ' ')
		}
		c.End(m.fill)
	}
	c.Finish()
}
