// Package hostport cuts the port off an address, as requests, logs and connections have it.
package hostport

import (
	"net"
	"strings"
)

// Host returns the host of host:port as net.SplitHostPort does, and all of what is something else.
// It makes no error of that: most Host headers have no port, and neither do addresses in logs.
func Host(s string) string {
	if strings.HasPrefix(s, "[") {
		if host, _, err := net.SplitHostPort(s); err == nil {
			return host
		}
		return s
	}
	colon := strings.IndexByte(s, ':')
	if colon < 0 || strings.IndexByte(s[colon+1:], ':') >= 0 || strings.ContainsAny(s, "[]") {
		return s
	}
	return s[:colon]
}
