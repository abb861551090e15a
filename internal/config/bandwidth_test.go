package config

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseBandwidth(t *testing.T) {
	for text, want := range map[string]Bandwidth{
		"1MiB/s": 1 << 20, "1MB/s": 1_000_000, "500kB/s": 500_000, "500KB/s": 500_000, "512KiB/s": 512 << 10, "1.5MiB/s": 3 << 19,
		"100000/s": 100_000, "1B/s": 1, "1/s": 1, "1TiB/s": MaxBandwidth, "1mib/s": 1 << 20, "10M/s": 10_000_000,
	} {
		if got, err := ParseBandwidth(text); got != want || err != nil {
			t.Errorf("ParseBandwidth(%s) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "write one like 1MiB/s", "fast": "write one like 1MiB/s", "/s": "write one like 1MiB/s", "1 MiB/s": "write one like 1MiB/s", "1,000/s": "write one like 1MiB/s",
		"-1MiB/s": "write one like 1MiB/s", "1MiB": "like 1MiB/s", "1000": "like 1000/s", "1MiB/m": "write one like 1MiB/s", "0/s": "no response end", "2TiB/s": "more than 1TiB/s", "99999999EB/s": "write",
		"8Mbit/s": "did you mean 1MB/s?", "100mbps": "did you mean 12500kB/s?", "1Gbit": "did you mean 125MB/s?", "{rate}/s": "write one like 1MiB/s", "1bit/s": "write",
	} {
		if got, err := ParseBandwidth(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseBandwidth(%s) = %d, %v, want an error with %q", text, got, err, want)
		}
	}
}

// What String and JSON write is read as the same again.
func TestBandwidthIsWrittenAsItIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bandwidth(rapid.Int64Range(1, int64(MaxBandwidth)).Draw(t, "bandwidth"))
		if rapid.Bool().Draw(t, "round") {
			b = min(MaxBandwidth, max(1, b&^(1<<20-1)))
		}
		if got, err := ParseBandwidth(b.String()); got != b || err != nil {
			t.Fatalf("ParseBandwidth(%s) = %d, %v, want %d", b, got, err, b)
		}
		text, err := json.Marshal(b)
		var got Bandwidth
		if err2 := json.Unmarshal(text, &got); got != b || err != nil || err2 != nil {
			t.Fatalf("%s of JSON is %d, %v, %v, want %d", text, got, err, err2, b)
		}
	})
}

func TestBandwidthInJSON(t *testing.T) {
	for text, want := range map[string]Bandwidth{`"1MiB/s"`: 1 << 20, `1048576`: 1 << 20, `1e6`: 1_000_000, `null`: 0} {
		var got Bandwidth
		if err := json.Unmarshal([]byte(text), &got); got != want || err != nil {
			t.Errorf("%s is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{`"fast"`, `1.5`, `-1`, `0`, `1e30`, `true`, `{}`, `[1]`} {
		var got Bandwidth
		if err := json.Unmarshal([]byte(text), &got); err == nil || !strings.HasPrefix(err.Error(), "parsing bandwidth: ") || !strings.Contains(err.Error(), "write") {
			t.Errorf("%s is %d, %v, want an error that says what to write", text, got, err)
		}
	}
}
