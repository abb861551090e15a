package behaviour_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
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
	if len(s.Overrides) != 2 || len(s.Enforcement) != 2 || !s.Enforcement[0].All || s.Overrides[1].Note != "<b>beta</b>" {
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

// An override of a key that has one keeps its note, which may say who the key is, unless it has one
// of its own. That of one which was removed is gone.
func TestAnOverrideKeepsTheNoteBefore(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "notes"}, sitetest.ZoneBlock("login", "limit 5/30d"))
	for i, c := range []struct{ method, path, body, note string }{
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"50"}`, ""},
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"60","note":"Example Ltd"}`, "Example Ltd"},
		{http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"70"}`, "Example Ltd"},
		{http.MethodPost, operate.BulkPath, `{"zone":"login","for":"1d","overrides":[{"key":"192.0.2.1","limit":"80"},{"key":"192.0.2.2","limit":"80"}]}`, "Example Ltd"},
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
// share. Elsewhere no request is counted by it, also where the zone's key has text or a host beside
// what tells clients apart: an override would change nothing, and is rejected.
func TestTheEmptyKeyCanBeNamed(t *testing.T) {
	const key, named = "limit 5/30d\nkey {http.request.header.X}", "limit 5/30d\nkey \"tenant {http.request.header.X}\""
	sitetest.NewSite(t, &ratelimit.App{Namespace: "nameless"}, sitetest.ZoneBlock("shared", key+"\nempty_key share")+sitetest.ZoneBlock("denied", key+"\nempty_key deny")+
		sitetest.ZoneBlock("tenant", named)+sitetest.ZoneBlock("of-host", "limit 5/30d\nkey {http.request.host}/{http.request.header.X}")+sitetest.ZoneBlock("shared-text", named+"\nempty_key share"))
	if c := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"shared","key":"","limit":"9"}`); c.Limit != "9" {
		t.Errorf("an override says %+v", c)
	}
	if status, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"shared","key":""}`); status != http.StatusOK || !strings.Contains(text, `"key":""`) || !strings.Contains(text, `"override":"9"`) {
		t.Errorf("explain = %d %s, want the empty key with its override", status, text)
	}
	for zone, key := range map[string]string{"denied": "", "tenant": "tenant ", "of-host": "example.com/"} {
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
func TestChangesThatAreRejected(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: "refused"}, sitetest.ZoneBlock("login", "limit 5/1m 20/1h")+sitetest.ZoneBlock("tenant", "limit 10/1m")+sitetest.ZoneBlock("fast", "limit 10/1s"))
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{sitetest.Overrides, ``, 400, "it is empty"},
		{sitetest.Overrides, `no json`, 400, "not what is expected"},
		{sitetest.Overrides, `[]`, 400, "it is of type array"},
		{sitetest.Overrides, `{"zone":"login","kee":"a"}`, 400, `did you mean "key"?`},
		{sitetest.Overrides, `{"zone":"login","limit":6000}`, 400, "limit is of type number"},
		{sitetest.Overrides, `{"zone":"login"} {}`, 400, "something follows"},
		{sitetest.Overrides, `{"zone":"login"}}x`, 400, "something follows"},
		{sitetest.Overrides, `{"note":"` + strings.Repeat("x", 1<<16) + `"}`, 413, "64 kB"},
		{sitetest.Overrides, `{"zone":"logn","key":"192.0.2.1","limit":"deny"}`, 404, `there is no zone "logn"; did you mean "login"?`},
		{sitetest.Overrides, `{"zone":"other","key":"192.0.2.1","limit":"deny"}`, 404, "there are fast, login, tenant"},
		{sitetest.Overrides, `{"key":"192.0.2.1","limit":"deny"}`, 400, `give "zone"`},
		{sitetest.Overrides, `{"zone":"login","limit":"deny"}`, 400, `give "key" or "id"`},
		{sitetest.Overrides, `{"zone":"login","key":"1.2.3.4","id":"x","limit":"deny"}`, 400, `give "key" or "id"`},
		{sitetest.Overrides, `{"zone":"login","id":"short","limit":"deny"}`, 400, "an id is hex digits"},
		{sitetest.Overrides, `{"zone":"login","key":"","limit":"deny"}`, 400, "key: it is empty"},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.300","limit":"deny"}`, 400, `"192.0.2.300" is no address; write one`},
		{"/rate_limit/reset", `{"zone":"login","key":"192.0.2.300"}`, 400, `"192.0.2.300" is no address; write one`},
		{sitetest.Overrides, `{"zone":"login","key":"192.0.2.0/33","limit":"deny"}`, 400, "this zone counts by /32, and IPv6 by /64"},
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
		{operate.ResetPath, `{"key":"192.0.2.1"}`, 400, `give "zone"`},
		{operate.ResetPath, `{"zone":"login"}`, 400, `give "key", "id" or "all"`},
		{operate.ResetPath, `{"zone":"login","key":"192.0.2.1","all":true}`, 400, `give "key", "id" or "all"`},
		{operate.ResetPath, `{"zone":"login","all":true,"for":"1h"}`, 400, `the body is not what is expected: there is no "for"`},
		{operate.ResetPath, `{"zone":"logn","all":true}`, 404, `there is no zone "logn"; did you mean "login"?`},
		{operate.ResetPath, `{"zone":"login","id":"short"}`, 400, `id: "short" is invalid; an id is hex digits`},
		{operate.ResetPath, `{"zone":"login","all":true,"x":"` + "\x1b" + `"}`, 400, "the body is not"},
	} {
		if status, text := sitetest.Ask(http.MethodPost, c.path, c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("POST %s %.80s = %d %s, want %d and %s", c.path, c.body, status, text, c.status, c.says)
		}
	}
	if status, text := sitetest.Ask(http.MethodDelete, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1"}`); status != http.StatusNotFound {
		t.Errorf("removing what is not there = %d %s, want 404", status, text)
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

// reset makes a reset, which all nodes must apply.
func reset(t *testing.T, body string) (r operate.ResetDone) {
	t.Helper()
	status, text := sitetest.Ask(http.MethodPost, operate.ResetPath, body)
	if err := json.Unmarshal([]byte(text), &r); status != http.StatusOK || err != nil || r.Applied != 1 || r.Nodes != 1 {
		t.Fatalf("reset %s = %d %s", body, status, text)
	}
	return r
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
		t.Errorf("a reset beyond max_keys says %q, want that shared counters stay", r.Stays)
	}
	if r := reset(t, `{"zone":"small","all":true}`); r.Stays != nil {
		t.Errorf("a reset of all keys says %q stays", r.Stays)
	}
	s.Admits("192.0.2.9", 6, 5)
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
		{http.MethodPost, explain, ``, 400, "it is empty"},
		{http.MethodPost, explain, `{}`, 400, `give "url" for a request`},
		{http.MethodPost, explain, `{"url":"http://a/","zone":"login"}`, 400, `give "url" for a request`},
		{http.MethodPost, explain, `{"url":"http://a/","key":"b"}`, 400, "belong to a zone"},
		{http.MethodPost, explain, `{"zone":"logn","key":"192.0.2.1"}`, 404, `did you mean "login"?`},
		{http.MethodPost, explain, `{"zone":"login"}`, 400, `give "key" or "id"`},
		{http.MethodPost, explain, `{"zone":"login","id":"x"}`, 400, "id: "},
		{http.MethodPost, explain, `{"zone":"login","id":"AAAAAAAAAAAAAAAAAAAAAA"}`, 404, "give the key"},
		{http.MethodPost, explain, `{"note":"` + strings.Repeat("x", 1<<16) + `"}`, 413, "64 kB"},
		{http.MethodPost, "/rate_limit/", ``, 405, ""},
		{http.MethodGet, "/rate_limit//", ``, 404, ""},
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

// The status of a zone's sync is reported where there is one: on the admin endpoint and as a
// metric.
func TestSyncIsReported(t *testing.T) {
	r := redistest.Start(t)
	sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("told", "sync_rate 1h\nlimit 10/30d 100/60d")+sitetest.ZoneBlock("told-local", "sync_rate local\nlimit 10/30d"))
	sitetest.Shows(t, "told", "has had its first cycle", func(z operate.LimitState) bool { return z.Sync != nil && z.Sync.Cycles == 1 })
	zones := sitetest.AnswerOf[operate.State](t, http.MethodGet, "/rate_limit/", "").Zones
	if len(zones) != 3 {
		t.Fatalf("%d limits, want 3: %+v", len(zones), zones)
	}
	for _, z := range zones {
		if told := z.Zone == "told"; (z.Sync != nil) != told || told && (z.Sync.Synced.IsZero() || z.Sync.Cycles == 0) {
			t.Errorf("zone %s reports %+v, want turns and a time of the zone that is synced only", z.Zone, z.Sync)
		}
	}
	synced := map[string]float64{}
	redistest.Eventually(t, "both limits have had their first cycle", func() bool {
		sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
			if name == "caddy_rate_limit_last_sync_timestamp_seconds" {
				synced[labels["zone"]] = value
			}
		})
		return synced["told"] != 0
	})
	if now := float64(timeOf(r).Unix()); len(synced) != 1 || synced["told"] < now-24*3600 || synced["told"] > now+24*3600 {
		t.Errorf("the metric reports when zones were in step with redis as %v, want one, and it is %f there", synced, now)
	}
}

