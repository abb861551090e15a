package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// change is what one of the commands changes.
type change struct {
	operate.ChangeRequest

	remove, byID bool
	name         string // of the key, for people
}

// setKey sets the key, as text or by its id.
func (c *change) setKey(text string) {
	if c.name = cmp.Or(text, `""`); c.byID {
		c.ID = text
	} else {
		c.Key = &text
	}
}

func override() *cobra.Command {
	var c change
	var file string
	var bulk operate.BulkRequest
	cmd := &cobra.Command{
		Use:   "override <zone> <key> <rate>...|<n>|unlimited|deny",
		Short: "Gives one key another limit, on all nodes",
		Long: `
Gives one key of a zone another limit, on all nodes that share their counts. A
rate such as 6000/1m replaces the limit with that window; a number alone
replaces the only limit of the zone. With unlimited, all its requests are
admitted and none is counted; with deny, all are answered with 403.

With a duration it is temporary, and then what was set before with --for forever
holds again. --remove takes the temporary one first.

Write the key as the log shows it: an address, or the values of the zone's key
with what stands between them.

With --file, many keys get their limits in one change: all of them, or none if a
line is wrong. The columns are key, limit and note, or those that a first line
names: key, id, limit, for, note.`,
		Example: `  caddy rate-limit override api 203.0.113.9 6000/1m --for 24h --note "order 47"
  caddy rate-limit override api 203.0.113.9 --remove
  caddy rate-limit override api 203.0.113.9 100/1s 6000/1h --for forever
  caddy rate-limit override api --file customers.csv
  caddy rate-limit override api --file customers.csv --remove`,
		Annotations:       guide("operate.md#give-one-key-another-limit"),
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: thenOneOf(2, control.Unlimited, control.Deny),
	}
	cmd.Flags().StringVar(&c.For, "for", "", "How long it holds, such as 24h or 7d, or forever (default 24h; with --file forever)")
	cmd.Flags().StringVar(&c.Note, "note", "", "Why, for the log and the lists")
	cmd.Flags().BoolVar(&c.byID, "id", false, "The key is given by its id, or the first digits of it")
	cmd.Flags().BoolVar(&c.remove, "remove", false, "Remove the override, or those of the keys in --file")
	cmd.Flags().StringVarP(&file, "file", "f", "", "Set the overrides of this CSV file, or remove them; - for standard input")
	cmd.Flags().BoolVar(&bulk.Replace, "replace", false, "With --file: remove what lasts of the zone's other keys")
	cmd.Flags().BoolVar(&bulk.Force, "force", false, "With --replace: even if that is half of them or more")
	read := sync.OnceValues(func() (overridesFile, error) { return openOverrides(file, c.remove) })
	cmd.RunE = run(func(client client, p printer, args []string) error {
		bulk.Zone, bulk.For, bulk.Note = args[0], c.For, c.Note
		if file != "" || bulk.Replace {
			if file == "" || len(args) != 1 || c.byID || c.remove && (bulk.Replace || c.For+c.Note != "") {
				return errors.New("--file takes a zone and nothing else but --for, --note and --replace, or --remove; --replace takes a --file")
			}
			list, err := read()
			if err != nil {
				return err
			}
			return p.overrideAll(client, list, bulk, c.remove)
		}
		if len(args) == 1 || c.remove && len(args) > 2 || !c.remove && len(args) == 2 {
			return errors.New("give a zone, a key and a limit; or a zone, a key and --remove; or a zone and --file")
		}
		c.Zone = args[0]
		c.setKey(args[1])
		if !c.remove {
			c.Limit = strings.Join(args[2:], " ")
		}
		return p.change(client, operate.OverridesPath, c)
	})
	return cmd
}

// ban is override with deny, under the name that people look for.
func ban() *cobra.Command {
	cmd := override()
	set := cmd.RunE
	cmd.Use, cmd.Short, cmd.ValidArgsFunction = "ban <zone> <key>", "Denies all requests of one key, on all nodes", completeZone
	cmd.Long = "\nAnswers all requests of one key of a zone with 403, on all nodes that share\ntheir counts: the same as 'override <zone> <key> deny'. --remove ends it;\n'reset' ends the bans that a limit has begun."
	cmd.Example, cmd.Annotations = "  caddy rate-limit ban login 203.0.113.9 --for 1d --note \"ticket 4711\"", guide("ban.md#ban-by-hand")
	ofFiles := []string{"file", "replace", "force"}
	for _, name := range ofFiles {
		_ = cmd.Flags().MarkHidden(name)
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 || slices.ContainsFunc(ofFiles, cmd.Flags().Changed) {
			return errors.New("give a zone and a key, and for how long by --for, as in --for 1d; override sets limits, and reads files")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("remove") {
			args = append(args, control.Deny)
		}
		return set(cmd, args)
	}
	return cmd
}

func enforce() *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use:   "enforce <zone>|--all <share>|on|off",
		Short: "Enforces a zone, or all, for a share of the keys, on all nodes",
		Long: `
Enforces a zone for a share of its keys, on all nodes that share their counts:
25% or 0.25 for a quarter of them, on for all, off for none. Other keys are
still counted but never denied. A larger share keeps the keys that were in. When
it ends, the configuration applies again.

'--all off' is for an emergency: nobody is denied any more.`,
		Example: `  caddy rate-limit enforce api 25% --for 6h
  caddy rate-limit enforce api on
  caddy rate-limit enforce --all off --for 15m --note "incident 12"
  caddy rate-limit enforce --all --remove`,
		Annotations:       guide("operate.md#enforce-a-zone-for-some-keys-or-for-none"),
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: thenOneOf(1, "on", "off", "5%", "25%", "50%"),
	}
	cmd.Flags().StringVar(&c.For, "for", "", "How long it holds, such as 15m or 7d, or forever (default 1h; for 100% forever)")
	cmd.Flags().StringVar(&c.Note, "note", "", "Why, for the log and the lists")
	cmd.Flags().BoolVar(&c.All, "all", false, "All zones")
	cmd.Flags().BoolVar(&c.remove, "remove", false, "Apply the configuration again")
	cmd.RunE = run(func(client client, p printer, args []string) error {
		if !c.All && len(args) > 0 {
			c.Zone, args = args[0], args[1:]
		}
		if c.All == (c.Zone != "") || c.remove != (len(args) == 0) || len(args) > 1 {
			return errors.New("give a zone or --all, and a share or --remove")
		}
		if !c.remove {
			share, err := 1.0, error(nil)
			if args[0] != "on" {
				share, err = config.ParseEnforcement(args[0])
			}
			if err != nil {
				return err
			}
			c.Share = &share
		}
		return p.change(client, operate.EnforcementPath, c)
	})
	return cmd
}

