// no clock: configurations are only read.

package recipes_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// exampleOf is an example in a message: more than the name of an option.
var exampleOf = regexp.MustCompile("`([a-z@*\"][^`\n]*[ :][^`\n]*)`")

// examplesInMessages are those of all texts in the code that Caddyfiles meet, as far as they stand
// there in full, and of all messages in goldens.
func examplesInMessages(t *testing.T) (all []string) {
	t.Helper()
	add := func(text string) {
		for _, found := range exampleOf.FindAllStringSubmatch(text, -1) {
			all = append(all, found[1])
		}
	}
	for _, pattern := range []string{"*.go", "internal/config/*.go", "internal/reqkey/*.go", "internal/limits/*.go", "internal/redisconn/*.go", "internal/lifecycle/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, `"`) {
					text, _ := strconv.Unquote(lit.Value)
					add(text)
				}
				return true
			})
		}
	}
	for _, pattern := range []string{"testdata/errors/*test", "testdata/warnings/*test"} {
		files, _ := filepath.Glob(pattern)
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			_, messages, _ := strings.Cut(string(text), "----------\n")
			add(messages)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// places are where an example may stand in a Caddyfile: the message that has it says in which.
var places = []string{
	"{\n%s\n}\n:80",
	"{\nservers {\n%s\n}\n}\n:80",
	"{\nrate_limit {\n%s\n}\n}\n:80",
	"{\nrate_limit {\nredis redis://localhost:6379\n%s\n}\n}\n:80 {\nrate_limit 5/1m\n}",
	"{\nrate_limit {\nregions {\nhere eu\nregion eu redis://eu\n%s\n}\n}\n}\n:80",
	"{\nrate_limit {\nregions {\nhere eu\nregion us redis://us\n%s\n}\n}\n}\n:80",
	"(limits) {\nrate_limit {args[0]}\n}\n(strict) {\nrate_limit {args[0]}\n}\n:80 {\n%s\n}",
	":80 {\n%s\n}",
	":80 {\n@path path /p\n@auth path /a\n@a path /a\n@api path /api\n@internal path /i\n@paying path /paid\n%s\n}",
	":80 {\nrate_limit 5/1m {\n%s\n}\n}",
	":80 {\nrate_limit {\n%s\n}\n}",
	":80 {\nrate_limit {\n%s {\nlimit 5/1m\n}\n}\n}",
	":80 {\n@a path /a\n@api path /api\n@internal path /i\n@paying path /paid\nrate_limit {\nzone z {\n%s\n}\n}\n}",
	":80 {\n@a path /a\n@api path /api\n@internal path /i\n@paying path /paid\nrate_limit {\nzone z {\nlimit 100/1m\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/month\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit {plan}/1m\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit {plan}/1h\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit {plan}/1d\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit_default 5/1m\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit_default 5/1h\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nwindow 1m\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nevents 5\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\nalgorithm leaky_bucket\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\nalgorithm token_bucket\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\ncost {units}\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\ncost_default 5\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\ncost_default 5\ncost bytes %s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\nqueue 5\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\nresponse_cost json usage.total\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\ncount_responses 401\n%s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\nban 15m %s\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\nmatch {\n%s\n}\n}\n}\n}",
	":80 {\nrate_limit {\nzone z {\nlimit 100/1m\nexcept {\n%s\n}\n}\n}\n}",
	":80 {\nroute {\n%s\n}\n}",
	":80 {\nreverse_proxy localhost:1 {\n%s\n}\n}",
}

// Whoever copies an example out of an error or a warning has something that loads, in a place where
// it may stand. Names of options alone, what is elided, and what has yet to be filled in are no
// examples.
func TestExamplesInMessagesLoad(t *testing.T) {
	tried := 0
	for _, example := range examplesInMessages(t) {
		if strings.ContainsAny(example, "…%") {
			continue
		}
		tried++
		if strings.HasPrefix(example, `"`) {
			if !json.Valid([]byte("{" + example + "}")) {
				t.Errorf("`%s` is not JSON", example)
			}
			continue
		}
		loads := slices.ContainsFunc(places, func(place string) bool {
			_, err := sitetest.Adapt(strings.Replace(place, "%s", example, 1))
			return err == nil
		})
		if !loads {
			t.Errorf("`%s` loads nowhere", example)
		}
	}
	if tried < 60 {
		t.Errorf("%d examples were found, want 60 at least", tried)
	}
}
