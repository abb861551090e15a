package behaviour_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

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
	sitetest.AnswerOf[operate.ResetDone](t, http.MethodPost, "/rate_limit/reset", `{"zone":"login","key":"192.0.2.1"}`)
	if banned("unlimited") {
		t.Error("a key is said to be banned after a reset")
	}
	s.Admits("192.0.2.1", 3, 3)
	// For a second run of the test.
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"login","key":"192.0.2.1"}`)
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
	record := func() string {
		return sitetest.AnswerOf[operate.State](t, http.MethodGet, "/rate_limit/", "").Control.Digest
	}
	answered, before := make(chan operate.ResetDone), record()
	go func() { answered <- resetFor(ctx, t, `{"zone":"login","key":"192.0.2.3"}`) }()
	redistest.Eventually(t, "the key is reset", func() bool { return record() != before })
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
	if status, _ := sitetest.Ask(http.MethodPut, bulk, list(1)); status != http.StatusMethodNotAllowed {
		t.Errorf("PUT is answered %d", status)
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
	next.End()
}

// What is removed of a zone that is gone is forgotten on all nodes, and nothing brings it back: not
// where Redis loses all, nor with a configuration that has the zone again.
func TestWhatIsRemovedOfAZoneThatIsGoneStaysRemovedOnAllNodes(t *testing.T) {
	server := redistest.Start(t)
	app, set := sitetest.AppWith(server), "log_key\n"+sitetest.ZoneBlock("stays", "limit 9/30d\nsync_rate 1h")
	with := set + sitetest.ZoneBlock("gone", "limit 2/30d\nsync_rate 1h")
	s, others := sitetest.NewSite(t, app, with), []*control.Control{nodeBeside(t, server, "b"), nodeBeside(t, server, "c")}
	redistest.Eventually(t, "all nodes are there", func() bool {
		return len(sitetest.AnswerOf[[]control.Node](t, http.MethodGet, operate.NodesPath, "")) == 3
	})
	knows := func(c *control.Control) bool {
		r := c.Zone("gone").Load()
		return len(c.State(t.Context()).Overrides) > 0 || r != nil && r.Enforce != nil
	}
	changeOnAll(t, 3, http.MethodPost, [2]string{sitetest.Overrides, `{"zone":"gone","key":"192.0.2.1","limit":"7"}`},
		[2]string{sitetest.Overrides, `{"zone":"gone","key":"192.0.2.2","limit":"7"}`}, [2]string{sitetest.Enforcement, `{"zone":"gone","share":0}`})
	if !knows(others[0]) || !knows(others[1]) {
		t.Fatal("what is changed on 3 nodes is not known there")
	}
	without := sitetest.NewSite(t, app, set)
	s.End()
	all := sitetest.AnswerOf[[]control.EntryState](t, http.MethodGet, sitetest.Overrides, "")
	changeOnAll(t, 3, http.MethodDelete, [2]string{sitetest.Overrides, `{"zone":"gone","id":"` + all[0].ID + `"}`},
		[2]string{sitetest.Overrides, `{"zone":"gone","id":"` + all[1].ID + `"}`}, [2]string{sitetest.Enforcement, `{"zone":"gone"}`})
	server.Do("FLUSHALL")
	redistest.Eventually(t, "the nodes write the record again", func() bool { return server.Do("DBSIZE").(int64) > 0 })
	// All nodes have heard of all then.
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"stays","share":1}`)
	again := sitetest.NewSite(t, app, with)
	without.End()
	for i, c := range others {
		if knows(c) {
			t.Errorf("node %d still has %+v", i, c.State(t.Context()))
		}
	}
	if left := sitetest.AnswerOf[[]control.EntryState](t, http.MethodGet, sitetest.Overrides, ""); len(left) > 0 {
		t.Errorf("overrides %+v are back", left)
	}
	again.Admits("192.0.2.1", 3, 2)
}

// changeOnAll makes changes at once, by their paths and bodies, and wants them to be applied on so
// many nodes.
func changeOnAll(t *testing.T, nodes int, method string, changes ...[2]string) {
	t.Helper()
	var all sync.WaitGroup
	for _, c := range changes {
		all.Go(func() {
			if done := sitetest.Changed(t, method, c[0], c[1]); done.Applied != nodes {
				t.Errorf("%s %s %s: %+v, want it on %d nodes", method, c[0], c[1], done, nodes)
			}
		})
	}
	all.Wait()
}

// nodeBeside is another node of a Redis, with nothing but the control record.
func nodeBeside(t *testing.T, server *redistest.Server, name string) *control.Control {
	t.Helper()
	client := server.Client()
	by := ratesync.NewReplicator(client, "test", time.Second, clock.Now, zap.NewNop())
	c := control.New(control.Options{
		Client: client, Keys: ratesync.NewKeyspace("test"), Store: name, Timeout: time.Second, Now: clock.Now, Beat: by.Beat, Name: name, Logger: zap.NewNop(),
	})
	by.Carry(c)
	by.Start()
	t.Cleanup(by.Close)
	return c
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
