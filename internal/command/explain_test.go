package command

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/operate"
)

func TestExplanationsArePrinted(t *testing.T) {
	site := operate.Question{ExplainRequest: operate.ExplainRequest{URL: "https://example.com/"}}
	for name, test := range map[string]struct {
		asked  operate.Question
		answer string
	}{
		"site": {site, `{"server":"srv0","client_ip":"203.0.113.9","handlers":[{"not_run":["authentication","encode"],"decision":"denied","zone":"login","wait":12.5,"zones":[
			{"zone":"api","decision":"skipped","mismatch":["path","method"]},
			{"zone":"login","decision":"denied","key":"203.0.113.9","id":"000102030405060708090a0b0c0d0e0f","limits":[
				{"limit":5,"window":"1m","used":5,"remote":2,"regions":true,"remaining":0,"after":0,"decision":"denied","wait":12.5},
				{"limit":50,"window":"1d","used":5,"remote":2,"remaining":20,"share":25,"after":20,"decision":"admitted"}]},
			{"zone":"try","decision":"would_deny","shadow":true,"key":"\u001b[31mred\u001b[0m","id":"x","override":"10/1m","limits":[
				{"limit":10,"window":"1m","overridden":true,"used":10,"remaining":0,"after":0,"decision":"would_deny","wait":3}]}]}]}`},
		"override": {operate.Question{Zone: "api"}, `{"decision":"admitted","zones":[{"zone":"api","decision":"admitted","key":"203.0.113.9","override":"50/1m","limits":[
			{"limit":50,"window":"1m","overridden":true,"used":20,"remote":0,"remaining":30,"after":29,"decision":"admitted"},
			{"limit":500,"window":"1h","used":20,"remote":0,"remaining":480,"after":479,"decision":"admitted"}]}]}`},
		"site_none": {site, `{"server":"srv0","client_ip":"203.0.113.9","handlers":[]}`},
		"key": {operate.Question{Zone: "queue"}, `{"decision":"admitted","delay":1.5,"zones":[{"zone":"queue","decision":"admitted","limit_default":true,"id":"000102030405060708090a0b0c0d0e0f","limits":[
			{"limit":1,"window":"1s","used":2,"remote":0,"remaining":3,"after":2,"decision":"admitted"}]}]}`},
		"id": {operate.Question{Zone: "queue", Key: new("2ca8bc42")}, `{"decision":"admitted","zones":[{"zone":"queue","decision":"admitted","key":"2ca8bc42","limits":[
			{"limit":5,"window":"1m","used":0,"remote":0,"remaining":5,"after":4,"decision":"admitted"}]}]}`},
		"address": {operate.Question{IP: "203.0.113.9"}, `{"client_ip":"203.0.113.9","handlers":[{"decision":"admitted","delay":1.5,"zones":[
			{"zone":"api","decision":"admitted","key":"203.0.113.9","limits":[{"limit":8,"window":"1m","used":6,"remote":0,"remaining":2,"after":1,"decision":"admitted"}]}]},
			{"decision":"banned","zone":"login","wait":900,"zones":[{"zone":"login","decision":"banned","key":"203.0.113.9"}]}]}`},
		"lost": {site, `{"server":"srv0","client_ip":"203.0.113.9","handlers":[{"decision":"unavailable","zone":"pay","zones":[
			{"zone":"api","decision":"admitted","key":"203.0.113.9","redis_error":"connection refused; start redis, or correct the address","synced_ago":1.5,"limits":[{"limit":8,"window":"1m","used":6,"remote":0,"remaining":2,"after":1,"decision":"admitted"}]},
			{"zone":"login","decision":"denied","key":"203.0.113.9","redis_error":"connection refused; start redis, or correct the address","on_redis_loss":"local","limits":[{"limit":5,"window":"1m","used":5,"remaining":0,"after":0,"decision":"denied","wait":12.5}]},
			{"zone":"try","decision":"skipped","key":"203.0.113.9","redis_error":"connection refused; start redis, or correct the address","on_redis_loss":"allow"},
			{"zone":"pay","decision":"unavailable","key":"203.0.113.9","on_redis_loss":"deny"}]}]}`},
		"empty": {site, `{"server":"srv0","client_ip":"203.0.113.9","handlers":[{"decision":"admitted","zones":[
			{"zone":"api","decision":"admitted","key":"","id":"47dc540c02030405060708090a0b0c0d","limits":[{"limit":8,"window":"1m","used":6,"remote":0,"remaining":2,"after":1,"decision":"admitted"}]}]}]}`},
		"cost": {site, `{"server":"srv0","client_ip":"203.0.113.9","handlers":[{"decision":"too_large","zone":"tokens","zones":[
			{"zone":"tokens","decision":"too_large","key":"alice","cost":12000,"limits":[{"limit":10000,"window":"1m","used":500,"remote":0,"remaining":9500,"after":9500,"decision":"too_large"}]},
			{"zone":"usage","decision":"not_asked","key":"alice","cost":0,"limits":[{"limit":10,"window":"1m","used":1,"remote":0,"remaining":9,"after":9,"decision":"not_asked"}]},
			{"zone":"requests","decision":"not_asked","key":"alice","limits":[{"limit":10,"window":"1m","used":1,"remote":0,"remaining":9,"after":9,"decision":"not_asked"}]}]}]}`},
	} {
		c, _ := endpoint(t, http.StatusOK, test.answer)
		var b bytes.Buffer
		if err := (printer{out: &b, now: func() time.Time { return noon }}).explain(c, test.asked); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden(t, "explain_"+name+".golden", b.String())
	}
}

