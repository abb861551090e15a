package config

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseRate(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Rate
		text string
	}{
		{"100/1m", Rate{Limit: 100, Window: time.Minute}, "100/1m"},
		{"10/s", Rate{Limit: 10, Window: time.Second}, "10/1s"},
		{"3/m", Rate{Limit: 3, Window: time.Minute}, "3/1m"},
		{"0/h", Rate{Limit: 0, Window: time.Hour}, "0/1h"},
		{"1/d", Rate{Limit: 1, Window: 24 * time.Hour}, "1/1d"},
		{"1000/60m", Rate{Limit: 1000, Window: time.Hour}, "1000/1h"},
		{"5/90s", Rate{Limit: 5, Window: 90 * time.Second}, "5/90s"},
		{"5/1m30s", Rate{Limit: 5, Window: 90 * time.Second}, "5/90s"},
		{"5/1.5s", Rate{Limit: 5, Window: 1500 * time.Millisecond}, "5/1500ms"},
		{"5/1ms", Rate{Limit: 5, Window: time.Millisecond}, "5/1ms"},
		{"5/1.5ms", Rate{Limit: 5, Window: 1500 * time.Microsecond}, "5/1500us"},
		{"5/1000001ns", Rate{Limit: 5, Window: 1000001}, "5/1000001ns"},
		{"7/7d", Rate{Limit: 7, Window: 7 * 24 * time.Hour}, "7/7d"},
		{"1/1d12h", Rate{Limit: 1, Window: 36 * time.Hour}, "1/36h"},
		{"1/3650d", Rate{Limit: 1, Window: MaxWindow}, "1/3650d"},
		{"9223372036854775807/30d", Rate{Limit: math.MaxInt64, Window: 30 * 24 * time.Hour}, "9223372036854775807/30d"},
	} {
		got, err := ParseRate(c.in)
		if err != nil || got != c.want || got.String() != c.text {
			t.Errorf("Parse(%q) = %v, %v, want %v, %s", c.in, got, err, c.want, c.text)
		}
	}
}

func TestParseRateErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "no number",
		"/":                        "no number",
		"/1m":                      "no number",
		"100":                      "no window",
		"100/":                     "no window",
		"-1":                       "negative",
		"-1/1m":                    "negative",
		"-9223372036854775809/1m":  "negative",
		"+1/1m":                    "not a whole number",
		"1.5/1m":                   "not a whole number",
		"0.5/s":                    "1/2s",
		"2.50/1m":                  "5/2m",
		"0.001/h":                  "1/1000h",
		"0.0001/h":                 "write digits only",
		"0.5/3650d":                "write digits only",
		"1e30/s":                   "write digits only",
		"NaN/s":                    "write digits only",
		"-0.5/s":                   "write digits only",
		"1e3/1m":                   "not a whole number",
		"0x10/1m":                  "not a whole number",
		"1_000/1m":                 "not a whole number",
		"10r/s":                    "did you mean 10/1s?",
		"9223372036854775808/1m":   "too large",
		"1/0":                      "empty",
		"1/0s":                     "empty",
		"1/-1m":                    "negative",
		"1/60":                     "no unit",
		"1/1.5":                    "no unit",
		"1/1ns":                    "too short",
		"1/999us":                  "too short",
		"1/3651d":                  "too long",
		"1/400000d":                "not a duration of 3650d at most",
		"1/99999999999999999999h":  "not a duration",
		"1/m/s":                    "not a duration",
		"1/minute":                 "did you mean 1/1m?",
		"1/ms":                     "did you mean 1/1ms?",
		"1/w":                      "did you mean 1/7d?",
		"1/1M":                     "did you mean 1/1m?",
		"100r/s":                   "did you mean 100/1s?",
		"100rps":                   "did you mean 100/1s?",
		"100rpm":                   "did you mean 100/1m?",
		"100req/min":               "did you mean 100/1m?",
		"100perhour":               "did you mean 100/1h?",
		"100/2Hours":               "did you mean 100/2h?",
		"100/fortnight":            "not a duration",
		"99999999999999999999/min": "too large",
		"1/inf":                    "not a duration",
		"1/ 1m":                    "not a duration",
	} {
		got, err := ParseRate(in)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "write ") && !strings.Contains(err.Error(), "did you mean ") {
			t.Errorf("Parse(%q) = %v, %v, want an error with %q that says what to write", in, got, err, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		n    int64
		at   Rate
		want bool
	}{
		{0, Rate{Limit: 5, Window: time.Minute}, false},
		{100, Rate{Limit: 0, Window: time.Minute}, false},
		{math.MaxInt64, Rate{Limit: math.MaxInt64, Window: MaxWindow}, false},
		{math.MaxInt64, Rate{Limit: 1, Window: time.Millisecond}, true},
		{math.MaxInt64, Rate{Limit: 1, Window: MaxWindow}, true},
		{math.MaxInt64, Rate{Limit: 2, Window: time.Nanosecond}, true},
		{3650, Rate{Limit: 1, Window: 24 * time.Hour}, false},
		{3651, Rate{Limit: 1, Window: 24 * time.Hour}, true},
	} {
		if got := c.at.Span(c.n) > MaxWindow; got != c.want {
			t.Errorf("%v.Span(%d) = %v, longer than MaxWindow %t, want %t", c.at, c.n, c.at.Span(c.n), got, c.want)
		}
	}
}

