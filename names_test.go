package ratelimit

import (
	"go/ast"
	"go/token"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

const namesPage = "docs/names.md"

// nameRows are the rows of the tables of a section of docs/names.md, as cells. What programs read
// as JSON, and log fields that are not stable, have a page of their own.
func nameRows(t *testing.T, section string) (rows [][]string) {
	t.Helper()
	text := ""
	for _, page := range []string{namesPage, "docs/internals/json.md"} {
		_, after, _ := strings.Cut(readPage(t, page), "# "+section+"\n")
		part, _, _ := strings.Cut(after, "\n#")
		text += part
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "|") {
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) < 3 {
		t.Fatalf("%s has %d rows in section %q, want more", namesPage, len(rows), section)
	}
	return rows[2:]
}

// quoted are the names in backticks of a cell.
func quoted(cell string) (names []string) {
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		names = append(names, m[1])
	}
	return names
}

// firstNames are the names in the first column of a section.
func firstNames(t *testing.T, section string) (names []string) {
	t.Helper()
	for _, row := range nameRows(t, section) {
		names = append(names, quoted(row[0])...)
	}
	return names
}

// sameNames fails unless the page has the names of the code, and no others.
func sameNames(t *testing.T, what string, page, code []string) {
	t.Helper()
	slices.Sort(page)
	slices.Sort(code)
	code = slices.Compact(code)
	for _, name := range code {
		if !slices.Contains(page, name) {
			t.Errorf("%s doesn't have the %s %q", namesPage, what, name)
		}
	}
	for i, name := range page {
		if !slices.Contains(code, name) {
			t.Errorf("%s has the %s %q, which the code doesn't have", namesPage, what, name)
		}
		if i > 0 && page[i-1] == name {
			t.Errorf("%s has the %s %q twice", namesPage, what, name)
		}
	}
	if len(code) == 0 {
		t.Errorf("found no %s in the code", what)
	}
}

func TestNamesOfMetrics(t *testing.T) {
	zone := metrics.NewZoneCounters("names")
	zone.WithUnits(true)
	defer zone.Release()
	registry := prometheus.NewPedanticRegistry()
	if err := metrics.Register(registry, func() metrics.State {
		return metrics.State{
			Zones: []metrics.ZoneState{{Zone: "names", Syncs: true, Window: "1m", Burst: 1, Concurrent: true}}, Redis: []metrics.RedisState{{Namespace: "names"}},
			Controls: []metrics.ControlState{{Namespace: "names"}}, Regions: []metrics.RegionState{{Region: "names"}}, Bandwidths: []metrics.BandwidthState{{Zone: "names"}}, Bans: []metrics.BanState{{Zone: "names"}},
		}
	}); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var code, page, decisions, results []string
	for _, f := range families {
		var labels []string
		for _, m := range f.GetMetric() {
			labels = nil
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
				switch l.GetName() {
				case "decision":
					decisions = append(decisions, l.GetValue())
				case "result":
					results = append(results, l.GetValue())
				}
			}
		}
		code = append(code, strings.Join([]string{f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, " ")}, ", "))
	}
	text := readPage(t, "docs/metrics.md")
	for _, m := range regexp.MustCompile(`(?s)## (caddy_\w+)\n\n(.*?)\*(\w+)\sby\s([^*]*)\*`).FindAllStringSubmatch(text, -1) {
		page = append(page, strings.Join([]string{m[1], m[3], strings.Join(quoted(m[4]), " ")}, ", "))
		if strings.Contains(m[4], "result") {
			for _, result := range results {
				if !regexp.MustCompile(`\b` + result + `\b`).MatchString(m[2]) {
					t.Errorf("docs/metrics.md doesn't have the result %q", result)
				}
			}
		}
	}
	sameNames(t, "metric", page, code)
	_, text, _ = strings.Cut(text, "## Decisions\n")
	var named []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| .").FindAllStringSubmatch(text, -1) {
		if m[1] != "decision" {
			named = append(named, m[1])
		}
	}
	sameNames(t, "decision", named, decisions)
}

func TestNamesOfTheStatus(t *testing.T) {
	var code []string
	var walk func(prefix string, of reflect.Type)
	walk = func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name == "" {
				t.Errorf("%s has a field without a name in JSON: %s", of, of.Field(i).Name)
			}
			field := of.Field(i).Type
			name = prefix + name
			if field.Kind() == reflect.Slice {
				name, field = name+"[]", field.Elem()
			}
			if field.Kind() == reflect.Pointer {
				field = field.Elem()
			}
			code = append(code, name)
			if field.Kind() == reflect.Struct && strings.Contains(field.PkgPath(), "ratelimit") {
				walk(name+".", field)
			}
		}
	}
	walk("", reflect.TypeFor[operate.State]())
	sameNames(t, "status field", firstNames(t, "Status"), code)
}

