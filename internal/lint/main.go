// Command lint checks what this code relies on and no general linter knows: comments of at most 100
// columns, pages that can be read, one word for one thing, short functions, imports that never run
// upward, kinds of limits that nobody compares, goroutines that somebody waits for, no reflection,
// and tests that don't sleep.
//
//	go run ./internal/lint
//
// It prints a line for each finding, and exits with 1 where there is one.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-tide/ratelimit/algorithms"
)

const (
	module = "github.com/caddy-tide/ratelimit"

	maxColumns  = 100 // of a line of a comment; a tab counts as four
	maxFunction = 60  // lines
)

// layers are the packages of the product, the lowest first. One imports only packages of layers
// below its own.
var layers = [][]string{
	{"internal/clock", "internal/cycle", "internal/figures", "internal/heap", "internal/hostport", "internal/keys", "internal/plot", "internal/reset", "internal/saturate", "internal/spelling", "internal/warning"},
	{"algorithms", "internal/accesslog", "internal/ban", "internal/bandwidth", "internal/gauge", "internal/redisconn", "internal/reqkey"},
	{"internal/answer", "internal/config", "internal/table"},
	{"internal/metrics", "internal/sim", "sync"},
	{"internal/control"},
	{"sync/strict"},
	{"internal/limits"},
	{"internal/lifecycle"},
	{"internal/operate"},
	{"internal/simulate", "internal/statuspage"},
	{"internal/command"},
	{"."},
}

// rootFiles are the files of the root package, the lowest first. A file uses functions, types,
// constants and variables of files below its own.
var rootFiles = []string{
	"place.go", "module.go", "settings.go", "regions.go", "app.go", "parser.go", "unnamed.go", "caddyfile.go",
	"globaloption.go", "admin.go",
}

// upward are the names of files above that a file uses all the same.
var upward = map[string][]string{
	"module.go": {"App"}, // a handler asks Caddy for the app of its configuration
}

// aliases are the names that packages are imported by where that is not their own.
var aliases = map[string]string{module + "/sync": "ratesync"}

type linter struct {
	set      *token.FileSet
	findings []string
	root     map[string]*ast.File // files of the root package, without tests
	packages map[string]*code     // of the product
	needed   []string             // places that need an exception
}

func main() {
	l := newLinter()
	if err := filepath.WalkDir(".", l.visit); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	l.rootOrder()
	for _, c := range l.packages {
		l.owners(c)
	}
	l.needless()
	slices.Sort(l.findings)
	for _, f := range l.findings {
		fmt.Println(f)
	}
	if len(l.findings) > 0 {
		os.Exit(1)
	}
}

func newLinter() linter {
	return linter{set: token.NewFileSet(), root: map[string]*ast.File{}, packages: map[string]*code{}}
}

func (l *linter) report(where, format string, args ...any) {
	l.findings = append(l.findings, where+": "+fmt.Sprintf(format, args...))
}

// at returns file and line of a position.
func (l *linter) at(p token.Pos) string {
	place := l.set.Position(p)
	return fmt.Sprintf("%s:%d", place.Filename, place.Line)
}

func (l *linter) visit(path string, entry fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	name := entry.Name()
	if entry.IsDir() && (name == "testdata" || name != "." && strings.HasPrefix(name, ".")) {
		return filepath.SkipDir
	}
	switch filepath.Ext(name) {
	case ".go":
		return l.goFile(path)
	case ".lua":
		return l.luaFile(path)
	case ".md":
		return l.page(path)
	}
	return nil
}

func (l *linter) goFile(path string) error {
	file, err := parser.ParseFile(l.set, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Split(string(source), "\n")
	l.comments(file, lines)
	l.imports(path, file)
	test := strings.HasSuffix(path, "_test.go")
	if test {
		l.sleeps(file)
	} else {
		l.commentWords(file)
		l.kinds(file)
		l.product(path, file)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if t, ok := n.(*ast.TypeSpec); ok {
			l.reexport(file, t)
		}
		if f, ok := n.(*ast.FuncDecl); ok {
			if length := l.line(f.End()) - l.line(f.Pos()) + 1; length > maxFunction {
				l.report(l.at(f.Pos()), "%s has %d lines, at most %d", f.Name.Name, length, maxFunction)
			}
		}
		return true
	})
	if !test && filepath.Dir(path) == "." {
		l.root[path] = file
	}
	return nil
}

// product takes in a file of the product, and checks that it looks into no value by reflection.
func (l *linter) product(path string, file *ast.File) {
	dir := filepath.ToSlash(filepath.Dir(path))
	if layer(dir) < 0 {
		return
	}
	if l.packages[dir] == nil {
		l.packages[dir] = new(code)
	}
	l.packages[dir].add(file)
	for _, spec := range file.Imports {
		if to := spec.Path.Value; (to == `"reflect"` || to == `"unsafe"`) && !l.excepted(reflects, filepath.ToSlash(path)) {
			l.report(l.at(spec.Pos()), "imports %s, which no compiler checks", to)
		}
	}
}

func (l *linter) line(p token.Pos) int { return l.set.Position(p).Line }

