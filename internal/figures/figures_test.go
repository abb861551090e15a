package figures

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// searched are the lines that these tests search for: alternatives, a path that begins another one,
// and one that nothing leads to.
var searched = [][]string{{"usage.total", "a.usage.total"}, {"usage"}, {"a.b.a"}, {"é", "a b"}, {"none.of.them"}}

var searchedPaths = func() *Paths {
	p, err := NewPaths(searched)
	if err != nil {
		panic(err)
	}
	return p
}()

// read has a body scanned, which is cut at some places.
func read(f Format, body string, cuts ...int) *Scanner {
	s := searchedPaths.Scanner(f)
	s.read([]byte(body), cuts...)
	return s
}

// read has a Scanner read a body, and nothing else.
func (s *Scanner) read(body []byte, cuts ...int) {
	s.end()
	for line := range s.found {
		s.found[line] = -1
	}
	s.framing, s.Done, s.Bad, s.TooDeep = framing{}, false, false, false
	from := 0
	for _, cut := range cuts {
		_, _ = s.Write(body[from:cut])
		from = cut
	}
	_, _ = s.Write(body[from:])
}

// everywhere are the cuts between all bytes of a body.
func everywhere(body string) (cuts []int) {
	for i := 1; i < len(body); i++ {
		cuts = append(cuts, i)
	}
	return cuts
}

// A figure is the greatest number of a line.
type figure struct {
	greatest float64
	ok       bool
}

// An oracle is what encoding/json finds in a body.
type oracle struct {
	found       []figure
	failed, bad bool
}

func newOracle() *oracle { return &oracle{found: make([]figure, len(searched))} }

// A parent is a container that is open: what leads to its values, and whether that has keys.
type parent struct {
	path   string
	object bool
}

