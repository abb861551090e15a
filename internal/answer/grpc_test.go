package answer

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A denied call gets the code of its reason. Early data is refused by HTTP, whose client sends it
// again by itself.
func TestReasonsOfDeniedCalls(t *testing.T) {
	for _, c := range []struct {
		reason                      Reason
		status                      int
		code, text, resend, message string
	}{
		{Denied, 200, "8", "rate limit exceeded, try again in 3 seconds", "2001", ""},
		{Denied, 200, "8", "slow down,%0A100 %25", "2001", "slow down,\n100 %"},
		{Unavailable, 200, "14", "rate limit unavailable, try again in 3 seconds", "2001", ""},
		{Barred, 200, "7", "these calls are not admitted for now", "-1", ""},
		{TooLarge, 200, "8", "This costs 11. At most 10 are admitted at once.", "-1", ""},
		{TooEarly, 425, "", "", "", ""},
	} {
		r := prepared(httptest.NewRequest(http.MethodPost, "/shop.Orders/List", strings.NewReader("a message")))
		r.ProtoMajor = 2
		r.Header.Set("Content-Type", "application/grpc")
		w := httptest.NewRecorder()
		err := NewResponder(Options{Status: 503, Headers: IETF, Message: c.message}).Deny(w, r, &Denial{Reason: c.reason, Zone: "z", Wait: 2*time.Second + 1, Cost: 11, Most: 10})
		h := w.Header()
		if err != nil || w.Code != c.status || h.Get("Grpc-Status") != c.code || h.Get("Grpc-Message") != c.text || h.Get("Grpc-Retry-Pushback-Ms") != c.resend {
			t.Errorf("reason %d: %d %v, %v, want %+v", c.reason, w.Code, h, err, c)
		}
		if c.code != "" && w.Body.Len() > 0 {
			t.Errorf("reason %d: a denied call has the body %q", c.reason, w.Body)
		}
	}
}

// HTTP/1.1 carries no calls: such a request is answered as any other, whatever it says that it is.
func TestACallNeedsHTTP2(t *testing.T) {
	for major, want := range map[int]bool{1: false, 2: true, 3: true} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.ProtoMajor = major
		r.Header.Set("Content-Type", "application/grpc")
		if got := isGRPC(r); got != want {
			t.Errorf("a POST of application/grpc over HTTP/%d is a call: %v, want %v", major, got, want)
		}
	}
}

func TestPushback(t *testing.T) {
	for wait, want := range map[time.Duration]int64{
		-1: 1000, 0: 1000, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Minute: 60_000, math.MaxInt64: math.MaxInt32,
	} {
		if got := pushback(wait, 0); got != want {
			t.Errorf("pushback(%v) = %d, want %d", wait, got, want)
		}
		if got := pushback(wait, 0.5); got < want || got > min(want+want/2, math.MaxInt32) {
			t.Errorf("pushback(%v) with a jitter of a half = %d, want %d and up to a half more", wait, got, want)
		}
	}
}

func TestMessagesOfGRPC(t *testing.T) {
	long := strings.Repeat("ä", 2000)
	for text, want := range map[string]string{
		"": "", "plain": "plain", "100%": "100%25", "a\r\nb\x00": "a%0D%0Ab%00", "ä": "%C3%A4", long: strings.Repeat("%C3%A4", 171),
	} {
		if got := percentEncoded(text); got != want {
			t.Errorf("percentEncoded(%.20q) = %q, want %q", text, got, want)
		}
	}
}
