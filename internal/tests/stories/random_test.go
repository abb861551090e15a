package stories

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	scenarios = flag.String("scenarios", "0-39", "random `scenarios` that run: the first and the last one, or a list with commas")
	traces    = flag.String("traces", "", "`file` that gets all that is seen in them")
)

// Random scenarios run to their end: no request panics, no call waits for ever. What they do is
// compared between two commits by internal/scenarios, which has it written to a file.
func TestRandom(t *testing.T) {
	begin(t)
	out := bufio.NewWriter(nil)
	if *traces != "" {
		file, err := os.Create(*traces)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		out.Reset(file)
	}
	for _, seed := range seeds(t, *scenarios) {
		lines := runScenario(t, seed)
		if *traces != "" {
			fmt.Fprintf(out, "scenario %d\n%s\n", seed, strings.Join(lines, "\n"))
		}
	}
	if *traces != "" {
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// seeds reads the flag.
func seeds(t *testing.T, text string) (all []uint64) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, two := strings.Cut(part, "-")
		from, err := strconv.ParseUint(first, 10, 32)
		to := from
		if err == nil && two {
			to, err = strconv.ParseUint(last, 10, 32)
		}
		if err != nil {
			t.Fatalf("-scenarios %s: %v", text, err)
		}
		for ; from <= to; from++ {
			all = append(all, from)
		}
	}
	return all
}

// scenario is a world with a random configuration, in which random things happen.
type scenario struct {
	*world
	random    *rand.Rand
	withRedis bool
	handlers  []handler
	loads     int
}

// runScenario returns what is seen in a scenario.
func runScenario(t *testing.T, seed uint64) (lines []string) {
	random := rand.New(rand.NewPCG(seed, 2026))
	inWorld(t, time.Duration(random.IntN(3))*1370*time.Millisecond, func(w *world) {
		s := &scenario{world: w, random: random}
		s.run()
		lines = s.lines()
	})
	return lines
}

func (s *scenario) run() {
	app := s.makeApp(s.namespace)
	if s.withRedis {
		s.redis = newStandIn(s.world, app)
		s.redis.heartbeats = true
	}
	for range 20 {
		if s.load(app, s.makeHandlers()) {
			break
		}
	}
	if s.running == nil {
		s.t.Fatal("no configuration is valid")
	}
	for range 30 + s.random.IntN(50) {
		s.step(app)
	}
	if s.redis != nil && s.redis.state() != "up" {
		s.recover()
	}
	for _, v := range s.visits {
		v.tell("200")
	}
	s.pause(2 * time.Second)
	s.look()
	s.finish(app)
}

// load replaces the configuration, and reports whether that was possible.
func (s *scenario) load(app string, handlers []handler) bool {
	var all []string
	for _, h := range handlers {
		all = append(all, jsonOf(h))
	}
	s.note("load %s", jsonOf(handlers))
	if s.world.load(app, all) != nil {
		return false
	}
	s.handlers = handlers
	s.loads++
	return true
}

// look notes how the node stands.
func (s *scenario) look() {
	s.admin(http.MethodGet, "/rate_limit/", "")
	for _, h := range s.handlers {
		for _, name := range h.names() {
			for _, key := range keys {
				s.admin(http.MethodPost, "/rate_limit/explain", fmt.Sprintf(`{"zone":%q,"key":%q}`, name, key))
			}
		}
	}
	s.metrics("")
}

// handler is the configuration of a handler, as JSON has it.
type handler struct {
	Zones   map[string]zone
	Options map[string]any
}

type zone = map[string]any

func (h handler) names() []string { return slices.Sorted(maps.Keys(h.Zones)) }

// MarshalJSON writes it.
func (h handler) MarshalJSON() ([]byte, error) {
	all := map[string]any{"rate_limits": h.Zones}
	maps.Copy(all, h.Options)
	return json.Marshal(all)
}

// keys are the keys that requests bring, and what looks at keys asks for.
var keys = []string{"a", "b", "c", "203.0.113.9"}

// chance is true so many times of 100.
func (s *scenario) chance(percent int) bool { return s.random.IntN(100) < percent }

// pick is one of several.
func pick[T any](s *scenario, all ...T) T { return all[s.random.IntN(len(all))] }

// makeApp is the configuration of the app.
func (s *scenario) makeApp(namespace string) string {
	app := map[string]any{"namespace": namespace}
	if s.withRedis = s.chance(60); s.withRedis {
		app["redis"] = map[string]any{"url": redisURL}
		app["strict_timeout"] = pick(s, "50ms", "100ms")
		if s.chance(50) {
			app["sync_rate"] = pick[any](s, "strict", "100ms", "300ms", "local")
		}
	}
	return jsonOf(app)
}

