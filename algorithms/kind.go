package algorithms

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A Kind is an algorithm, as the option of that name says it.
type Kind uint8

const (
	// SlidingWindow estimates the requests of the window that ends now from counts of aligned ones:
	// the current one, plus the one before in the proportion in which the sliding window still
	// covers it. Kong's rate-limiting-advanced and Cloudflare ("How we built rate limiting capable
	// of scaling to millions of domains", 2017) work so. SubWindows cuts the window finer: n whole
	// sub-windows and one that fades.
	//
	// Bound: the weighted count never passes Limit. The true count of any interval of the window's
	// length can, as a fading count says nothing of where in its sub-window the requests stood: at
	// most 2 x Limit with one sub-window, and only when a full burst stands at its end. With n
	// sub-windows the excess is what stood in one of them and has faded, at most Limit; for
	// arrivals no burstier than a sub-window, near Limit / n.
	//
	// The window that counts is SubWindows whole sub-windows: Window less a rest of fewer than
	// SubWindows nanoseconds.
	SlidingWindow Kind = iota

	// FixedWindow counts the requests of each aligned window and starts the next at 0. It is the
	// oldest of rate limits: Kong's rate-limiting plugin, RFC 6585's examples and most public APIs
	// work so. Windows are aligned to the Unix epoch, in UTC.
	//
	// Bound: at most Limit in an aligned window, and so at most 2 x Limit in any interval of the
	// window's length, half before a boundary and half after it.
	FixedWindow

	// SlidingLog remembers when each request of the last Window came, and admits another while they
	// are fewer than Limit. It is the sliding log of Figma's limiter ("An alternative approach to
	// rate limiting", 2017) and of caddy-ratelimit's ring buffer.
	//
	// Bound: exactly Limit in any interval of the window's length, half open: what came at t no
	// longer counts at t + Window. That is for what this node admits. What others spent is known by
	// sixteenths of the window, each of which counts until its end has left the window, so up to
	// Window / 16 too long; and so is all that a store has decided.
	//
	// Memory: 8 bytes for each instant at which something was admitted, and less than twice that
	// with the room to grow, so below 16 x Limit a key.
	SlidingLog

	// TokenBucket holds up to Burst tokens and gains Limit of them in every Window, evenly; a
	// request takes one for each unit it costs. It is the bucket of RFC 2697 (less its colours),
	// of nginx's and Stripe's limiters and of golang.org/x/time/rate.
	//
	// Bound: at most Burst + Limit x t / Window in any interval of length t. In one window that is
	// Burst + Limit.
	TokenBucket

	// GCRA is the generic cell rate algorithm (ITU-T I.371, annex A; ATM Forum Traffic Management
	// 4.1), as in redis-cell, throttled and governor. It computes with times: one request is
	// emitted every T = Window / Limit, and the theoretical arrival time TAT of the next one moves
	// on by T with every unit. A request is admitted while TAT is no more than a tolerance ahead of
	// the clock once it has been moved.
	//
	// With a tolerance of Burst x T that is a token bucket of size Burst to the nanosecond, because
	// TAT - now = deficit x T. So the two share a machine. What is kept is the deficit: a TAT is an
	// instant that was worked out with one limit and says nothing under another.
	//
	// Bound: that of TokenBucket. Burst 1 spaces all requests by T.
	GCRA

	// LeakyBucket is a queue: requests leave it one every Window / Limit, and one that comes when
	// it is full is denied. It is the leaky bucket as a queue (Tanenbaum, Computer Networks, 5.4.2)
	// and nginx's limit_req with burst. Result.Delay is how long an admitted request has to wait;
	// waiting is the caller's part.
	//
	// Bound: requests start no closer than Window / Limit, so at most 1 + Limit x t / Window start
	// in any interval of length t, and Queue more are admitted to wait. None waits longer than
	// Queue x Window / Limit, except for what other nodes admitted meanwhile. A request of several
	// units starts when its first may, and holds the queue for all of them.
	LeakyBucket
)

// Traits are what sets one kind apart from the others. What is not here, it has in common with
// those that count alike.
type Traits struct {
	// Code is the letter of the kind in the names of keys in Redis.
	Code byte
	// TakesBurst is set where it has a burst that is not its limit, TakesSubWindows where its
	// window can be cut into sub-windows.
	TakesBurst, TakesSubWindows bool
	// Queues is set where requests that it admits wait in a queue, whose length is an option. Its
	// machine is a Leaver then.
	Queues bool
	// Fixed is set where a window begins empty, so that all of the limit comes back at once.
	Fixed bool
	// Windowed is set where it decides by counts of aligned windows, and Draining where it decides
	// by a bucket that drains.
	Windowed, Draining bool
	// Waits are those that clients are told of a limit that has admitted.
	Waits Want

	name    string // as an option
	machine any    // a Machine of its state
}

