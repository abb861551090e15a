package ratelimit

import (
	"encoding/hex"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	logPeriod = int64(time.Minute)
	// firstsPerPeriod is how many keys have a line of their own in a minute; the others are in the summary only.
	firstsPerPeriod = 5
	// The keys with a line are remembered in sets, so that those of one set drive out only each other.
	rememberedSets = 16
	rememberedWays = 4
	// keyMarks bounds what the summary's count of keys can reach.
	keyMarks = 1 << 14
)

// A refusalLog writes of a zone's refusals: a line when a key is refused for the first time in a window, a few of them a minute at
// most, and a summary of each minute that had more refusals than lines. A botnet with a million keys gets no more lines than a few
// clients, and no more memory: about 4 kB a zone.
//
// It has no goroutine. A summary comes with the first refusal after its minute, or with tick.
//
// It is safe for concurrent use. Counts of refusals at the very turn of a minute may go to either summary.
type refusalLog struct {
	zone   string
	logKey bool
	// quiet is how long a key that has had its line gets no other.
	quiet int64

	began  atomic.Int64 // when this period did, 0 before its first refusal
	firsts atomic.Int64
	empty  atomic.Bool

	_ [64]byte // began and firsts are read by every refusal, the counts are written

	refusals atomic.Int64
	keys     atomic.Int64

	_ [64]byte

	marks      [keyMarks / 64]atomic.Uint64
	remembered [rememberedSets][rememberedWays]struct{ hash, until atomic.Int64 }

	mu sync.Mutex // held to write a line
}

// newRefusalLog is for a zone whose longest window is window.
func newRefusalLog(zone string, window time.Duration, logKey bool) *refusalLog {
	return &refusalLog{zone: zone, logKey: logKey, quiet: max(int64(window), logPeriod)}
}

// about is whose refusal it is. What a line shows of it is worked out only for a line.
type about struct {
	request  *http.Request
	template *keyTemplate
	key      []byte // nil for a request without one
}

// refused notes a refusal at now (nanoseconds since the Unix epoch) of the key with this hash, whose bits must be evenly spread.
func (l *refusalLog) refused(logger *zap.Logger, now int64, hash uint64, d decision, a about) {
	if l.due(now) {
		l.turn(logger, now)
	}
	l.refusals.Add(1)
	l.mark(hash)
	if l.firsts.Load() >= firstsPerPeriod || l.remembers(hash, now) {
		return
	}
	l.first(logger, now, hash, d, a)
}

// due reports that a period is over, or none has begun. A clock that stepped back ends a period as well.
func (l *refusalLog) due(now int64) bool {
	began := l.began.Load()
	return began == 0 || now-began >= logPeriod || began-now >= logPeriod
}

// mark counts different keys: each sets one of keyMarks bits, so what is counted is at least there.
func (l *refusalLog) mark(hash uint64) {
	word, bit := &l.marks[hash>>6%uint64(len(l.marks))], uint64(1)<<(hash&63)
	if word.Load()&bit == 0 && word.Or(bit)&bit == 0 {
		l.keys.Add(1)
	}
}

func (l *refusalLog) remembers(hash uint64, now int64) bool {
	set := &l.remembered[hash>>32%rememberedSets]
	for i := range set {
		if set[i].hash.Load() == int64(hash) {
			until := set[i].until.Load()
			return now < until && until-now <= l.quiet
		}
	}
	return false
}

// first writes the line of a key, if no other request is doing so.
func (l *refusalLog) first(logger *zap.Logger, now int64, hash uint64, d decision, a about) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.firsts.Load() >= firstsPerPeriod || l.remembers(hash, now) {
		return
	}
	l.remember(hash, now)
	l.firsts.Add(1)
	c := logger.Check(zapcore.InfoLevel, "rate limit exceeded")
	if c == nil {
		return
	}
	fields := []zap.Field{zap.String("zone", l.zone), zap.Duration("wait", d.RetryAfter), zap.Int64("limit", d.Limit)}
	c.Write(a.appendFields(fields, l.logKey)...)
}

// appendFields appends what a line shows of a request and its key. Text from the client is in printable ASCII and bounded; of the URL it is the
// path alone, as queries hold secrets. The digest tells keys apart. Early data proves no address, so the
// line has none.
func (a about) appendFields(fields []zap.Field, withKey bool) []zap.Field {
	r := a.request
	if isEarly(r) {
		fields = append(fields, zap.Bool("early_data", true))
	} else {
		client := clientOrRemote(r, toText(caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey)))
		fields = append(fields, zap.String("remote_ip", remoteHost(r)), zap.String("client_ip", bounded([]byte(client))))
	}
	fields = append(fields, zap.String("method", bounded([]byte(r.Method))), zap.String("host", bounded([]byte(r.Host))),
		zap.String("path", bounded([]byte(r.URL.EscapedPath()))))
	if a.key == nil {
		return fields
	}
	id := table.IDOf(a.key)
	fields = append(fields, zap.String("key_digest", hex.EncodeToString(id[:4])))
	if withKey {
		fields = append(fields, zap.String("key", a.template.text(a.key)))
	}
	return fields
}

// remember takes the key's own place, or the one that is free or will be first.
func (l *refusalLog) remember(hash uint64, now int64) {
	set := &l.remembered[hash>>32%rememberedSets]
	place := &set[0]
	for i := range set {
		if set[i].hash.Load() == int64(hash) {
			place = &set[i]
			break
		}
		if set[i].until.Load() < place.until.Load() {
			place = &set[i]
		}
	}
	place.hash.Store(int64(hash))
	place.until.Store(now + l.quiet)
}

// tick writes the summary of a minute that is over. It is called now and then, so that a summary does not wait for the next refusal.
func (l *refusalLog) tick(logger *zap.Logger, now int64) {
	if l.began.Load() != 0 && l.due(now) {
		l.flush(logger, now)
	}
}

// flush writes the summary of the minute that is not over yet, when there will be no more refusals.
func (l *refusalLog) flush(logger *zap.Logger, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.summarize(logger, now)
	l.began.Store(0)
}

// turn ends a period and begins another.
func (l *refusalLog) turn(logger *zap.Logger, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due(now) {
		return // another request was first
	}
	l.summarize(logger, now)
	l.began.Store(now)
}

// summarize writes what the lines of first refusals did not say, and begins to count anew.
func (l *refusalLog) summarize(logger *zap.Logger, now int64) {
	began := l.began.Load()
	refusals, firsts, keys := l.refusals.Swap(0), l.firsts.Swap(0), l.keys.Swap(0)
	for i := range l.marks {
		l.marks[i].Store(0)
	}
	if refusals <= firsts {
		return
	}
	if c := logger.Check(zapcore.InfoLevel, "rate limit exceeded, summary"); c != nil {
		c.Write(
			zap.String("zone", l.zone), zap.Int64("refused", refusals), zap.Int64("keys_at_least", keys),
			zap.Duration("period", time.Duration(max(now-began, 0))),
		)
	}
}

// warnEmpty says once that keys come out empty, and what happens to such requests instead.
func (l *refusalLog) warnEmpty(logger *zap.Logger, template, instead string) {
	if l.empty.Load() || l.empty.Swap(true) {
		return
	}
	logger.Warn("a rate limit key came out empty; this is not reported again",
		warning.Field(warning.EmptyKey), zap.String("zone", l.zone), zap.String("key", template), zap.String("instead", instead))
}
