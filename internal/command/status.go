package command

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// bandwidthTable shows the zones that slow responses.
func bandwidthTable(all []operate.BandwidthState) [][]string {
	table := [][]string{{"BANDWIDTH", "RATE", "KEYS", "OPEN", "BYTES", "WAITED"}}
	for _, b := range all {
		table = append(table, []string{b.Zone, b.Rate.String(), number(b.Keys), number(b.Open), number(b.Bytes), length(math.Round(b.Waited))})
	}
	return table
}

func status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Shows zones, nodes, and what was changed at run time",
		Long: `
Shows the zones of a node with what they have counted, the nodes that share
their counts with it, and what was changed at run time and still holds.`,
		Example: `  caddy rate-limit status
  caddy rate-limit status --json --address unix//run/caddy/admin.sock`,
		Args: noArguments,
		RunE: run(func(c client, p printer, _ []string) error {
			return show(p, c, http.MethodGet, operate.Root, nil, p.status)
		}),
	}
}

func (p printer) status(s operate.State) error {
	var b page
	b.line("%s", summary(s))
	zones := [][]string{{"ZONE", "LIMIT", "ALGORITHM", "SYNC", "KEYS", "OWN", "REMOTE", "UNSENT"}}
	for _, z := range s.Zones {
		zones = append(zones, []string{
			z.Zone, limitText(z.Limit, z.Window, z.Concurrent), z.Algorithm, z.SyncRate.String(),
			number(int64(z.Keys)), number(z.Own), number(z.Remote), number(z.Unsent),
		})
	}
	bans := [][]string{{"ZONE WITH BANS", "BANNED KEYS"}}
	for i, z := range s.Zones {
		if z.Banned != nil && (i == 0 || s.Zones[i-1].Zone != z.Zone) {
			bans = append(bans, []string{z.Zone, number(*z.Banned)})
		}
	}
	nodes := [][]string{{"NODE", "VERSION", "HEARD", "APPLIED", ""}}
	for _, n := range s.Nodes {
		self := ""
		if n.Self {
			self = "this node"
		}
		nodes = append(nodes, []string{n.Name, n.Version, p.ago(n.Heard), map[bool]string{true: "yes", false: "no"}[n.Applied], self})
	}
	overrides := [][]string{{"OVERRIDE", "ID OF THE KEY", "LIMIT", "ENDS", "NOTE"}}
	for _, e := range s.Overrides {
		overrides = append(overrides, []string{e.Zone, e.ID, e.Limit, p.ends(e), e.Note})
	}
	for _, t := range [][][]string{zones, bans, bandwidthTable(s.Bandwidth), nodes, p.enforcement(s), overrides} {
		if len(t) > 1 {
			b.line("")
			b.table(t)
		}
	}
	return p.print(&b)
}

// enforcement shows for which share of keys zones are enforced: what operators have changed, and
// below that what the configuration says of zones that it doesn't enforce for all.
func (p printer) enforcement(s operate.State) [][]string {
	table := [][]string{{"ENFORCED", "SHARE", "ENDS", "NOTE"}}
	changed := map[string]bool{}
	for _, e := range s.Enforcement {
		share := "unknown"
		if e.Share != nil {
			share = percent(*e.Share)
		}
		table = append(table, []string{cmp.Or(e.Zone, allZones), share, p.ends(e), e.Note})
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
		if row := []string{zone, percent(share), "never", note}; !slices.ContainsFunc(table, func(r []string) bool { return slices.Equal(r, row) }) {
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
	case s.Redis != nil && !s.Redis.Up:
		return fmt.Sprintf("Redis fails: %s. What is changed holds on this node, and on the others when Redis is back.", why(s.Redis.Failing))
	case !s.Control.Shared:
		return "Without Redis: this node counts for itself, and what is changed holds here only."
	}
	return fmt.Sprintf("Shared through Redis. Digest of what was changed: %s.", s.Control.Digest)
}

func why(failing map[string]string) string {
	for _, reason := range failing {
		return reason
	}
	return "no reason is known"
}

// allZones stands for a zone where a change is one of all.
const allZones = "all zones"

func (p printer) ends(e control.EntryState) string {
	text := p.in(e.Until)
	if e.Until.Sub(p.now()) > control.Forever-365*24*time.Hour {
		text = "never"
	}
	if e.Pending {
		text += " (redis does not know yet)"
	}
	return text
}
