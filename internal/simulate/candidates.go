package simulate

import (
	"slices"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// candidates try other limits in the place of a zone's own one: by its algorithm, each alone, for
// all nodes together.
//
// Only clients that come near the lowest of them are followed. Who has sent at most half of that in
// any window has not been denied by any, so his state can be made when he exceeds it.
type candidates interface {
	// take offers a request of a client that takes some units and was answered in a class, who has
	// sent n in the window that ends with it.
	take(c *client, units, n, now, part int64, answered string)
	// tally adds up what of a window's clients each limit has denied, and returns how many clients
	// should have been followed and could not be.
	tally(w *windowStats, all []Candidate) (notFollowed int64)
}

// maxFollowed is how many clients they follow.
const maxFollowed = 1 << 14

// isUnfollowed is the index of a client that could not be followed.
const isUnfollowed = -1

// numbersAround returns round numbers from a tenth of a limit to ten times of it, and the limit.
func numbersAround(limit int64) (all []int64) {
	for decade := int64(1); decade <= limit && decade < 1e15; decade *= 10 {
		for _, m := range []int64{1, 2, 5, 10, 20, 50} {
			if n := decade * m; n >= (limit+9)/10 && n <= 10*limit {
				all = append(all, n)
			}
		}
	}
	all = append(all, limit)
	slices.Sort(all)
	return slices.Compact(all)
}

// newCandidates returns the candidates of a limit, nil for one that comes with the request or
// denies all.
func newCandidates(l *limits.Limit) (candidates, []int64) {
	if l.Number != nil || l.Rate.Limit <= 0 || l.Rate.Limit > 1e12 {
		return nil, nil
	}
	numbers := numbersAround(l.Rate.Limit)
	of := algorithms.ByState(l.Settings.Kind, newCandidatesOf[algorithms.WindowState], newCandidatesOf[algorithms.BucketState], nearLogs)
	return of(l, numbers), numbers
}

// nearLogs returns sub-windows in the place of logs, which would keep every request of each limit.
func nearLogs(l *limits.Limit, numbers []int64) candidates {
	near := *l.Settings
	near.Kind, near.SubWindows = algorithms.SlidingWindow, 31
	c := *l
	c.Settings = &near
	return newCandidatesOf[algorithms.WindowState](&c, numbers)
}

// candidatesOf are candidates for machines of one state.
type candidatesOf[S any] struct {
	machine    algorithms.Machine[S]
	limits     []algorithms.Limit
	penalize   bool
	start      int64 // who has sent more in a window is followed
	part       int64 // its length in nanoseconds
	states     []S   // of each client that is followed, one for each limit
	denials    []int64
	answers    []Answers // of each limit
	unfollowed int64
}

func newCandidatesOf[S any](l *limits.Limit, numbers []int64) candidates {
	r := &candidatesOf[S]{
		machine: algorithms.MachineBy[S](l.Settings.Kind, l.Settings.CalendarOf(l.Rate)), penalize: l.Settings.CountDenied,
		start: numbers[0] / 2, part: partOf(l.Rate.Window),
	}
	for _, n := range numbers {
		of := l.Overridden(n)
		r.limits = append(r.limits, of.Effective)
		r.answers = append(r.answers, Answers{})
	}
	return r
}

func (r *candidatesOf[S]) take(c *client, units, n, now, part int64, answered string) {
	if c.followed == 0 && n > r.start {
		r.follow(c, units, part)
	}
	if c.followed <= 0 || units == 0 {
		return
	}
	first := (int(c.followed) - 1) * len(r.limits)
	for i, l := range r.limits {
		s := &r.states[first+i]
		if r.machine.Take(s, l, now, units, 0).Allowed {
			continue
		}
		r.denials[first+i]++
		r.answers[i][answered]++
		if r.penalize {
			r.machine.Penalize(s, l, now, units)
		}
	}
}

// follow gives a client states. What he has sent in the window before counts as sent when its part
// began. The units are those that are taken now.
func (r *candidatesOf[S]) follow(c *client, units, part int64) {
	if len(r.states) >= maxFollowed*len(r.limits) {
		c.followed = isUnfollowed
		r.unfollowed++
		return
	}
	first := len(r.states)
	r.states = slices.Grow(r.states, len(r.limits))[:first+len(r.limits)]
	r.denials = slices.Grow(r.denials, len(r.limits))[:first+len(r.limits)]
	c.followed = int32(first/len(r.limits)) + 1
	for p := max(0, part-parts); p <= part; p++ {
		n := c.counts[p%(parts+1)]
		if p == part {
			n -= units
		}
		if n <= 0 {
			continue
		}
		for i, l := range r.limits {
			r.machine.Take(&r.states[first+i], l, p*r.part, n, 0)
		}
	}
}

func (r *candidatesOf[S]) tally(w *windowStats, all []Candidate) (notFollowed int64) {
	stands := int64(1) << w.clients.bits // for so many clients
	for i := range w.clients.all {
		one := &w.clients.all[i]
		if one.followed <= 0 {
			continue
		}
		first := (int(one.followed) - 1) * len(r.limits)
		for k := range all {
			n := r.denials[first+k]
			if n == 0 {
				continue
			}
			all[k].Clients += stands
			all[k].Requests += n * stands
			if w.isFailing(one) {
				all[k].Failing += stands
			}
		}
	}
	for k := range all {
		all[k].Answered = r.answers[k]
	}
	return r.unfollowed
}