// The answer to an override says where no node has counted the key, which may be mistyped.
func TestAnOverrideOfAnUnknownKeySaysSo(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("api", "limit 1/30d"))
	s.Admits("192.0.2.1", 1, 1)
	for key, want := range map[string]bool{"192.0.2.1": false, "192.0.2.2": true, "192.0.3.0/24": false} {
		body := fmt.Sprintf(`{"zone":"api","key":%q,"limit":"5/30d"}`, key)
		if got := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, body).Unknown; got != want {
			t.Errorf("the answer says that no node has counted %s: %v", key, got)
		}
		sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, body)
	}
}

// A client that sends no key waits a minute at most, however long the window is.
func TestADenialWithoutAKeyIsShort(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("api", "key {http.request.header.X-Api-Key}\nempty_key deny\nlimit 5/30d"))
	if a := s.Get("192.0.2.1"); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "60" {
		t.Errorf("without a key: %d %v", a.Status, a.Header)
	}
}

// A ban precedes an override that admits, and the answer to the change says so. A reset ends it.
func TestAnOverrideOfABannedKeySaysSo(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("login", "limit 1/30d\nban 1h"))
	banned := func(limit string) bool {
		return sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1","limit":"`+limit+`"}`).BannedUntil != nil
	}
	s.Admits("192.0.2.1", 2, 1)
	if !banned("unlimited") || !banned("100") {
		t.Error("the answer to an override of a banned key doesn't say until when it is banned")
	}
	s.Admits("192.0.2.1", 1, 0)
	if banned("deny") {
		t.Error("a ban is said to precede an operator's deny")
	}
	const key = `{"zone":"login","key":"192.0.2.1"}`
	if r := reset(t, key); len(r.Stays) != 1 || !strings.Contains(r.Stays[0], "--remove") {
		t.Errorf("a reset of a key that an operator denies says %q", r.Stays)
	}
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, key)
	s.Admits("192.0.2.1", 2, 1)
	if status, text := sitetest.Ask(http.MethodDelete, sitetest.Overrides, key); status != http.StatusNotFound || !strings.Contains(text, "rate-limit reset 'login'") {
		t.Errorf("removing an override that the zone's own ban was taken for: %d %s", status, text)
	}
	reset(t, key)
	if banned("unlimited") {
		t.Error("a key is said to be banned after a reset")
	}
	s.Admits("192.0.2.1", 3, 3)
	// For a second run of the test.
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, key)
}

