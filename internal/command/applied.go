package command

import (
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/control"
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

// changed asks for a change and prints the answer: with --json as it came, and else what describe
// adds, with how many nodes apply it. It returns an error where some node does not yet.
func changed[T any](p printer, client client, method, path string, c any, describe func(*page, T) (o control.Outcome, pending bool)) error {
	text, err := client.ask(method, path, c)
	if err != nil {
		return err
	}
	var done T
	if err := read(text, &done); err != nil {
		return err
	}
	b := p.page()
	o, pending := describe(&b, done)
	if b.Len() > 0 {
		b.line("%s", applied(o))
	}
	if p.json {
		err = p.raw(text)
	} else {
		err = p.print(&b)
	}
	if err != nil || o.Applied == o.Nodes && len(o.Untold) == 0 && !pending {
		return err
	}
	return fmt.Errorf("%w: %s", errInPart, p.missing(o, pending))
}

// applied says how many nodes apply a change.
func applied(o control.Outcome) string {
	switch {
	case o.EndsWithProcess:
		return "Applied by this node until its process ends: without a working persist nothing is saved."
	case !o.Shared:
		return "Applied by this node, which counts for itself."
	case o.Regions > 0:
		return fmt.Sprintf("Applied by %d of %d nodes here, told to %d of %d regions.", o.Applied, o.Nodes, o.Told, o.Regions)
	}
	return fmt.Sprintf("Applied by %d of %d nodes.", o.Applied, o.Nodes)
}

// missing says who has not applied a change.
func (p printer) missing(o control.Outcome, pending bool) string {
	var names []string
	for _, m := range o.Missing {
		names = append(names, fmt.Sprintf("%s (last heard %s)", m.Name, p.ago(m.Heard)))
	}
	switch who := strings.Join(names, ", "); {
	case pending && who == "":
		return "redis can't be reached; the other nodes learn of it when it is back"
	case pending:
		return "redis can't be reached; when it is back they learn of it: " + who
	case who == "":
		return "not told yet: " + strings.Join(o.Untold, ", ") + "; they learn of it when they can be reached"
	default:
		return "not applied yet by " + who
	}
}
