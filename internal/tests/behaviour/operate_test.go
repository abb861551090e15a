package behaviour_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func TestChangesAtRunTime(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "run-time"}, sitetest.ZoneBlock("login", "limit 5/30d 20/60d")+sitetest.ZoneBlock("tenant", "key {http.request.header.X}\nlimit 10/30d"))
	c := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"203.0.113.9","limit":"6000/30d","for":"2h","note":"<b>beta</b>"}`)
	if c.Nodes != 1 || c.Applied != 1 || c.Shared || c.Pending || len(c.ID) != 32 || c.Limit != "6000/30d" {
		t.Errorf("an override says %+v", c)
	}
	if left := time.Until(c.Until); left < time.Hour || left > 2*time.Hour {
		t.Errorf("it ends in %v, want 2 hours", left)
	}
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"tenant","key":"alice","limit":"unlimited"}`)
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"login","share":0.25}`)
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"all":true,"share":0,"for":"15m"}`)

	_, text := sitetest.Ask(http.MethodGet, "/rate_limit/", "")
	if strings.Contains(text, "<b>") || strings.Contains(text, "203.0.113.9") {
		t.Errorf("the state shows a tag or a key: %s", text)
	}
	var s operate.State
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Overrides) != 2 || len(s.Enforcement) != 2 || !s.Enforcement[0].All || s.Overrides[1].Note != "<b>beta</b>" || s.Control.Digest == "000000000000" {
		t.Errorf("the state is %s", text)
	}
	if _, list := sitetest.Ask(http.MethodGet, sitetest.Overrides, ""); !strings.Contains(list, c.ID) {
		t.Errorf("the overrides are %s, want one with %s", list, c.ID)
	}

	if c := sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"login","key":"203.0.113.9"}`); !c.Removed || c.Applied != 1 {
		t.Errorf("removing one says %+v", c)
	}
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, fmt.Sprintf(`{"zone":"tenant","id":%q}`, overrideIDs(t)[0]))
	sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"zone":"login"}`)
	sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"all":true}`)
	for _, path := range []string{sitetest.Overrides, sitetest.Enforcement} {
		if _, list := sitetest.Ask(http.MethodGet, path, ""); list != "[]\n" {
			t.Errorf("GET %s = %s when all is removed", path, list)
		}
	}
}

// overrideIDs are the ids of the overrides in force.
func overrideIDs(t *testing.T) (ids []string) {
	t.Helper()
	var all []control.EntryState
	if _, text := sitetest.Ask(http.MethodGet, sitetest.Overrides, ""); json.Unmarshal([]byte(text), &all) != nil {
		t.Fatal(text)
	}
	for _, e := range all {
		ids = append(ids, e.ID)
	}
	return ids
}

// A badChange is a change that is rejected, and why.
type badChange struct {
	path, body string
	status     int
	says       string
}

func (c badChange) check(t *testing.T) {
	t.Helper()
	if status, text := sitetest.Ask(http.MethodPost, c.path, c.body); status != c.status || !strings.Contains(text, c.says) {
		t.Errorf("POST %s %.80s = %d %s, want %d and %s", c.path, c.body, status, text, c.status, c.says)
	}
}

// An override of a key that has one keeps its note, which may say who the key is, unless it has one
// of its own. That of one which was removed is gone.
func TestAnOverrideKeepsTheNoteBefore(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "notes"}, sitetest.ZoneBlock("login", "limit 5/30d"))
	for i, c := range []struct{ method, path, body, note string }{
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"50"}`, ""},
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"60","note":"Example Ltd"}`, "Example Ltd"},
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"70"}`, "Example Ltd"},
		{http.MethodPost, operate.BulkPath, `{"zone":"login","overrides":[{"key":"192.0.2.1","limit":"80"},{"key":"192.0.2.2","limit":"80"}]}`, "Example Ltd"},
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"deny","note":"abuse"}`, "abuse"},
		{http.MethodDelete, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1"}`, ""},
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"90"}`, ""},
	} {
		status, text := sitetest.Ask(c.method, c.path, c.body)
		said := strings.Contains(text, fmt.Sprintf(`"note":%q`, c.note))
		if status != http.StatusOK || c.path == sitetest.Overrides && said != (c.note != "") {
			t.Errorf("%d: %d %s, want the note %q", i, status, text, c.note)
		}
		if _, list := sitetest.Ask(http.MethodGet, sitetest.Overrides, ""); strings.Count(list, `"note"`) != min(1, len(c.note)) || !strings.Contains(list, c.note) {
			t.Errorf("%d: the list is %s, want the note %q", i, list, c.note)
		}
	}
}

// Overrides are listed with the newest first: what was set today is not behind thousands.
func TestTheNewestOverridesComeFirst(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "newest"}, sitetest.ZoneBlock("login", "limit 5/30d")+sitetest.ZoneBlock("all", "limit 9/30d"))
	for _, limit := range []string{"1", "2", "3", "4"} {
		zone := map[string]string{"2": "all"}[limit]
		sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.%s","limit":%q}`, cmp.Or(zone, "login"), limit, limit))
	}
	var s operate.State
	_, text := sitetest.Ask(http.MethodGet, "/rate_limit/", "")
	if err := json.Unmarshal([]byte(text), &s); err != nil || len(s.Overrides) != 4 {
		t.Fatalf("%s, %v", text, err)
	}
	for i, o := range s.Overrides {
		if o.Limit != fmt.Sprint(4-i) {
			t.Errorf("override %d is %+v, want the newest first", i, o)
		}
	}
}

