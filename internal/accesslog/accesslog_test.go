package accesslog

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"net/http"
	"net/http/httptest"
)

// readAll reads a log as Each gives it.
func readAll(t *testing.T, o Options, logs ...string) (all []Record, s Stats) {
	t.Helper()
	var paths []string
	for i, text := range logs {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("log%d", i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	f, err := Open(paths, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s = f.Each(o, func(r *Record) bool {
		all = append(all, *r)
		return true
	})
	return all, s
}

// A field that somebody needs is found wherever it stands: what a string or a number says, or the
// only one in a list.
func TestField(t *testing.T) {
	const text = `{"ts":1700000000,"request":{"method":"GET","uri":"/","remote_ip":"::1","headers":{"X-Cost":["7"]}},"bytes_read":12,"size":34,"status":200,` +
		`"resp_headers":{"X-Cost":["5.5"],"Two":["1","2"],"None":[]},"units":"9\u0030","a":{"b":{"c":1e3}},"null":null,"size":99}`
	for field, want := range map[string]string{
		"": "", "size": "34", "bytes_read": "12", "resp_headers.X-Cost": "5.5", "RESP_HEADERS.x-cost": "5.5", "request.headers.X-Cost": "7", "units": "90", "a.b.c": "1e3",
		"resp_headers.Two": "", "resp_headers.None": "", "resp_headers": "", "a.b": "", "a.b.c.d": "", "size.x": "", "nothing": "", "null": "null",
	} {
		all, _ := readAll(t, Options{Fields: []string{field}}, text)
		if len(all) != 1 || all[0].Fields[field] != want {
			t.Errorf("%q is %q, want %q", field, all[0].Fields[field], want)
		}
	}
	all, _ := readAll(t, Options{Fields: []string{"size"}}, `::1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 17 "-" "agent"`)
	if len(all) != 1 || all[0].Fields["size"] != "17" {
		t.Errorf("the size of a line of text is %+v", all)
	}
}

// began and took are those of the request of the tests. Formats without fractions lose them.
var began = time.Date(2026, 5, 4, 12, 30, 15, 123456000, time.UTC)

const took = 2500 * time.Millisecond

// encoded is a line as Caddy writes it.
func encoded(t *testing.T, c logging.LogEncoderConfig, console bool) string {
	t.Helper()
	var e zapcore.Encoder
	if console {
		enc := logging.ConsoleEncoder{LogEncoderConfig: c}
		if err := enc.Provision(caddy.Context{}); err != nil {
			t.Fatal(err)
		}
		e = enc.Encoder
	} else {
		enc := logging.JSONEncoder{LogEncoderConfig: c}
		if err := enc.Provision(caddy.Context{}); err != nil {
			t.Fatal(err)
		}
		e = enc.Encoder
	}
	r := httptest.NewRequest(http.MethodPost, "https://example.com/a%20b?c=\"d\"&e=é", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("User-Agent", `a "quoted" agent`)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "203.0.113.9")
	b, err := e.EncodeEntry(zapcore.Entry{Time: began.Add(took), LoggerName: "http.log.access.log0", Message: "handled request"}, []zap.Field{
		zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: r}), zap.Int("bytes_read", 0), zap.String("user_id", "alice"),
		zap.Duration("duration", took), zap.Int("size", 12), zap.Int("status", 201),
		zap.Object("resp_headers", caddyhttp.LoggableHTTPHeader{Header: http.Header{"Host": {"no"}, "Status": {"500"}}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Every time and duration format of Caddy is read, in JSON and in the console format.
func TestCaddysFormats(t *testing.T) {
	for _, at := range []string{
		"", "unix_seconds_float", "unix_milli_float", "unix_nano", "iso8601", "rfc3339", "rfc3339_nano", "wall", "wall_milli", "wall_nano", "common_log",
	} {
		for _, d := range []string{"", "s", "ms", "ns", "string"} {
			for _, console := range []bool{false, true} {
				if console && slices.Contains([]string{"unix_seconds_float", "unix_milli_float", "unix_nano"}, at) && d != "" {
					continue
				}
				line := encoded(t, logging.LogEncoderConfig{TimeFormat: at, DurationFormat: d}, console)
				all, s := readAll(t, Options{Headers: true}, line)
				if len(all) != 1 {
					t.Fatalf("%s %s: %+v of %s", at, d, s, line)
				}
				r, lost := all[0], time.Second
				if strings.HasPrefix(at, "unix") || at == "" && !console {
					lost = 300 // of a float64
				} else if strings.HasSuffix(at, "nano") {
					lost = 1
				} else if at == "iso8601" || at == "wall_milli" || at == "" {
					lost = time.Millisecond
				}
				if off := began.Sub(time.Unix(0, r.Start)); off < -lost || off >= lost || r.Took != took {
					t.Errorf("%q %q: began %v too early and took %v, in %s", at, d, off, r.Took, line)
				}
				if r.Status != 201 || r.Method != "POST" || r.Host != "example.com" || r.URI != "https://example.com/a%20b?c=\"d\"&e=é" ||
					r.RemoteIP != "10.0.0.1" || r.ClientIP != "203.0.113.9" || r.User != "alice" || !r.TLS || r.Headers.Get("User-Agent") != `a "quoted" agent` {
					t.Errorf("%q %q: %+v of %s", at, d, r, line)
				}
			}
		}
	}
}

// Headers are strings or lists of them, by any spelling of their names.
func TestHeaders(t *testing.T) {
	for text, want := range map[string]http.Header{
		`{}`: {}, `null`: {}, `"REDACTED"`: {}, `{"a":[]}`: {}, `{"a":null,"b":[1,{"c":"d"},"e"],"f":"g"}`: {"B": {"e"}, "F": {"g"}},
		` { "X-KEY" : [ "a" , "b\u00e9\"" ] , "x-other":"" } `: {"X-Key": {"a", "bé\""}, "X-Other": {""}},
		`{"x-\u0061":["b"],"x-a":["c"]}`:                       {"X-A": {"b", "c"}},
	} {
		all, s := readAll(t, Options{Headers: true}, `{"ts":1700000000,"request":{"method":"GET","uri":"/","remote_ip":"::1","headers":`+text+`},"status":200}`)
		if len(all) != 1 || !reflect.DeepEqual(all[0].Headers, want) {
			t.Errorf("%s is read as %v, want %v; %+v", text, all, want, s)
		}
	}
}

// The format that the page on nginx gives is read with milliseconds and durations.
func TestFormatOfThePageOnNginx(t *testing.T) {
	page, err := os.ReadFile("../../docs/migration/nginx.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "log_format tide escape=json ")
	text, _, found := strings.Cut(text, ";")
	line := strings.NewReplacer(
		"$msec", "1700000003.250", "$request_time", "0.040", "$remote_addr", "203.0.113.9", "$request_method", "POST",
		"$http_host", "example.com", "$request_uri", "/a?b", "$status", "201",
	).Replace(strings.Join(regexp.MustCompile(`'([^']*)'`).FindAllString(text, -1), ""))
	all, s := readAll(t, Options{}, strings.ReplaceAll(line, "'", ""))
	want := Record{Start: 1700000003210 * 1e6, Took: 40 * time.Millisecond, Status: 201, Method: "POST", Host: "example.com", URI: "/a?b", RemoteIP: "203.0.113.9"}
	if !found || len(all) != 1 || !reflect.DeepEqual(all[0], want) {
		t.Errorf("%s is read as %+v, want %+v; %+v", line, all, want, s)
	}
}

// What other servers and shippers make of a request is read as far as names tell.
func TestOtherFormats(t *testing.T) {
	want := Record{Start: began.Unix() * 1e9, Status: 201, Method: "POST", Host: "example.com", URI: "/a?b", RemoteIP: "203.0.113.9"}
	unix := fmt.Sprint(began.Unix())
	for name, line := range map[string]string{
		"flattened":     `{"timestamp":` + unix + `,"request.method":"POST","request.host":"example.com","request.uri":"/a?b","request.remote_ip":"203.0.113.9","status":201}`,
		"filter":        `{"time":"` + began.Format(time.RFC3339) + `","request>method":"POST","request>host":"example.com","request>uri":"/a?b","request>remote_ip":"203.0.113.9","status":201}`,
		"own host":      `{"host":"log-host","ts":` + unix + `,"request":{"method":"POST","host":"example.com","uri":"/a?b","remote_ip":"203.0.113.9"},"status":201}`,
		"own host last": `{"ts":` + unix + `,"request":{"method":"POST","host":"example.com","uri":"/a?b","remote_ip":"203.0.113.9"},"status":201,"host":"log-host"}`,
		"nginx":         `{"msec":"` + unix + `.000","remote_addr":"203.0.113.9","request_method":"POST","http_host":"example.com","request_uri":"/a?b","status":"201"}`,
		"traefik":       `{"ClientHost":"203.0.113.9","StartUTC":"` + began.Format(time.RFC3339) + `","time":"2030-01-01T00:00:00Z","Duration":2500000000,"RequestMethod":"POST","RequestHost":"example.com","RequestPath":"/a?b","DownstreamStatus":201}`,
		"journal":       `May 04 12:30:15 web caddy[17]: {"ts":` + unix + `,"request":{"method":"POST","host":"example.com","uri":"/a?b","remote_ip":"203.0.113.9:80"},"status":201}`,
		"common":        `203.0.113.9 - - [` + began.Format("02/Jan/2006:15:04:05 -0700") + `] "POST /a?b HTTP/1.1" 201 17`,
		"zone":          `203.0.113.9 - john doe [` + began.In(time.FixedZone("", 7200)).Format("02/Jan/2006:15:04:05 -0700") + `] "POST /a?b HTTP/1.1" 201 17 "-" "an \"agent\"" "more"` + "\r",
		"virtual host":  `example.com 203.0.113.9 - - [` + began.Format("02/Jan/2006:15:04:05 -0700") + `] "POST /a?b HTTP/1.1" 201 -`,
		"IPv6 and port": "\xef\xbb\xbf" + `{"ts":` + unix + `,"request":{"method":"POST","host":"example.com","uri":"/a?b","remote_addr":"[2001:db8::1]:443"},"status":201}`,
		"microseconds":  `{"ts":` + unix + `000000,"method":"POST","host":"example.com","uri":"/a?b","remote_ip":"203.0.113.9","status":201}`,
	} {
		all, s := readAll(t, Options{}, line)
		if len(all) != 1 {
			t.Errorf("%s: %+v", name, s)
			continue
		}
		got, want := all[0], want
		if name == "IPv6 and port" {
			want.RemoteIP = "2001:db8::1"
		}
		if name == "traefik" {
			want.RemoteIP, want.ClientIP = "", "203.0.113.9"
		}
		if got.Text {
			want.Host, want.ClientIP = "", want.RemoteIP
		}
		if name == "virtual host" {
			want.Host = "example.com"
		}
		got.Took, got.Proto, got.Text, got.User = 0, "", false, ""
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("%s: read as\n%+v, want\n%+v", name, got, want)
		}
	}
}

// line is a line of Caddy's JSON of a request that was answered at a time, in seconds.
func line(at, took float64, uri string) string {
	return fmt.Sprintf(`{"ts":%f,"logger":"http.log.access","request":{"remote_ip":"203.0.113.9","method":"GET","host":"a","uri":"%s"},"duration":%f,"status":200}`+"\n", 1.7e9+at, uri, took)
}

func uris(all []Record) (text string) {
	for _, r := range all {
		text += r.URI
	}
	return text
}

// Requests come in the order in which they began, of several files and within each.
func TestMerge(t *testing.T) {
	all, s := readAll(t, Options{Reorder: time.Minute},
		line(20, 0, "/d")+line(30, 29, "/a")+line(40, 0, "/f"),
		line(10, 0, "/b")+line(50, 34, "/c")+line(51, 25, "/e"))
	if got := uris(all); got != "/a/b/c/d/e/f" || s.Late != 0 || s.Requests != 6 {
		t.Errorf("in order %s, %+v", got, s)
	}
	all, s = readAll(t, Options{Reorder: 10 * time.Second}, line(0, 0, "/a")+line(20, 0, "/b")+line(40, 35, "/late")+line(41, 0, "/c"))
	if got := uris(all); got != "/a/b/c" || s.Late != 0 {
		// /late began at 5, and nothing after that had been handed on
		if got != "/a/late/b/c" {
			t.Errorf("in order %s, %+v", got, s)
		}
	}
	all, s = readAll(t, Options{Reorder: time.Second}, line(0, 0, "/a")+line(20, 0, "/b")+line(40, 0, "/c")+line(41, 35, "/late")+line(42, 0, "/d"))
	if got := uris(all); got != "/a/b/c/d" || s.Late != 1 || s.Requests != 4 || len(s.Troubles) != 1 || s.Troubles[0].Line != 4 || !s.Troubles[0].Late {
		t.Errorf("in order %s, %+v", got, s)
	}
}

// Whatever the order of the lines within the horizon, that of the requests is the same.
func TestMergeProperty(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var logs [3]string
		var at float64
		n := 1 + rng.IntN(400)
		for range n {
			at += rng.ExpFloat64()
			logs[rng.IntN(3)] += line(at, rng.Float64()*9, "/")
		}
		all, s := readAll(t, Options{Reorder: 10 * time.Second}, logs[:]...)
		if len(all) != n || s.Late != 0 || !slices.IsSortedFunc(all, func(a, b Record) int { return int(a.Start - b.Start) }) {
			t.Fatalf("%d of %d requests, %+v", len(all), n, s)
		}
	}
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

// Files that are empty, binary, cut off or of other things are no end of the reading.
func TestBadInput(t *testing.T) {
	good := line(1, 0, "/good")
	cut := zipped(strings.Repeat(good, 2000))
	for name, test := range map[string]struct {
		log                      string
		requests, damaged, other int64
		why                      string
	}{
		"empty":         {"", 0, 0, 0, ""},
		"blank lines":   {"\n\r\n \n" + good, 1, 0, 3, ""},
		"binary":        {"\x00\x01\xff\n" + good, 1, 1, 0, "neither JSON nor"},
		"gz":            {zipped(good), 1, 0, 0, ""},
		"cut gz":        {cut[:len(cut)-20], -1, 1, 0, "can't be read any further"},
		"no gz":         {good + zipped(good), 1, 1, 0, ""},
		"no last end":   {strings.TrimSpace(good), 1, 0, 0, ""},
		"cut line":      {good[:80] + "\n" + good, 1, 1, 0, "no whole JSON object"},
		"two objects":   {strings.TrimSpace(good) + good, 0, 1, 0, "something follows"},
		"10 MB":         {`{"a":"` + strings.Repeat("x", 10<<20) + "\"}\n" + good, 1, 1, 0, "longer than 1 MiB"},
		"long":          {`{"a":"` + strings.Repeat("x", 200<<10) + `",` + good[1:], 1, 0, 0, ""},
		"deep":          {strings.Repeat("[", 1<<19) + "\n" + good, 1, 1, 0, ""},
		"deep object":   {`{"a":` + strings.Repeat("[", 1<<18) + strings.Repeat("]", 1<<18) + "}\n" + good, 1, 1, 0, "more than 10,000 objects"},
		"no time":       {`{"request":{"method":"GET","uri":"/","remote_ip":"::1"}}`, 0, 1, 0, "it has no time"},
		"odd time":      {`{"ts":"noon","request":{"method":"GET","uri":"/","remote_ip":"::1"}}`, 0, 1, 0, "can't be read"},
		"year 2500":     {`{"ts":16725225600,"request":{"method":"GET","uri":"/","remote_ip":"::1"}}`, 0, 1, 0, "can't be read"},
		"no client":     {`{"ts":1700000000,"request":{"method":"GET","uri":"/"}}`, 0, 1, 0, "no address"},
		"other loggers": {`{"level":"info","ts":1,"logger":"admin","msg":"x"}` + "\n" + strings.Replace(good, "http.log.access", "http.log.error", 1) + good, 1, 0, 2, ""},
		"admin":         {`{"level":"info","ts":1.7e9,"logger":"admin.api","msg":"received request","method":"GET","host":"localhost:2019","uri":"/metrics","remote_ip":"127.0.0.1"}` + "\n" + good, 1, 0, 1, ""},
		"an object":     {`{"ts":1.7e9,"method":{"a":1},"url":{"path":"/"}}` + "\n" + good, 1, 0, 1, ""},
		"no request":    {`203.0.113.9 - - [04/May/2026:12:30:15 +0000] "" 400 0`, 1, 0, 0, ""},
		"no status":     {`203.0.113.9 - - [04/May/2026:12:30:15 +0000] "GET / HTTP/1.0" - 0`, 0, 1, 0, "no status"},
		"open quote":    {`203.0.113.9 - - [04/May/2026:12:30:15 +0000] "GET / HTTP/1.0 200 0`, 0, 1, 0, "no request"},
		"endless":       {`{"ts":1e999,"request":{"method":"GET","uri":"/","remote_ip":"::1"},"duration":-1e300}`, 0, 1, 0, "can't be read"},
	} {
		all, s := readAll(t, Options{Reorder: time.Minute}, test.log)
		if test.requests >= 0 && (s.Requests != test.requests || int64(len(all)) != test.requests) || s.Damaged != test.damaged || s.Other != test.other {
			t.Errorf("%s: %d requests, %+v", name, len(all), s)
		}
		if test.why != "" && (len(s.Troubles) == 0 || !strings.Contains(s.Troubles[0].Why, test.why)) {
			t.Errorf("%s: %+v, want %s", name, s.Troubles, test.why)
		}
	}
	_, s := readAll(t, Options{}, strings.Repeat("?\n", 10))
	if s.Damaged != 10 || len(s.Troubles) != maxTroubles || s.Troubles[2].Line != 3 {
		t.Errorf("of ten damaged lines: %+v", s)
	}
}

// What a log is compressed by is told by its content: of any name, of standard input, in several
// parts. What is not read here is rejected with what unpacks it.
func TestCompressed(t *testing.T) {
	for name, text := range map[string]string{"one part": zipped(line(1, 0, "/a") + line(2, 0, "/b")), "two parts": zipped(line(1, 0, "/a")) + zipped(line(2, 0, "/b"))} {
		all, s := readAll(t, Options{}, text) // in a file whose name does not say it
		f, err := Open([]string{"-"}, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Each(Options{}, func(*Record) bool { return true }); uris(all) != "/a/b" || s.Damaged != 0 || got.Requests != 2 {
			t.Errorf("%s: %s, %+v; of standard input %+v", name, uris(all), s, got)
		}
	}
	for magic, want := range map[string]string{
		"\x28\xb5\x2f\xfd": "zstd -dc", "BZh9": "bzip2 -dc", "\xfd7zXZ\x00": "xz -dc", "\x04\x22\x4d\x18": "lz4 -dc", "PK\x03\x04": "unzip -p",
		"\x1f\x8bnothing of the kind": "it begins like gzip, and is not",
	} {
		path := filepath.Join(t.TempDir(), "access.log.gz")
		if err := os.WriteFile(path, []byte(magic+strings.Repeat("x", 100)), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{path, "-"} {
			_, err := Open([]string{from}, strings.NewReader(magic+strings.Repeat("x", 100)))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "reading "+from) {
				t.Errorf("%q from %s: %v, want %s", magic, from, err, want)
			}
		}
	}
}

// One file may have lines of several formats, as after a change of the configuration.
func TestMixedFormats(t *testing.T) {
	all, s := readAll(t, Options{Reorder: time.Minute}, line(1, 0, "/a")+
		`203.0.113.9 - - [14/Nov/2023:22:13:22 +0000] "GET /b HTTP/1.1" 200 17`+"\n"+
		`{"msec":"1700000003.000","remote_addr":"203.0.113.9","request_method":"GET","request_uri":"/c","status":"200"}`+"\n"+
		`2023/11/14 22:13:24.000`+"\tinfo\thttp.log.access\thandled request\t"+`{"request":{"method":"GET","uri":"/d","remote_ip":"203.0.113.9"},"status":200}`+"\n"+
		"what is this\n"+line(5, 0, "/e"))
	if uris(all) != "/a/b/c/d/e" || s.Damaged != 1 || s.Texts != 1 || s.Requests != 5 {
		t.Errorf("%s, %+v", uris(all), s)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	if _, err := Open([]string{t.TempDir()}, nil); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := Open([]string{filepath.Join(t.TempDir(), "none")}, nil); err == nil {
		t.Error("a file that is not there can be opened")
	}
	f, err := Open([]string{"-"}, strings.NewReader(line(1, 0, "/")))
	if err != nil || f.Bytes != 0 {
		t.Fatal(f, err)
	}
	if s := f.Each(Options{}, func(*Record) bool { return true }); s.Requests != 1 {
		t.Errorf("stdin: %+v", s)
	}
}

// Each ends its goroutine when nobody wants more.
func TestStop(t *testing.T) {
	f, err := Open([]string{"-"}, strings.NewReader(strings.Repeat(line(1, 0, "/"), 10_000)))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	f.Each(Options{}, func(*Record) bool { n++; return n < 10 })
	if n != 10 {
		t.Errorf("%d requests after the end", n)
	}
}

// What is held back is bounded: then requests go on before the horizon is over.
func TestHeldBack(t *testing.T) {
	heldBefore, textBefore := maxHeld, maxText
	defer func() { maxHeld, maxText = heldBefore, textBefore }()
	var b strings.Builder
	for i := range 1000 {
		b.WriteString(line(float64(i)/1e6, 0, "/"))
	}
	for _, bound := range [][2]int{{100, maxText}, {maxHeld, 2000}} {
		maxHeld, maxText = bound[0], bound[1]
		if all, s := readAll(t, Options{Reorder: time.Minute}, b.String()); len(all) != 1000 || s.Early < 800 {
			t.Errorf("%v: %d requests, %+v", bound, len(all), s)
		}
	}
}

// A line of a clock that had jumped is damaged: all that come after it are as they would be without
// it. What is a gap, or all by a wrong clock, is read.
func TestLinesFromTheFuture(t *testing.T) {
	const days = 24 * 3600
	around := func(at float64, uris string) (log string) {
		for i, uri := range strings.Split(uris, "") {
			log += line(at+float64(i%2)/2-float64(i)/10, 0, "/"+uri)
		}
		return log
	}
	before, after, far := around(0, "abcd"), around(30, "efgh"), line(9e9-1.7e9, 0, "/far")
	long := strings.Repeat(line(400*days, 0, "/long"), 1000)
	for name, test := range map[string]struct {
		log     string
		changed float64 // when the file was changed, in seconds like those of a line
		want    string
		damaged int64
	}{
		"one":                         {before + far + after, 40, "cadbgehf", 1},
		"one, in an older log":        {before + line(20*days, 0, "/far") + after, 400 * days, "cadbgehf", 1},
		"some, in an older log":       {before + strings.Repeat(line(20*days, 0, "/far"), 20) + after, 400 * days, "cadbgehf", 20},
		"the first":                   {far + before + after, 40, "cadbgehf", 1},
		"the last":                    {before + after + far, 40, "cadbgehf", 1},
		"many":                        {before + long + after, 40, "cadbgehf", 1000},
		"after a gap":                 {before + line(20*days, 0, "/next") + line(20*days+1, 0, "/last"), 20 * days, "cadb/next/last", 0},
		"after a gap, at the end":     {before + line(20*days, 0, "/last"), 20 * days, "cadb/last", 0},
		"a wrong clock":               {before + after, -400 * days, "cadbgehf", 0},
		"a wrong clock, after a gap":  {before + line(20*days, 0, "/next"), -400 * days, "cadb/next", 0},
		"one, where a clock is wrong": {before + far + after, -400 * days, "cadbgehf", 1},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(test.log), 0o600); err != nil {
			t.Fatal(err)
		}
		changed := time.Unix(1.7e9+int64(test.changed), 0)
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
		f, err := Open([]string{path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var all []Record
		s := f.Each(Options{Reorder: time.Minute}, func(r *Record) bool {
			all = append(all, *r)
			return true
		})
		f.Close()
		if got := strings.ReplaceAll(uris(all), "/", ""); got != strings.ReplaceAll(test.want, "/", "") || s.Damaged != test.damaged || s.Late != 0 {
			t.Errorf("%s: in order %.100s, want %s; %d damaged, %d late", name, got, test.want, s.Damaged, s.Late)
		}
		if test.damaged > 0 && !strings.Contains(s.Troubles[0].Why, "its time lies more than a day ahead") {
			t.Errorf("%s: %+v", name, s.Troubles)
		}
	}
}

// What waits to be looked at is bounded in bytes, and nothing of it is kept once it was.
func TestLongLinesAreNotKept(t *testing.T) {
	defer func(before int) { maxText = before }(maxText)
	maxText = 1 << 20
	long := strings.Replace(line(0, 0, "/"), `"method"`, `"headers":{"X-Key":["`+strings.Repeat("x", 900_000)+`"]},"method"`, 1)
	text := strings.Repeat(long, 100) + strings.Repeat(line(1, 0, "/"), 5000)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	synctest.Test(t, func(t *testing.T) {
		f, err := Open([]string{"-"}, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		before, n := heap(), 0
		f.Each(Options{Headers: true, Reorder: time.Minute}, func(*Record) bool {
			switch n++; n {
			case 1:
				synctest.Wait() // until nothing more is read
				if read := f.Read.Load(); read > 16<<20 {
					t.Errorf("%d MB were read before the first record was looked at", read>>20)
				}
			case 110: // which may be in a slice that held long ones
				synctest.Wait()
				if now := heap(); now > before+4<<20 {
					t.Errorf("%d MB are held once all that is long was looked at", (now-before)>>20)
				}
			}
			return true
		})
		if n != 5100 {
			t.Errorf("%d records", n)
		}
	})
}
