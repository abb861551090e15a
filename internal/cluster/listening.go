package cluster

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// Listening are the goroutines in which servers of Caddy take connections, among the stacks of a
// process.
//
// Caddy returns from a reload a little before the servers of the configuration before have closed
// their listeners. A connection that reaches one of these then is closed without an answer.
func Listening(stacks string) map[string]bool {
	all := make(map[string]bool)
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		if strings.Contains(stack, "net/http.(*Server).Serve(") && strings.Contains(stack, "caddyhttp.(*App).Start") {
			goroutine, _, _ := strings.Cut(stack, " [")
			all[goroutine] = true
		}
	}
	return all
}

// AnyOf reports whether some of the goroutines are still there.
func AnyOf(before, now map[string]bool) bool {
	for goroutine := range before {
		if now[goroutine] {
			return true
		}
	}
	return false
}

func (n *Node) listening(ctx context.Context) (map[string]bool, error) {
	stacks, err := n.adminAgain(ctx, http.MethodGet, "/debug/pprof/goroutine?debug=2", nil, nil)
	return Listening(string(stacks)), err
}

// endListening waits until servers listen no longer.
func (n *Node) endListening(ctx context.Context, before map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	for {
		now, err := n.listening(ctx)
		if err != nil || !AnyOf(before, now) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}
