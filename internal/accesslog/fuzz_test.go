package accesslog

import "testing"

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
