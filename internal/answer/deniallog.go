package answer

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

const (
	logPeriod = int64(time.Minute)
	// maxLines is how many keys have a line of their own in a minute; the others are in the
	// summary only.
	maxLines = 5
	// The keys with a line are remembered in sets, so that those of one set replace only each
	// other.
	rememberedSets = 16
	rememberedWays = 4
	// keyMarks bounds what the summary's count of keys can reach.
	keyMarks = 1 << 14
)

// A DenialLog writes of a zone's denials: a line when a key is denied for the first time in a
// window, a few of them a minute at most, and a summary of each minute that had more denials than
// lines. A botnet with a million keys gets no more lines than a few clients, and no more memory:
// about 4 kB a zone.
//
// It has no goroutine. A summary is written by the first denial after its minute, or by Tick.
//
// It is safe for concurrent use. Denials at the boundary of a minute may go to either summary.
type DenialLog struct {
	DenialLogOptions
	// quiet is how long a key that has had its line gets no other.
	quiet int64

	began atomic.Int64 // when this period did, 0 before its first denial
	lines atomic.Int64

	_ [64]byte // began and lines are read by every denial, the counts are written

	denials atomic.Int64
	shadows atomic.Int64 // of denials, those that nobody was denied by
	keys    atomic.Int64

	_ [64]byte

	marks      [keyMarks / 64]atomic.Uint64
	remembered [rememberedSets][rememberedWays]rememberedKey

	mu sync.Mutex // held to write a line
}

// rememberedKey is a key that has had its line.
type rememberedKey struct{ hash, until atomic.Int64 }

// DenialLogOptions say what a DenialLog writes of.
type DenialLogOptions struct {
	Logger *zap.Logger
	Zone   string
	// Window is the longest of the zone.
	Window time.Duration
	// Keys is the template of keys that are to be shown, nil for none.
	Keys *reqkey.Template
}

// NewDenialLog returns a log that has written nothing yet.
func NewDenialLog(o DenialLogOptions) *DenialLog {
	return &DenialLog{DenialLogOptions: o, quiet: max(int64(o.Window), logPeriod)}
}

// A LoggedDenial is a request that a zone denied. What a line shows of it is worked out only for a
// line.
type LoggedDenial struct {
	Request *http.Request
	// Key is nil for a request without one. Hash is its hash, whose bits must be evenly spread.
	Key  []byte
	Hash uint64
	// Limit is the one with the longest wait, Wait that wait.
	Limit int64
	Wait  time.Duration
	// Cost is what the request costs, 0 where all requests of the zone cost one unit.
	Cost int64
	// Shadow is set where the limit is not enforced, so that nobody was denied.
	Shadow bool
}

// Denied counts a denial at now (nanoseconds since the Unix epoch), and writes its line if its key
// is to have one.
func (l *DenialLog) Denied(now int64, r LoggedDenial) {
	if l.Count(now, r.Hash, r.Shadow) {
		l.WriteLine(now, r)
	}
}

// Count counts a denial, and reports whether WriteLine is to be called with it. Few are, and a
// LoggedDenial costs more than to count one.
func (l *DenialLog) Count(now int64, hash uint64, shadow bool) (line bool) {
	if l.isOver(now) {
		l.beginPeriod(now)
	}
	l.denials.Add(1)
	if shadow {
		l.shadows.Add(1)
	}
	l.mark(hash)
	return l.lines.Load() < maxLines && !l.remembers(hash, now)
}

// isOver reports whether a period is over, or none has begun. A clock that stepped back ends a
// period as well.
func (l *DenialLog) isOver(now int64) bool {
	began := l.began.Load()
	return began == 0 || now-began >= logPeriod || began-now >= logPeriod
}

// mark counts different keys by linear counting: each key sets one of keyMarks bits, so what is
// counted is a lower bound.
func (l *DenialLog) mark(hash uint64) {
	word, bit := &l.marks[hash>>6%uint64(len(l.marks))], uint64(1)<<(hash&63)
	if word.Load()&bit == 0 && word.Or(bit)&bit == 0 {
		l.keys.Add(1)
	}
}

// place returns where a key is remembered; for one that is not, where it is to be: in place of the
// key of its set that is to be forgotten first.
func (l *DenialLog) place(hash uint64) *rememberedKey {
	set := &l.remembered[hash>>32%rememberedSets]
	first := &set[0]
	for i := range set {
		if set[i].hash.Load() == int64(hash) {
			return &set[i]
		}
		if set[i].until.Load() < first.until.Load() {
			first = &set[i]
		}
	}
	return first
}

