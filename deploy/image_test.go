package deploy

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// An image is what the Dockerfile says of it.
type image struct {
	build      string            // the command that builds the program, as built
	built      string            // where that puts it in the stage that builds
	files      map[string]string // from the stage that builds, by where they are in the image
	env        []string
	user       string
	entrypoint []string
	command    []string
	ports      []string
}

func readImage(t *testing.T) image {
	t.Helper()
	text, err := os.Open("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	parsed, err := parser.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range parsed.Warnings {
		t.Errorf("Dockerfile: %s", w.Short)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 || stages[1].BaseName != "scratch" {
		t.Fatalf("the Dockerfile has %d stages, want one that builds and one from scratch", len(stages))
	}
	i := image{files: map[string]string{}}
	for _, c := range stages[0].Commands {
		if run, ok := c.(*instructions.RunCommand); ok && strings.Contains(run.CmdLine[0], "go build") {
			i.build = run.CmdLine[0]
			_, after, _ := strings.Cut(i.build, " -o ")
			i.built, _, _ = strings.Cut(after, " ")
		}
	}
	for _, c := range stages[1].Commands {
		i.add(t, c, stages[0].Name)
	}
	if i.built == "" || i.files["/usr/bin/caddy"] != i.built {
		t.Fatalf("the Dockerfile builds %q and copies %q", i.built, i.files["/usr/bin/caddy"])
	}
	return i
}

func (i *image) add(t *testing.T, c instructions.Command, builder string) {
	t.Helper()
	switch c := c.(type) {
	case *instructions.CopyCommand:
		if c.From != builder || len(c.SourcePaths) != 1 {
			t.Fatalf("%v copies %q from %q", c, c.SourcePaths, c.From)
		}
		i.files[c.DestPath] = c.SourcePaths[0]
	case *instructions.EnvCommand:
		for _, pair := range c.Env {
			i.env = append(i.env, pair.String())
		}
	case *instructions.UserCommand:
		i.user = c.User
	case *instructions.ExposeCommand:
		i.ports = append(i.ports, c.Ports...)
	case *instructions.EntrypointCommand:
		i.entrypoint = c.CmdLine
	case *instructions.CmdCommand:
		i.command = c.CmdLine
	default:
		t.Fatalf("the image has %v, which these tests know nothing of", c)
	}
}

// program is what the Dockerfile builds, once for all tests of a run and removed after them.
var program struct {
	sync.Once
	dir, path string
	err       error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

// build runs the command of the Dockerfile in this checkout.
func build(t *testing.T, i image) string {
	t.Helper()
	program.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "tide-image"); program.err != nil {
			return
		}
		program.path = filepath.Join(program.dir, "caddy")
		cmd := exec.Command("sh", "-c", strings.Replace(i.build, " -o "+i.built+" ", " -o "+program.path+" ", 1))
		cmd.Dir = ".."
		if output, err := cmd.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("%s: %w\n%s", i.build, err, output)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// isStatic wants a program that is linked with no libraries.
func isStatic(t *testing.T, program string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %v: it is linked with libraries", p.Type)
		}
	}
}

// The program needs nothing of the system that it runs on but its kernel.
func TestImageHasAStaticProgram(t *testing.T) {
	i := readImage(t)
	if runtime.GOOS != "linux" {
		t.Skip("what is built here is no ELF file")
	}
	isStatic(t, build(t, i))
	if i.user != "65534:65534" || !slices.Equal(i.entrypoint, []string{"/usr/bin/caddy"}) {
		t.Errorf("the image runs %q as %s", i.entrypoint, i.user)
	}
}
