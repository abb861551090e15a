package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

func explainCommand() *cobra.Command {
	var q operate.Question
	var headers []string
	var id bool
	var cost int64
	cmd := &cobra.Command{
		Use:   "explain <url> | <zone> <key>",
		Short: "Says what would become of a request, and consumes nothing",
		Long: `
Says what the node that is asked would do with a request, or with the next one
of a key: which zones limit it and which matcher leaves it out, its keys, and
how each limit stands. Nothing is counted, neither here nor in Redis.

Handlers before rate_limit that could change the request or answer it are not
run, and named. Only what sets variables, headers or the path is run.`,
		Example: `  caddy rate-limit explain https://example.com/login -X POST --remote-ip 203.0.113.9
  caddy rate-limit explain api 203.0.113.9`,
		Args: cobra.RangeArgs(1, 2),
	}
	cmd.Flags().StringVarP(&q.Method, "request", "X", "", "The method (default GET)")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "A header such as 'X-Plan: gold', as often as needed")
	cmd.Flags().StringVar(&q.RemoteIP, "remote-ip", "", "The address that the connection comes from (default 127.0.0.1)")
	cmd.Flags().BoolVar(&id, "id", false, "The key is given by its id, as top shows it")
	cmd.Flags().Int64Var(&cost, "cost", 0, "What the request of a key takes, where the zone has a cost (default what one without a number takes)")
	cmd.RunE = run(func(c client, p printer, args []string) (err error) {
		if cmd.Flags().Changed("cost") {
			q.Cost = &cost
		}
		if len(args) == 2 {
			if q.Zone = args[0]; id {
				q.ID = args[1]
			} else {
				q.Key = &args[1]
			}
		} else if q.URL = args[0]; id || !strings.Contains(q.URL, "://") {
			return errors.New("give a URL with its scheme, like https://example.com/login, or a zone and a key")
		}
		if q.Headers, err = headersOf(headers); err != nil {
			return err
		}
		return p.explain(c, q)
	})
	return cmd
}

// headersOf reads headers as people write them.
func headersOf(lines []string) (headers map[string]operate.HeaderValues, err error) {
	headers = map[string]operate.HeaderValues{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is no header; write it like 'X-Plan: gold'", line)
		}
		headers[name] = append(headers[name], strings.TrimSpace(value))
	}
	return headers, nil
}

// explain asks and prints.
func (p printer) explain(c client, q operate.Question) error {
	var b page
	if q.Zone != "" {
		return show(p, c, http.MethodPost, operate.ExplainPath, q, func(h operate.Explained) error {
			b.handler(h)
			return p.print(&b)
		})
	}
	return show(p, c, http.MethodPost, operate.ExplainPath, q, func(site operate.ExplainedSite) error {
		b.site(site)
		return p.print(&b)
	})
}

// site adds what would become of a request.
func (b *page) site(site operate.ExplainedSite) {
	b.line("Server %s takes the client for %s.", site.Server, site.ClientIP)
	if len(site.Handlers) == 0 {
		b.line("The request comes to no rate_limit.")
	}
	for _, h := range site.Handlers {
		if len(h.NotRun) > 0 {
			b.line("Before rate_limit these were not run: %s.", strings.Join(h.NotRun, ", "))
		}
		b.handler(h.Explained)
	}
}

// handler adds what a handler would do.
func (b *page) handler(h operate.Explained) {
	text := h.Decision.String()
	if h.Zone != "" {
		text += " by " + h.Zone
	}
	if h.Wait > 0 {
		text += ", for " + length(h.Wait)
	}
	if h.Delay > 0 {
		text += ", after " + length(h.Delay) + " in a queue"
	}
	b.line("The request is %s.", text)
	rows := [][]string{{"ZONE", "DECISION", "KEY", "LIMIT", "COST", "USED", "REMOTE", "LEFT", "WAIT", ""}}
	costs := false
	for _, z := range h.Zones {
		costs = costs || z.Cost != nil
		key, notes := cmp.Or(z.Key, z.ID), notesOf(z)
		if len(z.Limits) == 0 {
			rows = append(rows, []string{z.Zone, z.Decision.String(), key, "", "", "", "", "", "", notes})
		}
		for _, l := range z.Limits {
			wait := ""
			if l.Wait > 0 {
				wait = length(l.Wait)
			}
			rows = append(rows, []string{
				z.Zone, l.Decision.String(), key, limitText(l.Limit, l.Window, l.Concurrent), known(z.Cost), number(l.Used), known(l.Remote), number(l.Remaining), wait, notes,
			})
		}
	}
	if !costs {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], 4, 5)
		}
	}
	b.table(rows)
}

