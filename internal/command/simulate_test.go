package command

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// Reports come out as the goldens show them, also where a log is hostile.
func TestReportsArePrinted(t *testing.T) {
	inputs, err := filepath.Glob("testdata/simulate*.json")
	if err != nil || len(inputs) < 3 {
		t.Fatalf("%d reports to print, %v", len(inputs), err)
	}
	for _, path := range inputs {
		var b bytes.Buffer
		r := stored[simulate.Report](t, path)
		if err := (printer{out: &b}).report(&r, len(r.Zones) != 1 || r.Zones[0].Zone != "limit"); err != nil {
			t.Fatal(err)
		}
		golden(t, strings.TrimSuffix(filepath.Base(path), ".json")+".golden", b.String())
	}
}

// The help has no flags of commands that ask a Caddy, and the others have them.
func TestHelpOfASimulation(t *testing.T) {
	c, _ := endpoint(t, 200, "{}")
	for line, want := range map[string]bool{"simulate --help": false, "status --help": true} {
		out, err := execute(t, c, strings.Fields(line)...)
		for _, flag := range asking {
			if err != nil || strings.Contains(out, "--"+flag) != want {
				t.Errorf("%s: %v, --%s is there: %t, want %t\n%s", line, err, flag, !want, want, out)
			}
		}
	}
}

func TestSimulationsThatFail(t *testing.T) {
	c, asked := endpoint(t, 200, "{}")
	for line, want := range map[string]string{
		"simulate":     "at least 1 arg",
		"simulate log": "give either --limit",
		"simulate --limit 1/1m --config Caddyfile log":                "give either --limit",
		"simulate --limit 100rpm log":                                 "did you mean 100/1m",
		"simulate --limit 1/1m --nodes 0 log":                         "--nodes",
		"simulate --limit 1/1m --nodes 65 log":                        "--nodes",
		"simulate --limit 1/1m --nodes 3 --sync-rate often log":       "--sync-rate",
		"simulate --limit 1/1m --balance random log":                  "--balance",
		"simulate --limit 1/1m --reorder -1s log":                     "--reorder",
		"simulate --limit 1/1m --max-denied many log":                 "--max-denied",
		"simulate --limit 1/1m --max-denied= log":                     "--max-denied",
		"simulate --config Caddyfile --key {host} log":                "--key goes with --limit",
		"simulate --config testdata/empty.json --cost-field size log": "--cost-field goes with --limit",
		"simulate --limit 1/1m --cost many log":                       "is no number of units",
		"simulate --limit 1/1m --cost 1 --cost-field size log":        "either --cost or --cost-field",
		"simulate --limit 1GiB/1m --cost 5 log":                       "1GiB is a size",
		"simulate --limit 1/1m --key X-Api-Key log":                   "{header.X-Api-Key}",
	} {
		if out, err := execute(t, c, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) || *asked != "" {
			t.Errorf("%s: %v, want %s; it asks %q and prints %s", line, err, want, *asked, out)
		}
	}
}

// A key is written as in a Caddyfile.
func TestAKeyBySimulateHasShorthands(t *testing.T) {
	s := simulation{limits: []string{"5/1m"}, key: "{header.X-Api-Key}", changed: func(flag string) bool { return flag == "key" }}
	if config, err := s.configuration(); err != nil || !strings.Contains(string(config), `"{http.request.header.X-Api-Key}"`) {
		t.Errorf("%s, %v", config, err)
	}
}

// A window of a calendar stays one.
func TestALimitOfACalendarIsReplayedAsOne(t *testing.T) {
	for _, limit := range []string{"2/day", "2/week", "2/month", "2/year"} {
		s := simulation{limits: []string{limit}, changed: func(string) bool { return false }}
		if config, err := s.configuration(); err != nil || !strings.Contains(string(config), `"window":"`+limit[2:]+`"`) {
			t.Errorf("%s: %s, %v", limit, config, err)
		}
	}
}
