package main

import (
	"cmp"
	"go/ast"
	"go/types"
	"slices"
)

// A function is one that is declared in the product, or a literal in it.
type function struct {
	node ast.Node // *ast.FuncDecl or *ast.FuncLit
	body *ast.BlockStmt
	room *room
	file string
}

// calls knows which functions of the product a call may reach.
type calls struct {
	*program
	declared map[*types.Func]*function
	literals map[*ast.FuncLit]*function
	named    []*types.Named              // types of the product, in order
	values   map[types.Object][]ast.Expr // what is assigned to a variable, a field or a parameter
	given    int                         // how many expressions are in values
}

func newCalls(p *program) *calls {
	c := &calls{
		program: p, declared: map[*types.Func]*function{}, literals: map[*ast.FuncLit]*function{},
		values: map[types.Object][]ast.Expr{},
	}
	for _, r := range p.packages {
		for _, file := range r.files {
			c.declare(r, file)
		}
		for _, name := range r.types.Scope().Names() {
			if t, ok := r.types.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
				if n, ok := t.Type().(*types.Named); ok && !types.IsInterface(n) {
					c.named = append(c.named, n)
				}
			}
		}
	}
	// What is passed to a function that is a value is known after what that value may be.
	for before := -1; before != c.given; {
		before = c.given
		for _, r := range p.packages {
			for _, file := range r.files {
				ast.Inspect(file, func(n ast.Node) bool { c.assign(n); return true })
			}
		}
	}
	return c
}

// declare notes the functions of a file.
func (c *calls) declare(r *room, file *ast.File) {
	name := c.set.Position(file.Pos()).Filename
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if f := c.info.Defs[n.Name].(*types.Func); n.Body != nil {
				c.declared[f] = &function{n, n.Body, r, name}
			}
		case *ast.FuncLit:
			c.literals[n] = &function{n, n.Body, r, name}
		}
		return true
	})
}

// assign notes what a node gives to variables, fields and parameters.
func (c *calls) assign(n ast.Node) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			c.give(c.variable(to), n.Rhs[min(i, len(n.Rhs)-1)])
		}
	case *ast.ValueSpec:
		for i, to := range n.Names {
			if len(n.Values) > 0 {
				c.give(c.info.Defs[to], n.Values[min(i, len(n.Values)-1)])
			}
		}
	case *ast.RangeStmt:
		if n.Value != nil {
			c.give(c.variable(n.Value), n.X)
		}
	case *ast.CompositeLit:
		c.assignFields(n)
	case *ast.CallExpr:
		for _, f := range c.callees(n) {
			c.assignArgs(f, n)
		}
	}
}

func (c *calls) assignFields(n *ast.CompositeLit) {
	of, ok := c.info.TypeOf(n).Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, e := range n.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			c.give(c.info.Uses[kv.Key.(*ast.Ident)], kv.Value)
		} else {
			c.give(of.Field(i), e)
		}
	}
}

func (c *calls) assignArgs(f *function, call *ast.CallExpr) {
	var params []*ast.Ident
	for _, field := range f.signature().Params.List {
		params = append(params, field.Names...)
	}
	for i, arg := range call.Args {
		if len(params) > 0 {
			c.give(c.info.Defs[params[min(i, len(params)-1)]], arg)
		}
	}
}

func (f *function) signature() *ast.FuncType {
	if d, ok := f.node.(*ast.FuncDecl); ok {
		return d.Type
	}
	return f.node.(*ast.FuncLit).Type
}

// give notes that a variable may hold the value of an expression, if that holds functions.
func (c *calls) give(to types.Object, value ast.Expr) {
	v, ok := to.(*types.Var)
	if !ok || !holdsFunctions(v.Type()) {
		return
	}
	if to = v.Origin(); !slices.Contains(c.values[to], value) {
		c.values[to] = append(c.values[to], value)
		c.given++
	}
}

// holdsFunctions reports whether a type is a function or a list or map of them.
func holdsFunctions(t types.Type) bool {
	switch t := t.Underlying().(type) {
	case *types.Signature:
		return true
	case *types.Slice:
		return holdsFunctions(t.Elem())
	case *types.Array:
		return holdsFunctions(t.Elem())
	case *types.Map:
		return holdsFunctions(t.Elem())
	}
	return false
}

// variable returns the variable or field that an expression names, or an element of which it is.
func (c *calls) variable(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if o := c.info.Defs[e]; o != nil {
			return o
		}
		return c.info.Uses[e]
	case *ast.SelectorExpr:
		return c.info.Uses[e.Sel]
	case *ast.IndexExpr:
		return c.variable(e.X)
	case *ast.SliceExpr:
		return c.variable(e.X)
	}
	return nil
}

