package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// A repo is the repository: all is read once.
type repo struct {
	set   *token.FileSet
	texts map[string]string // of files, by their paths
	dirs  map[string]bool

	all     []*source // files of Go
	code    []*source // the same without tests
	product []string  // the same without commands of commands, comparisons and this one
	pages   []string  // those at the top, in docs, in docs/internals and in docs/migration
	tests   string    // the text of all tests

	findings []string
	seen     int // how many things a rule has looked at
}

// A source is a file of Go.
type source struct {
	*ast.File
	path, dir string
	test      bool
}

// read reads the repository in a directory.
func read(root fs.FS) (*repo, error) {
	texts := map[string]string{}
	err := fs.WalkDir(root, ".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && file == ".git" && entry.IsDir() {
			return fs.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := fs.ReadFile(root, file)
		texts[file] = string(text)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newRepo(texts)
}

func newRepo(texts map[string]string) (*repo, error) {
	r := &repo{set: token.NewFileSet(), texts: texts, dirs: map[string]bool{}}
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
			r.dirs[dir] = true
		}
		if path.Ext(file) != ".go" || strings.Contains(file, "testdata/") {
			continue
		}
		parsed, err := parser.ParseFile(r.set, file, texts[file], parser.ParseComments)
		if err != nil {
			return nil, err
		}
		s := &source{parsed, file, path.Dir(file), strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "internal/tests/")}
		r.all = append(r.all, s)
		if s.test {
			r.tests += texts[file]
			continue
		}
		r.code = append(r.code, s)
		if strings.Count(s.dir, "/") < 2 && !strings.HasPrefix(s.dir, "bench") && s.dir != "internal/lint" {
			r.product = append(r.product, file)
		}
	}
	r.pages = r.glob("*.md", "examples/README.md", "docs/*.md", "docs/internals/*.md", "docs/migration/*.md")
	return r, nil
}

// report notes a finding at a place: a file, or one with a line.
func (r *repo) report(where any, format string, args ...any) {
	r.findings = append(r.findings, fmt.Sprint(where, ": ", fmt.Sprintf(format, args...)))
}

// at returns file and line of a position.
func (r *repo) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", r.set.Position(p).Filename, r.line(p))
}

func (r *repo) line(p token.Pos) int { return r.set.Position(p).Line }

// glob returns the files that match one of the patterns, in order.
func (r *repo) glob(patterns ...string) (all []string) {
	for _, file := range slices.Sorted(maps.Keys(r.texts)) {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, file); return ok }) {
			all = append(all, file)
		}
	}
	return all
}

// textOf returns the code of a package without tests, of the whole product for "".
func (r *repo) textOf(dir string) (text string) {
	for _, file := range r.product {
		if dir == "" || path.Dir(file) == dir {
			text += r.texts[file]
		}
	}
	return text
}

// each calls f for each node of a kind.
func each[N ast.Node](r *repo, all []*source, f func(s *source, n N)) {
	for _, s := range all {
		ast.Inspect(s.File, func(n ast.Node) bool {
			if n, ok := n.(N); ok {
				r.seen++
				f(s, n)
			}
			return true
		})
	}
}

// A spot is a place in a file.
type spot struct {
	file         string
	offset, line int
}

func (s spot) String() string { return fmt.Sprintf("%s:%d", s.file, s.line) }

// match calls f for each match of a pattern, with its groups.
func (r *repo) match(files []string, pattern string, f func(at spot, m []string)) {
	like := regexp.MustCompile(pattern)
	for _, file := range files {
		text := r.texts[file]
		starts := like.FindAllStringIndex(text, -1)
		for i, m := range like.FindAllStringSubmatch(text, -1) {
			r.seen++
			f(spot{file, starts[i][0], strings.Count(text[:starts[i][0]], "\n") + 1}, m)
		}
	}
}

// named returns what a pattern has in its first group, wherever it is in a text.
func named(pattern, text string) (all []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// between returns what stands between the first places of two texts, "" if there is none.
func between(text, begins, ends string) string {
	_, text, _ = strings.Cut(text, begins)
	text, _, _ = strings.Cut(text, ends)
	return text
}

// blocks are a page's fenced blocks of a language.
func (r *repo) blocks(page, language string) []string {
	return named("(?ms)^```"+language+"\n(.*?)^```$", r.texts[page])
}

// leads checks that there is a file or a directory, with a heading.
func (r *repo) leads(at spot, file, anchor string) {
	file = path.Clean(file)
	if _, ok := r.texts[file]; !ok && !r.dirs[file] {
		r.report(at, "%s is not there", file)
		return
	}
	heading := func(text string) bool {
		text = regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(text), "")
		return strings.ReplaceAll(text, " ", "-") == anchor
	}
	if anchor != "" && !slices.ContainsFunc(named(`(?m)^#+ (.+)$`, r.texts[file]), heading) {
		r.report(at, "%s has no heading #%s", file, anchor)
	}
}

// isOf reports whether a node is one of the names of a package.
func isOf(n ast.Node, pkg string, names ...string) bool {
	s, ok := n.(*ast.SelectorExpr)
	return ok && lastName(s.X) == pkg && slices.Contains(names, s.Sel.Name)
}

// lastName returns c of a.b.c and of a.b.c[i], "" of what has no name.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return lastName(e.X)
	}
	return ""
}
