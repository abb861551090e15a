package command

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// shortID is an id as people see it.
func shortID(id string) string { return id[:min(len(id), keys.ShortDigits)] }

func bans() *cobra.Command {
	var n int
	cmd := &cobra.Command{
		Use:   "bans [<zone>]",
		Short: "Lists who is banned: why, since when, until when",
		Long: `
Lists the latest bans of a zone, or of all, that the node knows, and keys that an
operator has denied. Nodes learn of a ban when they next sync the key, so ask each
node for its own. With log_key the key itself is shown.

End a ban with 'caddy rate-limit reset <zone> <id> --id'.`,
		Example: `  caddy rate-limit bans
  caddy rate-limit bans login --json`,
		Annotations:       guide("ban.md#end-a-ban"),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeZone,
	}
	cmd.Flags().IntVarP(&n, "number", "n", operate.TopKeys, "How many bans to list")
	cmd.RunE = run(func(c client, p printer, args []string) error {
		return show(p, c, http.MethodGet, listPath(operate.BansPath, args, n, url.Values{}), nil, p.bans)
	})
	return cmd
}

// listPath is the path of a list of n keys, of the zone that is named or all.
func listPath(path string, args []string, n int, q url.Values) string {
	q.Set("n", strconv.Itoa(n))
	if len(args) > 0 {
		q.Set("zone", args[0])
	}
	return path + "?" + q.Encode()
}

func (p printer) bans(all operate.Banned) error {
	rows := [][]string{{"ZONE", "ID", "KEY", "SINCE", "ENDS", "BY", "WHY", "NOTE"}}
	for _, b := range all.Bans {
		why := b.Why
		if b.Shadow {
			why += ", not enforced"
		}
		rows = append(rows, []string{b.Zone, shortID(b.ID), b.Key, p.ago(b.Since), p.endsAt(b.Until), cmp.Or(b.By, "limit"), why, b.Note})
	}
	b := p.page()
	b.list(rows, "Nobody is banned, as far as this node knows.")
	if all.More > 0 {
		b.line("%d more; list them with -n.", all.More)
	}
	return p.print(&b)
}

func overrides() *cobra.Command {
	return &cobra.Command{
		Use:   "overrides [<zone>]",
		Short: "Lists the keys that have another limit: who set it, why, until when",
		Long: `
Lists the overrides that hold on all nodes, of a zone or of all. With log_key the key
itself is shown, once a request has come with it.`,
		Example: `  caddy rate-limit overrides
  caddy rate-limit overrides api --json`,
		Annotations:       guide("operate.md#give-one-key-another-limit"),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeZone,
		RunE: run(func(c client, p printer, args []string) error {
			path := operate.OverridesPath
			if len(args) > 0 {
				path += "?" + url.Values{"zone": args}.Encode()
			}
			return show(p, c, http.MethodGet, path, nil, p.listOverrides)
		}),
	}
}

func (p printer) listOverrides(all []control.EntryState) error {
	b := p.page()
	b.list(p.overrides(all), "No key has an override.")
	return p.print(&b)
}

func (p printer) overrides(all []control.EntryState) [][]string {
	rows := [][]string{{"OVERRIDE", "ID", "KEY", "LIMIT", "SINCE", "ENDS", "BY", "NOTE"}}
	for _, e := range all {
		zone := e.Zone
		if e.NoZone {
			zone += " (no such zone)"
		}
		rows = append(rows, []string{zone, shortID(e.ID), e.Key, e.Limit + afterwards(e), p.since(e.Since), p.ends(e), e.By, e.Note})
	}
	return rows
}

// afterwards marks what holds once something temporary of the same has ended.
func afterwards(e control.EntryState) string {
	if e.Covered {
		return " afterwards"
	}
	return ""
}

func nodes() *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "Lists the nodes that share their counts",
		Long: `
Lists the nodes that share their counts with the one that is asked: their versions,
when each was last heard, and whether it has applied what was changed at run time:
unknown where it was last heard more than ten seconds ago, as while Redis is away.`,
		Example:     "  caddy rate-limit nodes",
		Annotations: guide("operate.md#see-who-spends-the-most-and-which-nodes-there-are"),
		Args:        noArguments,
		RunE: run(func(c client, p printer, _ []string) error {
			return show(p, c, http.MethodGet, operate.NodesPath, nil, p.listNodes)
		}),
	}
}

func (p printer) listNodes(all []control.Node) error {
	b := p.page()
	b.list(p.nodes(all), "No other node is known: without Redis each counts for itself. Where one is configured, 'caddy rate-limit status' says why it fails.")
	return p.print(&b)
}

// sinceHeard is longer than two heartbeats are apart: of a node that was heard before, what it has
// applied since is not known.
const sinceHeard = 10 * time.Second

func (p printer) nodes(all []control.Node) [][]string {
	rows := [][]string{{"NODE", "VERSION", "HEARD", "APPLIED", ""}}
	for _, n := range all {
		applied, self := "yes", ""
		switch {
		case !n.Applied && p.now().Sub(n.Heard) > sinceHeard:
			applied = "unknown"
		case !n.Applied:
			applied = "no"
		}
		if n.Self {
			self = "this node"
		}
		rows = append(rows, []string{n.Name, n.Version, p.ago(n.Heard), applied, self})
	}
	return rows
}

// guide names the page about a command, which its help links to.
func guide(page string) map[string]string {
	return map[string]string{"guide": docsURL + page}
}

// docsURL is where the pages are.
const docsURL = "https://github.com/caddy-tide/ratelimit/blob/main/docs/"

// facts prints names with their values, with --json as an object.
func (p printer) facts(rows [][2]string) error {
	if p.json {
		text := []byte("{")
		for i, row := range rows {
			if i > 0 {
				text = append(text, ',')
			}
			text = fmt.Appendf(text, "%q:%q", row[0], row[1])
		}
		return p.raw(append(text, '}'))
	}
	b := p.page()
	for _, row := range rows {
		b.line("%s %s", row[0], row[1])
	}
	return p.print(&b)
}