// notesOf says why a zone is not asked, or not as it is configured.
func notesOf(z operate.ExplainedZone) string {
	notes := slices.Clone(z.Mismatch)
	for i, m := range notes {
		if !strings.Contains(m, " ") { // a matcher
			notes[i] = m + " does not match"
		}
		if m == operate.Except {
			notes[i] = "excepted"
		}
	}
	if z.Shadow {
		notes = append(notes, "shadow mode")
	}
	if z.BannedUntil != nil {
		notes = append(notes, "banned until "+z.BannedUntil.Format(time.RFC3339))
	}
	if z.Bandwidth != 0 {
		notes = append(notes, "bandwidth "+z.Bandwidth.String())
	}
	if z.Override != "" {
		notes = append(notes, "override "+z.Override)
	}
	switch {
	case z.Unknown != "" && z.SyncedAgo != nil:
		notes = append(notes, fmt.Sprintf("of other nodes what was known %s ago: %s", length(*z.SyncedAgo), z.Unknown))
	case z.Unknown != "":
		notes = append(notes, "nothing is known of other nodes: "+z.Unknown)
	}
	return strings.Join(notes, ", ")
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// known writes a number that is not known everywhere.
func known(n *int64) string {
	if n == nil {
		return ""
	}
	return number(*n)
}

// length writes a number of seconds.
func length(seconds float64) string {
	if seconds < 60 {
		return strconv.FormatFloat(seconds, 'f', -1, 64) + "s"
	}
	return config.WindowText(rounded(time.Duration(seconds * float64(time.Second))))
}

func topCommand() *cobra.Command {
	q := url.Values{}
	var by string
	var n int
	var watch bool
	cmd := &cobra.Command{
		Use:   "top [<zone>]",
		Short: "Shows the keys that have spent the most",
		Long: `
Shows the keys of a zone, or of all, that have spent the most lately, as far as
the node that is asked knows. Keys are shown by their ids; with log_key their
text follows once they have come again.

By asked or denied are the keys of zones that sync at an interval: elsewhere a
node doesn't count by key what it denies.`,
		Example: `  caddy rate-limit top api --by denied
  caddy rate-limit top --watch`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&by, "by", "used", "What the most of is shown: used, asked or denied")
	cmd.Flags().IntVarP(&n, "number", "n", operate.TopKeys, "How many keys of each limit are shown")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Show them again every two seconds")
	cmd.RunE = run(func(c client, p printer, args []string) error {
		q.Set("by", by)
		q.Set("n", strconv.Itoa(n))
		if len(args) > 0 {
			q.Set("zone", args[0])
		}
		for {
			if err := p.top(c, q); err != nil || !watch {
				return err
			}
			select {
			case <-cmd.Context().Done():
				return nil
			case <-time.After(2 * time.Second):
			}
			if _, err := fmt.Fprintln(p.out); err != nil {
				return err
			}
		}
	})
	return cmd
}

// top asks and prints.
func (p printer) top(c client, q url.Values) error {
	return show(p, c, http.MethodGet, operate.TopPath+"?"+q.Encode(), nil, p.keys)
}

// keys shows the keys that have spent the most.
func (p printer) keys(all []operate.Top) error {
	rows := [][]string{{"ZONE", "LIMIT", "ID OF THE KEY", "USED", "ASKED", "DENIED", "KEY"}}
	bans := [][]string{{"BANNED IN", "ID OF THE KEY", "ENDS"}}
	for _, t := range all {
		for _, k := range t.Keys {
			rows = append(rows, []string{t.Zone, limitText(t.Limit, t.Window, t.Concurrent), k.ID, number(k.Used), known(k.Asked), known(k.Denied), k.Key})
			if k.BannedUntil != nil {
				bans = append(bans, []string{t.Zone, k.ID, p.in(*k.BannedUntil)})
			}
		}
	}
	var b page
	if len(rows) == 1 {
		b.line("No key has spent anything lately.")
	}
	b.table(rows)
	if len(bans) > 1 {
		b.line("")
		b.table(bans)
	}
	return p.print(&b)
}
