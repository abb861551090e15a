package main

import (
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tower are the packages of the product, the lowest first. One imports only packages of layers
// below its own.
var tower = [][]string{
	{"internal/cell", "internal/clock", "internal/cycle", "internal/figures", "internal/heap", "internal/hostport", "internal/keys", "internal/plot", "internal/reset", "internal/saturate", "internal/spelling", "internal/warning"},
	{"algorithms", "internal/accesslog", "internal/ban", "internal/bandwidth", "internal/gauge", "internal/redisconn", "internal/reqkey"},
	{"internal/calendar"},
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

func TestImportsRunDownward(t *testing.T) {
	layers := map[string]int{}
	for i, all := range tower {
		for _, dir := range all {
			layers[path.Join(module, dir)] = i
		}
	}
	for from, layer := range layers {
		for _, to := range importsOf(t, strings.TrimPrefix(strings.TrimPrefix(from, module), "/")) {
			below, ok := layers[to]
			if isOurs := to == module || strings.HasPrefix(to, module+"/"); isOurs && !ok {
				t.Errorf("%s imports %s, which is no part of the product, or has no layer yet", from, to)
			} else if isOurs && below >= layer {
				t.Errorf("%s imports %s, which is not in a layer below", from, to)
			}
		}
	}
}

// importsOf returns what the files of a directory import, except its tests.
func importsOf(t *testing.T, dir string) (all []string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }); len(files) == 0 {
		t.Errorf("no code is in %q", dir)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parsed.Imports {
			to, _ := strconv.Unquote(i.Path.Value)
			all = append(all, to)
		}
	}
	return all
}
