// What is known of how a Redis does, as plain values without a lock or I/O. Health says what to log
// of that and when all totals are to be sent again; its caller does both.

package ratesync

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// The names of what fails that is no table: the heartbeat, and what it finds of the shards of a
// Cluster.
const (
	HeartbeatName = "heartbeat"
	ShardsName    = "shards"
)

const (
	// warnInterval is the least time between two lines about the same trouble: a server that comes
	// and goes would fill the log.
	warnInterval = time.Minute
	// reportTTL is how long something fails that was reported once.
	reportTTL = 5 * time.Second
	// ResendInterval is the least time between two times that all totals are sent again: a server
	// short of memory forgets all the time.
	ResendInterval = 10 * time.Second
	// closedFor is how long connections must have been closed before that is given as the reason.
	closedFor = cycle.MinWait
	// downFor is how long Redis must have gone unasked before that is given as the reason:
	// heartbeats find a better one.
	downFor = 2 * time.Second
)

const (
	messageDown    = "sync with redis fails and is tried again; until it works, zones decide as their on_redis_loss says, by default with this node's counts and what it knows of the others"
	messageUp      = "sync with redis works again"
	messageFlaps   = "sync with redis has failed and works again"
	messageForeign = "redis rejects some counts of a zone, probably because another program uses their keys; other counts are not affected"
	messageNotSent = "the last counts of a zone could not be sent to redis; the other nodes never see these requests, and may admit as many more"
	messageTooMany = "the last refunds of a zone could not be sent to redis; the other nodes go on counting these requests, and may deny as many more"
	messageForgot  = "redis has lost counts that it had confirmed (a failover, FLUSHALL or eviction); sending this node's counts again"
)

// A Health is what is known of how a Redis does, and what was logged of it. The zero value is a
// Redis of which nothing bad is known. It is not safe for concurrent use.
type Health struct {
	failing map[string]failure
	since   time.Time // when the first of what fails began to

	warned   bool // that something fails
	warnedAt time.Time
	// unwarned is set while something fails that began too soon after the last line, and flaps
	// counts how often that was so, and passed.
	unwarned bool
	flaps    int

	// resendPending is set while all totals are to be sent again, and lossPending where the reason
	// is a loss that is sure.
	resendPending, lossPending bool
	resentAt                   time.Time

	logged map[string]time.Time // other lines, by what they are about
}

// failure is why something fails, and when that was reported if it was by Report.
type failure struct {
	why      string
	reported time.Time
}

// A LogEntry is a line for the log.
type LogEntry struct {
	Level   zapcore.Level
	Message string
	Fields  []zap.Field
}

// warnEntry is a warning with its code.
func warnEntry(code, message string, fields ...zap.Field) *LogEntry {
	return &LogEntry{zap.WarnLevel, message, append([]zap.Field{warning.Field(code)}, fields...)}
}

// Note notes how something went that is known by a name. It returns a line once on the way down
// and once on the way up, but not more than one pair a minute.
func (h *Health) Note(name string, err error, now time.Time) *LogEntry {
	switch {
	case errors.Is(err, context.Canceled):
		return nil // this node stopped it
	case err == nil:
		return h.recover(now, name)
	}
	return h.fail(name, failure{why: redisconn.Classify(err)}, now)
}

// Report is Note for something of which the end may not be noted: it is over as well when it
// was not reported for reportTTL.
func (h *Health) Report(name string, err error, now time.Time) *LogEntry {
	if err == nil || errors.Is(err, context.Canceled) {
		return h.Note(name, err, now)
	}
	return h.fail(name, failure{redisconn.Classify(err), now}, now)
}

// Expire ends what was not reported lately.
func (h *Health) Expire(now time.Time) *LogEntry {
	var over []string
	for name, f := range h.failing {
		if !f.reported.IsZero() && now.Sub(f.reported) > reportTTL {
			over = append(over, name)
		}
	}
	return h.recover(now, over...)
}

// Forget drops something that is not tried any more. If nothing else fails, the outage ends when
// something is next noted to work: that it has left does not show that anything does.
func (h *Health) Forget(name string) { delete(h.failing, name) }

// fail notes a failure. That a connection was closed doesn't say why: the next attempt does, and if
// it succeeds there was nothing to log. Neither does that Redis is not asked.
func (h *Health) fail(name string, f failure, now time.Time) *LogEntry {
	if h.failing == nil {
		h.failing = make(map[string]failure)
	}
	if !h.outage() {
		h.since = now
	}
	h.failing[name] = f
	switch {
	case h.warned, f.why == redisconn.ReasonClosed && now.Sub(h.since) < closedFor, f.why == redisconn.ReasonDown && now.Sub(h.since) < downFor:
		return nil
	case now.Sub(h.warnedAt) < warnInterval:
		h.unwarned = true // it is counted when it ends, or logged when the minute is over
		return nil
	}
	h.warned, h.unwarned, h.warnedAt = true, false, now
	return warnEntry(warning.SyncFails, messageDown, append(h.countFlaps(), zap.String("reason", f.why))...)
}

