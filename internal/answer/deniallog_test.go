package answer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// logged is a denial log with what it wrote, as "first <key>" and "summary <denied> <keys>
// <period>".
type logged struct {
	*DenialLog
	seen *observer.ObservedLogs
}

func newLogged(window time.Duration) *logged {
	core, seen := observer.New(zapcore.InfoLevel)
	return &logged{denialLog(zap.New(core), window), seen}
}

// denialLog is the log of a zone that shows keys.
func denialLog(logger *zap.Logger, window time.Duration) *DenialLog {
	return NewDenialLog(DenialLogOptions{Logger: logger, Zone: "login", Window: window, Keys: byHeader})
}

var byHeader = func() *reqkey.Template {
	k, err := reqkey.Compile("{http.request.header.X}", 32, 64)
	if err != nil {
		panic(err)
	}
	return k
}()

func (l *logged) deny(at time.Duration, key string) { l.Denied(start+int64(at), denialOf(key)) }

// denialOf is a denied request with this key. Its hash is the same in each run: which keys share a
// mark must not be left to chance.
func denialOf(key string) LoggedDenial {
	r := request("/")
	r.Header["X"] = []string{key}
	raw, _ := byHeader.Append(nil, r, nil)
	sum := sha256.Sum256(raw)
	return LoggedDenial{
		Request: r, Key: raw, Hash: binary.BigEndian.Uint64(sum[:]), Limit: 5, Wait: time.Second,
	}
}

const start = 1_700_000_000_000_000_000

func (l *logged) lines() []string {
	var lines []string
	for _, e := range l.seen.TakeAll() {
		m := e.ContextMap()
		if strings.HasSuffix(e.Message, "summary") {
			lines = append(lines, fmt.Sprint("summary ", m["denied"], " ", m["keys_at_least"], " ", m["period"]))
			continue
		}
		lines = append(lines, fmt.Sprint("first ", m["key"]))
	}
	return lines
}

func (l *logged) want(t *testing.T, want ...string) {
	t.Helper()
	if got := l.lines(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("logged %q, want %q", got, want)
	}
}

func TestFirstDenialThenSummary(t *testing.T) {
	l := newLogged(5 * time.Minute)
	for i := range 100 {
		l.deny(time.Duration(i)*100*time.Millisecond, "a")
	}
	l.want(t, "first a")
	l.deny(10*time.Second, "b")
	l.want(t, "first b")
	l.deny(60*time.Second, "a")
	l.want(t, "summary 101 2 1m0s")
	l.deny(61*time.Second, "b")
	l.deny(121*time.Second, "c")
	l.want(t, "summary 2 2 1m1s", "first c")
	// The window of a is over: it is a first denial again. c alone was in the minute before, which
	// needs no summary.
	l.deny(5*time.Minute+time.Second, "a")
	l.want(t, "first a")
	l.Flush(start + int64(5*time.Minute+2*time.Second))
	l.want(t)
}

func TestShortWindowsAreQuietForAMinute(t *testing.T) {
	l := newLogged(time.Second)
	for i := range 60 {
		l.deny(time.Duration(i)*time.Second, "a")
	}
	l.want(t, "first a")
}

func TestSummaryNeedsNoFurtherDenial(t *testing.T) {
	l := newLogged(time.Minute)
	l.deny(0, "a")
	l.deny(time.Second, "a")
	l.Tick(start + int64(30*time.Second))
	l.want(t, "first a")
	l.Tick(start + int64(60*time.Second))
	l.want(t, "summary 2 1 1m0s")
	l.Tick(start + int64(180*time.Second))
	l.want(t)
	l.deny(200*time.Second, "b")
	l.deny(201*time.Second, "b")
	l.Flush(start + int64(202*time.Second))
	l.want(t, "first b", "summary 2 1 2s")
	l.Flush(start + int64(203*time.Second))
	l.want(t)
}

func TestBotnetGetsAFewLines(t *testing.T) {
	l := newLogged(time.Minute)
	for i := range 333_000 {
		l.deny(time.Duration(i)*600*time.Microsecond, fmt.Sprint(i)) // 200 s
	}
	firsts, summaries := 0, 0
	for _, line := range l.lines() {
		var denied, keys int
		if n, _ := fmt.Sscanf(line, "summary %d %d", &denied, &keys); n == 2 {
			summaries++
			if denied != 100_000 || keys > keyMarks || keys < keyMarks*99/100 {
				t.Error(line)
			}
			continue
		}
		firsts++
	}
	if summaries != 3 || firsts != 4*maxLines {
		t.Errorf("%d summaries and %d first denials, want 3 and %d", summaries, firsts, 4*maxLines)
	}
}

func TestSummaryNeverCountsTooManyKeys(t *testing.T) {
	for _, keys := range []int{1, 10, 100, 1000} {
		l := newLogged(time.Minute)
		for i := range 5000 {
			l.deny(0, fmt.Sprint(i%keys))
		}
		if got := int(l.keys.Load()); got > keys || got < keys*9/10 {
			t.Errorf("%d keys counted as %d", keys, got)
		}
	}
}

func TestLogSurvivesAClockThatSteps(t *testing.T) {
	l := newLogged(time.Minute)
	l.deny(time.Hour, "a")
	l.deny(time.Hour, "a")
	l.deny(0, "a") // an hour back
	l.want(t, "first a", "summary 2 1 0s", "first a")
	l.deny(time.Second, "a")
	l.deny(61*time.Second, "b")
	l.want(t, "summary 2 1 1m1s", "first b")
}

func TestKeyIsLoggedOnlyIfWanted(t *testing.T) {
	core, seen := observer.New(zapcore.InfoLevel)
	l := denialLog(zap.New(core), time.Minute)
	l.Keys = nil
	l.Denied(start, denialOf("secret"))
	m := seen.All()[0].ContextMap()
	if _, ok := m["key"]; ok || m["zone"] != "login" || m["remote_ip"] != "192.0.2.1" || m["limit"] != int64(5) || m["key_id"] == nil {
		t.Errorf("logged %v", m)
	}
}

func TestDenialsFromManySides(t *testing.T) {
	l := newLogged(time.Minute)
	const minutes, clients, each = 4, 8, 2000
	for minute := range minutes {
		var wg sync.WaitGroup
		for g := range clients {
			wg.Go(func() {
				for i := range each {
					l.deny(time.Duration(minute)*time.Minute, fmt.Sprint(g, i%7))
				}
			})
		}
		wg.Wait()
	}
	l.Flush(start + int64(minutes*time.Minute))
	var denied int64
	firsts, summaries := 0, 0
	for _, e := range l.seen.All() {
		if n, ok := e.ContextMap()["denied"].(int64); ok {
			denied += n
			summaries++
			continue
		}
		firsts++
	}
	if denied != minutes*clients*each || summaries != minutes || firsts != minutes*maxLines {
		t.Errorf("%d denials in %d summaries and %d lines, want %d, %d, %d",
			denied, summaries, firsts, minutes*clients*each, minutes, minutes*maxLines)
	}
}

func quietLogger() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(io.Discard), zapcore.InfoLevel))
}

func TestDenialLogDoesNotAllocate(t *testing.T) {
	l, now := denialLog(quietLogger(), time.Minute), int64(start)
	r := denialOf("a")
	if n := testing.AllocsPerRun(1000, func() {
		now++
		l.Denied(now, r)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
