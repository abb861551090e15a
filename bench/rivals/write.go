package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// write prints the tables of one kind. Ratios are to the first subject.
func write(w io.Writer, kind string, subjects []subject, results []map[string][]result) {
	names := make(map[figure][]string)
	for _, c := range cases(kind) {
		names[c.what] = append(names[c.what], c.name)
	}
	times := names[duration]
	fmt.Fprintf(w, "\nAs %s, ns a request; in brackets as a multiple of the first row's:\n\n", kind)
	head(w, times)
	rows(w, subjects, func(i int) (cells []string) {
		for _, name := range times {
			ns := func(r result) float64 { return r.Ns }
			of := results[i][name]
			cells = append(cells, fmt.Sprintf("%.0f (%.2f)", median(of, nil, ns), median(of, results[0][name], ns)))
		}
		return cells
	})
	allocated := func(i int, name string) string {
		of := results[i][name]
		return fmt.Sprintf("%.0f B, %.0f", median(of, nil, func(r result) float64 { return r.Bytes }), median(of, nil, func(r result) float64 { return r.Allocs }))
	}
	if kind == "handlers" {
		fmt.Fprintf(w, "\nAllocated for a request, bytes and how often, one thread:\n\n")
		head(w, times[:2])
		rows(w, subjects, func(i int) []string { return []string{allocated(i, times[0]), allocated(i, times[1])} })
	} else {
		fmt.Fprintf(w, "\nWith 100,000 keys: live bytes a key, the key included; the most that was admitted in a window's length, as a multiple of the limit; allocated for a request:\n\n")
		head(w, slices.Concat(names[memory], names[exactness], []string{"allocated"}))
		rows(w, subjects, func(i int) (cells []string) {
			for _, name := range names[memory] {
				cells = append(cells, fmt.Sprintf("%.0f", median(results[i][name], nil, func(r result) float64 { return r.PerKey })))
			}
			for _, name := range names[exactness] {
				cells = append(cells, fmt.Sprintf("%.2f", median(results[i][name], nil, func(r result) float64 { return r.Peak })))
			}
			return append(cells, allocated(i, times[len(times)-1]))
		})
	}
	for i, s := range subjects {
		for _, name := range times {
			errors := 0.0
			for _, r := range results[i][name] {
				errors += float64(r.Errors)
			}
			if errors > 0 {
				fmt.Fprintf(w, "\n%s: with %s, %.0f requests failed with an error.\n", s.name, name, errors)
			}
		}
	}
}

func head(w io.Writer, columns []string) {
	fmt.Fprintf(w, "| | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}

func rows(w io.Writer, subjects []subject, cells func(int) []string) {
	for i, s := range subjects {
		fmt.Fprintf(w, "| %s | %s |\n", s.name, strings.Join(cells(i), " | "))
	}
}
