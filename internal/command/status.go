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

// bandwidthTable shows the zones that slow responses.
func bandwidthTable(all []operate.BandwidthState) [][]string {
	table := [][]string{{"BANDWIDTH", "RATE", "KEYS", "OPEN", "BYTES", "WAITED"}}
	for _, b := range all {
		table = append(table, []string{b.Zone, b.Rate.String(), number(b.Keys), number(b.Open), number(b.Bytes), length(math.Round(b.Waited))})
	}
	return table
}

// regionsTable shows the other regions.
func regionsTable(r *ratesync.RegionsStatus) [][]string {
	table := [][]string{{"REGION", "UP", "READ ALL", "WAITING", "CLOCK AHEAD", ""}}
	if r == nil {
		return table
	}
	table = append(table, []string{r.Here, "", "", "", "", "here"})
	for _, o := range r.Others {
		up := map[bool]string{true: "yes", false: "no"}[o.Up]
		table = append(table, []string{o.Region, up, length(math.Round(o.Lag)) + " ago", number(o.Backlog), ahead(o.Offset), o.Reason})
	}
	return table
}

// ahead says how far a clock is ahead, to a millisecond.
func ahead(seconds float64) string {
	return fmt.Sprintf("%.3fs", math.Round(seconds*1000)/1000+0) // -0 + 0 is 0
}

// between is the time between two questions, which rates are worked out from.
var between = time.Second

func status() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Shows zones, nodes, and what was changed at run time",
		Long: `
Shows the zones of a node: for which share of the keys each is enforced, what it
admits and denies a second, and what it has denied since Caddy was started; then the
nodes that share their counts, the other regions, and what was changed at run time and still holds.

'Counted' are responses since the configuration was loaded that count_responses counts.
'Would deny' counts requests that only shadow mode has admitted. 'Denied' are denials of
all kinds, which metrics tell apart; 'unavailable' are those of them that a zone with
on_redis_loss deny has answered with 503.`,
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
	overrides := p.overrides(s.Overrides[:min(len(s.Overrides), maxListed)])
	for _, t := range [][][]string{p.zones(s, before), bandwidthTable(s.Bandwidth), p.nodes(s.Nodes), regionsTable(s.Regions), p.enforcement(s), overrides} {
		if len(t) > 1 {
			b.line("")
			b.table(t)
		}
	}
	if more := len(s.Overrides) - maxListed; more > 0 {
		b.line("%d more; list them with 'caddy rate-limit overrides'.", more)
	}
	return p.print(&b)
}

// zones shows the limits of zones. What is of a whole zone stands in the row of its first limit.
func (p printer) zones(s operate.State, before *decisions) [][]string {
	table := [][]string{{"ZONE", "LIMIT", "ENFORCED", "ADMITTED/S", "DENIED/S", "WOULD DENY/S", "DENIED", "UNAVAILABLE", "WOULD DENY", "BANNED", "COUNTED", "KEYS", "ALGORITHM", "SYNC"}}
	seen := map[string]bool{}
	for _, z := range s.Zones {
		row := []string{z.Zone, limitText(z.Limit, z.Window, z.Concurrent) + z.Divided(), "", "", "", "", "", "", "", "", "", number(int64(z.Keys)), z.Algorithm, z.SyncRate.String()}
		if !seen[z.Zone] {
			row[2] = enforcedText(operate.EnforcedOf(s.Enforcement, z.Zone, z.Enforce))
			copy(row[3:9], p.decided(s.Decisions, z.Zone, before))
			row[9], row[10] = known(z.Banned), countedText(s, z)
		}
		seen[z.Zone] = true
		table = append(table, row)
	}
	return table
}

// countedText says that no request has come to a zone, or else how many of its responses counted.
func countedText(s operate.State, z operate.LimitState) string {
	if d, ok := s.Decisions[z.Zone]; ok && d.IsUnused() {
		return "no request yet"
	}
	if z.Responses != nil {
		return z.Responses.String()
	}
	return ""
}