// remembers reports whether a key has had its line.
func (l *DenialLog) remembers(hash uint64, now int64) bool {
	p := l.place(hash)
	until := p.until.Load()
	return p.hash.Load() == int64(hash) && now < until && until-now <= l.quiet
}

// WriteLine writes the line of a key, if no other request is doing so.
func (l *DenialLog) WriteLine(now int64, r LoggedDenial) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines.Load() >= maxLines || l.remembers(r.Hash, now) {
		return
	}
	p := l.place(r.Hash)
	p.hash.Store(int64(r.Hash))
	p.until.Store(now + l.quiet)
	l.lines.Add(1)
	c := l.Logger.Check(zapcore.InfoLevel, "rate limit exceeded")
	if r.Shadow {
		c = l.Logger.Check(zapcore.InfoLevel, "rate limit exceeded, not enforced")
	}
	if c != nil {
		c.Write(l.fieldsOf(r)...)
	}
}

// Banned writes the line of a ban that begins, one for each: programs such as fail2ban go by it.
func (l *DenialLog) Banned(r LoggedDenial, length time.Duration) {
	c := l.Logger.Check(zapcore.InfoLevel, "rate limit banned")
	if r.Shadow {
		c = l.Logger.Check(zapcore.InfoLevel, "rate limit banned, not enforced")
	}
	if c != nil {
		c.Write(append(l.fieldsOf(r), zap.Duration("ban", length))...)
	}
}

// fieldsOf returns what a line shows of a denial. Text from the client is in printable ASCII and
// bounded; of the URL it is the path alone, as queries hold secrets. The ID tells keys apart.
// Early data proves no address, so its line has none.
func (l *DenialLog) fieldsOf(r LoggedDenial) []zap.Field {
	fields := []zap.Field{zap.String("zone", l.Zone), zap.Duration("wait", r.Wait), zap.Int64("limit", r.Limit)}
	if r.Cost > 0 {
		fields = append(fields, zap.Int64("cost", r.Cost))
	}
	printable := func(name, text string) zap.Field { return zap.String(name, reqkey.Printable(text)) }
	if reqkey.IsEarly(r.Request) {
		fields = append(fields, zap.Bool("early_data", true))
	} else {
		fields = append(fields, zap.String("remote_ip", reqkey.RemoteHost(r.Request)), printable("client_ip", reqkey.ClientIP(r.Request)))
	}
	fields = append(fields, printable("method", r.Request.Method), printable("host", r.Request.Host),
		printable("path", r.Request.URL.EscapedPath()))
	if r.Key == nil {
		return fields
	}
	fields = append(fields, zap.String("key_id", keys.IDOf(r.Key).Short()))
	if l.Keys != nil {
		fields = append(fields, zap.String("key", l.Keys.Text(r.Key)))
	}
	return fields
}

// Tick writes the summary of a minute that is over. It is called now and then, so that a summary
// does not wait for the next denial.
func (l *DenialLog) Tick(now int64) {
	if l.began.Load() != 0 && l.isOver(now) {
		l.Flush(now)
	}
}

// Flush writes the summary of the minute that is not over yet, when there will be no more denials.
func (l *DenialLog) Flush(now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endPeriod(now, 0)
}

// beginPeriod ends a period and begins another.
func (l *DenialLog) beginPeriod(now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver(now) { // else another request was first
		l.endPeriod(now, now)
	}
}

// endPeriod writes what the lines did not tell, and begins to count again; next is when.
func (l *DenialLog) endPeriod(now, next int64) {
	period := time.Duration(max(now-l.began.Load(), 0))
	denials, shadows, lines, keys := l.denials.Swap(0), l.shadows.Swap(0), l.lines.Swap(0), l.keys.Swap(0)
	for i := range l.marks {
		l.marks[i].Store(0)
	}
	if denials > lines {
		fields := []zap.Field{zap.String("zone", l.Zone), zap.Int64("denied", denials-shadows)}
		if shadows > 0 {
			fields = append(fields, zap.Int64("would_deny", shadows))
		}
		l.Logger.Info("rate limit exceeded, summary", append(fields, zap.Int64("keys_at_least", keys), zap.Duration("period", period))...)
	}
	l.began.Store(next)
}
