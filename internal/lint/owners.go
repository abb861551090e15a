package main

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
)

// unowned are the functions that start what nobody waits for, by their files, and why.
var unowned = map[string]string{
	"internal/clock/timers.go After":       "Stop waits for it; this is the owner of timers",
	"internal/lifecycle/bounded.go within": "a call to a disk or a storage that hangs can't be ended",
	"internal/command/command.go ask":      "Caddy's call to the admin endpoint can't be ended, and the command ends with it",
	"sync/callcontext.go CallContext":      "what it returns stops the timer",
}

// reflects are the files that look into values by reflection, and at what. A field of another
// module's type may go or change with each of its versions, and no compiler tells.
var reflects = map[string]string{
	"app.go":                        "the types of options in JSON, by which errors say what to write",
	"module.go":                     "the types of options in JSON, by which errors say what to write",
	"internal/config/hints.go":      "the types of options in JSON, by which errors say what to write",
	"internal/redisconn/options.go": "fields of its own",
	"unnamed.go":                    "where Caddy found a limit without a name, which its name is made of",
}

// excepted reports whether one of the exceptions is for a place. Those that are for none are no
// longer needed, and reported in the end.
func (l *linter) excepted(exceptions map[string]string, place string) bool {
	_, ok := exceptions[place]
	l.needed = append(l.needed, place)
	return ok
}

// needless reports exceptions that nothing needs.
func (l *linter) needless() {
	for _, exceptions := range []map[string]string{unowned, reflects} {
		for place := range exceptions {
			if !slices.Contains(l.needed, place) {
				l.report("internal/lint/owners.go", "nothing needs the exception for %s: remove it", place)
			}
		}
	}
}

// A code is the files of one package, without tests.
type code struct {
	files []*ast.File
	funcs map[string][]*ast.FuncDecl
	// awaited are the calls that end something here for whose end the package waits somewhere, with
	// the last name of what they are for: "close done", "Done calls", "Unlock making".
	awaited map[string]bool
}

// add notes what a file of the package waits for.
func (c *code) add(file *ast.File) {
	if c.funcs == nil {
		c.funcs, c.awaited = map[string][]*ast.FuncDecl{}, map[string]bool{}
	}
	c.files = append(c.files, file)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			c.funcs[n.Name.Name] = append(c.funcs[n.Name.Name], n)
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				c.awaited["close "+lastName(n.X)] = true
			}
		case *ast.RangeStmt:
			c.awaited["close "+lastName(n.X)] = true
		case *ast.CallExpr:
			if of, method := methodOf(n); of != "" {
				c.awaited[map[string]string{"Wait": "Done ", "End": "Done ", "Lock": "Unlock ", "Stop": "Stop "}[method]+of] = true
			}
		}
		return true
	})
}

// owners checks that the package waits for each goroutine that it starts, and stops each timer.
// What is started says first that it will tell of its end: defer close(c), defer wg.Done() or defer
// mu.Unlock(); and somewhere the package has <-c, wg.Wait() or mu.Lock(). What has a method Go has
// Wait or End.
func (l *linter) owners(c *code) {
	for _, file := range c.files {
		for _, d := range file.Decls {
			place := filepath.ToSlash(l.set.Position(d.Pos()).Filename)
			if f, ok := d.(*ast.FuncDecl); ok {
				place += " " + f.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if what := c.loses(n); what != "" && !l.excepted(unowned, place) {
					l.report(l.at(n.Pos()), "%s", what)
				}
				return true
			})
		}
	}
}

// loses says what is wrong with a statement that starts something, "" if nothing is.
func (c *code) loses(n ast.Node) string {
	const goroutine, timer = "nobody waits for this goroutine: see owners in internal/lint", "nobody stops this timer: see owners in internal/lint"
	switch n := n.(type) {
	case *ast.GoStmt:
		if !c.ownsGoroutine(n.Call.Fun) {
			return goroutine
		}
	case *ast.AssignStmt:
		for i, value := range n.Rhs {
			if call, ok := value.(*ast.CallExpr); ok && isTimer(call) && !c.awaited["Stop "+lastName(n.Lhs[i])] {
				return timer
			}
		}
	case *ast.CallExpr:
		switch of, method := methodOf(n); {
		case method == "AfterFunc" && (of == "time" || of == "context"):
			return goroutine
		case method == "Go" && !c.awaited["Done "+of]:
			return goroutine
		}
	}
	return ""
}

// ownsGoroutine reports whether the package waits for the end of a function: a literal, or one of
// its own.
func (c *code) ownsGoroutine(f ast.Expr) bool {
	if literal, ok := f.(*ast.FuncLit); ok {
		return c.awaits(literal.Body)
	}
	all := c.funcs[lastName(f)]
	return len(all) > 0 && !slices.ContainsFunc(all, func(f *ast.FuncDecl) bool { return !c.awaits(f.Body) })
}

// awaits reports whether a function begins with telling of its end, and the package waits for that.
func (c *code) awaits(body *ast.BlockStmt) bool {
	if body == nil || len(body.List) == 0 {
		return false
	}
	first, ok := body.List[0].(*ast.DeferStmt)
	if !ok {
		return false
	}
	if f, ok := first.Call.Fun.(*ast.Ident); ok && f.Name == "close" {
		return c.awaited["close "+lastName(first.Call.Args[0])]
	}
	of, method := methodOf(first.Call)
	return (method == "Done" || method == "Unlock") && c.awaited[method+" "+of]
}

func isTimer(call *ast.CallExpr) bool {
	of, method := methodOf(call)
	return of == "time" && (method == "NewTimer" || method == "NewTicker")
}

// methodOf returns the name of a method and the last name of what it is called of, "" for other
// calls.
func methodOf(call *ast.CallExpr) (of, method string) {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		return lastName(s.X), s.Sel.Name
	}
	return "", ""
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
