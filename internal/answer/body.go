package answer

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2"
)

// The problem types and their titles are those that the draft registers with IANA.
const (
	quotaExceeded   = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded"`
	abnormalUsage   = `{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal Usage Detected"`
	reducedCapacity = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity"`
)

// tooEarlyProblem is the answer to early data. It names no limit, as none has been asked.
var tooEarlyProblem = []byte(`{"type":"about:blank","title":"Too Early","status":425,` +
	`"detail":"The address of the client is not proven yet. Send the request again after the TLS handshake."}`)

// barredProblem is the answer to a key that an operator has barred.
var barredProblem = []byte(`{"type":"about:blank","title":"Forbidden","status":403,"detail":"These requests are not admitted for now."}`)

// appendMessage appends the handler's message with what repl has for its placeholders.
func (o *Responder) appendMessage(b []byte, repl *caddy.Replacer) []byte {
	if repl == nil {
		return o.message.appendTo(b, func(string) (any, bool) { return nil, false })
	}
	return o.message.appendTo(b, repl.Get)
}

// writeResponse writes status and body. That a client is gone is not an error worth reporting.
func writeResponse(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	delete(w.Header(), "Content-Length") // of some earlier handler's body
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

// problem begins problem details (RFC 9457).
func problem(begin string, status int) []byte {
	return []byte(begin + `,"status":` + strconv.Itoa(status) + `,"detail":"`)
}

// appendCosts says that a request costs too much.
func (d *Denial) appendCosts(b []byte) []byte {
	return fmt.Appendf(b, "This costs %d. At most %d are admitted at once.", d.Cost, d.Most)
}

// appendProblem appends problem details.
func (o *Responder) appendProblem(b []byte, d *Denial, seconds int64) []byte {
	b = append(b, o.replies[d.Reason].problem...)
	switch {
	case d.Reason == TooLarge:
		b = append(d.appendCosts(b), '"')
	case seconds == 1:
		b = append(b, `Try again in 1 second."`...)
	default:
		b = append(b, `Try again in `...)
		b = strconv.AppendInt(b, seconds, 10)
		b = append(b, ` seconds."`...)
	}
	if d.Cost > 0 {
		b = append(b, `,"cost":`...)
		b = strconv.AppendInt(b, d.Cost, 10)
	}
	if d.Reason != Unavailable {
		b = appendViolated(b, d.Results)
	}
	return append(b, '}')
}

// appendViolated appends the names of the policies that denied, if any did: a zone that denies
// requests without a key has none.
func appendViolated(b []byte, results []Result) []byte {
	separator := `,"violated-policies":[`
	for i := range results {
		if results[i].Allowed || results[i].Shadow {
			continue
		}
		b = append(b, separator...)
		separator = ","
		p := results[i].Policy
		if p.quoted != "" {
			b = append(b, p.quoted...) // a string of a structured field is one of JSON as well
			continue
		}
		quoted, _ := json.Marshal(p.Name) // of a string, which can't fail
		b = append(b, quoted...)
	}
	if separator == "," {
		b = append(b, ']')
	}
	return b
}
