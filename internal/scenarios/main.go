// Command scenarios says what a change of the code changes: it runs random scenarios in virtual
// time (internal/tests/stories) with the code of another commit and with that of the working tree,
// and prints what differs, by kind.
//
//	go run ./internal/scenarios -base <commit> [-n 4500]
//
// A kind is what scenarios have in common that differ in the same lines, whatever the numbers,
// names and keys in them; each is shown with its count and one example. Processes hash keys each in
// its own way, and a busy machine does another thing first of what happens at one instant: so what
// differs runs again in other processes, and scenarios that differ from themselves are left out and
// counted. The command ends with 1 where something differs.
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

// compare runs scenarios on both sides, and those that differ again.
func compare(ctx context.Context, before, now side, seeds string, again int) (c comparison, err error) {
	var a, b map[string][]string
	for round := range again + 1 {
		runs, err := both(ctx, before, now, seeds)
		if err != nil {
			return c, err
		}
		if round == 0 {
			a, b = runs[0], runs[1]
		}
		for seed := range runs[0] {
			if !slices.Equal(runs[0][seed], a[seed]) || !slices.Equal(runs[1][seed], b[seed]) {
				c.unsteady = append(c.unsteady, seed)
				delete(a, seed)
			}
		}
		var differ []string
		for seed := range a {
			if !slices.Equal(a[seed], b[seed]) {
				differ = append(differ, seed)
			}
		}
		if seeds = strings.Join(differ, ","); seeds == "" {
			break
		}
	}
	for seed, lines := range a {
		if !slices.Equal(lines, b[seed]) {
			c.add(seed, lines, b[seed])
		}
	}
	return c, nil
}

// both runs scenarios on both sides at once.
func both(ctx context.Context, before, now side, seeds string) (traces [2]map[string][]string, err error) {
	var wait sync.WaitGroup
	var errs [2]error
	for i, s := range []side{before, now} {
		wait.Go(func() { traces[i], errs[i] = s.run(ctx, seeds) })
	}
	wait.Wait()
	return traces, errors.Join(errs[0], errs[1])
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
func (s side) run(ctx context.Context, seeds string) (traces map[string][]string, err error) {
	out := s.program + ".txt"
	if err := call(ctx, filepath.Join(s.dir, runner), s.program, "-test.run", "^TestRandom$", "-test.timeout", "0", "-scenarios", seeds, "-traces", out); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(out)
	return parse(string(text)), err
}

// parse reads the file that the runner writes.
func parse(text string) map[string][]string {
	traces, seed := map[string][]string{}, ""
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if next, ok := strings.CutPrefix(line, "scenario "); ok {
			seed = next
		} else {
			traces[seed] = append(traces[seed], line)
		}
	}
	return traces
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
