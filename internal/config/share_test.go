package config

import (
	"math"
	"strings"
	"testing"
)

func TestParseShare(t *testing.T) {
	for text, want := range map[string]float64{
		"25%": 0.25, "0.25": 0.25, "0": 0, "0%": 0, "1": 1, "100%": 1, "12.5%": 0.125, "1%": 0.01, ".5": 0.5, "0.01%": 0.0001,
	} {
		if got, err := ParseShare(text); err != nil || math.Abs(got-want) > 1e-15 {
			t.Errorf("ParseShare(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"101%": "between 0% and 100%", "-1%": "between 0% and 100%", "nan%": "not a share", "inf%": "between 0% and 100%",
		"half": "not a share", "": "not a share", "%": "not a share", "25 %": "not a share", "nan": "not a share",
		"25": "write 25% if that is meant", "1.5": "write 1.5% if that is meant", "-0.1": "between 0 and 1", "101": "between 0 and 1", "inf": "between 0 and 1",
		strings.Repeat("9", 500): "not a share",
	} {
		if got, err := ParseShare(text); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("ParseShare(%q) = %v, %v, want an error with %q", text, got, err, want)
		}
	}
}