// Who is banned, and who has an override, is there with its text where log_key is on, and never
// where it is off; and the id is that of the log.
func TestPeopleAreNamedWhereTheLogMayNameThem(t *testing.T) {
	for _, logKey := range []string{"on", "off"} {
		t.Run(logKey, func(t *testing.T) {
			s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, "log_key "+logKey+"\n"+sitetest.ZoneBlock("login", "limit 2/30d\nban 1h after 2/30d")+sitetest.ZoneBlock("try", "limit 1/30d\nban 1h\nenforce off"))
			shown := func(text string) string {
				if logKey == "off" {
					return ""
				}
				return text
			}
			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.7","limit":"deny","note":"scraper","by":"root@web1"}`)
			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.8","limit":"50"}`)
			s.Admits("192.0.2.1", 4, 2)
			s.Admits("192.0.2.7", 1, 0)

			all := sitetest.AnswerOf[operate.Banned](t, http.MethodGet, "/rate_limit/bans", "")
			got := map[string]string{}
			for _, b := range all.Bans {
				got[b.Zone+" "+b.Key+" "+b.Why+" "+b.By+" "+b.Note+" "+fmt.Sprint(b.Shadow)] = b.ID
				if !b.Since.Before(b.Until) {
					t.Errorf("a ban is from %s until %s", b.Since, b.Until)
				}
			}
			for line, ip := range map[string]string{
				"login " + shown("192.0.2.1") + " denied 2 times in 30d by 2/30d   false": "192.0.2.1",
				"login " + shown("192.0.2.7") + " deny root@web1 scraper false":           "192.0.2.7",
				"try " + shown("192.0.2.1") + " denied by 1/30d   true":                   "192.0.2.1",
			} {
				if want := keys.IDOf(rawKey(s, ip)).String(); got[line] != want {
					t.Errorf("bans are %v, want %q with %s", got, line, want)
				}
			}
			if len(all.Bans) != 3 || all.More != 0 {
				t.Errorf("%d bans and %d more", len(all.Bans), all.More)
			}
			if cut := sitetest.AnswerOf[operate.Banned](t, http.MethodGet, "/rate_limit/bans?zone=login&n=1", ""); len(cut.Bans) != 1 || cut.More != 1 {
				t.Errorf("of two bans of a zone, one and the rest are %+v", cut)
			}
			_, text := sitetest.Ask(http.MethodGet, sitetest.Overrides, "")
			if strings.Contains(text, "192.0.2.7") != (logKey == "on") || strings.Contains(text, "192.0.2.8") {
				t.Errorf("log_key %s: overrides are %s, want the text of the key that came, and no other", logKey, text)
			}

			// Only those that are banned, of all that have spent something.
			s.Admits("192.0.2.2", 1, 1)
			top := sitetest.AnswerOf[[]operate.Top](t, http.MethodGet, "/rate_limit/top?zone=login&banned", "")
			if len(top[0].Keys) != 1 || top[0].Keys[0].ID != keys.IDOf(rawKey(s, "192.0.2.1")).String() {
				t.Errorf("of the banned there are %+v", top)
			}
		})
	}
}

