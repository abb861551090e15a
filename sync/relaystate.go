package ratesync

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// RegionsStatus is how the other regions stand. The node that tells them leaves it in this region's
// Redis, so that all nodes of a region show the same.
type RegionsStatus struct {
	Here string `json:"here"`
	// Relay is set where this node is the one that tells the other regions.
	Relay  bool           `json:"relay"`
	Others []RegionStatus `json:"others"`
}

// RegionStatus is how one other region stands.
type RegionStatus struct {
	Region string `json:"region"`
	// Up reports whether the region is not lost, and Reason why it is, as this region's Redis says.
	Up     bool   `json:"up"`
	Reason string `json:"reason,omitempty"`
	// Lag is for how many seconds not all was read that has changed there, or it has not been told
	// of all bans. Backlog is how many bans wait to be told, and how many counts have changed here
	// since it was heard of, which wait as long to be read by it.
	Lag     float64 `json:"lag"`
	Backlog int64   `json:"backlog"`
	// Offset is how far the clock of its Redis is ahead of that of this region's, in seconds.
	Offset float64 `json:"clock_offset"`
	// Messages is how many counts this node has read there, and how many bans it has sent it, since
	// Caddy was started, those without an answer as well.
	Messages int64 `json:"messages"`
}

// RegionsStatus returns how the other regions stand, nil where there are none.
func (r *Replicator) RegionsStatus() *RegionsStatus {
	if r.relay == nil {
		return nil
	}
	now := r.serverNow()
	s := &RegionsStatus{Here: r.relay.Here, Relay: r.relay.works.Load()}
	for _, p := range r.relay.pairs {
		s.Others = append(s.Others, p.status(now))
	}
	slices.SortFunc(s.Others, func(a, b RegionStatus) int { return strings.Compare(a.Region, b.Region) })
	return s
}

// serverNow is the time of this region's Redis.
func (r *Replicator) serverNow() int64 {
	return r.now() + int64(r.clockNow().Offset)
}

// clockNow is how far the clock of this region's Redis is ahead.
func (r *Replicator) clockNow() clockSample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return clockSample{Offset: r.clock.Offset, Uncertainty: r.clock.Uncertainty}
}

func (p *pair) status(now int64) RegionStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := RegionStatus{Region: p.name, Up: p.why == "", Reason: p.why, Offset: p.offset.Seconds(), Messages: p.stats.messages.Load()}
	if since := p.since(); since != 0 {
		s.Lag = max(0, time.Duration(now-since)).Seconds()
	}
	s.Backlog = p.unheard
	for _, n := range p.waiting {
		s.Backlog += n
	}
	return s
}

// since is since when the two regions have not told each other of all. The lock is held.
func (p *pair) since() int64 {
	if p.pulled == 0 || p.told == 0 {
		return max(p.pulled, p.told)
	}
	return min(p.pulled, p.told)
}

// wait notes what has to be told of a shard.
func (p *pair) wait(shard int, todo page) {
	p.mu.Lock()
	p.waiting[shard] = int64(len(todo.names)) + todo.more
	p.mu.Unlock()
}

// count notes how much has to be told, without telling it.
func (p *pair) count(ctx context.Context) {
	p.mu.Lock()
	after := p.cursors
	p.mu.Unlock()
	for shard, todo := range p.x.toldInAll(ctx, p.x.r.keys.Told, after, "") {
		if todo.err == nil {
			p.wait(shard, todo)
		}
	}
}

// shown is what the other nodes of this region show of a pair.
func (p *pair) shown() string {
	s := p.status(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(!p.lost, " ", p.since(), " ", s.Backlog, " ", int64(p.offset), " ", p.failed)
}

// show takes over what the node that tells the other region says of the pair.
func (p *pair) show(shown string) {
	var up bool
	var told, backlog, offset int64
	if n, _ := fmt.Sscan(shown, &up, &told, &backlog, &offset); n != 4 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.told, p.pulled, p.offset = !up, told, told, time.Duration(offset)
	p.waiting, p.unheard = [ShardCount]int64{backlog}, 0
}

const (
	// apartLeast is how far clocks may be apart whatever the window, beyond what can be measured.
	// apartMost is more than any clock should be, and apartPart the part of a window, 1/apartPart,
	// from which on counts are noticeably wrong.
	apartLeast = 100 * time.Millisecond
	apartMost  = time.Second
	apartPart  = 20
)

// compare notes how far the clock of the other Redis is ahead, and how far off that may be. It logs
// once that clocks are too far apart, and again after they were together.
func (p *pair) compare(ahead, uncertainty time.Duration) {
	most := apartMost
	for _, s := range p.x.r.attached() {
		if s.least.Load() > 0 {
			most = min(most, s.spec.Window/apartPart)
		}
	}
	most = max(most, apartLeast+uncertainty)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offset, p.unsure = ahead, uncertainty
	switch apart := ahead.Abs(); {
	case apart < most/2:
		p.apart = false
	case apart >= most && !p.apart:
		p.apart = true
		p.x.r.logger.Warn("the clocks of the redis of two regions differ, so their windows begin at different times, and more or less than the limit passes; keep both by NTP",
			warning.Field(warning.ClocksApart), zap.String("here", p.x.Here), zap.String("region", p.name), zap.Duration("ahead", ahead))
	}
}