// The empty key, which all requests without one share, is a key like any other where empty_key is
// share. Elsewhere no request is counted by it.
func TestTheEmptyKeyCanBeNamed(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "nameless"}, sitetest.ZoneBlock("shared", "limit 5/30d\nkey {http.request.header.X}\nempty_key share")+sitetest.ZoneBlock("denied", "limit 5/30d\nkey {http.request.header.X}\nempty_key deny"))
	if c := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"shared","key":"","limit":"9"}`); c.Limit != "9" {
		t.Errorf("an override says %+v", c)
	}
	if status, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"shared","key":""}`); status != http.StatusOK || !strings.Contains(text, `"key":""`) || !strings.Contains(text, `"override":"9"`) {
		t.Errorf("explain = %d %s, want the empty key with its override", status, text)
	}
	if status, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"denied","key":""}`); status != http.StatusBadRequest || !strings.Contains(text, "key: it is empty") {
		t.Errorf("explain of a zone that denies it = %d %s", status, text)
	}
}

// An empty key is rejected as well where the zone's key has text or a host beside what tells
// clients apart: no request is counted by it, so an override would change nothing.
func TestAnEmptyKeyWithTextAroundItIsRejected(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "nameless text"}, sitetest.ZoneBlock("tenant", "limit 5/30d\nkey \"tenant {http.request.header.X}\"")+
		sitetest.ZoneBlock("of-host", "limit 5/30d\nkey {http.request.host}/{http.request.header.X}")+sitetest.ZoneBlock("shared-text", "limit 5/30d\nkey \"tenant {http.request.header.X}\"\nempty_key share"))
	for zone, key := range map[string]string{"tenant": "tenant ", "of-host": "example.com/"} {
		for path, body := range map[string]string{sitetest.Overrides: `{"zone":%q,"key":%q,"limit":"9"}`, operate.ExplainPath: `{"zone":%q,"key":%q}`} {
			if status, text := sitetest.Ask(http.MethodPost, path, fmt.Sprintf(body, zone, key)); status != http.StatusBadRequest || !strings.Contains(text, "key: it is empty") {
				t.Errorf("%s of %q in zone %s = %d %s, want that the key is empty", path, key, zone, status, text)
			}
		}
	}
	for _, body := range []string{`{"zone":"tenant","key":"tenant a"}`, `{"zone":"of-host","key":"/a"}`, `{"zone":"shared-text","key":"tenant "}`, `{"zone":"tenant","key":"client_ip:192.0.2.1"}`} {
		if status, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, body); status != http.StatusOK {
			t.Errorf("%s = %d %s", body, status, text)
		}
	}
}

// no clock: nothing of it is taken, and no request is sent.
func TestOverridesThatAreRejected(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "refused"}, sitetest.ZoneBlock("login", "limit 5/1m 20/1h")+sitetest.ZoneBlock("tenant", "limit 10/1m")+sitetest.ZoneBlock("fast", "limit 10/1s"))
	for _, c := range []badChange{
		{sitetest.Overrides, ``, 400, "it is empty"},
		{sitetest.Overrides, `no json`, 400, "not what is expected"},
		{sitetest.Overrides, `[]`, 400, "it is of type array"},
		{sitetest.Overrides, `{"zone":"login","kee":"a"}`, 400, `did you mean "key"?`},
		{sitetest.Overrides, `{"zone":"login","limit":6000}`, 400, "limit is of type number"},
		{sitetest.Overrides, `{"zone":"login"} {}`, 400, "something follows"},
		{sitetest.Overrides, `{"note":"` + strings.Repeat("x", 1<<16) + `"}`, 413, "64 kB"},
		{sitetest.Overrides, `{"zone":"logn","key":"192.0.2.1","limit":"deny"}`, 404, `there is no zone "logn"; did you mean "login"?`},
		{sitetest.Overrides, `{"zone":"other","key":"192.0.2.1","limit":"deny"}`, 404, "there are fast, login, tenant"},
		{sitetest.Overrides, `{"key":"192.0.2.1","limit":"deny"}`, 400, `give "zone"`},
		{sitetest.Overrides, `{"zone":"login","limit":"deny"}`, 400, `give "key" or "id"`},
		{sitetest.Overrides, `{"zone":"login","key":"1.2.3.4","id":"x","limit":"deny"}`, 400, `give "key" or "id"`},
		{sitetest.Overrides, `{"zone":"login","id":"short","limit":"deny"}`, 400, "an id is hex digits"},
		{sitetest.Overrides, `{"zone":"login","key":"","limit":"deny"}`, 400, "key: it is empty"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.300","limit":"deny"}`, 400, `"192.0.2.300" is no address; write one`},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.0/24","limit":"deny"}`, 400, "this zone counts by /32, and IPv6 by /64"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.1"}`, 400, `give "limit"`},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"many"}`, 400, "or write unlimited or deny"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"-5/1m"}`, 400, "negative"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"6000"}`, 400, "name the window of one, as in 6000/1m"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"6000/1d"}`, 400, "its windows are 1m, 1h; for about the same rate write 4/1m or 250/1h"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"1/1d"}`, 400, "its windows are 1m, 1h; write at least 1/1m or 1/1h, or deny"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"0.5/1s"}`, 400, `limit: "0.5/1s" is not a rate of the zone; its windows are 1m; for about the same rate write 30/1m`},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"100rph"}`, 400, "its windows are 1m; for about the same rate write 1/1m"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"100rpm"}`, 400, "did you mean 100/1m?"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"0.5/s"}`, 400, "its windows are 1m, 1h; for about the same rate write 30/1m or 1800/1h"},
		{sitetest.Overrides, `{"zone":"fast","key":"192.0.2.1","limit":"0.5/s"}`, 400, "its windows are 1s; write at least 1/1s, or deny"},
		{sitetest.Overrides, `{"zone":"fast","key":"192.0.2.1","limit":"9000000000000/1ms"}`, 400, "its windows are 1s"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"9007199254740993"}`, 400, "too large"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","for":"soon"}`, 400, "no duration"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","for":"0s"}`, 400, "not between"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","for":"20000d"}`, 400, "not between"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"a\nb"}`, 400, `the note holds '\n'`},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"\u001b[31m"}`, 400, "the note holds"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"\u202ea"}`, 400, "the note holds"},
		{sitetest.Overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"` + strings.Repeat("x", 257) + `"}`, 400, "257 bytes"},
		{sitetest.Overrides, `{"all":true,"limit":"deny"}`, 400, "/rate_limit/enforcement"},
	} {
		c.check(t)
	}
	if status, text := sitetest.Ask(http.MethodDelete, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1"}`); status != http.StatusNotFound {
		t.Errorf("removing what is not there = %d %s, want 404", status, text)
	}
	if ids := overrideIDs(t); len(ids) > 0 {
		t.Errorf("something was taken for all that: %v", ids)
	}
}

