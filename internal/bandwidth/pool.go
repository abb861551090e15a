package bandwidth

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
)

// pool has the bandwidth of the zones of the process. As counters do, it outlives configurations:
// zones acquire it when they are provisioned, and release it in Cleanup.
var pool = caddy.NewUsagePool()

// Acquire returns the bandwidth of a zone: a new one, or the one that a configuration already has,
// whose rate stays as it is until Configure.
func Acquire(namespace, name string, rate Rate, maxKeys int) *Zone {
	z, _, _ := pool.LoadOrNew(pooled(namespace, name), func() (caddy.Destructor, error) {
		return NewZone(name, rate, maxKeys), nil
	})
	return z.(*Zone)
}

// Release gives the bandwidth of a zone up. Responses that are open go on.
func Release(namespace, name string) { _, _ = pool.Delete(pooled(namespace, name)) }

func pooled(namespace, name string) string {
	return strconv.Quote(namespace) + " " + strconv.Quote(name)
}

// Each calls f with the bandwidth of each zone that has one.
func Each(f func(*Zone)) {
	pool.Range(func(_, v any) bool {
		f(v.(*Zone))
		return true
	})
}

// Destruct ends the use of a zone that nobody has any more: it has nothing to end.
func (z *Zone) Destruct() error { return nil }