func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// makeHandlers is one handler or two with one zone to four.
func (s *scenario) makeHandlers() (all []handler) {
	for range pick(s, 1, 1, 2) {
		h := handler{Zones: make(map[string]zone), Options: make(map[string]any)}
		for i := range pick(s, 1, 1, 2, 2, 3, 4) {
			h.Zones[fmt.Sprintf("z%d%d", len(all), i)] = s.makeZone()
		}
		if s.chance(30) {
			h.Options["headers"] = pick(s, []string{"ietf", "kong"}, []string{"github"}, []string{"kong", "github", "ietf"}, []string{"off"})
		}
		s.maybe(h.Options, 10, "status_code", 503, 420)
		s.maybe(h.Options, 10, "message", "slow down {http.rate_limit.exceeded.name}", `{"wait": "{http.rate_limit.exceeded.wait}"}`)
		s.maybe(h.Options, 20, "log_key", true)
		s.maybe(h.Options, 5, "disable_metrics", true)
		s.maybe(h.Options, 20, "sweep_interval", "2s", "700ms")
		all = append(all, h)
	}
	return all
}

// maybe sets an option at times, to one of several values.
func (s *scenario) maybe(options map[string]any, percent int, name string, values ...any) {
	if s.chance(percent) {
		options[name] = pick(s, values...)
	}
}

// makeZone is a zone of any options, some of which don't go together.
func (s *scenario) makeZone() zone {
	z := zone{}
	algorithm := pick(s, "sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket")
	z["algorithm"] = algorithm
	z["limits"] = s.makeLimits()
	z["key"] = pick(s, "{http.request.header.K}", "{http.request.header.K}", "{http.request.header.K}", "{client_ip}", "{client_ip}", "all")
	s.maybe(z, 4, "key", "{client_ip}{http.request.header.K}")
	switch algorithm {
	case "sliding_window":
		s.maybe(z, 30, "sub_windows", 2, 5)
	case "token_bucket", "gcra":
		s.maybe(z, 50, "burst", 1, 2, 4)
	case "leaky_bucket":
		z["queue"] = pick(s, 0, 1, 2, 4)
	}
	if s.withRedis {
		s.maybe(z, 85, "sync_rate", "strict", "strict", "200ms", "300ms", "1s", "local")
	}
	if algorithm != "leaky_bucket" && s.chance(25) {
		z["count_responses"] = pick[any](s, map[string]any{"status_code": []int{401, 403}}, map[string]any{"status_code": []int{4}}, map[string]any{"headers": map[string][]string{"Wrong": {"*"}}, "status_code": []int{2}})
	} else {
		s.maybe(z, 20, "count_denied", true)
	}
	switch {
	case s.chance(20) && algorithm != "leaky_bucket" && z["count_denied"] == nil:
		z["reserve"] = []any{map[string]any{"share": pick(s, 0.2, 0.5), "match": []any{headerMatch("X-Plan", "paid")}}}
		if s.chance(70) {
			z["key"] = "all"
		}
	case s.chance(30):
		ban := map[string]any{"for": pick(s, "1s", "3s", "20s")}
		if s.chance(50) {
			ban["after"] = map[string]any{"max_events": pick(s, 1, 2, 3), "window": pick(s, "2s", "10s")}
		}
		z["ban"] = ban
	}
	s.makeCosts(z)
	s.makeMore(z)
	return z
}

// makeCosts has requests cost more than one unit at times, as they say or as their responses do.
func (s *scenario) makeCosts(z zone) {
	units := func(amount any) []any { return []any{map[string]any{"units": amount}} }
	if s.chance(20) {
		z["cost"] = units(pick[any](s, 2, 3, "{http.request.header.Units}"))
		s.maybe(z, 60, "cost_default", 2, 0)
	}
	if z["algorithm"] != "leaky_bucket" && z["count_denied"] == nil && s.chance(20) {
		z["response_cost"] = []any{pick(s, map[string]any{"header": "X-Cost"}, map[string]any{"json": []string{"cost"}}, map[string]any{"bytes": true, "factor": 0.01})}
		s.maybe(z, 50, "response_cost_default", 1, 4)
	}
}

