package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

const report = `Running 2s test @ http://127.0.0.1:1/
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   614.26us  814.31us  17.06ms   91.61%
    Req/Sec    34.05k     3.31k   39.10k    75.00%
  Latency Distribution
     50%  396.00us
     75%  666.00us
     90%    1.23ms
     99%    4.10ms
  67751 requests in 2.00s, 9.82MB read
  Non-2xx or 3xx responses: 67751
Requests/sec:  33834.53
Transfer/sec:      4.91MB
`

func TestParseWrk(t *testing.T) {
	r, requests, err := parseWrk(report)
	if want := (run{rate: 33834.53, p99: 4.1}); err != nil || r != want || requests != 67751 {
		t.Errorf("parseWrk = %+v, %v, %v, want %+v, 67751", r, requests, err, want)
	}
	if _, _, err := parseWrk("unable to connect"); err == nil {
		t.Error("parseWrk of a failure = nil, want an error")
	}
}

func TestParseStat(t *testing.T) {
	const stat = "4242 (a) b (c) S 1 2 3 0 -1 4194304 5 0 0 0 150 25 0 0 20 0 9 0 100 0 0"
	if got, err := parseStat(stat); err != nil || got != 1.75 {
		t.Errorf("parseStat(%q) = %v, %v, want 1.75", stat, got, err)
	}
	if _, err := parseStat("4242 (a) S"); err == nil {
		t.Error("parseStat of half a line = nil, want an error")
	}
}

func TestParseSchedstat(t *testing.T) {
	if got, err := parseSchedstat("998511000 79778000 2\n"); err != nil || got != 0.079778 {
		t.Errorf("parseSchedstat = %v, %v, want 0.079778", got, err)
	}
	if _, err := parseSchedstat("998511000"); err == nil {
		t.Error("parseSchedstat of half a line = nil, want an error")
	}
}

// The program beside a server uses the part of a CPU that it is given, and no more.
func TestBurning(t *testing.T) {
	const share = 0.5
	if os.Getenv("TIDE_BURN") != "" {
		burn(share)
	}
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("this system has no /proc: ", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "TestBurning")
	cmd.Env = append(os.Environ(), "TIDE_BURN=1")
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer stopBurning(cmd)
	r, err := meanwhile(cmd.Process.Pid, 0, func() error {
		used := 0.0
		// which is more than it takes to begin
		for ; used < 0.5; time.Sleep(10 * time.Millisecond) {
			if used, err = cpuOf(cmd.Process.Pid); err != nil {
				return err
			}
			if passed := time.Since(begun); passed > time.Minute {
				return fmt.Errorf("it has used no more than %.2f s in %v", used, passed)
			}
		}
		// the kernel counts in ticks
		if passed := time.Since(begun).Seconds(); used > share*passed+0.1 {
			return fmt.Errorf("it has used %.2f s in %.2f", used, passed)
		}
		return nil
	})
	if err != nil || r.cpu == 0 || r.beside != 0 {
		t.Errorf("a program that is to use %v of a CPU: %v; meanwhile = %+v", share, err, r)
	}
}

func TestQuantile(t *testing.T) {
	all := make([]time.Duration, 100)
	for i := range all {
		all[i] = time.Duration(i+1) * time.Microsecond
	}
	for q, want := range map[float64]float64{0.5: 51, 0.99: 100, 1: 100} {
		if got := quantile(all, q); got != want {
			t.Errorf("quantile(1..100 us, %v) = %v, want %v", q, got, want)
		}
	}
}
