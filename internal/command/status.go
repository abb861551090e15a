package command

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// between is the time between two questions, which rates are worked out from.
var between = time.Second

func status() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Shows zones, nodes, and what was changed at run time",
		Long: `
Shows the zones of a node: for which share of the keys each is enforced, what it
admits and denies a second, and what it has denied since Caddy was started; then
the nodes that share their counts, the other regions, and what was changed at
run time and still holds.

'Counted' are responses since the configuration was loaded that count_responses
counts. 'Would deny' counts requests that only shadow mode has admitted.
'Denied' are denials of all kinds, which metrics tell apart; 'unavailable' are
those of them that a zone with on_redis_loss deny has answered with 503.`,
		Example: `  caddy rate-limit status
  caddy rate-limit status --watch
  caddy rate-limit status --json --address unix//run/caddy/admin.sock`,
		Annotations: guide("operate.md#see-who-spends-the-most-and-which-nodes-there-are"),
		Args:        noArguments,
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Show it again every two seconds")
	cmd.RunE = run(func(c client, p printer, _ []string) error {
		return p.watch(cmd.Context(), watch, func() error {
			var before *decisions
			return show(p, c, http.MethodGet, operate.Root, nil, func(s operate.State) error {
				if len(s.Decisions) == 0 {
					return p.status(s, nil)
				}
				before = &decisions{s.Decisions, p.now()}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(between):
				}
				return show(p, c, http.MethodGet, operate.Root, nil, func(s operate.State) error { return p.status(s, before) })
			})
		})
	})
	return cmd
}

// decisions are what zones had decided at a time.
type decisions struct {
	all map[string]operate.Decided
	at  time.Time
}

// maxListed is how many overrides the status shows. There is a command that lists all.
const maxListed = 20

// status prints a state, with rates since before, nil where they are not known.
func (p printer) status(s operate.State, before *decisions) error {
	b := p.page()
	b.line("%s", summary(s))
	add := func(rows [][]string) {
		if len(rows) > 1 {
			b.line("")
			b.table(rows)
		}
	}
	add(p.zones(s, before))
	bandwidth := [][]string{{"BANDWIDTH", "RATE", "KEYS", "OPEN", "BYTES", "WAITED"}}
	for _, z := range s.Bandwidth {
		bandwidth = append(bandwidth, []string{z.Zone, z.Rate.String(), number(z.Keys), number(z.Open), number(z.Bytes), length(math.Round(z.Waited))})
	}
	add(bandwidth)
	add(p.nodes(s.Nodes))
	add(regions(s.Regions))
	add(append(p.enforcement(s.Enforcement), configured(s)...))
	add(p.overrides(s.Overrides[:min(len(s.Overrides), maxListed)]))
	if more := len(s.Overrides) - maxListed; more > 0 {
		b.line("%d more; list them with 'caddy rate-limit overrides'.", more)
	}
	return p.print(&b)
}

// zones shows the limits of zones. What is of a whole zone stands in the row of its first limit.
func (p printer) zones(s operate.State, before *decisions) [][]string {
	rows := [][]string{{
		"ZONE", "LIMIT", "ENFORCED", "ADMITTED/S", "DENIED/S", "WOULD DENY/S", "DENIED", "UNAVAILABLE", "WOULD DENY", "BANNED", "COUNTED",
		"KEYS", "ALGORITHM", "SYNC",
	}}
	seen := map[string]bool{}
	for _, z := range s.Zones {
		ofZone := make([]string, 9)
		if !seen[z.Zone] {
			ofZone = p.zone(s, z, before)
		}
		seen[z.Zone] = true
		limit := limitText(z.Limit, z.Window, z.Concurrent, z.LimitFrom) + z.Divided()
		rows = append(rows, slices.Concat([]string{z.Zone, limit}, ofZone, []string{number(z.Keys), z.Algorithm, z.SyncRate.String()}))
	}
	return rows
}

