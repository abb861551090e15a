package command

import (
	"runtime"
	"runtime/debug"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/control"
)

func version() *cobra.Command {
	return &cobra.Command{
		Use:         "version",
		Short:       "Shows the version of rate_limit in this program",
		Long:        "Shows the version of rate_limit in this program, the commit that it was built from\nwhere that is known, and the versions of Caddy and Go. No Caddy needs to run.",
		Example:     "  caddy rate-limit version",
		Annotations: guide("names.md"),
		Args:        noArguments,
		RunE: run(func(_ client, p printer, _ []string) error {
			rows := [][2]string{{"rate_limit", control.ModuleVersion()}}
			if commit := commitOf(debug.ReadBuildInfo()); commit != "" {
				rows = append(rows, [2]string{"commit", commit})
			}
			_, full := caddy.Version()
			rows = append(rows, [2]string{"caddy", full}, [2]string{"go", runtime.Version()})
			return p.facts(rows)
		}),
	}
}

// commitOf is the commit that a program was built from, "" where that is not known.
func commitOf(info *debug.BuildInfo, ok bool) (commit string) {
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true" && commit != "":
			commit += ", changed"
		}
	}
	return commit
}
