// What goes between a table and the store that it syncs with, and how a table is told to sync.

package table

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A SyncConfig is what work without a request goes by.
type SyncConfig struct {
	// Params are the limit's. Where requests reserve, other nodes are told what is settled as well,
	// and no share is estimated from the attempts.
	Params algorithms.Params
	// Rate is the time between syncs, 0 where the table is not synced.
	Rate time.Duration
	// Early syncs keys before the next cycle when they are new or near their limit.
	Early bool
	// Charges is set where the store decides by itself and keeps no totals: Charges takes out what
	// was decided here, in place of Drain. The machine is Chargeable.
	Charges bool
	// AtOnce is set where the store decides on each request: what else changes is said at once.
	AtOnce bool
	// Certain leaves out what others have probably spent unseen. A key is synced early only where
	// it was not synced lately.
	Certain bool
	// Mixed says that limits differ from request to request. Params are then those of a request
	// without a number.
	Mixed bool
	// Regions is how many regions a key may be spent in before this node hears of it, 0 or 1 where
	// there is only this one.
	Regions int
	// Waker is called when there is a first urgent key.
	Waker cycle.Waker
	// After calls a function after a while, without a lock held. Nil calls none: then no key is
	// asked about before the next cycle unless a request comes.
	After func(time.Duration, func())

	// Limit and Epoch follow from Params: see Compile.
	Limit algorithms.Limit
	Epoch time.Duration
}

// IsShared reports whether what a table counts is synced.
func (b *SyncConfig) IsShared() bool { return b != nil && b.Rate != 0 }

// AsksAgain reports whether keys are asked about before the next cycle without a request.
func (b *SyncConfig) AsksAgain() bool { return b.Params.Reserves && b.Early && b.After != nil }

// Compile works out what follows from the settings.
func (b *SyncConfig) Compile() *SyncConfig {
	b.Limit, b.Epoch = b.Params.Compile(), b.Params.Epoch()
	return b
}

// A Message is one epoch of one key on its way to the store.
type Message struct {
	Key keys.Key
	ID  keys.ID
	// Epoch and its length.
	Epoch int64
	Span  time.Duration
	// Total and Attempts are this node's, in all, for the epoch: units, and requests. Push is false
	// where the store has them already.
	Total    int64
	Attempts int64
	Push     bool
	// Settled is what of Total is not reserved. Settles is set where requests reserve: else all is
	// settled, and Settled is 0.
	Settled int64
	Settles bool
	// At is when it was made, by the table's clock.
	At int64

	// Unsent is the part of Total that the store doesn't have and that still stands in a bucket.
	Unsent int64
	// Bucket is set in the message of a bucket's current epoch, which is about the key itself:
	// those of its other epochs follow. Only then are there a Level, which is the fill as this node
	// knows it, a Drain, which is what flows out in requests per millisecond, and Resend, which is
	// set where the store may have lost something: the level then counts where it is higher.
	Bucket bool
	Level  float64
	Drain  float64
	Resend bool

	// Reset is the one that the key counts under.
	Reset reset.Reset

	// Reasons are why totals are sent again.
	Reasons algorithms.Resend

	// Early is set in a sync that comes before the next cycle, and Lower where a request of the key
	// had a limit below that of the configuration.
	Early, Lower bool
}

// An Answer is what the store says to a Message.
type Answer struct {
	Message
	// Held was this node's total before the message, 0 if none.
	Held int64
	// Sum, SumAttempts and SumSettled are those of all nodes, after it.
	Sum, SumAttempts, SumSettled int64
	// Seen is the fill of the bucket before the message, drained until then. Known is set where the
	// store has one.
	Seen  float64
	Known bool
	// Regions is set where another region has something of the key, too.
	Regions bool
	// Failed is set where the store could not do this one; it is sent again.
	Failed bool
	// NewerReset is a reset that the store knows of. It has not done this one then, as that was
	// sent under an earlier reset; Failed is set as well.
	NewerReset reset.Reset
}

// EpochStamp is the stamp in the name of the message's epoch, 0 where it has the usual name.
func (m *Message) EpochStamp() int64 {
	if m.Reset.Covers(m.Epoch, m.Span) {
		return m.Reset.Stamp
	}
	return 0
}

// nameReset notes in messages of one key under which reset they are sent.
func nameReset(all []Message, r reset.Reset) {
	if r.Stamp == 0 {
		return
	}
	for i := range all {
		all[i].Reset = r
	}
}

// A Bucket is what the messages of a bucket tell of it: its level, how many drain from it in a
// window, and at Now when it was Synced last, 0 for never.
type Bucket struct {
	*SyncConfig
	Level       float64
	Rate        int64
	Synced, Now int64
}

// unheard is what the store had of this node before the message that counts here as unsent: what
// an answer was lost of, or is still to come. Of what stands in the bucket, the newest is what the
// message itself brings. Where unsent is not what came since the last answer, it is not known.
func (a *Answer) unheard(acked int64) int64 {
	switch more := max(0, a.Held-acked); {
	case !a.Push && a.Bucket:
		return more
	case !a.Push || a.Reasons&(algorithms.Moved|algorithms.Unconfirmed) != 0:
		return 0
	default:
		return max(0, min(more, a.Unsent-(a.Total-a.Held)))
	}
}

// seenOfOthers is the fill of the bucket without what is unheard of this node, 0 where there is no
// fill.
func seenOfOthers(l *algorithms.Ledger, answers []Answer) float64 {
	if !answers[0].Known {
		return 0
	}
	var mine int64
	for i := range answers {
		c, _ := l.At(answers[i].Epoch)
		mine += answers[i].unheard(c.Acked)
	}
	return max(0, answers[0].Seen-float64(mine))
}

// newlySent is how much the store has now of a count that it had not confirmed before. Where it has
// lost what it had confirmed of a bucket, and was only asked, that stays confirmed in the ledger.
// It is sent again, but is nothing new to a fill, which has it or is told it as a level.
func (a *Answer) newlySent(b *SyncConfig, l *algorithms.Ledger, had algorithms.EpochCount, lost bool) int64 {
	if a.Push {
		return max(0, a.Total-had.Acked)
	}
	if lost && b.Params.Kind.Traits().Draining {
		l.Put(a.Epoch, had)
	}
	return 0
}

// fillMessages adds what the messages of a key say of its bucket. No more counts as unsent than can
// still stand there, and what flows out in two intervals: so much is usual between two syncs. All
// that a node has admitted that was cut off for long would lock everybody out when it comes back.
func fillMessages(all []Message, l *algorithms.Ledger, b Bucket) {
	m := &all[0]
	m.Level, m.Drain = b.Level, float64(b.Rate)/time.Duration(b.Limit.Window).Seconds()/1000
	m.Resend = l.Resend&^(algorithms.Returned|algorithms.Settled) != 0
	m.Push = m.Push || m.Resend && m.Level > 0 // who admitted it may be gone
	if l.Resend&(algorithms.Moved|algorithms.Unconfirmed) != 0 {
		return // it counts as unsent for another reason, and is in the level
	}
	usual := 2 * b.SyncConfig.Rate
	if b.Synced != 0 {
		usual = min(usual, max(0, time.Duration(b.Now-b.Synced)))
	}
	stands := int64(min(math.Ceil(m.Level)+math.Ceil(m.Drain*float64(usual)/1e6), math.MaxInt64/2))
	for i := range all {
		if c, ok := l.At(all[i].Epoch); ok {
			all[i].Unsent = min(c.Unsent(), stands)
			stands -= all[i].Unsent
		}
	}
}
