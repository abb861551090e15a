package answer

import (
	"encoding/json"
	"strings"
	"testing"
)

// Whatever stands in a message that is JSON, and whatever the placeholders in it are, what is sent
// is JSON.
func FuzzMessage(f *testing.F) {
	f.Add(`{"a":"{x}","b":{x}}`, `"`)
	f.Add(`{"a":"\"{x}"}`, "\x00\xff")
	f.Add(`[{x},"\\{x}"]`, "{x}")
	f.Add(`\{x\}{{x}}`, "")
	f.Fuzz(func(t *testing.T, text, value string) {
		m := compileMessage(text)
		known := func(name string) (any, bool) { return value, name == "x" }
		got := string(m.appendTo(nil, known))
		if m.json && !json.Valid([]byte(got)) {
			t.Errorf("%q with %q: %s is not JSON", text, value, got)
		}
		if !strings.ContainsAny(text, `{}\`) && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