// A reload that ends log_key ends that lists have texts, also those that are known.
func TestTextsOfKeysGoWithLogKey(t *testing.T) {
	app := &ratelimit.App{Namespace: t.Name()}
	zone := sitetest.ZoneBlock("login", "limit 1/30d\nban 1h")
	s := sitetest.NewSite(t, app, "log_key\n"+zone)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"192.0.2.7","limit":"50"}`)
	s.Admits("192.0.2.1", 2, 1)
	s.Admits("192.0.2.7", 1, 1)
	lists := func() string {
		_, bans := sitetest.Ask(http.MethodGet, "/rate_limit/bans", "")
		_, all := sitetest.Ask(http.MethodGet, sitetest.Overrides, "")
		return bans + all
	}
	if text := lists(); strings.Count(text, `"key":"192.0.2.`) != 2 {
		t.Errorf("with log_key the lists are %s", text)
	}
	sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, zone)
	s.End()
	if text := lists(); strings.Contains(text, `"key":`) || strings.Count(text, `"id"`) != 2 {
		t.Errorf("without log_key the lists are %s", text)
	}
}

// A key is found by any digits that its id alone begins with.
func TestKeysAreFoundByTheirFirstDigits(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("login", "limit 5/30d"))
	byDigit := map[byte][]string{}
	for i := range 40 {
		ip := fmt.Sprintf("192.0.2.%d", i)
		s.Admits(ip, 1, 1)
		id := keys.IDOf(rawKey(s, ip)).String()
		byDigit[id[0]] = append(byDigit[id[0]], id)
	}
	explain := func(prefix string) (int, string) {
		return sitetest.Ask(http.MethodPost, "/rate_limit/explain", fmt.Sprintf(`{"zone":"login","id":%q}`, prefix))
	}
	for digit, all := range byDigit {
		status, text := explain(string(digit))
		if one := len(all) == 1; one != (status == http.StatusOK) || !one && !strings.Contains(text, all[0]) {
			t.Errorf("%d keys begin with %c: %d %s", len(all), digit, status, text)
		}
		for _, prefix := range []string{all[0][:8], strings.ToUpper(all[0][:9]), all[0]} {
			if status, text := explain(prefix); status != http.StatusOK || !strings.Contains(text, all[0]) {
				t.Errorf("%s is %d %s, want %s", prefix, status, text, all[0])
			}
		}
	}
	for prefix, says := range map[string]string{"00000000": "give the key", "xyz": "hex digits", strings.Repeat("0", 33): "hex digits"} {
		if status, text := explain(prefix); status == http.StatusOK || !strings.Contains(text, says) {
			t.Errorf("%s is %d %s, want %s", prefix, status, text, says)
		}
	}
	id := keys.IDOf(rawKey(s, "192.0.2.3"))
	if done := sitetest.AnswerOf[operate.ResetDone](t, http.MethodPost, "/rate_limit/reset", fmt.Sprintf(`{"zone":"login","id":%q}`, id.Short())); done.Forgiven != 1 || done.ID != id.String() {
		t.Errorf("a reset by 8 digits says %+v", done)
	}
}

