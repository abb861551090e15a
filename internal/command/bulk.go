package command

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// operator names whoever runs the command, for the list of changes; "" where that is not known.
var operator = func() string {
	name := os.Getenv("SUDO_USER")
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); name != "" && err == nil {
		name += "@" + host
	}
	return name
}

// overrideAll sets the overrides of a file, or removes those of its keys.
func (p printer) overrideAll(client client, path string, req operate.BulkRequest, remove bool) error {
	in := io.ReadCloser(os.Stdin)
	if path != "-" {
		var err error
		if in, err = os.Open(path); err != nil {
			return err
		}
	}
	defer in.Close()
	var err error
	var lines []int
	if req.Overrides, lines, err = readOverrides(in, remove); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(lines) == 0 && !(req.Replace && req.Force) {
		return fmt.Errorf("%s: it has no overrides; write lines like 203.0.113.9,6000/1m,Example Ltd", path)
	}
	method := http.MethodPost
	if req.By = operator(); remove {
		method = http.MethodDelete
	}
	err = changed(p, client, method, operate.BulkPath, req, func(done operate.BulkDone) (control.Outcome, bool, []string) {
		line := fmt.Sprintf("%s: %d overrides set %s", done.Zone, done.Set, on(done.Outcome))
		if done.Removed > 0 {
			line += fmt.Sprintf("; others removed: %d", done.Removed)
		}
		if remove {
			line = fmt.Sprintf("%s: %d overrides removed %s", done.Zone, done.Removed, on(done.Outcome))
		}
		if done.None > 0 {
			line += fmt.Sprintf("; %d of the keys had none", done.None)
		}
		if n := len(done.Later); n > 0 {
			line += fmt.Sprintf("; %d of them %s changed since", n, cmp.Or(done.Later[0].By, "somebody"))
		}
		return done.Outcome, done.Pending, []string{line}
	})
	var i int
	if err == nil {
		return nil
	} else if n, _ := fmt.Sscanf(err.Error(), "overrides[%d]:", &i); n == 1 && i < len(lines) {
		_, why, _ := strings.Cut(err.Error(), ": ")
		return fmt.Errorf("%s: line %d: %s; none was %s", path, lines[i], why, map[bool]string{false: "set", true: "removed"}[remove])
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
		var one operate.ChangeRequest
		for i, value := range row {
			switch names[i] {
			case "key":
				one.Key = &row[i]
			case "id":
				one.ID = value
			case "limit":
				one.Limit = value
			case "for":
				one.For = value
			case "note":
				one.Note = value
			}
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
