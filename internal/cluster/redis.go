package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"time"
)

// StartRedis starts a redis-server on a unix socket in dir, where no port can be taken, and returns
// the URL of it. It keeps nothing on disk.
func StartRedis(ctx context.Context, program, dir string) (url string, stop func(), err error) {
	socket := filepath.Join(dir, "redis")
	p, err := StartProcess(exec.Command(program,
		"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir, "--logfile", filepath.Join(dir, "redis.log")))
	if err != nil {
		return "", nil, fmt.Errorf("starting %s: %w", program, err)
	}
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if answers(socket) {
				return "unix://" + socket, p.Kill, nil
			}
			continue
		case <-p.Exited():
			err = fmt.Errorf("starting %s: it has ended", program)
		case <-ctx.Done():
			err = fmt.Errorf("starting %s: %w", program, ctx.Err())
		}
		p.Kill()
		return "", nil, err
	}
}

// answers reports whether a redis-server is ready.
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
