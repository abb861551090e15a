package main

import (
	"math"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

func TestSlotOfIsWhatRedisSays(t *testing.T) {
	if got := crc16("123456789"); got != 0x31c3 {
		t.Errorf("crc16(123456789) = %#x, want 0x31c3, the check value of CRC-16/XMODEM", got)
	}
	s := redistest.Start(t, redistest.Config("--cluster-enabled", "yes"))
	for _, tag := range []string{"0", "7", "63"} {
		if got, want := slotOf(tag), int(s.Do("CLUSTER", "KEYSLOT", "caddy:{"+tag+"}:zone").(int64)); got != want {
			t.Errorf("slotOf(%q) = %d, want %d", tag, got, want)
		}
	}
}

func TestTagsAreAllGivenOut(t *testing.T) {
	for n := 1; n <= 64; n++ {
		sum := 0
		for _, k := range tagsOf(n) {
			sum += k
		}
		if sum != tags {
			t.Errorf("tagsOf(%d) sum to %d, want %d", n, sum, tags)
		}
	}
}

func TestCost(t *testing.T) {
	u := unit{nodes: 10, cpu: 5e-6, in: 200, out: 30, hash: 400}
	got := cost(u, 1000, time.Second)
	// messages: each key's, and six a window more: two when it begins, four until the one before is
	// final
	n := 10_000 * (1 + 6./60)
	want := load{messages: n, cores: n * 5e-6, in: n * 200, out: n * 30, memory: 1000 * 6 * 400}
	for _, v := range [][2]float64{{got.messages, want.messages}, {got.cores, want.cores}, {got.in, want.in}, {got.out, want.out}, {got.memory, want.memory}} {
		if math.Abs(v[0]/v[1]-1) > 1e-9 {
			t.Errorf("cost = %+v, want %+v", got, want)
		}
	}
	// as many keys as fit are as many as fill the busiest
	for _, share := range []float64{1, 0.25} {
		k := most(u, time.Second, share)
		if c := cost(u, k, time.Second).cores * share; math.Abs(c-full) > 1e-9 {
			t.Errorf("most(1s, %v) = %v keys, which cost the busiest %v cores, want %v", share, k, c, full)
		}
	}
	if got := hashesOf(time.Minute, time.Second); got != 6 {
		t.Errorf("hashes of 1m at 1s = %v, want 6: a lifetime of 301 s", got)
	}
}

func TestAverageKeepsMemoryOfEachNumberOfNodes(t *testing.T) {
	got := average([]unit{{nodes: 1, cpu: 1, in: 10, out: 100, hash: 7}, {nodes: 2, cpu: 3, in: 30, out: 300, hash: 9}})
	for i, want := range []unit{{nodes: 1, cpu: 2, in: 20, out: 200, hash: 7}, {nodes: 2, cpu: 2, in: 20, out: 200, hash: 9}} {
		if got[i] != want {
			t.Errorf("average()[%d] = %+v, want %+v", i, got[i], want)
		}
	}
}

func TestNumbersForReaders(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.0123: "0.012", 0.5: "0.50", 9.99: "10", 12.34: "12", 123: "120", 1234: "1.2k", 99_900: "100k", 2_345_678: "2.3M"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
	if got := bytes(1.5e9); got != "1.5 GB" {
		t.Errorf("bytes(1.5e9) = %q, want 1.5 GB", got)
	}
	if got := cores(0.25); got != "25 % of a core" {
		t.Errorf("cores(0.25) = %q", got)
	}
	if got := cores(2.5); got != "**2.5 cores**" {
		t.Errorf("cores(2.5) = %q", got)
	}
}

func TestParseInfo(t *testing.T) {
	const info = "# CPU\r\nused_cpu_sys:0.25\r\nused_cpu_user:1.5\r\n# Stats\r\ntotal_net_input_bytes:100\r\ntotal_net_output_bytes:20\r\nredis_version:7.0.15\r\nused_memory:4096\r\n"
	if got, want := parseInfo(info), (usage{cpu: 1.75, in: 100, out: 20, memory: 4096}); got != want {
		t.Errorf("parseInfo = %+v, want %+v", got, want)
	}
}
