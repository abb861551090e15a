package cell

import "strconv"

// Args are the arguments of one call of Redis after the other. They are parts of one text, so that
// there is no allocation for each. What is appended to Text belongs to the argument that the next
// End ends. The zero Args are ready to use.
type Args struct {
	Text []byte

	ends  []int // of the arguments in Text
	parts []string
	args  []any // pointers to parts
}

// Reset begins with another call.
func (a *Args) Reset() { a.Text, a.ends = a.Text[:0], a.ends[:0] }

// Number adds an argument.
func (a *Args) Number(n int64) {
	a.Text = strconv.AppendInt(a.Text, n, 10)
	a.End("")
}

// Append appends numbers with a space before each of them.
func (a *Args) Append(all ...int64) {
	for _, n := range all {
		a.Text = strconv.AppendInt(append(a.Text, ' '), n, 10)
	}
}

// End ends an argument, after its last part.
func (a *Args) End(part string) {
	a.Text = append(a.Text, part...)
	a.ends = append(a.ends, len(a.Text))
}

// Finish makes the arguments of the text.
func (a *Args) Finish() {
	text, from := string(a.Text), 0
	a.parts = a.parts[:0]
	for _, end := range a.ends {
		a.parts = append(a.parts, text[from:end])
		from = end
	}
	a.args = a.args[:0]
	for i := range a.parts {
		a.args = append(a.args, &a.parts[i])
	}
}

// All returns the arguments after Finish. They are valid until the next Reset.
func (a *Args) All() []any { return a.args }