// no clock: nothing of it is taken, and no request is sent.
func TestEnforcementsThatAreRejected(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "refused"}, sitetest.ZoneBlock("login", "limit 5/1m 20/1h")+sitetest.ZoneBlock("tenant", "limit 10/1m"))
	for _, c := range []badChange{
		{sitetest.Enforcement, `{"zone":"login","key":"192.0.2.1","share":1}`, 400, "/rate_limit/overrides"},
		{sitetest.Enforcement, `{"zone":"login"}`, 400, `give "share"`},
		{sitetest.Enforcement, `{"share":1}`, 400, `give "zone", or "all"`},
		{sitetest.Enforcement, `{"zone":"login","all":true,"share":1}`, 400, `give "zone", or "all"`},
		{sitetest.Enforcement, `{"zone":"login","share":1.01}`, 400, "not between 0 and 1"},
		{sitetest.Enforcement, `{"zone":"login","share":-0.01}`, 400, "not between 0 and 1"},
		{sitetest.Enforcement, `{"zone":"login","share":"half"}`, 400, "share is of type string"},
		{sitetest.Enforcement, `{"zone":"lgoin","share":1}`, 404, `did you mean "login"?`},
		{"/rate_limit/override", `{}`, 404, "there is no /rate_limit/override"},
		{"/rate_limit/overrides/", `{}`, 404, "there is no /rate_limit/overrides/"},
	} {
		c.check(t)
	}
	for _, path := range []string{sitetest.Overrides, sitetest.Enforcement} {
		if status, _ := sitetest.Ask(http.MethodPut, path, "{}"); status != http.StatusMethodNotAllowed {
			t.Errorf("PUT %s = %d, want %d", path, status, http.StatusMethodNotAllowed)
		}
	}
	if ids := overrideIDs(t); len(ids) > 0 {
		t.Errorf("something was taken for all that: %v", ids)
	}
}

