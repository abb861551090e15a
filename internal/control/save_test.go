package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// clockAt is a clock that is set by hand.
type clockAt struct{ now int64 }

func (c *clockAt) pass(d time.Duration) { c.now += int64(d) }

// local is a record of a node's own, which saves itself into saved.
func local(c *clockAt, store string, earlier []byte) (n *Control, saved *[]byte) {
	n = New(Options{Store: store, Now: func() int64 { return c.now }, Logger: zap.NewNop()})
	saved = new([]byte)
	n.Keep(earlier, func(b []byte) error {
		*saved = b
		return nil
	})
	n.AwaitSaved(context.Background()) // as the process does before it ends
	return n, saved
}

func (c *Control) change(t *testing.T, target Target, body Body, length time.Duration) {
	t.Helper()
	if o, err := c.Change(context.Background(), Change{Target: target, Body: body, For: length}); err != nil || o.Applied != 1 || o.Nodes != 1 {
		t.Fatalf("Change = %+v, %v", o, err)
	}
}

// A node without Redis says that a change ends with its process, unless it is saved.
func TestAnUnsavedChangeEndsWithTheProcess(t *testing.T) {
	n, _ := local(&clockAt{now: 1_800_000_000 * int64(time.Second)}, "here", nil)
	target := Target{Zone: "login"}
	for _, isSaved := range []bool{true, false} {
		if !isSaved {
			n.Keep(nil, nil)
		}
		o, err := n.Change(context.Background(), Change{Target: target, Body: share(1), For: time.Hour})
		if err != nil || o.EndsWithProcess == isSaved {
			t.Errorf("saved %v: %+v, %v", isSaved, o, err)
		}
	}
	if o, err := n.Change(context.Background(), Change{Target: target}); err != nil || o.EndsWithProcess {
		t.Errorf("what is taken back: %+v, %v", o, err)
	}
	n.Keep(nil, func([]byte) error { return errors.New("a full disk") })
	if o, err := n.Change(context.Background(), Change{Target: target, Body: share(1), For: time.Hour}); err != nil || !o.EndsWithProcess {
		t.Errorf("what could not be saved: %+v, %v", o, err)
	}
}

// Without Redis, what was changed holds until it ends, also over a restart, and no longer.
func TestChangesOverARestart(t *testing.T) {
	clock := &clockAt{now: 1_800_000_000 * int64(time.Second)}
	n, saved := local(clock, "here", nil)
	id := keys.IDOf([]byte("customer"))
	n.change(t, Target{Zone: "login"}, share(0), time.Hour)
	n.change(t, Target{Zone: "api", Key: &id}, Body{Limit: Deny}, 24*time.Hour)
	n.change(t, Target{Zone: "other"}, share(1), time.Hour)
	n.change(t, Target{Zone: "other"}, Body{}, 0)

	clock.pass(30 * time.Minute)
	n, saved = local(clock, "here", *saved)
	active := func(want int) {
		t.Helper()
		n.Tick()
		s := n.State(context.Background())
		if got := len(s.Enforcement) + len(s.Overrides); got != want || s.Shared {
			t.Errorf("%d hold, want %d: %+v", got, want, s)
		}
	}
	active(2)
	clock.pass(29 * time.Minute)
	active(2)
	clock.pass(2 * time.Minute)
	active(1)
	if n.Zone("login").Load() != nil {
		t.Error("requests still see what has ended")
	}
	n, saved = local(clock, "here", *saved)
	active(1)
	clock.pass(23 * time.Hour)
	active(0)

	if n, _ = local(clock, "elsewhere", *saved); len(n.record.copies) > 0 {
		t.Error("the record of another Redis was taken up")
	}
	for _, nonsense := range []string{"", "{", "null", `{"store":"here","entries":[{"id":"x","value":"1 2"}]}`} {
		if n, _ = local(clock, "here", []byte(nonsense)); len(n.record.copies) > 0 {
			t.Errorf("%q was taken up", nonsense)
		}
	}
}

