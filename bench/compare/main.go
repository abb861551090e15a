// Command compare runs the programs under comparison in turn and prints medians and ratios, so that what else the machine does meanwhile
// hits all of them alike. Run it in bench:
//
//	go run ./compare                     handlers, in nanoseconds and allocations
//	go run ./compare -memory             bytes per key
//	go run ./compare -servers            whole servers over loopback, with wrk
//	go run ./compare -against ../../old  this checkout and another one, for a change's before and after
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/caddy-tide/ratelimit/bench/harness"
)

const tags = "nobadger,nomysql,nopgx"

// A program is one Caddy under comparison.
type program struct {
	name string // of the column
	path string
}

func main() {
	rounds := flag.Int("rounds", 7, "how often each program runs")
	benchtime := flag.String("benchtime", "100ms", "how long a case runs each time")
	only := flag.String("case", "", "one case only")
	memory := flag.Bool("memory", false, "measure memory per key")
	servers := flag.Bool("servers", false, "measure whole servers")
	duration := flag.String("duration", "3s", "how long wrk runs each time")
	against := flag.String("against", "", "another checkout to compare this one with")
	flag.Parse()
	dir, err := os.MkdirTemp("", "tide-bench")
	if err != nil {
		fail(err)
	}
	defer os.RemoveAll(dir)
	var all []program
	for _, name := range []string{"tide", "ring", "peer"} {
		if *against != "" && name != "tide" {
			continue
		}
		p, err := build(".", name, filepath.Join(dir, name))
		if err != nil && name == "peer" {
			fmt.Fprintln(os.Stderr, "without the peer, which could not be built: see peer/main.go")
			continue
		} else if err != nil {
			fail(err)
		}
		all = append(all, p)
	}
	if *against != "" {
		p, err := build(filepath.Join(*against, "bench"), "tide", filepath.Join(dir, "old"))
		if err != nil {
			fail(err)
		}
		p.name = "old"
		all = append(all, p)
	}
	load()
	defer load()
	switch {
	case *servers:
		bare, err := build(".", "bare", filepath.Join(dir, "bare"))
		if err != nil {
			fail(err)
		}
		err = compareServers(bare, all, *rounds, *duration)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	default:
		args := []string{"measure", "-benchtime", *benchtime, "-case", *only}
		if *memory {
			args = append(args, "-memory")
		}
		if err := compareHandlers(all, args, *rounds, *memory); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// fail ends the program. Package log would do so in the words of Caddy, which takes it over.
func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
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

// load tells what else the machine does.
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
