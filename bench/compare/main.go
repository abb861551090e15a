// Command compare runs the programs under comparison in turn and prints medians and ratios, so that
// what else the machine does meanwhile hits all of them alike. Run it in bench:
//
//	go run ./compare                     handlers, in nanoseconds and allocations
//	go run ./compare -memory             bytes per key
//	go run ./compare -servers            whole servers over loopback, with wrk and redis-server
//	go run ./compare -latency            requests while keys sync; needs redis-server
//	go run ./compare -strict             what a strict zone denies; needs redis-server
//	go run ./compare -beside             strict zones and a small handler; needs wrk, redis-server
//	go run ./compare -against ../../old  this checkout and another one
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/bench/harness"
	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const tags = "nobadger,nomysql,nopgx"

// A program is one Caddy under comparison.
type program struct {
	name string // of the column
	path string
}

// options are what the command line says.
type options struct {
	rounds, cores                           int
	benchtime, only, against                string
	memory, servers, latency, strict, short bool
	beside                                  bool
	burn                                    float64
	duration                                time.Duration
	dir                                     string // of the programs
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often each program runs")
	flag.IntVar(&o.cores, "cores", 0, "measure servers with so many only; 0 for 1 and 2")
	flag.StringVar(&o.benchtime, "benchtime", "100ms", "how long a case runs each time")
	flag.StringVar(&o.only, "case", "", "one case only")
	flag.BoolVar(&o.memory, "memory", false, "measure memory per key")
	flag.BoolVar(&o.servers, "servers", false, "measure whole servers")
	flag.BoolVar(&o.latency, "latency", false, "measure requests during the sync")
	flag.BoolVar(&o.strict, "strict", false, "measure what a strict zone denies")
	flag.BoolVar(&o.beside, "beside", false, "measure strict zones beside a small handler that counts in Redis")
	flag.DurationVar(&o.duration, "duration", 2*time.Second, "how long a server is measured each time")
	flag.StringVar(&o.against, "against", "", "another checkout to compare this one with")
	flag.Float64Var(&o.burn, "burn", 0, "do nothing but use so much of a CPU, until killed: -latency runs that")
	flag.BoolVar(&o.short, "short", false, "one round of a second")
	flag.Parse()
	if o.burn > 0 {
		burn(o.burn)
	}
	if o.short {
		o.rounds, o.duration = 1, time.Second
	}
	outside.Run(o.run)
}

func (o options) run(t *outside.T) (err error) {
	if o.dir, err = os.MkdirTemp("", "tide-bench"); err != nil {
		return err
	}
	t.Cleanup(func() { _ = os.RemoveAll(o.dir) })
	all, err := o.programs()
	if err != nil {
		return err
	}
	load()
	defer load()
	if o.beside {
		return o.compareBeside(t, all)
	}
	if !o.servers && !o.latency && !o.strict {
		args := []string{"measure", "-benchtime", o.benchtime, "-case", o.only}
		if o.memory {
			args = append(args, "-memory")
		}
		return compareHandlers(all, args, o.rounds, o.memory)
	}
	if o.servers {
		err = o.compareServers(t, all)
	}
	if err == nil && o.latency {
		err = compareLatency(t, all[0].path, o.rounds, 2*o.duration)
	}
	if err == nil && o.strict {
		err = compareStrict(t, all[0].path, o.rounds, 2*o.duration)
	}
	return err
}

