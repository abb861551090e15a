// Package sitetest is what tests of the whole module use: sites with a handler in this process, and
// Caddy with a Caddyfile, on any protocol.
package sitetest

import (
	"os"
	"path/filepath"
	"runtime"
)

// Tests run in the root of the repository, wherever they stand: pages, examples and testdata have
// one name for all of them.
func init() {
	_, file, _, _ := runtime.Caller(0)
	if err := os.Chdir(filepath.Join(filepath.Dir(file), "../../..")); err != nil {
		panic(err)
	}
}
