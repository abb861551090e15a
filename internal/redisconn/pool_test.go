package redisconn

import (
	"runtime"
	"testing"
)

// A node with few CPUs has connections for many tables that send at once.
func TestPoolSize(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct {
		name       string
		settings   Settings
		cpus, want int
	}{
		{"one CPU", Settings{}, 1, 40},
		{"many CPUs", Settings{}, 8, 80},
		{"each server of a Cluster", Settings{Mode: Cluster}, 1, 20},
		{"given", Settings{Mode: Cluster, PoolSize: 3}, 8, 3},
	} {
		runtime.GOMAXPROCS(c.cpus)
		if got := c.settings.poolSize(); got != c.want {
			t.Errorf("%s: %d connections, want %d", c.name, got, c.want)
		}
	}
}
