package deploy

import (
	"fmt"
	"net"
	"net/http"
	"testing"
)

// admitted is how many of twelve requests for /login a client gets admitted that names another
// address in each.
func (d *deployment) admitted(t *testing.T, client, service, port string) (n int) {
	t.Helper()
	transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).DialContext}
	defer transport.CloseIdleConnections()
	for i := range 12 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+hosts[service]+":"+d.port[port]+"/login", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", i))
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			n++
		}
	}
	return n
}

// Nobody gets more by naming another address, from whichever private network: only the balancer of
// compose.yaml names clients, and each has its own count.
func TestOnlyTheBalancerNamesClients(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.awaitBoth(t)
	for _, client := range []string{"127.0.0.11", "127.0.0.12"} {
		if n := d.admitted(t, client, "balancer", "8000"); n != 5 {
			t.Errorf("%s, through the balancer: %d of 12 requests were admitted, want 5", client, n)
		}
	}
	if n := d.admitted(t, "127.0.0.13", "node1", "8080"); n != 5 {
		t.Errorf("past the balancer: %d of 12 requests were admitted, want 5", n)
	}
}

// As deployment.yaml is, nobody names clients: all behind a proxy share a count, and the log says
// so.
func TestNobodyNamesClientsUnlessTrusted(t *testing.T) {
	t.Parallel()
	for _, e := range readManifests(t).deployment.Spec.Template.Spec.Containers[0].Env {
		if e.Name == "TRUSTED_PROXIES" && e.Value != "" {
			t.Errorf("deployment.yaml trusts %s, and nobody knows whether that is a proxy", e.Value)
		}
	}
	d := deployWith(t, "TRUSTED_PROXIES=")
	d.awaitBoth(t)
	first, second := d.admitted(t, "127.0.0.11", "balancer", "8000"), d.admitted(t, "127.0.0.12", "balancer", "8000")
	if first != 5 || second != 0 {
		t.Errorf("%d and %d requests of two clients behind a proxy were admitted, want 5 and 0", first, second)
	}
	eventually(t, "a node warns of a proxy that is not trusted", func() bool {
		return len(d.nodes["node1"].log.With("TIDE001"))+len(d.nodes["node2"].log.With("TIDE001")) > 0
	})
}
