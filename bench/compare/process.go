package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/bench/harness"
	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// cpuOf is the CPU time that a process has used, in seconds; 0 where there is no /proc, and for no
// process.
func cpuOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if pid == 0 || err != nil {
		return 0, nil
	}
	return parseStat(string(text))
}

// parseStat reads the CPU time of a process, in seconds, from its line in /proc. The name of the
// program, in brackets, may hold anything.
func parseStat(text string) (float64, error) {
	const ticks = 100 // a second: USER_HZ
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("reading /proc: %d fields in %q", len(f), text)
	}
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(f[12], 64)
	return (user + system) / ticks, err
}

// waitedOf is how long the threads of a process could have run and had no CPU, in seconds, all of
// them together; 0 where the kernel doesn't say.
func waitedOf(pid int) (sum float64, err error) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // that thread has ended
		}
		waited, err := parseSchedstat(string(text))
		if err != nil {
			return 0, err
		}
		sum += waited
	}
	return sum, nil
}

// parseSchedstat reads how long a thread waited for a CPU, in seconds, from what /proc says of it:
// the nanoseconds it ran, those it waited, and how often it was given a CPU.
func parseSchedstat(text string) (float64, error) {
	var ran, waited, turns int64
	if _, err := fmt.Sscan(text, &ran, &waited, &turns); err != nil {
		return 0, fmt.Errorf("reading schedstat: %w in %q", err, text)
	}
	return float64(waited) / 1e9, nil
}

// pidOf is the process of a Redis.
func pidOf(s *redistest.Server) (int, error) {
	_, pid, _ := strings.Cut(s.Do("INFO", "server").(string), "process_id:")
	pid, _, _ = strings.Cut(pid, "\r\n")
	return strconv.Atoi(pid)
}

// burn is a program that uses so many CPUs, 0 to 1, until it is killed: a little at a time, as an
// sync does.
func burn(cpus float64) {
	for begun := time.Now(); ; {
		if harness.CPUTime().Seconds() >= time.Since(begun).Seconds()*cpus {
			time.Sleep(time.Millisecond)
		}
	}
}

// startBurning runs burn in a process of its own.
func startBurning(t *outside.T, cpus float64) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-burn", strconv.FormatFloat(min(cpus, 1), 'f', 3, 64))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(func() { stopBurning(cmd) })
	return cmd, nil
}

func stopBurning(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
