package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// Ban says when and for how long a key is banned. The zero Ban is never.
type Ban struct {
	// For is how long a ban lasts.
	For time.Duration
	// After is how many denied requests in a window begin a ban. Without a window it is the first.
	After Rate
}

// ParseBan reads the values of the option: 15m, or 15m after 3/10m.
func ParseBan(values []string) (b Ban, err error) {
	if len(values) == 3 && values[1] != "after" && spelling.Nearest(values[1], []string{"after"}) != "" {
		return b, fmt.Errorf("there is no %q; did you mean after?", spelling.Clip(values[1]))
	}
	if len(values) != 1 && (len(values) != 3 || values[1] != "after") {
		return b, errors.New("write how long, like `ban 15m`, or how long and after how many denied requests, like `ban 15m after 3/10m`")
	}
	switch b.For, err = ParseWindow(values[0]); {
	case err == nil:
	case nearWindow(values[0]) != "":
		return b, fmt.Errorf("%q is not how long a ban can last; did you mean %s?", spelling.Clip(values[0]), nearWindow(values[0]))
	case strings.Trim(values[0], "0123456789") == "":
		return b, fmt.Errorf("%q has no unit; write %[1]sm for minutes, or use s, h or d", spelling.Clip(values[0]))
	default:
		return b, fmt.Errorf("%q is not how long a ban can last; write 1ms to ten years, like `ban 15m`", spelling.Clip(values[0]))
	}
	if len(values) == 1 {
		return b, nil
	}
	if strings.HasPrefix(values[2], "{") {
		return b, fmt.Errorf("the number of %s can't come with the request; write it here, like `after 3/10m`", spelling.Clip(values[2]))
	}
	b.After, err = ParseRate(values[2])
	return b, err
}

// Check reports what is wrong with a ban.
func (b Ban) Check() error {
	if b.For < MinWindow || b.For > MaxWindow {
		return fmt.Errorf("it lasts %s, which is not between 1ms and ten years; write how long, like `ban 15m`, in JSON `\"for\": \"15m\"`", WindowText(b.For))
	}
	if b.After == (Rate{}) {
		return nil
	}
	if b.After.Limit == 0 {
		return errors.New("after 0 denied requests everybody would be banned; write how many in how long, like `ban 15m after 3/10m`, or remove after for the first one")
	}
	return b.After.Check()
}

// String returns the ban as ParseBan reads it, "" for none.
func (b Ban) String() string {
	switch {
	case b.For == 0:
		return ""
	case b.After.Window == 0:
		return WindowText(b.For)
	}
	return WindowText(b.For) + " after " + b.After.String()
}

// DenialsOf returns the settings of what counts denied requests before a ban: a fixed window of its
// own, synced as the zone is. A zone in which Redis decides syncs them as often as nothing is said.
func (z *Settings) DenialsOf(every time.Duration) *Settings {
	d := &Settings{
		Name: z.Name, Kind: algorithms.FixedWindow, Key: z.Key, IPv4Prefix: z.IPv4Prefix, IPv6Prefix: z.IPv6Prefix, Limits: []Rate{z.Ban.After},
		SubWindows: 1, SyncRate: z.SyncRate, MaxKeys: z.MaxKeys, EarlySync: z.EarlySync, Regions: z.Regions, CountsDenials: true,
	}
	if z.SyncRate == Strict {
		d.SyncRate = SyncRate(every)
	}
	return d
}
