package runs

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A store is a Redis that runs the real scripts, in virtual time. Its clock is that of the nodes,
// and ahead of it.
type store struct {
	*miniredis.Miniredis

	mu    sync.Mutex
	ahead time.Duration
	last  time.Time       // until when keys have expired
	known map[string]bool // the scripts that it has, by their hashes
}

// startStore starts one that listens nowhere, as nothing in virtual time may wait for a network.
// Nodes connect by pipes.
func startStore(t *testing.T) *store {
	s := &store{Miniredis: miniredis.NewMiniRedis(), known: map[string]bool{}}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.Server().Close()
	return s
}

// catchUp brings the clock and what expires up to now.
//
// bubble: runs are in virtual time.
func (s *store) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Add(s.ahead)
	s.SetTime(now)
	if !s.last.IsZero() && now.After(s.last) {
		s.FastForward(now.Sub(s.last))
	}
	s.last = now
}

// step moves the clock. Keys expire by it, as Redis notes at which instant they are to.
func (s *store) step(by time.Duration) {
	s.catchUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += by
}

// A fate is what happens to a message of a node that is no heartbeat.
type fate int

const (
	arrives fate = iota
	lost
	unanswered // it arrives, and the reply is lost
	late       // it arrives when nobody waits for it any more
	twice
)

// A wire is the way of a node to the store.
type wire struct {
	store  *store
	client *redis.Client

	mu    sync.Mutex
	next  map[string]fate // of the next message of a kind, see kindOf
	delay time.Duration   // of one that comes late
	cut   bool            // nothing arrives, heartbeats included
	runs  bool            // the node has started
	sent  map[string]int  // messages of a kind, whatever became of them
}

// connect returns the way of a node to the store, through pipes in memory.
func connect(s *store) *wire {
	w := &wire{store: s, next: map[string]fate{}, sent: map[string]int{}}
	w.client = redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", Protocol: 2, DisableIdentity: true, MaxRetries: -1, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			s.Server().ServeConn(there)
			return here, nil
		},
	})
	w.client.AddHook(w)
	return w
}

// set changes what happens to messages.
func (w *wire) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// DialHook and the others make it a redis.Hook.
func (w *wire) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := w.send(ctx, cmds[0], func(ctx context.Context) error { return next(ctx, cmds) })
		for _, cmd := range cmds {
			if err != nil && cmd.Err() == nil {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

func (w *wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := w.send(ctx, cmd, func(ctx context.Context) error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

var errCut = errors.New("the node is cut off")

// send is the way of a command to the store and back.
//
// bubble: runs are in virtual time.
func (w *wire) send(ctx context.Context, cmd redis.Cmder, deliver func(context.Context) error) error {
	now, delay, cut := w.fateOf(cmd)
	if cut {
		return errCut
	}
	if w.isLater(cmd) { // what else there is at its instant comes first
		time.Sleep(time.Millisecond) // of virtual time
	}
	w.store.catchUp()
	silent := func() error {
		<-ctx.Done()
		return ctx.Err()
	}
	switch now {
	case lost:
		return silent()
	case late:
		go func() {
			time.Sleep(delay) // of virtual time
			w.store.catchUp()
			_ = deliver(context.WithoutCancel(ctx))
		}()
		return silent()
	case unanswered:
		_ = deliver(ctx)
		return silent()
	case twice:
		_ = deliver(ctx)
	}
	return deliver(ctx)
}

// fateOf says what happens to a command. What is no message arrives, and so does the name of a
// script that the store has never had: its text follows.
func (w *wire) fateOf(cmd redis.Cmder) (now fate, delay time.Duration, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	words := words(cmd)
	kind := kindOf(words)
	if w.cut || kind == "" {
		return arrives, 0, w.cut
	}
	if words[0] == "eval" {
		w.store.known[fmt.Sprintf("%x", sha1.Sum([]byte(words[1])))] = true
	} else if !w.store.known[words[1]] {
		return arrives, 0, false
	}
	now, w.next[kind] = w.next[kind], arrives
	w.sent[kind]++
	return now, w.delay, false
}

// isLater reports whether a command is a heartbeat of a node that runs.
func (w *wire) isLater(cmd redis.Cmder) bool {
	words := words(cmd)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs && len(words) > 3 && strings.Contains(words[3], "}:nodes")
}

// kindOf is what a message is about, by the first key of its script: "" where it is none, such as a
// heartbeat.
func kindOf(words []string) string {
	if len(words) < 4 || !strings.HasPrefix(words[0], "eval") {
		return ""
	}
	for _, kind := range []struct{ name, part string }{
		{"", "}:nodes"}, {"", "}:control"}, {"", "strict:probe"}, {"ban", ":ban:"}, {"slot", ":concurrent:"},
	} {
		if strings.Contains(words[3], kind.part) {
			return kind.name
		}
	}
	return "count"
}

func words(cmd redis.Cmder) (all []string) {
	for _, arg := range cmd.Args() {
		if s, ok := arg.(*string); ok {
			arg = *s
		}
		all = append(all, fmt.Sprint(arg))
	}
	return all
}