func TestRateErrorsStayShort(t *testing.T) {
	long := strings.Repeat("9", 20000)
	for _, in := range []string{long, long + "/1m", "1/" + long, "1/" + long + "s", strings.Repeat("x", 20000) + "/1m"} {
		if _, err := ParseRate(in); err == nil || len(err.Error()) > 400 {
			t.Errorf("Parse(20 kB) = %v, want a short error", err)
		}
	}
}

func TestSorted(t *testing.T) {
	given := []Rate{{Limit: 9, Window: time.Hour}, {Limit: 5, Window: time.Minute}, {Limit: 3, Window: time.Minute}, {Limit: 7, Window: time.Hour}}
	want := []Rate{{Limit: 3, Window: time.Minute}, {Limit: 7, Window: time.Hour}}
	if got := Sorted(given); !slices.Equal(got, want) || given[0] != (Rate{Limit: 9, Window: time.Hour}) {
		t.Errorf("Sorted = %v of %v, want %v", got, given, want)
	}
}

func TestParseSyncRate(t *testing.T) {
	for in, want := range map[string]SyncRate{
		"-1": Local, "local": Local, "0": Strict, "strict": Strict, "0s": Strict,
		"1": SyncRate(time.Second), "0.5": SyncRate(500 * time.Millisecond), "0.02": SyncRate(20 * time.Millisecond),
		"20ms": SyncRate(20 * time.Millisecond), "250ms": SyncRate(250 * time.Millisecond), "1m30s": SyncRate(90 * time.Second), "1d": SyncRate(24 * time.Hour),
	} {
		got, err := ParseSyncRate(in)
		if err != nil || got != want {
			t.Errorf("ParseSyncRate(%q) = %v, %v, want %v", in, got, err, want)
		}
		if again, err := ParseSyncRate(got.String()); err != nil || again != got {
			t.Errorf("ParseSyncRate(%q) = %v, %v, want %v", got.String(), again, err, got)
		}
	}
	for _, in := range []string{"", "-2", "-0.5", "-1s", "19ms", "0.019", "1ns", "0.0000000001", "never", "nan", "inf", "-inf", "1e300", "4000d", "10r"} {
		if got, err := ParseSyncRate(in); err == nil || !strings.Contains(err.Error(), "write ") && !strings.Contains(err.Error(), "use ") {
			t.Errorf("ParseSyncRate(%q) = %v, %v, want an error that says what to write", in, got, err)
		}
	}
}

