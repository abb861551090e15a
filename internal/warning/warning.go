// Package warning has the codes of all warnings, and writes a warning once.
//
// A code stays the same when its text changes.
package warning

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
)

// The codes of all warnings and errors that are logged: what each is, then what to do.
// docs/warnings.md has these comments.
const (
	// UntrustedProxy is a proxy's header from an address that is not trusted. If that is your
	// proxy, all clients behind it share one count: set trusted_proxies and
	// trusted_proxies_strict, on a unix socket trusted_proxies_unix. Otherwise a client made it
	// up. See docs/security.md#client-addresses-and-trusted-proxies.
	UntrustedProxy = "TIDE001"
	// TrustNotStrict is trusted_proxies without trusted_proxies_strict. Caddy takes the left-most
	// address of the header, which a client can write. Add trusted_proxies_strict to the servers
	// block, unless your proxy replaces the header. Where all addresses are trusted, write those
	// of your proxies.
	TrustNotStrict = "TIDE002"
	// ForgeableKey is a key from a header that claims an address, or an exception by one or by
	// User-Agent. Clients can send any. Write {client_ip}, which reads it from trusted proxies
	// only, or `except` with addresses.
	ForgeableKey = "TIDE003"
	// PoorKey is a key that clients can change at will. With an id, a time or a port in it, each
	// request has its own count and nothing is limited.
	PoorKey = "TIDE004"
	// UnknownKey is a placeholder without a value. Nothing sets it, or not yet: `message` sends
	// its name. See docs/keys.md#empty-keys.
	UnknownKey = "TIDE006"
	// NoZone is a handler without zones, or global options alone. Nothing is limited.
	NoZone = "TIDE008"
	// EmptyKey is a key that came out empty. See docs/keys.md#empty-keys.
	EmptyKey = "TIDE009"
	// MaxKeys is more keys than max_keys. Newcomers may be denied early. If you have that many
	// clients, raise it; if clients choose their key, write a `rate_limit` by address above it.
	// See docs/security.md#floods-of-keys.
	MaxKeys = "TIDE010"
	// NoRedis is an empty address of Redis. A variable is not set, so each node counts for itself.
	// If that is meant, write `redis {$REDIS_URL:off}`.
	NoRedis = "TIDE011"
	// SyncFails is Redis being unavailable. It is logged at most once a minute;
	// `sync with redis works again` ends it. `reason` says why, and what to do. See
	// docs/outages.md.
	SyncFails = "TIDE012"
	// ForeignKey is another program's keys in Redis. Give Tide a namespace of its own.
	ForeignKey = "TIDE013"
	// CountsLost is counts that Redis had confirmed and forgot. It was emptied, failed over to a
	// replica that lagged, or evicts keys. Nodes send theirs again. See
	// docs/redis.md#memory-and-eviction.
	CountsLost = "TIDE014"
	// NotSent is last counts that could not be sent. The process or a zone ended while Redis did
	// not answer. Until the windows end others may admit `requests` more, and count what
	// `refunded_keys` got back.
	NotSent = "TIDE015"
	// NotSaved is counters or changes that were not saved. What persist names can't be written, or
	// doesn't answer; `error` says why. The next process may start with empty counters.
	NotSaved = "TIDE016"
	// NotRestored is saved counters or changes that could not be read. Damaged, of another version
	// or Redis, or from the future: counting starts at zero. Something else in the file turns
	// persist off: name another.
	NotRestored = "TIDE017"
	// NoBraces is a key without its braces. All requests share one count. Write `key {client_ip}`,
	// or `key all`.
	NoBraces = "TIDE019"
	// ShareOfOneKey is a share of the keys where there is one key. The zone is enforced for all
	// requests or none. Write `enforce off`, or a key that tells clients apart. See
	// docs/shadow.md#which-keys-are-in.
	ShareOfOneKey = "TIDE021"
	// LimitValue is a request's limit that is no number. limit_default was used. Look at what
	// sets the placeholder; with log_key the line has its value.
	LimitValue = "TIDE022"
	// BeforeAuth is a key or limit by who the client is, before authentication. Put both into a
	// route. See docs/configuration.md#order-of-directives.
	BeforeAuth = "TIDE023"
	// ClientsLimit is a limit or a cost that the client chooses. It comes from a header, a cookie,
	// the URL or the body. Derive it from who the client is, in a route behind authentication, or
	// from a header that a proxy replaces, as forward_auth does with copy_headers, and write
	// `quiet`. See docs/tiers.md and docs/cost.md.
	ClientsLimit = "TIDE024"
	// LimitOnErrors is a limit in handle_errors or handle_response. Guesses go on, as it sees
	// failed requests only. Put the zone before the handler, with `count_responses 401 403` and a
	// matcher. See docs/login.md.
	LimitOnErrors = "TIDE028"
	// AllReserve is count_responses without a matcher. Each request of a page holds a unit until
	// its response begins, so pictures may be denied. Write `match path /login*`, for basic_auth
	// `match header Authorization *`. See docs/login.md.
	AllReserve = "TIDE029"
	// ExactPath is an exact path. Many backends take /login/ for /login, PHP /login.php/x. Write
	// `path /login*`. So is /api/: it leaves out /api/x. See
	// docs/security.md#requests-that-a-zone-matches.
	ExactPath = "TIDE031"
	// AmbiguousKey is a key with several values. Headers or parameters of one name differ, and
	// backends read them differently. Such requests share one count. If your proxy adds the
	// second, have it replace the client's.
	AmbiguousKey = "TIDE032"
	// ClientsKey is a key that goes by what a client sends, also beside its address. Each new
	// value has a new count. See docs/security.md#keys-from-headers.
	ClientsKey = "TIDE033"
	// Backlog is strict zones that ask Redis for more than it can answer. Requests waited longer
	// than strict_timeout and went by on_redis_loss. Raise that or pool_size, or give zones an
	// interval. See docs/sync.md.
	Backlog = "TIDE035"
	// WrongRegion is a Redis of another region than `here`. The node reads no other region. Correct
	// here, or the URL; if a node with a wrong `here` started first, delete the key that the line
	// names. Or two Redis have one name: the line comes from one that others don't read. See
	// docs/regions.md.
	WrongRegion = "TIDE038"
	// RegionLost is another region that is lost. Its last counts stay, and on_loss holds. A
	// second line tells that it is back. Or a Redis user lacks a command that regions need. See
	// docs/regions.md#when-a-region-is-lost and docs/redis.md#acl.
	RegionLost = "TIDE039"
	// NoCost is a response without the number that it costs, or a compressed one that hides it.
	// See docs/cost.md#what-only-the-response-knows.
	NoCost = "TIDE041"
	// ClocksApart is Redis clocks of two regions that differ by a second, or a twentieth of a
	// window. More or less than the limit passes: keep them by NTP.
	ClocksApart = "TIDE042"
	// NotReached is a zone that no request comes to, or no guess. See
	// docs/configuration.md#order-of-directives.
	NotReached = "TIDE045"
	// PeerMatched is remote_ip in a matcher, or {remote_host} in a key, where proxies are trusted.
	// It is the proxy's: write client_ip.
	PeerMatched = "TIDE046"
	// NotMeant is a sync_rate longer than a window, or a file's name as the message. Nodes hear of
	// each other too late for that limit; clients get the name. The line says what to write.
	NotMeant = "TIDE047"
	// UnusedOverrides is overrides of a zone that the configuration lacks. If it was renamed, set
	// them for its new name, and remove these. See docs/operate.md#give-one-key-another-limit.
	UnusedOverrides = "TIDE048"
	// NothingCounted is a zone that has counted none of its first 1,000 requests. Send one that
	// should count: count_responses needs its status. See docs/login.md.
	NothingCounted = "TIDE049"
	// HiddenDenial is an error route that answers denials with a status below 400. Clients and
	// monitoring take them for successes: leave the status out there. See
	// docs/responses.md#error-routes.
	HiddenDenial = "TIDE050"
	// ForgivesGuesser is forgive_responses with an address alone as the key, or after a GET. A
	// guesser clears the count by a login of his own, or by a page that needs none. See
	// docs/login.md#a-right-login.
	ForgivesGuesser = "TIDE051"
	// ShortLived is counts of a day, week, month or year that may not last so long. Redis evicts
	// keys, the process ends and nothing is saved, there is a counter for each address, or a
	// calendar has changed and its counts begin at zero. See docs/quotas.md.
	ShortLived = "TIDE052"
)

