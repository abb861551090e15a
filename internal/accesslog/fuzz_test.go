package accesslog

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzScan compares the scanner with encoding/json: what it accepts is valid, what is valid and not
// too deep it accepts, and the values are the same.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, ` {"a" : [1, -2.5e+3, true, false, null, {"b":"c\u00e9\"\\\n"}] } `, line(1, 0, "/"), `{"a":01}`, `{"a":1.}`, `{"a":"` + "\x01" + `"}`,
		`{"a":tru}`, `{"a":1}x`, `{"a"}`, `{,}`, `[1,]`, `{"a":"\ud800"}`, "{\"\xff\":\"\xff\"}", `{"a":-}`, `{"a":1e}`, `"`, `{"a":"\u12"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := scanner{b: text}
		raw, ok := s.value(0)
		s.space()
		ok = ok && s.i == len(text)
		valid := json.Valid(text)
		if ok && !valid || !ok && valid && bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) < maxDepth {
			t.Fatalf("%q: the scanner says %t, encoding/json %t", text, ok, valid)
		}
		if !ok {
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("%q is not the value of %q", raw, text)
		}
		var want string
		if raw[0] == '"' && json.Unmarshal(raw, &want) == nil && string(inner(raw)) != want {
			t.Fatalf("%q is read as %q, want %q", raw, inner(raw), want)
		}
		var v values
		var all map[string]json.RawMessage
		if s = (scanner{b: text}); raw[0] == '{' && v.read(&s, false, 0) && json.Unmarshal(text, &all) == nil {
			if got := v.text(fieldMethod); string(got) != "" && all["request"] == nil && all["method"] != nil && all["req"] == nil && all["http"] == nil {
				var want any
				_ = json.Unmarshal(all["method"], &want)
				if text, ok := want.(string); ok && len(all) == 1 && text != string(got) {
					t.Fatalf("%q: the method is %q", text, got)
				}
			}
		}
	})
}

// FuzzLine reads anything as a line of a log.
func FuzzLine(f *testing.F) {
	f.Add([]byte(line(1, 0, "/")))
	f.Add([]byte(`203.0.113.9 - - [04/May/2026:12:30:15 +0000] "GET / HTTP/1.0" 200 0 "-" "a \" b"`))
	f.Add([]byte(`x {"ts":"2026-05-04T12:30:15Z","req":{"remote_addr":"[::1]:80","url":"/"},"latency":"1.5ms"}`))
	f.Add([]byte(`{"ts":1.7e9,"method":"GET","client":"::1","duration":1e300}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := parser{headers: true}
		var r Record
		k, why := p.line(text, &r)
		if (k == damaged) != (why != "") {
			t.Fatalf("%q is %d, %q", text, k, why)
		}
		if k == request && (r.Took < 0 || r.Took > maxTook || r.Status < 0 || r.Status > 999 || r.RemoteIP == "" && r.ClientIP == "") {
			t.Fatalf("%q is read as %+v", text, r)
		}
	})
}
