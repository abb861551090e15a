// Package warning has the codes of all warnings, and writes a warning once.
//
// A code stays the same when its text changes. docs/warnings.md tells of each code what it means
// and what to do.
package warning

import (
	"sync"

	"go.uber.org/zap"
)

// The codes of all warnings and errors that are logged.
const (
	UntrustedProxy  = "TIDE001"
	TrustNotStrict  = "TIDE002"
	ForgeableKey    = "TIDE003"
	PoorKey         = "TIDE004"
	BodyKey         = "TIDE005"
	UnknownKey      = "TIDE006"
	OneKey          = "TIDE007"
	NoZone          = "TIDE008"
	EmptyKey        = "TIDE009"
	MaxKeys         = "TIDE010"
	NoRedis         = "TIDE011"
	SyncFails       = "TIDE012"
	ForeignKey      = "TIDE013"
	CountsLost      = "TIDE014"
	NotSent         = "TIDE015"
	NotSaved        = "TIDE016"
	NotRestored     = "TIDE017"
	SameLimit       = "TIDE018"
	NoBraces        = "TIDE019"
	AddressIntended = "TIDE020"
	ShareOfOneKey   = "TIDE021"
	LimitValue      = "TIDE022"
	BeforeAuth      = "TIDE023"
	ClientsLimit    = "TIDE024"
	BanOfOthers     = "TIDE025"
	LongBan         = "TIDE026"
	BanOfAll        = "TIDE027"
	LimitOnErrors   = "TIDE028"
	AllReserve      = "TIDE029"
	ReserveOfOne    = "TIDE030"
	ExactPath       = "TIDE031"
	AmbiguousKey    = "TIDE032"
	ClientsKey      = "TIDE033"
	FarRedis        = "TIDE034"
	Backlog         = "TIDE035"
	SmallLimit      = "TIDE036"
	ClientsCost     = "TIDE037"
)

// A Warning is a text for the log, and its code.
type Warning struct {
	Code, Text string
	// Unset is the placeholder that the warning takes to be set by nothing, "" for none.
	Unset string
}

// Field returns the log field that holds a code.
func Field(code string) zap.Field { return zap.String("code", code) }

// Once writes each warning once, as a snippet in fifty sites would write it fifty times. The zero
// value is ready. It is safe for concurrent use.
type Once struct{ written sync.Map }

// Warn writes a warning, unless it has written the same one before.
func (o *Once) Warn(logger *zap.Logger, code, text string, fields ...zap.Field) {
	if _, again := o.written.LoadOrStore(Warning{Code: code, Text: text}, nil); !again {
		logger.Warn(text, append([]zap.Field{Field(code)}, fields...)...)
	}
}
