package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// ParseShare reads a part of a whole: 25% or 0.25. It is 0 to 1.
func ParseShare(s string) (float64, error) {
	number, percent := strings.CutSuffix(s, "%")
	share, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(share) {
		return 0, fmt.Errorf("%q is not a share; write it like 25%% or 0.25", spelling.Clip(s))
	}
	switch {
	case percent && !(share >= 0 && share <= 100):
		return 0, fmt.Errorf("%s is not between 0%% and 100%%; write it like 25%% or 0.25", spelling.Clip(s))
	case percent:
		return share / 100, nil
	case share > 1 && share <= 100:
		return 0, fmt.Errorf("%s is not between 0 and 1; write %[1]s%% if that is meant, or a share like 0.25", spelling.Clip(s))
	}
	return share, CheckShare(share)
}

// CheckShare reports what is wrong with a share that did not come from ParseShare.
func CheckShare(share float64) error {
	if !(share >= 0 && share <= 1) {
		return fmt.Errorf("%g is not between 0 and 1; write it like 25%% or 0.25, in JSON as 0.25", share)
	}
	return nil
}