// values reads values one after the other, up to an error or to the end.
func (o *oracle) values(body string) {
	var open []parent
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	at, isKey := "", false
	for o.failed = false; ; {
		before := d.InputOffset()
		token, err := d.Token()
		if err != nil {
			o.failed = !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
			break
		}
		after := d.InputOffset()
		raw := body[before:after]
		switch token := token.(type) {
		case json.Delim:
			if token == '{' || token == '[' {
				if len(open) == maxDepth {
					o.failed = true
				}
				open = append(open, parent{at, token == '{'})
				isKey = token == '{'
			} else {
				open = open[:len(open)-1]
			}
		case json.Number:
			if len(token) > maxNumber {
				o.failed = true
				break
			}
			if after == int64(len(body)) {
				return // more of it may come
			}
			if !strings.ContainsAny(body[after:after+1], " \t\r\n,]}") {
				o.failed = true
				break
			}
			o.number(at, string(token))
		case string:
			if isKey {
				if at = open[len(open)-1].path + "." + token; strings.Contains(raw, `\`) || strings.Contains(token, ".") {
					at = "?"
				}
				isKey = false
				continue
			}
			o.other(at)
		case bool:
			o.other(at)
		}
		if o.failed {
			break
		}
		if token == json.Delim('{') || token == json.Delim('[') {
			continue
		}
		at, isKey = "", false
		if len(open) > 0 {
			at = open[len(open)-1].path
			isKey = open[len(open)-1].object
		}
	}
	o.bad = o.bad || o.failed
}

func (o *oracle) isAt(line int, at string) bool {
	for _, path := range searched[line] {
		if at == "."+path {
			return true
		}
	}
	return false
}

func (o *oracle) number(at, text string) {
	if text[0] == '-' {
		o.other(at)
		return
	}
	n, _ := strconv.ParseFloat(text, 64)
	for line := range searched {
		if o.isAt(line, at) {
			o.found[line] = figure{max(o.found[line].greatest, n), true}
		}
	}
}

func (o *oracle) other(at string) {
	for line := range searched {
		o.bad = o.bad || o.isAt(line, at)
	}
}

// compare compares a Scanner with what encoding/json has found.
func (o *oracle) compare(t *testing.T, s *Scanner, body string) {
	t.Helper()
	for line := range searched {
		if n, ok := s.Number(line); n != o.found[line].greatest || ok != o.found[line].ok {
			t.Fatalf("%q: line %d has %g, %t; encoding/json finds %g, %t", body, line, n, ok, o.found[line].greatest, o.found[line].ok)
		}
	}
	if s.Bad != o.bad {
		t.Fatalf("%q: Bad is %t, with encoding/json %t", body, s.Bad, o.bad)
	}
}

// A writer makes up values as text.
type writer struct {
	*rand.Rand
	b strings.Builder
}

func (w *writer) one(of ...string) { w.b.WriteString(of[w.IntN(len(of))]) }

func (w *writer) space() {
	if w.IntN(4) == 0 {
		w.one(" ", "\n", "\t", "  ", "\r", " \n ")
	}
}

func (w *writer) number() {
	w.one("", "", "", "", "-")
	switch w.IntN(12) {
	case 0:
		w.one("0")
	case 1:
		fmt.Fprint(&w.b, 1+w.Uint64()>>w.IntN(64))
	case 2: // more digits than are kept
		w.one("1", "9", "45")
		for range w.IntN(60) {
			w.one("0", "0", "7", "9", "5")
		}
	default:
		fmt.Fprint(&w.b, 1+w.IntN(1000))
	}
	if w.IntN(8) == 0 {
		w.b.WriteByte('.')
		for range 1 + w.IntN(30) {
			w.one("0", "0", "0", "3", "8")
		}
	}
	if w.IntN(5) == 0 {
		w.one("e", "E")
		w.one("", "+", "-")
		w.one("0", "1", "01", "7", "21", "400", "99999999999999999999999")
	}
}

func (w *writer) text() {
	w.one(`""`, `"usage"`, `"{\"usage\":7}"`, `"\\"`, `"\u00e9\n"`, `"a [1, 2] b"`, `"\ud83d\ude00"`, `"é ü"`, `"a long text of which nothing is to be found"`)
}

func (w *writer) value(depth int) {
	w.space()
	defer w.space()
	switch kind := w.IntN(10); {
	case depth == 0 || kind < 3:
		w.number()
	case kind == 3:
		w.text()
	case kind == 4:
		w.one("true", "false", "null", "null")
	case kind < 7:
		w.b.WriteByte('[')
		w.space()
		for i := range w.IntN(4) {
			if i > 0 {
				w.b.WriteByte(',')
			}
			w.value(depth - 1)
		}
		w.b.WriteByte(']')
	default:
		w.object(depth)
	}
}

func (w *writer) object(depth int) {
	w.b.WriteByte('{')
	w.space()
	for i := range w.IntN(4) {
		if i > 0 {
			w.b.WriteByte(',')
		}
		w.space()
		w.one(`"usage"`, `"usage"`, `"total"`, `"total"`, `"a"`, `"a"`, `"b"`, `"\u0061"`, `"us\u0061ge"`, `"é"`, `"a b"`, `"usag"`, `"usages"`, `""`, `"\""`, `"a.usage"`)
		w.space()
		w.b.WriteByte(':')
		w.value(depth - 1)
	}
	w.b.WriteByte('}')
}

// some makes up a body of some values.
func (w *writer) some() string {
	w.b.Reset()
	for range 1 + w.IntN(8)/7 {
		w.object(1 + w.IntN(3))
		w.space()
	}
	return w.b.String()
}

// What the scanner finds in random values is what encoding/json finds, cut at every byte: at each
// of them alone, and at all at once.
func TestRandomValues(t *testing.T) {
	t.Parallel()
	w := &writer{Rand: rand.New(rand.NewPCG(1, 0))}
	found, values, s := 0, redistest.Times(10_000, 50_000), searchedPaths.Scanner(JSON)
	for range values {
		body := w.some()
		o := newOracle()
		if o.values(body); o.failed {
			t.Fatalf("%q is not valid", body)
		}
		text := []byte(body)
		for i := range text {
			s.read(text, i)
			o.compare(t, s, body)
		}
		s.read(text, everywhere(body)...)
		o.compare(t, s, body)
		for _, f := range o.found {
			if f.ok {
				found++
			}
		}
	}
	if found < values/5 {
		t.Fatalf("only %d numbers were found, so this test proves little", found)
	}
}

// values has the data of events searched by encoding/json.
func (o *oracle) events(body string) (done bool) {
	text := strings.ReplaceAll(strings.ReplaceAll(body, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(text, "\n")
	var data []string
	hasData, ends := false, false
	for i, line := range lines {
		isLast := i == len(lines)-1 // more of it may come
		if line == "" && !isLast {
			o.values(strings.Join(data, "\n"))
			done = done || hasData && ends
			data, hasData, ends = nil, false, false
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if name == "event" && ok && !isLast {
			ends = slices.Contains(lastEvents, strings.TrimPrefix(value, " "))
		}
		hasData = hasData || name == "data" && !isLast
		if name != "data" || !ok && isLast {
			continue
		}
		value = strings.TrimPrefix(value, " ")
		if value == "[DONE]" && len(data) == 0 && !isLast {
			done = true
			continue
		}
		if isLast && value == "" && len(data) == 0 {
			continue
		}
		if isLast && ok && line == "data:" {
			continue // what is between two lines is not known yet
		}
		data = append(data, value)
	}
	o.values(strings.Join(data, "\n"))
	return done
}

// stream makes up a stream of events, some of which have errors.
func (w *writer) stream() string {
	var all strings.Builder
	ends := []string{"\n", "\n", "\r\n", "\r"}[w.IntN(4)]
	for range 1 + w.IntN(4) {
		body := w.some()
		if w.IntN(4) == 0 {
			body = body[:w.IntN(len(body))]
		}
		if w.IntN(8) == 0 {
			body = []string{"[DONE]", "[DONE] ", "[DONE", "hello", `{"usage":0x10}`, `{"usage":1}}{"a":`}[w.IntN(6)]
		}
		for _, field := range []string{"event: x", "event: message_stop", "event:response.completed", "event: response.completed.", ": comment", "id", "retry:1", "dat: 1", "datax:{}", `usage: {"usage":9}`} {
			if w.IntN(8) == 0 {
				all.WriteString(field + ends)
			}
		}
		for line := range strings.SplitSeq(strings.ReplaceAll(body, "\r", "\n"), "\n") {
			all.WriteString("data:")
			if w.IntN(3) > 0 || strings.HasPrefix(line, " ") {
				all.WriteByte(' ')
			}
			all.WriteString(line + ends)
		}
		all.WriteString(ends)
	}
	return all.String()
}

// A stream of events is cut at every byte, and its data have values over several lines, errors and
// [DONE] among them.
func TestRandomEvents(t *testing.T) {
	t.Parallel()
	w := &writer{Rand: rand.New(rand.NewPCG(2, 0))}
	s := searchedPaths.Scanner(Events)
	for range 3000 {
		body := w.stream()
		o := newOracle()
		done := o.events(body)
		text := []byte(body)
		for i := range text {
			s.read(text, i)
			if o.compare(t, s, body); s.Done != done {
				t.Fatalf("%q: Done is %t, want %t", body, s.Done, done)
			}
		}
		s.read(text, everywhere(body)...)
		o.compare(t, s, body)
	}
}

// Each line of ndjson is a value, or an error of its own.
func TestRandomLines(t *testing.T) {
	t.Parallel()
	w := &writer{Rand: rand.New(rand.NewPCG(3, 0))}
	s := searchedPaths.Scanner(Lines)
	for range 3000 {
		var body strings.Builder
		o := newOracle()
		for range 1 + w.IntN(4) {
			line := strings.ReplaceAll(w.some(), "\n", " ")
			if w.IntN(4) == 0 {
				line = line[:w.IntN(len(line))]
			}
			o.values(line)
			body.WriteString(line)
			body.WriteByte('\n')
		}
		text := []byte(body.String())
		for i := range text {
			s.read(text, i)
			o.compare(t, s, body.String())
		}
	}
}

// deep is a number in n containers.
func deep(n int) string {
	return strings.Repeat("[", n-1) + `{"usage":7}` + strings.Repeat("]", n-1)
}

var nines = strings.Repeat("9", 1000)

var meanings = []struct {
	format Format
	body   string
	usage  string // the number, "" for none
}{
	{JSON, `{"usage":12}`, "12"},
	{JSON, `{"usage":12.50}`, "12.5"},
	{JSON, `{"usage":1.25e2}`, "125"},
	{JSON, `{"usage":12`, ""}, // more nines may come
	{JSON, `{"usage":12 `, "12"},
	{JSON, `{"usage":0x10}`, ""},
	{JSON, `{"usage":012}`, ""},
	{JSON, `{"usage":+1}`, ""},
	{JSON, `{"usage":.5}`, ""},
	{JSON, `{"usage":1.}`, ""},
	{JSON, `{"usage":1e}`, ""},
	{JSON, `{"usage":NaN}`, ""},
	{JSON, `{"usage":Infinity}`, ""},
	{JSON, `{"usage":-1}`, ""},
	{JSON, `{"usage":-0}`, ""},
	{JSON, `{"usage":"12"}`, ""},
	{JSON, `{"usage":null}`, ""},
	{JSON, `{"usage":true}`, ""},
	{JSON, `{"usage":{}}`, ""},
	{JSON, `{"usage":1e999}`, "+Inf"},
	{JSON, `{"usage":` + nines[:254] + `e9}`, "1e+263"},
	{JSON, `{"usage":` + nines[:251] + `e-250}`, "10"},
	{JSON, `{"usage":0.` + strings.Repeat("0", 240) + `1e243}`, "100"},
	{JSON, `{"usage":` + nines[:256] + `}`, "1e+256"},
	{JSON, `{"usage":` + nines[:257] + `}`, ""}, // longer than it is read
	{JSON, `{"usage":1,"x":` + nines + `,"usage":3}`, "1"},
	{JSON, `{"usage":1e-99999999999999999999999}`, "0"},
	{JSON, `{"usage":9007199254740993.` + strings.Repeat("0", 50) + `1}`, "9.007199254740994e+15"},
	{JSON, `{"x":"\u123","usage":3}`, ""},
	{JSON, `{"x":"\u123g","usage":3}`, ""},
	{JSON, `{"x":"\x","usage":3}`, ""},
	{JSON, `{"\u0061usage":3,"usa\nge":4}`, ""},
	{JSON, `{"x":[1},"usage":3}`, ""},
	{JSON, `{"x":{"y":1],"usage":3}`, ""},
	{JSON, `{"usage":5,"usage":3}`, "5"},
	{JSON, `{"usage":3,"usage":5}`, "5"},
	{JSON, `{"usage":[3,[5,4],{"usage":9}]}`, "5"},
	{JSON, `[[{"usage":3}],{"usage":2}]`, "3"},
	{JSON, `{"a":{"usage":3}}`, ""},
	{JSON, `{"us\u0061ge":3}`, ""},
	{JSON, `"{\"usage\":3}"`, ""},
	{JSON, `{"x":"\"usage\":3,","usage" : 4}`, "4"},
	{JSON, `{"usage":3}{"usage":4} {"usage":2}`, "4"},
	{JSON, `{"usage":3}x{"usage":4}`, "3"}, // nothing after an error
	{JSON, `{"usage":3}` + "\n" + `{"usage":}` + "\n" + `{"usage":4}`, "3"},
	{JSON, deep(512), "7"},
	{JSON, deep(513), ""},
	{JSON, "data: {\"usage\":3}\n\n", ""},
	{Lines, "{\"usage\":3}\n{\"usage\":}\n{\"usage\":4}\n", "4"},
	{Lines, "{\"usage\":\n3}\n", ""},
	{Lines, "[[[\n{\"usage\":4}\r\n", "4"},
	{Events, "data: {\"usage\":3}\n\n", "3"},
	{Events, "data:{\"usage\":3}\r\n\r\n", "3"},
	{Events, "data:  {\"usage\":3}\r\r", "3"},
	{Events, "data: {\"usage\":3}", "3"}, // and the client has left
	{Events, "data: {\"usage\":\ndata: 3}\n\n", "3"},
	{Events, "data: {\"usage\":\r\ndata\r\ndata: 3}\r\n\r\n", "3"},
	{Events, "data: {\"usage\":\n\ndata: 3}\n\n", ""},
	{Events, "data: {\"usage\":1\ndata: 3}\n\n", "1"},
	{Events, "data: {\"us\ndata: age\":3}\n\n", ""},
	{Events, "data: not JSON\ndata: {\"usage\":3}\n\ndata: {\"usage\":2}\n\n", "2"},
	{Events, "event: usage\ndata: {\"usage\":3}\nid: 7\n\n", "3"},
	{Events, ": {\"usage\":3}\nusage: {\"usage\":3}\ndata {\"usage\":3}\n\n", ""},
	{Events, "data: {\"usage\":null}\n\ndata: {\"usage\":0}\n\ndata: {\"usage\":4}\n\ndata: [DONE]\n\n", "4"},
	{Events, "{\"usage\":3}\n", ""},
	{JSON, "\xef\xbb\xbf{\"usage\":3}", "3"},
	{Lines, "\xef\xbb\xbf{\"usage\":3}\n", "3"},
	{Events, "\xef\xbb\xbfdata: {\"usage\":3}\n\n", "3"},
	{JSON, "\xef\xbb{\"usage\":3}", ""},
	{JSON, "\xef\xbb\xbf\xef\xbb\xbf{\"usage\":3}", ""},
	{Events, "\xef\xbbdata: {\"usage\":3}\n\n", ""},
}

// What each word of the format means.
func TestFigures(t *testing.T) {
	t.Parallel()
	for _, test := range meanings {
		for _, cuts := range [][]int{nil, everywhere(test.body)} {
			got := ""
			if n, ok := read(test.format, test.body, cuts...).Number(1); ok {
				got = strconv.FormatFloat(n, 'g', -1, 64)
			}
			if got != test.usage {
				t.Errorf("%.60q as format %d, %d cuts: %q, want %q", test.body, test.format, len(cuts), got, test.usage)
			}
		}
	}
}

// A body of JSON is done with its object or array, until more of it comes.
func TestJSONIsDone(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"usage":1}`: true, ` {"usage":{"a":[]}} ` + "\n": true, `[{"usage":1}]`: true, `{}`: true, `{} {"usage":1}`: true,
		`{"usage":1`: false, `{"usage":{}`: false, `[{"usage":1}`: false, `{"usage":"}"`: false, `{"usage":1}{`: false, `{"usage":1}[`: false, `{"usage":1}}`: false, `{"usage":1},`: false, `{"usage":1]`: false, `1`: false, ``: false,
	} {
		for _, cuts := range [][]int{nil, everywhere(body)} {
			if s := read(JSON, body, cuts...); s.Done != want {
				t.Errorf("%q, %d cuts: Done is %t, want %t", body, len(cuts), s.Done, want)
			}
			if read(Lines, body, cuts...).Done || read(Events, "data: "+body+"\n\n", cuts...).Done {
				t.Errorf("%q is the end of other values", body)
			}
		}
	}
}

// [DONE] ends a stream where it is all that an event has, and so does an event that is the last one
// by its name, once all of it has passed.
func TestDone(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		"data: [DONE]\n\n": true, "data:[DONE]\r\n": true, "data: {}\n\ndata: [DONE]\r": true,
		"data: [DONE]": false, "data: [DONE].\n": false, "data: [DON\ndata: E]\n\n": false, "data: {}\ndata: [DONE]\n\n": false,
		": [DONE]\n\n": false, "data: {\"a\":\"[DONE]\"}\n\n": false, "data: [DONE\n\n": false, "data: [DONE] \n\n": false,
		"event: message_stop\ndata: {}\n\n": true, "data: {}\nevent:response.completed\r\n\r\n": true, "event: response.incomplete\rdata:\r\r": true, "event: response.failed\ndata: {}\n\ndata: {}\n\n": true,
		"event: message_stop\n\n": false, "event: message_stop\ndata: {}\n": false, "event:  message_stop\ndata: {}\n\n": false, "event: message_stop \ndata: {}\n\n": false, "event: message_sto\nevent: p\ndata: {}\n\n": false,
		"event: message_stop\nevent: ping\ndata: {}\n\n": false, "event: message_stop\n\ndata: {}\n\n": false, "data: event: message_stop\n\n": false, "data: {\"type\":\"message_stop\"}\n\n": false, "event\ndata: {}\n\n": false,
		"event: message_stop" + strings.Repeat("x", 64) + "\ndata: {}\n\n": false, "eventx: message_stop\ndata: {}\n\n": false,
	} {
		for _, cuts := range [][]int{nil, everywhere(body)} {
			s := read(Events, body, cuts...)
			if s.Done != want {
				t.Errorf("%q, %d cuts: Done is %t, want %t", body, len(cuts), s.Done, want)
			}
			if want && strings.Contains(body, "[DONE]") && s.Bad {
				t.Errorf("%q: [DONE] is an error", body)
			}
		}
	}
	if s := read(Events, "data: nothing\n\ndata: [DONE]\n\n"); !s.Bad {
		t.Error("an error before [DONE] was forgotten")
	}
}

// A body that is nested too deeply says so, as what was not read may be greater.
func TestTooDeep(t *testing.T) {
	t.Parallel()
	s := read(Events, "data: {\"usage\":1}\n\ndata: "+strings.Repeat("[", 600)+"\n\ndata: {\"usage\":2}\n\n")
	if n, _ := s.Number(1); !s.TooDeep || !s.Bad || n != 2 {
		t.Errorf("TooDeep is %t, the number %g; want true, and that of the next event", s.TooDeep, n)
	}
}

// What is scanned takes no memory, however long its parts are.
func TestAllocations(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
	for _, f := range []Format{JSON, Lines, Events} {
		for _, parts := range [][2]string{
			{`{"usage":"`, string(long)}, {`{"usage":`, strings.Repeat("1", 1<<16)}, {`{"`, string(long)}, {`{"usage":1e`, strings.Repeat("9", 1<<16)}, {"[", strings.Repeat(`{"usage":17,"a":[1.5,null]},`, 1000)}, {"[", strings.Repeat("[", 600)}, {"", strings.Repeat(" ", 1<<16)}, {"\n\n", strings.Repeat("event: response.completed\ndata: 1\n\n", 1000)},
		} {
			s := searchedPaths.Scanner(f)
			if f == Events {
				_, _ = s.Write([]byte("data: "))
			}
			_, _ = s.Write([]byte(parts[0]))
			piece := []byte(parts[1])
			if n := testing.AllocsPerRun(20, func() { _, _ = s.Write(piece) }); n != 0 {
				t.Errorf("%q and %.20q in format %d: %g allocations for a write, want none", parts[0], parts[1], f, n)
			}
		}
	}
}

func TestNewPaths(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", ".", "a.", ".a", "a..b"} {
		if _, err := NewPaths([][]string{{path}}); err == nil {
			t.Errorf("%q is taken for a path", path)
		}
	}
}

func TestFormatOf(t *testing.T) {
	t.Parallel()
	for contentType, want := range map[string]string{
		"application/json": "0 true", "Application/JSON; charset=utf-8": "0 true", "application/vnd.api+json": "0 true", "application/problem+json ;x": "0 true",
		"text/event-stream": "2 true", "text/event-stream;charset=utf-8": "2 true", "application/x-ndjson": "1 true", "application/ndjson": "1 true", "application/jsonl": "1 true",
		"": "0 false", "text/html": "0 false", "text/plain; x=application/json": "0 false", "application/jsonp": "0 false",
	} {
		f, ok := FormatOf(contentType)
		if got := fmt.Sprint(int(f), ok); got != want {
			t.Errorf("%q is %s, want %s", contentType, got, want)
		}
	}
}

// FuzzScanner compares the scanner with encoding/json: of any bytes, in each format, cut anywhere.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{
		`{"usage":{"total":12},"é":1.5e3}`, `{"a":{"b":[{"a":7}]},"usage":-1}`, `{"us\u0061ge":1}[1,2]"x"`, `{"usage":1,}`, `[1,]`, `{"usage":01}`, `{"usage":tru}`, `{"usage":"` + "\x01" + `"}`,
		"data: {\"usage\":\ndata: 3}\n\n", "data:[DONE]\r\n\r\n: x\rdata\r\r", "{\"usage\":1}\n{\"usage\":\n{\"usage\":2}\n", `{"usage":"\ud800"}`, "{\"\xff\":\"\xff\",\"usage\":9}", byteOrderMark + `{"usage":3}`,
	} {
		f.Add([]byte(s), uint(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, at uint) {
		whole := string(text)
		cut := int(at % uint(len(whole)+1))
		body := strings.TrimPrefix(whole, byteOrderMark)
		if strings.HasPrefix(byteOrderMark, whole) {
			body = "" // more of the mark may come
		}
		o := newOracle()
		o.values(body)
		o.compare(t, read(JSON, whole, cut), body)
		o = newOracle()
		for line := range strings.SplitSeq(body, "\n") {
			o.values(line)
		}
		o.compare(t, read(Lines, whole, cut), body)
		o = newOracle()
		done := o.events(body)
		s := read(Events, whole, cut)
		if o.compare(t, s, body); s.Done != done {
			t.Fatalf("%q: Done is %t, want %t", body, s.Done, done)
		}
	})
}

// JSONPath, as other programs have it, would match nothing.
func TestJSONPathIsRefusedWithTheRightSpelling(t *testing.T) {
	if err := CheckPath("$.usage.total"); err == nil || !strings.HasSuffix(err.Error(), "like usage.total") {
		t.Errorf("CheckPath($.usage.total) = %v, want what to write", err)
	}
	for _, path := range []string{"usage.total", "$type", "a.$.b"} {
		if err := CheckPath(path); err != nil {
			t.Errorf("CheckPath(%s) = %v", path, err)
		}
	}
}
