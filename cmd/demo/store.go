package main

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// store is the Redis of a demonstration.
type store struct {
	name string // for people
	url  string
	stop func()

	embedded bool
}

// startStore starts a redis-server where there is one, else a Redis within this process.
func startStore(ctx context.Context, dir string, embedded bool) (store, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil || embedded {
		return embed()
	}
	url, stop, err := cluster.StartRedis(ctx, program, dir)
	if err != nil {
		return store{}, fmt.Errorf("%w; with -embedded the demo needs none", err)
	}
	return store{name: "a redis-server", url: url, stop: stop}, nil
}

func embed() (store, error) {
	server, err := miniredis.Run()
	if err != nil {
		return store{}, fmt.Errorf("starting the embedded Redis: %w", err)
	}
	return store{name: "an embedded Redis", url: "redis://" + server.Addr(), stop: server.Close, embedded: true}, nil
}
