// Command scenarios says what a change of the code changes: it runs random scenarios in virtual
// time (internal/tests/stories) with the code of another commit and with that of the working tree,
// and prints what differs, by kind.
//
//	go run ./internal/scenarios -base <commit> [-n 4500]
//
// A kind is what scenarios have in common that differ in the same lines, whatever the numbers,
// names and keys in them; each is shown with its count and one example. Processes hash keys each in
// its own way, and a busy machine does another thing first of what happens at one instant: so what
// differs runs again in other processes. Scenarios that differ from themselves, and have not done
// the same with both commits, are left out and counted. The command ends with 1 where something
// differs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

func main() {
	base := flag.String("base", "", "the `commit` to compare with")
	n := flag.Int("n", 4500, "how many scenarios run")
	again := flag.Int("again", 3, "how often those that differ run again")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	differ, err := run(ctx, os.Stdout, *base, *n, *again)
	if err != nil {
		fmt.Fprintln(os.Stderr, "scenarios:", err)
		os.Exit(2)
	}
	if differ {
		stop()
		os.Exit(1)
	}
}

// run compares, and reports whether something differs.
func run(ctx context.Context, w io.Writer, base string, n, again int) (differ bool, err error) {
	if base == "" || n < 1 {
		return false, errors.New("name a commit with -base, and at least one scenario with -n")
	}
	dir, err := os.MkdirTemp("", "scenarios")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	tree := filepath.Join(dir, "base")
	if err := call(ctx, ".", "git", "worktree", "add", "--detach", tree, base); err != nil {
		return false, err
	}
	defer func() {
		// It ends as well where the context has ended.
		err = errors.Join(err, call(context.Background(), ".", "git", "worktree", "remove", "--force", tree))
	}()
	before, now := side{dir: tree, program: filepath.Join(dir, "base.test")}, side{dir: ".", program: filepath.Join(dir, "now.test")}
	for _, s := range []side{before, now} {
		if err := s.build(ctx); err != nil {
			return false, err
		}
	}
	c, err := compare(ctx, before, now, fmt.Sprint("0-", n-1), again)
	if err != nil {
		return false, err
	}
	c.write(w, n)
	return len(c.differ) > 0, nil
}

// compare runs scenarios on both sides, and again those that have not done the same on both yet.
func compare(ctx context.Context, before, now side, seeds string, again int) (c comparison, err error) {
	var seen [2]traces // of those that have not done the same on both sides
	for round := 0; round <= again && (round == 0 || seeds != ""); round++ {
		runs, err := both(ctx, before, now, seeds)
		if err != nil {
			return c, err
		}
		if round == 0 {
			seen = runs
		}
		seeds = ""
		for seed := range runs[0] {
			for i := range seen {
				if !seen[i].has(seed, runs[i][seed][0]) {
					seen[i][seed] = append(seen[i][seed], runs[i][seed][0])
				}
			}
			if slices.ContainsFunc(seen[0][seed], func(trace string) bool { return seen[1].has(seed, trace) }) {
				delete(seen[0], seed)
			} else {
				seeds = strings.TrimPrefix(seeds+","+seed, ",")
			}
		}
	}
	for seed, all := range seen[0] {
		if len(all) == 1 && len(seen[1][seed]) == 1 {
			c.add(seed, strings.Split(all[0], "\n"), strings.Split(seen[1][seed][0], "\n"))
		} else {
			c.unsteady++
		}
	}
	return c, nil
}

// traces are what scenarios have done, each in one way or several.
type traces map[string][]string

func (t traces) has(seed, trace string) bool { return slices.Contains(t[seed], trace) }

// both runs scenarios on both sides at once.
func both(ctx context.Context, before, now side, seeds string) (runs [2]traces, err error) {
	var wait sync.WaitGroup
	var errs [2]error
	for i, s := range []side{before, now} {
		wait.Go(func() { runs[i], errs[i] = s.run(ctx, seeds) })
	}
	wait.Wait()
	return runs, errors.Join(errs[0], errs[1])
}

// side is the code of a commit, or of the working tree.
type side struct{ dir, program string }

const runner = "internal/tests/stories"

// build makes a program of the package that runs scenarios.
func (s side) build(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.dir, runner)); err != nil {
		return fmt.Errorf("there is no %s to run: name a commit that has it, from the root of the repository: %w", runner, err)
	}
	return call(ctx, s.dir, "go", "test", "-c", "-vet=off", "-tags", "nobadger,nomysql,nopgx", "-o", s.program, "./"+runner)
}

// run returns what is seen in scenarios.
func (s side) run(ctx context.Context, seeds string) (traces, error) {
	out := s.program + ".txt"
	if err := call(ctx, filepath.Join(s.dir, runner), s.program, "-test.run", "^TestRandom$", "-test.timeout", "0", "-scenarios", seeds, "-traces", out); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(out)
	return parse(string(text)), err
}

// parse reads the file that the runner writes.
func parse(text string) traces {
	all := traces{}
	for part := range strings.SplitSeq("\n"+strings.TrimSuffix(text, "\n"), "\nscenario ") {
		if seed, trace, ok := strings.Cut(part, "\n"); ok {
			all[seed] = []string{trace}
		}
	}
	return all
}

// call runs a program, whose output goes into the error where it fails.
func call(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