// zone is what is of a whole zone: for which share of the keys it is enforced, rates and sums of
// its decisions, its bans, and how many of its responses counted.
func (p printer) zone(s operate.State, z operate.LimitState, before *decisions) []string {
	enforced := percent(operate.EnforcedOf(s.Enforcement, z.Zone, z.Enforce))
	switch enforced {
	case "0%":
		enforced = "shadow"
	case "100%":
		enforced = "yes"
	}
	counted := ""
	if z.Responses != nil {
		counted = z.Responses.String()
	}
	d, ok := s.Decisions[z.Zone]
	if !ok {
		return []string{enforced, "", "", "", "", "", "", known(z.Banned), counted}
	}
	if d.Met() == 0 {
		counted = "no request yet"
	}
	var was operate.Decided
	if before != nil {
		was = before.all[z.Zone]
	}
	rate := func(now, was float64) string {
		if before == nil {
			return ""
		}
		r, decimals := max(0, now-was)/max(p.now().Sub(before.at).Seconds(), 0.001), 0
		if r > 0 && r < 9.95 {
			decimals = 1
		}
		return strconv.FormatFloat(r, 'f', decimals, 64)
	}
	return []string{
		enforced, rate(d.Admitted, was.Admitted), rate(d.Denied, was.Denied), rate(d.WouldDeny, was.WouldDeny),
		number(int64(d.Denied)), some(int64(d.Unavailable)), number(int64(d.WouldDeny)), known(z.Banned), counted,
	}
}

// regions shows the other regions.
func regions(r *ratesync.RegionsStatus) [][]string {
	rows := [][]string{{"REGION", "UP", "READ ALL", "WAITING", "CLOCK AHEAD", "REASON"}}
	if r == nil {
		return rows
	}
	rows = append(rows, []string{r.Here, "here", "", "", "", ""})
	for _, o := range r.Others {
		ahead := fmt.Sprintf("%.3fs", math.Round(o.Offset*1000)/1000+0) // -0 + 0 is 0
		rows = append(rows, []string{o.Region, yes(o.Up), length(math.Round(o.Lag)) + " ago", number(o.Backlog), ahead, o.Reason})
	}
	return rows
}

// enforcement shows for which share of the keys operators have zones enforced.
func (p printer) enforcement(all []control.EntryState) [][]string {
	rows := [][]string{{"ENFORCED", "SHARE", "SINCE", "ENDS", "BY", "NOTE"}}
	for _, e := range all {
		share := "unknown"
		if e.Share != nil {
			share = percent(*e.Share) + afterwards(e)
		}
		rows = append(rows, []string{cmp.Or(e.Zone, "all zones"), share, p.ago(e.Since), p.ends(e), e.By, e.Note})
	}
	return rows
}

// configured shows for which share the configuration has zones enforced, where that is not all.
func configured(s operate.State) (rows [][]string) {
	add := func(zone string, share float64) {
		note := "configured"
		if slices.ContainsFunc(s.Enforcement, func(e control.EntryState) bool { return e.Zone == zone || e.Zone == "" }) {
			note = "configured, and changed above"
		}
		isThere := slices.ContainsFunc(rows, func(row []string) bool { return row[0] == zone })
		if share < 1 && !isThere {
			rows = append(rows, []string{zone, percent(share), "", "never", "", note})
		}
	}
	for _, z := range s.Zones {
		add(z.Zone, z.Enforce)
	}
	for _, z := range s.Bandwidth {
		add(z.Zone, z.Enforce)
	}
	return rows
}

// summary is one line about Redis.
func summary(s operate.State) string {
	switch {
	case s.Control == nil:
		return "No configuration with rate_limit is running."
	case s.Control.Failing != "":
		return fmt.Sprintf("Redis has no control record: %s. What is changed holds on this node only.", s.Control.Failing)
	case s.Redis != nil && !s.Redis.Up && s.Redis.Lately() == nil:
		return fmt.Sprintf("Redis fails: %s. What is changed holds on this node, and on the others when Redis is back.", firstReason(s.Redis.Failing))
	case !s.Control.Shared:
		return "Without Redis: this node counts for itself, and what is changed holds here only."
	}
	lines := []string{"Shared through Redis."}
	if s.Redis != nil {
		lines = append(lines, s.Redis.Lately()...)
	}
	return strings.Join(lines, " ")
}

// firstReason is one of the reasons why Redis fails.
func firstReason(failing map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(failing)) {
		return failing[name]
	}
	return "no reason is known"
}

// ends says when an entry ends.
func (p printer) ends(e control.EntryState) string {
	text := p.endsAt(e.Until)
	if e.Pending {
		text += " (redis does not know yet)"
	}
	return text
}
