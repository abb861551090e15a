package config

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// enforcementSteps is how finely an Enforcement divides the keys.
const enforcementSteps = 10_000

// Enforcement is for which keys a zone is enforced: an equal share of all keys, the same ones on
// all nodes. For the others it is in shadow mode: it counts, and denies nobody. The zero value
// enforces it for all.
type Enforcement struct {
	shadow uint16 // how many of steps it is not enforced for
}

// Enforce returns the enforcement for a share of the keys, 0 to 1, in steps of a ten-thousandth.
// Only 0 is nobody, and only 1 is everybody.
func Enforce(share float64) Enforcement {
	n := math.Round(share * enforcementSteps)
	if share > 0 && share < 1 {
		n = min(max(n, 1), enforcementSteps-1)
	}
	return Enforcement{enforcementSteps - uint16(n)}
}

// ParseEnforcement reads the share of keys that a zone is enforced for: 25%, 0.25, or off.
func ParseEnforcement(s string) (share float64, err error) {
	if s == "off" {
		return 0, nil
	}
	near := spelling.Nearest(s, []string{"off"})
	if s == "on" {
		near = "100%"
	}
	if near != "" {
		return 0, fmt.Errorf("%q is not a share; did you mean %s?", spelling.Clip(s), near)
	}
	return ParseShare(s)
}

// IsFull reports whether all keys are in.
func (e Enforcement) IsFull() bool { return e.shadow == 0 }

// IsOff reports whether no key is in.
func (e Enforcement) IsOff() bool { return e.shadow == enforcementSteps }

// Share returns the share of keys that are in.
func (e Enforcement) Share() float64 {
	return float64(enforcementSteps-int(e.shadow)) / enforcementSteps
}

// String returns the enforcement as ParseEnforcement reads it.
func (e Enforcement) String() string {
	if e.IsOff() {
		return "off"
	}
	return strconv.FormatFloat(float64(enforcementSteps-int(e.shadow))/(enforcementSteps/100), 'f', -1, 64) + "%"
}

// Includes reports whether a key is in, by its ID and the salt of the zone. A key that is in stays
// in when the share rises; and by the salt, each zone has others in.
func (e Enforcement) Includes(id [16]byte, salt uint64) bool {
	return (binary.BigEndian.Uint64(id[:])^salt)%enforcementSteps < enforcementSteps-uint64(e.shadow)
}

// SaltOf returns what makes each zone enforce a share of its own keys: the first 64 bits of the
// SHA-256 of its name, which is the same on all nodes.
func SaltOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}
