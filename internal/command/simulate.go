package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// simulation is what is asked of a simulation.
type simulation struct {
	simulate.Options

	config, adapter        string
	limits                 []string
	cost                   string
	key, algorithm         string
	burst, queue           int64
	subWindows             int64
	balance, syncRate      string
	html, maxDenied        string
	countDenied            bool
	ipv4Prefix, ipv6Prefix int
	changed                func(flag string) bool
}

func simulateCommand() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate --limit <rate> | --config <file>  <log>...|-",
		Short: "Shows which clients a limit would have denied, from an access log",
		Long: `
Replays access logs against limits, at the times of the log and with the code
that decides real requests, and shows which clients they would have denied. No
Caddy needs to run, and nothing is connected to.

The limits are those of --limit, for each client's address, or those of a
configuration. Logs may be Caddy's JSON, other JSON as far as it can be read, or
the Common or Combined Log Format, compressed by gzip or not; several are merged
by when each request began. For other compressions, use a pipe: zstd -dc log.zst
| caddy rate-limit simulate ... -

Addresses and keys are masked unless --show-keys is given.

Exit codes: 0 done, 1 failed, 2 more is denied than --max-denied allows.`,
		Example: `  caddy rate-limit simulate --limit 100/1m /var/log/caddy/access*.log*
  caddy rate-limit simulate --config Caddyfile --zone login access.log.gz
  zcat *.gz | caddy rate-limit simulate -c Caddyfile --nodes 3 --max-denied 1% -`,
		Annotations: guide("simulate.md"),
		Args:        cobra.MinimumNArgs(1),
	}
	f := cmd.Flags()
	f.StringVarP(&s.config, "config", "c", "", "The configuration with the limits")
	f.StringVarP(&s.adapter, "adapter", "a", "", "Name of config adapter to apply (when --config is used)")
	f.StringArrayVar(&s.limits, "limit", nil, "A limit such as 100/1m in place of a configuration, as often as needed")
	f.StringVar(&s.key, "key", "", "What --limit counts by (default {client_ip})")
	f.StringVar(&s.algorithm, "algorithm", "", "The algorithm of --limit (default sliding_window)")
	f.Int64Var(&s.burst, "burst", 0, "The burst of --limit, for token_bucket and gcra")
	f.Int64Var(&s.queue, "queue", 0, "The queue of --limit, for leaky_bucket")
	f.Int64Var(&s.subWindows, "sub-windows", 0, "The sub-windows of --limit, for sliding_window")
	f.IntVar(&s.ipv4Prefix, "ipv4-prefix", 0, "How many bits of IPv4 addresses --limit counts by (default 32)")
	f.IntVar(&s.ipv6Prefix, "ipv6-prefix", 0, "How many bits of IPv6 addresses --limit counts by (default 64)")
	f.StringVar(&s.cost, "cost", "", "What a request takes of --limit: a number, or bytes for the length of its body, as bytes_read has it (default 1)")
	f.StringVar(&s.CostField, "cost-field", "", "The field of the log that has the cost, such as resp_headers.X-Cost, size or bytes_read")
	f.BoolVar(&s.countDenied, "count-denied", false, "Denied requests count as well, for --limit")
	f.StringVar(&s.Zone, "zone", "", "The zone that is shown (default all)")
	f.StringVar(&s.Host, "host", "", "The host of requests whose log has none")
	f.IntVar(&s.Nodes, "nodes", 1, "How many nodes share the requests, 1 to 64")
	f.StringVar(&s.balance, "balance", "round_robin", "How nodes share the requests: round_robin or client")
	f.StringVar(&s.syncRate, "sync-rate", "", "How often nodes sync, in place of what the configuration says (default 1s for --limit)")
	f.DurationVar(&s.Reorder, "reorder", time.Minute, "How far out of order log lines may be")
	f.StringVar(&s.html, "html", "", "Write the report with pictures to this file")
	f.StringVar(&s.maxDenied, "max-denied", "", "Exit with 2 if a zone denies a larger share, such as 1%")
	f.BoolVar(&s.ShowKeys, "show-keys", false, "Show addresses and keys in full")
	f.Bool("json", false, "Print the report as JSON")
	f.String("address", "", "") // in place of those of all commands, of which the help would tell
	f.Duration("timeout", 0, "")
	for _, flag := range asking {
		_ = f.MarkHidden(flag) // it is there
	}
	completeFlag(cmd, "balance", "round_robin", "client")
	completeFlag(cmd, "algorithm", algorithms.KindNames()...)
	s.changed = f.Changed
	cmd.RunE = run(func(_ client, p printer, args []string) error { return p.simulate(s, args) })
	return cmd
}

// asking are the flags of commands that ask a running Caddy. Here they mean nothing.
var asking = []string{"address", "timeout"}

// errTooMany is the error of a simulation that denies more than it may.
var errTooMany = errors.New("more is denied than --max-denied allows")

