package ratelimit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// block is a fenced block of a page.
type block struct {
	page, language, text string
	line                 int
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

func readPage(t testing.TB, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages are those at the top, in docs, in docs/internals and in docs/migration.
func pages(t testing.TB) []string {
	t.Helper()
	pages := []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/internals/*.md", "docs/migration/*.md"} {
		all, err := filepath.Glob(pattern)
		if err != nil || len(all) == 0 {
			t.Fatalf("Glob(%s) = %d files, %v", pattern, len(all), err)
		}
		pages = append(pages, all...)
	}
	return pages
}

// blocksOf are a page's fenced blocks of a language.
func blocksOf(t testing.TB, page, language string) (all []block) {
	t.Helper()
	var open *block
	for i, line := range strings.Split(readPage(t, page), "\n") {
		switch {
		case open != nil && line == "```":
			if open.language == language {
				all = append(all, *open)
			}
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			open = &block{page: page, language: strings.TrimPrefix(line, "```"), line: i + 2}
		}
	}
	if open != nil {
		t.Errorf("%v: the block has no end", open)
	}
	return all
}

// validate loads a configuration as far as caddy validate does.
func validate(t testing.TB, where string, config []byte) {
	t.Helper()
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		t.Errorf("%s: StrictUnmarshalJSON: %v", where, err)
		return
	}
	c.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{Level: "ERROR"}}}}
	if err := caddy.Validate(&c); err != nil {
		t.Errorf("%s: Validate: %v", where, err)
	}
}

// validateCaddyfile also wants it written as caddy fmt writes it.
func validateCaddyfile(t testing.TB, where, text string) {
	t.Helper()
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Errorf("%s: Adapt: %v", where, err)
		return
	}
	for _, w := range warnings {
		t.Errorf("%s: Adapt warns: %v", where, w)
	}
	validate(t, where, config)
}

func TestCaddyfilesOfThePagesLoad(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		for _, b := range blocksOf(t, page, "caddyfile") {
			validateCaddyfile(t, b.String(), b.text)
			n++
		}
	}
	if n < 10 {
		t.Errorf("found %d caddyfile blocks in the pages, want more", n)
	}
}

func TestJSONOfThePagesLoads(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		for _, b := range blocksOf(t, page, "json") {
			if strings.Contains(b.text, `"apps"`) {
				validate(t, b.String(), []byte(b.text))
				n++
			}
		}
	}
	if n == 0 {
		t.Error("found no JSON configuration in the pages")
	}
}

func TestCaddyfileExampleLoads(t *testing.T) {
	for _, url := range []string{"", "redis://localhost:6379/0"} {
		t.Setenv("REDIS_URL", url)
		validateCaddyfile(t, fmt.Sprintf("Caddyfile.example with REDIS_URL=%q", url), readPage(t, "Caddyfile.example"))
	}
}

// What a newcomer starts first says nothing but what it does: neither we nor Caddy warn of
// anything.
func TestCaddyfileExampleStartsClean(t *testing.T) {
	r := redistest.Start(t)
	for _, url := range []string{"", r.URL} {
		if url != "" {
			t.Setenv("REDIS_URL", url)
		}
		path := filepath.Join(t.TempDir(), "log")
		text := strings.NewReplacer(
			":8080", ":"+strconv.Itoa(redistest.FreePort(t)), ":8081", ":"+strconv.Itoa(redistest.FreePort(t)),
			"admin localhost:2019", "admin 127.0.0.1:"+strconv.Itoa(redistest.FreePort(t))+"\n\tpersist_config off\n\tlog {\n\t\toutput file "+path+"\n\t\tformat json\n\t}",
		).Replace(readPage(t, "Caddyfile.example"))
		config, err := adapt(text)
		if err != nil {
			t.Fatal(err)
		}
		if app := appIn(t, config); (url == "") != (app.Redis.URL == redisconn.Off) {
			t.Errorf("with REDIS_URL=%q the redis is %q", url, app.Redis.URL)
		}
		if err := errors.Join(caddy.Load(config, true), caddy.Stop()); err != nil {
			t.Fatal(err)
		}
		log := readPage(t, path)
		if !strings.Contains(log, "server running") {
			t.Errorf("no server was started: %s", log)
		}
		for line := range strings.Lines(log) {
			if !strings.Contains(line, `"level":"info"`) {
				t.Errorf("with REDIS_URL=%q the log has %s", url, line)
			}
		}
	}
}

// functions are those of this package, outside of its tests.
func functions(t *testing.T) (all []*ast.FuncDecl) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := goparser.ParseFile(token.NewFileSet(), name, nil, goparser.ParseComments|goparser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				all = append(all, f)
			}
		}
	}
	return all
}

// grammarOn is the indented block in the comment of a function.
func grammarOn(t *testing.T, function string) string {
	t.Helper()
	for _, f := range functions(t) {
		if f.Name.Name != function {
			continue
		}
		var code strings.Builder
		for line := range strings.Lines(f.Doc.Text()) {
			if line == "\n" || line[0] == '\t' {
				code.WriteString(strings.TrimPrefix(line, "\t"))
			}
		}
		return strings.Trim(code.String(), "\n") + "\n"
	}
	t.Fatalf("there is no function %s", function)
	return ""
}

func TestGrammarIsTheSameOnItsPage(t *testing.T) {
	var in []string
	for _, b := range blocksOf(t, "docs/grammar.md", "text") {
		in = append(in, b.text)
	}
	for _, function := range []string{"UnmarshalCaddyfile", "parseGlobalOption"} {
		if grammar := grammarOn(t, function); !slices.Contains(in, grammar) {
			t.Errorf("docs/grammar.md has no text block with the grammar on %s:\n%s", function, grammar)
		}
	}
}

// knownOptions are the cases of the parser's switches over an option, and the keys of its maps of
// texts.
func knownOptions(t *testing.T) (all []string) {
	t.Helper()
	for _, f := range functions(t) {
		if f.Recv == nil || !strings.HasSuffix(strings.ToLower(types.ExprString(f.Recv.List[0].Type)), "parser") {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			var literals []ast.Expr
			switch n := n.(type) {
			case *ast.CaseClause:
				literals = n.List
			case *ast.KeyValueExpr:
				literals = []ast.Expr{n.Key}
			}
			for _, e := range literals {
				if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
					option, err := strconv.Unquote(l.Value)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, option)
				}
			}
			return true
		})
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestEveryOptionIsDocumented(t *testing.T) {
	page := readPage(t, "docs/options.md")
	options := knownOptions(t)
	if len(options) < 45 {
		t.Fatalf("found %d options in the parser, want more: %v", len(options), options)
	}
	var named []string
	for _, m := range regexp.MustCompile("`([a-z0-9_]+)[ `]").FindAllStringSubmatch(page, -1) {
		named = append(named, m[1])
	}
	for _, option := range options {
		if !slices.Contains(named, option) {
			t.Errorf("docs/options.md doesn't name the option %s", option)
		}
	}
	for _, names := range [][]string{algorithms.KindNames(), config.EmptyKeyNames, config.OnRedisLossNames, answer.HeaderSetNames} {
		for _, name := range names {
			if !regexp.MustCompile("[`| ]" + name + "[`|.]").MatchString(page) {
				t.Errorf("docs/options.md doesn't name the choice %s", name)
			}
		}
	}
}

func TestLinksOfThePagesLead(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(readPage(t, page), -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", page, m[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchorsOf(t, target), anchor) {
				t.Errorf("%s: the link %s: %s has no such heading", page, m[1], target)
			}
		}
	}
}

// Each page for users answers one question, which is its title, and is found from the README, or
// from the list of migrations. Notes for those who change Tide are found from another page.
func TestEveryPageIsFoundAndHasOneQuestion(t *testing.T) {
	for _, page := range pages(t) {
		dir, name := filepath.Split(filepath.ToSlash(page))
		from, link := []string{"README.md"}, page
		switch dir {
		case "docs/":
		case "docs/migration/":
			from, link = []string{"docs/migration.md"}, "migration/"+name
		case "docs/internals/":
			from, link = pages(t), "internals/"+name
		default:
			continue
		}
		if !slices.ContainsFunc(from, func(p string) bool { return p != page && strings.Contains(readPage(t, p), "]("+link) }) {
			t.Errorf("%s is linked from none of %v", page, from)
		}
		var titles []string
		code := false
		for line := range strings.Lines(readPage(t, page)) {
			if strings.HasPrefix(line, "```") {
				code = !code
			} else if strings.HasPrefix(line, "# ") && !code {
				titles = append(titles, strings.TrimSpace(line))
			}
		}
		if len(titles) != 1 || dir != "docs/internals/" && !strings.HasSuffix(titles[0], "?") {
			t.Errorf("%s has the titles %q, want one, which is a question", page, titles)
		}
	}
}

// words counts those of a page as wc -w does: tables, code and marks as well.
func words(t *testing.T, page string) int {
	t.Helper()
	return len(strings.Fields(readPage(t, page)))
}

// Pages for users are short, all in all and each: a guide answers its question, and evidence is in
// docs/internals. What is generated lists one thing after the other, so it may be longer. All are
// counted by wc -w README.md docs/*.md docs/migration/*.md.
func TestPagesAreShort(t *testing.T) {
	const all, generated, guide, migration = 25_000, 2_600, 1_200, 600
	sum := 0
	for _, page := range pages(t) {
		dir, name := filepath.Split(filepath.ToSlash(page))
		most := map[string]int{"": guide, "docs/": guide, "docs/migration/": migration}[dir]
		switch {
		case dir == "docs/internals/", dir == "" && name != "README.md":
			continue
		case slices.Contains(strings.Fields("options.md warnings.md"), name):
			most = generated
		}
		n := words(t, page)
		if dir != "examples/" {
			sum += n
		}
		if most > 0 && n > most {
			t.Errorf("%s has %d words, at most %d: what is evidence goes to docs/internals", page, n, most)
		}
	}
	if sum > all {
		t.Errorf("README.md and the pages outside docs/internals have %d words, at most %d", sum, all)
	}
}

// Each page for users has a picture, except those in which one looks up a name.
func TestEachPageHasAPicture(t *testing.T) {
	for _, page := range pages(t) {
		dir, name := filepath.Split(filepath.ToSlash(page))
		if dir != "docs/" && dir != "docs/migration/" || slices.Contains(strings.Fields("grammar.md metrics.md names.md options.md warnings.md"), name) {
			continue
		}
		m := regexp.MustCompile(`(?m)^\[?!\[[^]]{10,}\]\(([a-z0-9/._-]+)\)`).FindStringSubmatch(readPage(t, page))
		if m == nil {
			t.Errorf("%s has no picture", page)
		} else if _, err := os.Stat(filepath.Join(filepath.Dir(page), filepath.FromSlash(m[1]))); err != nil {
			t.Errorf("%s: %v", page, err)
		}
	}
}

// A blank line ends a table, and what follows is shown with its marks.
func TestTablesOfThePagesHaveNoGaps(t *testing.T) {
	for _, page := range pages(t) {
		lines := strings.Split(readPage(t, page), "\n")
		for i := 1; i < len(lines)-2; i++ {
			row := func(i int) bool { return strings.HasPrefix(lines[i], "|") }
			if lines[i] == "" && row(i-1) && row(i+1) && !strings.HasPrefix(lines[i+2], "|--") {
				t.Errorf("%s:%d: a blank line in a table", page, i+1)
			}
		}
	}
}

// anchorsOf are a page's headings as links name them.
func anchorsOf(t *testing.T, page string) (all []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(readPage(t, page), -1) {
		anchor := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(anchor, " ", "-"))
	}
	return all
}

// Every file and directory of the repository that a page names is there. In commands that run in
// bench, a path is relative to that directory.
func TestFilesOfThePagesExist(t *testing.T) {
	named := 0
	exists := func(name string) bool {
		_, err := os.Stat(filepath.FromSlash(name))
		return err == nil
	}
	for _, page := range pages(t) {
		text := readPage(t, page)
		for _, m := range regexp.MustCompile("`([A-Za-z_./]+\\.(?:go|lua|md|svg|txt|example))`").FindAllStringSubmatch(text, -1) {
			named++
			if !exists(m[1]) && (strings.Contains(m[1], "/") || page == "CONTRIBUTING.md") {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile("\\bgo (?:run|test|build|vet)\\b[^\n`|]*? (\\./[a-z/]+)").FindAllStringSubmatch(text, -1) {
			named++
			if !exists(m[1]) && !exists("bench/"+m[1]) {
				t.Errorf("%s has a command for %s, which is not there", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`((?:internal|bench|cmd|sync|algorithms|testdata)(?:/[a-z]+)*)/?`").FindAllStringSubmatch(text, -1) {
			named++
			if !exists(m[1]) {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
	}
	if named < 60 {
		t.Errorf("found %d names of files in the pages, want more", named)
	}
}

// What the map and the guide name in a file is declared there.
func TestDeclarationsOfTheMapExist(t *testing.T) {
	pairs := regexp.MustCompile("`([A-Za-z][\\w.]*)`\\s+(?:in\\s+|\\()`([\\w./]+\\.go)`|`([\\w./]+\\.go)`: `([A-Za-z][\\w.]*)`")
	found := 0
	for _, page := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		for _, m := range pairs.FindAllStringSubmatch(readPage(t, page), -1) {
			name, file := m[1]+m[4], m[2]+m[3]
			found++
			declares := regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|type |var |const |\t)` + name[strings.LastIndexByte(name, '.')+1:] + `\b`)
			if !declares.MatchString(readPage(t, file)) {
				t.Errorf("%s names %s in %s, which does not declare it", page, name, file)
			}
		}
	}
	if found < 30 {
		t.Errorf("found %d names of declarations, want more", found)
	}
}

// Where the comment of a package lists its files, it lists those that there are.
func TestPackagesListTheirFiles(t *testing.T) {
	listed := regexp.MustCompile(`(?m)^//\t([a-z_]+\.go)\s`)
	packages := 0
	for _, pattern := range []string{"sync/*.go", "sync/*/*.go", "internal/*/*.go", "algorithms/*.go", "algorithms/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		lists, has := map[string][]string{}, map[string][]string{}
		for _, file := range files {
			dir, name := filepath.Split(file)
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			if name != "doc.go" {
				has[dir] = append(has[dir], name)
			}
			for _, m := range listed.FindAllStringSubmatch(readPage(t, file), -1) {
				lists[dir] = append(lists[dir], m[1])
			}
		}
		for dir, list := range lists {
			packages++
			if slices.Sort(list); !slices.Equal(list, has[dir]) {
				t.Errorf("%s has %q, and its comment lists %q", dir, has[dir], list)
			}
		}
	}
	if packages < 4 {
		t.Errorf("found %d packages that list their files, want more", packages)
	}
}

// Every test and benchmark that a page names or runs is there.
func TestTestsOfThePagesExist(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile("`((?:Test|Benchmark|Fuzz)[A-Z]\\w+)`").FindAllStringSubmatch(readPage(t, page), -1) {
			named++
			if !strings.Contains(source.String(), "func "+m[1]+"(") {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile("-(?:run|bench)[ \n]+'?([A-Za-z|]+)").FindAllStringSubmatch(readPage(t, page), -1) {
			for name := range strings.SplitSeq(m[1], "|") {
				named++
				if !regexp.MustCompile("func [A-Za-z]*" + name).MatchString(source.String()) {
					t.Errorf("%s has a command that runs %s, and there is no such test", page, name)
				}
			}
		}
	}
	if named < 50 {
		t.Errorf("found %d names of tests in the pages, want more", named)
	}
}

// xcaddy.txt builds the Caddy that the module is tested with.
func TestXcaddyMatchesGoMod(t *testing.T) {
	var args []string
	for _, line := range strings.Split(readPage(t, "xcaddy.txt"), "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			args = append(args, line)
		}
	}
	mod := readPage(t, "go.mod")
	m := regexp.MustCompile(`github\.com/caddyserver/caddy/v2 (v\S+)`).FindStringSubmatch(mod)
	if m == nil {
		t.Fatal("go.mod doesn't require github.com/caddyserver/caddy/v2")
	}
	if len(args) != 3 || args[0] != m[1] || args[1] != "--with" {
		t.Fatalf("xcaddy.txt = %q, want %s --with <module>, as in go.mod", args, m[1])
	}
	path, _, _ := strings.Cut(args[2], "@")
	if !bytes.HasPrefix([]byte(mod), []byte("module "+path+"\n")) {
		t.Errorf("xcaddy.txt builds with %s, which is not the module of go.mod", path)
	}
	if want := "xcaddy build " + m[1] + " --with " + path; !strings.Contains(readPage(t, "README.md"), want+"`") {
		t.Errorf("README.md doesn't say `%s`", want)
	}
}

// everyKind is a zone with each algorithm.
func everyKind(t testing.TB, syncRate config.SyncRate) (all []config.Settings) {
	t.Helper()
	one, hundred := int64(1), int64(100)
	for _, algorithm := range algorithms.KindNames() {
		z := &Zone{Limits: []Limit{{MaxEvents: config.Events{Number: hundred}, Window: caddy.Duration(time.Minute)}}, Algorithm: algorithm, SyncRate: &syncRate, CountDenied: true}
		if algorithm == "leaky_bucket" {
			z.Queue = &one
		}
		s, _, err := z.settings(syncRate, globals{hasRedis: syncRate >= 0})
		if err != nil {
			t.Fatal(err)
		}
		s.Name = algorithm
		all = append(all, s)
	}
	return all
}

// newZone compiles a zone that belongs to no handler.
func newZone(t testing.TB, o limits.ZoneOptions) *limits.Zone {
	t.Helper()
	z, err := limits.NewZone(o)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// firstOf is the limit of a zone with the shortest window.
func firstOf(z *limits.Zone) *limits.Limit {
	for l := range z.Each {
		return l
	}
	return nil
}

// aclOf is the user in docs/redis.md: its name, its password and its rules.
func aclOf(t *testing.T) (user, password, rules string) {
	t.Helper()
	for _, b := range blocksOf(t, "docs/redis.md", "text") {
		if m := regexp.MustCompile(`^user (\S+) (on >(\S+) .*)\n$`).FindStringSubmatch(b.text); m != nil {
			return m[1], m[3], m[2]
		}
	}
	t.Fatal("docs/redis.md has no ACL user")
	return "", "", ""
}

func TestDocumentedACLIsEnough(t *testing.T) {
	user, password, rules := aclOf(t)
	server := redistest.Start(t, redistest.User(user, rules))
	checkACL(t, server, strings.Replace(server.URL, "://", "://"+user+":"+password+"@", 1))
}

func TestDocumentedACLIsEnoughInACluster(t *testing.T) {
	user, password, rules := aclOf(t)
	more := regexp.MustCompile("a Cluster: `([^`]+)`").FindStringSubmatch(readPage(t, "docs/redis.md"))
	if more == nil {
		t.Fatal("docs/redis.md doesn't say what a Cluster needs")
	}
	cluster := redistest.StartCluster(t, 3, redistest.User(user, rules+" "+more[1]))
	for _, node := range cluster.Nodes {
		defer func() { checkACLLog(t, node) }()
	}
	checkACL(t, cluster.Nodes[0], strings.Replace(cluster.URL, "://", "://"+user+":"+password+"@", 1))
}

func TestDocumentedACLIsEnoughUnderSentinel(t *testing.T) {
	user, password, rules := aclOf(t)
	more := regexp.MustCompile("`sentinel_username`\\): `([^`]+)`").FindStringSubmatch(readPage(t, "docs/redis.md"))
	if more == nil {
		t.Fatal("docs/redis.md doesn't say what sentinels need")
	}
	watched := redistest.StartSentinel(t, redistest.User(user, rules))
	rule := []any{"ACL", "SETUSER", "watcher", "on", ">other"}
	for one := range strings.FieldsSeq(more[1]) {
		rule = append(rule, one)
	}
	watched.Sentinel.Do(rule...)
	url := strings.Replace(watched.URL, "://", "://"+user+":"+password+"@", 1) + "&sentinel_username=watcher&sentinel_password=other"
	checkACL(t, watched.Master, url)
	checkACLLog(t, watched.Sentinel)
}

func checkACLLog(t *testing.T, server *redistest.Server) {
	t.Helper()
	if denied, ok := server.Do("ACL", "LOG").([]any); !ok || len(denied) > 0 {
		t.Errorf("ACL LOG = %v, want nothing denied", denied)
	}
}

// checkACL syncs and decides with every algorithm.
func checkACL(t *testing.T, server *redistest.Server, url string) {
	t.Helper()
	set, err := redisconn.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client, err := set.Client()
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	defer client.Close()
	shared := limits.BorrowRedis(client, limits.RedisOptions{
		Namespace: redisconn.DefaultNamespace, Timeout: 5 * time.Second, StrictTimeout: 5 * time.Second, Logger: zap.New(core),
	})
	current := &lifecycle.Config{Logger: zap.NewNop(), Redis: shared, StrictTimeout: 5 * time.Second}
	add := func(s config.Settings, namespace string) *limits.Limit {
		z := newZone(t, limits.ZoneOptions{Settings: s, Namespace: namespace, Redis: shared, Sweep: time.Minute})
		t.Cleanup(z.Release)
		current.Add(z)
		return firstOf(z)
	}
	var synced, charged []*limits.Limit
	for _, s := range everyKind(t, config.SyncRate(config.MinSync)) {
		synced = append(synced, add(s, "synced"))
	}
	for _, s := range everyKind(t, config.Strict) {
		charged = append(charged, add(s, "strict"))
	}
	current.Start()
	defer current.Stop()
	share := 0.5
	o, err := shared.Control.Change(t.Context(), control.Change{Target: control.Target{Zone: "any"}, Body: control.Body{Share: &share}, For: time.Hour})
	if err != nil || o.Applied != 1 || o.Unsent {
		t.Errorf("a change at run time: %+v, %v", o, err)
	}

	raw := []byte("key")
	for _, l := range synced {
		l.Take(keys.KeyOf(raw), raw, clock.Now(), 1, 0)
		redistest.Eventually(t, l.Settings.Name+" is synced", func() bool { return l.Totals().Own == 1 && l.Totals().Unsent == 0 })
	}
	redistest.Eventually(t, "the node is known", func() bool { return shared.Replicator.Status().Up && shared.Replicator.Status().Nodes == 1 })

	for _, l := range charged {
		checkACLStrict(t, shared, l, raw)
	}
	for _, l := range charged {
		redistest.Eventually(t, l.Settings.Name+" is charged", func() bool { return l.Totals().Unsent == 0 })
	}
	if n := logs.Len(); n > 0 {
		t.Errorf("the sync warns: %v", logs.All())
	}
	checkACLLog(t, server)
}

// checkACLStrict has Redis decide for a limit, refund and charge denied requests, and the node
// decide alone, for which it is charged.
func checkACLStrict(t *testing.T, shared *limits.Redis, l *limits.Limit, raw []byte) {
	t.Helper()
	s := l.Settings
	rules := []strict.Rule{strict.Rule(s.Params(config.Rate{Limit: 1, Window: l.Rate.Window}))}
	rules[0].CountsDenied = true
	for i := range 4 {
		v, g, err := shared.Strict.Take(t.Context(), s.Name, rules, keys.IDOf(raw), 1, nil)
		if err != nil {
			t.Fatalf("%s: Take = %v, %v", s.Name, v, err)
		}
		if i == 0 {
			shared.Strict.Refund(g)
		}
	}
	l.Take(keys.KeyOf(raw), raw, clock.Now(), 1, 0)
}

// BenchmarkMemoryPerKey is what a key costs in memory, with its place in the table: the figures of
// docs/internals/costs.md.
func BenchmarkMemoryPerKey(b *testing.B) {
	const keys = 200_000
	all := everyKind(b, config.Local)
	ten := all[slices.IndexFunc(all, func(s config.Settings) bool { return s.Kind == algorithms.SlidingWindow })]
	ten.Name, ten.Buckets = "sliding_window_10_buckets", 10
	for _, s := range append(all, ten) {
		for _, hits := range []int{1, 100} {
			if hits > 1 && s.Kind != algorithms.SlidingLog {
				continue
			}
			b.Run(fmt.Sprintf("%s/requests=%d", s.Name, hits), func(b *testing.B) {
				b.ReportMetric(0, "ns/op")
				for range b.N {
					before := heapBytes()
					z := newZone(b, limits.ZoneOptions{Settings: s})
					fill(firstOf(z), keys, hits)
					b.ReportMetric(float64(heapBytes()-before)/keys, "B/key")
					z.Release()
				}
			})
		}
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// fill makes requests of many keys, and comes back to them in the next sub-window where a window
// has several.
func fill(l *limits.Limit, keyCount, hits int) {
	now, raw := clock.Now(), make([]byte, 8)
	for sub := range l.Settings.Buckets {
		at := now + int64(sub)*int64(l.Rate.Window)/int64(l.Settings.Buckets)
		for key := range keyCount {
			binary.LittleEndian.PutUint64(raw, uint64(key))
			for hit := range hits {
				l.Take(keys.KeyOf(raw), raw, at+int64(hit)*1000, 1, 0)
			}
		}
	}
}

// What the pages of load errors show is rejected, with the text below it.
func TestLoadErrorsOfThePage(t *testing.T) {
	var rejected, texts []block
	for _, page := range []string{"docs/load-errors.md", "docs/internals/load-errors.md"} {
		rejected = append(rejected, blocksOf(t, page, "caddyfile rejected")...)
		texts = append(texts, blocksOf(t, page, "text")...)
	}
	if len(rejected) < 10 || len(rejected) != len(texts) {
		t.Fatalf("%d configurations and %d texts", len(rejected), len(texts))
	}
	for i, b := range rejected {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(b.text), map[string]any{"filename": "Caddyfile"})
		if want := strings.Join(strings.Fields(texts[i].text), " "); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v: Adapt: %v, want %s", b, err, want)
		}
	}
}

// Who follows the pages builds a Caddy that starts where there is no C library.
func TestPagesBuildWithoutC(t *testing.T) {
	builds := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				if !strings.Contains(line, "go build ") || !strings.Contains(line, "./cmd/caddy") || strings.Contains(line, "GOCACHE=") {
					continue // the last is the one that was measured
				}
				if builds++; !strings.Contains(line, "CGO_ENABLED=0 go build ") {
					t.Errorf("%s: it links the C library: %s", page, line)
				}
			}
		}
	}
	if builds < 3 {
		t.Errorf("%d lines that build a Caddy", builds)
	}
}
