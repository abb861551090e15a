package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// Ban says when and for how long a key is banned. The zero Ban is never.
type Ban struct {
	// For is how long a ban lasts.
	For time.Duration
	// After is how many denied requests in a window begin a ban. Without a window it is the first.
	After Rate
	// Growing is for how long a ban is remembered after its end: the next one lasts twice as long,
	// up to that. 0 where all last as long.
	Growing time.Duration
}

// ParseBan reads the values of the option: 15m, 15m after 3/10m, or 15m after 3/10m growing 1d.
func ParseBan(values []string) (b Ban, err error) {
	if len(values)%2 == 0 || len(values) > 5 {
		return b, errors.New("write how long, like `ban 15m`, and if you like after how many denied requests and up to which length it grows, like `ban 15m after 3/10m growing 1d`")
	}
	if b.For, err = parseBanLength(values[0]); err != nil {
		return b, err
	}
	for given := values[1:]; len(given) > 0; given = given[2:] {
		word, value := given[0], given[1]
		switch {
		case word == "after" && b.After != Rate{}, word == "growing" && b.Growing != 0:
			return b, fmt.Errorf("%s is here twice; remove one", word)
		case word == "after" && strings.HasPrefix(value, "{"):
			return b, fmt.Errorf("the number of %s can't come with the request; write it here, like `after 3/10m`", spelling.Clip(value))
		case word == "after":
			b.After, err = ParseRate(value)
			err = cmp.Or(err, b.checkAfter())
		case word == "growing":
			b.Growing, err = parseBanLength(value)
		default:
			words := []string{"after", "growing"}
			if near := spelling.Nearest(word, words); near != "" {
				return b, fmt.Errorf("there is no %q; did you mean %s?", spelling.Clip(word), near)
			}
			return b, fmt.Errorf("there is no %q; write after or growing, like `ban 15m after 3/10m growing 1d`", spelling.Clip(word))
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

func parseBanLength(value string) (d time.Duration, err error) {
	switch d, err = ParseWindow(value); {
	case err == nil:
		return d, nil
	case nearWindow(value) != "":
		return 0, fmt.Errorf("%q is not how long a ban can last; did you mean %s?", spelling.Clip(value), nearWindow(value))
	case strings.Trim(value, "0123456789") == "":
		return 0, fmt.Errorf("%q has no unit; write %[1]sm for minutes, or use s, h or d", spelling.Clip(value))
	}
	return 0, fmt.Errorf("%q is not how long a ban can last; write 1ms to ten years, like `ban 15m`", spelling.Clip(value))
}

// Check reports what is wrong with a ban.
func (b Ban) Check() error {
	if b.For < MinWindow || b.For > MaxWindow {
		return fmt.Errorf("it lasts %s, which is not between 1ms and ten years; write how long, like `ban 15m`, in JSON `\"for\": \"15m\"`", WindowText(b.For))
	}
	if b.Growing != 0 && (b.Growing <= b.For || b.Growing > MaxWindow) {
		return fmt.Errorf("it can't grow from %s up to %s; write a longer time of at most ten years, like `ban 15m growing 1d`, or remove growing", WindowText(b.For), WindowText(b.Growing))
	}
	if b.After == (Rate{}) {
		return nil
	}
	if b.After.Limit == 0 {
		return errors.New("after 0 denied requests everybody would be banned; write how many in how long, like `ban 15m after 3/10m`, or remove after for the first one")
	}
	return cmp.Or(b.checkAfter(), b.After.Check())
}

// checkAfter rejects a window of a calendar: denials are counted by zones that have none.
func (b Ban) checkAfter() error {
	if name, ok := calendar.Name(b.After.Window); ok {
		return fmt.Errorf("denials can't be counted by the %s; write a length, like `after 3/1d`", name)
	}
	return nil
}

// String returns the ban as ParseBan reads it, "" for none.
func (b Ban) String() string {
	if b.For == 0 {
		return ""
	}
	text := WindowText(b.For)
	if b.After.Window != 0 {
		text += " after " + b.After.String()
	}
	if b.Growing != 0 {
		text += " growing " + WindowText(b.Growing)
	}
	return text
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
