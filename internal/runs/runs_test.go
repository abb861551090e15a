// Package runs executes the protocol runs in testdata: what nodes and Redis do to each other, step
// by step, as text that can be read without the code. Tables, loops, clients and scripts are the
// real ones, over a Redis in memory and in virtual time.
package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

func TestRuns(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d runs, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				for _, wrong := range execute(t, string(text)) {
					t.Errorf("%s:%s", file, wrong)
				}
			})
		})
	}
}

// What a line says is compared: each of these is otherwise.
//
// bubble: the text is run there.
func TestARunThatIsOtherwiseFails(t *testing.T) {
	text := `zone: limit 3/1m, sync 1s, responses settle, concurrent 1
0s A starts
0s A admits 4 of alice
0s A denies 1 of alice
0s A reserves 3 of alice
0s A knows of alice: own 2, others 0
0s A knows of alice: own 3, others 1
0s A bans alice for 1m
0s A bans alice for 1m
0s A has alice banned for 2m
0s A has no slot of alice
0s A gives a slot of alice
2s redis: cell of alice: A "@1s 2 w0 0", sum "3 0 @4m1s w0 0"
2s redis: slots of alice: nothing
2s redis: ban of alice: @1s 60000000
2s A has sent 7 counts
2s A asks redis for alice: no answer
2s B is killed
2s A is no more
1s redis: FLUSHALL
`
	want := []int{3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
	synctest.Test(t, func(t *testing.T) {
		var got []int
		for _, wrong := range execute(t, text) {
			line, _, _ := strings.Cut(wrong, ":")
			got = append(got, int(number(line)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("lines %v are otherwise, want %v", got, want)
		}
	})
}

// settings are the zone of all nodes.
type settings struct {
	limit    int64
	window   time.Duration
	rate     time.Duration // 0 where Redis decides
	reserves bool
	slots    int64
}

// A run is one that is being executed.
type run struct {
	settings
	store *store
	began time.Time
	nodes map[string]*node
	all   []*node // those that were killed included
}

// execute does what a text says, and returns what was otherwise, with the number of its line.
func execute(t *testing.T, text string) (wrong []string) {
	clock.Advance(time.Duration(time.Now().UnixNano() - clock.Now()))
	r := &run{store: startStore(t), began: time.Now(), nodes: map[string]*node{}}
	defer r.end()
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := r.line(line); err != nil {
			wrong = append(wrong, fmt.Sprintf("%d: %s: %v", i+1, line, err))
		}
	}
	return wrong
}

func (r *run) end() {
	for _, n := range r.all {
		n.end()
	}
}

var zoneLine = regexp.MustCompile(`^zone: limit (\d+)/(\S+), sync (\S+?)(, responses settle)?(?:, concurrent (\d+))?$`)

// line executes a line: the settings, or an instant and what happens then.
func (r *run) line(line string) (err error) {
	if m := zoneLine.FindStringSubmatch(line); m != nil {
		r.limit, r.slots, r.reserves = number(m[1]), number(m[5]), m[4] != ""
		if m[3] != "strict" {
			r.rate, err = time.ParseDuration(m[3])
		}
		if err == nil {
			r.window, err = time.ParseDuration(m[2])
		}
		return err
	}
	instant, what, _ := strings.Cut(line, " ")
	at, err := time.ParseDuration(instant)
	if err != nil {
		return err
	}
	if at < time.Since(r.began) {
		return fmt.Errorf("it is %v already", time.Since(r.began))
	}
	time.Sleep(time.Until(r.began.Add(at)))
	synctest.Wait()
	what = strings.TrimSpace(what)
	for _, s := range statements {
		if m := s.form.FindStringSubmatch(what); m != nil {
			return s.do(r, m[1:])
		}
	}
	return errors.New("no run can say this")
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // the forms of lines have digits there, or nothing
	return n
}

// A statement is a form of what a line says. A word in capitals stands for one that differs.
type statement struct {
	words string
	form  *regexp.Regexp
	do    func(r *run, words []string) error
}

// statements are all that a run can say.
var statements = []statement{
	say("NODE starts", func(r *run, w []string) error {
		n := startNode(w[0], r.store, r.settings)
		r.nodes[w[0]], r.all = n, append(r.all, n)
		return nil
	}),
	about("NODE is killed", func(_ *run, n *node, _ []string) error {
		n.wire.set(func() { n.wire.cut = true })
		return nil
	}),
	about("NODE admits NUMBER of KEY", func(_ *run, n *node, w []string) error {
		return expect(n.take(w[1], number(w[0]), 0).Allowed, true)
	}),
	about("NODE denies NUMBER of KEY", func(_ *run, n *node, w []string) error {
		return expect(n.take(w[1], number(w[0]), 0).Allowed, false)
	}),
	about("NODE reserves NUMBER of KEY", func(_ *run, n *node, w []string) error {
		return expect(n.reserve(w[1], int(number(w[0]))), true)
	}),
	about("responses of NODE refund NUMBER of KEY", func(_ *run, n *node, w []string) error {
		n.settle(w[1], int(number(w[0])), true)
		return nil
	}),
	about("responses of NODE keep NUMBER of KEY", func(_ *run, n *node, w []string) error {
		n.settle(w[1], int(number(w[0])), false)
		return nil
	}),
	about("NODE knows of KEY: own NUMBER, others NUMBER", func(_ *run, n *node, w []string) error {
		own, others := n.counts(w[0])
		return expect(fmt.Sprintf("own %d, others %d", own, others), fmt.Sprintf("own %s, others %s", w[1], w[2]))
	}),
	about("NODE asks redis for KEY: TEXT", func(_ *run, n *node, w []string) error { return expect(n.ask(w[0]), w[1]) }),
	about("NODE bans KEY for TEXT", func(_ *run, n *node, w []string) error {
		length, err := time.ParseDuration(w[1])
		if err == nil {
			err = expect(n.bans.Begin(keys.IDOf([]byte(w[0])), clock.Now(), length), length)
		}
		return err
	}),
	about("NODE has KEY banned for TEXT", func(_ *run, n *node, w []string) error {
		return expect(n.bans.Rest(keys.IDOf([]byte(w[0])), clock.Now()).String(), w[1])
	}),
	about("NODE gives a slot of KEY", func(r *run, n *node, w []string) error { return expect(n.takeSlot(w[0], r.slots), true) }),
	about("NODE has no slot of KEY", func(r *run, n *node, w []string) error { return expect(n.takeSlot(w[0], r.slots), false) }),
	about("a slot of KEY is free again on NODE", func(_ *run, n *node, w []string) error {
		n.freeSlot(w[0])
		return nil
	}),
	about("an operator resets KEY on NODE", func(_ *run, n *node, w []string) error { return n.reset(w[0]) }),
	about("the next KIND of NODE is lost", fated(lost)),
	about("the reply to the next KIND of NODE is lost", fated(unanswered)),
	about("the next KIND of NODE arrives twice", fated(twice)),
	about("the next KIND of NODE arrives TEXT late", func(r *run, n *node, w []string) error {
		delay, err := time.ParseDuration(w[1])
		n.wire.set(func() { n.wire.next[w[0]], n.wire.delay = late, delay })
		return err
	}),
	about("NODE has sent NUMBER KINDs", func(_ *run, n *node, w []string) error {
		n.wire.mu.Lock()
		defer n.wire.mu.Unlock()
		return expect(int64(n.wire.sent[w[1]]), number(w[0]))
	}),
	say("redis: FLUSHALL", func(r *run, _ []string) error { r.store.FlushAll(); return nil }),
	say("the clock of redis steps by TEXT", func(r *run, w []string) error {
		by, err := time.ParseDuration(w[0])
		r.store.step(by)
		return err
	}),
	say("redis: WHAT of KEY: TEXT", func(r *run, w []string) error { return expect(r.stored(w[0], w[1]), w[2]) }),
}

const kinds = `(count|ban|slot)`

// say makes a statement of a form in words.
func say(form string, do func(*run, []string) error) statement {
	pattern := form
	for word, is := range map[string]string{
		"NODE": `([A-Z])`, "KEY": `(\w+)`, "NUMBER": `(\d+)`, "TEXT": `(.+)`, "WHAT": `(\w.*?)`,
		"KIND": kinds, "KINDs": kinds + "s",
	} {
		pattern = regexp.MustCompile(`\b`+word+`\b`).ReplaceAllLiteralString(pattern, is)
	}
	return statement{form, regexp.MustCompile("^" + pattern + "$"), do}
}

var nodeName = regexp.MustCompile(`^[A-Z]$`)

// about is say for a form with a node, which the other words come without.
func about(form string, do func(*run, *node, []string) error) statement {
	return say(form, func(r *run, words []string) error {
		at := slices.IndexFunc(words, nodeName.MatchString)
		n := r.nodes[words[at]]
		if n == nil {
			return fmt.Errorf("there is no node %s", words[at])
		}
		return do(r, n, slices.Delete(slices.Clone(words), at, at+1))
	})
}

func fated(f fate) func(*run, *node, []string) error {
	return func(_ *run, n *node, w []string) error {
		n.wire.set(func() { n.wire.next[w[0]] = f })
		return nil
	}
}

func expect[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

// stored returns what Redis has of a key: fields and their values in order, or "nothing". What is
// cell, ban or slots.
func (r *run) stored(what, key string) string {
	r.store.catchUp()
	name := r.keyOf(what, keys.IDOf([]byte(key)))
	if text, err := r.store.Get(name); err == nil {
		return r.readable(text)
	}
	fields, err := r.store.HKeys(name)
	if err != nil {
		return "nothing"
	}
	slices.SortFunc(fields, func(a, b string) int { return strings.Compare(r.nameOf(a), r.nameOf(b)) })
	var all []string
	for _, field := range fields {
		all = append(all, r.nameOf(field)+" "+strconv.Quote(r.readable(r.store.HGet(name, field))))
	}
	return strings.Join(all, ", ")
}

// keyOf is the name of a key in Redis.
func (r *run) keyOf(what string, id keys.ID) string {
	space := ratesync.NewKeyspace(namespace)
	switch what {
	case "ban":
		return space.Zone(zone, "ban").Of(id)
	case "slots":
		return space.Zone(zone, "concurrent").Of(id)
	}
	return space.Cells(ratesync.SpecOf(zone, r.all[0].params)).Of(id)
}

// nameOf is what a run calls a field: the name of its node.
func (r *run) nameOf(field string) string {
	for _, n := range r.all {
		if field == n.sync.Node() || field == n.gaugesSync.Node() {
			return n.name
		}
	}
	return field
}

var (
	instants = regexp.MustCompile(`\b94668\d{7}(\d{3})?\b`)
	whole    = regexp.MustCompile(`\b\d{8}\b`)
)

// readable writes instants of the day on which virtual time begins as the milliseconds since, and
// the numbers of windows as w0 and so on.
func (r *run) readable(text string) string {
	text = instants.ReplaceAllStringFunc(text, func(digits string) string {
		at := time.UnixMilli(number(digits))
		if len(digits) > 12 {
			at = time.UnixMicro(number(digits))
		}
		return "@" + at.Sub(r.began).Truncate(time.Millisecond).String()
	})
	return whole.ReplaceAllStringFunc(text, func(digits string) string {
		return fmt.Sprint("w", number(digits)-r.began.UnixNano()/int64(r.window))
	})
}
