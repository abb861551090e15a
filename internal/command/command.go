// Package command is `caddy rate-limit`: what an operator sees and changes from a shell, over the
// admin endpoint of a running Caddy.
//
// Each command is a function that returns a *cobra.Command, listed in commands. It asks by its
// client, and writes by a printer, which lets no control character through.
package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// commands are those below rate-limit.
var commands = []func() *cobra.Command{status, nodes, topCommand, bans, overrides, ban, explainCommand, reset, override, enforce, simulateCommand, version}

// RateLimit is the command with all that are below it.
func RateLimit() caddycmd.Command {
	return caddycmd.Command{
		Name:  "rate-limit",
		Usage: "<command>",
		Short: "Shows and changes the rate limits of a running Caddy",
		Long: `
Shows the rate limits of a running Caddy, and changes them at run time: on the
node that is asked, and through Redis on all that share their counts with it.

The node is found as by 'caddy stop': at --address, or where the configuration
of --config has its admin endpoint, or at ` + caddy.DefaultAdminListen + `.
With several addresses, as in --address web1:2019,web2:2019, each answers for
itself.

Exit codes: 0 done, 1 failed, 2 done in part, as some node has not answered yet.
`,
		CobraFunc: func(cmd *cobra.Command) {
			f := cmd.PersistentFlags()
			f.StringP("config", "c", "", "Configuration file to use to parse the admin address, if --address is not used")
			f.StringP("adapter", "a", "", "Name of config adapter to apply (when --config is used)")
			f.String("address", "", "The address to use to reach the admin API endpoint, if not the default; several, separated by commas, answer in turn")
			f.Bool("json", false, "Print what the endpoint answers, as JSON")
			f.Duration("timeout", 10*time.Second, "How long the endpoint has to answer")
			for _, c := range commands {
				cmd.AddCommand(c())
			}
			cmd.Annotations, cmd.RunE = guide("operate.md"), unknown
			cmd.SetHelpTemplate(helpTemplate)
			cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
		},
	}
}

// helpTemplate is as cobra has it, with the page about the command below.
const helpTemplate = `{{with (or .Long .Short)}}{{. | trimTrailingWhitespaces}}

{{end}}{{if or .Runnable .HasSubCommands}}{{.UsageString}}{{end}}{{with index .Annotations "guide"}}
Guide: {{.}}
{{end}}`

// unknown is what happens without a command below rate-limit, or with one that is not there.
func unknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	text := "there is no such command; there are " + strings.Join(names, ", ")
	if near := spelling.Nearest(args[0], names); near != "" {
		text = "there is no such command; did you mean " + near + "?"
	}
	return errors.New(text)
}

// errInPart is the error of a change that some node has not applied.
var errInPart = errors.New("done in part")

// exitInPart is the exit code of such a change. That of other errors is 1.
const exitInPart = 2

// run makes cobra's function of one that asks a client and prints. Its error is one line, which
// Caddy would write as JSON where there is no terminal.
func run(f func(c client, p printer, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		flags := caddycmd.Flags{FlagSet: cmd.Flags()}
		p := printerTo(cmd.OutOrStdout(), flags.Bool("json"))
		ask := func(c client, p printer) error { return f(c, p, args) }
		addresses, err := addressesOf(flags)
		switch {
		case err != nil:
		case len(addresses) > 1:
			err = askEach(flags, addresses, p, ask)
		default:
			err = ask(clientAt(flags, addresses[0]), p)
		}
		if err == nil {
			return nil
		}
		cmd.SilenceErrors = true
		cmd.PrintErrln("Error:", printable(err.Error()))
		if errors.Is(err, errInPart) || errors.Is(err, errTooMany) {
			// Only Caddy can make an error with an exit code.
			return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return exitInPart, nil })(cmd, args)
		}
		return clean(err)
	}
}

// clean makes an error safe for a terminal.
func clean(err error) error { return errors.New(printable(err.Error())) }

// noArguments rejects arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("it takes no arguments; see '%s --help'", cmd.CommandPath())
	}
	return nil
}

// client asks the admin endpoint.
type client struct {
	address func() (string, error)
	timeout time.Duration
}

func clientAt(flags caddycmd.Flags, address string) client {
	return client{timeout: flags.Duration("timeout"), address: func() (string, error) {
		return caddycmd.DetermineAdminAPIAddress(address, nil, flags.String("config"), flags.String("adapter"))
	}}
}

// maxAnswer bounds what is read of an answer: ten thousand overrides are a few megabytes.
const maxAnswer = 64 << 20

// ask makes a request, with a body as JSON unless that is nil, and returns the answer.
func (c client) ask(method, path string, body any) ([]byte, error) {
	address, err := c.address()
	if err != nil {
		return nil, fmt.Errorf("finding the admin endpoint: %w", err)
	}
	type answer struct {
		text []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := request(address, method, path, body)
		answers <- answer{text, err}
	}()
	select {
	case a := <-answers:
		return a.text, a.err
	case <-time.After(c.timeout):
		return nil, fmt.Errorf("the admin endpoint at %s has not answered within %v; the change may still have been applied", address, c.timeout)
	}
}

func request(address, method, path string, body any) ([]byte, error) {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(text)
	}
	response, err := caddycmd.AdminAPIRequest(address, method, path, http.Header{}, reader)
	if err != nil {
		return nil, sentenceOf(address, err)
	}
	defer response.Body.Close()
	return io.ReadAll(io.LimitReader(response.Body, maxAnswer))
}

// sentenceOf is what the endpoint says is wrong, without the JSON and the status around it, or why
// there is no endpoint. Caddy doesn't wrap the errors of its requests.
func sentenceOf(address string, err error) error {
	text := err.Error()
	var answer struct{ Error string }
	if at := strings.Index(text, "{"); at >= 0 {
		if json.NewDecoder(strings.NewReader(text[at:])).Decode(&answer) == nil && answer.Error != "" {
			return errors.New(answer.Error)
		}
	}
	switch {
	case strings.Contains(text, "connection refused"), strings.Contains(text, "no such file"):
		return fmt.Errorf("nobody listens at %s, where Caddy's admin endpoint is looked for: start Caddy, give its --address, or remove `admin off`, as commands need it", address)
	case strings.Contains(text, "HTTP 4"):
		return fmt.Errorf("%w: %s", errNoEndpoint, text)
	}
	return err
}

// errNoEndpoint is the error of an answer that no admin endpoint gives.
var errNoEndpoint = errors.New("this is not the answer of Caddy's admin endpoint; give its --address (by default " + caddy.DefaultAdminListen + "), not that of a site")

// guide names the page about a command, which its help links to.
func guide(page string) map[string]string { return map[string]string{"guide": docsURL + page} }

// docsURL is where the pages are.
const docsURL = "https://github.com/caddy-tide/ratelimit/blob/main/docs/"
