package simulate

import (
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

func (r response) isBefore(o response) bool { return r.At < o.At }

// maxHeld bounds the responses that are waited for, of trials as well. Beyond it the first one
// begins early.
const maxHeld = 1 << 18

// statusClientGone is what Caddy logs for a client that has gone.
const statusClientGone = 499

// response returns what the log tells of a response.
func (r *replay) response(rec *accesslog.Record) limits.Response {
	status := rec.Status
	if status == statusClientGone || status == http.StatusGatewayTimeout {
		status = 0 // the upstream was asked, and nobody knows what it would have answered
	}
	one := limits.Response{Status: status, At: rec.Start + int64(rec.Took)}
	r.policy.tell(&one, rec, rec.Fields[r.CostField])
	return one
}

// hold keeps what a request holds until its response begins.
func (r *replay) hold(h *limits.Held, rec *accesslog.Record) {
	r.pending.Push(response{h, r.response(rec)})
	if len(r.pending.All) > maxHeld {
		r.next()
	}
}

// begin has all responses begin that had begun before an instant, or then.
func (r *replay) begin(at int64) {
	for len(r.pending.All) > 0 && r.pending.All[0].At <= at {
		r.next()
	}
}

func (r *replay) next() {
	first := r.pending.Pop()
	first.held.Replay(first.Response)
}