func TestTopIsPrinted(t *testing.T) {
	for name, answer := range map[string]string{
		"keys": `[{"zone":"api","limit":100,"window":"1m","keys":[
			{"id":"000102030405060708090a0b0c0d0e0f","key":"203.0.113.9","used":100,"asked":180,"denied":80,"regions":true},
			{"id":"101112131415161718191a1b1c1d1e1f","key":"a\nb\u202e","used":7,"asked":7,"denied":0}]},
			{"zone":"local","limit":5,"window":"1h","keys":[{"id":"202122232425262728292a2b2c2d2e2f","used":5}]}]`,
		"none": `[{"zone":"api","limit":100,"window":"1m","keys":[]}]`,
	} {
		c, _ := endpoint(t, http.StatusOK, answer)
		var b bytes.Buffer
		p := printer{out: &b, now: func() time.Time { return noon }}
		if err := show(p, c, http.MethodGet, operate.TopPath, nil, p.keys); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden(t, "top_"+name+".golden", b.String())
	}
}

func TestWhatLookingAsks(t *testing.T) {
	c, asked := endpoint(t, http.StatusOK, "{}")
	for _, test := range []struct {
		args []string
		want string
	}{
		{
			[]string{"explain", "https://example.com/a", "-X", "POST", "-H", "X-A: b", "-H", "X-A:c", "--remote-ip", "203.0.113.9"},
			`POST /rate_limit/explain {"method":"POST","url":"https://example.com/a","remote_ip":"203.0.113.9","headers":{"X-A":["b","c"]}}`,
		},
		{[]string{"explain", "api", "203.0.113.9", "--cost", "0"}, `POST /rate_limit/explain {"zone":"api","key":"203.0.113.9","cost":0}`},
		{[]string{"explain", "http://a/", "--ip", "203.0.113.9"}, `POST /rate_limit/explain {"url":"http://a/","remote_ip":"203.0.113.9"}`},
		{[]string{"explain", "--ip", "203.0.113.9"}, `POST /rate_limit/explain {"ip":"203.0.113.9"}`},
		{[]string{"explain", "api", "203.0.113.9"}, `POST /rate_limit/explain {"zone":"api","key":"203.0.113.9"}`},
		{[]string{"explain", "api", "000102030405060708090a0b0c0d0e0f", "--id"}, `POST /rate_limit/explain {"zone":"api","id":"000102030405060708090a0b0c0d0e0f"}`},
	} {
		if _, err := execute(t, c, test.args...); err != nil || *asked != test.want {
			t.Errorf("%v asks %s (%v), want %s", test.args, *asked, err, test.want)
		}
	}
	c, asked = endpoint(t, http.StatusOK, "null")
	for line, want := range map[string]string{
		"top":                               "top",
		"top api --by denied -n 3 --banned": "top?banned=true&by=denied&n=3&zone=api",
		"bans --number 1000 --json":         "bans?n=1000",
		"bans login":                        "bans?zone=login",
	} {
		if _, err := execute(t, c, strings.Fields(line)...); err != nil || *asked != "GET /rate_limit/"+want+" " {
			t.Errorf("%s asks %s, %v, want %s", line, *asked, err, want)
		}
	}
	*asked = ""
	for _, args := range [][]string{{"explain", "/login"}, {"explain", "http://a/", "-H", "nonsense"}, {"explain"}, {"explain", "api", "k", "--ip", "203.0.113.9"}, {"explain", "--id", "--ip", "203.0.113.9"}, {"top", "a", "b"}} {
		if _, err := execute(t, c, args...); err == nil || *asked != "" {
			t.Errorf("%v: %v, and it asks %q", args, err, *asked)
		}
	}
}
