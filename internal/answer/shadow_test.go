package answer

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

func shadow(r Result) Result {
	r.Shadow = true
	return r
}

// A client is told of limits that are enforced for it, and of no other.
func TestLimitsInShadowModeAreNotTold(t *testing.T) {
	all := []Result{
		shadow(result("candidate", "", 3, time.Minute, denies(40*time.Second))), result("api", "", 5, time.Hour, admits(4, time.Second)),
		shadow(result("other", "", 1, time.Hour, admits(0, time.Second))),
	}
	o := NewResponder(Options{Status: 429, Headers: allSets})
	w := httptest.NewRecorder()
	o.Admit(w, prepared(request("/")), new(Fields), all, 0)
	for name, want := range map[string]string{
		"Ratelimit-Policy": `"api";q=5;w=3600`, "Ratelimit-Remaining": "4", "X-Ratelimit-Remaining": "4", "X-Ratelimit-Remaining-Minute": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	all[1] = result("api", "", 5, time.Hour, denies(9*time.Second))
	w = httptest.NewRecorder()
	if err := o.Deny(w, prepared(request("/")), &Denial{Zone: "api", Wait: 9 * time.Second, Results: all}); err != nil {
		t.Fatal(err)
	}
	if body := w.Body.String(); !strings.Contains(body, `"violated-policies":["api"]`) || w.Header().Get("Ratelimit-Policy") != `"api";q=5;w=3600` {
		t.Errorf("a denial tells of more than api: %v %s", w.Header(), body)
	}
	w = httptest.NewRecorder()
	o.Admit(w, prepared(request("/")), new(Fields), all[:1], 0)
	if len(w.Header()) != 0 {
		t.Errorf("headers of nothing but a limit in shadow mode: %v", w.Header())
	}
}

// What would have been denied is told by an event, and by placeholders.
func TestWouldDenyIsTold(t *testing.T) {
	events, l := listen(t, wouldDenyEvent)
	o := NewResponder(Options{Status: 429, Jitter: 1, Events: events})
	r := prepared(request("/"))
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.1")
	o.WouldDeny(r, &ShadowDenial{})
	if len(l.heard) != 0 {
		t.Fatalf("an event of nothing: %v", l.heard)
	}
	o.WouldDeny(r, &ShadowDenial{Zone: "login", Wait: 1500 * time.Millisecond})
	if len(l.heard) != 1 || l.heard[0].Name() != wouldDenyEvent || l.heard[0].Data["zone"] != "login" ||
		l.heard[0].Data["wait"] != 2*time.Second || l.heard[0].Data["client_ip"] != "192.0.2.1" {
		t.Errorf("events %v, want one of login and two seconds", l.heard)
	}
	l.heard = nil
	want := "login 2"
	if got := reqkey.ReplacerOf(r).ReplaceAll("{http.rate_limit.would_deny.name} {http.rate_limit.would_deny.wait}", ""); got != want {
		t.Errorf("placeholders %q, want %q", got, want)
	}
}

// Lines of what is not enforced share the budget of denials, and are told apart.
func TestLinesOfWhatIsNotEnforced(t *testing.T) {
	l := newLogged(time.Minute)
	send := func(at time.Duration, key string, isShadow bool) {
		d := denialOf(key)
		d.Shadow = isShadow
		l.Denied(start+int64(at), d)
	}
	for i := range 4 {
		send(time.Duration(i), "a", true)
		send(time.Duration(i), "b", false)
	}
	messages := map[string]string{}
	for _, e := range l.seen.TakeAll() {
		messages[e.ContextMap()["key"].(string)] = e.Message
	}
	if len(messages) != 2 || messages["a"] != "rate limit exceeded, not enforced" || messages["b"] != "rate limit exceeded" {
		t.Errorf("lines %v, want one for each key", messages)
	}
	for i := range 20 {
		send(time.Second, strings.Repeat("c", i+1), true)
	}
	if n := l.seen.Len(); n != maxLines-2 {
		t.Errorf("%d lines for 20 more keys, want the %d that are left in this minute", n, maxLines-2)
	}
	l.seen.TakeAll()
	l.Flush(start + int64(time.Minute))
	summary := l.seen.TakeAll()[0].ContextMap()
	if summary["denied"] != int64(4) || summary["would_deny"] != int64(24) || summary["keys_at_least"] != int64(22) {
		t.Errorf("summary %v, want 4 denied and 24 that would be, of 22 keys", summary)
	}
	send(2*time.Minute, "d", false)
	send(2*time.Minute, "d", false)
	l.Flush(start + int64(3*time.Minute))
	for _, e := range l.seen.TakeAll() {
		if _, ok := e.ContextMap()["would_deny"]; ok {
			t.Errorf("a line of denials alone has would_deny: %v", e.ContextMap())
		}
	}
}