// compareBeside builds two programs more.
func (o options) compareBeside(t *outside.T, all []program) error {
	programs := map[string]string{}
	for _, name := range []string{"bare", "incr"} {
		p, err := build(".", name, filepath.Join(o.dir, name))
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	for _, p := range all {
		programs[p.name] = p.path
	}
	return compareBeside(t, programs, o.rounds, o.duration.String())
}

// compareServers measures whole servers on one core and on two.
func (o options) compareServers(t *outside.T, all []program) error {
	bare, err := build(".", "bare", filepath.Join(o.dir, "bare"))
	if err != nil {
		return err
	}
	redis := redistest.Start(t)
	for _, cores := range []int{1, 2} {
		if o.cores != 0 && cores != o.cores {
			continue
		}
		list := sites(all, cores)
		for _, s := range list {
			if s.status == http.StatusTooManyRequests && s.program == all[0].path {
				same, err := sameByCaddy(t, s)
				if err != nil {
					return err
				}
				list = append(list, same)
			}
		}
		list = append(list, busy("tide, 100,000 keys busy", all[0].path, nil, cores), busy("tide, syncing them each second", all[0].path, redis, cores))
		base := site{name: "bare", program: bare.path, status: http.StatusOK, cores: cores}
		if err := compareServers(t, base, list, o.rounds, o.duration.String()); err != nil {
			return err
		}
	}
	return nil
}

// programs builds what is compared. The first is this checkout's.
func (o options) programs() (all []program, err error) {
	for _, name := range []string{"tide", "ring", "peer"} {
		if o.against != "" && name != "tide" {
			continue
		}
		p, err := build(".", name, filepath.Join(o.dir, name))
		if err != nil && name == "peer" {
			fmt.Fprintln(os.Stderr, "without the peer, which could not be built: see peer/main.go")
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if o.against != "" {
		p, err := build(filepath.Join(o.against, "bench"), "tide", filepath.Join(o.dir, "old"))
		if err != nil {
			return nil, err
		}
		p.name = "old"
		all = append(all, p)
	}
	return all, nil
}

func build(dir, name, to string) (program, error) {
	to, err := filepath.Abs(to)
	if err != nil {
		return program{}, err
	}
	if name == "peer" {
		dir = filepath.Join(dir, name)
	}
	target := "./" + name
	if name == "peer" {
		target = "."
	}
	output, err := exec.Command("go", "build", "-C", dir, "-tags", tags, "-o", to, target).CombinedOutput()
	if err != nil {
		return program{}, fmt.Errorf("building %s: %w\n%s", name, err, output)
	}
	return program{name, to}, nil
}

// load returns what else the machine does.
func load() {
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Printf("load average: %s\n", bytes.TrimSpace(text))
	}
}

func compareHandlers(all []program, args []string, rounds int, memory bool) error {
	results := make(map[string]map[string][]harness.Result) // by case and program
	var order []string
	for round := range rounds {
		for i := range all {
			p := all[(round+i)%len(all)]
			cmd := exec.Command(p.path, args...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%s: %w\n%s", p.name, err, errs.Bytes())
			}
			for d := json.NewDecoder(&out); ; {
				var r harness.Result
				if err := d.Decode(&r); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return err
				}
				if results[r.Case] == nil {
					results[r.Case] = make(map[string][]harness.Result)
					order = append(order, r.Case)
				}
				results[r.Case][p.name] = append(results[r.Case][p.name], r)
			}
		}
	}
	for _, name := range order {
		by := results[name]
		fmt.Printf("%s\n", name)
		for _, p := range all {
			if len(by[p.name]) > 0 {
				fmt.Printf("  %-6s %s\n", p.name, line(by[p.name], by[all[0].name], p.name != all[0].name, memory))
			}
		}
	}
	return nil
}

// line shows the medians of one program and how the first one compares, pair by pair.
func line(of, first []harness.Result, other, memory bool) string {
	value := func(r harness.Result) float64 { return r.CPU }
	last := of[len(of)-1]
	text := fmt.Sprintf("%5.0f ns CPU (%.0f to %.0f)  %5.0f ns  %d allocs  %4d B", median(of, value), least(of, value), most(of, value),
		median(of, func(r harness.Result) float64 { return r.Ns }), last.Allocs, last.Bytes)
	if memory {
		value = func(r harness.Result) float64 { return r.PerKey }
		text = fmt.Sprintf("%6.0f bytes a key", median(of, value))
	}
	if other && len(first) == len(of) {
		ratios := make([]float64, len(of))
		for i := range of {
			ratios[i] = value(first[i]) / value(of[i])
		}
		slices.Sort(ratios)
		text += fmt.Sprintf("  the first is %.2f of this (%.2f to %.2f; least to least %.2f)",
			ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1], least(first, value)/least(of, value))
	}
	return text
}

func values[T any](all []T, value func(T) float64) []float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = value(all[i])
	}
	slices.Sort(v)
	return v
}

func median[T any](all []T, value func(T) float64) float64 { return values(all, value)[len(all)/2] }
func least[T any](all []T, value func(T) float64) float64  { return values(all, value)[0] }
func most[T any](all []T, value func(T) float64) float64 {
	return values(all, value)[len(all)-1]
}