// A reset says where nobody has counted the key: not where this node has, nor where another one
// has, nor where Redis can't say.
func TestAResetOfAnUnknownKeyIsNoSuccess(t *testing.T) {
	r := redistest.Start(t)
	s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("login", "limit 5/30d\nsync_rate 100ms"))
	s.Admits("192.0.2.9", 2, 2)
	s.End() // sends what it has counted, and forgets it: only Redis knows the key
	s = sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("login", "limit 5/30d\nsync_rate 100ms"))
	s.Admits("192.0.2.1", 1, 1)
	reset := func(ip string) operate.ResetDone {
		return sitetest.AnswerOf[operate.ResetDone](t, http.MethodPost, "/rate_limit/reset", fmt.Sprintf(`{"zone":"login","key":%q}`, ip))
	}
	if done := reset("192.0.2.2"); !done.Unknown {
		t.Errorf("a key that nobody counts: %+v", done)
	}
	if done := reset("192.0.2.9"); done.Unknown || done.Forgiven != 0 {
		t.Errorf("a key that another node counts: %+v", done)
	}
	if done := reset("192.0.2.1"); done.Unknown || done.Forgiven != 1 {
		t.Errorf("a key that is counted: %+v", done)
	}
	r.Kill()
	// The answer would come when the client's patience or the node's ends.
	ctx, leave := context.WithCancel(t.Context())
	answered := make(chan operate.ResetDone)
	go func() { answered <- resetFor(ctx, t, `{"zone":"login","key":"192.0.2.3"}`) }()
	redistest.Eventually(t, "the key is reset", func() bool {
		return sitetest.AnswerOf[operate.State](t, http.MethodGet, "/rate_limit/", "").Control.Pending == 1
	})
	leave()
	if done := <-answered; done.Unknown || !done.Pending {
		t.Errorf("a key while Redis is away, which may know it: %+v", done)
	}
}

// resetFor is the answer to a reset for somebody who waits for as long as a context.
func resetFor(ctx context.Context, t *testing.T, body string) (done operate.ResetDone) {
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, operate.ResetPath, strings.NewReader(body))
	if err := sitetest.Admin().Handler.ServeHTTP(w, r); err != nil {
		t.Errorf("reset: %v", err)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &done); err != nil {
		t.Errorf("reset = %d %s", w.Code, w.Body)
	}
	return done
}

