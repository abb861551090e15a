package statuspage

import (
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/metrics"
)

const (
	// step is the time between two samples.
	step = 5 * time.Second
	// kept is how many rates are shown: five minutes.
	kept = 60
	// recent is how many of them the current rate is the mean of.
	recent = 3
)

// A history has what zones counted in the last minutes. It samples while somebody uses it, and so
// only where a configuration has a status page.
type history struct {
	// counts tells what each zone has counted.
	counts func() (map[string]metrics.Counts, error)

	mu    sync.Mutex
	users int
	stop  chan struct{} // ends the samples, and done is closed when they have ended
	done  chan struct{}
	zones map[string][]metrics.Counts // the latest kept+1 samples, the oldest first
}

// shared is the history of the process: it goes on over a reload.
var shared = history{counts: metrics.ByZone}

// open begins to sample, unless others have.
func (h *history) open() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users++; h.users > 1 {
		return
	}
	h.zones, h.stop, h.done = map[string][]metrics.Counts{}, make(chan struct{}), make(chan struct{})
	go h.run(h.stop, h.done)
}

// close ends what open began.
func (h *history) close() {
	h.mu.Lock()
	h.users--
	last, done := h.users == 0, h.done
	if last {
		close(h.stop)
		h.zones = nil
	}
	h.mu.Unlock()
	if last {
		<-done
	}
}

func (h *history) run(stop, done chan struct{}) {
	defer close(done)
	ticks := time.NewTicker(step)
	defer ticks.Stop()
	h.sample()
	for {
		select {
		case <-ticks.C:
			h.sample()
		case <-stop:
			return
		}
	}
}

// sample notes what each zone has counted. A zone that is gone is forgotten, and one whose counters
// began again starts at zero.
func (h *history) sample() {
	counts, err := h.counts()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.zones == nil {
		return
	}
	zones := map[string][]metrics.Counts{}
	for name, c := range counts {
		all := h.zones[name]
		if n := len(all); n > 0 && c.Admitted < all[n-1].Admitted {
			all = nil
		}
		if len(all) > kept {
			all = append(all[:0], all[1:]...)
		}
		zones[name] = append(all, c)
	}
	h.zones = zones
}

// Rates are requests a second.
type Rates struct {
	Admitted  float64 `json:"admitted"`
	Denied    float64 `json:"denied"`
	WouldDeny float64 `json:"would_deny"`
	Near      float64 `json:"near_limit"`
}

// of returns the rates of a zone now and in each step of the last five minutes, the oldest first.
// They are nil where nothing is known yet.
func (h *history) of(zone string) (now *Rates, steps []Rates) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.zones[zone]
	if len(all) < 2 {
		return nil, nil
	}
	for i := range all[1:] {
		steps = append(steps, between(all[i], all[i+1], step))
	}
	last := len(all) - 1
	since := max(0, last-recent)
	r := between(all[since], all[last], time.Duration(last-since)*step)
	return &r, steps
}

func between(a, b metrics.Counts, d time.Duration) Rates {
	s := d.Seconds()
	return Rates{(b.Admitted - a.Admitted) / s, (b.Denied - a.Denied) / s, (b.WouldDeny - a.WouldDeny) / s, (b.Near - a.Near) / s}
}