func TestSyncRateJSON(t *testing.T) {
	type holder struct {
		SyncRate *SyncRate `json:"sync_rate,omitempty"`
	}
	for in, want := range map[string]string{
		`{}`: `{}`, `{"sync_rate":null}`: `{}`, `{"sync_rate":0}`: `{"sync_rate":"strict"}`, `{"sync_rate":-1}`: `{"sync_rate":"local"}`,
		`{"sync_rate":"0"}`: `{"sync_rate":"strict"}`, `{"sync_rate":2}`: `{"sync_rate":"2s"}`, `{"sync_rate":0.25}`: `{"sync_rate":"250ms"}`,
		`{"sync_rate":"90s"}`: `{"sync_rate":"90s"}`, `{"sync_rate":"1h"}`: `{"sync_rate":"1h"}`,
	} {
		var h holder
		if err := json.Unmarshal([]byte(in), &h); err != nil {
			t.Errorf("Unmarshal(%s): %v", in, err)
			continue
		}
		if got, err := json.Marshal(h); err != nil || string(got) != want {
			t.Errorf("Marshal(Unmarshal(%s)) = %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{`0.001`, `-3`, `1e300`, `"5ms"`, `"soon"`, `true`, `[]`, `{}`} {
		var h holder
		if err := json.Unmarshal([]byte(`{"sync_rate":`+in+`}`), &h); err == nil || !strings.Contains(err.Error(), "parsing sync_rate: ") {
			t.Errorf("Unmarshal(%s) = %v, %v, want an error about sync_rate", in, h.SyncRate, err)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, seed := range []string{"100/1m", "10/s", "0/h", "5/90s", "1/1d", "-1/1m", "9223372036854775807/1ms", "1/0s", "1/1d1d", "1/.5d", "/", "1/1ns"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		r, err := ParseRate(in)
		if err != nil {
			says := strings.Contains(err.Error(), "write ") || strings.Contains(err.Error(), "did you mean ")
			if !says || len(err.Error()) > 800 {
				t.Errorf("Parse(%q): %v: doesn't say in short what to write", in, err)
			}
			return
		}
		if err := r.Check(); err != nil {
			t.Errorf("Parse(%q) = %v, which is wrong: %v", in, r, err)
		}
		if again, err := ParseRate(r.String()); err != nil || again != r {
			t.Errorf("Parse(%q) = %v, %v, want %v, as of %q", r.String(), again, err, r, in)
		}
	})
}

func FuzzSyncRateJSON(f *testing.F) {
	for _, seed := range []string{`0`, `-1`, `1`, `0.5`, `"1s"`, `"local"`, `"strict"`, `null`, `1e300`, `1e-300`, `"1d"`, `"\u0000"`, `[]`, `-0.0`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var s SyncRate
		if err := s.UnmarshalJSON(in); err != nil {
			return
		}
		if err := s.Check(); err != nil || s < Local {
			t.Errorf("UnmarshalJSON(%q) = %v, which is wrong: %v", in, s, err)
		}
		text, err := s.MarshalJSON()
		if err != nil {
			t.Fatalf("MarshalJSON(%v): %v", s, err)
		}
		var again SyncRate
		if err := again.UnmarshalJSON(text); err != nil || again != s {
			t.Errorf("UnmarshalJSON(%s) = %v, %v, want %v", text, again, err, s)
		}
	})
}

func TestParseLimit(t *testing.T) {
	for in, want := range map[string]Rate{
		"100/1m":                            {Limit: 100, Window: time.Minute},
		"{plan}/1m":                         {From: "{plan}", Window: time.Minute},
		"{http.request.header.X-Plan}/d":    {From: "{http.request.header.X-Plan}", Window: 24 * time.Hour},
		"{file./etc/plan}/90s":              {From: "{file./etc/plan}", Window: 90 * time.Second},
		"{http.request.uri.query.a/b}/1.5s": {From: "{http.request.uri.query.a/b}", Window: 1500 * time.Millisecond},
	} {
		got, err := ParseLimit(in)
		if err != nil || got != want {
			t.Errorf("ParseLimit(%q) = %+v, %v, want %+v", in, got, err, want)
		}
		if again, err := ParseLimit(got.String()); err != nil || again != want {
			t.Errorf("ParseLimit(%q) = %+v, %v, want %+v", got, again, err, want)
		}
	}
	for in, want := range map[string]string{
		"{plan}": "no window", "{plan}/": "no window", "{plan}1m": "no window", "{}/1m": "one placeholder", "{a}{b}/1m": "one placeholder",
		"{{a}}/1m": "one placeholder", "{plan/1m": "not a rate", "plan}/1m": "not a whole number", "5/{window}": "can't come with the request",
		"{plan}/{window}": "can't come with the request", "{plan}/0s": "empty", "{plan}/1ns": "too short", "/1m": "no number", "": "no number",
	} {
		if got, err := ParseLimit(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseLimit(%q) = %+v, %v, want an error with %q", in, got, err, want)
		}
	}
}

func TestEventsJSON(t *testing.T) {
	for in, want := range map[string]Events{`5`: {Number: 5}, `0`: {}, `-3`: {Number: -3}, `"{plan}"`: {From: "{plan}"}, `null`: {}} {
		var e Events
		if err := json.Unmarshal([]byte(in), &e); err != nil || e != want {
			t.Errorf("Unmarshal(%s) = %+v, %v, want %+v", in, e, err, want)
		}
		text, err := json.Marshal(e)
		var again Events
		if err != nil || json.Unmarshal(text, &again) != nil || again != want {
			t.Errorf("Marshal(%+v) = %s, %v, which is read as %+v", e, text, err, again)
		}
	}
	for _, in := range []string{`"5"`, `"plan"`, `"{}"`, `"{a}{b}"`, `""`, `5.5`, `1e30`, `true`, `[]`, `{}`, `"{a"`} {
		var e Events
		if err := json.Unmarshal([]byte(in), &e); err == nil {
			t.Errorf("Unmarshal(%s) = %+v, want an error", in, e)
		}
	}
}
