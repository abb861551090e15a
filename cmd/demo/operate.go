package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// operated is what the second part of the demonstration needs of the site: a limit that a customer
// runs into, and a candidate that is tried in shadow mode.
const operated = `
		zone login {
			match {
				path /login
			}
			limit 5/1h
		}
		zone candidate {
			match {
				path /candidate
			}
			limit 5/1h
			enforce off
		}
`

// An operator asks the servers as a client, and changes limits as an operator does.
type operator struct {
	program string
	nodes   []*cluster.Node
	client  *cluster.Client
	out     io.Writer
}

// operate shows a reset, and a zone in shadow mode that is then enforced. An error of the context
// is none: who interrupts it has seen enough.
func operate(ctx context.Context, program string, c *cluster.Cluster, out io.Writer) error {
	o := operator{program, c.Nodes, cluster.NewClient(1), out}
	defer o.client.Close()
	fmt.Fprint(out, `
A customer is locked out of /login, which has a limit of 5 in an hour. One command on one server
gives him all of it again, on all three:

`)
	o.ask(ctx, 0, "/login")
	err := o.command(ctx, 0, "reset login 127.0.0.1")
	o.ask(ctx, 2, "/login")
	fmt.Fprint(out, `
/candidate has a limit of 5 as well, in shadow mode: it denies nobody until it is enforced.

`)
	o.ask(ctx, 0, "/candidate")
	if err == nil {
		err = o.command(ctx, 2, "enforce candidate 100% --for 10m")
	}
	o.ask(ctx, 0, "/candidate")
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ask makes some requests to a server.
func (o *operator) ask(ctx context.Context, node int, path string) {
	const requests = 8
	tally := o.client.Burst(ctx, o.nodes[node:node+1], path, requests, nil)
	if ctx.Err() == nil {
		fmt.Fprintf(o.out, "  %d requests for %s to node %d: %d admitted, %d denied\n", requests, path, node+1, tally.Admitted(), tally.Denied())
	}
}

// command runs caddy rate-limit for a server, and shows it with what it prints.
func (o *operator) command(ctx context.Context, node int, line string) error {
	if ctx.Err() != nil {
		return nil
	}
	args := append([]string{"rate-limit"}, strings.Fields(line)...)
	printed, err := exec.CommandContext(ctx, o.program, append(args, "--address", o.nodes[node].Admin)...).CombinedOutput()
	fmt.Fprintf(o.out, "  $ caddy rate-limit %s\n  %s\n", line, strings.ReplaceAll(strings.TrimSpace(string(printed)), "\n", "\n  "))
	if err != nil {
		return fmt.Errorf("caddy rate-limit %s: %w", line, err)
	}
	return nil
}
