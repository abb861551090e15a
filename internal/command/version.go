package command

import (
	"runtime"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/control"
)

func version() *cobra.Command {
	return &cobra.Command{
		Use:         "version",
		Short:       "Shows the version of rate_limit in this program",
		Long:        "Shows the version of rate_limit in this program, and those of Caddy and Go. No\nCaddy needs to run.",
		Example:     "  caddy rate-limit version",
		Annotations: guide("names.md"),
		Args:        noArguments,
		RunE: run(func(_ client, p printer, _ []string) error {
			_, full := caddy.Version()
			if p.json {
				return p.value(map[string]string{"rate_limit": control.ModuleVersion(), "caddy": full, "go": runtime.Version()})
			}
			b := p.page()
			b.line("rate_limit %s", control.ModuleVersion())
			b.line("caddy %s", full)
			b.line("go %s", runtime.Version())
			return p.print(&b)
		}),
	}
}
