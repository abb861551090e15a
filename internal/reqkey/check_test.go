package reqkey

import (
	"strings"
	"testing"
)

// checked is what Check warns of in a template, and its error.
func checked(t *testing.T, template string) (warning string, err error) {
	t.Helper()
	found, err := Check(template)
	for _, w := range found {
		warning += w.Text
	}
	return warning, err
}

func TestCheckFindsNothing(t *testing.T) {
	for _, template := range []string{
		"{client_ip}",
		"{http.vars.client_ip}",
		"{http.request.remote.host}",
		"{http.request.remote.host/24,64}",
		"{http.request.header.X-Api-Key}",
		"{http.request.cookie.session}",
		"{http.request.uri.query.token}",
		"{http.request.uri.path.0}",
		"{http.request.orig_uri.path}",
		"{http.request.orig_uri.path.file}",
		"{http.request.local}{http.request.local.host}{http.request.local.port}",
		"{http.request.host.labels.2}",
		"{http.request.tls.client.subject}",
		"{http.request.tls.client.san.dns_names.0}",
		"{http.request.tls.server_name}",
		"{http.auth.user.id}",
		"{http.vars.tenant}",
		"{http.regexp.name.1}",
		"{tenant}{plan}{env.REGION}{system.hostname}{file./etc/tenant}",
		`\{client_ip\}`,
		"all",
		"static",
		"backend.eu",
		"ip {client_ip}",
	} {
		if warning, err := checked(t, template); warning != "" || err != nil {
			t.Errorf("Check(%q) warns %q, %v, want nothing", template, warning, err)
		}
	}
}

func TestCheckRejects(t *testing.T) {
	for _, test := range []struct{ template, err string }{
		{"{http.request.remote_ip}", "{client_ip}"},
		{"{http.request.client_ip}", "{client_ip}"},
		{"{http.request.remote_host}", "{http.request.remote.host}"},
		{"{http.request.path}", "{http.request.uri.path}"},
		{"{http.request.headers.X-Api-Key}", "{http.request.header.X-Api-Key}"},
		{"{http.request.Header.X-Api-Key}", "{http.request.header.X-Api-Key}"},
		{"{http.request.query.token}", "{http.request.uri.query.token}"},
		{"{http.request.mehtod}", "there is no placeholder {http.request.mehtod}; write what a request has"},
		{"{http.request.header}", "like {http.request.header.X-Api-Key}"},
		{"{http.request.header.}", "there is no placeholder {http.request.header.}"},
		{"{http.request.\u0130.x}", "there is no placeholder"},
		{"{client_ip", "not closed"},
	} {
		if warning, err := checked(t, test.template); err == nil || !strings.Contains(err.Error(), test.err) || warning != "" {
			t.Errorf("Check(%q) = %v, and warns %q; want %q alone", test.template, err, warning, test.err)
		}
	}
}

func TestCheckWarns(t *testing.T) {
	for _, test := range []struct{ template, warning string }{
		{"{remote_ip}", "{client_ip}"},
		{"{ip}", "{client_ip}"},
		{"{clientip}", "{client_ip}"},
		{"{remote_host}", "{http.request.remote.host}"},
		{"{host}", "{http.request.host}"},
		{"{path}", "{http.request.uri.path}"},
		{"{header.X-Api-Key}", "{http.request.header.X-Api-Key}"},
		{"{cookie.session}", "{http.request.cookie.session}"},
		{"{query.token}", "{http.request.uri.query.token}"},
		{"{http.request.remote}", "port"},
		{"{http.request.uuid}", "every request"},
		{"{http.request.port}", "did you mean {http.request.local.port}"},
		{"{http.request.header.host}", "did you mean {http.request.host}"},
		{"{tls_server_name}", "did you mean {http.request.tls.server_name}"},
		{"{http.request.header.X-Forwarded-For}", "trusted_proxies"},
		{"{http.reverse_proxy.upstream.hostport}", "no value yet"},
		{"{time.now.unix}", "all the time"},
		{"ip", "{client_ip}"},
		{"client_ip", "{client_ip}"},
		{"$remote_addr", "{client_ip}"},
		{"%{host}", "{http.request.host}"},
		{"Remote_IP", "{client_ip}"},
		{"header.X-Api-Key", "{http.request.header.X-Api-Key}"},
		{"http.request.header.X-Api-Key", "{http.request.header.X-Api-Key}"},
		{"http.auth.user.id", "{http.auth.user.id}"},
	} {
		if warning, err := checked(t, test.template); !strings.Contains(warning, test.warning) || err != nil {
			t.Errorf("Check(%q) warns %q, %v, want %q", test.template, warning, err, test.warning)
		}
	}
}

func TestSuggestionsExist(t *testing.T) {
	for slip, meant := range slips {
		if strings.HasPrefix(meant, "http.request.") && !knownToCaddy(meant) {
			t.Errorf("Caddy does not know {%s}, suggested for {%s}", meant, slip)
		}
	}
}