// Many overrides are one change: all of them, or none. They are shared as any others.
func TestOverridesInBulk(t *testing.T) {
	const bulk = sitetest.Overrides + "/bulk"
	r := redistest.Start(t)
	s, c := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("api", "limit 1/30d")), r.Client()
	for body, says := range map[string]string{
		`{"zone":"api","overrides":[{"key":"192.0.2.1","limit":"5"},{"limit":"5"}]}`:                   "overrides[1]: give ",
		`{"zone":"api","overrides":[{"key":"192.0.2.1","limit":"many"}]}`:                              "overrides[0]: limit: ",
		`{"zone":"api","overrides":[{"key":"192.0.2.1","limit":"5"},{"key":"192.0.2.1","limit":"6"}]}`: "overrides[1]: another one before it is for the same key",
		`{"zone":"api","overrides":[]}`:                                                                `give "overrides"`,
		`{"zone":"apu","overrides":[{"key":"192.0.2.1","limit":"5"}]}`:                                 "did you mean",
	} {
		if status, text := sitetest.Ask(http.MethodPost, bulk, body); status < 400 || !strings.Contains(text, says) {
			t.Errorf("%s is %d %s, want %s", body, status, text, says)
		}
	}
	list := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"key":"10.0.%d.%d","limit":"3"}`, i/250, i%250))
		}
		return `{"zone":"api","for":"forever","note":"customers","by":"root@web1","overrides":[` + strings.Join(all, ",") + `]}`
	}
	if status, text := sitetest.Ask(http.MethodPost, bulk, list(control.MaxEntries+1)); status != http.StatusInsufficientStorage {
		t.Errorf("too many are %d %s", status, text)
	}
	if ids := overrideIDs(t); len(ids) != 0 {
		t.Fatalf("%d overrides are there though each change was wrong", len(ids))
	}
	const n = 5000
	done := sitetest.AnswerOf[operate.BulkDone](t, http.MethodPost, bulk, list(n))
	if done.Set != n || done.Applied != done.Nodes || !done.Shared {
		t.Errorf("%d overrides say %+v", n, done)
	}
	defer c.Close()
	stored := func() int64 { // one field is the version
		return c.HLen(t.Context(), ratesync.NewKeyspace("test").Control()).Val() - 1
	}
	// The answer comes after control.WaitFor, and says if a slow machine has more to tell Redis.
	if all := stored() == n; !all && !done.Pending || !all && !redistest.Poll(time.Minute, func() bool { return stored() == n }) {
		t.Errorf("Redis has %d of %d overrides, pending is %t", stored(), n, done.Pending)
	}
	s.Admits("10.0.19.249", 5, 3)
	s.Admits("10.0.20.1", 5, 1)
	if all := sitetest.AnswerOf[[]control.EntryState](t, http.MethodGet, sitetest.Overrides+"?zone=api", ""); len(all) != n || all[0].By != "root@web1" || all[0].Note != "customers" || all[0].Since.IsZero() {
		t.Errorf("%d overrides, the first of which is %+v", len(all), all[0])
	}
	removesInBulk(t, s, n, list)
	// The answer may come before a slow machine has told Redis all.
	if !redistest.Poll(time.Minute, func() bool {
		gone := 0
		for _, value := range c.HGetAll(t.Context(), ratesync.NewKeyspace("test").Control()).Val() {
			if strings.HasSuffix(value, " 0 ") { // without a length and a body
				gone++
			}
		}
		return gone == n
	}) {
		t.Errorf("Redis has not heard of all that was removed")
	}
}

// removesInBulk removes the overrides of a list, of which n are set: all in one change, or none
// where one of them is wrong.
func removesInBulk(t *testing.T, s *sitetest.Site, n int, list func(int) string) {
	t.Helper()
	const bulk = sitetest.Overrides + "/bulk"
	for body, says := range map[string]string{
		`{"zone":"api","overrides":[{"key":"10.0.0.1"},{"limit":"5"}]}`: "overrides[1]: give ",
		`{"zone":"api","overrides":[{"key":"192.0.2.1"}]}`:              "nothing to remove",
		`{"zone":"api","overrides":[]}`:                                 `give "overrides"`,
	} {
		if status, text := sitetest.Ask(http.MethodDelete, bulk, body); status < 400 || !strings.Contains(text, says) {
			t.Errorf("removing %s is %d %s, want %s", body, status, text, says)
		}
	}
	if ids := overrideIDs(t); len(ids) != n {
		t.Errorf("%d overrides are there, want %d: each removal was wrong", len(ids), n)
	}
	done := sitetest.AnswerOf[operate.BulkDone](t, http.MethodDelete, bulk, list(n+3))
	if done.Removed != n || done.None != 3 || done.Set != 0 || !done.Shared {
		t.Errorf("removing %d overrides says %+v", n, done)
	}
	if ids := overrideIDs(t); len(ids) != 0 {
		t.Errorf("%d overrides are still there", len(ids))
	}
	s.Admits("10.0.19.249", 1, 0)
	s.Admits("10.0.19.248", 3, 1)
}

// A rollout stays, an emergency ends.
func TestHowLongEnforcementHolds(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("api", "limit 1/30d"))
	for share, long := range map[string]bool{"1": true, "0": false, "0.25": false} {
		c := sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"api","share":`+share+`}`)
		until := c.Until.Sub(sitetest.AnswerOf[operate.State](t, http.MethodGet, "/rate_limit/", "").Enforcement[0].Since)
		if until > 2*control.EnforcementFor != long {
			t.Errorf("share %s holds %s", share, until)
		}
	}
}

