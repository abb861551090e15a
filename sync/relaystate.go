package ratesync

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// RegionsStatus is how the other regions stand. The node that reads them leaves it in this region's
// Redis, so that all nodes of a region show the same.
type RegionsStatus struct {
	Here string `json:"here"`
	// Relay is set where this node is the one that reads the other regions.
	Relay  bool           `json:"relay"`
	Others []RegionStatus `json:"others"`
}

// RegionStatus is how one other region stands.
type RegionStatus struct {
	Region string `json:"region"`
	// Up reports whether the region is not lost, and Reason why it is, as this region's Redis says.
	Up     bool   `json:"up"`
	Reason string `json:"reason,omitempty"`
	// Lag is for how many seconds not all was read that has changed there, and Backlog how many
	// counts and bans have changed here since, which wait as long to be read by that region.
	Lag     float64 `json:"lag"`
	Backlog int64   `json:"backlog"`
	// Offset is how far the clock of its Redis is ahead of that of this region's, in seconds.
	Offset float64 `json:"clock_offset"`
	// Messages is how many counts and bans this node has read there since Caddy was started.
	Messages int64 `json:"messages"`
}

// RegionsStatus returns how the other regions stand, nil where there are none.
func (r *Replicator) RegionsStatus() *RegionsStatus {
	if r.relay == nil {
		return nil
	}
	now := r.serverNow()
	s := &RegionsStatus{Here: r.relay.Here, Relay: r.relay.holds.Load()}
	for _, p := range r.relay.regions {
		s.Others = append(s.Others, p.status(now))
	}
	slices.SortFunc(s.Others, func(a, b RegionStatus) int { return strings.Compare(a.Region, b.Region) })
	return s
}

// serverNow is the time of this region's Redis.
func (r *Replicator) serverNow() int64 {
	return r.now() + int64(r.clockNow().Offset)
}

// clockNow is how far the clock of this region's Redis is ahead, and how sure that is.
func (r *Replicator) clockNow() clockSample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return clockSample{Offset: r.clock.Offset, Uncertainty: r.clock.Uncertainty}
}

func (p *otherRegion) status(now int64) RegionStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := RegionStatus{Region: p.name, Up: p.why == "", Reason: p.why, Backlog: p.backlog, Offset: p.offset.Seconds(), Messages: p.messages.Load()}
	if p.caughtUpAt != 0 {
		s.Lag = max(0, time.Duration(now-p.caughtUpAt)).Seconds()
	}
	return s
}

// show takes over what the node that reads the other region says of it: see reported.
func (p *otherRegion) show(shown string) {
	var up bool
	var caughtUpAt, backlog, offset int64
	if n, _ := fmt.Sscan(shown, &up, &caughtUpAt, &backlog, &offset); n != 4 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.caughtUpAt, p.backlog, p.offset = !up, caughtUpAt, backlog, time.Duration(offset)
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
func (p *otherRegion) compare(ahead, uncertainty time.Duration) {
	most := apartMost
	for _, s := range p.x.r.attached() {
		if s.least.Load() > 0 {
			most = min(most, s.spec.Window/apartPart)
		}
	}
	most = max(most, apartLeast+uncertainty)
	p.mu.Lock()
	was, apart := p.apart, ahead.Abs()
	p.offset, p.apart = ahead, apart >= most || was && apart >= most/2
	logs := p.apart && !was
	p.mu.Unlock()
	if logs {
		p.x.r.logger.Warn("the clocks of the redis of two regions differ, so their windows begin at different times, and more or less than the limit passes; keep both by NTP",
			warning.Field(warning.ClocksApart), zap.String("here", p.x.Here), zap.String("region", p.name), zap.Duration("ahead", ahead))
	}
}
