package command

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// An overridesFile is what a file of overrides has, and in which line each stands.
type overridesFile struct {
	path  string
	all   []operate.ChangeRequest
	lines []int
}

// openOverrides reads a file of overrides. It is read once, whatever number of nodes is asked: a
// pipe is empty after that, and an empty file may remove all.
func openOverrides(path string, remove bool) (f overridesFile, err error) {
	in := os.Stdin
	if path != "-" {
		if in, err = os.Open(path); err != nil {
			return f, err
		}
		defer in.Close()
	}
	f.path = path
	if f.all, f.lines, err = readOverrides(in, remove); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return f, err
}

// overrideAll sets the overrides of a file, or removes those of its keys.
func (p printer) overrideAll(client client, f overridesFile, req operate.BulkRequest, remove bool) error {
	path, lines := f.path, f.lines
	req.Overrides = f.all
	if len(lines) == 0 && !(req.Replace && req.Force) {
		return fmt.Errorf("%s: it has no overrides; write lines like 203.0.113.9,6000/1m,Example Ltd", path)
	}
	method := http.MethodPost
	if req.By = operator(); remove {
		method = http.MethodDelete
	}
	err := changed(p, client, method, operate.BulkPath, req, func(b *page, done operate.BulkDone) (control.Outcome, bool) {
		heads := []string{"OVERRIDES OF", "SET", "REMOVED", "HAD NONE", "CHANGED SINCE BY OTHERS"}
		b.table([][]string{heads, {done.Zone, number(done.Set), some(done.Removed), some(done.None), some(len(done.Later))}})
		return done.Outcome, done.Pending
	})
	var i int
	if err == nil {
		return nil
	} else if n, _ := fmt.Sscanf(err.Error(), "overrides[%d]:", &i); n == 1 && i < len(lines) {
		_, why, _ := strings.Cut(err.Error(), ": ")
		return fmt.Errorf("%s: line %d: %s; none was %s", path, lines[i], why, map[bool]string{false: "set", true: "removed"}[remove])
	}
	if what, ok := strings.CutSuffix(err.Error(), operate.SendForce); ok {
		return fmt.Errorf("%sadd --force", what)
	}
	return err
}

// columns are those that a file of overrides can have; without a first line that names them it has
// key, limit and note.
var columns = []string{"key", "id", "limit", "for", "note"}

// readOverrides reads comma-separated values, and in which line each stands. Empty lines and those
// that begin with # are left out. Who removes overrides needs no limits.
func readOverrides(in io.Reader, remove bool) (all []operate.ChangeRequest, lines []int, err error) {
	r := csv.NewReader(in)
	r.Comment, r.FieldsPerRecord, r.TrimLeadingSpace = '#', -1, true
	names, first := []string{"key", "limit", "note"}, true
	for {
		row, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		line, _ := r.FieldPos(0)
		if first {
			first = false
			row[0] = strings.TrimPrefix(row[0], "\ufeff")
			if !slices.ContainsFunc(row, func(name string) bool { return !slices.Contains(columns, name) }) {
				names = slices.Clone(row)
				continue
			}
		}
		if len(row) > len(names) {
			return nil, nil, fmt.Errorf("line %d has %d values, want %s", line, len(row), strings.Join(names, ", "))
		}
		has := map[string]string{}
		for i, value := range row {
			has[names[i]] = value
		}
		one := operate.ChangeRequest{ID: has["id"], Limit: has["limit"], For: has["for"], Note: has["note"]}
		if key, ok := has["key"]; ok {
			one.Key = &key
		}
		if remove {
			one = operate.ChangeRequest{Key: one.Key, ID: one.ID}
		} else if one.Limit == "" {
			return nil, nil, fmt.Errorf("line %d has no limit; write a rate such as 6000/1m, %s or %s", line, control.Unlimited, control.Deny)
		}
		all, lines = append(all, one), append(lines, line)
	}
	return all, lines, nil
}
