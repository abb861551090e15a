package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// Bandwidth is a number of bytes a second. In JSON it is a string such as "1MiB/s", or a number.
type Bandwidth int64

// MaxBandwidth is a tebibyte a second.
const MaxBandwidth Bandwidth = 1 << 40

// ParseBandwidth reads bytes a second: 1MiB/s, 500kB/s, 100000/s. Sizes are as Caddy reads them:
// a kB is 1,000 bytes, a KiB 1,024.
func ParseBandwidth(s string) (Bandwidth, error) {
	size, ok := strings.CutSuffix(s, "/s")
	if near := nearBandwidth(s); near != "" {
		return 0, fmt.Errorf("%q is not in bytes a second; did you mean %s?", spelling.Clip(s), near)
	}
	n, err := humanize.ParseBytes(size)
	switch {
	case err == nil && !ok:
		return 0, fmt.Errorf("%q doesn't say in how long; write bytes a second, like %s/s", spelling.Clip(s), spelling.Clip(size))
	case err != nil || strings.ContainsAny(size, " ,"):
		return 0, fmt.Errorf("%q is not a number of bytes a second; write one like 1MiB/s or 500kB/s", spelling.Clip(s))
	case n > uint64(MaxBandwidth):
		n = uint64(MaxBandwidth) + 1
	}
	return Bandwidth(n), Bandwidth(n).Check()
}

// nearBandwidth returns what a number of bits or of another time was probably meant to be, "" for
// none.
func nearBandwidth(s string) string {
	text := strings.ToLower(s)
	for _, end := range []string{"bit/s", "bits/s", "bps", "bit", "bits"} {
		number, ok := strings.CutSuffix(text, end)
		if !ok {
			continue
		}
		if n, err := humanize.ParseBytes(number + "b"); err == nil && n >= 8 && n < 1<<50 && !strings.HasSuffix(number, "b") {
			return Bandwidth(n / 8).String()
		}
	}
	return ""
}

// Check reports what is wrong with a bandwidth that did not come from ParseBandwidth.
func (b Bandwidth) Check() error {
	switch {
	case b < 1:
		return errors.New("0 bytes a second would let no response end; write one like 1MiB/s, or remove it for no bound")
	case b > MaxBandwidth:
		return fmt.Errorf("it is more than %s; write less, or remove it for no bound", MaxBandwidth)
	}
	return nil
}

// String returns the bandwidth as ParseBandwidth reads it, in the largest unit of which it is a
// whole number.
func (b Bandwidth) String() string {
	for _, unit := range []struct {
		name  string
		bytes Bandwidth
	}{{"TiB", 1 << 40}, {"TB", 1e12}, {"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3}} {
		if b >= unit.bytes && b%unit.bytes == 0 {
			return strconv.FormatInt(int64(b/unit.bytes), 10) + unit.name + "/s"
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B/s"
}

// MarshalJSON writes a string.
func (b Bandwidth) MarshalJSON() ([]byte, error) { return json.Marshal(b.String()) }

// UnmarshalJSON reads a string, or a number of bytes a second.
func (b *Bandwidth) UnmarshalJSON(text []byte) error {
	return readTextOrNumber("bandwidth", text, b, ParseBandwidth, bandwidthOf, `one like "1MiB/s", or a number of bytes a second`)
}

func bandwidthOf(bytes float64) (Bandwidth, error) {
	if bytes != math.Trunc(bytes) || bytes < 0 {
		return 0, fmt.Errorf("%g is not a number of bytes a second; write a whole one, or a string like \"1MiB/s\"", bytes)
	}
	b := Bandwidth(min(bytes, float64(MaxBandwidth)+1))
	return b, b.Check()
}