// simulate replays logs and prints what came of it.
func (p printer) simulate(s simulation, paths []string) error {
	most := 1.0
	if s.changed("max-denied") {
		var err error
		if most, err = config.ParseShare(s.maxDenied); err != nil {
			return fmt.Errorf("--max-denied: %w", err)
		}
	}
	if err := s.readOptions(); err != nil {
		return err
	}
	config, err := s.configuration()
	if err != nil {
		return err
	}
	policy, err := simulate.Load(config)
	if err != nil {
		return err
	}
	files, err := accesslog.Open(paths, os.Stdin)
	if err != nil {
		return err
	}
	defer files.Close()
	// What is held is bounded, and what was used once is garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	done := p.progress(files)
	report, err := simulate.Run(policy, files, s.Options)
	done()
	if err != nil {
		return err
	}
	if s.html != "" {
		page, err := report.HTML()
		if err == nil {
			err = os.WriteFile(s.html, page, 0o600)
		}
		if err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if p.json {
		if err := p.value(report); err != nil {
			return err
		}
	} else if err := p.report(report, s.config != ""); err != nil {
		return err
	}
	return judge(report, most, s.changed("max-denied"))
}

// judge returns an error where a zone denies more than it may, or where that was to be checked and
// no request came to a zone.
func judge(report *simulate.Report, most float64, checked bool) error {
	judged := false
	for _, z := range report.Zones {
		if z.Share > most {
			return fmt.Errorf("%w: zone %s denies %s", errTooMany, z.Zone, simulate.ShareText(z.Share))
		}
		judged = judged || z.Requests > 0
	}
	if checked && !judged {
		return errors.New("--max-denied: no request in the log comes to a zone, so nothing is checked; give a log of requests to the sites, and to the --zone, of the configuration")
	}
	return nil
}

// readOptions reads the flags that are not about limits.
func (s *simulation) readOptions() error {
	s.ByClient = s.balance == "client"
	switch {
	case s.Nodes < 1 || s.Nodes > 64:
		return errors.New("--nodes: give 1 to 64")
	case s.Reorder < 0:
		return errors.New("--reorder: give a time such as 60s")
	case !s.ByClient && s.balance != "round_robin":
		return errors.New("--balance: give round_robin or client")
	}
	if s.syncRate != "" {
		rate, err := config.ParseSyncRate(s.syncRate)
		if err != nil {
			return fmt.Errorf("--sync-rate: %w", err)
		}
		s.SyncRate = &rate
	}
	return nil
}

// configuration returns the JSON of the configuration.
func (s simulation) configuration() ([]byte, error) {
	if (s.config == "") == (len(s.limits) == 0) {
		return nil, errors.New("give either --limit, such as --limit 100/1m, or --config with the file of a configuration")
	}
	if s.config != "" {
		for _, flag := range []string{"key", "algorithm", "burst", "queue", "sub-windows", "ipv4-prefix", "ipv6-prefix", "count-denied", "cost"} {
			if s.changed(flag) {
				return nil, fmt.Errorf("--%s goes with --limit; with --config the configuration says it", flag)
			}
		}
		config, _, _, err := caddycmd.LoadConfig(s.config, s.adapter)
		if err == nil && s.CostField != "" && !bytes.Contains(config, []byte(`"response_cost"`)) {
			err = errors.New("--cost-field goes with --limit, or with a configuration that has response_cost")
		}
		return config, err
	}
	zone, err := s.costs()
	if err != nil {
		return nil, err
	}
	var all []any
	for _, text := range s.limits {
		text, size := config.SizeOf(text)
		if size != "" && s.cost != "bytes" && s.CostField == "" {
			return nil, fmt.Errorf("--limit: %s is a size, and requests are counted; add --cost bytes, or --cost-field", size)
		}
		r, err := config.ParseRate(text)
		if err != nil {
			return nil, fmt.Errorf("--limit: %w", err)
		}
		all = append(all, map[string]any{"max_events": r.Limit, "window": config.Window(r.Window)})
	}
	zone["limits"] = all
	if s.changed("key") {
		if s.key != "all" && !strings.Contains(s.key, "{") {
			return nil, fmt.Errorf("--key: %q is the same for all requests; write a placeholder such as {header.%[1]s}, or all", s.key)
		}
		key := caddyfile.Segment{{Text: s.key}}
		httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&key)
		s.key = key[0].Text
	}
	for flag, value := range map[string]any{
		"key": s.key, "algorithm": s.algorithm, "burst": s.burst, "queue": s.queue, "sub_windows": s.subWindows,
		"ipv4-prefix": s.ipv4Prefix, "ipv6-prefix": s.ipv6Prefix, "count-denied": s.countDenied,
	} {
		if s.changed(flag) {
			zone[strings.ReplaceAll(flag, "-", "_")] = value
		}
	}
	return json.Marshal(simulate.OneZone("limit", zone))
}

// costs returns a zone with what requests take of --limit.
func (s simulation) costs() (map[string]any, error) {
	zone := map[string]any{}
	switch {
	case s.cost != "" && s.CostField != "":
		return nil, errors.New("give either --cost or --cost-field")
	case s.CostField != "":
		zone["cost"], zone["cost_default"] = []any{map[string]any{"units": simulate.CostInLog}}, 1
	case s.cost == "bytes":
		zone["cost"], zone["cost_default"] = []any{map[string]any{"bytes": true}}, 1
	case s.cost != "":
		n, ok := config.ParseUnits(s.cost)
		if !ok || n > config.MaxCost {
			return nil, fmt.Errorf("--cost: %q is no number of units; give one like 1500, or bytes", s.cost)
		}
		zone["cost"] = []any{map[string]any{"units": n}}
	}
	return zone, nil
}

// progress shows how far reading has come, on a terminal only. The function it returns ends that.
func (p printer) progress(files *accesslog.Files) (done func()) {
	info, err := os.Stderr.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || files.Bytes == 0 || os.Getenv("TERM") == "dumb" {
		return func() {}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		const width = 40
		for {
			select {
			case <-stop:
				fmt.Fprintf(os.Stderr, "\r%*s\r", width+8, "")
				return
			case <-time.After(200 * time.Millisecond):
				n := min(int(files.Read.Load()*100/files.Bytes), 100)
				bar := strings.Repeat("#", n*width/100)
				fmt.Fprintf(os.Stderr, "\r[%-*s] %3d%%", width, bar, n)
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}
