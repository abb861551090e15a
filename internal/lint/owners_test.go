package main

import (
	"slices"
	"strings"
	"testing"
)

func TestSomebodyWaitsForEachGoroutine(t *testing.T) {
	source := `package p

func owned(x *T) {
	go func() {
		defer close(x.done)
	}()
	<-x.done
	go x.run()
	x.calls.Go(func() {})
	go func() {
		defer x.calls.Done()
	}()
	x.calls.Wait()
	x.making.Lock()
	go func() {
		defer x.making.Unlock()
	}()
	x.timer = time.NewTimer(1)
	x.timer.Stop()
}

func ended(x *T) { x.work.Go(func() {}); x.work.End(x.deadline) }

func (x *T) run() { defer close(x.records) }

func (x *T) each() {
	for range x.records {
	}
}

func lost(x *T) {
	go func() {
		defer close(x.closed)
	}()
	go func() {
		x.work()
		close(x.done)
	}()
	go x.work()
	x.others.Go(func() {})
	time.AfterFunc(1, x.work)
	x.ticks = time.NewTicker(1)
}

var started = func() { go elsewhere() }

func (x *T) work() {}
`
	var want []string
	for _, line := range []string{"32", "35", "39", "40", "41"} {
		want = append(want, "p.go:"+line+": nobody waits for this goroutine: see owners in internal/lint")
	}
	want = append(want, "p.go:42: nobody stops this timer: see owners in internal/lint", "p.go:45: nobody waits for this goroutine: see owners in internal/lint")
	if got := findings(t, source); !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNoReflection(t *testing.T) {
	want := []string{`p.go:4: imports "reflect", which no compiler checks`, `p.go:5: imports "unsafe", which no compiler checks`}
	if got := findings(t, "package p\n\nimport (\n\t\"reflect\"\n\t\"unsafe\"\n\t\"time\"\n)\n"); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestExceptionsThatNothingNeedsGo(t *testing.T) {
	l := newLinter()
	for place := range unowned {
		l.excepted(unowned, place)
	}
	for place := range reflects {
		if place != "unnamed.go" {
			l.excepted(reflects, place)
		}
	}
	l.needless()
	if want := []string{"internal/lint/owners.go: nothing needs the exception for unnamed.go: remove it"}; !slices.Equal(l.findings, want) {
		t.Errorf("found %q, want %q", l.findings, want)
	}
}
