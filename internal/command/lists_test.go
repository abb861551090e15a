package command

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/operate"
)

func TestListsArePrinted(t *testing.T) {
	const who = `"id":"2ca8bc42000000000000000000000000","since":"2026-05-04T11:50:00Z","until":"2026-05-04T12:05:00Z"`
	at := func() time.Time { return noon }
	for name, test := range map[string]struct {
		line, answer string
	}{
		"bans": {"bans login", `{"bans":[{"zone":"login",` + who + `,"key":"203.0.113.9","why":"denied 3 times in 10m by 5/1m"},
			{"zone":"try",` + who + `,"why":"denied by 5/1m","shadow":true},
			{"zone":"api",` + who + `,"why":"deny","by":"root@web1","note":"\u001b[31mred"}],"more":7}`},
		"bans_none":      {"bans", `{"bans":[]}`},
		"overrides":      {"overrides api", `[{"zone":"api",` + who + `,"key":"203.0.113.9","limit":"9000/1m","temporary":true,"by":"root@web1","note":"ticket 4711"},{"zone":"api",` + who + `,"key":"203.0.113.9","limit":"6000/1m","covered":true,"by":"root@web1"},{"zone":"old",` + who + `,"limit":"deny","no_zone":true}]`},
		"overrides_none": {"overrides", `[]`},
		"nodes":          {"nodes", `[{"name":"web1/412","version":"v1.2.0","heard":"2026-05-04T11:59:59Z","applied":true,"self":true},{"name":"web2/7","version":"v1.2.0","heard":"2026-05-04T11:59:50Z","applied":false},{"name":"web3/9","version":"v1.2.0","heard":"2026-05-04T11:59:40Z","applied":false}]`},
		"nodes_none":     {"nodes", `[]`},
	} {
		c, asked := endpoint(t, http.StatusOK, test.answer)
		var b bytes.Buffer
		if err := listOf(t, printer{out: &b, now: at}, c, strings.Fields(test.line)[0]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden(t, "list_"+name+".golden", b.String())
		if _, err := execute(t, c, strings.Fields(test.line)...); err != nil || !strings.HasPrefix(*asked, "GET /rate_limit/"+strings.Fields(test.line)[0]) {
			t.Errorf("%s asks %s, %v", test.line, *asked, err)
		}
		if out, err := execute(t, c, append(strings.Fields(test.line), "--json")...); err != nil || !json.Valid([]byte(out)) {
			t.Errorf("%s --json prints %q, %v", test.line, out, err)
		}
	}
}

// listOf prints a list at a time of its own.
func listOf(t *testing.T, p printer, c client, name string) error {
	t.Helper()
	switch name {
	case "bans":
		return show(p, c, http.MethodGet, operate.BansPath, nil, p.bans)
	case "nodes":
		return show(p, c, http.MethodGet, operate.NodesPath, nil, p.listNodes)
	}
	return show(p, c, http.MethodGet, operate.OverridesPath, nil, p.listOverrides)
}

// What the endpoint says is wrong is one sentence, without JSON around it.
func TestErrorsAreSentences(t *testing.T) {
	c, _ := endpoint(t, http.StatusNotFound, `{"error":"there is no zone \"adress\"; did you mean \"address\"?"}`+"\n")
	want := `there is no zone "adress"; did you mean "address"?`
	if _, err := execute(t, c, "enforce", "adress", "off"); err == nil || err.Error() != want {
		t.Errorf("it says %v, want %s", err, want)
	}
	c, _ = endpoint(t, http.StatusBadGateway, "<html>{oops")
	if _, err := execute(t, c, "status"); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("what is no JSON comes out as %v", err)
	}
}

func TestOverridesOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "customers.csv")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"a,600/1m\n# none\n\n\"b,c\",unlimited,\"Smith, Ltd\"\n": `[{"key":"a","limit":"600/1m"},{"key":"b,c","limit":"unlimited","note":"Smith, Ltd"}]`,
		"\ufeffnote,limit,key,for\r\nExample Ltd,deny,x,2h\r\n":  `[{"key":"x","limit":"deny","for":"2h","note":"Example Ltd"}]`,
		"id,limit\n2ca8bc42,5\n":                                 `[{"id":"2ca8bc42","limit":"5"}]`,
	} {
		write(text)
		c, asked := endpoint(t, http.StatusOK, `{"zone":"api","set":2,"nodes":3,"applied":3,"shared":true}`)
		out, err := execute(t, c, "override", "api", "--file", file, "--for", "forever")
		if all := `POST /rate_limit/overrides/bulk {"zone":"api","for":"forever","overrides":` + want + "}"; err != nil || *asked != all || out != "OVERRIDES OF  SET\napi           2\nApplied by 3 of 3 nodes.\n" {
			t.Errorf("%q asks %s, want %s; it prints %q, %v", text, *asked, all, out, err)
		}
	}
	for text, want := range map[string]string{
		"":                   "has no overrides",
		"a,5\nb\n":           "line 2 has no limit",
		"key,limit\na,5,x\n": "line 2 has 3 values, want key, limit",
		"a,\"5\n":            "extraneous or missing",
	} {
		write(text)
		c, asked := endpoint(t, http.StatusOK, "{}")
		if _, err := execute(t, c, "override", "api", "-f", file); err == nil || !strings.Contains(err.Error(), want) || *asked != "" {
			t.Errorf("%q: %v, want %s; it asks %q", text, err, want, *asked)
		}
	}
	write("key,limit\n\na,5\nb,many\n")
	c, _ := endpoint(t, http.StatusBadRequest, `{"error":"overrides[1]: limit: \"many\" is none"}`)
	if _, err := execute(t, c, "override", "api", "-f", file); err == nil || err.Error() != file+`: line 4: limit: "many" is none; none was set` {
		t.Errorf("a line that the endpoint rejects: %v", err)
	}
	c, _ = endpoint(t, http.StatusOK, "{}")
	for _, line := range []string{"override api k -f " + file, "override api --remove --for 1h -f " + file, "override api -f /none"} {
		if _, err := execute(t, c, strings.Fields(line)...); err == nil {
			t.Errorf("%s is accepted", line)
		}
	}
}

// The overrides of a file are removed by the file that set them, or by one with keys alone.
func TestOverridesOfAFileAreRemoved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "customers.csv")
	for text, want := range map[string]string{
		"a,600/1m\n\"b,c\",unlimited,\"Smith, Ltd\"\n": `[{"key":"a"},{"key":"b,c"}]`,
		"limit,for,id\ndeny,2h,2ca8bc42\n":             `[{"id":"2ca8bc42"}]`,
		"a\nb\n":                                       `[{"key":"a"},{"key":"b"}]`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, asked := endpoint(t, http.StatusOK, `{"zone":"api","set":0,"removed":2,"none":1,"nodes":3,"applied":3,"shared":true}`)
		out, err := execute(t, c, "override", "api", "--remove", "-f", file)
		if all := `DELETE /rate_limit/overrides/bulk {"zone":"api","overrides":` + want + "}"; err != nil || *asked != all || out != "OVERRIDES OF  SET  REMOVED  HAD NONE\napi           0    2        1\nApplied by 3 of 3 nodes.\n" {
			t.Errorf("%q asks %s, want %s; it prints %q, %v", text, *asked, all, out, err)
		}
		c, _ = endpoint(t, http.StatusBadRequest, `{"error":"overrides[0]: key: it is none"}`)
		if _, err := execute(t, c, "override", "api", "--remove", "-f", file); err == nil || !strings.HasSuffix(err.Error(), ": key: it is none; none was removed") {
			t.Errorf("a line that the endpoint rejects: %v", err)
		}
	}
}

