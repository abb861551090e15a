// Command lint checks what this code and its pages rely on and no general linter knows: what rules
// has, each with what it says.
//
//	go run ./internal/lint
//
// It prints a line for each finding, and exits with 1 where there is one. It needs Go alone.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

const module = "github.com/caddy-tide/ratelimit"

// A rule is something that holds for the whole repository.
type rule struct {
	name, says string

	// least is how many things it looks at, at least. Where it sees fewer, it is the rule that is
	// broken.
	least int
	check func(*repo)
}

var rules = []rule{
	{"width", "a line with a comment has at most 100 columns", 100, (*repo).width},
	{"words", "one thing has one word, in comments and pages", 100, (*repo).oneWord},

	{"lines", "a line of a page can be read, and so can a table", 50, (*repo).lines},
	{"links", "links of pages lead to a file and a heading", 200, (*repo).links},
	{"pages in code", "pages that code, commands and alerts name are there, with the heading", 100, (*repo).pagesInCode},
	{"found", "a page is found from another one and has one title, which is a question for users", 35, (*repo).found},
	{"short", "pages for users are short, each and all in all", 30, (*repo).short},
	{"files", "files and directories that pages name are there", 60, (*repo).files},
	{"tests", "tests that pages name or run are there", 50, (*repo).testsOfPages},
	{"commands", "commands that a page shows at a prompt are run by a test", 15, (*repo).commands},
	{"xcaddy", "xcaddy.txt and the README build the Caddy of go.mod", 1, (*repo).xcaddy},

	{"metrics", "metrics that pages, board and alerts name exist, and the board shows all", 15, (*repo).metrics},
	{"alerts", "each alert has a runbook, a test and a place in its page", 5, (*repo).alerts},
	{"status", "fields of the status are those of the code", 30, (*repo).status},
	{"log fields", "fields of log lines are those of the code", 20, (*repo).logFields},
	{"log lines", "log lines without a code are those of the code", 5, (*repo).logLines},
	{"placeholders", "placeholders are those of the code", 5, (*repo).placeholders},
	{"events", "events and their data are those of the code", 3, (*repo).events},
	{"codes", "each warning has a code, once, and an entry in its page", 10, (*repo).codes},
	{"coded", "a warning is logged with its code", 6, (*repo).coded},
	{"generated", "pages and pictures that a command writes are what it writes", 3, (*repo).generated},

	{"platforms", "the module has the right types on Windows, macOS and with 32 bits", 100, (*repo).platforms},

	{"clock", "tests go by virtual time, or by nothing that ends soon", 0, (*repo).clock},
}

func main() {
	r, err := read(os.DirFS("."))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if r.check(rules); len(r.findings) > 0 {
		fmt.Println(strings.Join(r.findings, "\n"))
		os.Exit(1)
	}
}

// check applies rules. Findings are in the order of their places.
func (r *repo) check(all []rule) {
	for _, rule := range all {
		r.seen = 0
		if rule.check(r); r.seen < rule.least {
			r.report("internal/lint", "%s: it looked at %d things, at least %d: the rule is broken", rule.name, r.seen, rule.least)
		}
	}
	slices.Sort(r.findings)
}
