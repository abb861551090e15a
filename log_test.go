package ratelimit

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// logged is a refusal log with what it wrote, as "first <key>" and "summary <refused> <keys> <period>".
type logged struct {
	*refusalLog
	logger *zap.Logger
	seen   *observer.ObservedLogs
}

func newLogged(window time.Duration) *logged {
	core, seen := observer.New(zapcore.InfoLevel)
	return &logged{newRefusalLog("login", window, true), zap.New(core), seen}
}

var testSeed = maphash.MakeSeed()

func (l *logged) refuse(at time.Duration, key string) {
	hash := maphash.String(testSeed, key)
	l.refused(l.logger, start+int64(at), hash, decision{RetryAfter: time.Second, Limit: 5}, aboutKey(key))
}

var byHeader = func() *keyTemplate {
	k, err := compileKey("{http.request.header.X}", 32, 64)
	if err != nil {
		panic(err)
	}
	return k
}()

// aboutKey is a refusal of this key.
func aboutKey(key string) about {
	return about{request: request("/"), template: byHeader, key: byHeader.appendValue(nil, key)}
}

const start = 1_700_000_000_000_000_000

func (l *logged) lines() []string {
	var lines []string
	for _, e := range l.seen.TakeAll() {
		m := e.ContextMap()
		if strings.HasSuffix(e.Message, "summary") {
			lines = append(lines, fmt.Sprint("summary ", m["refused"], " ", m["keys_at_least"], " ", m["period"]))
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

func TestFirstRefusalThenSummary(t *testing.T) {
	l := newLogged(5 * time.Minute)
	for i := range 100 {
		l.refuse(time.Duration(i)*100*time.Millisecond, "a")
	}
	l.want(t, "first a")
	l.refuse(10*time.Second, "b")
	l.want(t, "first b")
	l.refuse(60*time.Second, "a")
	l.want(t, "summary 101 2 1m0s")
	l.refuse(61*time.Second, "b")
	l.refuse(121*time.Second, "c")
	l.want(t, "summary 2 2 1m1s", "first c")
	// The window of a is over: it is a first refusal again. c alone was in the minute before, which needs no summary.
	l.refuse(5*time.Minute+time.Second, "a")
	l.want(t, "first a")
	l.flush(l.logger, start+int64(5*time.Minute+2*time.Second))
	l.want(t)
}

func TestShortWindowsAreQuietForAMinute(t *testing.T) {
	l := newLogged(time.Second)
	for i := range 60 {
		l.refuse(time.Duration(i)*time.Second, "a")
	}
	l.want(t, "first a")
}

func TestSummaryNeedsNoFurtherRefusal(t *testing.T) {
	l := newLogged(time.Minute)
	l.refuse(0, "a")
	l.refuse(time.Second, "a")
	l.tick(l.logger, start+int64(30*time.Second))
	l.want(t, "first a")
	l.tick(l.logger, start+int64(60*time.Second))
	l.want(t, "summary 2 1 1m0s")
	l.tick(l.logger, start+int64(180*time.Second))
	l.want(t)
	l.refuse(200*time.Second, "b")
	l.refuse(201*time.Second, "b")
	l.flush(l.logger, start+int64(202*time.Second))
	l.want(t, "first b", "summary 2 1 2s")
	l.flush(l.logger, start+int64(203*time.Second))
	l.want(t)
}

func TestBotnetGetsAFewLines(t *testing.T) {
	l := newLogged(time.Minute)
	for i := range 1_000_000 {
		l.refuse(time.Duration(i)*200*time.Microsecond, fmt.Sprint(i)) // 200 s
	}
	firsts, summaries := 0, 0
	for _, line := range l.lines() {
		var refused, keys int
		if n, _ := fmt.Sscanf(line, "summary %d %d", &refused, &keys); n == 2 {
			summaries++
			if refused != 300_000 || keys > keyMarks || keys < keyMarks*99/100 {
				t.Error(line)
			}
			continue
		}
		firsts++
	}
	if summaries != 3 || firsts != 4*firstsPerPeriod {
		t.Errorf("%d summaries and %d first refusals, want 3 and %d", summaries, firsts, 4*firstsPerPeriod)
	}
}

func TestSummaryNeverCountsTooManyKeys(t *testing.T) {
	for _, keys := range []int{1, 10, 100, 1000} {
		l := newLogged(time.Minute)
		for i := range 5000 {
			l.refuse(0, fmt.Sprint(i%keys))
		}
		if got := int(l.keys.Load()); got > keys || got < keys*9/10 {
			t.Errorf("%d keys counted as %d", keys, got)
		}
	}
}

func TestLogSurvivesAClockThatSteps(t *testing.T) {
	l := newLogged(time.Minute)
	l.refuse(time.Hour, "a")
	l.refuse(time.Hour, "a")
	l.refuse(0, "a") // an hour back
	l.want(t, "first a", "summary 2 1 0s", "first a")
	l.refuse(time.Second, "a")
	l.refuse(61*time.Second, "b")
	l.want(t, "summary 2 1 1m1s", "first b")
}

func TestKeyIsLoggedOnlyIfWanted(t *testing.T) {
	core, seen := observer.New(zapcore.InfoLevel)
	l := newRefusalLog("login", time.Minute, false)
	l.refused(zap.New(core), start, 1, decision{Limit: 5}, aboutKey("secret"))
	m := seen.All()[0].ContextMap()
	if _, ok := m["key"]; ok || m["zone"] != "login" || m["remote_ip"] != "192.0.2.1" || m["limit"] != int64(5) || m["key_digest"] == nil {
		t.Errorf("logged %v", m)
	}
}

// A line names who was refused and what for, and what a client sent does no harm in it. Of the key it has a digest, and the text only if wanted.
func TestLineOfARefusal(t *testing.T) {
	const secret = "sk-0123456789"
	digest := fmt.Sprintf("%x", sha256.Sum256(append([]byte{tagText, byte(len(secret))}, secret...)))[:8]
	for _, logKey := range []bool{false, true} {
		options := "log_key off\n"
		if logKey {
			options = "log_key\n"
		}
		s := startCaddy(t, "servers {\ntrusted_proxies static 127.0.0.1\ntrusted_proxies_strict\n}",
			"rate_limit {\n"+options+zoneBlock(fmt.Sprint("line-", logKey), "limit 0/1h\nkey {http.request.header.X-Api-Key}")+"}\nrespond ok")
		hostile := "/%0d%0a%1b[31m%22%7d\u202e/" + strings.Repeat("long", 100)
		a, err := s.get(t.Context(), "HTTP/1.1", header("X-Api-Key", secret), header("X-Forwarded-For", "198.51.100.7"), func(r *http.Request) {
			r.Method = "REPORT"
			u, err := r.URL.Parse(hostile + "?token=" + secret)
			if err != nil {
				t.Fatal(err)
			}
			r.URL = u
		})
		if err != nil || a.status != http.StatusTooManyRequests {
			t.Fatalf("%d, %v", a.status, err)
		}
		written, err := os.ReadFile(s.log)
		if err != nil {
			t.Fatal(err)
		}
		var line map[string]any
		for text := range strings.Lines(string(written)) {
			if strings.Contains(text, `"rate limit exceeded"`) {
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatalf("%v in %s", err, text)
				}
			}
		}
		path, _ := line["path"].(string)
		delete(line, "path")
		for name, want := range map[string]any{
			"remote_ip": "127.0.0.1", "client_ip": "198.51.100.7", "method": "REPORT", "host": fmt.Sprint("localhost:", s.port), "key_digest": digest,
			"zone": fmt.Sprint("line-", logKey), "limit": 0.,
		} {
			if line[name] != want {
				t.Errorf("%s: %v, want %v", name, line[name], want)
			}
		}
		if !strings.HasPrefix(path, "/%0D%0A%1B") && !strings.HasPrefix(path, "/%0d%0a%1b") || len(path) > longestKeyText+len("...") {
			t.Errorf("path: %q", path)
		}
		if key := line["key"]; logKey != (key == secret) || logKey != strings.Contains(string(written), secret) {
			t.Errorf("log_key %v: the key is %v in\n%s", logKey, key, written)
		}
	}
}

func TestEmptyKeyIsWarnedAboutOnce(t *testing.T) {
	core, seen := observer.New(zapcore.WarnLevel)
	l := newRefusalLog("login", time.Minute, false)
	for range 3 {
		l.warnEmpty(zap.New(core), "{tenant}", "client_ip")
	}
	if seen.Len() != 1 || seen.All()[0].ContextMap()["instead"] != "client_ip" {
		t.Errorf("%d warnings: %v", seen.Len(), seen.All())
	}
}

func TestRefusalsFromManySides(t *testing.T) {
	l := newLogged(time.Minute)
	const minutes, clients, each = 4, 8, 2000
	for minute := range minutes {
		var wg sync.WaitGroup
		for g := range clients {
			wg.Go(func() {
				for i := range each {
					l.refuse(time.Duration(minute)*time.Minute, fmt.Sprint(g, i%7))
				}
			})
		}
		wg.Wait()
	}
	l.flush(l.logger, start+int64(minutes*time.Minute))
	var refused int64
	firsts, summaries := 0, 0
	for _, e := range l.seen.All() {
		if n, ok := e.ContextMap()["refused"].(int64); ok {
			refused += n
			summaries++
			continue
		}
		firsts++
	}
	if refused != minutes*clients*each || summaries != minutes || firsts != minutes*firstsPerPeriod {
		t.Errorf("%d refusals in %d summaries and %d lines, want %d, %d, %d",
			refused, summaries, firsts, minutes*clients*each, minutes, minutes*firstsPerPeriod)
	}
}

func quietLogger() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(io.Discard), zapcore.InfoLevel))
}

func TestRefusalLogDoesNotAllocate(t *testing.T) {
	l, logger, now := newRefusalLog("login", time.Minute, true), quietLogger(), int64(start)
	refusal := aboutKey("a")
	if n := testing.AllocsPerRun(1000, func() {
		now++
		l.refused(logger, now, 7, decision{}, refusal)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkRefusalLog(b *testing.B) {
	l, logger := newRefusalLog("login", time.Minute, true), quietLogger()
	refusal := aboutKey("a")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		hash := uint64(0)
		for pb.Next() {
			hash += 0x9e3779b97f4a7c15
			l.refused(logger, start, hash, decision{}, refusal)
		}
	})
}
