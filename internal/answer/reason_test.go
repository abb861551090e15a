package answer

import "testing"

// Each reason has a name, and is read back by it, except Barred, which is a denial to others.
func TestReasonsHaveNames(t *testing.T) {
	for r := range Reason(len(reasonNames)) {
		text, err := r.MarshalText()
		want := r
		if r == Barred {
			want = Denied
		}
		var got Reason
		if err != nil || len(text) == 0 || got.UnmarshalText(text) != nil || got != want {
			t.Errorf("%d is %q, which is %d, want %d", r, text, got, want)
		}
	}
	if len(reasonNames) != int(Barred)+1 || new(Reason).UnmarshalText([]byte("never")) == nil {
		t.Errorf("%d names, want one for each reason and no others", len(reasonNames))
	}
}
