package limits

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// UncountedRequests is how many requests a zone may have without counting one until that is warned
// of.
const UncountedRequests = 1000

// Responses are how many of a zone of a handler have begun, and how many of them counted by
// count_responses. It is safe for concurrent use.
type Responses struct {
	All, Counted atomic.Int64

	mu       sync.Mutex
	statuses map[int]int // of the first ones
}

// countsResponse reports whether a response counts. Where nobody knows the status, it does:
// otherwise a guess would be free for a client that does not wait for the answer.
func (z *Zone) countsResponse(r Response) bool {
	return z.CountResponses == nil || r.Status == 0 || z.CountResponses.Match(r.Status, r.Header)
}

// noteResponse notes a response that begins, and reports whether it counts. It warns once where
// none of the first ones does.
func (z *Zone) noteResponse(r Response) (counts bool) {
	counts = z.countsResponse(r)
	if z.CountResponses == nil || r.Status == 0 {
		return counts
	}
	n := z.Responses.All.Add(1)
	if counts {
		z.Responses.Counted.Add(1)
	} else if n <= UncountedRequests && z.Responses.Counted.Load() == 0 {
		z.Responses.note(r.Status)
		if n == UncountedRequests {
			z.warnUncounted()
		}
	}
	return counts
}

func (s *Responses) note(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.statuses == nil {
		s.statuses = map[int]int{}
	}
	s.statuses[status]++
}

// String returns the statuses that were noted, those that came most often first.
func (s *Responses) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, status := range slices.SortedFunc(maps.Keys(s.statuses), func(a, b int) int {
		return cmp.Or(s.statuses[b]-s.statuses[a], a-b)
	}) {
		all = append(all, fmt.Sprintf("%d: %d", status, s.statuses[status]))
	}
	return strings.Join(all, ", ")
}

func (z *Zone) warnUncounted() {
	z.Once.Warn(z.Logger, warning.NothingCounted, fmt.Sprintf("zone %q: it has limited nobody, as `count_responses%s` matched none of its first %d responses; "+
		"send a request that should count, like a wrong password, and write the status of its answer there", z.Name, config.ResponsesText(z.CountResponses), UncountedRequests),
		zap.String("statuses", z.Responses.String()))
}
