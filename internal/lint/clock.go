package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timeless are the packages whose tests say what time it is, or only read windows.
var timeless = []string{"algorithms", "internal/command", "internal/config", "internal/sim/scenario", "internal/table"}

const (
	realClock = `\btime\.(?:Now|Since|Sleep)\b|\bredistest\.Pause\b`
	window    = `[\d}]/(\d*)(ms|s|m|h|d)\b|\bwindow\\?"?:?\s*\\?"?(\d+)(ms|s|m|h|d)\b|\bWindow:\s+(?:[\w.]+\()?([\d* ]*)time\.(Hour|Minute|Second|Millisecond)\b`
)

var (
	isChaos  = regexp.MustCompile(`(?m)^//go:build (.*[^!])?chaos\b`)
	isBubble = regexp.MustCompile(`(?m)^(?:bubble|no clock):`)

	units = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
		"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
)

// chaotic are those that only `make chaos` tests.
var chaotic = []string{"bench", "cmd", "deploy"}

// clock checks, outside of what only `make chaos` runs and of functions that run in a bubble of
// synctest, that a test asks for no real time and has no window below 30 days, which may end
// meanwhile. A function runs in a bubble where it is passed to synctest.Test, or to a function that
// does so, or is used in bubbles alone, or where its comment has a line that begins with "bubble:",
// or with "no clock:" where windows are only read; so does a file that has one before its package.
func (r *repo) clock() {
	found := r.onTheClock()
	r.findings = slices.Concat(append(slices.Collect(maps.Values(found)), r.findings)...)
}

// onTheClock returns what is wrong, by files.
func (r *repo) onTheClock() map[string][]string {
	bubbles, found := map[string]*bubble{}, map[string][]string{}
	for _, s := range r.all {
		top, _, _ := strings.Cut(s.dir, "/")
		if s.test && s.dir != "internal/lint" && !slices.Contains(chaotic, top) && !isChaos.MatchString(r.texts[s.path]) {
			if bubbles[s.dir] == nil {
				bubbles[s.dir] = &bubble{names: map[string]bool{}, takes: map[string]bool{}, uses: map[string][]ast.Node{}}
			}
			bubbles[s.dir].tests = append(bubbles[s.dir].tests, s)
		}
	}
	for dir, b := range bubbles {
		b.grow(r)
		for _, s := range b.tests {
			report := func(at spot, what string) {
				if !b.has(s.FileStart + token.Pos(at.offset)) {
					found[s.path] = append(found[s.path], fmt.Sprint(at, ": ", what))
				}
			}
			r.match([]string{s.path}, realClock, func(at spot, m []string) { report(at, m[0]) })
			r.match([]string{s.path}, window, func(at spot, m []string) {
				length := units[m[2]+m[4]+m[6]]
				for _, factor := range named(`(\d+)`, m[1]+m[3]+m[5]) {
					n, _ := strconv.Atoi(factor)
					length *= time.Duration(n)
				}
				if length < 30*24*time.Hour && !slices.Contains(timeless, dir) {
					report(at, "a window of "+length.String())
				}
			})
		}
	}
	return found
}

// A bubble is what is known to run in virtual time in the tests of a directory.
type bubble struct {
	tests []*source
	spans []ast.Node            // of comments as well
	names map[string]bool       // of functions that run in a bubble
	takes map[string]bool       // of functions that run their argument in a bubble
	uses  map[string][]ast.Node // of names; those of fields and methods with a dot
}

func (b *bubble) has(p token.Pos) bool {
	return slices.ContainsFunc(b.spans, func(n ast.Node) bool { return n.Pos() <= p && p < n.End() })
}

// grow adds what runs in bubbles until there is no more.
func (b *bubble) grow(r *repo) {
	for _, s := range b.tests {
		for _, c := range s.Comments {
			if b.spans = append(b.spans, c); c.Pos() < s.Package && isBubble.MatchString(c.Text()) {
				b.spans = append(b.spans, s.File)
			}
		}
	}
	each(r, b.tests, func(_ *source, n *ast.SelectorExpr) { b.uses["."+n.Sel.Name] = append(b.uses["."+n.Sel.Name], n.Sel) })
	each(r, b.tests, func(_ *source, n *ast.Ident) { b.uses[n.Name] = append(b.uses[n.Name], n) })
	for before := -1; before < len(b.spans)+len(b.names)+len(b.takes); {
		before = len(b.spans) + len(b.names) + len(b.takes)
		each(r, b.tests, func(_ *source, n *ast.CallExpr) {
			for _, arg := range n.Args {
				if isOf(n.Fun, "synctest", "Test", "Run") || b.takes[lastName(n.Fun)] {
					b.add(arg)
				}
			}
		})
		each(r, b.tests, func(_ *source, f *ast.FuncDecl) { b.look(f) })
	}
}

// add adds what a function is passed that runs it in a bubble: its name, or a literal.
func (b *bubble) add(arg ast.Expr) {
	if b.has(arg.Pos()) {
		return
	}
	switch arg := arg.(type) {
	case *ast.FuncLit:
		b.spans = append(b.spans, arg)
	case *ast.Ident:
		b.spans = append(b.spans, arg)
		if arg.Obj == nil || arg.Obj.Kind == ast.Fun {
			b.names[arg.Name] = true
		} else if a, ok := arg.Obj.Decl.(*ast.AssignStmt); ok {
			b.add(a.Rhs[0])
		}
	}
}

func (b *bubble) look(f *ast.FuncDecl) {
	if !b.has(f.Name.Pos()) && (f.Doc != nil && isBubble.MatchString(f.Doc.Text()) || b.names[f.Name.Name] || b.alone(f)) {
		b.spans = append(b.spans, f)
	}
	for _, p := range f.Type.Params.List {
		if _, ok := p.Type.(*ast.FuncType); !ok {
			continue
		}
		if slices.ContainsFunc(b.uses[p.Names[0].Name], func(n ast.Node) bool {
			return f.Pos() <= n.Pos() && n.Pos() < f.End() && b.has(n.Pos())
		}) {
			b.takes[f.Name.Name] = true
		}
	}
}

// alone reports whether a function is used in bubbles alone. Methods go by their names.
func (b *bubble) alone(f *ast.FuncDecl) bool {
	uses := b.uses[f.Name.Name]
	if f.Recv != nil {
		uses = b.uses["."+f.Name.Name]
	}
	others := slices.DeleteFunc(slices.Clone(uses), func(n ast.Node) bool {
		return f.Pos() <= n.Pos() && n.Pos() < f.End() || f.Recv == nil && slices.Contains(b.uses["."+f.Name.Name], n)
	})
	return len(others) > 0 && !slices.ContainsFunc(others, func(n ast.Node) bool { return !b.has(n.Pos()) })
}
