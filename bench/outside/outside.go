// Package outside lets a program use what was made for tests: servers that are started for a test
// end with it.
package outside

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// T takes the place of a *testing.T in a program: what would fail a test, or skip it, ends the
// program with a message. The methods that are not here must not be called.
type T struct {
	testing.TB

	mu       sync.Mutex
	cleanups []func()
}

// Run runs f and then what it left to be cleaned up, which it also does when the program gets a
// signal to end.
func Run(f func(*T) error) {
	t := &T{}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() { t.Fatal(<-stop) }()
	err := f(t)
	t.clean()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (t *T) clean() {
	t.mu.Lock()
	defer t.mu.Unlock() // only then another one, which finds nothing to do, may end the program
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
	t.cleanups = nil
}

// Helper does nothing: there are no line numbers in messages.
func (t *T) Helper() {}

// Cleanup has f called at the end.
func (t *T) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Fatal ends the program.
func (t *T) Fatal(args ...any) {
	t.clean()
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

// Fatalf ends the program.
func (t *T) Fatalf(format string, args ...any) { t.Fatal(fmt.Sprintf(format, args...)) }

// Skip ends the program: what it measures needs what is missing.
func (t *T) Skip(args ...any) { t.Fatal(args...) }