var traits = [...]Traits{
	SlidingWindow: {name: "sliding_window", Code: 's', Windowed: true, machine: new(window), TakesSubWindows: true, Waits: WantNext},
	FixedWindow:   {name: "fixed_window", Code: 'f', Windowed: true, machine: new(window), Fixed: true, Waits: WantReset},
	SlidingLog:    {name: "sliding_log", Code: 'l', machine: new(log), Waits: WantNext},
	TokenBucket:   {name: "token_bucket", Code: 't', Draining: true, machine: new(bucket), TakesBurst: true, Waits: WantNext},
	GCRA:          {name: "gcra", Code: 'g', Draining: true, machine: new(bucket), TakesBurst: true, Waits: WantNext},
	LeakyBucket:   {name: "leaky_bucket", Code: 'q', Draining: true, machine: new(queue), Queues: true, Waits: WantNext},
}

// Traits returns what sets k apart from other kinds.
func (k Kind) Traits() *Traits { return &traits[k] }

// KindNames returns the names of all kinds, each at the index of its Kind.
func KindNames() []string {
	names := make([]string, len(traits))
	for k := range traits {
		names[k] = traits[k].name
	}
	return names
}

// String returns the name of k as an option.
func (k Kind) String() string { return traits[k].name }

// ByState returns the value for the type of state that k has: WindowState, BucketState or LogState.
// It is for what is generic in that type, and for what is in Redis in its place.
func ByState[T any](k Kind, window, bucket, log T) T {
	switch {
	case traits[k].Windowed:
		return window
	case traits[k].Draining:
		return bucket
	}
	return log
}

// Params describe one limit.
type Params struct {
	// Kind is the algorithm.
	Kind Kind
	// Limit is the number of requests per Window, 0 or more; 0 denies all. In buckets it is what
	// drains in a Window.
	Limit int64
	// Burst is the size of a token bucket or of a GCRA in requests, which may come at once; 0
	// stands for Limit.
	Burst int64
	// Queue is how many requests can wait in a leaky bucket, beside the one that is served; 0 or
	// more.
	Queue int64
	// Window is the length of the window, 1ms to ten years, or one of a calendar, such as Month.
	Window time.Duration
	// Calendar is what numbers the windows of a FixedWindow; nil where they have one length.
	Calendar *Calendar
	// SubWindows is how many sub-windows a sliding window is cut into, 1 to MaxHistory; 0 stands
	// for 1.
	SubWindows int
	// Reserves is set where the response to a request decides whether it counts. No machine goes by
	// it: stores note apart what is reserved.
	Reserves bool
}

// Compile works out what a machine goes by.
func (p Params) Compile() Limit {
	n := max(p.Limit, 0)
	l := Limit{N: n, Size: n, Window: int64(min(max(p.Window, 1), 1<<60))}
	switch k := p.Kind; {
	case k.Traits().TakesSubWindows:
		l.History = min(max(p.SubWindows, 1), MaxHistory)
	case !k.Traits().Windowed && !k.Traits().Draining:
		l.History = sixteenths
	case k.Traits().Queues:
		l.Size = saturate.Add(max(p.Queue, 0), 1)
	case k.Traits().TakesBurst && p.Burst > 0:
		l.Size = p.Burst
	}
	return l
}

// Epoch returns the length of one epoch of the ledger, of a calendar more than the longest has. It
// depends on Kind, Window and SubWindows alone: nodes whose limits or bursts differ count into the
// same epochs.
func (p Params) Epoch() time.Duration {
	l := p.Compile()
	switch t := p.Kind.Traits(); {
	case p.Calendar != nil:
		return time.Duration(longest(p.Window))
	case t.Draining:
		return time.Duration(bucketEpoch)
	case !t.Windowed:
		return time.Duration(sixteenthOf(l.Window))
	}
	return time.Duration(l.subWindow())
}

// Counts is for how long something counts at most.
func (p Params) Counts() time.Duration {
	l := p.Compile()
	if !p.Kind.Traits().Draining {
		return p.Epoch() * time.Duration(l.History+1)
	}
	full := float64(l.Window) * (float64(l.Size)/float64(max(1, l.N)) + 1)
	return time.Duration(min(full, float64(bucketEpoch)))
}

// A Limit is compiled Params. It is passed by value with every call of a machine: four words,
// with the rest of the arguments as many as the compiler passes in registers.
type Limit struct {
	// N is the number of requests per Window; 0 denies all.
	N int64
	// Size is how many may come at once: N of a window or log, what a bucket or queue holds. A
	// caller that knows of units which are in no state may lower it by them.
	Size int64
	// Window is the length of the window in nanoseconds, 1 to 2^60.
	Window int64
	// History is how many epochs before the current one a decision can use, 0 to MaxHistory.
	History int
}

// subWindow returns the length of one of the parts that a window is cut into, in nanoseconds.
func (l Limit) subWindow() int64 {
	if l.History <= 1 {
		return l.Window
	}
	part := max(1, l.Window/int64(l.History))
	if us := int64(time.Microsecond); part > us {
		part -= part % us // stores count in microseconds
	}
	return part
}
