package main

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// tower are the packages of the product, the lowest first. One imports only packages of layers
// below its own.
var tower = [][]string{
	{"internal/cell", "internal/clock", "internal/cycle", "internal/figures", "internal/heap", "internal/hostport", "internal/keys", "internal/plot", "internal/reset", "internal/saturate", "internal/spelling", "internal/warning"},
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
var rootFiles = strings.Fields("place.go module.go settings.go regions.go app.go parser.go unnamed.go caddyfile.go globaloption.go admin.go")

// upward are the names of files above that a file uses all the same.
var upward = map[string][]string{
	"module.go": {"App"}, // a handler asks Caddy for the app of its configuration
}

// layer returns the layer of a package, -1 for one that is no part of the product.
func layer(dir string) int {
	return slices.IndexFunc(tower, func(all []string) bool { return slices.Contains(all, dir) })
}

func (r *repo) layers() {
	r.match(r.product, `(?m)^(?:import|\t) *(?:\w+ )?"`+module+`(?:/(.*))?"$`, func(at spot, m []string) {
		from, dir := layer(path.Dir(at.file)), cmp.Or(m[1], ".")
		if up := layer(dir); from >= 0 && up < 0 {
			r.report(at, "imports %s, which is no part of the product, or has no layer yet", dir)
		} else if from >= 0 && up >= from {
			r.report(at, "imports %s, which is not in a layer below", dir)
		}
	})
	r.rootOrder()
}

// rootOrder checks that no file of the root package uses what a file above it declares, except for
// methods, which it can't tell apart.
func (r *repo) rootOrder() {
	declared := map[string]int{} // names, and the files that declare them
	root := slices.DeleteFunc(slices.Clone(r.code), func(s *source) bool { return s.dir != "." })
	for _, s := range root {
		if !slices.Contains(rootFiles, s.path) {
			r.report(s.path, "a file of the root package that is not in rootFiles of the lint")
		}
		for name := range s.Scope.Objects {
			declared[name] = slices.Index(rootFiles, s.path)
		}
	}
	for _, s := range root {
		for _, used := range s.Unresolved {
			above := declared[used.Name] > slices.Index(rootFiles, s.path)
			if above && !slices.Contains(upward[s.path], used.Name) {
				r.report(r.at(used.Pos()), "uses %s of %s, a file above", used.Name, rootFiles[declared[used.Name]])
			}
		}
	}
}
