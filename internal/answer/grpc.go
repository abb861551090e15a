package answer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// A gRPC client reads the status of a call from grpc-status, and takes any HTTP status but 200 for
// a fault of the network. So a denied call is answered in one HEADERS frame that ends the stream,
// "Trailers-Only" in the protocol, and never goes to an error route.
//
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#responses

// The codes of gRPC that denials have.
const (
	grpcPermissionDenied  = "7"
	grpcResourceExhausted = "8"
	grpcUnavailable       = "14"
)

const grpcType = "application/grpc"

// maxGRPCMessage bounds grpc-message: clients reject more than some kB of headers.
const maxGRPCMessage = 1024

// isGRPC reports whether a request is a gRPC call. A call is always a POST, over HTTP/2 or later.
// With another method the status 200 could be stored by a cache, so whoever is denied could put
// empty pages there.
func isGRPC(r *http.Request) bool {
	if r.Method != http.MethodPost || r.ProtoMajor < 2 {
		return false
	}
	values := r.Header["Content-Type"]
	if len(values) != 1 {
		return false
	}
	v := values[0]
	if len(v) < len(grpcType) || !strings.EqualFold(v[:len(grpcType)], grpcType) {
		return false
	}
	// application/grpc-web is another protocol, whose clients read the body.
	return len(v) == len(grpcType) || v[len(grpcType)] == '+' || v[len(grpcType)] == ';'
}

// textOf returns what a denied call says: the handler's message, or a sentence.
func (o *Responder) textOf(repl *caddy.Replacer, a *reply, seconds int64) string {
	if o.message != nil {
		return string(o.appendMessage(nil, repl))
	}
	unit := " seconds"
	if seconds == 1 {
		unit = " second"
	}
	return a.text + ", try again in " + strconv.FormatInt(seconds, 10) + unit
}

// pushback returns a wait in whole milliseconds, plus up to the share jitter of it at random. Where
// the wait is not known it is a second.
func pushback(wait time.Duration, jitter float64) int64 {
	if wait <= 0 {
		wait = time.Second
	}
	ms := int64(wait / time.Millisecond)
	if wait%time.Millisecond > 0 {
		ms++
	}
	ms = min(ms, math.MaxInt32)
	if jitter > 0 {
		ms += rand.Int64N(int64(float64(ms)*min(jitter, 1)) + 1)
	}
	return min(ms, math.MaxInt32)
}

// writeGRPC ends a call without a message. A pushback below 0 tells the client not to try again.
func writeGRPC(w http.ResponseWriter, code, text string, pushback int64) {
	h := w.Header()
	delete(h, "Content-Length") // of some earlier handler's body
	h["Content-Type"] = []string{grpcType}
	h["Grpc-Status"] = []string{code}
	h["Grpc-Message"] = []string{percentEncoded(text)}
	h["Grpc-Retry-Pushback-Ms"] = []string{strconv.FormatInt(pushback, 10)}
	w.WriteHeader(http.StatusOK)
}

// percentEncoded writes a text as grpc-message has it, and cuts it where it is long.
func percentEncoded(text string) string {
	var b strings.Builder
	for i := 0; i < len(text) && b.Len() < maxGRPCMessage; i++ {
		if c := text[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
