package limits

import (
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/metrics"
)

// localControls are the records of namespaces without a Redis. They live as long as the process.
var localControls sync.Map

// ControlOf returns the control record of a Redis and, where it is nil, this node's own one of a
// namespace.
func ControlOf(redis *Redis, namespace string) *control.Control {
	if redis != nil {
		return redis.Control
	}
	if c, ok := localControls.Load(namespace); ok {
		return c.(*control.Control)
	}
	c, _ := localControls.LoadOrStore(namespace, control.New(control.Options{
		Store: storeOf("none", namespace), Now: clock.Now, Name: control.NodeName(), Logger: caddy.Log().Named("rate_limit"),
	}))
	return c.(*control.Control)
}

// storeOf names a Redis and namespace in what is saved, without a secret that the key may hold.
func storeOf(key, namespace string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(key+" "+namespace)))[:32]
}

// CollectControl adds what metrics show of a control record.
func CollectControl(s metrics.Scrape, c *control.Control, namespace string) {
	overrides, applied := c.Stats()
	s.Add(metrics.Overrides, float64(overrides), namespace)
	s.AddBool(metrics.ControlApplied, applied, namespace)
}