// callees returns the functions of the product that a call may reach.
func (c *calls) callees(call *ast.CallExpr) []*function {
	if c.info.Types[call.Fun].IsType() {
		return nil
	}
	return c.functions(call.Fun, map[types.Object]bool{})
}

// functions returns the functions of the product that the value of an expression may be: by what is
// assigned to a variable anywhere, and by the types of the product that have the methods of an
// interface. It leaves out variables that it has seen.
func (c *calls) functions(e ast.Expr, seen map[types.Object]bool) (all []*function) {
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		return []*function{c.literals[e]}
	case *ast.CompositeLit:
		for _, value := range e.Elts {
			if kv, ok := value.(*ast.KeyValueExpr); ok {
				value = kv.Value
			}
			all = append(all, c.functions(value, seen)...)
		}
		return all
	case *ast.CallExpr:
		return c.results(e, seen)
	case *ast.IndexExpr: // of a list, or the type arguments of a function
		return c.functions(e.X, seen)
	case *ast.IndexListExpr:
		return c.functions(e.X, seen)
	}
	switch o := c.variable(e).(type) {
	case *types.Func:
		return c.implementations(o.Origin())
	case *types.Var:
		of := o.Origin()
		if seen[of] {
			return nil
		}
		seen[of] = true
		for _, value := range c.values[of] {
			all = append(all, c.functions(value, seen)...)
		}
	}
	return distinct(all)
}

// results returns the functions that a call may return, or that append adds to a list.
func (c *calls) results(call *ast.CallExpr, seen map[types.Object]bool) (all []*function) {
	isAppend := c.info.Types[call.Fun].IsBuiltin()
	if isAppend || c.info.Types[call.Fun].IsType() {
		for _, arg := range call.Args {
			if holdsFunctions(c.info.TypeOf(arg)) {
				all = append(all, c.functions(arg, seen)...)
			}
		}
		return all
	}
	for _, f := range c.functions(call.Fun, seen) {
		ast.Inspect(f.body, func(n ast.Node) bool {
			if r, ok := n.(*ast.ReturnStmt); ok {
				for _, value := range r.Results {
					if holdsFunctions(c.info.TypeOf(value)) {
						all = append(all, c.functions(value, seen)...)
					}
				}
			}
			return n != nil && (n == f.body || !isLiteral(n))
		})
	}
	return distinct(all)
}

func isLiteral(n ast.Node) bool {
	_, ok := n.(*ast.FuncLit)
	return ok
}

// implementations returns a function or method, those of all types of the product for a method of
// an interface.
func (c *calls) implementations(f *types.Func) (all []*function) {
	recv := f.Signature().Recv()
	if recv == nil || !types.IsInterface(recv.Type()) {
		if d := c.declared[f]; d != nil {
			all = append(all, d)
		}
		return all
	}
	of := recv.Type().Underlying().(*types.Interface)
	for _, n := range c.named {
		if m := c.method(n, of, f); m != nil {
			all = append(all, m)
		}
	}
	return distinct(all)
}

// method returns the method by which a type implements that of an interface, nil where it doesn't.
// Type parameters of either stand for any type, so only the numbers of parameters and results count
// where there are some.
func (c *calls) method(n *types.Named, of *types.Interface, f *types.Func) *function {
	var found *function
	for want := range of.Methods() {
		o, _, _ := types.LookupFieldOrMethod(types.NewPointer(n), true, want.Pkg(), want.Name())
		has, ok := o.(*types.Func)
		if !ok || !fits(has.Origin().Signature(), want.Signature()) {
			return nil
		}
		if want.Name() == f.Name() {
			found = c.declared[has.Origin()]
		}
	}
	return found
}

func fits(has, want *types.Signature) bool {
	if hasParameters(has) || hasParameters(want) {
		return has.Params().Len() == want.Params().Len() && has.Results().Len() == want.Results().Len()
	}
	return types.Identical(has.Params(), want.Params()) && types.Identical(has.Results(), want.Results())
}

func hasParameters(s *types.Signature) bool {
	return s.RecvTypeParams().Len() > 0 || s.Recv() != nil && types.IsInterface(s.Recv().Type()) && isGeneric(s.Recv().Type())
}

func isGeneric(t types.Type) bool {
	n, ok := t.(*types.Named)
	return ok && n.TypeParams().Len() > 0
}

// distinct sorts functions by where they stand, and drops repeated ones.
func distinct(all []*function) []*function {
	slices.SortFunc(all, func(a, b *function) int { return cmp.Compare(a.node.Pos(), b.node.Pos()) })
	return slices.Compact(all)
}