// What was set for a zone that the configuration has no more can be removed: an override by its id,
// as lists show it, and by its key where a request has brought that.
func TestWhatIsSetForAZoneThatIsGoneIsRemoved(t *testing.T) {
	app := &ratelimit.App{Namespace: t.Name()}
	s := sitetest.NewSite(t, app, "log_key\n"+sitetest.ZoneBlock("gone", "limit 9/30d")+sitetest.ZoneBlock("stays", "limit 9/30d"))
	for _, key := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"gone","key":"`+key+`","limit":"7"}`)
	}
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"gone","share":0.5}`)
	s.Admits("192.0.2.2", 1, 1)
	next := sitetest.NewSite(t, app, "log_key\n"+sitetest.ZoneBlock("stays", "limit 9/30d"))
	s.End()
	all := sitetest.AnswerOf[[]control.EntryState](t, http.MethodGet, sitetest.Overrides, "")
	if len(all) != 3 {
		t.Fatalf("overrides %+v, want the three of before", all)
	}
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"gone","id":"`+all[0].ID[:8]+`"}`)
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"gone","key":"192.0.2.2"}`)
	sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"zone":"gone"}`)
	if all := sitetest.AnswerOf[[]control.EntryState](t, http.MethodGet, sitetest.Overrides, ""); len(all) != 1 {
		t.Errorf("overrides %+v are left, want one", all)
	}
	for _, body := range []string{`{"zone":"gone","key":"192.0.2.9"}`, `{"zone":"gon","id":"` + all[2].ID + `"}`} {
		if status, text := sitetest.Ask(http.MethodDelete, sitetest.Overrides, body); status != http.StatusNotFound || !strings.Contains(text, "there is no zone") {
			t.Errorf("DELETE %s is %d %s", body, status, text)
		}
	}
	many := `{"zone":"gone","overrides":[{"key":"192.0.2.9","limit":"5"}]}`
	if status, text := sitetest.Ask(http.MethodPost, operate.BulkPath, many); status != http.StatusNotFound || !strings.HasPrefix(text, "overrides[0]: ") {
		t.Errorf("POST %s is %d %s", many, status, text)
	}
	next.End()
}

// All zones that count by address are asked for one, also those that count by it only where a
// request brings no key.
func TestExplainAnAddress(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("a", "limit 1/60d")+sitetest.ZoneBlock("b", "limit 9/60d")+sitetest.ZoneBlock("c", "key {http.request.header.X}\nlimit 10/30d")+sitetest.ZoneBlock("d", "key {http.request.host}\nlimit 10/30d"))
	s.Admits("192.0.2.1", 1, 1)
	site := sitetest.AnswerOf[operate.ExplainedSite](t, http.MethodPost, "/rate_limit/explain", `{"ip":"192.0.2.1"}`)
	var got []string
	for _, h := range site.Handlers {
		got = append(got, h.Zones[0].Zone+" "+h.Decision.String())
	}
	if want := "a denied, b admitted, c admitted"; strings.Join(got, ", ") != want {
		t.Errorf("an address is explained as %v, want %s", got, want)
	}
	for _, c := range []struct{ zone, key, standIn string }{{"a", "192.0.2.1", ""}, {"c", "192.0.2.1", "client_ip:192.0.2.1"}, {"c", "client_ip:192.0.2.1", ""}, {"c", "abc", ""}} {
		if done := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":%q,"limit":"7"}`, c.zone, c.key)); done.StandIn != c.standIn {
			t.Errorf("an override of %s in zone %s names %q, want %q", c.key, c.zone, done.StandIn, c.standIn)
		}
	}
	for _, body := range []string{`{"ip":"login"}`, `{"ip":"192.0.2.1","zone":"a"}`} {
		if status, text := sitetest.Ask(http.MethodPost, "/rate_limit/explain", body); status != 400 {
			t.Errorf("%s is %d %s", body, status, text)
		}
	}
	// For a second run of the test.
	for zone, all := range map[string][]string{"a": {"192.0.2.1"}, "c": {"192.0.2.1", "client_ip:192.0.2.1", "abc"}} {
		for _, key := range all {
			_, _ = sitetest.Ask(http.MethodDelete, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":%q}`, zone, key))
		}
	}
}

// Requests without a key count by the network of their address: an override of any address in it,
// or of the network, holds for all of them, and explain shows it for each.
func TestAnOverrideOfAStandInHoldsForItsNetwork(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, "log_key\n"+sitetest.ZoneBlock("c", "key {http.request.header.X}\nlimit 2/30d\nipv6_prefix 60\nipv4_prefix 20"))
	for _, c := range []struct{ set, text, in, out string }{
		{"2001:db8:0:f7::1", "2001:db8:0:f0::/60", "2001:db8:0:ff::9", "2001:db8:0:e7::1"},
		{"2001:db8:1:f0::/60", "2001:db8:1:f0::/60", "2001:db8:1:f1::9", "2001:db8:1:e7::1"},
		{"192.0.2.1", "192.0.0.0/20", "192.0.15.9", "192.0.16.1"},
		{"198.51.96.0/20", "198.51.96.0/20", "198.51.100.7", "198.51.112.1"},
	} {
		byKey := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":"c","key":%q,"limit":"9"}`, c.set))
		if byKey.StandIn != "client_ip:"+c.set {
			t.Errorf("an override of %s names the stand-in %q", c.set, byKey.StandIn)
		}
		sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":"c","key":%q,"limit":"3"}`, "client_ip:"+c.set))
		s.Admits(c.in, 4, 3)
		s.Admits(c.out, 3, 2)
		s.Admits(c.in, 10, 9, sitetest.Header("X", c.in))
		site := sitetest.AnswerOf[operate.ExplainedSite](t, http.MethodPost, "/rate_limit/explain", fmt.Sprintf(`{"ip":%q}`, c.in))
		if len(site.Handlers) != 1 || site.Handlers[0].Zones[0].Override != "3" || site.Handlers[0].Decision.String() != "denied" {
			t.Errorf("%s is explained as %+v, want denied by the override of 3", c.in, site.Handlers)
		}
		for _, in := range []string{c.in, c.text} {
			z := sitetest.AnswerOf[operate.Explained](t, http.MethodPost, "/rate_limit/explain", fmt.Sprintf(`{"zone":"c","key":%q}`, "client_ip:"+in)).Zones[0]
			if z.Key == nil || *z.Key != "client_ip:"+c.text || z.Override != "3" {
				t.Errorf("client_ip:%s is explained as %+v", in, z)
			}
		}
		sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, fmt.Sprintf(`{"zone":"c","key":%q}`, "client_ip:"+c.in))
		s.Admits(c.in, 1, 0)
	}
	s.End()
}

