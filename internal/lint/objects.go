package main

import (
	"fmt"
	"go/types"
	"io"
	"slices"
	"strings"
)

// requestTypes are the objects that evaluate a request, by package and name. A tree from before or
// after a change may have only some of them.
var requestTypes = []string{
	"limits.Evaluation", "limits.overall", "limits.zoneResult", "limits.grant", "limits.keyed",
	"limits.question", "limits.strictZone", "limits.throttle",
}

// objects writes how many methods and fields some types have. A function or method that takes one
// of them as a parameter counts as a method, once for all of them. A field that is a struct of the
// same package counts as what that has. A struct of another package counts as one, and in the last
// figure as what it has.
func (c *calls) objects(to io.Writer, names []string) {
	asked := make([]*types.Named, len(names))
	for i, name := range names {
		for _, n := range c.named {
			if n.Obj().Pkg().Name()+"."+n.Obj().Name() == name {
				asked[i] = n
			}
		}
	}
	methods, fields, all := map[*types.Func]bool{}, 0, 0
	for i, n := range asked {
		if n == nil {
			fmt.Fprintf(to, "  %s: not in this tree\n", names[i])
			continue
		}
		before := len(methods)
		for f := range c.declared {
			if takes(f.Signature(), n) {
				methods[f] = true
			}
		}
		own := flat(n.Underlying(), asked, n.Obj().Pkg().Path())
		fmt.Fprintf(to, "  %s: %d methods more, %d fields\n", names[i], len(methods)-before, own)
		fields, all = fields+own, all+flat(n.Underlying(), asked, c.root().path)
	}
	fmt.Fprintf(to, "the objects that evaluate a request: %d methods, %d fields, %d with those of structs of other packages\n",
		len(methods), fields, all)
}

// takes reports whether a function has a type as its receiver or a parameter.
func takes(s *types.Signature, n *types.Named) bool {
	if s.Recv() != nil && of(s.Recv().Type()) == n {
		return true
	}
	return slices.ContainsFunc(slices.Collect(s.Params().Variables()), func(v *types.Var) bool { return of(v.Type()) == n })
}

// of returns what a pointer points to and a list holds.
func of(t types.Type) *types.Named {
	switch t := types.Unalias(t).(type) {
	case *types.Pointer:
		return of(t.Elem())
	case *types.Slice:
		return of(t.Elem())
	case *types.Named:
		return t.Origin()
	}
	return nil
}

// flat counts the fields of a struct, and those of structs in it of packages with a path of this
// beginning. Those of types that are asked for count there.
func flat(t types.Type, asked []*types.Named, under string) (n int) {
	s, ok := t.(*types.Struct)
	if !ok {
		return 1
	}
	for f := range s.Fields() {
		named, _ := types.Unalias(f.Type()).(*types.Named)
		switch {
		case named != nil && slices.Contains(asked, named):
		case named == nil || named.Obj().Pkg() != nil && strings.HasPrefix(named.Obj().Pkg().Path(), under):
			n += flat(f.Type().Underlying(), asked, under)
		default:
			n++
		}
	}
	return n
}