// A zone is enforced by what was said last, and by its configuration again when that is taken back.
func TestEnforcementAtRunTime(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: "kill-switch"}, sitetest.ZoneBlock("first", "limit 1/30d")+sitetest.ZoneBlock("second", "limit 1/30d"))
	s.Admits("203.0.113.1", 2, 1)
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"all":true,"share":0}`)
	s.Admits("203.0.113.1", 3, 3)
	if all := sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"first","share":1}`).AllZones; all == nil || *all.Share != 0 || !all.Until.After(all.Since) {
		t.Errorf("the answer says of all zones %+v, want that they are not enforced, and until when", all)
	}
	s.Admits("203.0.113.1", 1, 1) // the kill switch goes first
	sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"all":true}`)
	s.Admits("203.0.113.1", 1, 0)
	if all := sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"first","share":0}`).AllZones; all != nil {
		t.Errorf("nothing is set for all zones, and the answer says %+v", all)
	}
	s.Admits("203.0.113.1", 1, 0) // the second zone
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"second","share":0}`)
	s.Admits("203.0.113.1", 1, 1)
	for _, zone := range []string{"first", "second"} {
		sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, fmt.Sprintf(`{"zone":%q}`, zone))
	}
	s.Admits("203.0.113.1", 1, 0)
}

// An operator denies all requests of a key, or admits them without counting, in one zone.
func TestOverridesThatAreNoRates(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: "no-rates"}, sitetest.ZoneBlock("first", "limit 2/30d")+sitetest.ZoneBlock("second", "limit 5/30d"))
	const barred, free, other = "203.0.113.1", "203.0.113.2", "203.0.113.3"
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"second","key":"203.0.113.1","limit":"deny"}`)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"first","key":"203.0.113.2","limit":"unlimited"}`)
	for range 2 {
		a := s.Get(barred)
		if a.Status != http.StatusForbidden || a.Header.Get("Retry-After") != "" || a.Header.Get("RateLimit") != "" || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("a barred key is answered %d with %v", a.Status, a.Header)
		}
	}
	s.Admits(free, 7, 5) // by the second zone
	s.Admits(other, 4, 2)
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"second","key":"203.0.113.1"}`)
	s.Admits(barred, 3, 2) // nothing was spent in the first zone
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"first","key":"203.0.113.2"}`)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"first","key":"203.0.113.3","limit":"deny"}`)
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"all":true,"share":0}`)
	s.Admits(other, 1, 1) // the kill switch goes first
	sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"all":true}`)
	if a := s.Get(other); a.Status != http.StatusForbidden {
		t.Errorf("without the kill switch it is answered %d, want 403", a.Status)
	}
	// For a second run of the test.
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"first","key":"203.0.113.3"}`)
}

// A key goes by the number that an operator has set for it, with what it has spent, also where
// Redis decides.
func TestOverridesByRate(t *testing.T) {
	r := redistest.Start(t)
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"} {
		t.Run("local "+algorithm, func(t *testing.T) {
			name := "by-rate-" + algorithm
			checkOverride(t, sitetest.NewSite(t, &ratelimit.App{Namespace: name}, sitetest.ZoneBlock(name, "algorithm "+algorithm+"\nlimit 4/30d")), name)
		})
		t.Run("strict "+algorithm, func(t *testing.T) {
			name, app := "by-rate-strict-"+algorithm, sitetest.AppWith(r)
			app.StrictTimeout = caddy.Duration(10 * time.Second) // for a busy machine
			checkOverride(t, sitetest.NewSite(t, app, sitetest.ZoneBlock(name, "sync_rate strict\nalgorithm "+algorithm+"\nlimit 4/30d")), name)
		})
	}
}

// checkOverride drives a zone of 4/30d while its limit is changed for one key.
func checkOverride(t *testing.T, s *sitetest.Site, name string) {
	const vip, other = "203.0.113.1", "203.0.113.2"
	s.Admits(other, 2, 2)
	s.Admits(vip, 6, 4)
	change := func(limit string) {
		t.Helper()
		sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":%q,"limit":%q}`, name, vip, limit))
	}
	change("10/30d")
	s.Admits(vip, 10, 6)
	if a := s.Get(vip); !strings.Contains(strings.Join(a.Header["Ratelimit-Policy"], ""), ";q=10;") || a.Status != http.StatusTooManyRequests {
		t.Errorf("%d with %v, want a policy with 10", a.Status, a.Header)
	}
	change("20")
	s.Admits(vip, 12, 10)
	change("0")
	s.Admits(vip, 2, 0)
	s.Admits(other, 4, 2)
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":%q}`, name, vip))
	s.Admits(vip, 2, 0)
	s.End()
}

