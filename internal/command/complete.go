package command

import (
	"net/http"
	"slices"
	"strings"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/operate"
)

// completeZone completes the first argument by the names of zones, which the node is asked for.
func completeZone(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || cmd.Flags().Changed("all") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return zonesOf(cmd, begun), cobra.ShellCompDirectiveNoFileComp
}

// thenOneOf completes the argument at a place by words, and the first one by names of zones.
func thenOneOf(place int, words ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if cmd.Flags().Changed("all") {
			args = append([]string{""}, args...)
		}
		if len(args) == place {
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		return completeZone(cmd, args, begun)
	}
}

// zonesOf are the names of zones that begin so. There are none where the node does not answer: a
// shell that completes shows no errors.
func zonesOf(cmd *cobra.Command, begun string) (names []string) {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	addresses, err := addressesOf(flags)
	if err != nil {
		return nil
	}
	c := clientAt(flags, addresses[0])
	c.timeout = time.Second
	text, err := c.ask(http.MethodGet, operate.Root, nil)
	var s operate.State
	if err != nil || read(text, &s) != nil {
		return nil
	}
	add := func(name string) {
		if strings.HasPrefix(name, begun) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, z := range s.Zones {
		add(z.Zone)
	}
	for _, b := range s.Bandwidth {
		add(b.Zone)
	}
	return names
}

// completeFlag completes a flag by words.
func completeFlag(cmd *cobra.Command, flag string, words ...string) {
	// It can't fail: the flag is there.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
