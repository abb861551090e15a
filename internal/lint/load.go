package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// tags are those that the product is built with.
const tags = "-tags=nobadger,nomysql,nopgx"

// A program is the product, checked: the root package of a module, and what it imports of the same
// module.
type program struct {
	dir      string
	set      *token.FileSet
	packages []*room // each behind those that it imports
	info     *types.Info
	rooms    map[*types.Package]*room
}

// A room is a package of the product.
type room struct {
	path  string
	floor int // one more than that of the highest package that it imports
	types *types.Package
	files []*ast.File
}

// root returns the root package, which imports all others.
func (p *program) root() *room { return p.packages[len(p.packages)-1] }

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles, Imports        []string
	Module                  *struct{ Main bool }
}

// load checks the product in a directory. Other modules come compiled from Go's cache, so that only
// the product is read.
func load(dir string) (*program, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	all, err := list(dir, "-deps", ".")
	if err != nil {
		return nil, err
	}
	ours := slices.DeleteFunc(slices.Clone(all), func(p listed) bool { return p.Module == nil || !p.Module.Main })
	exports, err := compiled(dir, ours)
	if err != nil {
		return nil, err
	}
	p := &program{dir: dir, set: token.NewFileSet(), rooms: map[*types.Package]*room{}, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Implicits: map[ast.Node]types.Object{},
	}}
	from := sources{checked: map[string]*room{}, others: importer.ForCompiler(p.set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	for _, l := range ours {
		r, err := p.check(l, from)
		if err != nil {
			return nil, err
		}
		from.checked[r.path] = r
	}
	return p, nil
}

// list asks go list for packages.
func list(dir string, args ...string) (all []listed, err error) {
	cmd := exec.Command("go", append([]string{"list", tags, "-json=ImportPath,Dir,Export,GoFiles,Imports,Module"}, args...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages of %s: %w", dir, err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var l listed
		if err := d.Decode(&l); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// compiled returns the files of what packages of the product import of others.
func compiled(dir string, ours []listed) (map[string]string, error) {
	args := []string{"-deps", "-export"}
	for _, l := range ours {
		for _, path := range l.Imports {
			isOurs := slices.ContainsFunc(ours, func(o listed) bool { return o.ImportPath == path })
			if !isOurs && path != "unsafe" && path != "C" {
				args = append(args, path)
			}
		}
	}
	if len(args) == 2 {
		return nil, nil
	}
	slices.Sort(args[2:])
	all, err := list(dir, slices.Compact(args)...)
	exports := make(map[string]string)
	for _, l := range all {
		exports[l.ImportPath] = l.Export
	}
	return exports, err
}

// sources imports packages of the product as they were checked.
type sources struct {
	checked map[string]*room
	others  types.Importer
}

func (s sources) Import(path string) (*types.Package, error) {
	if r := s.checked[path]; r != nil {
		return r.types, nil
	}
	return s.others.Import(path)
}

// check reads a package of which all imports have been.
func (p *program) check(l listed, from sources) (*room, error) {
	r := &room{path: l.ImportPath}
	for _, path := range l.Imports {
		if below := from.checked[path]; below != nil {
			r.floor = max(r.floor, below.floor+1)
		}
	}
	for _, name := range l.GoFiles {
		file, err := parser.ParseFile(p.set, filepath.Join(l.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		r.files = append(r.files, file)
	}
	config := types.Config{Importer: from}
	var err error
	if r.types, err = config.Check(l.ImportPath, p.set, r.files, p.info); err != nil {
		return nil, err
	}
	p.packages = append(p.packages, r)
	p.rooms[r.types] = r
	return r, nil
}
