package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// store is the Redis of a demonstration.
type store struct {
	name string // for people
	url  string
	stop func()
}

// startStore starts a redis-server where there is one, else a Redis within this process.
func startStore(ctx context.Context, dir string, embedded bool) (store, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil || embedded {
		return embed()
	}
	return serve(ctx, program, dir)
}

func embed() (store, error) {
	server, err := miniredis.Run()
	if err != nil {
		return store{}, fmt.Errorf("starting the embedded Redis: %w", err)
	}
	return store{"an embedded Redis", "redis://" + server.Addr(), server.Close}, nil
}

// serve starts a redis-server on a unix socket, where no port can be taken.
func serve(ctx context.Context, program, dir string) (store, error) {
	socket := filepath.Join(dir, "redis")
	p, err := cluster.StartProcess(exec.Command(program,
		"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir, "--logfile", filepath.Join(dir, "redis.log")))
	if err != nil {
		return store{}, fmt.Errorf("starting %s: %w; with -embedded the demo needs none", program, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if answers(socket) {
				return store{"a redis-server", "unix://" + socket, p.Kill}, nil
			}
			continue
		case <-p.Exited():
			err = fmt.Errorf("starting %s: it has ended; with -embedded the demo needs none", program)
		case <-ctx.Done():
			err = fmt.Errorf("starting %s: %w", program, ctx.Err())
		}
		p.Kill()
		return store{}, err
	}
}

// answers says that a redis-server is ready.
func answers(socket string) bool {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	pong := make([]byte, 7)
	_, err = c.Write([]byte("PING\r\n"))
	if err == nil {
		_, err = io.ReadFull(c, pong)
	}
	return err == nil && string(pong) == "+PONG\r\n"
}
