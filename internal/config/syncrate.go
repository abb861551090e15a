package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// SyncRate is how often counts are synced through Redis: below 0 never, 0 on every request, else
// the interval, MinSync to ten years. In JSON it is a duration string such as "500ms", "local" for
// never, "strict" for 0, or a number of seconds.
type SyncRate time.Duration

// The sync rates that are no intervals, and the shortest interval.
const (
	Local   SyncRate = -1
	Strict  SyncRate = 0
	MinSync          = 20 * time.Millisecond
)

// ParseSyncRate reads -1 or local, 0 or strict, a number of seconds, or a duration.
func ParseSyncRate(s string) (SyncRate, error) {
	switch s {
	case "local":
		return Local, nil
	case "strict":
		return Strict, nil
	}
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		return syncRateOfSeconds(seconds)
	}
	interval, err := caddy.ParseDuration(s)
	if near := cmp.Or(spelling.Nearest(s, []string{"local", "strict"}), nearWindow(s)); err != nil && near != "" {
		return 0, fmt.Errorf("%q is not a duration; did you mean %s?", spelling.Clip(s), near)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write one like 500ms or 1s, or strict (0), or local (-1)", spelling.Clip(s))
	}
	if interval < 0 {
		return 0, fmt.Errorf("%q is negative; write local (-1) for no sync, or a duration like 1s", spelling.Clip(s))
	}
	return SyncRate(interval), SyncRate(interval).Check()
}

// syncRateOfSeconds returns the sync rate of a number that Kong takes.
func syncRateOfSeconds(seconds float64) (SyncRate, error) {
	switch {
	case seconds == -1:
		return Local, nil
	case math.IsNaN(seconds), seconds < 0:
		return 0, fmt.Errorf("%g seconds is not a rate to sync at; write local (-1) for no sync, or a duration like 1s", seconds)
	case seconds > MaxWindow.Seconds():
		return 0, fmt.Errorf("%g seconds is too long; write a duration like 1s, or local (-1) for no sync", seconds)
	}
	s := SyncRate(math.Round(seconds * float64(time.Second)))
	if s == 0 && seconds != 0 {
		s = 1 // not strict: too short
	}
	return s, s.Check()
}

// Check reports what is wrong with a sync rate that did not come from ParseSyncRate.
func (s SyncRate) Check() error {
	interval := time.Duration(s)
	switch {
	case interval > 0 && interval < MinSync:
		return fmt.Errorf("%s is too short; write %s or longer, or strict (0) to ask Redis on every request", WindowText(interval), WindowText(MinSync))
	case interval > MaxWindow:
		return fmt.Errorf("%s is too long; write a duration like 1s, or local (-1) for no sync", WindowText(interval))
	}
	return nil
}

// String returns the rate as ParseSyncRate reads it.
func (s SyncRate) String() string {
	switch {
	case s < 0:
		return "local"
	case s == Strict:
		return "strict"
	}
	return WindowText(time.Duration(s))
}

// MarshalJSON writes "local", "strict" or a duration string.
func (s SyncRate) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads a duration string, "local", "strict", or a number of seconds.
func (s *SyncRate) UnmarshalJSON(text []byte) error {
	return readTextOrNumber("sync_rate", text, s, ParseSyncRate, syncRateOfSeconds, `a duration like "1s", "local" or "strict", or a number of seconds`)
}

// readTextOrNumber reads an option of JSON that is text or a number; null changes nothing. mend is
// what to write in place of anything else.
func readTextOrNumber[T any](option string, text []byte, to *T, parse func(string) (T, error), of func(float64) (T, error), mend string) error {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	parsed, err := *to, error(nil)
	switch v := value.(type) {
	case nil:
	case string:
		parsed, err = parse(v)
	case float64:
		parsed, err = of(v)
	default:
		err = errors.New("neither a string nor a number; write " + mend)
	}
	if err != nil {
		return fmt.Errorf("parsing %s: %w", option, err)
	}
	*to = parsed
	return nil
}
