package main

import (
	"fmt"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	listMark = regexp.MustCompile(`^ *(?:[-*] |\d+\. )?`)
)

// prose calls f for each line of each page that is no code.
func (r *repo) prose(f func(where, line string)) {
	for file, text := range r.texts {
		if path.Ext(file) != ".md" || strings.Contains(file, "testdata/") {
			continue
		}
		r.seen++
		code := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			} else if !code && !strings.HasPrefix(line, "    ") {
				f(fmt.Sprintf("%s:%d", file, i+1), line)
			}
		}
		if code {
			r.report(file, "a block has no end")
		}
	}
}

// lines checks how wide lines are, and how many columns tables have, except in the notes of
// internals. A line may have no place to wrap it at, as with a single long link or piece of code.
func (r *repo) lines() {
	r.prose(func(where, line string) {
		if strings.HasPrefix(line, "|") {
			plain := strings.ReplaceAll(codeSpan.ReplaceAllString(line, ""), `\|`, "")
			if n := strings.Count(plain, "|") - 1; n > 6 && !strings.HasPrefix(where, "docs/internals/") {
				r.report(where, "a table of %d columns, at most 6: make two of it", n)
			}
			return
		}
		text := codeSpan.ReplaceAllString(line[len(listMark.FindString(line)):], "x")
		if n := utf8.RuneCountInString(line); n > 110 && strings.Contains(strings.TrimSpace(text), " ") {
			r.report(where, "a line of %d columns, at most 110", n)
		}
	})
}

func (r *repo) links() {
	r.match(r.pages, `\]\(([^)#]*)(?:#([^)]*))?\)`, func(at spot, m []string) {
		if target := path.Join(path.Dir(at.file), m[1]); !strings.Contains(m[1], "://") {
			if m[1] == "" {
				target = at.file
			}
			r.leads(at, target, m[2])
		}
	})
}

// pagesInCode looks at what is no page, and at the helps of commands, which name their guides.
func (r *repo) pagesInCode() {
	isCode := func(file string) bool {
		return slices.Contains([]string{".go", ".yml", ".yaml", ".lua", ".json", ".example", ""}, path.Ext(file)) && !strings.HasPrefix(file, "internal/lint/")
	}
	r.match(slices.DeleteFunc(r.glob("*", "*/*", "*/*/*", "*/*/*/*"), func(file string) bool { return !isCode(file) }),
		`\b(?:docs/|guide\(")([\w/-]+\.md)(?:#([\w-]+))?`, func(at spot, m []string) { r.leads(at, "docs/"+m[1], m[2]) })
}

// found checks that pages for users are linked from a README, or from the list of migrations, and
// notes for those who change Tide from any page that is none.
func (r *repo) found() {
	for _, page := range r.glob("docs/*.md", "docs/migration/*.md", "docs/internals/*.md") {
		r.seen++
		parent, isNote := "README.md", path.Dir(page) == "docs/internals"
		if path.Dir(page) == "docs/migration" {
			parent = "docs/migration.md"
		}
		if !slices.ContainsFunc(r.pages, func(from string) bool {
			lists := from == parent || from == "docs/README.md" || isNote && path.Dir(from) != "docs/internals"
			return lists && strings.Contains(r.texts[from], "]("+strings.TrimPrefix(page, path.Dir(from)+"/"))
		}) {
			r.report(page, "no link leads to it")
		}
		titles := named(`(?m)^# (.*)$`, regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(r.texts[page], ""))
		if len(titles) != 1 || !isNote && !strings.HasSuffix(titles[0], "?") {
			r.report(page, "it has the titles %q, want one, which is a question", titles)
		}
	}
}

// short counts words as wc -w README.md docs/*.md docs/migration/*.md does: tables, code and marks
// as well. What is generated lists one thing after the other, so it may be longer.
func (r *repo) short() {
	sum := 0
	for _, page := range r.glob("README.md", "docs/*.md", "docs/migration/*.md") {
		r.seen++
		most := 1_200
		if strings.HasPrefix(page, "docs/migration/") {
			most = 600
		} else if page == "docs/options.md" || page == "docs/warnings.md" || page == "docs/names.md" {
			most = 2_600
		}
		words := len(strings.Fields(r.texts[page]))
		if sum += words; words > most {
			r.report(page, "it has %d words, at most %d: what is evidence goes to docs/internals", words, most)
		}
	}
	if sum > 23_000 {
		r.report("docs", "README.md and the pages outside docs/internals have %d words, at most 23,000", sum)
	}
}