// Why nothing is restored is told, where something was lost by that.
func TestKeepSaysWhatIsNotRestored(t *testing.T) {
	n, _ := local(&clockAt{now: 1_800_000_000 * int64(time.Second)}, "here", nil)
	for text, want := range map[string]error{
		"": nil, "{": errDamaged, `{"store":"here"}`: nil, `{"store":"elsewhere"}`: nil, `{"store":"elsewhere","entries":[{"id":"x","value":"1 2"}]}`: errOther,
	} {
		if err := n.Keep([]byte(text), nil); err != want {
			t.Errorf("Keep(%q) = %v, want %v", text, err, want)
		}
	}
}

// What Redis had not heard of when the process ended it hears of from the next one.
func TestPendingChangesOverARestart(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	first := startNode(t, r, "first")
	var saved []byte
	first.Keep(nil, func(b []byte) error {
		saved = b
		return nil
	})
	unheard(first)
	r.Kill()
	o, err := first.Change(context.Background(), Change{Target: Target{Zone: "login"}, Body: share(0), For: time.Hour})
	if err != nil || !o.Unsent {
		t.Fatalf("Change = %+v, %v, want it pending", o, err)
	}
	first.AwaitSaved(context.Background())
	first.rep.Close()
	r.Restart()
	second, other := startNode(t, r, "second"), startNode(t, r, "other")
	second.Keep(saved, nil)
	redistest.Eventually(t, "the other node has it", func() bool { return other.sees("login", 0) })
}

// What a server says of the record that makes no sense changes nothing.
func TestNonsenseOfTheRecord(t *testing.T) {
	n, _ := local(&clockAt{now: 1_800_000_000 * int64(time.Second)}, "here", nil)
	n.change(t, Target{Zone: "login"}, share(0), time.Hour)
	one := int64(1)
	for _, nonsense := range [][]any{
		nil, {"", []any{}, one}, {"", []any{}, one, nil}, {1, []any{}, one, []any{}}, {"x", []any{}, one, []any{}}, {"1", []any{}, one, []any{}},
		{"-1 5", []any{}, one, []any{}}, {"99999999999999999 5", []any{}, one, []any{}}, {"1 5", []any{}, "1", []any{}},
		{"1 5", []any{"one"}, one, []any{}}, {"!WRONGTYPE of a key", []any{}, one, []any{}},
	} {
		if wait := n.Merge(ratesync.HeartbeatReply{Server: 1, Now: 1, Record: nonsense}); wait != idleBeat {
			t.Errorf("%v: the next heartbeat in %v, want %v", nonsense, wait, idleBeat)
		}
		if s := n.State(context.Background()); s.Failing == "" || len(s.Enforcement) != 1 {
			t.Errorf("%v: %+v, want one entry and why it fails", nonsense, s)
		}
	}
	r, leases, err := parseReply(ratesync.HeartbeatReply{Record: []any{"1 5", []any{"a", "9 1 2 3 4 {}", "b", "nonsense", 5, 6}, one, []any{"n", "x", "m", "1 2 3 4 v1 host/5", 7, 8}}})
	if err != nil || len(r.Entries) != 1 || len(leases) != 3 {
		t.Errorf("%+v, %+v, %v, want one entry and three leases", r, leases, err)
	}
}

// What another program has written among the entries has no effect.
func TestEntriesThatSayNothing(t *testing.T) {
	for id, body := range map[string]string{
		"enforcement:a": `{"share":2}`, "enforcement:b": `{"limit":"deny"}`, "enforcement:c": `[]`, "enforcement:d": `{"share":0.5,"note":"a\u0007"}`,
		"override:x:a": `{"limit":"deny"}`, "override:AAAAAAAAAAAAAAAAAAAAAA:": `{"limit":"deny"}`, "override:AAAAAAAAAAAAAAAAAAAAAA:a": `{"share":1}`,
		"override:AAAAAAAAAAAAAAAAAAAAAA:b": `{"limit":"many"}`, "other": `{"share":0}`, "": `{"share":0}`,
	} {
		if p, ok := parse(Entry{ID: id, Body: body}); ok {
			t.Errorf("%s %s says %+v", id, body, p)
		}
	}
	if _, ok := parse(Entry{ID: "override:AAAAAAAAAAAAAAAAAAAAAA:a:b", Body: `{"limit":"5"}`}); !ok {
		t.Error("a zone with a colon in its name has no overrides")
	}
}
