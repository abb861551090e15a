package behaviour_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A mend is a site that is warned of, and what to write in place of some of its text, as the
// warning advises. Requests are sent before and after: who sends them is an address, a path and
// headers, with @ for the client's number and # for the request's. Their outcome is how many of a
// client's six requests were admitted, and how many of six other clients' three.
type mend struct {
	code, options, site, who string
	write                    []string
	faulty, mended           string
}

const (
	perClient = "2 12"
	anybody   = "1.2.3.@ /"
	limited   = "\nlimit 2/30d\n}\n}\n"
)

// zone2 is a rate_limit with a zone that has these options and a limit of two requests.
func zone2(options string) string { return "rate_limit {\nzone z {\n" + options + limited }

var mends = map[string]mend{
	"trust that is not strict":          {warning.TrustNotStrict, "servers {\ntrusted_proxies static private_ranges\n}", zone2(""), "10.0.0.1 /; X-Forwarded-For: 9.9.9.#, 1.2.3.@", []string{"private_ranges", "private_ranges\ntrusted_proxies_strict"}, "6 18", perClient},
	"a forgeable key":                   {warning.ForgeableKey, trust, zone2("key {header.X-Forwarded-For}"), "10.0.0.1 /; X-Forwarded-For: 9.9.9.#, 1.2.3.@", []string{"{header.X-Forwarded-For}", "{client_ip}"}, "6 18", perClient},
	"a forgeable key, no proxy":         {warning.ForgeableKey, "", zone2("key {header.X-Real-IP}"), anybody, []string{"{header.X-Real-IP}", "{client_ip}"}, perClient, perClient},
	"a key by id":                       {warning.PoorKey, "", zone2("key {http.request.uuid}"), anybody, []string{"{http.request.uuid}", "{client_ip}"}, "6 18", perClient},
	"a key by time":                     {warning.PoorKey, "", zone2("key {time.now}"), anybody, []string{"{time.now}", "{client_ip}"}, "6 18", perClient},
	"a key by port":                     {warning.PoorKey, "", zone2("key {remote}"), "1.2.3.@:10# /", []string{"{remote}", "{client_ip}"}, "6 18", perClient},
	"a key by the port of a host":       {warning.PoorKey, "", zone2("key {hostport}"), "1.2.3.@ http://a.example:10#/", []string{"{hostport}", "{host}"}, "6 18", "2 0"},
	"a key by name":                     {warning.UnknownKey, "", zone2("key {usr.of.a}\nempty_key share"), anybody, []string{"{usr.of.a}", "{client_ip}"}, "2 0", perClient},
	"a limit by name":                   {warning.UnknownKey, "", "rate_limit {\nzone z {\nlimit {plan.of.team}/30d\nlimit_default 1/30d\n}\n}", anybody, []string{"rate_limit", "map {path} {plan.of.team} {\ndefault 2\n}\nrate_limit"}, "1 6", perClient},
	"no braces":                         {warning.NoBraces, "", zone2("key client_ip"), anybody, []string{"client_ip", "{client_ip}"}, "2 0", perClient},
	"no braces, one count":              {warning.NoBraces, "", zone2("key client_ip"), anybody, []string{"client_ip", "all"}, "2 0", "2 0"},
	"a share of one key":                {warning.ShareOfOneKey, "", zone2("key all\nenforce 50%"), anybody, []string{"key all", "key {client_ip}"}, "6 18", "2 14"},
	"a share of one key, off":           {warning.ShareOfOneKey, "", zone2("key all\nenforce 99%"), anybody, []string{"99%", "off"}, "2 0", "6 18"},
	"a limit that is no number":         {warning.LimitValue, "", "vars plan lots\n" + "rate_limit {\nzone z {\nlimit {vars.plan}/30d\nlimit_default 1/30d\n}\n}", anybody, []string{"lots", "2"}, "1 6", perClient},
	"a header that a proxy adds":        {warning.AmbiguousKey, "", "route {\nrequest_header +X-Tenant {client_ip}\n" + zone2("key {header.X-Tenant}") + "rate_limit 1200/30d\n}", "1.2.3.@ /; X-Tenant: #", []string{"+X", "X"}, "2 0", perClient},
	"a client's key":                    {warning.ClientsKey, "", zone2("key {header.X-Api-Key}"), "1.2.3.@ /; X-Api-Key: #", []string{"rate_limit", "rate_limit 2/30d\nrate_limit"}, "6 18", perClient},
	"a client's key, checked":           {warning.ClientsKey, "", zone2("key {header.X-Api-Key}"), "1.2.3.@ /; X-Api-Key: #", []string{"rate_limit", "@bad not header X-Api-Key secret*\nroute {\nrespond @bad 401\nrate_limit", "}\n}\n", "}\n}\n}\n"}, "6 18", "0 0"},
	"a client's limit":                  {warning.ClientsLimit, "", "rate_limit {\nzone z {\nlimit {header.X-Plan}/30d\nlimit_default 2/30d\n}\n}", "1.2.3.@ /; X-Plan: 1000", []string{"rate_limit", "map {header.X-Api-Key} {plan} {\nsecret 4\ndefault 2\n}\nrate_limit", "{header.X-Plan}", "{plan}"}, "6 18", perClient},
	"a client's limit, by user":         {warning.ClientsLimit, "", "rate_limit {\nzone z {\nlimit {header.X-Plan}/30d\nlimit_default 1/30d\nkey {header.Authorization}\n}\n}\nbasic_auth {\n" + user + "}\nheader X y", "1.2.3.@ /; X-Plan: 1000; Authorization: " + right, []string{"rate_limit", "route {\nbasic_auth {\n" + user + "}\nmap {http.auth.user.id} {plan} {\nBob 4\n}\nrate_limit", "{header.X-Plan}", "{plan}", "basic_auth {\n" + user + "}\nheader X y", "}"}, "6 18", "4 0"},
	"a client's limit, by forward_auth": {warning.ClientsLimit, "# options", "rate_limit {\nzone z {\nlimit {header.X-Plan}/30d\nlimit_default 1/30d\n}\n}", "1.2.3.@ /; X-Plan: 1000", []string{"rate_limit", "route {\nforward_auth BACKEND {\nuri /verify\ncopy_headers X-Plan\n}\nrate_limit", "}\n}", "}\n}\n}", "# options", "rate_limit {\nquiet TIDE024\n}"}, "6 18", perClient},
	"a client's cost":                   {warning.ClientsLimit, "", "rate_limit {\nzone z {\nlimit 6/30d\ncost {header.X-Units}\ncost_default 3\n}\n}", "1.2.3.@ /; X-Units: 0", []string{"cost {header.X-Units}\ncost_default 3", "cost 3"}, "6 18", perClient},
	"a client's cost of a response":     {warning.ClientsLimit, "", "rate_limit {\nzone z {\nlimit 6/30d\nresponse_cost {cookie.units}\n}\n}\nheader X-Cost 3", "1.2.3.@ /; Cookie: units=1", []string{"{cookie.units}", "header X-Cost"}, "6 18", perClient},
	"a proxy's response, compressed":    {warning.NoCost, "", "rate_limit {\nzone z {\nlimit 6/30d\nresponse_cost json usage.total_tokens\n}\n}\nreverse_proxy BACKEND {\n}", "1.2.3.@ /; Accept-Encoding: gzip", []string{"BACKEND {", "BACKEND {\nheader_up -Accept-Encoding"}, "6 18", perClient},
	"a response that Caddy compresses":  {warning.NoCost, "", "route {\nrate_limit {\nzone z {\nlimit 6/30d\nresponse_cost json usage.total_tokens\n}\n}\nencode {\nminimum_length 1\n}\nreverse_proxy BACKEND {\nheader_up -Accept-Encoding\n}\n}", "1.2.3.@ /; Accept-Encoding: gzip", []string{"route {", "route {\nencode {\nminimum_length 1\n}", "encode {\nminimum_length 1\n}\n", ""}, "6 18", perClient},
	"a figure of another name":          {warning.NoCost, "", "rate_limit {\nzone z {\nlimit 6/30d\nresponse_cost header X-Cots\n}\n}\nheader X-Cost 3", anybody, []string{"Cots", "Cost"}, "6 18", perClient},
	"behind who authenticates":          {warning.NotReached, "", "route {\nbasic_auth {\n" + user + "}\n" + zone2("match path /*\ncount_responses 401") + "}", "1.2.3.@ /; Authorization: " + wrong, []string{"basic_auth {\n" + user + "}\n", "", "limit 2/30d\n}\n}\n", "limit 2/30d\n}\n}\nbasic_auth {\n" + user + "}\n"}, "6 18 in", "2 12"},
	"an exact path":                     {warning.ExactPath, "", zone2("match path /login"), "1.2.3.@ /login/#", []string{"/login", "/login*"}, "6 18", perClient},
	"an exception of the proxy":         {warning.PeerMatched, trust, zone2("except remote_ip 10.0.0.0/8"), "10.0.0.1 /; X-Forwarded-For: 1.2.3.@", []string{"remote_ip", "client_ip"}, "6 18", perClient},
	"keys that a client chooses":        {warning.MaxKeys, "", zone2("key {header.X-Api-Key}\nmax_keys 20"), "1.2.3.@ /; X-Api-Key: #", []string{"rate_limit {", "rate_limit 2/30d\nrate_limit {"}, "6 18", perClient},
	"many clients":                      {warning.MaxKeys, "", zone2("max_keys 3"), anybody, []string{"max_keys 3", "max_keys 30"}, perClient, perClient},
	"in an error route":                 {warning.LimitOnErrors, "", "basic_auth {\n" + user + "}\nhandle_errors 401 {\nrate_limit 2/30d\n}", "1.2.3.@ /; Authorization: " + wrong, []string{"basic_auth", zone2("match header Authorization *\ncount_responses 401 403") + "basic_auth", "handle_errors 401 {\nrate_limit 2/30d\n}", ""}, "2 12 in", perClient},
	"guesses anywhere":                  {warning.AllReserve, "", zone2("count_responses 401") + "basic_auth {\n" + user + "}", "1.2.3.@ /#; Authorization: " + wrong, []string{"count", "match header Authorization *\ncount"}, perClient, perClient},
	"a user before who authenticates":   {warning.BeforeAuth, "", zone2("key {http.auth.user.id}") + "basic_auth {\n" + user + "}\nheader X y", "1.2.3.@ /; Authorization: " + right, []string{"rate_limit", "route {\nbasic_auth {\n" + user + "}\nrate_limit", "basic_auth {\n" + user + "}\nheader X y", "}"}, perClient, "2 0"},
	"responses that cost nothing":       {warning.NoCost, "", "rate_limit {\nzone z {\nlimit 2/30d\nresponse_cost header X-Cost\n}\n}\nheader /other* X-Cost 0\nrespond /none 404", "1.2.3.@ /none", []string{"response_cost", "count_responses 2xx\nresponse_cost"}, "2 12", "6 18"},
}

