package main

import (
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
