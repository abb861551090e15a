package main

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// otherWords are words for what has another name in this repository. A reader who meets two words
// looks for two things.
var otherWords = map[string]*regexp.Regexp{
	"sync":                                 word(`exchang(e|es|ed|ing)`),
	"deny a request, reject anything else": word(`refus(e|es|ed|ing|al|als)`),
	"refund":                               word(`(give|gives|given|gave|giving) back`),
	"again":                                word(`anew`),
	"except":                               word(`but for`),
	"without an answer":                    word(`in vain`),
	"centralized limiter":                  word(`exact (store|counter)`),
}

func word(text string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b` + text + `\b`) }

// reflects are the files that look into values by reflection, and at what. A field of another
// module's type may go or change with each of its versions, and no compiler tells.
var reflects = map[string]string{
	"app.go":                        "the types of options in JSON, by which errors say what to write",
	"module.go":                     "the types of options in JSON, by which errors say what to write",
	"internal/config/hints.go":      "the types of options in JSON, by which errors say what to write",
	"internal/redisconn/options.go": "fields of its own",
	"caddyfile.go":                  "fields of its own, by their names in JSON",
	"internal/config/settings.go":   "fields of its own, which are marked with an option",
	"internal/config/unnamed.go":    "where Caddy found a limit without a name, which its name is made of",
}

// width counts a tab as four columns.
func (r *repo) width() {
	check := func(file string, n int, line string) {
		if c := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t"); c > 100 && !strings.HasPrefix(line, "//go:") {
			r.report(fmt.Sprintf("%s:%d", file, n), "a comment of %d columns, at most 100", c)
		}
	}
	for _, s := range r.all {
		lines := strings.Split(r.texts[s.path], "\n")
		for _, group := range s.Comments {
			for n := r.line(group.Pos()); n <= r.line(group.End()); n++ {
				r.seen++
				check(s.path, n, lines[n-1])
			}
		}
	}
	for file, text := range r.texts {
		for i, line := range strings.Split(text, "\n") {
			if path.Ext(file) == ".lua" && strings.Contains(line, "--") {
				check(file, i+1, line)
			}
		}
	}
}

// oneWord checks comments, except in tests, and pages, except in code.
func (r *repo) oneWord() {
	check := func(where, text string) {
		for name, word := range otherWords {
			if found := word.FindString(text); found != "" {
				r.report(where, "%q; the word here is: %s", found, name)
			}
		}
	}
	each(r, r.code, func(_ *source, c *ast.Comment) { check(r.at(c.Pos()), c.Text) })
	r.prose(func(where, line string) { check(where, codeSpan.ReplaceAllString(line, "")) })
}

// sleeps checks that a test sleeps in virtual time, or says on the line or the one before why. The
// rule on the clock takes its place once that is on.
func (r *repo) sleeps() {
	for _, s := range r.all {
		if !s.test || s.dir == "internal/lint" || strings.Contains(r.texts[s.path], `"testing/synctest"`) || strings.Contains(r.texts[s.path], "inBubble(t, ") {
			continue
		}
		r.match([]string{s.path}, `.*\n.*\btime\.Sleep\(.*`, func(at spot, m []string) {
			if !strings.Contains(m[0], "//") {
				r.report(at, "a test sleeps: wait with redistest.Eventually, or in testing/synctest: %s", m[0])
			}
		})
	}
}

func (r *repo) aliases() {
	r.match(r.glob("*.go", "*/*.go", "*/*/*.go", "*/*/*/*.go"), `(?m)^(?:import|\t) *(\w*) *"`+module+`/sync"$`, func(at spot, m []string) {
		if m[1] != "ratesync" {
			r.report(at, "import it as ratesync")
		}
	})
	each(r, r.all, func(s *source, t *ast.TypeSpec) {
		of, ok := t.Type.(*ast.SelectorExpr)
		if ok && t.Assign.IsValid() && strings.Contains(r.textOf(""), "package "+lastName(of.X)+"\n") {
			r.report(r.at(t.Pos()), "%s is an alias of %s.%s: write that instead", t.Name.Name, lastName(of.X), of.Sel.Name)
		}
	})
}

// kinds checks that no code asks which kind of limit it has: a kind says of itself what it does.
func (r *repo) kinds() {
	r.seen = len(r.code)
	kind := `algorithms\.(?i:` + strings.ReplaceAll(strings.Join(algorithms.KindNames(), "|"), "_", "") + `)\b`
	for _, s := range r.code {
		r.match([]string{s.path}, `[!=]= `+kind+`|\bcase .*`+kind+`|`+kind+`(?: [!=]=|:)`, func(at spot, m []string) {
			r.report(at, "it asks which kind of limit it has, have algorithms.Kind say what is wanted of it: %s", m[0])
		})
	}
}

func (r *repo) reflection() {
	r.match(r.product, `(?m)^[\t ]+(?:\w+ )?"(\w+)"$`, func(at spot, m []string) {
		if (m[1] == "reflect" || m[1] == "unsafe") && layer(path.Dir(at.file)) >= 0 && !r.excepted(reflects, at.file) {
			r.report(at, "it imports %s, which no compiler checks", m[1])
		}
	})
	r.needless(reflects)
}

// excepted reports whether one of the exceptions is for a place.
func (r *repo) excepted(exceptions map[string]string, place string) bool {
	r.needed[place] = true
	return exceptions[place] != ""
}

// needless reports exceptions that nothing needs.
func (r *repo) needless(exceptions map[string]string) {
	for place := range exceptions {
		if !r.needed[place] {
			r.report("internal/lint", "nothing needs the exception for %s: remove it", place)
		}
	}
}

// unowned are the functions that start what nobody waits for, by their files, and why.
var unowned = map[string]string{
	"internal/clock/timers.go After":      "Stop waits for it; this is the owner of timers",
	"internal/lifecycle/keeper.go within": "a call to a disk or a storage that hangs can't be ended",
	"internal/command/command.go ask":     "Caddy's call to the admin endpoint can't be ended, and the command ends with it",
	"sync/relay.go run":                   "it stops the timer at its end",
	"sync/callcontext.go CallContext":     "what it returns stops the timer",
}

// starts is what begins something: a goroutine with what it does first or which function it is,
// what has a method Go, a timer with its name, and what can't be waited for.
const starts = `\bgo (?:func\(.*\) \{\s*(.*)|(?:\w+\.)*(\w+)\()|(\w+)\.Go\(|(\w+)(?:, [\w., ]+)? :?= time\.New(?:Timer|Ticker)\(|\b(?:time|context)\.(AfterFunc)\(`

// owners checks that a package of the product waits for each goroutine that it starts, and stops
// each timer. What is started says first that it will tell of its end: defer close(c), defer
// wg.Done() or defer mu.Unlock(); and somewhere the package has <-c, wg.Wait() or mu.Lock(). What
// has a method Go has Wait or End.
func (r *repo) owners() {
	for _, file := range r.product {
		if layer(path.Dir(file)) < 0 {
			continue
		}
		code := r.textOf(path.Dir(file))
		has := func(like string) bool { return regexp.MustCompile(like).MatchString(code) }
		tells := func(first string) bool {
			m := regexp.MustCompile(`^\s*defer (?:\w+\.)*(\w+)(?:\((?:\w+\.)*(\w+)\)|\.(Done|Unlock)\()`).FindStringSubmatch(first)
			return m != nil && (m[1] == "close" && has(`(?:<-|\brange )[\w.]*\b`+m[2]+`\b`) ||
				m[3] == "Done" && has(`\b`+m[1]+`\.(?:Wait|End)\(`) || m[3] == "Unlock" && has(`\b`+m[1]+`\.Lock\(`))
		}
		r.match([]string{file}, starts, func(at spot, m []string) {
			isOwned := m[1] != "" && tells(m[1]) || m[3] != "" && has(`\b`+m[3]+`\.(?:Wait|End)\(`) || m[4] != "" && has(`\b`+m[4]+`\.Stop\(`)
			if all := named(`\nfunc (?:\(.*?\) )?`+m[2]+`\(.*\{\s*(.*)`, code); m[2] != "" && len(all) > 0 {
				isOwned = !slices.ContainsFunc(all, func(first string) bool { return !tells(first) })
			}
			in := named(`(?m)^func (?:\(.*?\) )?(\w+)`, r.texts[file][:at.offset])
			if place := file + " " + append([]string{""}, in...)[len(in)]; !isOwned && !r.excepted(unowned, place) {
				r.report(at, "nobody waits for what starts here, or stops it: see owners in internal/lint/code.go")
			}
		})
	}
	r.needless(unowned)
}