// files checks what pages name. In commands that run in bench, a path is relative to that
// directory.
func (r *repo) files() {
	r.match(r.pages, "`([A-Za-z_./]+\\.(?:go|lua|md|svg|txt|example))`", func(at spot, m []string) {
		if strings.Contains(m[1], "/") || at.file == "CONTRIBUTING.md" {
			r.leads(at, m[1], "")
		}
	})
	r.match(r.pages, "\\bgo (?:run|test|build|vet)\\b[^\n`|]*? \\./([a-z/]+)", func(at spot, m []string) {
		if !r.dirs["bench/"+m[1]] {
			r.leads(at, m[1], "")
		}
	})
	r.match(r.pages, "`((?:internal|bench|cmd|sync|algorithms|testdata)(?:/[a-z]+)*)/?`", func(at spot, m []string) { r.leads(at, m[1], "") })
}

func (r *repo) testsOfPages() {
	check := func(at spot, like, name string) {
		if !regexp.MustCompile(`\nfunc ` + like).MatchString(r.tests) {
			r.report(at, "it names the test %s, which is not there", name)
		}
	}
	r.match(r.pages, "`((?:Test|Benchmark|Fuzz)[A-Z]\\w+)`", func(at spot, m []string) { check(at, m[1]+`\(`, m[1]) })
	r.match(r.pages, "-(?:run|bench)[ \n]+'?([A-Za-z|]+)", func(at spot, m []string) {
		for name := range strings.SplitSeq(m[1], "|") {
			check(at, "[A-Za-z]*"+name, name)
		}
	})
}

// runElsewhere are pages whose commands a test of their own runs; taskPages of internal/cluster has
// the others.
var runElsewhere = map[string]string{
	"README.md":               "TestFirstLimitOfTheReadme",
	"docs/containers.md":      "TestThePageOfContainers",
	"docs/getting-started.md": "TestGettingStarted",
	"docs/migration.md":       "TestThePageOfMigrationHasBothAnswersInTheLog",
}

func (r *repo) commands() {
	tasks := named(`(?m)^\t"([\w/-]+)": `, between(r.tests, "\nvar taskPages = map[string]taskPage{", "\n}\n"))
	for _, page := range r.glob("*.md", "docs/*.md", "docs/migration/*.md", "examples/*.md", "deploy/grafana/*.md") {
		has := slices.ContainsFunc(r.blocks(page, "console"), func(b string) bool { return strings.Contains("\n"+b, "\n$ ") })
		test := runElsewhere[page]
		if has {
			r.seen++
		}
		switch isTask := slices.Contains(tasks, strings.TrimSuffix(strings.TrimPrefix(page, "docs/"), ".md")); {
		case test != "" && (!has || !strings.Contains(r.tests, "\nfunc "+test+"(")):
			r.report(page, "it has no commands, or %s is not there, which runs them", test)
		case test == "" && has && !isTask && page != "CONTRIBUTING.md":
			r.report(page, "no test runs its commands")
		}
	}
}

func (r *repo) xcaddy() {
	r.match([]string{"go.mod"}, `(?s)^module (\S+)\n.*github\.com/caddyserver/caddy/v2 (v\S+)`, func(_ spot, m []string) {
		args := strings.Fields(regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(r.texts["xcaddy.txt"], ""))
		if want := m[2] + " --with " + m[1]; strings.Join(args, " ") != want && !strings.HasPrefix(strings.Join(args, " "), want+"@") {
			r.report("xcaddy.txt", "it has %q, go.mod %s", args, want)
		} else if !strings.Contains(r.texts["README.md"], "xcaddy build "+want+"`") {
			r.report("README.md", "it doesn't say `xcaddy build %s`", want)
		}
	})
}

// writers are the commands that write pages or pictures from the code. With -check they say which
// are not what they write.
var writers = []string{"./internal/reference", "./internal/plot/cmd/architecture", "./internal/sim/cmd/accuracy"}

func (r *repo) generated() {
	for _, w := range writers {
		r.seen++
		if out, err := exec.Command("go", "run", "-tags=nobadger,nomysql,nopgx", w, "-check").CombinedOutput(); err != nil {
			r.report(w, "%v: %s", err, out)
		}
	}
}