// user is Bob, whose password is right.
const (
	user  = "Bob $2a$04$kQYCyUHmDGTsZ8gYssbesOi7Wqae3GfX3Q6Rt5pZbhUx.HZKtvo/i\n"
	right = "Basic Qm9iOnJpZ2h0"
	wrong = "Basic Qm9iOndyb25n"
)

var zoneCodes = regexp.MustCompile(`"code":"(TIDE[0-9]+)"`)

// served is Caddy with a Caddyfile of a site, whose requests come from any address. In the site is
// a second zone that admits one request of a client.
type served struct {
	t    *testing.T
	log  string
	site http.Handler
	read bool // the body of a request that was denied
}

// serve loads a Caddyfile, with some of its JSON replaced. It takes the place of one before.
func serve(t *testing.T, options, site string, replaced ...string) *served {
	t.Helper()
	s := &served{t: t, log: filepath.Join(t.TempDir(), "log")}
	end := "\nrespond ok"
	if strings.Contains(site, "reverse_proxy") {
		end = ""
	}
	site = strings.ReplaceAll(site, "BACKEND", metered(t))
	config, err := sitetest.Adapt("{\nadmin off\npersist_config off\nauto_https off\nlog {\noutput file " + s.log + "\nformat json\n}\n" + options + "\n}\n" +
		"http://a.example {\nbind tidetest/x\nvars who {client_ip}\nrate_limit /other* {\nzone other {\nkey {http.vars.who}\nlimit 1/30d\n}\nmessage other\n}\n" + site + end + "\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load([]byte(strings.NewReplacer(replaced...).Replace(string(config))), true); err != nil {
		t.Fatal(err)
	}
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		t.Fatal(err)
	}
	s.site = app.(*caddyhttp.App).Servers["srv0"]
	return s
}

