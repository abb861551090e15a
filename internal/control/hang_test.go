package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// While the disk or the storage of a node hangs, the others still count it, as its heartbeats go
// on, and what is changed elsewhere holds there.
func TestAWriterThatHangs(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	nodes := startNodes(t, r, "a", "b")
	slow, hung, goOn := nodes[1], make(chan struct{}, 10), make(chan struct{})
	defer close(goOn)
	slow.Keep(nil, func([]byte) error {
		hung <- struct{}{}
		<-goOn
		return nil
	})
	nodes[0].enforce(t, "login", 0, 2)
	<-hung
	beats := func() int64 {
		slow.mu.Lock()
		defer slow.mu.Unlock()
		return slow.heard
	}
	began := beats()
	redistest.Eventually(t, "its heartbeats go on", func() bool { return beats() > began+int64(2*idleBeat) })
	nodes[0].enforce(t, "login", 1, 2)
	if !slow.sees("login", 1) || nodes[0].rep.Nodes() != 2 {
		t.Errorf("it sees %v, and the other node counts %d; want a share of 1, and 2", slow.Zone("login").Load(), nodes[0].rep.Nodes())
	}
	if len(hung) > 0 {
		t.Error("two writes at once")
	}
}

// answering is a node without Redis whose writer waits for an answer to give.
type answering struct {
	*Control
	t       *testing.T
	clock   *clockAt
	answers chan error
	saved   []byte
	logs    *observer.ObservedLogs
}

func newAnswering(t *testing.T) *answering {
	core, logs := observer.New(zap.ErrorLevel)
	n := &answering{t: t, clock: &clockAt{now: 1_800_000_000 * int64(time.Second)}, answers: make(chan error), logs: logs}
	n.Control = New(Options{Store: "here", Now: func() int64 { return n.clock.now }, Logger: zap.New(core)})
	n.Keep(nil, func(b []byte) error {
		err := <-n.answers
		if err == nil {
			n.saved = b
		}
		return err
	})
	return n
}

// restores expects a share of a zone in what is saved.
func (n *answering) restores(want float64) {
	n.t.Helper()
	synctest.Wait()
	other, _ := local(n.clock, "here", n.saved)
	if r := other.Zone("login").Load(); r == nil || r.Enforce == nil || r.Enforce.Share() != want {
		n.t.Errorf("saved is a record with %+v, want a share of %v", r, want)
	}
}

// The newest record is what is saved in the end, whatever a writer did meanwhile: one that hangs,
// one that fails, and one that takes the place of another.
func TestTheNewestRecordIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newAnswering(t)
		began := time.Now()
		for i := range 3 {
			if _, err := n.Change(context.Background(), Change{Target: Target{Zone: "login"}, Body: share(float64(i) / 2), For: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 3*WaitFor {
			t.Errorf("three changes took %v while the writer hangs, want %v", took, 3*WaitFor)
		}
		n.answers <- nil
		n.restores(0)
		n.answers <- nil
		n.restores(1)
		n.Tick()
		synctest.Wait()
		select {
		case n.answers <- nil:
			t.Error("what is saved is saved again")
		default:
		}
		go n.Change(context.Background(), Change{Target: Target{Zone: "login"}, Body: share(0.25), For: time.Hour})
		for range 3 {
			n.answers <- errors.New("no space left")
			synctest.Wait()
			n.Tick()
			synctest.Wait()
		}
		if n.logs.Len() != 1 {
			t.Errorf("%d lines about a writer that fails, want 1", n.logs.Len())
		}
		var other []byte
		n.Keep(nil, func(b []byte) error { other = b; return nil })
		n.answers <- errors.New("no space left")
		synctest.Wait()
		n.saved = other
		n.restores(0.25)
		n.AwaitSaved(context.Background())
	})
}