// A file may replace all that lasts in a zone: what is not in it is removed.
func TestAFileReplacesAllOverrides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "customers.csv")
	for text, want := range map[string]string{
		"a,600/1m\n": `"overrides":[{"key":"a","limit":"600/1m"}],"replace":true`,
		"# none\n":   `"overrides":null,"replace":true,"force":true`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		line := []string{"override", "api", "--replace", "--file", file}
		c, asked := endpoint(t, http.StatusOK, `{"zone":"api","set":1,"removed":2,"nodes":3,"applied":3,"shared":true}`)
		if strings.Contains(want, "force") {
			if _, err := execute(t, c, line...); err == nil || !strings.Contains(err.Error(), "it has no overrides") || *asked != "" {
				t.Errorf("%q: %v, it asks %q", text, err, *asked)
			}
			line = append(line, "--force")
		}
		out, err := execute(t, c, line...)
		if all := `POST /rate_limit/overrides/bulk {"zone":"api",` + want + "}"; err != nil || *asked != all || out != "OVERRIDES OF  SET  REMOVED\napi           1    2\nApplied by 3 of 3 nodes.\n" {
			t.Errorf("%q asks %s, want %s; it prints %q, %v", text, *asked, all, out, err)
		}
	}
	if err := os.WriteFile(file, []byte("k,5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := endpoint(t, http.StatusBadRequest, `{"error":"this would remove 2 of the 2 overrides of zone \"api\", and set 1; if that is meant, send \"force\": true"}`)
	if _, err := execute(t, c, "override", "api", "--replace", "--file", file); err == nil || !strings.HasSuffix(err.Error(), "; if that is meant, add --force") {
		t.Errorf("where half are removed: %v", err)
	}
	c, _ = endpoint(t, http.StatusOK, "{}")
	for _, line := range []string{"override api --replace", "override api k 5 --replace", "override api --replace --remove -f " + file} {
		if _, err := execute(t, c, strings.Fields(line)...); err == nil {
			t.Errorf("%s is accepted", line)
		}
	}
}

// A ban is for a zone and a key: what else is written after it is no limit.
func TestABanIsNoLimit(t *testing.T) {
	for line, want := range map[string]string{
		"ban login k":               `"limit":"deny"`,
		"ban login k --for 1d":      `"limit":"deny","for":"1d"`,
		"ban login k --remove":      "DELETE",
		"ban login k 60":            "",
		"ban login k unlimited":     "",
		"ban login k 1d --remove":   "",
		"ban login":                 "",
		"ban login --file bans.csv": "",
	} {
		c, asked := endpoint(t, http.StatusOK, `{"nodes":1,"applied":1}`)
		_, err := execute(t, c, strings.Fields(line)...)
		if (err == nil) != (want != "") || want != "" && !strings.Contains(*asked, want) || want == "" && (*asked != "" || !strings.Contains(err.Error(), "--for 1d")) {
			t.Errorf("%s asks %s, %v; want %s", line, *asked, err, want)
		}
	}
}

// Whoever makes a change is named.
func TestOperatorIsNamed(t *testing.T) {
	defer func(was func() string) { operator = was }(operator)
	operator = func() string { return "root@web1" }
	for _, line := range []string{"override api k 5", "enforce api off", "reset api k", "override api k --remove", "enforce api --remove"} {
		c, asked := endpoint(t, http.StatusOK, `{"nodes":1,"applied":1}`)
		if _, err := execute(t, c, strings.Fields(line)...); err != nil || !strings.Contains(*asked, `"by":"root@web1"`) {
			t.Errorf("%s asks %s, %v", line, *asked, err)
		}
	}
}

// The help of each command links to its guide.
func TestGuides(t *testing.T) {
	for _, c := range commands {
		if !strings.HasPrefix(c().Annotations["guide"], docsURL) {
			t.Errorf("%s has the guide %q", c().Name(), c().Annotations["guide"])
		}
	}
	c, _ := endpoint(t, http.StatusOK, "{}")
	out, err := execute(t, c, "bans", "--help")
	if err != nil || !strings.Contains(out, "Guide: "+docsURL+"ban.md#end-a-ban\n") || strings.Contains(out, "caddyserver.com") {
		t.Errorf("the help is %s, %v", out, err)
	}
}

// Colors change nothing but the words of decisions, and only as whole cells.
func TestColors(t *testing.T) {
	text := "The request is denied by login, for 3s.\nZONE  DECISION    KEY\nlogin  admitted  is-denied-by\ntry  would_deny  x\n"
	got := colored(text)
	want := "The request is \x1b[31mdenied\x1b[0m by login, for 3s.\nZONE  DECISION    KEY\nlogin  \x1b[32madmitted\x1b[0m  is-denied-by\ntry  \x1b[33mwould_deny\x1b[0m  x\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if printerTo(new(bytes.Buffer), false).colors {
		t.Error("colors go into what is no terminal")
	}
}

func TestCompletion(t *testing.T) {
	c, _ := endpoint(t, http.StatusOK, `{"zones":[{"zone":"api"},{"zone":"api"},{"zone":"login"}],"bandwidth":[{"zone":"assets"}]}`)
	for line, want := range map[string]string{
		"override |":           "api login assets",
		"override a|":          "api assets",
		"override api k |":     "unlimited deny",
		"override api |":       "",
		"enforce api |":        "on off 5% 25% 50%",
		"enforce --all |":      "on off 5% 25% 50%",
		"top --by |":           "used asked denied",
		"simulate --balance |": "round_robin client",
		"bans l|":              "login",
	} {
		begun := strings.Split(strings.TrimSuffix(line, "|"), " ")
		address, _ := c.address()
		out, err := executeRaw(append([]string{cobra.ShellCompNoDescRequestCmd, "rate-limit", begun[0], "--address", address}, begun[1:]...))
		got := strings.Fields(regexp.MustCompile(`(?m)^(:\d+|Completion ended.*)$`).ReplaceAllString(out, ""))
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s completes to %v (%v), want %s", line, got, err, want)
		}
	}
}

func TestVersion(t *testing.T) {
	c, asked := endpoint(t, http.StatusOK, "{}")
	out, err := execute(t, c, "version")
	if err != nil || !regexp.MustCompile(`(?m)\Arate_limit \S+\ncaddy \S.*\ngo go1\.\d+.*\n\z`).MatchString(out) || *asked != "" {
		t.Errorf("it prints %q, %v, and asks %q", out, err, *asked)
	}
	out, err = execute(t, c, "version", "--json")
	var facts map[string]string
	if err != nil || json.Unmarshal([]byte(out), &facts) != nil || facts["rate_limit"] == "" {
		t.Errorf("as JSON it prints %q, %v", out, err)
	}
}
