package ratesync

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

// redisReply is an error of the server.
type redisReply string

func (r redisReply) Error() string { return string(r) }
func (redisReply) RedisError()     {}

var (
	errNoMemory  = redisReply("OOM command not allowed")
	errWrongPass = redisReply("WRONGPASS invalid username-password pair")
)

// text is a line with its fields except the warning code, "" for none.
func (e *LogEntry) text() string {
	if e == nil {
		return ""
	}
	text := map[string]string{
		messageDown: "down", messageUp: "up", messageFlaps: "flaps", messageForeign: "foreign", messageNotSent: "not sent", messageForgot: "forgot",
	}[e.Message]
	core, logs := observer.New(zap.DebugLevel)
	zap.New(core).Log(e.Level, "", e.Fields...)
	fields := logs.All()[0].ContextMap()
	if _, coded := fields["code"]; coded != (e.Level == zapcore.WarnLevel) {
		text += " (a code belongs to warnings, and to no other line)"
	}
	delete(fields, "code")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, _, _ := strings.Cut(fmt.Sprint(fields[name]), ":")
		text += fmt.Sprintf(" %s=%s", name, value)
	}
	return text
}

// A history is what happens at which second, and what is logged then.
type history []struct {
	at   float64
	what func(h *Health, now time.Time) *LogEntry
	want string
}

func (all history) check(t *testing.T) {
	var h Health
	start := time.Unix(1_800_000_000, 0)
	for i, s := range all {
		if got := s.what(&h, start.Add(time.Duration(s.at*float64(time.Second)))).text(); got != s.want {
			t.Errorf("step %d, at %gs: logged %q, want %q", i, s.at, got, s.want)
		}
	}
}

// What happens in a history.
var (
	recordOf = func(name string, err error) func(*Health, time.Time) *LogEntry {
		return func(h *Health, now time.Time) *LogEntry { return h.Note(name, err, now) }
	}
	report = func(name string, err error) func(*Health, time.Time) *LogEntry {
		return func(h *Health, now time.Time) *LogEntry { return h.Report(name, err, now) }
	}
	foreign = func(zone string) func(*Health, time.Time) *LogEntry {
		return func(h *Health, now time.Time) *LogEntry { return h.ForeignKey(zone, "WRONGTYPE: …", now) }
	}
	notSent = func(zone string) func(*Health, time.Time) *LogEntry {
		return func(h *Health, now time.Time) *LogEntry { return h.NotSent(zone, 2, 3, 0, "OOM: …", now) }
	}
	forget = func(name string) func(*Health, time.Time) *LogEntry {
		return func(h *Health, _ time.Time) *LogEntry { h.Forget(name); return nil }
	}
	expire, sumFlaps = (*Health).Expire, (*Health).SumFlaps
)

func TestOutages(t *testing.T) {
	for name, h := range map[string]history{
		"nothing happens": {{0, recordOf("z", nil), ""}, {1, expire, ""}, {2, sumFlaps, ""}},
		"one outage": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, recordOf("z", errNoMemory), ""}, {3, recordOf("z", nil), "up after=3s"}, {4, recordOf("z", nil), ""},
		},
		"two fail, and one line for both": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, recordOf(HeartbeatName, errWrongPass), ""},
			{2, recordOf("z", nil), ""}, {3, recordOf(HeartbeatName, nil), "up after=3s"},
		},
		"nobody asked, and the next one knows why": {
			{0, report("y", redisconn.ErrDown), ""}, {.1, recordOf(HeartbeatName, errNoMemory), "down reason=OOM"}, {1, recordOf(HeartbeatName, nil), ""}, {2, report("y", nil), "up after=2s"},
		},
		"nobody asked, and nobody knows why": {
			{0, report("y", redisconn.ErrDown), ""}, {2, report("y", redisconn.ErrDown), "down reason=redis did not answer lately; it is tried again by itself"},
		},
		"what is reported works again": {
			{0, report("y", errNoMemory), "down reason=OOM"}, {2, report("y", nil), "up after=2s"}, {3, report("y", nil), ""},
		},
		"stopped by this node":                   {{0, recordOf("z", context.Canceled), ""}, {1, report("y", context.Canceled), ""}, {2, recordOf("z", nil), ""}},
		"a closed connection that works at once": {{0, recordOf("z", io.EOF), ""}, {.01, recordOf("z", nil), ""}},
		"a closed connection of which the next attempt knows more": {
			{0, recordOf("z", io.EOF), ""}, {.01, recordOf("z", errWrongPass), "down reason=WRONGPASS"}, {1, recordOf("z", nil), "up after=1s"},
		},
		"connections are closed over and over": {{0, recordOf("z", io.EOF), ""}, {.2, recordOf("z", io.EOF), "down reason=the connection to redis was closed (EOF); perhaps it restarts, wants TLS, has too many connections (maxclients), or is a proxy that doesn't know HELLO"}},
		"what is reported ends by itself": {
			{0, report("strict", errNoMemory), "down reason=OOM"}, {3, report("strict", errNoMemory), ""}, {7, expire, ""}, {9, expire, "up after=9s"},
		},
		"what is recorded does not": {{0, recordOf("z", errNoMemory), "down reason=OOM"}, {100, expire, ""}},
		"what has left does not count, once anything works": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, forget("z"), ""}, {2, recordOf("y", nil), "up after=2s"}, {3, recordOf("y", nil), ""},
			{70, recordOf("y", errNoMemory), "down reason=OOM"}, {71, recordOf("y", nil), "up after=1s"},
		},
		"another one fails when the first has left": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, forget("z"), ""}, {2, recordOf("y", errNoMemory), ""}, {3, recordOf("y", nil), "up after=3s"},
		},
	} {
		t.Run(name, h.check)
	}
}

