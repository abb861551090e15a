package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"

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
Gives one key of a zone another limit, on all nodes that share their counts. A rate
such as 6000/1m replaces the limit with that window; a number alone replaces the
only limit of the zone. With unlimited, all its requests are admitted and none is
counted; with deny, all are answered with 403.

With a duration it is temporary, and then what was set before with --for forever
holds again. --remove takes the temporary one first.

Write the key as the log shows it: an address, or the values of the zone's key with
what stands between them. With --id, write its id or the first digits of it.

With --file, many keys get their limits in one change: all of them, or none if a line
is wrong. They last, unless --for says otherwise. The columns are key, limit and note,
or those that a first line names: key, id, limit, for, note. With --remove, its keys
lose their overrides; with --replace, the zone's other keys lose those that last.`,
		Example: `  caddy rate-limit override api 203.0.113.9 6000/1m --for 24h --note "ticket 4711"
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
	cmd.RunE = run(func(client client, p printer, args []string) error {
		bulk.Zone, bulk.For, bulk.Note = args[0], c.For, c.Note
		if file != "" || bulk.Replace {
			if file == "" || len(args) != 1 || c.byID || c.remove && (bulk.Replace || c.For+c.Note != "") {
				return errors.New("--file takes a zone and nothing else but --for, --note and --replace, or --remove; --replace takes a --file")
			}
			return p.overrideAll(client, file, bulk, c.remove)
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
	cmd.Long = "\nAnswers all requests of one key of a zone with 403, on all nodes that share their counts:\nthe same as 'override <zone> <key> deny'. --remove ends it; 'reset' ends the bans that a\nlimit has begun."
	cmd.Example, cmd.Annotations = "  caddy rate-limit ban login 203.0.113.9 --for 1d --note \"ticket 4711\"", guide("ban.md#ban-by-hand")
	for _, name := range []string{"file", "replace", "force"} {
		_ = cmd.Flags().MarkHidden(name)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 && !cmd.Flags().Changed("remove") {
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
Enforces a zone for a share of its keys, on all nodes that share their counts: 25% or
0.25 for a quarter of them, on for all, off for none. Other keys are still counted but
never denied. A larger share keeps the keys that were in.

'on' and 100% hold until they are changed. Anything else ends after an hour, unless
--for says otherwise: then the configuration applies again.

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

// change asks for a change and prints what came of it.
func (p printer) change(client client, path string, c change) error {
	method := http.MethodPost
	if c.By = operator(); c.remove {
		method = http.MethodDelete
	}
	return changed(p, client, method, path, c, func(done operate.Changed) (control.Outcome, bool, []string) {
		lines := []string{fmt.Sprintf("%s %s%s", what(c, done), on(done.Outcome), p.until(done))}
		if len(done.Later) > 0 {
			lines = []string{fmt.Sprintf("%s, but %s", what(c, done), p.later(done))}
		} else if line := p.beside(done); line != "" {
			lines = append(lines, line)
		}
		if c.Key != nil && looksLikeID(c.name) && !c.remove {
			lines = append(lines, fmt.Sprintf("%s was taken for the key itself; if it is the id of one, repeat this with --id, and remove this override", c.name))
		}
		if done.StandIn != "" {
			lines = append(lines, fmt.Sprintf("%s was taken for the key that requests bring; those of that address that bring none have the key %s: if they are meant, repeat this with it", c.name, done.StandIn))
		}
		if c.Note == "" && done.Note != "" {
			lines = append(lines, fmt.Sprintf("the note of the override before stays: %s", done.Note))
		}
		if done.BannedUntil != nil {
			lines = append(lines, fmt.Sprintf("%s is banned, which comes first, ends %s; 'caddy rate-limit reset' ends the ban", c.name, p.endsAt(*done.BannedUntil)))
		}
		if done.AllZones != nil {
			all := operate.Changed{EntryState: *done.AllZones}
			lines = append(lines, fmt.Sprintf("%s, which comes first%s; 'caddy rate-limit enforce --all --remove' ends that", what(change{}, all), p.until(all)))
		}
		return done.Outcome, done.Pending, lines
	})
}

// changed asks for a change and prints the answer: with --json as it came, and else as the lines of
// describe. It returns an error where some node has not applied it.
func changed[T any](p printer, client client, method, path string, c any, describe func(T) (o control.Outcome, pending bool, lines []string)) error {
	text, err := client.ask(method, path, c)
	if err != nil {
		return err
	}
	var done T
	if err := read(text, &done); err != nil {
		return err
	}
	o, pending, lines := describe(done)
	if p.json {
		err = p.raw(text)
	} else {
		b := p.page()
		for _, line := range lines {
			b.line("%s", line)
		}
		err = p.print(&b)
	}
	if err != nil || o.Applied == o.Nodes && len(o.Untold) == 0 && !pending {
		return err
	}
	return fmt.Errorf("%w: %s", errInPart, p.missing(o, pending))
}

// looksLikeID reports whether a key reads as the log and lists show the id of one.
func looksLikeID(key string) bool {
	_, err := keys.ParsePrefix(key)
	return err == nil && len(key) == keys.ShortDigits
}

// what says what was changed.
func what(c change, done operate.Changed) string {
	zone := cmp.Or(done.Zone, allZones)
	temporary := ""
	if len(done.Holds) > 0 {
		temporary = "temporary "
	}
	switch {
	case done.Removed && c.name != "":
		return fmt.Sprintf("%s: removed the %soverride for %s", zone, temporary, c.name)
	case done.Removed && (done.All || temporary != ""):
		return zone + ": " + temporary + "setting removed"
	case done.Removed:
		return zone + ": enforced as configured"
	case done.Share != nil:
		return zone + ": " + says(done.EntryState)
	}
	return fmt.Sprintf("%s: %s for %s", zone, done.Limit, c.name)
}

// says is what an entry says.
func says(e control.EntryState) string {
	switch {
	case e.Share == nil:
		return e.Limit
	case *e.Share == 0:
		return "not enforced"
	case *e.Share == 1:
		return "enforced for all keys"
	}
	return fmt.Sprintf("enforced for %s of the keys", percent(*e.Share))
}

// later says what somebody else has changed since.
func (p printer) later(done operate.Changed) string {
	e := done.Later[0]
	if e.Until.IsZero() {
		return "it has been removed since " + on(done.Outcome)
	}
	return fmt.Sprintf("%s has changed it since: %s %s%s", cmp.Or(e.By, "somebody"), says(e), on(done.Outcome), p.until(operate.Changed{EntryState: e}))
}

// beside says what else is said of the same, "" for nothing.
func (p printer) beside(done operate.Changed) string {
	for _, e := range done.Holds {
		until := p.until(operate.Changed{EntryState: e})
		switch {
		case done.Removed:
			return "what lasts holds again: " + says(e) + until
		case e.Temporary && !done.Temporary:
			return fmt.Sprintf("%s comes first%s; --remove in place of the value ends it now", says(e), until)
		case !e.Temporary && done.Temporary:
			return "after that " + says(e) + until
		}
	}
	return ""
}

// on says on how many nodes a change holds.
func on(o control.Outcome) string {
	if !o.Shared {
		return "on this node, which counts for itself"
	}
	if o.Regions > 0 {
		return fmt.Sprintf("on %d of %d nodes here, told to %d of %d regions", o.Applied, o.Nodes, o.Told, o.Regions)
	}
	return fmt.Sprintf("on %d of %d nodes", o.Applied, o.Nodes)
}

func (p printer) until(done operate.Changed) string {
	if done.Removed {
		return ""
	}
	ends := p.endsAt(done.Until)
	if ends == "never" {
		return ", until it is changed"
	}
	return ", ends " + ends
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
