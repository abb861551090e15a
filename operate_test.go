package ratelimit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// ask makes a request to the admin endpoint.
func ask(method, path, body string) (status int, text string) {
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(body))
	if err := new(adminAPI).serve(w, r); err != nil {
		var failed caddy.APIError
		if !errors.As(err, &failed) {
			return http.StatusInternalServerError, err.Error()
		}
		return failed.HTTPStatus, failed.Err.Error()
	}
	return w.Code, w.Body.String()
}

// changed makes a change, which must succeed.
func changed(t *testing.T, method, path, body string) (c operate.Changed) {
	t.Helper()
	status, text := ask(method, path, body)
	if err := json.Unmarshal([]byte(text), &c); status != http.StatusOK || err != nil {
		t.Fatalf("%s %s %s = %d %s", method, path, body, status, text)
	}
	return c
}

const (
	overrides   = "/rate_limit/overrides"
	enforcement = "/rate_limit/enforcement"
)

func TestChangesAtRunTime(t *testing.T) {
	newSite(t, &App{Namespace: "run-time"}, zoneBlock("login", "limit 5/1m 20/1h")+zoneBlock("tenant", "key {http.request.header.X}\nlimit 10/1m"))
	c := changed(t, http.MethodPost, overrides, `{"zone":"login","key":"203.0.113.9","limit":"6000/1m","for":"2h","note":"<b>beta</b>"}`)
	if c.Nodes != 1 || c.Applied != 1 || c.Shared || c.Pending || len(c.ID) != 32 || c.Limit != "6000/1m" {
		t.Errorf("an override says %+v", c)
	}
	if left := time.Until(c.Until); left < time.Hour || left > 2*time.Hour {
		t.Errorf("it ends in %v, want 2 hours", left)
	}
	changed(t, http.MethodPost, overrides, `{"zone":"tenant","key":"alice","limit":"unlimited"}`)
	changed(t, http.MethodPost, enforcement, `{"zone":"login","share":0.25}`)
	changed(t, http.MethodPost, enforcement, `{"all":true,"share":0,"for":"15m"}`)

	_, text := ask(http.MethodGet, "/rate_limit/", "")
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
	if _, list := ask(http.MethodGet, overrides, ""); !strings.Contains(list, c.ID) {
		t.Errorf("the overrides are %s, want one with %s", list, c.ID)
	}

	if c := changed(t, http.MethodDelete, overrides, `{"zone":"login","key":"203.0.113.9"}`); !c.Removed || c.Applied != 1 {
		t.Errorf("removing one says %+v", c)
	}
	changed(t, http.MethodDelete, overrides, fmt.Sprintf(`{"zone":"tenant","id":%q}`, overrideIDs(t)[0]))
	changed(t, http.MethodDelete, enforcement, `{"zone":"login"}`)
	changed(t, http.MethodDelete, enforcement, `{"all":true}`)
	for _, path := range []string{overrides, enforcement} {
		if _, list := ask(http.MethodGet, path, ""); list != "[]\n" {
			t.Errorf("GET %s = %s when all is removed", path, list)
		}
	}
}