// A reset gives a key all of its limit again, in zones of every algorithm and however they are
// synced. An override or another key stays as it is, and explain and top see what is left.
func TestReset(t *testing.T) {
	r := redistest.Start(t)
	for _, options := range []string{
		"limit 5/30d", "limit 5/30d\nalgorithm fixed_window", "limit 5/30d 7/60d\nalgorithm sliding_log", "limit 5/30d\nalgorithm token_bucket",
		"limit 5/30d\nalgorithm gcra", "limit 5/60d\nbuckets 4", "limit {http.vars.plan}/30d\nlimit_default 5/30d",
		"limit {http.vars.plan}/30d\nlimit_default 5/30d\nalgorithm token_bucket",
	} {
		for i, rate := range []string{"local", "200ms", "strict"} {
			t.Run(rate+" "+options, func(t *testing.T) {
				app := new(ratelimit.App)
				if rate != "local" {
					app = sitetest.AppWith(r)
					app.StrictTimeout = caddy.Duration(10 * time.Second) // for a busy machine
				}
				app.Namespace = fmt.Sprint("reset", i, strings.Map(letters, options))
				change, vips := "8/30d", 8
				switch {
				case strings.Contains(options, "/30d 7/60d"):
					vips = 7
				case strings.Contains(options, "/60d"):
					change = "8/60d"
				}
				checkReset(t, sitetest.NewSite(t, app, sitetest.ZoneBlock("login", options+"\nsync_rate "+rate)), change, vips)
			})
		}
	}
}

