package simulate

import (
	"container/heap"
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// response is one of which a unit waits: it decides whether its request counts. The log tells when
// it had ended, which stands in for when it began.
type response struct {
	held *limits.Held
	limits.Response
}

// maxHeld bounds the responses that are waited for. Beyond it the first one begins early.
const maxHeld = 1 << 16

// statusClientGone is what Caddy logs for a client that has gone.
const statusClientGone = 499

// hold keeps what a request holds until its response begins.
func (r *replay) hold(h *limits.Held, rec *accesslog.Record) {
	status := rec.Status
	if status == statusClientGone || status == http.StatusGatewayTimeout {
		status = 0 // the upstream was asked, and nobody knows what it would have answered
	}
	heap.Push((*responses)(&r.held), response{h, limits.Response{Status: status, At: rec.Start + int64(rec.Took)}})
	if len(r.held) > maxHeld {
		r.next()
	}
}

// begin has all responses begin that had begun before an instant, or then.
func (r *replay) begin(at int64) {
	for len(r.held) > 0 && r.held[0].At <= at {
		r.next()
	}
}

func (r *replay) next() {
	first := heap.Pop((*responses)(&r.held)).(response)
	first.held.Replay(first.Response)
}

// responses are those that are waited for, by when they began.
type responses []response

func (h responses) Len() int           { return len(h) }
func (h responses) Less(i, j int) bool { return h[i].At < h[j].At }
func (h responses) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *responses) Push(x any)        { *h = append(*h, x.(response)) }
func (h *responses) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