// decided are the rates and sums of a zone.
func (p printer) decided(all map[string]operate.Decided, zone string, before *decisions) []string {
	d, ok := all[zone]
	if !ok {
		return nil
	}
	rate := func(of func(operate.Decided) float64) string {
		if before == nil {
			return ""
		}
		since := max(p.now().Sub(before.at).Seconds(), 0.001)
		r, decimals := max(0, of(d)-of(before.all[zone]))/since, 0
		if r > 0 && r < 9.95 {
			decimals = 1
		}
		return strconv.FormatFloat(r, 'f', decimals, 64)
	}
	unavailable := "" // nobody looks for what there is none of
	if d.Unavailable > 0 {
		unavailable = number(int64(d.Unavailable))
	}
	return []string{
		rate(func(d operate.Decided) float64 { return d.Admitted }),
		rate(func(d operate.Decided) float64 { return d.Denied }),
		rate(func(d operate.Decided) float64 { return d.WouldDeny }),
		number(int64(d.Denied)), unavailable, number(int64(d.WouldDeny)),
	}
}

// enforcedText is for which share of the keys a zone is enforced.
func enforcedText(share float64) string {
	switch share {
	case 0:
		return "shadow"
	case 1:
		return "yes"
	}
	return percent(share)
}

// enforcement shows for which share of keys zones are enforced: what operators have changed, and
// below that what the configuration says of zones that it doesn't enforce for all.
func (p printer) enforcement(s operate.State) [][]string {
	table := [][]string{{"ENFORCED", "SHARE", "SINCE", "ENDS", "BY", "NOTE"}}
	changed := map[string]bool{}
	for _, e := range s.Enforcement {
		share := "unknown"
		if e.Share != nil {
			share = percent(*e.Share) + afterwards(e)
		}
		table = append(table, []string{cmp.Or(e.Zone, allZones), share, p.since(e.Since), p.ends(e), e.By, e.Note})
		changed[e.Zone] = true // "" for all
	}
	configured := func(zone string, share float64) {
		if share == 1 {
			return
		}
		note := "configured"
		if changed[""] || changed[zone] {
			note = "configured, and changed above"
		}
		if row := []string{zone, percent(share), "", "never", "", note}; !slices.ContainsFunc(table, func(r []string) bool { return slices.Equal(r, row) }) {
			table = append(table, row)
		}
	}
	for _, z := range s.Zones {
		configured(z.Zone, z.Enforce)
	}
	for _, b := range s.Bandwidth {
		configured(b.Zone, b.Enforce)
	}
	return table
}

// limitText writes a limit.
func limitText(n int64, window string, concurrent bool) string {
	if concurrent {
		return number(n) + " at once"
	}
	return number(n) + "/" + window
}

// summary is one line about Redis.
func summary(s operate.State) string {
	switch {
	case s.Control == nil:
		return "No configuration with rate_limit is running."
	case s.Control.Failing != "":
		return fmt.Sprintf("Redis has no control record: %s. What is changed holds on this node only.", s.Control.Failing)
	case s.Redis != nil && !s.Redis.Up && s.Redis.Lately() == nil:
		return fmt.Sprintf("Redis fails: %s. What is changed holds on this node, and on the others when Redis is back.", why(s.Redis.Failing))
	case !s.Control.Shared:
		return "Without Redis: this node counts for itself, and what is changed holds here only."
	}
	lines := []string{"Shared through Redis."}
	if s.Redis != nil {
		lines = append(lines, s.Redis.Lately()...)
	}
	return strings.Join(lines, " ")
}

func why(failing map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(failing)) {
		return failing[name]
	}
	return "no reason is known"
}

// allZones stands for a zone where a change is one of all.
const allZones = "all zones"

func (p printer) ends(e control.EntryState) string {
	text := p.endsAt(e.Until)
	if e.Pending {
		text += " (redis does not know yet)"
	}
	return text
}
