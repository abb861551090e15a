package command

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

func reset() *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use:   "reset <zone> <key> | <zone> --all",
		Short: "Forgives what a key has spent, or all keys of a zone have, on all nodes",
		Long: `
Forgives what a key has spent, and ends its ban: its full limit is available again,
on all nodes that share their counts. With --all this is done for all keys of the zone.

Write the key as the log shows it: an address, or the values of the zone's key with
what stands between them. With --id, write its id or the first digits of it.

The exit code is 1 if no node counts the key, which may be mistyped.`,
		Example: `  caddy rate-limit reset login 203.0.113.9
  caddy rate-limit reset login 2ca8bc42 --id
  caddy rate-limit reset login --all`,
		Annotations: guide("operate.md#forgive-what-a-key-has-spent"),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return errGiveZone
			}
			return nil
		},
		ValidArgsFunction: completeZone,
	}
	cmd.Flags().BoolVar(&c.All, "all", false, "All keys of the zone")
	cmd.Flags().BoolVar(&c.byID, "id", false, "The key is given by its id, or the first digits of it")
	cmd.RunE = run(func(client client, p printer, args []string) error {
		if c.All != (len(args) == 1) {
			return errGiveZone
		}
		if c.Zone, c.name = args[0], "all keys"; !c.All {
			c.setKey(args[1])
		}
		c.By = operator()
		unknown := false
		err := changed(p, client, http.MethodPost, operate.ResetPath, c, func(done operate.ResetDone) (control.Outcome, bool, []string) {
			if unknown = done.Unknown; unknown {
				return done.Outcome, done.Pending, nil
			}
			what := requests(done.Forgiven)
			if done.Units {
				what = fmt.Sprintf("%d units", done.Forgiven)
			}
			if done.Nodes > 1 {
				what += " of this node" // what others forgive they don't tell
			}
			lines := []string{fmt.Sprintf("%s: reset %s %s, %s forgiven", done.Zone, c.name, on(done.Outcome), what)}
			for _, text := range done.Stays {
				lines = append(lines, done.Zone+": "+text)
			}
			return done.Outcome, done.Pending, lines
		})
		if unknown && !errors.Is(err, errInPart) {
			return fmt.Errorf("%s: no node counts the key %s, so there is nothing to forgive; check how it is written", c.Zone, c.name)
		}
		return err
	})
	return cmd
}

var errGiveZone = errors.New("give a zone and a key, or a zone and --all")

func requests(n int64) string {
	if n == 1 {
		return "1 request"
	}
	return fmt.Sprintf("%d requests", n)
}
