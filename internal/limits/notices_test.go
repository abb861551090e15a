package limits

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// What is said once says for how long: each configuration has notices of its own.
func TestSaidOnceForEachConfiguration(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	z := &config.Settings{Name: "api", Key: "{x}"}
	rate := config.Rate{Limit: 60, Window: 30 * 24 * time.Hour, From: "{plan}"}
	for range 2 {
		var n Notices
		var once warning.Once
		for range 3 {
			n.Empty(z, nil, zap.New(core))
			noticeValue(z, rate, "x", false, &once, zap.New(core))
		}
	}
	if n := logs.Len(); n != 4 {
		t.Errorf("%d lines of two configurations, want 2 of each", n)
	}
	quiet := &warning.Once{Quiet: []string{warning.EmptyKey, warning.AmbiguousKey, warning.LimitValue}}
	new(Notices).Empty(z, quiet, zap.New(core))
	new(Notices).Ambiguous(z, quiet, zap.New(core))
	noticeValue(z, rate, "x", false, quiet, zap.New(core))
	if n := logs.Len(); n != 4 {
		t.Errorf("%d lines of a configuration that is quiet, want none", n-4)
	}
	for _, line := range logs.All() {
		if !strings.HasSuffix(line.Message, "more of this zone are not reported until the next reload") {
			t.Errorf("logged: %s", line.Message)
		}
	}
}
