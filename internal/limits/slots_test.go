package limits

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Whatever panics while zones are asked or denials are recorded, the slots are free again. Nobody
// else would free them, ever.
func TestSlotsAreFreeAfterAPanic(t *testing.T) {
	panics := caddyhttp.MatcherSets{{matcherFunc(func(*http.Request) (bool, error) { panic("broken") })}}
	reserves, err := config.Reserves([]float64{0.5})
	if err != nil {
		t.Fatal(err)
	}
	core, _ := observer.New(zapcore.DebugLevel)
	brokenLog := zap.New(zapcore.RegisterHooks(core, func(zapcore.Entry) error { panic("broken") }))
	for name, breaks := range map[string]func(*ZoneOptions){
		"a matcher":              func(o *ZoneOptions) { o.Matchers = panics },
		"a matcher of except":    func(o *ZoneOptions) { o.Except = panics },
		"a matcher of a reserve": func(o *ZoneOptions) { o.Reserve, o.ClassMatchers = reserves, []caddyhttp.MatcherSets{panics} },
		"a reserve in shadow mode": func(o *ZoneOptions) {
			o.Reserve, o.ClassMatchers, o.Enforce = reserves, []caddyhttp.MatcherSets{panics}, config.Enforce(0)
		},
		"the log of a denial":          func(o *ZoneOptions) { o.Logger = brokenLog },
		"the log of a would-be denial": func(o *ZoneOptions) { o.Logger, o.Enforce = brokenLog, config.Enforce(0) },
		"the log of what has no counts": func(o *ZoneOptions) {
			o.Logger, o.EmptyKey, o.Key = brokenLog, config.EmptyDeny, "{http.request.header.None}"
		},
	} {
		slots := arranged(t, config.Settings{Name: "slots", Key: "all", Concurrent: 1})[0]
		s := one("breaks", 0, config.Local)
		o := ZoneOptions{Settings: s, Logger: zap.NewNop(), Once: new(warning.Once)}
		breaks(&o)
		z, err := NewZone(o)
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: nothing panics", name)
				}
			}()
			_, _ = Evaluate([]*Zone{slots, z}, request("x"), clock.Now())
		}()
		if n := slots.Slots.Table.InUse(); n != 0 {
			t.Errorf("%s: %d slots are taken after the panic", name, n)
		}
		z.Release()
	}
}

// A long key is not kept until the next request comes.
func TestALongKeyIsNotKept(t *testing.T) {
	zones := arranged(t, config.Settings{Name: "long", Key: keyOfRequests, Limits: []config.Rate{{Limit: 1, Window: 30 * 24 * time.Hour}}})
	e := decide(t, zones, strings.Repeat("x", 1<<20))
	e.Free()
	if cap(e.keys) > maxKept {
		t.Errorf("the evaluation keeps %d bytes", cap(e.keys))
	}
	for _, p := range append(e.checks[:cap(e.checks)], e.later[:cap(e.later)]...) {
		if len(p.ask.Raw) > maxKept {
			t.Errorf("a part keeps %d bytes", len(p.ask.Raw))
		}
	}
}

// A key that had a counter when its queue was read, and none any more when it was entered, counts
// as one beyond max_keys.
func TestAQueueThatIsEnteredBeyondMaxKeys(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	s := one("queue", 5, config.Local)
	s.Kind, s.Queue, s.Key, s.MaxKeys = algorithms.LeakyBucket, 5, keyOfRequests, 1
	z, err := NewZone(ZoneOptions{Settings: s, Logger: zap.New(core), Once: new(warning.Once)})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Release()
	zones := []*Zone{z, arranged(t, config.Settings{Name: "other", Key: "all", Limits: []config.Rate{{Limit: 9, Window: 30 * 24 * time.Hour}}})[0]}
	Arrange(zones)
	r := request("x")
	raw, _, _ := z.AppendKey(nil, r, reqkey.Vars(r))
	e := &Evaluation{Now: clock.Now()}
	meetAll(e, []*Zone{z}, r)
	// Somebody else takes the only counter: it is found where its hash is in the same stripe.
	other := []byte("other")
	for keys.KeyOf(other).A>>58 != keys.KeyOf(raw).A>>58 {
		other = append(other, 'x')
	}
	z.AllLimits[0].Take(keys.KeyOf(other), other, e.Now, 1, 0)
	if e.enterQueues(); e.Denied || !e.taken[0].Overflow {
		t.Fatalf("denied %t, beyond max_keys %t", e.Denied, e.taken[0].Overflow)
	}
	if err := e.Enter(t.Context()); err != nil || logs.Len() != 1 {
		t.Errorf("%v, with %d lines, want one that the zone is full", err, logs.Len())
	}
}

// A slot of a key beyond max_keys is told of, also where the zone has no limits.
func TestASlotBeyondMaxKeysIsToldOf(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	s := config.Settings{Name: "slots", Key: keyOfRequests, IPv4Prefix: 32, IPv6Prefix: 64, Concurrent: 2, MaxKeys: 1}
	z, err := NewZone(ZoneOptions{Settings: s, Logger: zap.New(core), Once: new(warning.Once)})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Release()
	for i, key := range []string{"first", "second"} {
		e := decide(t, []*Zone{z}, key)
		defer e.Free()
		if err := e.Enter(t.Context()); err != nil || e.Denied || e.slots[0].Overflow != (i == 1) {
			t.Fatalf("%s: %v, denied %t, beyond max_keys %t", key, err, e.Denied, e.slots[0].Overflow)
		}
		if logs.Len() != i {
			t.Errorf("%d lines after the %s key, want %d", logs.Len(), key, i)
		}
	}
}