func TestFlapping(t *testing.T) {
	for name, h := range map[string]history{
		"flapping is counted, and summed up when the minute is over": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, recordOf("z", nil), "up after=1s"},
			{2, recordOf("z", errNoMemory), ""}, {3, recordOf("z", nil), ""}, {4, recordOf("z", errNoMemory), ""}, {5, recordOf("z", nil), ""},
			{59, sumFlaps, ""}, {60, sumFlaps, "flaps outages=2"}, {61, sumFlaps, ""},
		},
		"flapping is counted in the next line": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, recordOf("z", nil), "up after=1s"},
			{2, recordOf("z", errNoMemory), ""}, {3, recordOf("z", nil), ""}, {61, recordOf("z", errNoMemory), "down outages=1 reason=OOM"},
			{62, recordOf("z", nil), "up after=1s"}, {130, sumFlaps, ""},
		},
		"an outage that begins too soon is logged when the minute is over": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, recordOf("z", nil), "up after=1s"},
			{2, recordOf("z", errNoMemory), ""}, {30, sumFlaps, ""}, {61, recordOf("z", errNoMemory), "down reason=OOM"}, {70, recordOf("z", nil), "up after=1m8s"},
		},
		"what leaves in an outage without a line is counted": {
			{0, recordOf("z", errNoMemory), "down reason=OOM"}, {1, recordOf("z", nil), "up after=1s"},
			{2, recordOf("z", errNoMemory), ""}, {3, forget("z"), ""}, {4, recordOf(HeartbeatName, nil), ""}, {60, sumFlaps, "flaps outages=1"},
		},
	} {
		t.Run(name, h.check)
	}
}

func TestLinesOfWhatIsRejected(t *testing.T) {
	for name, h := range map[string]history{
		"foreign keys, once a minute": {{0, foreign("a"), "foreign reason=WRONGTYPE zone=a"}, {30, foreign("b"), ""}, {60, foreign("b"), "foreign reason=WRONGTYPE zone=b"}},
		"counts that were not sent, once a minute and zone": {
			{0, notSent("a"), "not sent keys=2 reason=OOM requests=3 zone=a"}, {1, notSent("a"), ""}, {2, notSent("b"), "not sent keys=2 reason=OOM requests=3 zone=b"},
		},
	} {
		t.Run(name, h.check)
	}
}

// All totals are sent again at once after a loss, but no more often than every ten seconds; a loss
// that is sure is logged, no more often than every minute.
func TestHealthResends(t *testing.T) {
	const never, maybe, sure = 0, 1, 2
	type step struct {
		at   int
		lost int
		due  bool
		want string
	}
	for name, steps := range map[string][]step{
		"nothing is lost":       {{0, never, false, ""}},
		"a loss":                {{0, sure, true, "forgot"}, {11, never, false, ""}},
		"perhaps a loss":        {{0, maybe, true, ""}, {11, never, false, ""}},
		"one soon after":        {{0, sure, true, "forgot"}, {3, sure, false, ""}, {9, never, false, ""}, {10, never, true, ""}, {20, never, false, ""}},
		"one a minute after":    {{0, sure, true, "forgot"}, {60, sure, true, "forgot"}},
		"sure, and then unsure": {{0, maybe, true, ""}, {1, sure, false, ""}, {2, maybe, false, ""}, {10, never, true, "forgot"}},
	} {
		t.Run(name, func(t *testing.T) {
			var h Health
			start := time.Unix(1_800_000_000, 0)
			for i, s := range steps {
				if s.lost != never {
					h.NoteLoss(s.lost == sure)
				}
				due, _, e := h.Resend(start.Add(time.Duration(s.at) * time.Second))
				if got := e.text(); due != s.due || got != s.want {
					t.Errorf("step %d, at %ds: Resend() = %t and logs %q, want %t and %q", i, s.at, due, got, s.due, s.want)
				}
			}
		})
	}
}

// The reason for a table is its own, else that of all.
func TestHealthReason(t *testing.T) {
	var h Health
	now := time.Unix(1_800_000_000, 0)
	if got := h.Reason("z"); got != redisconn.ReasonUnreachable {
		t.Errorf("Reason() = %q where nothing fails, want %q", got, redisconn.ReasonUnreachable)
	}
	h.Note(HeartbeatName, errWrongPass, now)
	if got := h.Reason("z"); got != redisconn.Classify(errWrongPass) {
		t.Errorf("Reason() = %q, want that of the heartbeat", got)
	}
	h.Note("z", errNoMemory, now)
	if got := h.Reason("z"); got != redisconn.Classify(errNoMemory) || len(h.Reasons()) != 2 {
		t.Errorf("Reason() = %q of %v, want the table's own, of two", got, h.Reasons())
	}
}
