package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/operate"
)

func explainCommand() *cobra.Command {
	var q operate.Question
	var headers []string
	var id bool
	var cost int64
	var ip string
	cmd := &cobra.Command{
		Use:   "explain <url> | <zone> <key> | --ip <address>",
		Short: "Shows how a request would be decided, without counting it",
		Long: `
Shows how the node that is asked would decide a request, or the next one of a
key or of an address: which zones limit it, which matcher leaves it out, its
keys, and how each limit stands. Nothing is counted, neither here nor in Redis.

Handlers before rate_limit that could change the request or answer it are named
and not run. Only those that set variables, headers or the path are run.`,
		Example: `  caddy rate-limit explain https://example.com/login -X POST --ip 203.0.113.9
  caddy rate-limit explain api 203.0.113.9
  caddy rate-limit explain --ip 203.0.113.9`,
		Annotations:       guide("operate.md#ask-what-would-happen-to-a-request"),
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completeZone,
	}
	cmd.Flags().StringVarP(&q.Method, "request", "X", "", "The method (default GET)")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "A header such as 'X-Plan: gold', as often as needed")
	cmd.Flags().StringVar(&ip, "ip", "", "The address that the connection comes from (default 127.0.0.1); without a URL, all zones are asked that count by it")
	cmd.Flags().StringVar(&ip, "remote-ip", "", "")
	_ = cmd.Flags().MarkHidden("remote-ip") // it is there: a second name
	cmd.Flags().BoolVar(&id, "id", false, "The key is given by its id, or the first digits of it")
	cmd.Flags().Int64Var(&cost, "cost", 0, "What the key's request costs, in a zone with a cost (default as for a request without a number)")
	cmd.RunE = run(func(c client, p printer, args []string) (err error) {
		if cmd.Flags().Changed("cost") {
			q.Cost = &cost
		}
		switch {
		case len(args) == 2 && ip == "":
			if q.Zone = args[0]; id {
				q.ID = args[1]
			} else {
				q.Key = &args[1]
			}
		case len(args) == 1 && !id && strings.Contains(args[0], "://"):
			q.URL, q.RemoteIP = args[0], ip
		case len(args) == 0 && ip != "" && !id:
			q.IP = ip
		default:
			return errors.New("give a URL with its scheme, like https://example.com/login; a zone and a key; or --ip and an address")
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
	b := p.page()
	if q.Zone != "" {
		return show(p, c, http.MethodPost, operate.ExplainPath, q, func(h operate.Explained) error {
			b.handler(h)
			if q.Key != nil && looksLikeID(*q.Key) {
				b.line("%s was taken for the key itself; with --id it is the id of one.", *q.Key)
			}
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
	if site.Server == "" {
		b.address(site)
		return
	}
	b.line("Server %s takes the client for %s.", site.Server, site.ClientIP)
	if len(site.Handlers) == 0 {
		b.line("The request comes to no rate_limit.")
	}
	for i, h := range site.Handlers {
		if len(site.Handlers) > 1 {
			b.line("")
			b.line("Handler %d of %d:", i+1, len(site.Handlers))
		}
		if len(h.NotRun) > 0 {
			b.line("Not run before rate_limit: %s.", strings.Join(h.NotRun, ", "))
			b.line("If they set headers, give these with -H.")
		}
		b.handler(h.Explained)
	}
}

// address adds what each zone that counts by addresses would do by itself with the next request of
// one.
func (b *page) address(site operate.ExplainedSite) {
	if len(site.Handlers) == 0 {
		b.line("No zone counts by the client's address.")
		return
	}
	b.line("The next request of %s, as each zone that counts by addresses would decide:", site.ClientIP)
	var zones []operate.ExplainedZone
	for _, h := range site.Handlers {
		zones = append(zones, h.Zones...)
	}
	b.explained(zones)
	for _, h := range site.Handlers {
		if h.Delay > 0 {
			b.line("It waits %s in the queue of %s.", length(h.Delay), h.Zones[0].Zone)
		}
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
	request := "The request"
	if slices.ContainsFunc(h.Zones, func(z operate.ExplainedZone) bool { return z.LimitDefault }) {
		request = "A request that brings no limit"
	}
	b.line("%s is %s.", request, text)
	b.explained(h.Zones)
}

// explained adds what zones would do.
func (b *page) explained(zones []operate.ExplainedZone) {
	rows := [][]string{{"ZONE", "DECISION", "KEY", "LIMIT", "COST", "USED", "REMOTE", "LEFT", "WAIT", "REASON"}}
	for _, z := range zones {
		key := shortID(z.ID)
		if z.Key != nil {
			key = cmp.Or(*z.Key, `""`) // as a shell takes it
		}
		if len(z.Limits) == 0 {
			rows = append(rows, []string{z.Zone, z.Decision.String(), key, "", "", "", "", "", "", notesOf(z, true)})
		}
		for _, l := range z.Limits {
			limit, wait := limitText(l.Limit, l.Window, l.Concurrent, ""), ""
			if l.AtOnce > 0 {
				limit += fmt.Sprintf(", %d at once", l.AtOnce)
			}
			if l.Wait > 0 {
				wait = length(l.Wait)
			}
			why := notesOf(z, l.Overridden)
			if l.Regions {
				why = strings.TrimPrefix(why+", other regions count, too", ", ")
			}
			if l.Until != nil {
				why = strings.TrimPrefix(why+", until "+l.Until.Format(time.RFC3339), ", ")
			}
			if l.Share > 0 {
				why = strings.TrimPrefix(fmt.Sprintf("%s, divided: %d of it here", why, l.Share), ", ")
			}
			rows = append(rows, []string{
				z.Zone, l.Decision.String(), key, limit, known(z.Cost), number(l.Used), known(l.Remote), number(l.Remaining), wait, why,
			})
		}
	}
	b.table(rows)
}

// notesOf says why a zone is not asked, or a limit of it not as it is configured.
func notesOf(z operate.ExplainedZone, overridden bool) string {
	notes := slices.Clone(z.Mismatch)
	for i, m := range notes {
		if !strings.Contains(m, " ") { // a matcher
			notes[i] = "matcher " + m + " does not match"
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
	if z.LimitDefault {
		notes = append(notes, "limit_default, as limits come with requests; explain a URL")
	}
	for _, name := range z.Missing {
		notes = append(notes, name+" brings no number, so its default holds")
	}
	if overridden && z.Override != "" {
		notes = append(notes, "override "+z.Override)
	}
	if z.Key != nil && *z.Key == "" {
		notes = append(notes, "the key is empty, and all such requests share it")
	}
	switch {
	case z.OnRedisLoss != "":
		why := ""
		if z.Unknown != "" {
			why = " (" + z.Unknown + ")"
		}
		notes = append(notes, fmt.Sprintf("redis is unavailable%s, so on_redis_loss %s decides", why, z.OnRedisLoss))
	case z.Unknown != "" && z.SyncedAgo != nil:
		notes = append(notes, fmt.Sprintf("of other nodes what was known %s ago: %s", length(*z.SyncedAgo), z.Unknown))
	case z.Unknown != "":
		notes = append(notes, "nothing is known of other nodes: "+z.Unknown)
	}
	return strings.Join(notes, ", ")
}
