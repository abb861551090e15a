// Command rivals compares Tide's table and its handler with limiters of other people: the same
// keys, the same threads, in turn, each in a process of its own. It prints Markdown. Run it in
// bench:
//
//	go run ./rivals           about two minutes
//	go run ./rivals -short    a quarter of that, to see that it works
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A case is what a subject is measured by.
type benchCase struct {
	name    string
	keys    int
	threads int
	limit   int
	what    figure
}

// A figure is what a case is about.
type figure int

const (
	duration figure = iota
	memory
	exactness
)

const (
	plenty = 1_000_000_000 // a minute: never denied
	window = time.Minute
	hour   = time.Hour
	moment = 100 * time.Millisecond
)

// cases of limiters and of handlers; the names are the heads of columns.
func cases(kind string) (all []benchCase) {
	if kind == "handlers" {
		for _, threads := range []int{1, 2} {
			all = append(all, benchCase{name: fmt.Sprintf("admitted, %s", count(threads, "thread")), keys: 10_000, threads: threads, limit: plenty},
				benchCase{name: fmt.Sprintf("denied, %s", count(threads, "thread")), keys: 10_000, threads: threads, limit: 1})
		}
		return all
	}
	for _, keys := range []int{1, 10_000, 100_000} {
		for _, threads := range []int{1, 2} {
			all = append(all, benchCase{name: fmt.Sprintf("%s, %s", count(keys, "key"), count(threads, "thread")), keys: keys, threads: threads, limit: plenty})
		}
	}
	for _, limit := range []int{10, 1000} {
		all = append(all, benchCase{name: fmt.Sprintf("limit %d", limit), keys: 100_000, limit: limit, what: memory})
	}
	return append(all, benchCase{name: "most admitted, of the limit", limit: 200, what: exactness})
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if n%1000 == 0 {
		return fmt.Sprintf("%d,000 %ss", n/1000, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

var kinds = []struct {
	name     string
	subjects func() []subject
}{{"limiters", limiters}, {"handlers", handlers}}

func main() {
	rounds := flag.Int("rounds", 5, "how often each subject runs")
	each := flag.Duration("time", 150*time.Millisecond, "how long a case runs each time")
	short := flag.Bool("short", false, "one short round")
	one := flag.String("one", "", "for the program itself: the subject to measure, as kind/index")
	flag.Parse()
	if *short {
		*rounds, *each = 2, 50*time.Millisecond
	}
	if *one != "" {
		if err := measure(*one, *each); err != nil {
			fail(err)
		}
		return
	}
	for k, kind := range kinds {
		results, err := collect(k, *rounds, *each)
		if err != nil {
			fail(err)
		}
		write(os.Stdout, kind.name, kind.subjects(), results)
	}
}

// fail ends the program. Package log would do so in the words of Caddy, which takes it over.
func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// measure runs the cases of one subject.
func measure(which string, each time.Duration) error {
	var k, i int
	if _, err := fmt.Sscanf(which, "%d/%d", &k, &i); err != nil {
		return fmt.Errorf("reading -one %q: %w", which, err)
	}
	out := json.NewEncoder(os.Stdout)
	for _, c := range cases(kinds[k].name) {
		r, err := c.run(kinds[k].subjects()[i], each)
		if err == nil {
			err = out.Encode(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c benchCase) run(s subject, each time.Duration) (r result, err error) {
	per := window
	if c.limit < plenty {
		per = hour
	}
	if c.what == exactness {
		per = moment
	}
	clients, end, err := s.open(c.limit, per)
	if err != nil {
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	defer end()
	switch c.what {
	case duration:
		r = run(clients, makeKeys(c.keys), c.threads, each)
	case memory:
		r.PerKey = perKey(clients, c.keys)
	case exactness:
		r.Peak = peak(clients, c.limit, per)
	}
	r.Case = c.name
	return r, nil
}

// collect returns the results of all subjects of a kind, by subject and case, in the order of
// rounds.
func collect(kind, rounds int, each time.Duration) ([]map[string][]result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := len(kinds[kind].subjects())
	all := make([]map[string][]result, n)
	for i := range all {
		all[i] = make(map[string][]result)
	}
	for round := range rounds {
		for j := range n {
			i := (round + j) % n
			out, err := exec.Command(self, "-one", fmt.Sprintf("%d/%d", kind, i), "-time", each.String()).Output()
			if err != nil {
				return nil, fmt.Errorf("measuring %s: %w", kinds[kind].subjects()[i].name, err)
			}
			for d := json.NewDecoder(strings.NewReader(string(out))); ; {
				var r result
				if err := d.Decode(&r); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return nil, err
				}
				all[i][r.Case] = append(all[i][r.Case], r)
			}
		}
	}
	return all, nil
}

// median of a result's figure; of the figure as a ratio to that of others in the same round, where
// there are others.
func median(of, others []result, figure func(result) float64) float64 {
	v := make([]float64, len(of))
	for i := range of {
		v[i] = figure(of[i])
		if others != nil {
			v[i] /= figure(others[i])
		}
	}
	slices.Sort(v)
	return v[len(v)/2]
}
