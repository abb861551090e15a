package main

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-tide/ratelimit/internal/metrics"
)

// addReasons takes the decisions that metrics count from their constants.
func (s *source) addReasons(of *ast.GenDecl) {
	for _, spec := range of.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || v.Names[0].Name == "Counted" {
			return
		}
		name := v.Names[0].Name
		var label strings.Builder
		for i, r := range name {
			if i > 0 && unicode.IsUpper(r) {
				label.WriteByte('_')
			}
			label.WriteRune(unicode.ToLower(r))
		}
		text := strings.TrimPrefix(strings.Join(strings.Fields(v.Doc.Text()), " "), name+" is ")
		s.decisions = append(s.decisions, [2]string{label.String(), strings.TrimSuffix(text, ".")})
	}
}

// metrics has each metric with the help that Prometheus shows.
func (s *source) metrics() (string, error) {
	zone := metrics.NewZoneCounters("reference")
	zone.WithUnits(true)
	defer zone.Release()
	registry := prometheus.NewPedanticRegistry()
	if err := metrics.Register(registry, everything); err != nil {
		return "", err
	}
	families, err := registry.Gather()
	if err != nil {
		return "", err
	}
	var page strings.Builder
	var counted []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "decision" {
					counted = append(counted, l.GetValue())
				} else if l.GetName() == "result" && !regexp.MustCompile(`\b`+l.GetValue()+`\b`).MatchString(f.GetHelp()) {
					return "", fmt.Errorf("the help of %s doesn't have the result %q", f.GetName(), l.GetValue())
				}
			}
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		if isTotal := strings.HasSuffix(f.GetName(), "_total"); isTotal != (f.GetType() == dto.MetricType_COUNTER) {
			return "", fmt.Errorf("%s is a %s: the page says that counters end in _total, and gauges don't", f.GetName(), f.GetType())
		}
		text := marked(f.GetHelp())
		if by := strings.Join(labels, ", "); by != "`zone`" {
			text += " *By " + by + "*."
		}
		fmt.Fprintf(&page, "\n### %s\n\n%s", f.GetName(), wrap(text, ""))
	}
	if err := s.countedAs(counted); err != nil {
		return "", err
	}
	page.WriteString("\n### Decisions\n\n| `decision` | what it is |\n|---|---|\n")
	for _, d := range s.decisions {
		fmt.Fprintf(&page, "| `%s` | %s |\n", d[0], marked(d[1]))
	}
	return page.String(), nil
}

// countedAs checks that the decisions with a text are those that metrics count.
func (s *source) countedAs(counted []string) error {
	var told []string
	for _, d := range s.decisions {
		told = append(told, d[0])
	}
	slices.Sort(told)
	slices.Sort(counted)
	if counted = slices.Compact(counted); !slices.Equal(told, counted) {
		return fmt.Errorf("internal/answer/reason.go tells of the decisions %q, and metrics count %q", told, counted)
	}
	return nil
}

// everything adds all that a node can show.
func everything(s metrics.Scrape) {
	for _, m := range metrics.Described {
		s.Add(m, 0, "reference", "ok")
	}
	s.Add(metrics.Syncs, 0, "reference", "failed")
}
