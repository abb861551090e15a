package answer

import (
	"fmt"
	"slices"
)

// A Reason is what a zone made of a request, or all zones of a handler together, and why: the one
// that answers, metrics, explain and the status go by.
type Reason uint8

const (
	// Admitted is a request that the zone admits; another zone may deny it.
	Admitted Reason = iota
	// Denied is a limit that has no room: 429; or an operator who denies the key: 403.
	Denied
	// Reserved is a limit whose rest is held by requests that count_responses may refund: 429.
	Reserved
	// Banned is a key that was denied too often: 429; the request that begins a ban is denied.
	Banned
	// TooEarly is early data (RFC 8470) that may need an address: 425; no denial.
	TooEarly
	// Unavailable is a zone that fails closed while Redis is unavailable: 503.
	Unavailable
	// TooLarge is a request that costs more than is ever admitted at once: 429.
	TooLarge
	// WouldDeny is a denial by a zone in shadow mode, which denied nobody.
	WouldDeny
	// Skipped is a request that the zone doesn't limit: excepted, unlimited, not slowed, or without
	// a key where empty_key is skip.
	Skipped
	// Counted is the number of the reasons that metrics count, which are those above.
	Counted
	// NotAsked is a zone that was not asked, as another denies before, or Redis needs not be asked.
	NotAsked = Counted
	// Barred is a key of which an operator denies all requests: 403. It has the name of Denied.
	Barred = NotAsked + 1
)

var reasonNames = [...]string{"admitted", "denied", "reserved", "banned", "too_early", "unavailable", "too_large", "would_deny", "skipped", "not_asked", "denied"}

// String returns the name of a reason in metrics and answers.
func (r Reason) String() string { return reasonNames[r] }

// MarshalText returns the name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a name.
func (r *Reason) UnmarshalText(text []byte) error {
	i := slices.Index(reasonNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("no decision is called %q here; is the server of another version?", text)
	}
	*r = Reason(i)
	return nil
}