// metered is an upstream that says what its responses cost, compressed for those who accept it. To
// forward_auth it gives a plan.
func metered(t *testing.T) (address string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Plan", "2")
		body := io.Writer(w)
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			body = z
		}
		_, _ = io.WriteString(body, `{"usage":{"total_tokens":3}}`)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// logged is the log.
func (s *served) logged() string {
	text, err := os.ReadFile(s.log)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return string(text)
}

// warned are the codes that were logged, sorted.
func (s *served) warned() (codes []string) {
	for _, found := range zoneCodes.FindAllStringSubmatch(s.logged(), -1) {
		codes = append(codes, found[1])
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// send sends a request of a client, and returns its status and body.
func (s *served) send(who string, client, number int) (int, string) {
	lines := strings.Split(strings.NewReplacer("@", strconv.Itoa(client), "#", strconv.Itoa(number)).Replace(who), "; ")
	address, to, _ := strings.Cut(lines[0], " ")
	if strings.HasPrefix(to, "/") {
		to = "http://a.example" + to
	}
	r := httptest.NewRequest(http.MethodGet, to, nil)
	if r.RemoteAddr = address; !strings.Contains(address, ":") {
		r.RemoteAddr += ":1234"
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		if r.Header.Add(name, value); name == "Body" {
			r.Body = io.NopCloser(strings.NewReader(value))
		}
	}
	w := httptest.NewRecorder()
	s.site.ServeHTTP(w, r)
	if left, err := io.ReadAll(r.Body); w.Code == http.StatusTooManyRequests && len(left) == 0 && err == nil && r.Header.Get("Body") != "" {
		s.read = true
	}
	return w.Code, w.Body.String()
}

// admitted reports whether a request was admitted, by its status. A wrong password may be.
func admitted(status int, who string) bool {
	return status != http.StatusTooManyRequests && (status != http.StatusUnauthorized || strings.Contains(who, wrong))
}

// outcome sends the requests of a mend.
func (s *served) outcome(who string) string {
	one, many := 0, 0
	for i := range 6 {
		if status, _ := s.send(who, 1, 10+i); admitted(status, who) {
			one++
		}
	}
	for i := range 18 {
		if status, _ := s.send(who, 10+i%6, 20+i); admitted(status, who) {
			many++
		}
	}
	outcome := fmt.Sprintf("%d %d", one, many)
	if status, _ := s.send(strings.Replace(who, wrong, right, 1), 1, 9); strings.Contains(who, wrong) && status == http.StatusOK {
		outcome += " in"
	}
	if s.read {
		outcome += " body"
	}
	return outcome
}

// deniesElsewhere reports whether the second zone denies a client at its limit, and no other zone.
func (s *served) deniesElsewhere() bool {
	s.send("5.5.5.@ /other/#", 5, 1)
	status, body := s.send("5.5.5.@ /other/#", 5, 2)
	return status == http.StatusTooManyRequests && body == "other"
}

// Who writes what a warning advises is warned no longer, nor of anything new, the zone limits
// whom its author means, and the second zone is as it was.
func TestMends(t *testing.T) {
	t.Cleanup(func() { _ = caddy.Stop() })
	for name, m := range mends {
		t.Run(name, func(t *testing.T) {
			had := m.check(t, m.options, m.site, m.faulty)
			if !slices.Contains(had, m.code) {
				t.Errorf("warned of %q, want %s", had, m.code)
			}
			mended := strings.NewReplacer(m.write...)
			for _, code := range m.check(t, mended.Replace(m.options), mended.Replace(m.site), m.mended) {
				if code == m.code || !slices.Contains(had, code) {
					t.Errorf("mended it is warned of %s", code)
				}
			}
		})
	}
}

// check returns the codes that a site is warned of, and fails where its requests have another
// outcome. Without requests it is only read.
func (m mend) check(t *testing.T, options, site, want string) (codes []string) {
	t.Helper()
	if m.who == "" {
		for _, line := range warnedOf(t, "", options, site) {
			codes = append(codes, line[:len(m.code)])
		}
		return codes
	}
	s := serve(t, options, site)
	if got := s.outcome(m.who); got != want {
		t.Errorf("%s\nadmits %q, want %q", site, got, want)
	}
	if !s.deniesElsewhere() {
		t.Errorf("%s\nthe zone other doesn't deny", site)
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	return s.warned()
}
