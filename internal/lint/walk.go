package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// A walker reads the code as a person who follows a request does: a function from top to bottom,
// and each call in it where it stands, before the next one. Of a call through an interface or a
// value it reads all functions of the product that this may be, and a literal where it stands. It
// reads no function twice.
//
// What it has read is a list of functions. From one to the next it climbs where the next one's
// package is on a higher floor, which is one more than the highest of those that it imports; and it
// returns where it has read of that package, or file, and has left it.
type walker struct {
	*calls
	ran     func(token.Pos) bool // what a run has executed, nil to read everything
	seen    map[*function]bool
	read    []*function // in order
	upward  int         // calls of functions on a higher floor
	unknown map[string]bool
}

// walk writes how a reader of the product in a directory moves who follows a request, and what the
// objects that evaluate it have. With a profile of go test -coverprofile it reads only what ran.
func walk(to io.Writer, dir, profile string) error {
	w, err := newWalker(dir, profile)
	if err != nil {
		return err
	}
	w.report(to)
	w.objects(to, requestTypes)
	return nil
}

// newWalker returns a walker that has read.
func newWalker(dir, profile string) (*walker, error) {
	p, err := load(dir)
	if err != nil {
		return nil, err
	}
	w := &walker{calls: newCalls(p), seen: map[*function]bool{}, unknown: map[string]bool{}}
	if profile != "" {
		if w.ran, err = p.executed(profile); err != nil {
			return nil, err
		}
	}
	handler := p.root().types.Scope().Lookup("Handler")
	if handler == nil {
		return nil, errors.New("no Handler in the root package")
	}
	start, _, _ := types.LookupFieldOrMethod(handler.Type(), true, nil, "ServeHTTP")
	f, ok := start.(*types.Func)
	if !ok {
		return nil, errors.New("no Handler.ServeHTTP in the root package")
	}
	w.follow(w.declared[f])
	return w, nil
}

// follow reads a function and all that it calls.
func (w *walker) follow(f *function) {
	w.seen[f] = true
	w.read = append(w.read, f)
	for _, n := range inside(f) {
		if w.ran != nil && !w.ran(n.Pos()) {
			continue
		}
		for _, next := range w.next(n) {
			if w.ran != nil && len(next.body.List) > 0 && !w.ran(next.body.List[0].Pos()) {
				continue
			}
			if next.room.floor > f.room.floor {
				w.upward++
			}
			if !w.seen[next] {
				w.follow(next)
			}
		}
	}
}

// inside returns the calls and literals in a function, in the order in which they are read: a call
// by its parenthesis, so that those of a chain come one after the other.
func inside(f *function) (all []ast.Node) {
	place := func(n ast.Node) token.Pos {
		if call, ok := n.(*ast.CallExpr); ok {
			return call.Lparen
		}
		return n.Pos()
	}
	ast.Inspect(f.body, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.CallExpr:
			all = append(all, n)
		case *ast.FuncLit:
			all = append(all, n)
			return false
		}
		return true
	})
	slices.SortFunc(all, func(a, b ast.Node) int { return cmp.Compare(place(a), place(b)) })
	return all
}

// next returns what is read at a call or literal. A function that is passed to another module is
// read there.
func (w *walker) next(n ast.Node) []*function {
	if lit, ok := n.(*ast.FuncLit); ok {
		return []*function{w.literals[lit]}
	}
	call := n.(*ast.CallExpr)
	all := w.callees(call)
	if w.info.Types[call.Fun].IsType() || w.info.Types[call.Fun].IsBuiltin() || len(all) > 0 {
		return all
	}
	if _, ok := w.variable(call.Fun).(*types.Var); ok {
		w.unknown[w.at(call.Pos())] = true
	}
	for _, arg := range call.Args {
		if holdsFunctions(w.info.TypeOf(arg)) && !isLiteral(arg) {
			all = append(all, w.functions(arg, map[types.Object]bool{})...)
		}
	}
	return all
}

// at returns where in the directory a position is.
func (p *program) at(pos token.Pos) string {
	place := p.set.Position(pos)
	return fmt.Sprintf("%s:%d", p.local(place.Filename), place.Line)
}

func (p *program) local(file string) string { return strings.TrimPrefix(file, p.dir+"/") }

func (w *walker) report(to io.Writer) {
	climbs := 0
	for i, f := range w.read[1:] {
		if f.room.floor > w.read[i].room.floor {
			climbs++
		}
	}
	rooms := returns(w.read, func(f *function) string { return f.room.path })
	files := returns(w.read, func(f *function) string { return w.local(f.file) })
	fmt.Fprintf(to, "%d functions in %d files of %d packages\n", len(w.read), len(files), len(rooms))
	fmt.Fprintf(to, "%d climbs to a package above\n", climbs)
	fmt.Fprintf(to, "%d returns to a package already left, %d to a file\n", sum(rooms), sum(files))
	fmt.Fprintf(to, "%d calls run upward, against the imports\n", w.upward)
	for _, at := range slices.Sorted(maps.Keys(w.unknown)) {
		fmt.Fprintf(to, "not followed, as no function is known: %s\n", at)
	}
	fmt.Fprintln(to, "returns to files:")
	names := slices.Sorted(maps.Keys(files))
	slices.SortStableFunc(names, func(a, b string) int { return files[b] - files[a] })
	for _, name := range names {
		if files[name] > 0 {
			fmt.Fprintf(to, "  %3d %s\n", files[name], name)
		}
	}
}

// returns counts how often a reader comes back to each place that has been read and left.
func returns(read []*function, place func(*function) string) map[string]int {
	back, here := make(map[string]int), ""
	for _, f := range read {
		there := place(f)
		if n, left := back[there]; left && there != here {
			back[there] = n + 1
		} else {
			back[there] = n
		}
		here = there
	}
	return back
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// executed reads a profile, and returns what of the product ran.
func (p *program) executed(profile string) (func(token.Pos) bool, error) {
	file, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	type block struct{ fromLine, from, toLine, to int }
	ran := make(map[string][]block)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var b block
		var statements, count int
		name, at, _ := strings.Cut(strings.TrimPrefix(lines.Text(), p.root().path+"/"), ":")
		if _, err := fmt.Sscanf(at, "%d.%d,%d.%d %d %d", &b.fromLine, &b.from, &b.toLine, &b.to, &statements, &count); err == nil && count > 0 {
			ran[name] = append(ran[name], b)
		}
	}
	return func(pos token.Pos) bool {
		at := p.set.Position(pos)
		return slices.ContainsFunc(ran[p.local(at.Filename)], func(b block) bool {
			return (at.Line > b.fromLine || at.Line == b.fromLine && at.Column >= b.from) &&
				(at.Line < b.toLine || at.Line == b.toLine && at.Column < b.to)
		})
	}, lines.Err()
}
