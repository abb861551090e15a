package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// shows makes a command show by print what the endpoint answers at a path. Its argument is the zone
// that is asked for, and its flags are parts of the query, by their one letter where they have one.
func shows[T any](cmd *cobra.Command, path string, print func(printer, T) error) *cobra.Command {
	cmd.RunE = run(func(c client, p printer, args []string) error {
		q := url.Values{}
		if len(args) > 0 {
			q.Set("zone", args[0])
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Changed {
				q.Set(cmp.Or(f.Shorthand, f.Name), f.Value.String())
			}
		})
		again, _ := cmd.Flags().GetBool("watch") // false for a command without it
		return p.watch(cmd.Context(), again, func() error {
			return show(p, c, http.MethodGet, (&url.URL{Path: path, RawQuery: q.Encode()}).String(), nil, func(answer T) error { return print(p, answer) })
		})
	})
	return cmd
}

func bans() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bans [<zone>]",
		Short: "Lists who is banned: why, since when, until when",
		Long: `
Lists the latest bans of a zone, or of all, that the node knows, and keys that
an operator has denied. Nodes learn of a ban when they next sync the key, so ask
each node for its own. With log_key the key itself is shown.

End a ban with 'caddy rate-limit reset <zone> <id> --id'.`,
		Example: `  caddy rate-limit bans
  caddy rate-limit bans login --json`,
		Annotations:       guide("ban.md#end-a-ban"),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeZone,
	}
	cmd.Flags().IntP("number", "n", operate.TopKeys, "How many bans to list")
	return shows(cmd, operate.BansPath, printer.bans)
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
	return shows(&cobra.Command{
		Use:   "overrides [<zone>]",
		Short: "Lists the keys that have another limit: who set it, until when",
		Long: `
Lists the overrides that hold on all nodes, of a zone or of all. With log_key
the key itself is shown, once a request has come with it.`,
		Example: `  caddy rate-limit overrides
  caddy rate-limit overrides api --json`,
		Annotations:       guide("operate.md#give-one-key-another-limit"),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeZone,
	}, operate.OverridesPath, printer.listOverrides)
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
		rows = append(rows, []string{zone, shortID(e.ID), e.Key, e.Limit + afterwards(e), p.ago(e.Since), p.ends(e), e.By, e.Note})
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
	return shows(&cobra.Command{
		Use:   "nodes",
		Short: "Lists the nodes that share their counts",
		Long: `
Lists the nodes that share their counts with the one that is asked: their
versions, when each was last heard, and whether it has applied what was changed
at run time, as far as the node that is asked has read when it was asked last.
It can't read while Redis is away.`,
		Example:     "  caddy rate-limit nodes",
		Annotations: guide("operate.md#see-who-spends-the-most-and-which-nodes-there-are"),
		Args:        noArguments,
	}, operate.NodesPath, printer.listNodes)
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
	rows := [][]string{{"NODE", "VERSION", "HEARD", "APPLIED"}}
	for _, n := range all {
		applied := yes(n.Applied)
		if !n.Applied && p.now().Sub(n.Heard) > sinceHeard {
			applied = "unknown"
		}
		if n.Self {
			applied += "  this node"
		}
		rows = append(rows, []string{n.Name, n.Version, p.ago(n.Heard), applied})
	}
	return rows
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [<zone>]",
		Short: "Shows the keys that have spent the most",
		Long: `
Shows the keys of a zone, or of all, that have spent the most lately, as far as
the node that is asked knows. With log_key, the key itself is shown once another
request has come with it.

Used is what was spent in this window and in the one before; explain says what
counts now. Denied, and in shadow mode would deny, is what the node that is
asked has denied in the last five to ten minutes. Asked is known in zones that
sync at an interval.`,
		Example: `  caddy rate-limit top api --by denied
  caddy rate-limit top login --banned
  caddy rate-limit top --watch`,
		Annotations:       guide("operate.md#see-who-spends-the-most-and-which-nodes-there-are"),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeZone,
	}
	cmd.Flags().String("by", "used", "Sort by used, asked or denied")
	cmd.Flags().IntP("number", "n", operate.TopKeys, "How many keys of each limit to show")
	cmd.Flags().BoolP("watch", "w", false, "Show them again every two seconds")
	cmd.Flags().Bool("banned", false, "Only keys that are banned")
	completeFlag(cmd, "by", "used", "asked", "denied")
	return shows(cmd, operate.TopPath, printer.keys)
}

// watch shows something, where it is watched every two seconds until the context ends.
func (p printer) watch(ctx context.Context, again bool, show func() error) error {
	if again && p.several {
		return errors.New("--watch shows one node; give one --address")
	}
	for {
		if err := show(); err != nil || !again {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
		if _, err := fmt.Fprintln(p.out); err != nil {
			return err
		}
	}
}

// keys shows the keys that have spent the most.
func (p printer) keys(all []operate.Top) error {
	rows := [][]string{{"ZONE", "LIMIT", "ID", "USED", "ASKED", "DENIED", "WOULD DENY", "BANNED", "REGIONS", "KEY"}}
	for _, t := range all {
		limit := limitText(t.Limit, t.Window, t.Concurrent, t.LimitFrom)
		for _, k := range t.Keys {
			banned, regions := "", ""
			if k.BannedUntil != nil {
				banned = "ends " + p.in(*k.BannedUntil)
			}
			if k.Regions {
				regions = "others, too"
			}
			row := []string{t.Zone, limit, shortID(k.ID), number(k.Used), known(k.Asked), some(k.Denied), some(k.WouldDeny), banned, regions, k.Key}
			rows = append(rows, row)
		}
	}
	b := p.page()
	b.list(rows, "No key has done that lately, as far as this node knows.")
	return p.print(&b)
}
