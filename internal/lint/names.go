package main

import (
	"regexp"
	"slices"
	"strings"
)

const (
	namesPage, alertsPage = "docs/names.md", "docs/observability.md"
	board, alertsFile     = "deploy/grafana/tide.json", "deploy/grafana/alerts.yml"
)

var alertTests = []string{"deploy/grafana/alerts_test.yml", "deploy/grafana/alerts_week_test.yml"}

// firstNames are the names in the first column of the tables of a section of docs/names.md. What
// programs read as JSON, and log fields that are not stable, have a page of their own.
func (r *repo) firstNames(section string) (names []string) {
	for _, page := range []string{namesPage, "docs/internals/json.md"} {
		for _, cell := range named(`(?m)^\s*\|([^|]*)\|`, between(r.texts[page], "# "+section+"\n", "\n#")) {
			names = append(names, named("`([^`]+)`", cell)...)
		}
	}
	return names
}

// same reports names that a page has and the code has not, or the reverse, or that a page has
// twice.
func (r *repo) same(page, what string, has, code []string) {
	slices.Sort(has)
	slices.Sort(code)
	code = slices.Compact(code)
	for _, name := range code {
		if r.seen++; !slices.Contains(has, name) {
			r.report(page, "it doesn't have the %s %q", what, name)
		}
	}
	for i, name := range has {
		if !slices.Contains(code, name) {
			r.report(page, "it has the %s %q, which the code doesn't have", what, name)
		}
		if i > 0 && has[i-1] == name {
			r.report(page, "it has the %s %q twice", what, name)
		}
	}
}

func (r *repo) logFields() {
	code := named(`\b(?:zap\.[A-Z]\w*|printable)\("(\w+)", `, r.textOf(""))
	if strings.Contains(r.textOf(""), "zap.Error(") {
		code = append(code, "error")
	}
	r.same(namesPage, "log field", r.firstNames("Log fields"), code)
}

// logLines are messages without a code, which are those that Info or Debug writes, by a call of its
// own or as an entry that is logged later.
func (r *repo) logLines() {
	code := r.textOf("")
	lines := named(`(?:\.Info\(|\.Check\(\w[\w.]*, )"([^"]+)"`, code)
	for _, constant := range named(`LogEntry\{zap\.InfoLevel, (\w+),`, code) {
		lines = append(lines, named(`\b`+constant+`\s+= "([^"]+)"`, code)...)
	}
	r.same(namesPage, "log line", r.firstNames("Log lines"), lines)
}

func (r *repo) status() {
	r.same(namesPage, "status field", r.firstNames("Status"), r.fieldsOf("", "operate.State"))
}

// fieldsOf returns the names in JSON of the fields of a struct, and of those of structs of ours in
// it.
func (r *repo) fieldsOf(prefix, of string) (all []string) {
	pkg, name, _ := strings.Cut(of, ".")
	for _, file := range r.product {
		text := r.texts[file]
		if !strings.Contains(text, "\npackage "+pkg+"\n") && !strings.HasPrefix(text, "package "+pkg+"\n") {
			continue
		}
		for _, field := range named(`(?m)^\t([A-Z]\w*\s.*)$`, between(text, "\ntype "+name+" struct {", "\n}")) {
			m := regexp.MustCompile(`^\w+\s+(\[\])?\*?([\w.]+).*json:"(\w+)`).FindStringSubmatch(field)
			if m == nil {
				r.report(file, "a field without a name in JSON: %s", field)
				continue
			}
			if !strings.Contains(m[2], ".") {
				m[2] = pkg + "." + m[2]
			}
			name := prefix + m[3] + m[1]
			all = append(append(all, name), r.fieldsOf(name+".", m[2])...)
		}
	}
	return all
}

// placeholders are the cases of lookUp, which are of a zone, and constants with the beginning of
// the others.
func (r *repo) placeholders() {
	var names []string
	code := r.textOf("internal/answer")
	for _, cases := range named(`(?m)^\s+case (.*):$`, between(code, "\nfunc lookUp(", "\n}\n")) {
		for _, name := range named(`"(\w+)"`, cases) {
			names = append(names, "{http.rate_limit.<zone>."+name+"}")
		}
	}
	for _, name := range named(`"((?:exceeded|would_deny)\.\w+)"`, code) {
		names = append(names, "{http.rate_limit."+name+"}")
	}
	r.same(namesPage, "placeholder", r.firstNames("Placeholders"), names)
}

func (r *repo) events() {
	for _, name := range named(`(?m)^\s+\w+Event\s+= "(\w+)"$`, r.textOf("internal/answer")) {
		if !strings.Contains(r.texts[namesPage], "`"+name+"`") {
			r.report(namesPage, "it doesn't have the event %q", name)
		}
	}
	var data []string
	for _, m := range named(`map\[string\]any\{([^}]*)\}`, r.textOf("internal/answer")) {
		data = append(data, named(`"(\w+)":`, m)...)
	}
	r.same(namesPage, "event's data", r.firstNames("The event"), data)
}

func (r *repo) codes() {
	codes := named(`"(TIDE\d{3})"`, r.textOf(""))
	slices.Sort(codes)
	if once := slices.Compact(slices.Clone(codes)); len(once) != len(codes) {
		r.report("internal/warning", "a code is there twice: %q", codes)
	}
	r.same("docs/warnings.md", "code", named(`(?m)^## (TIDE\d{3})$`, r.texts["docs/warnings.md"]), codes)
}

// coded looks for a code in a call of a logger's Warn or Error, and of warn, which makes a line for
// later.
func (r *repo) coded() {
	r.match(r.product, `(?m)^.*(?:\.(?:Warn|Error)\("|[^.\w]warn\()(?:.*[,+(]\n)*.*$`, func(at spot, m []string) {
		if !strings.Contains(m[0], "warning.") && !strings.HasPrefix(m[0], "func ") {
			r.report(at, "it logs without a code: %s", strings.TrimSpace(m[0]))
		}
	})
}

// metrics goes by docs/names.md, which is written from the code. The page on the older plugin
// names those of that one, which begin as ours do.
func (r *repo) metrics() {
	all := named(`(?m)^### (caddy_rate_limit_\w+)$`, r.texts["docs/names.md"])
	r.match(slices.Concat(r.pages, []string{board, alertsFile}, alertTests), `caddy_rate_limit_\w+`, func(at spot, m []string) {
		if !slices.Contains(all, m[0]) && at.file != "docs/migration/mholt.md" {
			r.report(at, "it names %s, which is no metric", m[0])
		}
	})
	for _, name := range all {
		if !strings.Contains(r.texts[board], name+"{") {
			r.report(board, "it doesn't show %s", name)
		}
	}
}

func (r *repo) alerts() {
	var all []string
	r.match([]string{alertsFile}, `alert: (\w+)`, func(_ spot, m []string) {
		all = append(all, m[1])
		if !strings.Contains(r.texts[alertTests[0]]+r.texts[alertTests[1]], `alertname="`+m[1]+`"`) {
			r.report(alertsFile, "no test of rules has %s", m[1])
		}
	})
	if n := len(named(`runbook_url: (https://github.com/caddy-tide/ratelimit/blob/main/docs/[\w-]+\.md#\S+)`, r.texts[alertsFile])); n != len(all) {
		r.report(alertsFile, "%d of %d alerts have a runbook_url with a heading", n, len(all))
	}
	inPage := named("`(Tide\\w+)`", r.texts[alertsPage])
	slices.Sort(inPage)
	r.same(alertsPage, "alert", slices.Compact(inPage), all)
}