// outage reports whether something fails, or has failed and nothing was found to work since.
func (h *Health) outage() bool { return len(h.failing) > 0 || h.warned || h.unwarned }

// recover notes that some things work again.
func (h *Health) recover(now time.Time, names ...string) (e *LogEntry) {
	for _, name := range names {
		delete(h.failing, name)
	}
	if len(h.failing) > 0 {
		return nil
	}
	if h.warned {
		e = &LogEntry{zap.InfoLevel, messageUp, []zap.Field{zap.Duration("after", now.Sub(h.since))}}
	}
	if h.unwarned {
		h.flaps++
	}
	h.warned, h.unwarned = false, false
	return e
}

// SumFlaps returns a line about the outages that had none, when all is well and the last minute
// with a line is over.
func (h *Health) SumFlaps(now time.Time) *LogEntry {
	if h.flaps == 0 || len(h.failing) > 0 || now.Sub(h.warnedAt) < warnInterval {
		return nil
	}
	return &LogEntry{zap.InfoLevel, messageFlaps, h.countFlaps()}
}

// countFlaps returns the outages since the last line that no line was about, and begins a new
// count.
func (h *Health) countFlaps() (fields []zap.Field) {
	if h.flaps > 0 {
		fields = append(fields, zap.Int("outages", h.flaps))
	}
	h.flaps = 0
	return fields
}

// ForeignKey returns a line about a key that can't be synced, at most once a minute.
func (h *Health) ForeignKey(zone, why string, now time.Time) *LogEntry {
	if !h.mayLog("foreign", now) {
		return nil
	}
	return warnEntry(warning.ForeignKey, messageForeign, zap.String("zone", zone), zap.String("reason", why))
}

// NotSent returns a line about last counts that could not be sent: so many requests of so many
// keys, or where there are none, the refunds of so many keys. Of the tables of one zone, which
// count the same requests, the first one has it.
func (h *Health) NotSent(zone string, keys int, requests int64, refunded int, why string, now time.Time) *LogEntry {
	if !h.mayLog("unsent "+zone, now) {
		return nil
	}
	message, fields := messageNotSent, []zap.Field{zap.String("zone", zone), zap.Int("keys", keys), zap.Int64("requests", requests)}
	if requests == 0 {
		message = messageTooMany
	}
	if refunded > 0 {
		fields = append(fields, zap.Int("refunded_keys", refunded))
	}
	return warnEntry(warning.NotSent, message, append(fields, zap.String("reason", why))...)
}

// mayLog reports whether nothing was logged about this in the last minute, and notes that it is
// now.
func (h *Health) mayLog(about string, now time.Time) bool {
	if now.Sub(h.logged[about]) < warnInterval {
		return false
	}
	if h.logged == nil {
		h.logged = make(map[string]time.Time)
	}
	h.logged[about] = now
	return true
}

// NoteLoss notes that the server has lost something. sure is false where nobody can tell.
func (h *Health) NoteLoss(sure bool) {
	h.resendPending, h.lossPending = true, h.lossPending || sure
}

// ResendDue reports whether all totals are to be sent again now: at once after a loss, but not more
// often than every ResendInterval.
func (h *Health) ResendDue(now time.Time) bool {
	return h.resendPending && now.Sub(h.resentAt) >= ResendInterval
}

// Resend reports once whether all is to be sent again now, whether it is sure that something was
// lost, and what to log of it.
func (h *Health) Resend(now time.Time) (again, sure bool, e *LogEntry) {
	if !h.ResendDue(now) {
		return false, false, nil
	}
	if sure = h.lossPending; sure && h.mayLog("loss", now) {
		e = warnEntry(warning.CountsLost, messageForgot)
	}
	h.resendPending, h.lossPending, h.resentAt = false, false, now
	return true, sure, e
}

// Reasons are why things fail, by their names.
func (h *Health) Reasons() map[string]string {
	all := make(map[string]string, len(h.failing))
	for name, f := range h.failing {
		all[name] = f.why
	}
	return all
}

// Reason is why something can't be done: because it fails, or all does.
func (h *Health) Reason(name string) string {
	return cmp.Or(h.failing[name].why, h.failing[HeartbeatName].why, h.failing[ShardsName].why, redisconn.ReasonUnreachable)
}
