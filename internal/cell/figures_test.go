//go:build chaos

package cell

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A figure is a call that is made often: what it costs Redis.
type figure struct {
	name  string
	cells int // of a call
	conns int
	calls int
	call  func(i int) []any // the arguments of EVALSHA
	least [2]float64        // the script's time and all of Redis' CPU, in microseconds a cell
}

var me = "Zk3vQ1p9XyAb"

func idOf(k int) string { return fmt.Sprintf("tide:3:{17}:api:s-1m:AAAAAAAAAAAAAA%08d", k) }

// What messages and strict calls cost Redis, beside what the same did before. TIDE_FIGURES=1 shows
// them.
func TestFigures(t *testing.T) {
	if os.Getenv("TIDE_FIGURES") == "" {
		t.Skip("TIDE_FIGURES=1 measures for a minute")
	}
	only := regexp.MustCompile(os.Getenv("TIDE_FIGURES"))
	if os.Getenv("TIDE_FIGURES") == "1" {
		only = regexp.MustCompile("")
	}
	s := redistest.Start(t)
	c := s.Client()
	load := func(files ...string) string {
		text := "local spareTTL = 60000\nlocal toldTTL = 2592000000\n"
		for _, name := range files {
			b, err := os.ReadFile("../../sync/" + name)
			if err != nil {
				t.Fatal(err)
			}
			text += string(b)
		}
		return c.ScriptLoad(context.Background(), text).Val()
	}
	say := c.ScriptLoad(context.Background(), Source).Val()
	later := c.ScriptLoad(context.Background(), strings.Replace("local us = table.remove(ARGV)\n"+Source, "call('TIME')", "{math.floor(us / 1000000), math.fmod(us, 1000000)}", 1)).Val()
	push := load("tell.lua", "push.lua")
	bucket := load("strict/head.lua", "strict/bucket.lua", "strict/tail.lua")
	log := load("strict/head.lua", "strict/log.lua", "strict/tail.lua")
	hour := time.Hour.Microseconds()
	var lock sync.Mutex
	seq := int64(1_795_000_000_000_000)
	next := func() int64 { lock.Lock(); defer lock.Unlock(); seq++; return seq }
	now := c.Time(context.Background()).Val().UnixMicro()
	families := map[string]Family{
		"fixed": {Windows, time.Hour, 1, 1, 1e6, 0, time.Hour, false}, "sliding": {Fades, time.Hour, 1, 2, 1e6, 0, 2 * time.Hour, false},
		"31": {Fades, time.Hour, 31, 32, 1e6, 0, 2 * time.Hour, false}, "log": {Windows, time.Hour, 16, 17, 1e6, 0, 3825 * time.Second, false},
		"bucket": {Bucket, time.Hour, 1, 1, 1e6, 1e6, time.Hour, false},
	}
	state := func(kind string, total int64, filled int) State {
		f := families[kind]
		if kind == "bucket" {
			return State{Start: 1_795_000_000_000_000, Total: total, Fresh: 1, Heard: seq, Whole: total}
		}
		s := State{Epoch: f.Epoch(now), Totals: []int64{total}}
		for range min(filled, f.Live-1) {
			s.Totals = append(s.Totals, 3)
		}
		return s
	}
	args := func(call *Call) []any {
		keys, args := argsOf(call)
		all := []any{"evalsha", say, len(keys)}
		for _, k := range keys {
			all = append(all, k)
		}
		return append(all, args...)
	}
	var figures []*figure
	add := func(name string, cells, conns, calls int, call func(i int) []any) {
		if only.MatchString(name) {
			figures = append(figures, &figure{name: name, cells: cells, conns: conns, calls: calls, call: call})
		}
	}
	batch := func(kind string, filled, size int) func(i int) []any {
		family := families[kind].String()
		return func(i int) []any {
			call := Call{Seq: next()}
			s := state(kind, int64(3+i*size/2000), filled)
			for k := range size {
				call.Cells = append(call.Cells, Said{fmt.Sprint(kind, filled, idOf((i*size+k)%2000)), family, me, s})
			}
			return args(&call)
		}
	}
	before := func(kind string, hashes, size int, ttl string) func(i int) []any {
		return func(i int) []any {
			fills := 0
			all := []any{"evalsha", push, 0}
			for k := range size {
				for h := range hashes {
					all = append(all, fmt.Sprint(kind, idOf((i*size+k)%2000), ":2833333", h))
				}
			}
			if kind == "bucket" {
				fills = size
				for k := range size {
					all = append(all, fmt.Sprint(kind, idOf((i*size+k)%2000), ":fill"))
				}
			}
			all[2] = size*hashes + fills
			all = append(all, me, next(), fills, ttl)
			total := 3 + i*size/2000
			for range size * hashes {
				all = append(all, total, total)
				if kind == "bucket" {
					all = append(all, "1 0.2777 12.345")
				}
			}
			return all
		}
	}
	begins := func(kind string, size int) func(i int) []any { // an epoch begins with each message
		f := families[kind]
		return func(i int) []any {
			call := Call{Seq: next()}
			cycle := i * size / 2000
			at := now + int64(cycle)*f.Window.Microseconds()/int64(f.Parts)
			s := State{Epoch: f.Epoch(at)}
			for range f.Live {
				s.Totals = append(s.Totals, 3)
			}
			for k := range size {
				call.Cells = append(call.Cells, Said{fmt.Sprint("begins", kind, idOf((i*size+k)%2000)), f.String(), me, s})
			}
			all := append(args(&call), at)
			all[1] = later
			return all
		}
	}
	for _, kind := range []string{"fixed", "sliding", "log", "31"} {
		add("interval x100 an epoch begins: "+kind, 100, 1, 60, begins(kind, 100))
	}
	for _, size := range []int{100, 1} {
		n, b := 60, fmt.Sprintf("interval x%d ", size)
		if size == 1 {
			n = 3000
		}
		add(b+"before: fixed", size, 1, n, before("w", 1, size, "180000"))
		add(b+"before: sliding", size, 1, n, before("v", 2, size, "180000"))
		add(b+"before: log", size, 1, n, before("l", 1, size, "180000@"))
		add(b+"before: bucket", size, 1, n, before("bucket", 1, size, "180000"))
		for _, kind := range []string{"fixed", "sliding", "31", "log", "bucket"} {
			add(b+kind, size, 1, n, batch(kind, 99, size))
		}
	}
	const keys, n = 10000, 10000
	strict := func(kinds []string, filled int, size int64) func(i int) []any {
		return func(i int) []any {
			call := Call{Seq: next(), Quiet: true, Asks: []Ask{{Count: 1, Cost: 1}}}
			total := int64(i / keys)
			if size < 10 {
				total = 5
			}
			for _, kind := range kinds {
				call.Asks[0].Limits = append(call.Asks[0].Limits, Limit{size, 1e6})
				call.Cells = append(call.Cells, Said{fmt.Sprint("S", kind, filled, size, idOf(i*7919%keys)), families[kind].String(), me, state(kind, total, filled)})
			}
			return args(&call)
		}
	}
	strictBefore := func(script, key string, rule ...any) func(i int) []any {
		return func(i int) []any {
			k := i * 7919 % keys
			names := strings.Split(key, ",")
			all := []any{"evalsha", script, 1 + len(names), idOf(k) + ":rec" + key}
			for _, x := range names {
				all = append(all, x+idOf(k))
			}
			return append(append(all, "f", next(), 1, 0, "0", 120000, 0), rule...)
		}
	}
	add("strict before: bucket", 1, 16, n, strictBefore(bucket, "b", 1000000, 1000000, 3660000, hour, 1, 1, 0))
	add("strict before: log", 1, 16, n, strictBefore(log, "l", 1000, hour, 3660000, 0))
	add("strict fixed", 1, 16, n, strict([]string{"fixed"}, 0, 1e6))
	add("strict sliding", 1, 16, n, strict([]string{"sliding"}, 1, 1e6))
	add("strict bucket", 1, 16, n, strict([]string{"bucket"}, 1, 1e6))
	add("strict log few", 1, 16, n, strict([]string{"log"}, 2, 1e6))
	add("strict log full", 1, 16, n, strict([]string{"log"}, 17, 1e6))
	add("strict denied", 1, 16, n, strict([]string{"fixed"}, 0, 2))
	add("strict two limits", 1, 16, n, strict([]string{"fixed", "sliding"}, 1, 1e6))
	for round := range 5 {
		for _, f := range figures {
			f.run(t, s, c, round)
		}
	}
	for _, f := range figures {
		fmt.Printf("%-30s script %7.2f us, Redis' CPU %7.2f us a cell\n", f.name, f.least[0], f.least[1])
	}
}

// run makes the calls over the connections. The first round doesn't count.
func (f *figure) run(t *testing.T, s *redistest.Server, c *redis.Client, round int) {
	ctx := context.Background()
	c.ConfigResetStat(ctx)
	before := cpuOf(c)
	var wg sync.WaitGroup
	for w := range f.conns {
		wg.Go(func() {
			conn := c.Conn()
			defer func() { _ = conn.Close() }()
			for i := w; i < f.calls; i += f.conns {
				if err := conn.Do(ctx, f.call(round*f.calls+i)...).Err(); err != nil {
					t.Error(f.name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if round == 0 {
		return
	}
	for k, us := range []float64{s.TimeOf("evalsha") / float64(f.cells), (cpuOf(c) - before) * 1e6 / float64(f.calls*f.cells)} {
		if f.least[k] == 0 || us < f.least[k] {
			f.least[k] = us
		}
	}
}

var used = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)

// cpuOf is what Redis has used, in seconds.
func cpuOf(c *redis.Client) (sum float64) {
	for _, m := range used.FindAllStringSubmatch(c.Info(context.Background(), "cpu").Val(), -1) {
		var s float64
		_, _ = fmt.Sscan(m[1], &s)
		sum += s
	}
	return sum
}