// letters drops what is none.
func letters(r rune) rune {
	if unicode.IsLetter(r) {
		return r
	}
	return -1
}

// reset makes a reset, which all nodes must apply.
func reset(t *testing.T, body string) (r operate.ResetDone) {
	t.Helper()
	status, text := sitetest.Ask(http.MethodPost, operate.ResetPath, body)
	if err := json.Unmarshal([]byte(text), &r); status != http.StatusOK || err != nil || r.Applied != 1 || r.Nodes != 1 {
		t.Fatalf("reset %s = %d %s", body, status, text)
	}
	return r
}

// checkReset drives a zone of 5 requests while keys of it are reset, with an override of one
// key, which then has vips.
func checkReset(t *testing.T, s *sitetest.Site, override string, vips int) {
	const key, other, vip, ofKey = "192.0.2.1", "192.0.2.2", "192.0.2.3", `{"zone":"login","key":"192.0.2.1"}`
	s.Admits(key, 6, 5)
	s.Admits(other, 2, 2)
	if r := reset(t, ofKey); r.Forgiven != 5 || len(r.ID) != 32 || r.Stays != nil {
		t.Errorf("a reset says %+v, want 5 forgiven", r)
	}
	if status, text := sitetest.Ask(http.MethodPost, "/rate_limit/explain", ofKey); status != http.StatusOK || !strings.Contains(text, `"used":0`) || strings.Contains(text, "denied") {
		t.Errorf("after a reset explain says %d %s, want that nothing is used", status, text)
	}
	s.Admits(key, 6, 5)
	s.Admits(other, 6, 3)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.3","limit":"`+override+`"}`)
	if a := s.Get(vip); a.Status != http.StatusOK {
		t.Errorf("with an override it is answered %d", a.Status)
	}
	if r := reset(t, `{"zone":"login","all":true}`); r.Forgiven < 10 || r.Forgiven > 11 || !r.All {
		t.Errorf("a reset of all says %+v, want 11 forgiven", r)
	}
	s.Admits(key, 6, 5)
	s.Admits(other, 6, 5)
	s.Admits(vip, 10, vips)
	s.End()
}

// Top lists what is left after a reset.
func TestTopAfterAReset(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("login", "limit 5/30d"))
	s.Admits("192.0.2.1", 5, 5)
	s.Admits("192.0.2.2", 2, 2)
	reset(t, `{"zone":"login","key":"192.0.2.1"}`)
	status, text := sitetest.Ask(http.MethodGet, "/rate_limit/top?zone=login&by=used", "")
	if status != http.StatusOK || strings.Count(text, `"used"`) != 1 || !strings.Contains(text, `"used":2`) {
		t.Errorf("after a reset top says %d %s, want only the key that was not reset", status, text)
	}
}

// A reset says what it leaves as it is.
func TestWhatAResetLeaves(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("queue", "limit 5/30d\nalgorithm leaky_bucket\nqueue 4"))
	if r := reset(t, `{"zone":"queue","all":true}`); len(r.Stays) != 1 || !strings.Contains(r.Stays[0], "wait") {
		t.Errorf("a reset of a queue says %q, want that who waits keeps his slot", r.Stays)
	}
	s.End()
	s = sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("small", "limit 5/30d\nmax_keys 1"))
	for i := range 5 {
		s.Admits(fmt.Sprint("192.0.2.", i), 1, 1)
	}
	if r := reset(t, `{"zone":"small","key":"192.0.2.9"}`); len(r.Stays) != 1 || !strings.Contains(r.Stays[0], "max_keys") {
		t.Errorf("a reset beyond max_keys says %q, want that the sketch stays", r.Stays)
	}
	if r := reset(t, `{"zone":"small","all":true}`); r.Stays != nil {
		t.Errorf("a reset of all keys says %q stays", r.Stays)
	}
	s.Admits("192.0.2.9", 6, 5)
}

