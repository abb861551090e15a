package figures

import (
	"strings"
	"testing"
)

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
