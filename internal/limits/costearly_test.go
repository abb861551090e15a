package limits

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A request in early data that costs more than is ever admitted there is told to come again after
// the handshake: its limit may be higher then. No line names the owner of the address.
func TestWhatCostsTooMuchInEarlyData(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	s := config.Settings{
		Name: "dear-early", Key: reqkey.Default, MaxKeys: 10, IPv4Prefix: 32, IPv6Prefix: 64, Enforce: config.Enforce(1),
		Limits: []config.Rate{{Limit: 10, From: "{http.request.header.L}", Window: 30 * 24 * time.Hour}},
		Cost:   config.Cost{Terms: []config.CostTerm{{Bytes: true}}},
	}
	z, err := NewZone(ZoneOptions{Settings: s, Logger: zap.New(core), Once: new(warning.Once)})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Release()
	for _, early := range []bool{true, false} {
		r := prepared("198.51.100.7", early)
		r.ContentLength = 50
		r.Header = http.Header{"L": {"100"}}
		e, err := Evaluate([]*Zone{z}, r, clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		if e.Denied != early || early && e.Denial.Reason != answer.TooEarly || logs.Len() != 0 {
			t.Errorf("early data %t: denied %t, reason %s, %d lines; want 425 in early data, and then admitted", early, e.Denied, e.Denial.Reason, logs.Len())
		}
		e.Free()
	}
}
