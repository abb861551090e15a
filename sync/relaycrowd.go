package ratesync

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// crowdMost is how many names that wait are looked at, the oldest ones, for those that come first.
const crowdMost = 40 * pageSize

// A waiting is a name that was told here, and that another region may not know of yet.
type waiting struct {
	name  string
	shard int
	score int64
	share float64 // of its limit that the key has
}

// isCrowd reports whether more comes after the cursors than a second can tell, or some of it was
// told ahead of the rest, and should not be told again with that.
func (p *pair) isCrowd(pages []page, after [ShardCount]int64) bool {
	p.mu.Lock()
	n, ahead := int64(0), len(p.ahead)
	p.mu.Unlock()
	for shard, page := range pages {
		if page.err != nil || page.highest < after[shard] {
			return false
		}
		n += int64(len(page.names)) + page.more
	}
	return n > linkSecond || ahead > 0
}

// passFullest is pass where more waits than a second can tell: it tells of what a second can, first
// of bans, then of keys by the part of their limit that they have. The cursors stay behind what is
// left.
func (p *pair) passFullest(ctx context.Context, after [ShardCount]int64, turned int) (left, ok bool) {
	all, more, ok := p.crowd(ctx, after)
	if !ok {
		return false, false
	}
	p.mu.Lock()
	todo := slices.DeleteFunc(slices.Clone(all), p.isAhead)
	p.mu.Unlock()
	slices.SortStableFunc(todo, func(a, b waiting) int { return cmp.Compare(b.share, a.share) })
	left = len(todo) > linkSecond || slices.Max(more[:]) > 0
	todo = todo[:min(len(todo), linkSecond)]
	names, scores := make([]string, len(todo)), make(map[string]int64, len(todo))
	for i, w := range todo {
		names[i], scores[w.name] = w.name, w.score
	}
	ok = p.send(ctx, names, func(name string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.turned == turned {
			p.ahead[name] = scores[name]
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turned != turned {
		return true, ok
	}
	p.waiting = more
	p.follow(all)
	return left, ok
}

// crowd are names after the cursors, in the order of shards and scores, and how many come after
// them in each shard.
func (p *pair) crowd(ctx context.Context, after [ShardCount]int64) (all []waiting, more [ShardCount]int64, ok bool) {
	limits := p.x.limits()
	for shard, page := range p.x.toldInAll(ctx, p.x.r.keys.Told, after, "weigh") {
		for {
			if page.err != nil || len(page.scores) != len(page.names) {
				return nil, more, false
			}
			for i, name := range page.names {
				if share, ok := limits.share(name, page.totals[i]); ok {
					all = append(all, waiting{name, shard, page.scores[i], share})
				}
			}
			if more[shard] = page.more; page.more == 0 || len(all) >= crowdMost {
				break
			}
			page = p.x.told(ctx, p.x.r.keys.Told(shard), page.last, "weigh")
		}
	}
	return all, more, true
}

// isAhead reports whether the other region has been told since a name was told here.
func (p *pair) isAhead(w waiting) bool { return p.ahead[w.name] == w.score }

// follow moves the cursors on to before the first name of which the other region has to be told,
// and forgets what was told ahead of them but is not there. all are the names after the cursors.
func (p *pair) follow(all []waiting) {
	ahead := make(map[string]int64)
	for len(all) > 0 {
		shard := all[0].shard
		end := slices.IndexFunc(all, func(w waiting) bool { return w.shard != shard })
		if end < 0 {
			end = len(all)
		}
		first := slices.IndexFunc(all[:end], func(w waiting) bool { return !p.isAhead(w) })
		for _, w := range all[:end] {
			switch {
			case first < 0 || w.score < all[first].score: // several names may have one score
				p.cursors[shard] = w.score
			case p.isAhead(w):
				ahead[w.name] = w.score
			default:
				p.waiting[shard]++
			}
		}
		all = all[end:]
	}
	p.ahead = ahead
}

// limits are how much a key may have, by the name of its table without a shard.
type limits map[string]int64

func (x *relay) limits() limits {
	all := make(limits)
	for _, s := range x.r.attached() {
		all[s.spec.Zone+":"+s.spec.Name()] = max(1, s.most.Load())
	}
	return all
}

// share is what part of its limit a key has with a total, none where it is not known here, and more
// than any for a ban. It is not ok for the name of neither.
func (l limits) share(name string, total int64) (share float64, ok bool) {
	if isBan(name) {
		return math.Inf(1), true
	}
	h, ok := parseHashName(name)
	if most := l[h.table]; most > 0 {
		share = float64(total) / float64(most)
	}
	return share, ok
}
