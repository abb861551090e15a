package main

import (
	"cmp"
	"path"
	"slices"
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
}