func reset() *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use:   "reset <zone> <key> | <zone> --all",
		Short: "Forgives what a key of a zone has spent, or all of them, on all nodes",
		Long: `
Forgives what a key has spent, and ends its ban: its full limit is available
again, on all nodes that share their counts. Write the key as the log shows it.

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
		isUnknown := false
		err := changed(p, client, http.MethodPost, operate.ResetPath, c, func(b *page, done operate.ResetDone) (control.Outcome, bool) {
			if isUnknown = done.Unknown; isUnknown {
				return done.Outcome, done.Pending
			}
			head := "REQUESTS FORGIVEN"
			if done.Units {
				head = "UNITS FORGIVEN"
			}
			if done.Nodes > 1 {
				head += " HERE" // what others forgive they don't tell
			}
			b.table([][]string{{"RESET", "KEY", head}, {done.Zone, c.name, number(done.Forgiven)}})
			for _, text := range done.Stays {
				b.line("%s: %s", done.Zone, text)
			}
			return done.Outcome, done.Pending
		})
		if isUnknown && !errors.Is(err, errInPart) {
			return fmt.Errorf("%s: no node counts the key %s, so there is nothing to forgive; check how it is written", c.Zone, c.name)
		}
		return err
	})
	return cmd
}

var errGiveZone = errors.New("give a zone and a key, or a zone and --all")

// change asks for a change and prints what holds then: what is said of all zones, of the same by
// somebody who came later, or else of the same.
func (p printer) change(client client, path string, c change) error {
	method := http.MethodPost
	if c.By = operator(); c.remove {
		method = http.MethodDelete
	}
	return changed(p, client, method, path, c, func(b *page, done operate.Changed) (control.Outcome, bool) {
		holds := done.Holds
		if len(holds) == 0 && !done.Removed {
			holds = []control.EntryState{done.EntryState}
		}
		if later := done.Later; len(later) > 0 {
			b.line("%s has changed it since.", cmp.Or(later[0].By, "Somebody"))
			isRemoved := func(e control.EntryState) bool { return e.Until.IsZero() }
			holds = slices.DeleteFunc(later, isRemoved)
		}
		for i := range holds {
			e := &holds[i]
			if c.Key != nil {
				e.Key = c.name
			}
			if e.Temporary == done.Temporary && !done.Removed && len(done.Later) == 0 {
				e.Since, e.By = time.Time{}, "" // just now by whoever reads this
			}
		}
		if done.AllZones != nil {
			holds = append([]control.EntryState{*done.AllZones}, holds...)
		}
		if len(holds) == 0 {
			b.line("Nothing is set for it now.")
		} else if path == operate.OverridesPath {
			b.table(p.overrides(holds))
		} else {
			b.table(p.enforcement(holds))
		}
		if c.Key != nil && looksLikeID(c.name) && !c.remove {
			b.line("%s was taken for the key itself; if it is the id of one, repeat this with --id, and remove this override.", c.name)
		}
		if done.Unknown {
			b.line("No node has counted %s yet. If it is mistyped, repeat this with --remove: a key is written as 'caddy rate-limit explain' shows it.", c.name)
		}
		if done.StandIn != "" {
			b.line("%s was taken for the key that requests bring; those of that address that bring none have the key %s: if they are meant, repeat this with it.", c.name, done.StandIn)
		}
		if done.BannedUntil != nil {
			b.line("%s is banned, which comes first, ends %s; 'caddy rate-limit reset' ends the ban.", c.name, p.endsAt(*done.BannedUntil))
		}
		return done.Outcome, done.Pending
	})
}

// looksLikeID reports whether a key reads as the log and lists show the id of one.
func looksLikeID(key string) bool {
	_, err := keys.ParsePrefix(key)
	return err == nil && len(key) == keys.ShortDigits
}
