// Command reference writes the pages of docs that list what the code has: the grammar, the options
// with their defaults, the warnings, and the metrics. The texts stand in the code: in the rows of
// the options, in the comments of the types that JSON is read into, in those of the codes of
// warnings, and in the help of the metrics.
//
//	go run ./internal/reference
//
// With -check it writes nothing, and says which pages are not what it would write; so does `go run
// ./internal/lint`.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// since is the version that brought what has no "Since:" of its own.
const since = "0.1.0"

func main() {
	check := flag.Bool("check", false, "say which pages are not what the code says, and write none")
	flag.Parse()
	written, err := pages()
	for name, text := range written {
		if *check {
			err = errors.Join(err, compare(name, text))
		} else {
			err = errors.Join(err, os.WriteFile(name, []byte(text), 0o644))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// compare checks that a page is what the code says, and that every text of it is there.
func compare(name, want string) error {
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		return fmt.Errorf("%s is not what the code says (%v); run `go run ./internal/reference`", name, err)
	}
	if strings.Contains(want, "**: .") || strings.Contains(want, "<value>`") {
		return fmt.Errorf("%s has an entry without its default or its example", name)
	}
	return nil
}

// pages returns the text of each page by its name. It is called in the root of the repository.
func pages() (map[string]string, error) {
	code, err := read("module.go", "app.go", "internal/redisconn/options.go", "internal/config/cost.go", "internal/warning/warning.go", "internal/answer/reason.go")
	if err != nil {
		return nil, err
	}
	counted, err := code.metrics()
	if err != nil {
		return nil, err
	}
	written := map[string]string{"docs/options.md": code.optionsPage()}
	for page, text := range map[string]string{"docs/configuration.md": code.grammar(), "docs/names.md": counted, "docs/warnings.md": code.warnings()} {
		if written[page], err = within(page, text); err != nil {
			return nil, err
		}
	}
	return written, nil
}

// within returns a page with a text between the two comments that say where it goes.
func within(page, text string) (string, error) {
	const begins, ends = "<!-- written by go run ./internal/reference -->\n", "<!-- end of what is written -->\n"
	is, err := os.ReadFile(page)
	if err != nil {
		return "", err
	}
	before, rest, _ := strings.Cut(string(is), begins)
	_, after, ok := strings.Cut(rest, ends)
	if !ok {
		return "", fmt.Errorf("%s has no place for what is written", page)
	}
	return before + begins + "\n" + strings.TrimSpace(text) + "\n\n" + ends + after, nil
}

// A source is code whose comments are texts of pages.
type source struct {
	docs    map[string]string            // of functions and types, by their names
	structs map[string]map[string]*field // by the name of the type and the name in JSON
	names   map[string][]string          // of fields in JSON, in their order
	codes   []code                       // of warnings
	// decisions are those that metrics count, and what each is.
	decisions [][2]string
}

// A field is one of a type that JSON is read into, as its comment tells of it.
type field struct{ text, initial, span, since string }

// read parses files.
func read(files ...string) (*source, error) {
	s := &source{docs: map[string]string{}, structs: map[string]map[string]*field{}, names: map[string][]string{}}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				s.docs[n.Name.Name] = n.Doc.Text()
			case *ast.GenDecl:
				if strings.HasSuffix(name, "/reason.go") && n.Tok == token.CONST {
					s.addReasons(n)
				}
			case *ast.ValueSpec:
				if n.Doc != nil && len(n.Values) == 1 {
					s.addCode(n.Names[0].Name, n.Values[0], n.Doc.Text())
				}
			case *ast.TypeSpec:
				if of, ok := n.Type.(*ast.StructType); ok {
					s.addStruct(n.Name.Name, of)
				}
			}
			return true
		})
	}
	return s, nil
}

var jsonTag = regexp.MustCompile(`json:"([a-z0-9_]+)`)

func (s *source) addStruct(name string, of *ast.StructType) {
	s.structs[name] = map[string]*field{}
	for _, f := range of.Fields.List {
		if f.Tag == nil || len(f.Names) != 1 {
			continue
		}
		if m := jsonTag.FindStringSubmatch(f.Tag.Value); m != nil {
			s.structs[name][m[1]] = newField(f.Names[0].Name, f.Doc.Text())
			s.names[name] = append(s.names[name], m[1])
		}
	}
}

// newField takes a comment apart: what the field is, and the sentences that begin with "Range:",
// "Default:" and "Since:".
func newField(name, doc string) *field {
	f := &field{since: since}
	text := strings.TrimSuffix(strings.Join(strings.Fields(doc), " "), ".")
	for _, part := range []struct {
		word string
		to   *string
	}{{"Since: ", &f.since}, {"Default: ", &f.initial}, {"Range: ", &f.span}} {
		if before, after, ok := strings.Cut(text, part.word); ok {
			text, *part.to = strings.TrimSuffix(before, ". "), after
		}
	}
	text = strings.TrimPrefix(text, name+" ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "is "), "are ")
	f.text = strings.ToUpper(text[:1]) + text[1:] + "."
	return f
}

var codeWords = regexp.MustCompile("`[^`]+`" + `|"[^"]+"|\{[^}]+\}|rediss?://|unix://|\b(?:[a-z0-9]+_[a-z0-9_]+|gcra|[0-9]+[a-z]+)\b`)

// marked puts what is code in a text into backticks.
func marked(text string) string {
	return codeWords.ReplaceAllStringFunc(text, func(word string) string {
		return "`" + strings.Trim(word, "\"`") + "`"
	})
}

var codeSpan = regexp.MustCompile("`[^`]+`")

// wrap breaks a text into lines of at most 100 columns, and none within code.
func wrap(text, indent string) string {
	var lines []string
	line := ""
	text = codeSpan.ReplaceAllStringFunc(text, func(code string) string { return strings.ReplaceAll(code, " ", "\u00a0") })
	for word := range strings.SplitSeq(text, " ") {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > 100 {
			lines, line = append(lines, line), indent+word
			continue
		}
		if line != "" && line != indent {
			line += " "
		}
		line += word
	}
	return strings.ReplaceAll(strings.Join(append(lines, line), "\n"), "\u00a0", " ") + "\n"
}
