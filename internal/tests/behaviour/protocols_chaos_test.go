//go:build chaos

package behaviour_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// By HTTP/1.1 slow clients hold their places until their turns, also where they go away before:
// then nothing is left of them.
func TestSlowClientsOfHTTP1HoldNoMoreThanTheQueue(t *testing.T) {
	const places, drain = 5, time.Second // a place is free again after each drain
	s := sitetest.StartCaddy(t, "", "rate_limit {\n zone slow {\n limit 5/5s\n algorithm leaky_bucket\n queue 5\n key {http.request.header.K}\n}\n}\nrespond ok")
	config := s.Clients["HTTP/1.1"].Transport.(*http.Transport).TLSClientConfig
	var slow []*tls.Conn
	for range 30 {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port), config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		slow = append(slow, conn)
	}
	start, waited := time.Now(), false
	waiting := func() int {
		t.Helper()
		now := sitetest.InQueue(t)
		waited = waited || now > 0
		// A goroutine whose wait is over counts until it has run, which a busy machine may delay:
		// it is one of those whose place has drained since the start.
		if drained := int(time.Since(start) / drain); now > places+drained {
			t.Errorf("%d slow clients waited at once, want at most %d and the %d places drained since", now, places, drained)
		}
		return now
	}
	for _, conn := range slow {
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost:%d\r\nK: slow\r\nContent-Length: 1000\r\n\r\nx", s.Port)
		waiting()
	}
	redistest.Eventually(t, "slow clients wait", func() bool { waiting(); return waited })
	for _, protocol := range protocols {
		s.Answers(protocol, 1, http.StatusOK, 1, sitetest.Header("K", protocol))
	}
	for _, conn := range slow {
		_ = conn.Close()
	}
	redistest.Eventually(t, "nobody is left in the queue", func() bool { return waiting() == 0 })
}
