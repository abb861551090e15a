// Command release builds what a release consists of: a static Caddy with rate_limit in it for each
// platform, what each of them is made of (CycloneDX), and the checksums of all.
//
//	go run ./internal/release -o dist -targets linux/amd64,darwin/arm64
//
// The same commit and the same Go make the same bytes, in any directory and on any machine.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

func main() {
	dir := flag.String("o", "dist", "the directory for the files")
	targets := flag.String("targets", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "platforms, as GOOS/GOARCH")
	flag.Parse()
	if err := release(*dir, strings.Split(*targets, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func release(dir string, targets []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var sums strings.Builder
	for _, target := range targets {
		goos, goarch, ok := strings.Cut(target, "/")
		if !ok {
			return fmt.Errorf("%q is no platform: write it as linux/amd64", target)
		}
		program := filepath.Join(dir, "caddy-tide-"+goos+"-"+goarch)
		if err := build(program, goos, goarch); err != nil {
			return err
		}
		sum, err := checksum(program)
		if err != nil {
			return err
		}
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return err
		}
		bom, err := json.MarshalIndent(billOf(info, sum), "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(program+".cdx.json", append(bom, '\n'), 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", program, info.Main.Version)
		for _, file := range []string{program, program + ".cdx.json"} {
			if sum, err = checksum(file); err != nil {
				return err
			}
			fmt.Fprintf(&sums, "%s  %s\n", sum, filepath.Base(file))
		}
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// build compiles as the Dockerfile does.
func build(program, goos, goarch string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-tags", cluster.Tags, "-ldflags", "-s -w", "-o", program, cluster.Caddy)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building for %s/%s: %w", goos, goarch, err)
	}
	return nil
}

func checksum(file string) (string, error) {
	text, err := os.ReadFile(file)
	return fmt.Sprintf("%x", sha256.Sum256(text)), err
}