// stringsIn are the values of the string literals in a part of the code.
func stringsIn(n ast.Node) (all []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, _ := strconv.Unquote(lit.Value)
			all = append(all, text)
		}
		return true
	})
	return all
}

// callsOf calls f for each call of the product, with the name of the function or method called.
func callsOf(t *testing.T, f func(name string, call *ast.CallExpr)) {
	t.Helper()
	for _, dir := range packages(t) {
		for _, file := range parsed(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch of := call.Fun.(type) {
				case *ast.Ident:
					f(of.Name, call)
				case *ast.SelectorExpr:
					name := of.Sel.Name
					if from, ok := of.X.(*ast.Ident); ok && from.Name == "zap" {
						name = "zap." + name
					}
					f(name, call)
				}
				return true
			})
		}
	}
}

func TestNamesOfLogFields(t *testing.T) {
	var code []string
	callsOf(t, func(name string, call *ast.CallExpr) {
		switch {
		case name == "zap.Error":
			code = append(code, "error")
		case strings.HasPrefix(name, "zap.") && len(call.Args) == 2, name == "printable":
			if text := stringsIn(call.Args[0]); len(text) == 1 {
				code = append(code, text[0])
			}
		}
	})
	sameNames(t, "log field", firstNames(t, "Log fields"), code)
}

// A message without a code is one that Info or Debug writes, by a call of its own or as an entry
// that is logged later.
func TestNamesOfLogLines(t *testing.T) {
	var code []string
	callsOf(t, func(name string, call *ast.CallExpr) {
		switch {
		case name == "Info" && len(call.Args) > 1:
			code = append(code, stringsIn(call.Args[0])...)
		case name == "Check" && len(call.Args) == 2:
			code = append(code, stringsIn(call.Args[1])...)
		}
	})
	for _, file := range parsed(t, "sync") {
		constants := map[string]string{}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if text := stringsIn(n); len(text) == 1 && len(n.Names) == 1 {
					constants[n.Names[0].Name] = text[0]
				}
			case *ast.CompositeLit:
				if of, ok := n.Type.(*ast.Ident); !ok || of.Name != "LogEntry" || len(n.Elts) != 3 {
					return true
				}
				level, isLevel := n.Elts[0].(*ast.SelectorExpr)
				message, isNamed := n.Elts[1].(*ast.Ident)
				if isLevel && isNamed && level.Sel.Name == "InfoLevel" {
					code = append(code, constants[message.Name])
				}
			}
			return true
		})
	}
	sameNames(t, "log line", firstNames(t, "Log lines"), code)
}

func TestNamesOfPlaceholders(t *testing.T) {
	const prefix = "http.rate_limit."
	var code []string
	for _, file := range parsed(t, "internal/answer") {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name != "lookUp" {
					continue
				}
				ast.Inspect(d, func(n ast.Node) bool {
					if c, ok := n.(*ast.CaseClause); ok {
						for _, e := range c.List {
							for _, name := range stringsIn(e) {
								code = append(code, "{"+prefix+"<zone>."+name+"}")
							}
						}
					}
					return true
				})
			case *ast.GenDecl:
				for _, name := range stringsIn(d) {
					if strings.HasPrefix(name, "exceeded.") || strings.HasPrefix(name, "would_deny.") {
						code = append(code, "{"+prefix+name+"}")
					}
				}
			}
		}
	}
	sameNames(t, "placeholder", firstNames(t, "Placeholders"), code)
}

func TestNamesOfTheEvent(t *testing.T) {
	names := map[string]bool{}
	var data []string
	for _, file := range parsed(t, "internal/answer") {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if strings.HasSuffix(n.Names[0].Name, "Event") {
					names[stringsIn(n)[0]] = true
				}
			case *ast.CompositeLit:
				if m, ok := n.Type.(*ast.MapType); ok && slices.Equal(identsIn(m), []string{"string", "any"}) {
					for _, e := range n.Elts {
						data = append(data, stringsIn(e.(*ast.KeyValueExpr).Key)...)
					}
				}
			}
			return true
		})
	}
	sameNames(t, "event's data", firstNames(t, "The event"), data)
	page := readPage(t, namesPage)
	for name := range maps.Keys(names) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s doesn't have the event %q", namesPage, name)
		}
	}
	if len(names) == 0 {
		t.Error("found no event in the code")
	}
}

func identsIn(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}