// makeMore adds options that go with all others, or take the place of limits.
func (s *scenario) makeMore(z zone) {
	s.maybe(z, 25, "concurrent", 1, 2, 3)
	s.maybe(z, 8, "bandwidth", "1kB/s", "4kB/s")
	if (z["concurrent"] != nil || z["bandwidth"] != nil) && z["ban"] == nil && z["reserve"] == nil && z["count_responses"] == nil && s.chance(25) {
		for _, option := range []string{"limits", "algorithm", "burst", "sub_windows", "queue", "count_denied", "cost", "cost_default", "response_cost", "response_cost_default"} {
			delete(z, option)
		}
	}
	s.maybe(z, 30, "enforce", 0, 0.3, 0.7, 0.5)
	s.maybe(z, 50, "empty_key", "client_ip", "skip", "share", "deny")
	s.maybe(z, 50, "on_redis_loss", "local", "divide", "allow", "deny")
	s.maybe(z, 20, "early_sync", false)
	s.maybe(z, 12, "max_keys", 1, 2, 3)
	s.maybe(z, 10, "ipv6_prefix", 32, 128)
	s.maybe(z, 10, "ipv4_prefix", 24, 16)
	s.maybe(z, 15, "headers", []string{"kong"}, []string{"off"}, []string{"ietf", "github"})
	s.maybe(z, 15, "match", []any{headerMatch("X-Match", "yes")}, []any{map[string]any{"client_ip": map[string]any{"ranges": []string{"203.0.113.0/24"}}}})
	s.maybe(z, 10, "except", []any{headerMatch("X-Except", "yes")}, []any{map[string]any{"client_ip": map[string]any{"ranges": []string{"192.0.2.0/24"}}}})
}

func headerMatch(name, value string) map[string]any {
	return map[string]any{"header": map[string][]string{name: {value}}}
}

// makeLimits are one limit to three.
func (s *scenario) makeLimits() (all []any) {
	windows := []string{"1s", "1700ms", "5s", "10s", "1m", "1h"}
	at := s.random.IntN(3)
	for range pick(s, 1, 1, 1, 2, 3) {
		limit := map[string]any{"window": windows[at], "max_events": s.makeNumber(len(all))}
		if s.chance(12) {
			limit["default"], limit["max_events"] = s.makeNumber(len(all)), "{http.request.header.Limit}"
		}
		all = append(all, limit)
		if at += 1 + s.random.IntN(2); at >= len(windows) {
			break
		}
	}
	return all
}

func (s *scenario) makeNumber(place int) int {
	if s.chance(2) {
		return 0
	}
	return pick(s, 1, 2, 2, 3, 3, 4, 5, 7) + place
}

// change changes some numbers and options for a reload.
func (s *scenario) change() (all []handler) {
	for i, h := range s.handlers {
		next := handler{Zones: make(map[string]zone), Options: maps.Clone(h.Options)}
		for _, name := range h.names() {
			z := maps.Clone(h.Zones[name])
			switch n := s.random.IntN(100); {
			case n < 50 && z["limits"] != nil:
				var limits []any
				for j, limit := range z["limits"].([]any) {
					l := maps.Clone(limit.(map[string]any))
					if _, number := l["max_events"].(int); number {
						l["max_events"] = s.makeNumber(j)
					}
					limits = append(limits, l)
				}
				z["limits"] = limits
			case n < 60:
				z = s.makeZone()
			case n < 70:
				s.maybe(z, 60, "enforce", 0, 0.5, 1)
				s.maybe(z, 60, "on_redis_loss", "local", "divide", "allow", "deny")
				if s.withRedis {
					s.maybe(z, 60, "sync_rate", "strict", "200ms", "local")
				}
			case n < 75:
				name = fmt.Sprintf("%s-%d", name[:3], s.loads)
			case n < 78 && len(h.Zones) > 1:
				continue
			}
			next.Zones[name] = z
		}
		if s.chance(10) {
			next.Zones[fmt.Sprintf("z%d%d", i, 5+s.loads%5)] = s.makeZone()
		}
		all = append(all, next)
	}
	return all
}

// step is one thing that happens.
func (s *scenario) step(app string) {
	switch n := s.random.IntN(100); {
	case n < 50:
		s.randomRequest()
	case n < 58:
		key, ends := s.randomChange(), pick(s, ways...)
		for range 2 + s.random.IntN(5) {
			s.request("203.0.113.9", ends, false, key...)
		}
	case n < 66:
		s.endOne()
	case n < 80:
		s.pause(pick[time.Duration](s, 10, 120, 450, 900, 1100, 2500, 5200)*time.Millisecond + time.Duration(s.random.IntN(900))*time.Microsecond)
	case n < 86:
		s.operate()
	case n < 89:
		s.load(app, s.change())
	case n < 90:
		s.look()
	default:
		s.trouble()
	}
}