// administrator is somebody with a certificate of his own.
func administrator(t *testing.T) (client *http.Client, publicKey string) {
	t.Helper()
	dir := t.TempDir()
	sitetest.Certificate(t, dir)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, base64.StdEncoding.EncodeToString(pair.Certificate[0])
}

// Over Caddy's remote admin endpoint an operator can do what his certificate is allowed to, path by
// path and method by method, and nothing else.
func TestRemoteAdmin(t *testing.T) {
	looks, looksKey := administrator(t)
	changes, changesKey := administrator(t)
	stranger, _ := administrator(t)
	local, remote := redistest.FreePort(t), redistest.FreePort(t)
	config := fmt.Sprintf(`{
		"admin": {"listen": "localhost:%d", "config": {"persist": false},
			"identity": {"identifiers": ["localhost"], "issuers": [{"module": "internal"}]},
			"remote": {"listen": "localhost:%d", "access_control": [
				{"public_keys": [%q], "permissions": [{"paths": ["/rate_limit/"], "methods": ["GET"]}]},
				{"public_keys": [%q], "permissions": [{"paths": ["/rate_limit/overrides"], "methods": ["GET", "POST", "DELETE"]}]}]}},
		"storage": {"module": "file_system", "root": %q},
		"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
		"apps": {"pki": {"certificate_authorities": {"local": {"install_trust": false}}}, "http": {"servers": {"s": {
			"listen": ["127.0.0.1:%d"], "routes": [{"handle": [{"handler": "rate_limit", "rate_limits": {"remote": {"limits": [{"max_events": 5, "window": "30d"}]}}}]}]}}}}
	}`, local, remote, looksKey, changesKey, t.TempDir(), redistest.FreePort(t))
	sitetest.LoadConfig(t, []byte(config))
	ask := func(c *http.Client, method, path, body string) (status int, text string, err error) {
		r, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("https://localhost:%d%s", remote, path), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		a, err := c.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer a.Body.Close()
		all, err := io.ReadAll(a.Body)
		return a.StatusCode, string(all), err
	}
	redistest.Eventually(t, "the remote endpoint has its certificate", func() bool {
		_, _, err := ask(looks, http.MethodGet, "/rate_limit/", "")
		return err == nil
	})
	const override = `{"zone":"remote","key":"203.0.113.9","limit":"50","note":"from afar"}`
	for _, c := range []struct {
		who                *http.Client
		method, path, body string
		status             int
		says               string
	}{
		{looks, http.MethodGet, "/rate_limit/", "", 200, `"zone":"remote"`},
		{looks, http.MethodGet, "/rate_limit/top?zone=remote", "", 200, `"keys"`},
		{looks, http.MethodPost, "/rate_limit/overrides", override, 403, ""},
		{looks, http.MethodPost, "/rate_limit/reset", `{"zone":"remote","all":true}`, 403, ""},
		{looks, http.MethodGet, "/config/", "", 403, ""},
		{changes, http.MethodPost, "/rate_limit/overrides", override, 200, `"limit":"50"`},
		{changes, http.MethodGet, "/rate_limit/overrides", "", 200, "from afar"},
		{changes, http.MethodPost, "/rate_limit/enforcement", `{"all":true,"share":0}`, 403, ""},
		{changes, http.MethodGet, "/rate_limit/", "", 403, ""},
		{changes, http.MethodDelete, "/rate_limit/overrides", `{"zone":"remote","key":"203.0.113.9"}`, 200, ""},
	} {
		status, text, err := ask(c.who, c.method, c.path, c.body)
		if err != nil || status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %s, %v; want %d with %s", c.method, c.path, status, text, err, c.status, c.says)
		}
	}
	nobody := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer nobody.CloseIdleConnections()
	for who, c := range map[string]*http.Client{"a stranger": stranger, "nobody": nobody} {
		if status, text, err := ask(c, http.MethodGet, "/rate_limit/", ""); err == nil && status < 400 {
			t.Errorf("%s is answered %d %s", who, status, text)
		}
	}
}
