package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// change is what one of the commands changes.
type change struct {
	operate.ChangeRequest

	remove bool
	name   string // of the key, for people
}

func override() *cobra.Command {
	var c change
	var id bool
	cmd := &cobra.Command{
		Use:   "override <zone> <key> <rate>|<n>|unlimited|deny",
		Short: "Gives one key another limit, on all nodes",
		Long: `
Gives one key of a zone another limit for a while, on all nodes that share
their counts. A rate such as 6000/1m replaces the limit with that window, a
number the only limit of the zone. With unlimited all its requests are admitted
and none is counted; with deny all are answered with 403.

The key is written as a log line shows it: an address, or the values of the
zone's key with what stands between them.`,
		Example: `  caddy rate-limit override api 203.0.113.9 6000/1m --for 24h --note "ticket 4711"
  caddy rate-limit override api 203.0.113.9 --remove`,
		Args: cobra.RangeArgs(2, 3),
	}
	cmd.Flags().StringVar(&c.For, "for", "", "How long it holds, such as 24h or 7d, or forever (default 24h)")
	cmd.Flags().StringVar(&c.Note, "note", "", "Why, for the log and the status")
	cmd.Flags().BoolVar(&id, "id", false, "The key is given by its id, as the status shows it")
	cmd.Flags().BoolVar(&c.remove, "remove", false, "Take the override back")
	cmd.RunE = run(func(client client, p printer, args []string) error {
		if c.remove != (len(args) == 2) {
			return errors.New("give zone, key and limit, or zone, key and --remove")
		}
		if c.Zone, c.name = args[0], args[1]; id {
			c.ID = args[1]
		} else {
			c.Key = &args[1]
		}
		if !c.remove {
			c.Limit = args[2]
		}
		return p.change(client, operate.OverridesPath, c)
	})
	return cmd
}

func enforce() *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use:   "enforce <zone>|--all <share>|off",
		Short: "Enforces a zone, or all, for a share of the keys, on all nodes",
		Long: `
Enforces a zone for a share of its keys, on all nodes that share their counts:
25% or 0.25 for a quarter of them, off for none. Who is left out is counted as
ever and not denied; raising the share keeps those that were in.

'--all off' is the switch for when limits do harm: nobody is denied any more.`,
		Example: `  caddy rate-limit enforce api 25% --for 6h
  caddy rate-limit enforce --all off --for 15m --note "incident 12"
  caddy rate-limit enforce --all --remove`,
		Args: cobra.MaximumNArgs(2),
	}
	cmd.Flags().StringVar(&c.For, "for", "", "How long it holds, such as 15m or 7d, or forever (default 1h)")
	cmd.Flags().StringVar(&c.Note, "note", "", "Why, for the log and the status")
	cmd.Flags().BoolVar(&c.All, "all", false, "All zones")
	cmd.Flags().BoolVar(&c.remove, "remove", false, "Go by the configuration again")
	cmd.RunE = run(func(client client, p printer, args []string) error {
		if !c.All && len(args) > 0 {
			c.Zone, args = args[0], args[1:]
		}
		if c.All == (c.Zone != "") || c.remove != (len(args) == 0) || len(args) > 1 {
			return errors.New("give a zone or --all, and a share or --remove")
		}
		if !c.remove {
			share, err := shareOf(args[0])
			if err != nil {
				return err
			}
			c.Share = &share
		}
		return p.change(client, operate.EnforcementPath, c)
	})
	return cmd
}

func shareOf(text string) (float64, error) {
	if text == "off" {
		return 0, nil
	}
	return config.ParseShare(text)
}

// change asks for a change and prints what came of it.
func (p printer) change(client client, path string, c change) error {
	method := http.MethodPost
	if c.remove {
		method = http.MethodDelete
	}
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	text, err := client.ask(method, path, string(body))
	if err != nil {
		return err
	}
	var done operate.Changed
	if err := json.Unmarshal(text, &done); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if p.json {
		err = p.raw(text)
	} else {
		err = p.line("%s %s%s", p.what(c, done), on(done), p.until(done))
	}
	if err != nil || done.Applied == done.Nodes && !done.Pending {
		return err
	}
	return fmt.Errorf("%w: %s", errInPart, p.missing(done))
}

// what says what was changed.
func (p printer) what(c change, done operate.Changed) string {
	zone := "all zones"
	if done.Zone != "" {
		zone = done.Zone
	}
	switch {
	case done.Removed && c.name != "":
		return fmt.Sprintf("%s: no override for %s any more", zone, c.name)
	case done.Removed:
		return zone + ": enforced as configured"
	case done.Share != nil && *done.Share == 0:
		return zone + ": not enforced"
	case done.Share != nil:
		return fmt.Sprintf("%s: enforced for %s of the keys", zone, percent(*done.Share))
	}
	return fmt.Sprintf("%s: %s for %s", zone, done.Limit, c.name)
}

// on says on how many nodes a change holds.
func on(done operate.Changed) string {
	if !done.Shared {
		return "on this node, which counts for itself"
	}
	return fmt.Sprintf("on %d of %d nodes", done.Applied, done.Nodes)
}

func (p printer) until(done operate.Changed) string {
	if done.Removed {
		return ""
	}
	return ", ends " + strings.TrimSuffix(p.ends(done.EntryState), " (redis does not know yet)")
}

// missing says who has not applied a change.
func (p printer) missing(done operate.Changed) string {
	var names []string
	for _, m := range done.Missing {
		names = append(names, fmt.Sprintf("%s (last heard %s)", m.Name, p.ago(m.Heard)))
	}
	switch who := strings.Join(names, ", "); {
	case done.Pending && who == "":
		return "redis can't be reached; the other nodes learn of it when it is back"
	case done.Pending:
		return "redis can't be reached; when it is back they learn of it: " + who
	default:
		return "not applied yet by " + who
	}
}
