package main

import (
	"slices"
	"strings"
	"testing"
)

// files returns the files of a text, each behind a line "-- name --".
func files(text string) map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq("\n"+text, "\n-- ") {
		if name, content, ok := strings.Cut(part+"\n", " --\n"); ok {
			all[name] = content
		}
	}
	return all
}

func repoOf(t *testing.T, text string) *repo {
	t.Helper()
	r, err := newRepo(files(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var long = strings.Repeat("word ", 23)

// bad has for a rule what it finds, in files that also have what it must not find.
var bad = []struct{ rule, files, want string }{
	{"width", "-- a.go --\n// " + long + "\npackage a\n\n// short\n-- a.lua --\nx -- " + long + "\ny\n", "a.go:1: a comment of 118|a.lua:1: a comment of"},
	{"words", "-- a.go --\n// It is refused.\npackage a\n-- b_test.go --\n// Anew.\npackage a\n-- docs/f.md --\nIt is done anew, not `anew`.\n```\nanew\n```\n", `a.go:1: "refused"; the word|docs/f.md:1: "anew"; the word here is: again`},
	{"lines", "-- a.md --\nshort\n" + long + "\n- [link](" + strings.Repeat("x", 120) + ")\n- `" + long + "`\n|a|b|c|d|e|f|`g|h`|\n|a|b|c|d|e|f \\| g, `h|i`|\n| " + long + " |\n-- docs/internals/e.md --\n|a|b|c|d|e|f|g|\n-- b.md --\n```\n" + long + "\n", "a.md:2: a line of 115 columns|a.md:5: a table of 7 columns|b.md: a block has no end"},
	{"links", "-- docs/a.md --\n# A b, c?\n[x](b.md) [y](#a-b-c) [z](#nothing) [w](../README.md#no) [v](https://x.y/#z) [u](../internal/)\n-- README.md --\n-- internal/a.txt --\n", "docs/a.md:2: README.md has no heading #no|docs/a.md:2: docs/a.md has no heading #nothing|docs/a.md:2: docs/b.md is not there"},
	{"pages in code", "-- a.go --\npackage a // docs/a.md#b, docs/b.md\nvar x = guide(\"a.md#c\")\n-- docs/a.md --\n# B\n", "a.go:1: docs/b.md is not there|a.go:2: docs/a.md has no heading #c"},
	{"found", "-- README.md --\n[a](docs/a.md)\n-- docs/a.md --\n# A?\n-- docs/b.md --\n# B.\n-- docs/migration/c.md --\n# C?\n# D?\n-- docs/internals/e.md --\n# E\n", "docs/b.md: it has the titles|docs/b.md: no link|docs/internals/e.md: no link|docs/migration/c.md: it has the titles|docs/migration/c.md: no link"},
	{"short", "-- docs/a.md --\n" + strings.Repeat("a ", 1201) + "\n-- docs/migration/b.md --\n" + strings.Repeat("a ", 601) + "\n-- docs/options.md --\n" + strings.Repeat("a ", 24000), "docs/a.md: it has 1201|docs/migration/b.md: it has 601|docs/options.md: it has 24000|docs: README.md"},
	{"files", "-- README.md --\n`a.go` `b/a.go` `internal/x` `go test ./internal/y` and `internal/z`\n    go run ./rivals; go run ./gone\n-- internal/z/a.txt --\n-- bench/rivals/a.txt --\n", "README.md:1: b/a.go|README.md:1: internal/x|README.md:1: internal/y|README.md:2: gone"},
	{"tests", "-- README.md --\n`TestAll`, `TestBoth`, go test -run 'TestC|TestD'\n-- a_test.go --\npackage a\nfunc TestAll() {}\nfunc TestDoor() {}\n", "README.md:1: it names the test TestBoth|README.md:1: it names the test TestC"},
	{"commands", "-- docs/login.md --\n```console\n$ a\n```\n-- docs/new.md --\n```console\n$ a\n```\n-- docs/migration.md --\n```console\n$ a\n```\n-- a_test.go --\npackage a\n\nvar taskPages = map[string]taskPage{\n\t\"login\": {},\n}\n", "docs/migration.md: it has no commands, or|docs/new.md: no test runs"},
	{"xcaddy", "-- go.mod --\nmodule a.b/c\nrequire github.com/caddyserver/caddy/v2 v2.9\n-- xcaddy.txt --\n# with\nv2.8 --with a.b/c\n", "xcaddy.txt: it has"},
	{"xcaddy", "-- go.mod --\nmodule a.b/c\nrequire github.com/caddyserver/caddy/v2 v2.9\n-- xcaddy.txt --\nv2.9\n--with a.b/c@main\n", "README.md: it doesn't say `xcaddy build v2.9 --with a.b/c`"},
	{"metrics", "-- docs/names.md --\n### caddy_rate_limit_a\n-- docs/b.md --\ncaddy_rate_limit_c\n", "deploy/grafana/tide.json: it doesn't show caddy_rate_limit_a|docs/b.md:1: it names caddy_rate_limit_c"},
	{"alerts", "-- deploy/grafana/alerts.yml --\nalert: TideA\nalert: TideB\n  runbook_url: https://github.com/caddy-tide/ratelimit/blob/main/docs/a.md#b\n-- deploy/grafana/alerts_test.yml --\nalertname=\"TideA\"\n-- docs/observability.md --\n`TideA` `TideC`\n", `deploy/grafana/alerts.yml: 1 of 2|deploy/grafana/alerts.yml: no test of rules has TideB|docs/observability.md: it doesn't have the alert "TideB"|docs/observability.md: it has the alert "TideC"`},
	{"status", "-- internal/operate/a.go --\npackage operate\ntype State struct {\n\tA int `json:\"a,omitempty\"`\n\tB []*control.B `json:\"b\"`\n\tD int\n}\n-- internal/control/a.go --\npackage control\ntype B struct {\n\tC int `json:\"c\"`\n}\n-- docs/names.md --\n# Status\n| `a` | x |\n| `b[]`, `e` | x |\n", `docs/names.md: it doesn't have the status field "b[].c"|docs/names.md: it has the status field "e"|internal/operate/a.go: a field without a name in JSON: D int`},
	{"log fields", "-- a.go --\npackage a\nfunc f() { zap.Int(\"a\", 1); zap.Error(e); printable(\"b\", x) }\n-- docs/names.md --\n# Log fields\n| `a`, `a` | x |\n", `docs/names.md: it doesn't have the log field "b"|docs/names.md: it doesn't have the log field "error"|docs/names.md: it has the log field "a" twice`},
	{"log lines", "-- sync/a.go --\npackage ratesync\nconst up = \"it works\"\nvar e = &LogEntry{zap.InfoLevel, up, nil}\nfunc f() { l.Info(\"a line\", x); l.Check(zap.InfoLevel, \"another\") }\n-- docs/names.md --\n# Log lines\n| `a line` | x |\n| `gone` | x |\n", `docs/names.md: it doesn't have the log line "another"|docs/names.md: it doesn't have the log line "it works"|docs/names.md: it has the log line "gone"`},
	{"placeholders", "-- internal/answer/a.go --\npackage answer\nconst name = \"exceeded.name\"\n\nfunc lookUp(s string) {\n\tswitch s {\n\tcase \"limit\", \"used\":\n\t}\n}\n-- docs/names.md --\n# Placeholders\n| `{http.rate_limit.<zone>.limit}` | x |\n| `{http.rate_limit.exceeded.wait}` | x |\n", `docs/names.md: it doesn't have the placeholder "{http.rate_limit.<zone>.used}"|docs/names.md: it doesn't have the placeholder "{http.rate_limit.exceeded.name}"|docs/names.md: it has the placeholder "{http.rate_limit.exceeded.wait}"`},
	{"events", "-- internal/answer/a.go --\npackage answer\nconst (\n\taEvent = \"rate_a\"\n\tbEvent = \"rate_b\"\n)\nvar m = map[string]any{\"zone\": 1, \"key\": 2}\n-- docs/names.md --\n`rate_a`\n# The event\n| `zone` | x |\n", `docs/names.md: it doesn't have the event "rate_b"|docs/names.md: it doesn't have the event's data "key"`},
	{"codes", "-- internal/warning/a.go --\npackage warning\nconst (\n\tA = \"TIDE001\"\n\tB = \"TIDE001\"\n\tC = \"TIDE002\"\n)\n-- docs/warnings.md --\n## TIDE001\n", `docs/warnings.md: it doesn't have the code "TIDE002"|internal/warning: a code is there twice`},
	{"coded", "-- a.go --\npackage a\nfunc f() {\n\tl.Warn(\"a\", warning.Field(warning.A))\n\tl.Error(\"b\")\n\twarn(x)\n\tl.Error(err)\n}\n", `a.go:4: it logs without a code: l.Error("b")|a.go:5: it logs without a code: warn(x)`},
}

func TestRulesFindWhatIsBad(t *testing.T) {
	for _, c := range bad {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.name == c.rule })
		r := repoOf(t, c.files)
		rules[i].check(r)
		slices.Sort(r.findings)
		want := strings.Split(c.want, "|")
		if !slices.EqualFunc(r.findings, want, strings.HasPrefix) {
			t.Errorf("%s found\n%s\nwant\n%s", c.rule, strings.Join(r.findings, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A rule that sees nothing is broken.
func TestRulesThatSeeNothing(t *testing.T) {
	r := repoOf(t, "")
	r.check(slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return r.name == "generated" }))
	for _, rule := range rules {
		if rule.least > 0 && rule.name != "generated" && !strings.Contains(strings.Join(r.findings, "\n"), "internal/lint: "+rule.name+": it looked at ") {
			t.Errorf("%s: an empty repository is no finding", rule.name)
		}
	}
}

func TestOnlyWhatGoesByTheRealClockIsFound(t *testing.T) {
	r := repoOf(t, `-- p_test.go --
package p

func TestA(t *testing.T) {
	time.Sleep(1) // found, with 5/1s
	synctest.Test(t, func(t *testing.T) { time.Sleep(1); helper(); both() })
	inBubble(t, func() { time.Now(); s.step() })
	synctest.Test(t, named)
	both()
	marked()
	load("limit 5/1m 5/30d 5/s 10/720h", "window 1h", "{\"window\":\"10s\"}")
	use(Rate{Window: 24 * time.Hour}, Rate{Window: caddy.Duration(time.Minute)}, Rate{Window: 31 * 24 * time.Hour})
}

func inBubble(t *testing.T, f func()) { synctest.Test(t, func(t *testing.T) { f() }) }

func helper() { redistest.Pause(1) }

func both() { redistest.Pause(1) }

func named(t *testing.T) { time.Since(x) }

func (s *S) step() { time.Now() }

// marked is called elsewhere.
//
// bubble: of those tests.
func marked() { time.Now() }
-- q_test.go --
//go:build chaos

package p

var x = time.Now()
-- r_test.go --
// bubble: all of it.

package p

var x = time.Now()
-- algorithms/a_test.go --
package algorithms

var x = "5/1s"
`)
	var want []string
	for _, place := range []string{"4: time.Sleep", "10: a window of 1m0s", "10: a window of 1s", "10: a window of 1h0m0s", "10: a window of 10s", "11: a window of 24h0m0s", "11: a window of 1m0s", "18: redistest.Pause"} {
		want = append(want, "p_test.go:"+place)
	}
	found := r.onTheClock()
	got := found["p_test.go"]
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(found) != 1 {
		t.Errorf("found\n%s\nwant\n%s\nand only in one file: %v", strings.Join(got, "\n"), strings.Join(want, "\n"), found)
	}
}
