package control

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

var gold = keys.IDOf([]byte("gold"))

// sets asks a node for what is temporary of the key gold, or lasts, and expects that it is done.
func (n *cnode) sets(t *testing.T, limit string, isTemporary bool) {
	t.Helper()
	ch := Change{Target: Target{Zone: "plan", Key: &gold, Temporary: isTemporary}, Body: Body{Limit: limit, By: n.Name}, For: time.Hour}
	if limit == "" {
		ch.Body = Body{}
	}
	if o, err := n.Change(context.Background(), ch); err != nil || len(o.Later) > 0 {
		t.Fatalf("Change to %s = %+v, %v", limit, o, err)
	}
}

// has reports whether the key gold goes by rates on a node, "" for none.
func (c *Control) has(rates string) bool {
	var o *Override
	if rules := c.Zone("plan").Load(); rules != nil {
		o = rules.OverrideOf(gold, nil)
	}
	return o == nil && rates == "" || o != nil && fmt.Sprint(o.Rates) == rates
}

// What lasts holds again when what is temporary ends, also where the process has begun again
// meanwhile.
func TestWhatIsTemporaryEnds(t *testing.T) {
	clock := &clockAt{now: 1_800_000_000 * int64(time.Second)}
	n, saved := local(clock, "here", nil)
	n.change(t, Target{Zone: "plan", Key: &gold}, Body{Limit: "6000/30d 7/60d"}, Forever)
	n.change(t, Target{Zone: "plan", Key: &gold, Temporary: true}, Body{Limit: "9000/30d"}, time.Hour)
	if keys, _ := n.Stats(); keys != 1 {
		t.Errorf("%d keys have overrides, want one", keys)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			n, saved = local(clock, "here", *saved)
		}
		if n.Tick(); !n.has("[9000/30d 7/60d]") {
			t.Errorf("before the end, restart %t, it goes by %+v", restart, n.Holding(Target{Zone: "plan", Key: &gold}))
		}
	}
	clock.pass(time.Hour)
	for _, restart := range []bool{false, true} {
		if restart {
			n, _ = local(clock, "here", *saved)
		}
		if n.Tick(); !n.has("[6000/30d 7/60d]") {
			t.Errorf("after the end, restart %t, it goes by %+v", restart, n.Holding(Target{Zone: "plan", Key: &gold}))
		}
	}
}

// Of changes of the same that operators make at once one holds, and the others are told of it.
func TestALaterChangeIsTold(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	nodes := startNodes(t, r, "a", "b")
	a, b := nodes[0], nodes[1]
	// The answer of a waits for a node that hangs, until the test ends that.
	seconds := r.Client().Time(context.Background()).Val().Unix()
	r.Do("HSET", a.Keys.Nodes(0), "gone", fmt.Sprintf("7 %d000 0 0 v1 hangs", seconds+100_000))
	unheard(b)
	for _, later := range []string{"9000/30d", ""} {
		ctx, answer := context.WithCancel(context.Background())
		answered := make(chan Outcome)
		go func() {
			o, _ := a.Change(ctx, Change{Target: Target{Zone: "plan", Key: &gold}, Body: Body{Limit: "6000/30d", By: "alice"}, For: time.Hour})
			answered <- o
		}()
		redistest.Eventually(t, "b has it", func() bool { return b.has("[6000/30d]") })
		b.sets(t, later, false)
		redistest.Eventually(t, "a has the later one", func() bool { return !a.has("[6000/30d]") })
		answer()
		o := <-answered
		if len(o.Later) != 1 || o.Later[0].Limit != later || later != "" && o.Later[0].By != b.Name {
			t.Errorf("Change = %+v, want it told of %q", o, later)
		}
	}
}

// A rate for a window that is written twice would leave open which one holds.
func TestRatesOfAnOverride(t *testing.T) {
	for text, want := range map[string]string{
		"50/30d 500/60d": "[50/30d 500/60d]", "50/30d": "[50/30d]", "50/30d 60/30d": "", "50/30d deny": "", "50 60": "", "50/30d,500/60d": "",
	} {
		o, err := ParseLimit(text)
		if err == nil && fmt.Sprint(o.Rates) != want || err != nil && want != "" {
			t.Errorf("ParseLimit(%q) = %v, %v, want %s", text, o.Rates, err, want)
		}
	}
	number, _ := ParseLimit("50")
	if covered := number.over(&Override{Rates: []config.Rate{{Limit: 5, Window: 30 * 24 * time.Hour}}}); len(covered.Rates) != 1 {
		t.Errorf("a number for the only limit leaves %v", covered.Rates)
	}
}