// newest is the last code.
const newest = ShortLived

// trouble are the codes that tell of something that is broken while the server runs.
var trouble = []string{SyncFails, ForeignKey, CountsLost, NotSent, NotSaved, NotRestored, Backlog, WrongRegion, RegionLost, ClocksApart}

// CanBeQuiet reports whether a configuration may leave a warning out. The error says why not.
func CanBeQuiet(code string) error {
	if upper := strings.ToUpper(code); upper != code && CanBeQuiet(upper) == nil {
		return fmt.Errorf("there is no warning %q; did you mean %s?", code, upper)
	}
	if len(code) != len(newest) || code < UntrustedProxy || code > newest {
		return fmt.Errorf("there is no warning %q; write its code as the log has it, like %s", code, ClientsLimit)
	}
	if slices.Contains(trouble, code) {
		return fmt.Errorf("%s tells of something that is broken, so it is always logged; remove it", code)
	}
	return nil
}

// A Warning is a text for the log, and its code.
type Warning struct {
	Code, Text string
	// Unset is the placeholder that the warning takes to be set by nothing, "" for none.
	Unset string
}

// New returns a warning, whose text it puts together as fmt.Sprintf does.
func New(code, format string, args ...any) Warning {
	return Warning{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Field returns the log field that holds a code.
func Field(code string) zap.Field { return zap.String("code", code) }

// Once writes each warning once, as a snippet in fifty sites would write it fifty times. The zero
// value is ready. It is safe for concurrent use.
type Once struct {
	// Quiet are the codes of warnings that are not written. It is to be set before use.
	Quiet   []string
	written sync.Map
}

// IsQuiet reports whether warnings with a code are not written.
func (o *Once) IsQuiet(code string) bool { return o != nil && slices.Contains(o.Quiet, code) }

// Warn writes a warning, unless it has written the same one before.
func (o *Once) Warn(logger *zap.Logger, code, text string, fields ...zap.Field) {
	if o.IsQuiet(code) {
		return
	}
	if _, again := o.written.LoadOrStore(Warning{Code: code, Text: text}, nil); !again {
		logger.Warn(text, append([]zap.Field{Field(code)}, fields...)...)
	}
}