// comments checks the width of each line that has a part of a comment.
func (l *linter) comments(file *ast.File, lines []string) {
	for _, group := range file.Comments {
		for n := l.line(group.Pos()); n <= l.line(group.End()); n++ {
			if text := lines[n-1]; columns(text) > maxColumns && !strings.HasPrefix(text, "//go:") {
				l.report(fmt.Sprintf("%s:%d", l.set.Position(group.Pos()).Filename, n),
					"a comment of %d columns, at most %d", columns(text), maxColumns)
			}
		}
	}
}

// sleeps checks that a test sleeps only in virtual time, or says on the line or the one before why.
func (l *linter) sleeps(file *ast.File) {
	explained := make(map[int]bool)
	for _, group := range file.Comments {
		explained[l.line(group.End())], explained[l.line(group.End())+1] = true, true
	}
	virtual := slices.ContainsFunc(file.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"testing/synctest"` })
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Sleep" || virtual || explained[l.line(n.Pos())] {
			return true
		}
		if from, ok := s.X.(*ast.Ident); ok && from.Name == "time" {
			l.report(l.at(n.Pos()), "a test sleeps: wait with redistest.Eventually, or in testing/synctest")
		}
		return true
	})
}

// reexport checks that no type is another name of one of a package of the product.
func (l *linter) reexport(file *ast.File, t *ast.TypeSpec) {
	of, ok := t.Type.(*ast.SelectorExpr)
	if !ok || !t.Assign.IsValid() {
		return
	}
	from, ok := of.X.(*ast.Ident)
	if ok && slices.ContainsFunc(file.Imports, func(s *ast.ImportSpec) bool { return isOurs(s, from.Name) }) {
		l.report(l.at(t.Pos()), "%s is an alias of %s.%s: write that instead", t.Name.Name, from.Name, of.Sel.Name)
	}
}

// isOurs reports whether an import is a package of the product that a file knows by this name.
func isOurs(spec *ast.ImportSpec, name string) bool {
	to, err := strconv.Unquote(spec.Path.Value)
	if err != nil || !strings.HasPrefix(to, module) {
		return false
	}
	if spec.Name != nil {
		return spec.Name.Name == name
	}
	return path.Base(to) == name
}

// kinds checks that no code asks which kind of limit it has: a kind says of itself what it does.
func (l *linter) kinds(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		var asked []ast.Expr
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				asked = []ast.Expr{n.X, n.Y}
			}
		case *ast.CaseClause:
			asked = n.List
		case *ast.KeyValueExpr:
			asked = []ast.Expr{n.Key}
		}
		for _, e := range asked {
			if s, ok := e.(*ast.SelectorExpr); ok && isKind(s) {
				l.report(l.at(e.Pos()), "asks for algorithms.%s: have algorithms.Kind say what is wanted of it", s.Sel.Name)
			}
		}
		return true
	})
}

// isKind reports whether a name of another package is one of the constants of algorithms.Kind.
func isKind(s *ast.SelectorExpr) bool {
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == "algorithms" && slices.ContainsFunc(algorithms.KindNames(), func(name string) bool {
		return strings.EqualFold(strings.ReplaceAll(name, "_", ""), s.Sel.Name)
	})
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
}

// imports checks aliases, and that no import runs upward.
func (l *linter) imports(path string, file *ast.File) {
	from := layer(filepath.ToSlash(filepath.Dir(path)))
	for _, spec := range file.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.HasPrefix(to, module) {
			continue
		}
		if alias := aliases[to]; alias != "" && (spec.Name == nil || spec.Name.Name != alias) {
			l.report(l.at(spec.Pos()), "import %s as %s", to, alias)
		}
		dir := strings.TrimPrefix(strings.TrimPrefix(to, module), "/")
		if dir == "" {
			dir = "."
		}
		if from < 0 || strings.HasSuffix(path, "_test.go") {
			continue
		}
		switch up := layer(dir); {
		case up < 0:
			l.report(l.at(spec.Pos()), "imports %s, which is no part of the product, or has no layer yet", dir)
		case up >= from:
			l.report(l.at(spec.Pos()), "imports %s, which is not in a layer below", dir)
		}
	}
}

// layer returns the layer of a package, -1 for one that is no part of the product.
func layer(dir string) int {
	return slices.IndexFunc(layers, func(all []string) bool { return slices.Contains(all, dir) })
}

func (l *linter) luaFile(path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i, line := range strings.Split(string(source), "\n") {
		if strings.Contains(line, "--") && columns(line) > maxColumns {
			l.report(fmt.Sprintf("%s:%d", path, i+1), "a comment of %d columns, at most %d",
				columns(line), maxColumns)
		}
	}
	return nil
}

// rootOrder checks that no file of the root package uses what a file above it declares, except for
// methods, which it can't tell apart.
func (l *linter) rootOrder() {
	declared := map[string]int{} // names, and the files that declare them
	for path, file := range l.root {
		if !slices.Contains(rootFiles, path) {
			l.report(path, "a file of the root package that is not in rootFiles of the lint")
		}
		for name := range file.Scope.Objects {
			declared[name] = slices.Index(rootFiles, path)
		}
	}
	for path, file := range l.root {
		for _, used := range file.Unresolved {
			above := declared[used.Name] > slices.Index(rootFiles, path)
			if above && !slices.Contains(upward[path], used.Name) {
				l.report(l.at(used.Pos()), "uses %s of %s, a file above", used.Name, rootFiles[declared[used.Name]])
			}
		}
	}
}
