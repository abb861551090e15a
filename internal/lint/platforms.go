package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

// platforms are those that tests don't run on. A build of each would take minutes.
var platforms = []string{"windows/amd64", "darwin/arm64", "linux/386"}

// platforms checks the types of all packages for other platforms. Of other modules only the types
// of functions are read, not what they do.
func (r *repo) platforms() {
	dir, err := os.Getwd()
	if err != nil {
		r.report("internal/lint", "%v", err)
		return
	}
	for _, platform := range platforms {
		system, processor, _ := strings.Cut(platform, "/")
		all, err := packages.Load(&packages.Config{
			Mode:       packages.LoadAllSyntax | packages.NeedModule,
			Env:        append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor),
			BuildFlags: []string{"-tags=nobadger,nomysql,nopgx"},
			ParseFile: func(set *token.FileSet, name string, text []byte) (*ast.File, error) {
				file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
				if file != nil && !strings.HasPrefix(name, dir) {
					for _, d := range file.Decls {
						if f, ok := d.(*ast.FuncDecl); ok {
							f.Body = nil
						}
					}
				}
				return file, err
			},
		}, "./...")
		if err != nil {
			r.report("internal/lint", "%s: %v", platform, err)
		}
		for _, p := range all {
			r.seen++
			for _, err := range p.Errors {
				r.report(strings.TrimPrefix(err.Pos, dir+"/"), "for %s: %s", platform, err.Msg)
			}
		}
	}
}
