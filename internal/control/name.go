package control

import (
	"os"
	"runtime/debug"
	"strconv"
	"sync"
)

const (
	module = "github.com/caddy-tide/ratelimit"
	// maxName bounds a node's name: every node reads those of all.
	maxName = 100
)

// NodeName names this process to people: the version of this module, and host/process.
var NodeName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	name := []byte(ModuleVersion() + " " + host + "/" + strconv.Itoa(os.Getpid()))
	for i, c := range name {
		if c < ' ' || c > '~' {
			name[i] = '?'
		}
	}
	return string(name[:min(len(name), maxName)])
})

// ModuleVersion is this module's in the running program. A build from a checkout has none.
func ModuleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			for m.Replace != nil {
				m = m.Replace
			}
			if m.Version != "" {
				return m.Version
			}
		}
	}
	return "(devel)"
}