// overrideIDs are the ids of the overrides in force.
func overrideIDs(t *testing.T) (ids []string) {
	t.Helper()
	var all []control.EntryState
	if _, text := ask(http.MethodGet, overrides, ""); json.Unmarshal([]byte(text), &all) != nil {
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
	if status, text := ask(http.MethodPost, c.path, c.body); status != c.status || !strings.Contains(text, c.says) {
		t.Errorf("POST %s %.80s = %d %s, want %d and %s", c.path, c.body, status, text, c.status, c.says)
	}
}

// An override of a key that has one keeps its note, which may say who the key is, unless it has one
// of its own. That of one which was removed is gone.
func TestAnOverrideKeepsTheNoteBefore(t *testing.T) {
	newSite(t, &App{Namespace: "notes"}, zoneBlock("login", "limit 5/1m"))
	for i, c := range []struct{ method, path, body, note string }{
		{http.MethodPost, overrides, `{"zone":"login","key":"192.0.2.1","limit":"50"}`, ""},
		{http.MethodPost, overrides, `{"zone":"login","key":"192.0.2.1","limit":"60","note":"Example Ltd"}`, "Example Ltd"},
		{http.MethodPost, overrides, `{"zone":"login","key":"192.0.2.1","limit":"70"}`, "Example Ltd"},
		{http.MethodPost, operate.BulkPath, `{"zone":"login","overrides":[{"key":"192.0.2.1","limit":"80"},{"key":"192.0.2.2","limit":"80"}]}`, "Example Ltd"},
		{http.MethodPost, overrides, `{"zone":"login","key":"192.0.2.1","limit":"deny","note":"abuse"}`, "abuse"},
		{http.MethodDelete, overrides, `{"zone":"login","key":"192.0.2.1"}`, ""},
		{http.MethodPost, overrides, `{"zone":"login","key":"192.0.2.1","limit":"90"}`, ""},
	} {
		status, text := ask(c.method, c.path, c.body)
		said := strings.Contains(text, fmt.Sprintf(`"note":%q`, c.note))
		if status != http.StatusOK || c.path == overrides && said != (c.note != "") {
			t.Errorf("%d: %d %s, want the note %q", i, status, text, c.note)
		}
		if _, list := ask(http.MethodGet, overrides, ""); strings.Count(list, `"note"`) != min(1, len(c.note)) || !strings.Contains(list, c.note) {
			t.Errorf("%d: the list is %s, want the note %q", i, list, c.note)
		}
	}
}

// Overrides are listed with the newest first: what was set today is not behind thousands.
func TestTheNewestOverridesComeFirst(t *testing.T) {
	newSite(t, &App{Namespace: "newest"}, zoneBlock("login", "limit 5/1m")+zoneBlock("all", "limit 9/1m"))
	for _, limit := range []string{"1", "2", "3", "4"} {
		zone := map[string]string{"2": "all"}[limit]
		changed(t, http.MethodPost, overrides, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.%s","limit":%q}`, cmp.Or(zone, "login"), limit, limit))
	}
	var s operate.State
	_, text := ask(http.MethodGet, "/rate_limit/", "")
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
	newSite(t, &App{Namespace: "nameless"}, zoneBlock("shared", "limit 5/1m\nkey {http.request.header.X}\nempty_key share")+zoneBlock("denied", "limit 5/1m\nkey {http.request.header.X}\nempty_key deny"))
	if c := changed(t, http.MethodPost, overrides, `{"zone":"shared","key":"","limit":"9"}`); c.Limit != "9" {
		t.Errorf("an override says %+v", c)
	}
	if status, text := ask(http.MethodPost, operate.ExplainPath, `{"zone":"shared","key":""}`); status != http.StatusOK || !strings.Contains(text, `"key":""`) || !strings.Contains(text, `"override":"9"`) {
		t.Errorf("explain = %d %s, want the empty key with its override", status, text)
	}
	if status, text := ask(http.MethodPost, operate.ExplainPath, `{"zone":"denied","key":""}`); status != http.StatusBadRequest || !strings.Contains(text, "key: it is empty") {
		t.Errorf("explain of a zone that denies it = %d %s", status, text)
	}
}

// An empty key is rejected as well where the zone's key has text or a host beside what tells
// clients apart: no request is counted by it, so an override would change nothing.
func TestAnEmptyKeyWithTextAroundItIsRejected(t *testing.T) {
	newSite(t, &App{Namespace: "nameless text"}, zoneBlock("tenant", "limit 5/1m\nkey \"tenant {http.request.header.X}\"")+
		zoneBlock("of-host", "limit 5/1m\nkey {http.request.host}/{http.request.header.X}")+zoneBlock("shared-text", "limit 5/1m\nkey \"tenant {http.request.header.X}\"\nempty_key share"))
	for zone, key := range map[string]string{"tenant": "tenant ", "of-host": "example.com/"} {
		for path, body := range map[string]string{overrides: `{"zone":%q,"key":%q,"limit":"9"}`, operate.ExplainPath: `{"zone":%q,"key":%q}`} {
			if status, text := ask(http.MethodPost, path, fmt.Sprintf(body, zone, key)); status != http.StatusBadRequest || !strings.Contains(text, "key: it is empty") {
				t.Errorf("%s of %q in zone %s = %d %s, want that the key is empty", path, key, zone, status, text)
			}
		}
	}
	for _, body := range []string{`{"zone":"tenant","key":"tenant a"}`, `{"zone":"of-host","key":"/a"}`, `{"zone":"shared-text","key":"tenant "}`, `{"zone":"tenant","key":"client_ip:192.0.2.1"}`} {
		if status, text := ask(http.MethodPost, operate.ExplainPath, body); status != http.StatusOK {
			t.Errorf("%s = %d %s", body, status, text)
		}
	}
}

func TestOverridesThatAreRejected(t *testing.T) {
	newSite(t, &App{Namespace: "refused"}, zoneBlock("login", "limit 5/1m 20/1h")+zoneBlock("tenant", "limit 10/1m")+zoneBlock("fast", "limit 10/1s"))
	for _, c := range []badChange{
		{overrides, ``, 400, "it is empty"},
		{overrides, `no json`, 400, "not what is expected"},
		{overrides, `[]`, 400, "it is of type array"},
		{overrides, `{"zone":"login","kee":"a"}`, 400, `did you mean "key"?`},
		{overrides, `{"zone":"login","limit":6000}`, 400, "limit is of type number"},
		{overrides, `{"zone":"login"} {}`, 400, "something follows"},
		{overrides, `{"note":"` + strings.Repeat("x", 1<<16) + `"}`, 413, "64 kB"},
		{overrides, `{"zone":"logn","key":"192.0.2.1","limit":"deny"}`, 404, `there is no zone "logn"; did you mean "login"?`},
		{overrides, `{"zone":"other","key":"192.0.2.1","limit":"deny"}`, 404, "there are fast, login, tenant"},
		{overrides, `{"key":"192.0.2.1","limit":"deny"}`, 400, `give "zone"`},
		{overrides, `{"zone":"login","limit":"deny"}`, 400, `give "key" or "id"`},
		{overrides, `{"zone":"login","key":"1.2.3.4","id":"x","limit":"deny"}`, 400, `give "key" or "id"`},
		{overrides, `{"zone":"login","id":"short","limit":"deny"}`, 400, "an id is hex digits"},
		{overrides, `{"zone":"login","key":"","limit":"deny"}`, 400, "key: it is empty"},
		{overrides, `{"zone":"login","key":"192.0.2.300","limit":"deny"}`, 400, `"192.0.2.300" is no address; write one`},
		{overrides, `{"zone":"login","key":"192.0.2.0/24","limit":"deny"}`, 400, "this zone counts by /32, and IPv6 by /64"},
		{overrides, `{"zone":"login","key":"192.0.2.1"}`, 400, `give "limit"`},
		{overrides, `{"zone":"login","key":"192.0.2.1","limit":"many"}`, 400, "or write unlimited or deny"},
		{overrides, `{"zone":"login","key":"192.0.2.1","limit":"-5/1m"}`, 400, "negative"},
		{overrides, `{"zone":"login","key":"192.0.2.1","limit":"6000"}`, 400, "name the window of one, as in 6000/1m"},
		{overrides, `{"zone":"login","key":"192.0.2.1","limit":"6000/1d"}`, 400, "its windows are 1m, 1h; for about the same rate write 4/1m or 250/1h"},
		{overrides, `{"zone":"login","key":"192.0.2.1","limit":"1/1d"}`, 400, "its windows are 1m, 1h; write at least 1/1m or 1/1h, or deny"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"0.5/1s"}`, 400, `limit: "0.5/1s" is not a rate of the zone; its windows are 1m; for about the same rate write 30/1m`},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"100rph"}`, 400, "its windows are 1m; for about the same rate write 1/1m"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"100rpm"}`, 400, "did you mean 100/1m?"},
		{overrides, `{"zone":"login","key":"192.0.2.1","limit":"0.5/s"}`, 400, "its windows are 1m, 1h; for about the same rate write 30/1m or 1800/1h"},
		{overrides, `{"zone":"fast","key":"192.0.2.1","limit":"0.5/s"}`, 400, "its windows are 1s; write at least 1/1s, or deny"},
		{overrides, `{"zone":"fast","key":"192.0.2.1","limit":"9000000000000/1ms"}`, 400, "its windows are 1s"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"9007199254740993"}`, 400, "too large"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","for":"soon"}`, 400, "no duration"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","for":"0s"}`, 400, "not between"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","for":"20000d"}`, 400, "not between"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"a\nb"}`, 400, `the note holds '\n'`},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"\u001b[31m"}`, 400, "the note holds"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"\u202ea"}`, 400, "the note holds"},
		{overrides, `{"zone":"tenant","key":"192.0.2.1","limit":"5","note":"` + strings.Repeat("x", 257) + `"}`, 400, "257 bytes"},
		{overrides, `{"all":true,"limit":"deny"}`, 400, "/rate_limit/enforcement"},
	} {
		c.check(t)
	}
	if status, text := ask(http.MethodDelete, overrides, `{"zone":"login","key":"192.0.2.1"}`); status != http.StatusNotFound {
		t.Errorf("removing what is not there = %d %s, want 404", status, text)
	}
	if ids := overrideIDs(t); len(ids) > 0 {
		t.Errorf("something was taken for all that: %v", ids)
	}
}

func TestEnforcementsThatAreRejected(t *testing.T) {
	newSite(t, &App{Namespace: "refused"}, zoneBlock("login", "limit 5/1m 20/1h")+zoneBlock("tenant", "limit 10/1m"))
	for _, c := range []badChange{
		{enforcement, `{"zone":"login","key":"192.0.2.1","share":1}`, 400, "/rate_limit/overrides"},
		{enforcement, `{"zone":"login"}`, 400, `give "share"`},
		{enforcement, `{"share":1}`, 400, `give "zone", or "all"`},
		{enforcement, `{"zone":"login","all":true,"share":1}`, 400, `give "zone", or "all"`},
		{enforcement, `{"zone":"login","share":1.01}`, 400, "not between 0 and 1"},
		{enforcement, `{"zone":"login","share":-0.01}`, 400, "not between 0 and 1"},
		{enforcement, `{"zone":"login","share":"half"}`, 400, "share is of type string"},
		{enforcement, `{"zone":"lgoin","share":1}`, 404, `did you mean "login"?`},
		{"/rate_limit/override", `{}`, 404, "there is no /rate_limit/override"},
		{"/rate_limit/overrides/", `{}`, 404, "there is no /rate_limit/overrides/"},
	} {
		c.check(t)
	}
	for _, path := range []string{overrides, enforcement} {
		if status, _ := ask(http.MethodPut, path, "{}"); status != http.StatusMethodNotAllowed {
			t.Errorf("PUT %s = %d, want %d", path, status, http.StatusMethodNotAllowed)
		}
	}
	if ids := overrideIDs(t); len(ids) > 0 {
		t.Errorf("something was taken for all that: %v", ids)
	}
}

// A zone is enforced by what was said last, and by its configuration again when that is taken back.
func TestEnforcementAtRunTime(t *testing.T) {
	s := newSite(t, &App{Namespace: "kill-switch"}, zoneBlock("first", "limit 1/1h")+zoneBlock("second", "limit 1/1h"))
	s.admits("203.0.113.1", 2, 1)
	changed(t, http.MethodPost, enforcement, `{"all":true,"share":0}`)
	s.admits("203.0.113.1", 3, 3)
	if all := changed(t, http.MethodPost, enforcement, `{"zone":"first","share":1}`).AllZones; all == nil || *all.Share != 0 || all.Until.Before(time.Now()) {
		t.Errorf("the answer says of all zones %+v, want that they are not enforced, and until when", all)
	}
	s.admits("203.0.113.1", 1, 1) // the kill switch goes first
	changed(t, http.MethodDelete, enforcement, `{"all":true}`)
	s.admits("203.0.113.1", 1, 0)
	if all := changed(t, http.MethodPost, enforcement, `{"zone":"first","share":0}`).AllZones; all != nil {
		t.Errorf("nothing is set for all zones, and the answer says %+v", all)
	}
	s.admits("203.0.113.1", 1, 0) // the second zone
	changed(t, http.MethodPost, enforcement, `{"zone":"second","share":0}`)
	s.admits("203.0.113.1", 1, 1)
	for _, zone := range []string{"first", "second"} {
		changed(t, http.MethodDelete, enforcement, fmt.Sprintf(`{"zone":%q}`, zone))
	}
	s.admits("203.0.113.1", 1, 0)
}

// An operator denies all requests of a key, or admits them without counting, in one zone.
func TestOverridesThatAreNoRates(t *testing.T) {
	s := newSite(t, &App{Namespace: "no-rates"}, zoneBlock("first", "limit 2/1h")+zoneBlock("second", "limit 5/1h"))
	const barred, free, other = "203.0.113.1", "203.0.113.2", "203.0.113.3"
	changed(t, http.MethodPost, overrides, `{"zone":"second","key":"203.0.113.1","limit":"deny"}`)
	changed(t, http.MethodPost, overrides, `{"zone":"first","key":"203.0.113.2","limit":"unlimited"}`)
	for range 2 {
		a := s.get(barred)
		if a.status != http.StatusForbidden || a.header.Get("Retry-After") != "" || a.header.Get("RateLimit") != "" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("a barred key is answered %d with %v", a.status, a.header)
		}
	}
	s.admits(free, 7, 5) // by the second zone
	s.admits(other, 4, 2)
	changed(t, http.MethodDelete, overrides, `{"zone":"second","key":"203.0.113.1"}`)
	s.admits(barred, 3, 2) // nothing was spent in the first zone
	changed(t, http.MethodDelete, overrides, `{"zone":"first","key":"203.0.113.2"}`)
	changed(t, http.MethodPost, overrides, `{"zone":"first","key":"203.0.113.3","limit":"deny"}`)
	changed(t, http.MethodPost, enforcement, `{"all":true,"share":0}`)
	s.admits(other, 1, 1) // the kill switch goes first
	changed(t, http.MethodDelete, enforcement, `{"all":true}`)
	if a := s.get(other); a.status != http.StatusForbidden {
		t.Errorf("without the kill switch it is answered %d, want 403", a.status)
	}
}

// A key goes by the number that an operator has set for it, with what it has spent, also where
// Redis decides.
func TestOverridesByRate(t *testing.T) {
	r := redistest.Start(t)
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"} {
		t.Run("local "+algorithm, func(t *testing.T) {
			name := "by-rate-" + algorithm
			checkOverride(t, newSite(t, &App{Namespace: name}, zoneBlock(name, "algorithm "+algorithm+"\nlimit 4/1h")), name)
		})
		t.Run("strict "+algorithm, func(t *testing.T) {
			name, app := "by-rate-strict-"+algorithm, appWith(r)
			app.StrictTimeout = caddy.Duration(10 * time.Second) // for a busy machine
			checkOverride(t, newSite(t, app, zoneBlock(name, "sync_rate strict\nalgorithm "+algorithm+"\nlimit 4/1h")), name)
		})
	}
}

// checkOverride drives a zone of 4/1h while its limit is changed for one key.
func checkOverride(t *testing.T, s *site, name string) {
	const vip, other = "203.0.113.1", "203.0.113.2"
	s.admits(other, 2, 2)
	s.admits(vip, 6, 4)
	change := func(limit string) {
		t.Helper()
		changed(t, http.MethodPost, overrides, fmt.Sprintf(`{"zone":%q,"key":%q,"limit":%q}`, name, vip, limit))
	}
	change("10/1h")
	s.admits(vip, 10, 6)
	if a := s.get(vip); !strings.Contains(strings.Join(a.header["Ratelimit-Policy"], ""), ";q=10;") || a.status != http.StatusTooManyRequests {
		t.Errorf("%d with %v, want a policy with 10", a.status, a.header)
	}
	change("20")
	s.admits(vip, 12, 10)
	change("0")
	s.admits(vip, 2, 0)
	s.admits(other, 4, 2)
	changed(t, http.MethodDelete, overrides, fmt.Sprintf(`{"zone":%q,"key":%q}`, name, vip))
	s.admits(vip, 2, 0)
	s.end()
}

// A reset gives a key all of its limit again, in zones of every algorithm and however they are
// synced. An override or another key stays as it is, and explain and top see what is left.
func TestReset(t *testing.T) {
	r := redistest.Start(t)
	for _, options := range []string{
		"limit 5/1h", "limit 5/1h\nalgorithm fixed_window", "limit 5/1h 7/1d\nalgorithm sliding_log", "limit 5/1h\nalgorithm token_bucket",
		"limit 5/1h\nalgorithm gcra", "limit 5/1d\nbuckets 4", "limit {http.vars.plan}/1h\nlimit_default 5/1h",
		"limit {http.vars.plan}/1h\nlimit_default 5/1h\nalgorithm token_bucket",
	} {
		for i, rate := range []string{"local", "200ms", "strict"} {
			t.Run(rate+" "+options, func(t *testing.T) {
				app := new(App)
				if rate != "local" {
					app = appWith(r)
					app.StrictTimeout = caddy.Duration(10 * time.Second) // for a busy machine
				}
				app.Namespace = fmt.Sprint("reset", i, strings.Map(letters, options))
				change, vips := "8/1h", 8
				switch {
				case strings.Contains(options, "/1h 7/1d"):
					vips = 7
				case strings.Contains(options, "/1d"):
					change = "8/1d"
				}
				checkReset(t, newSite(t, app, zoneBlock("login", options+"\nsync_rate "+rate)), change, vips)
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
	status, text := ask(http.MethodPost, operate.ResetPath, body)
	if err := json.Unmarshal([]byte(text), &r); status != http.StatusOK || err != nil || r.Applied != 1 || r.Nodes != 1 {
		t.Fatalf("reset %s = %d %s", body, status, text)
	}
	return r
}

// checkReset drives a zone of 5 requests while keys of it are reset, with an override of one
// key, which then has vips.
func checkReset(t *testing.T, s *site, override string, vips int) {
	const key, other, vip, ofKey = "192.0.2.1", "192.0.2.2", "192.0.2.3", `{"zone":"login","key":"192.0.2.1"}`
	s.admits(key, 6, 5)
	s.admits(other, 2, 2)
	if r := reset(t, ofKey); r.Forgiven != 5 || len(r.ID) != 32 || r.Stays != nil {
		t.Errorf("a reset says %+v, want 5 forgiven", r)
	}
	if status, text := ask(http.MethodPost, "/rate_limit/explain", ofKey); status != http.StatusOK || !strings.Contains(text, `"used":0`) || strings.Contains(text, "denied") {
		t.Errorf("after a reset explain says %d %s, want that nothing is used", status, text)
	}
	s.admits(key, 6, 5)
	s.admits(other, 6, 3)
	changed(t, http.MethodPost, overrides, `{"zone":"login","key":"192.0.2.3","limit":"`+override+`"}`)
	if a := s.get(vip); a.status != http.StatusOK {
		t.Errorf("with an override it is answered %d", a.status)
	}
	if r := reset(t, `{"zone":"login","all":true}`); r.Forgiven < 10 || r.Forgiven > 11 || !r.All {
		t.Errorf("a reset of all says %+v, want 11 forgiven", r)
	}
	s.admits(key, 6, 5)
	s.admits(other, 6, 5)
	s.admits(vip, 10, vips)
	s.end()
}

// Top lists what is left after a reset.
func TestTopAfterAReset(t *testing.T) {
	s := newSite(t, &App{Namespace: t.Name()}, zoneBlock("login", "limit 5/1h"))
	s.admits("192.0.2.1", 5, 5)
	s.admits("192.0.2.2", 2, 2)
	reset(t, `{"zone":"login","key":"192.0.2.1"}`)
	status, text := ask(http.MethodGet, "/rate_limit/top?zone=login&by=used", "")
	if status != http.StatusOK || strings.Count(text, `"used"`) != 1 || !strings.Contains(text, `"used":2`) {
		t.Errorf("after a reset top says %d %s, want only the key that was not reset", status, text)
	}
}

// A reset says what it leaves as it is.
func TestWhatAResetLeaves(t *testing.T) {
	s := newSite(t, &App{Namespace: t.Name()}, zoneBlock("queue", "limit 5/1s\nalgorithm leaky_bucket\nqueue 4"))
	if r := reset(t, `{"zone":"queue","all":true}`); len(r.Stays) != 1 || !strings.Contains(r.Stays[0], "wait") {
		t.Errorf("a reset of a queue says %q, want that who waits keeps his slot", r.Stays)
	}
	s.end()
	s = newSite(t, &App{Namespace: t.Name()}, zoneBlock("small", "limit 5/1h\nmax_keys 1"))
	for i := range 5 {
		s.admits(fmt.Sprint("192.0.2.", i), 1, 1)
	}
	if r := reset(t, `{"zone":"small","key":"192.0.2.9"}`); len(r.Stays) != 1 || !strings.Contains(r.Stays[0], "max_keys") {
		t.Errorf("a reset beyond max_keys says %q, want that the sketch stays", r.Stays)
	}
	if r := reset(t, `{"zone":"small","all":true}`); r.Stays != nil {
		t.Errorf("a reset of all keys says %q stays", r.Stays)
	}
	s.admits("192.0.2.9", 6, 5)
}

func TestResetsThatAreRefused(t *testing.T) {
	newSite(t, &App{Namespace: "resets"}, zoneBlock("login", "limit 5/1m"))
	for body, want := range map[string]string{
		`{"key":"192.0.2.1"}`:                              `400 give "zone"`,
		`{"zone":"login"}`:                                 `400 give "key", "id" or "all"`,
		`{"zone":"login","key":"192.0.2.1","all":true}`:    `400 give "key", "id" or "all"`,
		`{"zone":"login","all":true,"for":"1h"}`:           `400 the body is not what is expected: there is no "for"`,
		`{"zone":"logn","all":true}`:                       `404 there is no zone "logn"; did you mean "login"?`,
		`{"zone":"login","id":"short"}`:                    `400 id: "short" is invalid; an id is hex digits`,
		`{"zone":"login","all":true,"x":"` + "\x1b" + `"}`: "400 the body is not",
	} {
		if status, text := ask(http.MethodPost, operate.ResetPath, body); !strings.HasPrefix(fmt.Sprint(status, " ", text), want) {
			t.Errorf("reset %s = %d %s, want %s", body, status, text, want)
		}
	}
	if status, _ := ask(http.MethodGet, operate.ResetPath, ""); status != http.StatusMethodNotAllowed {
		t.Errorf("GET = %d, want 405", status)
	}
}

// Explain and top over HTTP: what they answer, and what is wrong with a request. Neither counts.
func TestLooksOverHTTP(t *testing.T) {
	s := newSite(t, &App{Namespace: "looks"}, zoneBlock("login", "limit 5/1m")+zoneBlock("tenant", "key {http.request.header.X}\nlimit 10/1m"))
	const explain, top = "/rate_limit/explain", "/rate_limit/top"
	s.admits("192.0.2.1", 2, 2)
	const login = `{"zone":"login","key":"192.0.2.1"}`
	first, text := ask(http.MethodPost, explain, login)
	if first != http.StatusOK || !strings.Contains(text, `"used":2`) {
		t.Errorf("explain after two requests = %d %s, want used 2", first, text)
	}
	if _, again := ask(http.MethodPost, explain, login); !strings.Contains(again, `"used":2`) {
		t.Errorf("explain has counted: %s", again)
	}
	if status, text := ask(http.MethodGet, top+"?zone=login&n=1", ""); status != http.StatusOK || !strings.Contains(text, `"used":2`) {
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
		if status, text := ask(c.method, c.path, c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s %.60s = %d %s, want %d and %q", c.method, c.path, c.body, status, text, c.status, c.says)
		}
	}
}