// randomChange is what a request of a random client has.
func (s *scenario) randomChange() (all []func(*http.Request)) {
	set := func(percent int, name string, values ...string) {
		if s.chance(percent) {
			all = append(all, header(name, pick(s, values...)))
		}
	}
	set(88, "K", "a", "a", "a", "b", "b", "c")
	set(30, "X-Plan", "paid")
	set(80, "X-Match", "yes")
	set(8, "X-Except", "yes")
	set(70, "Limit", "2", "3", "5", "unlimited", "none", "0")
	set(60, "Units", "1", "2", "4", "0", "many")
	set(20, "Error-Route", "yes")
	set(4, "Content-Type", "application/grpc")
	return all
}

// randomRequest is a request of a random client.
func (s *scenario) randomRequest() {
	change := s.randomChange()
	if s.chance(6) {
		change = append(change, inEarlyData)
	}
	ip := pick(s, "203.0.113.9", "203.0.113.9", "203.0.113.9", "192.0.2.1", "2001:db8::1")
	s.request(ip, pick(s, ways...), s.chance(30), change...)
}

// endOne has one of the requests that wait go on, or its client leave.
func (s *scenario) endOne() {
	if len(s.visits) == 0 {
		return
	}
	v := s.visits[max(0, len(s.visits)-1-s.random.IntN(8))]
	if how := pick(s, append(ways, "leave", "leave", "leave")...); how == "leave" {
		v.cancel()
	} else if v.do != nil {
		v.tell(how)
	}
	s.pause(3700 * time.Microsecond)
}

// keyOf is a key that a zone may have.
func (s *scenario) keyOf(z zone) string {
	switch z["key"] {
	case "all":
		return "all"
	case "{client_ip}":
		return pick(s, "203.0.113.9", "203.0.113.9", "192.0.2.1", "2001:db8::1")
	}
	return pick(s, keys...)
}

// operate is something that an operator does.
func (s *scenario) operate() {
	h := pick(s, s.handlers...)
	if len(h.Zones) == 0 {
		return
	}
	name := pick(s, h.names()...)
	key, limit := s.keyOf(h.Zones[name]), fmt.Sprint(s.random.IntN(6))
	if limits, ok := h.Zones[name]["limits"].([]any); ok {
		limit += "/" + pick(s, limits...).(map[string]any)["window"].(string)
	}
	target := fmt.Sprintf(`{"zone":%q,"key":%q`, name, key)
	const overrides, enforcement = "/rate_limit/overrides", "/rate_limit/enforcement"
	switch s.random.IntN(9) {
	case 0:
		s.admin(http.MethodPost, overrides, target+`,"limit":"deny","for":"5s"}`)
	case 1:
		s.admin(http.MethodPost, overrides, target+`,"limit":"unlimited","for":"20s"}`)
	case 2:
		s.admin(http.MethodPost, overrides, target+fmt.Sprintf(`,"limit":%q}`, limit))
	case 3:
		s.admin(http.MethodDelete, overrides, target+`}`)
	case 4:
		s.admin(http.MethodPost, "/rate_limit/reset", target+`}`)
	case 5:
		s.admin(http.MethodPost, "/rate_limit/reset", fmt.Sprintf(`{"zone":%q,"all":true}`, name))
	case 6:
		s.admin(http.MethodPost, enforcement, fmt.Sprintf(`{"zone":%q,"share":%g,"for":"10s"}`, name, pick(s, 0, 0.5, 1)))
	case 7:
		s.admin(http.MethodDelete, enforcement, fmt.Sprintf(`{"zone":%q}`, name))
	case 8:
		s.admin(http.MethodPost, "/rate_limit/explain", target+`}`)
	}
}

// trouble is something that Redis or another node does.
func (s *scenario) trouble() {
	more := int64(1 + s.random.IntN(3))
	kind := pick(s, "cells", "slots", "heartbeat")
	fault := pick(s, "refused", "refused", "silent", "lost", "forgets")
	switch {
	case s.redis == nil:
		s.pause(time.Duration(more) * 333 * time.Millisecond)
	case s.redis.state() != "up":
		s.recover()
	case s.chance(65):
		s.redis.echo(kind, more)
		s.pause(2900 * time.Microsecond)
	case fault == "forgets":
		s.note("redis forgets")
		s.redis.server.FlushAll()
		s.pause(2100 * time.Microsecond)
	default:
		s.note("redis: %s", fault)
		s.redis.set(fault)
		s.pause(pick[time.Duration](s, 2, 150, 1300)*time.Millisecond + 700*time.Microsecond)
	}
}
