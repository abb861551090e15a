// Package cluster runs several Caddy processes with rate_limit in them on loopback: for tests, and
// for the demo.
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Tags are those that xcaddy and the Makefile build with, so one build cache serves all.
const Tags = "nobadger,nomysql,nopgx"

// Caddy is the command that users build.
const Caddy = "github.com/caddy-tide/ratelimit/cmd/caddy"

// Build compiles a Caddy with this module, by its import path, into dir and returns the program's
// path. It must run inside a checkout of the module.
func Build(ctx context.Context, dir, command string) (string, error) {
	program := filepath.Join(dir, "caddy")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	// Without debugging information the program is linked in a fraction of the time.
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", Tags, "-ldflags", "-s -w", "-o", program, command)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("building Caddy: %w\n%s\nRun this inside the checkout, with Go on the PATH; `%s` repeats it",
			err, strings.TrimSpace(output.String()), strings.Join([]string{"go build -tags", Tags, "-o", os.DevNull, command}, " "))
	}
	return program, nil
}
