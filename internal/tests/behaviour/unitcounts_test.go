package behaviour_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// unitsIn returns what the metrics about units have of a zone, by their other label: those that are
// not 0.
func unitsIn(t *testing.T, zone string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
		if by := labels["what"] + labels["why"]; by != "" && labels["zone"] == zone && value > 0 {
			all[by] = value
		}
	})
	return all
}

// answering has a site's next handler answer with a status, header fields, and a body.
func answering(s *sitetest.Site, status int, body string, fields ...string) {
	s.Next = func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Add(fields[i], fields[i+1])
		}
		w.WriteHeader(status)
		if body == "" {
			return nil
		}
		_, err := w.Write([]byte(body))
		return err
	}
}

// What is admitted, less what is refunded, and what is charged, is what is used. A zone in which
// all costs are 1 has none of these metrics.
func TestMetricsOfUnitsAddUp(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("tokens", "limit 200/30d\nalgorithm fixed_window\ncost 30\ncount_responses 2xx\nresponse_cost header X-Cost")+sitetest.ZoneBlock("plain", "limit 1000/30d\ncount_responses 2xx"))
	for _, answer := range [][]string{{"200", "12"}, {"200", "100"}, {"500", ""}, {"200", ""}} {
		status := http.StatusOK
		if answer[0] == "500" {
			status = http.StatusInternalServerError
		}
		if answering(s, status, "x", "X-Cost", answer[1]); answer[1] == "" {
			answering(s, status, "x")
		}
		s.Admits("1.2.3.4", 1, map[int]int{200: 1}[status])
	}
	s.Admits("1.2.3.4", 2, 1) // 142 of 200 are used, then 172
	want := map[string]float64{"admitted": 150, "refunded": 18 + 30, "charged": 70, "denied": 30, "absent": 2}
	if got := unitsIn(t, "tokens"); !maps.Equal(got, want) {
		t.Errorf("the metrics have %v, want %v", got, want)
	}
	if got := unitsIn(t, "plain"); len(got) > 0 {
		t.Errorf("a zone without costs has %v", got)
	}

	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("points", "limit 10/30d\ncost {http.request.header.Cost}\ncost_default 1\ncount_responses 2xx")+sitetest.ZoneBlock("calls", "limit 3/30d\nalgorithm fixed_window"))
	answering(s, http.StatusNotFound, "")
	s.Get("1.2.3.4", sitetest.Header("Cost", "4"))
	answering(s, http.StatusOK, "")
	for _, cost := range []string{"7", "4", "11", "1e30", "1", "1"} { // calls denies the last
		s.Get("1.2.3.4", sitetest.Header("Cost", cost))
	}
	want = map[string]float64{"admitted": 12, "refunded": 4, "denied": 4}
	if got := unitsIn(t, "points"); !maps.Equal(got, want) {
		t.Errorf("the metrics have %v, want %v", got, want)
	}
}

// Why a response does not say what it costs is counted, and the first time of each it is warned of,
// with what to write; not where its client has gone, nor where there is no body.
func TestWhyAFigureIsMissing(t *testing.T) {
	type one struct {
		status       int
		body, fields string
		fails        error
		why, warns   string // "" for none
	}
	const usage = `{"usage":{"total_tokens":5}}`
	for source, answers := range map[string][]one{
		"json usage.total_tokens": {
			{200, usage, "Content-Type application/json", nil, "", ""},
			{200, usage, "Content-Type application/json Content-Encoding gzip", nil, "encoded", "TIDE040 header_up -Accept-Encoding"},
			{200, usage, "Content-Type application/json Content-Encoding identity", nil, "", ""},
			{200, `{"usage":{}}`, "Content-Type application/json", nil, "absent", "TIDE041 usage.total_tokens; correct the path"},
			{200, usage, "Content-Type text/plain", nil, "absent", "TIDE041 usage.total_tokens"},
			{200, `{"usage":{"total_tokens":"many"}}`, "Content-Type application/json", nil, "bad", "TIDE041 usage.total_tokens"},
			{200, `{"usage":`, "Content-Type application/json", errors.New("cut"), "gone", ""},
			{304, "", "Content-Type application/json", nil, "", ""},
		},
		"header X-Cost": {
			{200, "x", "X-Cost 5", nil, "", ""}, {200, "x", "", nil, "absent", "TIDE041 header X-Cost"}, {200, "x", "X-Cost 1,2", nil, "bad", "TIDE041 header X-Cost"}, {204, "", "", nil, "", ""},
		},
		"{http.vars.spent}": {{200, "x", "", nil, "absent", "TIDE041 {http.vars.spent}"}},
		"bytes":             {{101, "", "", nil, "absent", ""}},
	} {
		for i, a := range answers {
			zone := fmt.Sprintf("missing-%s-%d", source[:4], i)
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock(zone, "limit 1000/30d\nresponse_cost "+source))
			logs := s.Watched()
			answering(s, a.status, a.body, strings.Fields(a.fields)...)
			if write := s.Next; a.fails != nil {
				s.Next = func(w http.ResponseWriter, r *http.Request) error { return errors.Join(write(w, r), a.fails) }
			}
			for range 2 {
				s.Get("1.2.3.4")
			}
			got := unitsIn(t, zone)
			for _, units := range []string{"admitted", "refunded", "charged"} {
				delete(got, units)
			}
			if want := map[string]float64{a.why: 2}; !maps.Equal(got, want) && (a.why != "" || len(got) > 0) {
				t.Errorf("%s, %+v: missing %v, want twice %q", source, a, got, a.why)
			}
			lines := logs.All()
			code, text, _ := strings.Cut(a.warns, " ")
			if len(lines) != min(len(a.warns), 1) || len(lines) > 0 && (sitetest.Coded(logs, code) != 1 || !strings.Contains(lines[0].Message, text)) {
				t.Errorf("%s, %+v: the log has %v", source, a, lines)
			}
		}
	}
}

// Who finds only what is reserved hears how long answers take, which is when some of it comes back:
// no more than the limit would have it wait, and as ever where responses settle as they begin.
//
// bubble: each of the limits runs in one.
func TestRetryAfterOfWhatIsReserved(t *testing.T) {
	for _, c := range []struct {
		options, wait string
		took          time.Duration
	}{
		{"limit 100/10m\nresponse_cost json usage.total_tokens", "20", 20 * time.Second},
		{"limit 100/10m\nresponse_cost bytes", "1", 100 * time.Millisecond},
		{"limit 100/10s\nresponse_cost bytes", "10", 40 * time.Second},
		{"limit 100/10m\ncount_responses 5xx", "1", 20 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("slow-answers", "algorithm fixed_window\ncost 50\n"+c.options))
			defer s.End()
			s.Next = func(w http.ResponseWriter, _ *http.Request) error {
				time.Sleep(c.took)
				_, err := w.Write([]byte("x"))
				return err
			}
			for range 40 {
				s.Get("1.2.3.4")
				time.Sleep(20 * time.Minute)
			}
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			for range 2 {
				go s.Get("1.2.3.4")
			}
			synctest.Wait()
			if a := s.Get("1.2.3.4"); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != c.wait {
				t.Errorf("%q: %d, Retry-After %s, want %s", c.options, a.Status, a.Header.Get("Retry-After"), c.wait)
			}
			time.Sleep(time.Minute)
		})
	}
}
