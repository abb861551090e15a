package main

import (
	"bytes"
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// product is a module with each way by which a call finds its function.
var product = map[string]string{
	"go.mod": "module example.com/m\n\ngo 1.26\n",
	"handler.go": `package m

import (
	"slices"

	"example.com/m/limits"
	"example.com/m/table"
)

type Handler struct{ last func() }

func New() *Handler {
	table.Run = run
	return &Handler{last: end}
}

func (h *Handler) ServeHTTP() {
	e := limits.Begin(New().wake)
	defer h.last()
	func() { literal() }()
	var all []int
	slices.SortFunc(all, compare)
	limits.First(e).Second()
	New()
}

func (h *Handler) wake() { woken() }

type other struct{}

func (other) Store(n int) { table.Get(n) }

func run(f func())         { f() }
func woken()               {}
func end()                 {}
func literal()             {}
func compare(a, b int) int { return a - b }
`,
	"limits/limits.go": `package limits

import "example.com/m/table"

type Evaluation struct {
	first, second int
	overall
	key  table.Key
	more []grant
}

type overall struct{ denied, closed bool }

type grant struct{ pair struct{ a, b int } }

func Begin(wake func()) *Evaluation {
	table.Wakes = append(table.Wakes, wake)
	table.Each(table.Box[int]{})
	return nil
}

func First(e *Evaluation) *Evaluation {
	table.Get(1)
	return e
}

func (e *Evaluation) Second() { helper([]grant{}) }

func helper(_ []grant) {}
`,
	"table/table.go": `package table

type Key struct{ a, b uint64 }

type store[S any] interface{ Store(n S) }

type Box[S any] struct{}

func (Box[S]) Store(n S) {}

var (
	Wakes []func()
	Run   func(func())
)

func Each[S any](s store[S]) {
	for _, wake := range Wakes {
		wake()
	}
	var n S
	s.Store(n)
	go background()
}

func background() { Run(late) }

func late() {}

func Get(n int) {}
`,
}

func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (f *function) name() string {
	d, ok := f.node.(*ast.FuncDecl)
	if !ok {
		return "func"
	}
	return d.Name.Name
}

func names(w *walker) (all []string) {
	for _, f := range w.read {
		all = append(all, f.room.types.Name()+"."+f.name())
	}
	return all
}

func TestAReaderFollowsEachCallWhereItStands(t *testing.T) {
	w, err := newWalker(write(t, product), "")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(`m.ServeHTTP limits.Begin table.Each m.wake m.woken
		table.Store m.Store table.Get table.background m.run table.late m.New
		m.end m.func m.literal m.compare limits.First limits.Second limits.helper`)
	if got := names(w); !slices.Equal(got, want) {
		t.Errorf("read %q,\nwant %q", got, want)
	}
	var out bytes.Buffer
	w.report(&out)
	for _, want := range []string{
		"19 functions in 3 files of 3 packages\n",
		"4 climbs to a package above\n", // to wake, Store, run and New
		"8 returns to a package already left, 8 to a file\n",
		"3 calls run upward, against the imports\n", // to wake, Store and run
		"  4 handler.go\n", "  3 table/table.go\n", "  1 limits/limits.go\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("reported\n%swithout %q", out.String(), want)
		}
	}
}

func TestAReaderFollowsOnlyWhatRan(t *testing.T) {
	files := map[string]string{"go.mod": product["go.mod"], "h.go": `package m

type Handler struct{}

func (Handler) ServeHTTP() {
	if false {
		never()
	}
	var i interface{ Do() } = ran{}
	i.Do()
}

func never() {}

type ran struct{}
type idle struct{}

func (ran) Do() { always() }
func (idle) Do() { never() }
func always() {}
`, "c.out": `mode: set
example.com/m/h.go:5.28,6.12 1 1
example.com/m/h.go:6.12,8.3 1 0
example.com/m/h.go:9.2,10.8 2 1
example.com/m/h.go:18.17,18.29 1 1
example.com/m/h.go:19.18,19.29 1 0
`}
	dir := write(t, files)
	for profile, want := range map[string]string{
		"":                          "m.ServeHTTP m.never m.Do m.always m.Do",
		filepath.Join(dir, "c.out"): "m.ServeHTTP m.Do m.always",
	} {
		w, err := newWalker(dir, profile)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(names(w), " "); got != want {
			t.Errorf("with profile %q: read %s, want %s", profile, got, want)
		}
	}
}

func TestMethodsAndFieldsOfObjectsAreCountedFlat(t *testing.T) {
	w, err := newWalker(write(t, product), "")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w.objects(&out, []string{"limits.Evaluation", "limits.overall", "limits.grant", "limits.gone"})
	want := `  limits.Evaluation: 2 methods more, 4 fields
  limits.overall: 0 methods more, 2 fields
  limits.grant: 1 methods more, 2 fields
  limits.gone: not in this tree
the objects that evaluate a request: 3 methods, 8 fields, 9 with those of structs of other packages
`
	if out.String() != want {
		t.Errorf("counted\n%swant\n%s", out.String(), want)
	}
}