func TestResetsThatAreRefused(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "resets"}, sitetest.ZoneBlock("login", "limit 5/30d"))
	for body, want := range map[string]string{
		`{"key":"192.0.2.1"}`:                              `400 give "zone"`,
		`{"zone":"login"}`:                                 `400 give "key", "id" or "all"`,
		`{"zone":"login","key":"192.0.2.1","all":true}`:    `400 give "key", "id" or "all"`,
		`{"zone":"login","all":true,"for":"1h"}`:           `400 the body is not what is expected: there is no "for"`,
		`{"zone":"logn","all":true}`:                       `404 there is no zone "logn"; did you mean "login"?`,
		`{"zone":"login","id":"short"}`:                    `400 id: "short" is invalid; an id is hex digits`,
		`{"zone":"login","all":true,"x":"` + "\x1b" + `"}`: "400 the body is not",
	} {
		if status, text := sitetest.Ask(http.MethodPost, operate.ResetPath, body); !strings.HasPrefix(fmt.Sprint(status, " ", text), want) {
			t.Errorf("reset %s = %d %s, want %s", body, status, text, want)
		}
	}
	if status, _ := sitetest.Ask(http.MethodGet, operate.ResetPath, ""); status != http.StatusMethodNotAllowed {
		t.Errorf("GET = %d, want 405", status)
	}
}

// Explain and top over HTTP: what they answer, and what is wrong with a request. Neither counts.
func TestLooksOverHTTP(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: "looks"}, sitetest.ZoneBlock("login", "limit 5/30d")+sitetest.ZoneBlock("tenant", "key {http.request.header.X}\nlimit 10/30d"))
	const explain, top = "/rate_limit/explain", "/rate_limit/top"
	s.Admits("192.0.2.1", 2, 2)
	const login = `{"zone":"login","key":"192.0.2.1"}`
	first, text := sitetest.Ask(http.MethodPost, explain, login)
	if first != http.StatusOK || !strings.Contains(text, `"used":2`) {
		t.Errorf("explain after two requests = %d %s, want used 2", first, text)
	}
	if _, again := sitetest.Ask(http.MethodPost, explain, login); !strings.Contains(again, `"used":2`) {
		t.Errorf("explain has counted: %s", again)
	}
	if status, text := sitetest.Ask(http.MethodGet, top+"?zone=login&n=1", ""); status != http.StatusOK || !strings.Contains(text, `"used":2`) {
		t.Errorf("top = %d %s, want one key that has used 2", status, text)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{http.MethodGet, explain, ``, 405, "use POST"},
		{http.MethodPost, explain, ``, 400, "it is empty"},
		{http.MethodPost, explain, `{}`, 400, `give "url" for a request`},
		{http.MethodPost, explain, `{"url":"http://a/","zone":"login"}`, 400, `give "url" for a request`},
		{http.MethodPost, explain, `{"url":"http://a/","key":"b"}`, 400, "belong to a zone"},
		{http.MethodPost, explain, `{"zone":"logn","key":"192.0.2.1"}`, 404, `did you mean "login"?`},
		{http.MethodPost, explain, `{"zone":"login"}`, 400, `give "key" or "id"`},
		{http.MethodPost, explain, `{"zone":"login","id":"x"}`, 400, "id: "},
		{http.MethodPost, explain, `{"zone":"login","id":"AAAAAAAAAAAAAAAAAAAAAA"}`, 404, "give the key"},
		{http.MethodPost, explain, `{"note":"` + strings.Repeat("x", 1<<16) + `"}`, 413, "64 kB"},
		{http.MethodPost, top, ``, 405, "use GET"},
		{http.MethodGet, top + "?zone=logn", ``, 404, `did you mean "login"?`},
		{http.MethodGet, top + "?n=many", ``, 400, "is no number"},
		{http.MethodGet, top + "?by=size", ``, 400, "size"},
		{http.MethodGet, "/rate_limit/tops", ``, 404, "the state is at"},
	} {
		if status, text := sitetest.Ask(c.method, c.path, c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s %.60s = %d %s, want %d and %q", c.method, c.path, c.body, status, text, c.status, c.says)
		}
	}
}
