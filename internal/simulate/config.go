// Package simulate replays access logs against a configuration: by the code that decides on real
// requests, at the times of the log. It says whom the limits would have denied.
package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/operate"
)

// A Policy is a configuration that is ready to be asked, and never started: it listens nowhere and
// connects to nothing.
type Policy struct {
	// Warnings say what of the configuration can't be replayed.
	Warnings []string

	context caddy.Context
	servers []*caddyhttp.Server // those that have a rate_limit
	// leftOut are zones of which nothing can be replayed, with the reason.
	leftOut map[string]string
	// fields are the placeholders in keys, limits and costs, without braces.
	fields []string
	// answers are the fields of logs that say what responses cost, and untold the zones whose
	// responses say it where no log has it.
	answers, untold []string
	// sees is set where something may look at headers.
	sees bool
}

// object is one of JSON.
type object = map[string]any

// Load makes the JSON of a configuration ready. It takes out what has nothing to do with which
// requests come to a rate_limit, such as certificates, logs and health checks of upstreams. What it
// provisions lasts as long as the process.
func Load(config []byte) (*Policy, error) {
	d := json.NewDecoder(bytes.NewReader(config))
	d.UseNumber()
	var whole object
	if err := d.Decode(&whole); err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	p := &Policy{leftOut: map[string]string{}}
	p.warnSampling(whole)
	reduced, err := json.Marshal(p.reduce(whole))
	if err != nil {
		return nil, err
	}
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(reduced, &c); err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	if p.context, err = caddy.ProvisionContext(&c); err != nil {
		return nil, fmt.Errorf("loading the configuration: %w", err)
	}
	v, err := p.context.App("http")
	if err != nil {
		return nil, err
	}
	app := v.(*caddyhttp.App)
	for _, name := range slices.Sorted(maps.Keys(app.Servers)) {
		if len(limitersOf(app.Servers[name])) > 0 {
			p.servers = append(p.servers, app.Servers[name])
		}
	}
	if len(p.servers) == 0 {
		if names := slices.Sorted(maps.Keys(p.leftOut)); len(names) > 0 {
			return nil, fmt.Errorf("no zone of the configuration can be replayed; zone %q: %s", names[0], p.leftOut[names[0]])
		}
		return nil, errors.New("the configuration has no rate_limit; write one, or give --limit in place of --config")
	}
	return p, nil
}

// reduce returns what is needed of a configuration.
func (p *Policy) reduce(whole object) object {
	apps := asObject(whole["apps"])
	httpApp := asObject(apps["http"])
	servers := object{}
	for name, s := range asObject(httpApp["servers"]) {
		servers[name] = p.server(asObject(s))
	}
	reduced := object{"servers": servers}
	for _, field := range []string{"http_port", "https_port"} {
		if httpApp[field] != nil {
			reduced[field] = httpApp[field]
		}
	}
	return object{
		"admin":   object{"disabled": true, "config": object{"persist": false}},
		"logging": object{"logs": object{"default": object{"level": "ERROR"}}},
		"apps":    object{"http": reduced, "rate_limit": p.globals(asObject(apps["rate_limit"]))},
	}
}

// server returns what is needed of a server.
func (p *Policy) server(s object) object {
	kept := object{"automatic_https": object{"disable": true}}
	for _, field := range []string{"listen", "routes", "named_routes", "trusted_proxies", "client_ip_headers", "trusted_proxies_strict"} {
		if s[field] != nil {
			kept[field] = s[field]
		}
	}
	p.routes(kept["routes"])
	for _, route := range asObject(kept["named_routes"]) {
		p.routes([]any{route})
	}
	if errorRoutes, _ := json.Marshal(s["errors"]); bytes.Contains(errorRoutes, []byte(`"rate_limit"`)) {
		p.warn("rate_limit in handle_errors is not replayed: the log does not tell which requests came there")
	}
	return kept
}

// loaded numbers the configurations of this process: each counts apart.
var loaded int

// globals returns what is needed of the global options. That there is a Redis decides which zones
// sync; nobody connects to it.
func (p *Policy) globals(o object) object {
	delete(o, "persist")
	loaded++
	o["namespace"] = fmt.Sprintf("simulation %d", loaded)
	if redis := asObject(o["redis"]); len(redis) > 0 && redis["url"] != "off" {
		o["redis"] = object{"url": "redis://localhost:6379"}
	}
	if regions := asObject(o["regions"]); len(regions) > 0 {
		p.warn("regions are replayed as one: each node hears of all others at sync_rate")
		all, port := asObject(regions["redis"]), 6379
		for name := range all {
			regions["here"], all[name] = name, object{"url": fmt.Sprintf("redis://localhost:%d", port)}
			port++
		}
	}
	return o
}

// routes takes the handlers out that are not run.
func (p *Policy) routes(routes any) {
	for _, route := range objectsOf(routes) {
		p.note(route["match"])
		var kept []any
		for _, h := range objectsOf(route["handle"]) {
			switch name, _ := h["handler"].(string); {
			case name == "rate_limit":
				if p.limits(h) {
					kept = append(kept, h)
				}
			case name == "subroute":
				p.routes(h["routes"])
				delete(h, "errors")
				kept = append(kept, h)
			case h["handle_response"] != nil: // of a reverse_proxy that may hand the request on
			case slices.Contains(operate.Ending, name):
				kept = append(kept, object{"handler": "static_response"})
			case slices.Contains(operate.Changing, name):
				p.sees = true
				kept = append(kept, h)
			case name == "invoke":
				kept = append(kept, h)
			}
		}
		route["handle"] = kept
	}
}

// blind are the names that matchers have which look at no header.
var blind = []string{"host", "path", "method", "remote_ip", "client_ip", "ranges", "not", "share", "match", "path_regexp", "pattern"}

// note notes whether matchers may look at headers: whether they have a field of another name.
func (p *Policy) note(matchers any) {
	text, _ := json.Marshal(matchers)
	for _, name := range blind {
		text = bytes.ReplaceAll(text, []byte(strconv.Quote(name)+":"), nil)
	}
	p.sees = p.sees || bytes.Contains(text, []byte(`":`))
}

// trustsProxies reports whether a server takes the client's address from a header.
func (p *Policy) trustsProxies() bool {
	return slices.ContainsFunc(p.servers, func(s *caddyhttp.Server) bool { return len(s.TrustedProxiesRaw) > 0 })
}

// isHeader reports whether a placeholder is of a header.
func isHeader(name string) bool {
	return strings.HasPrefix(name, "http.request.header.") || strings.HasPrefix(name, "http.request.cookie.")
}

// notReplayed are options that are not, with the reason.
var notReplayed = [][2]string{
	{"concurrent", "how long a request runs depends on what else runs, and who is denied does not run at all"},
	{"bandwidth", "the log does not tell how long a response that is slowed takes"},
}

// limits notes what the zones of a handler go by, and takes out what can't be replayed. It returns
// whether anything is left.
func (p *Policy) limits(h object) bool {
	zones := asObject(h["rate_limits"])
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		z := asObject(zones[name])
		for _, o := range notReplayed {
			if z[o[0]] == nil {
				continue
			}
			delete(z, o[0])
			why := o[0] + " is not replayed: " + o[1]
			p.warn(fmt.Sprintf("zone %q: %s", name, why))
			if z["limits"] == nil && z["max_events"] == nil {
				delete(zones, name)
				p.leftOut[name] = why
			}
		}
		if zones[name] == nil {
			continue
		}
		for _, option := range []string{"count_responses", "forgive_responses"} {
			if asObject(z[option])["headers"] != nil {
				p.warn(fmt.Sprintf("zone %q: the headers of responses are not replayed, so %s matches none here", name, option))
			}
		}
		p.note(z["match"])
		p.note(z["except"])
		p.note(z["reserve"])
		p.goBy(z["key"])
		for _, l := range objectsOf(z["limits"]) {
			p.goBy(l["max_events"])
		}
		p.responseCost(name, z)
		for _, t := range objectsOf(z["cost"]) {
			p.goBy(t["units"])
			p.sees = p.sees || t["bytes"] == true
		}
	}
	return len(zones) > 0
}

var placeholder = regexp.MustCompile(`\{([^}]*)\}`)

// goBy notes the placeholders of a value, if it is text.
func (p *Policy) goBy(value any) {
	text, _ := value.(string)
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		p.fields = append(p.fields, m[1])
	}
}

// Check reports what keys, limits and costs need and no log has.
func (p *Policy) Check() error {
	for _, name := range p.fields {
		switch {
		case strings.HasPrefix(name, "http.request.body"):
			return fmt.Errorf("{%s} can't be replayed: logs don't have the bodies of requests", name)
		case strings.HasPrefix(name, "http.auth.") && name != "http.auth.user.id":
			return fmt.Errorf("{%s} can't be replayed: of who was authenticated logs have the id only", name)
		case strings.HasPrefix(name, "http.request.tls.client"):
			return fmt.Errorf("{%s} can't be replayed: logs don't have the certificates of clients", name)
		}
	}
	return nil
}

// needsHeaders reports whether anything may look at the headers of a request.
func (p *Policy) needsHeaders() bool {
	return p.sees || p.trustsProxies() || slices.ContainsFunc(p.fields, func(name string) bool {
		return isHeader(name) || !strings.HasPrefix(name, "http.request.") && name != "client_ip" && name != "http.vars.client_ip" && name != "http.vars."+costInLog
	})
}

// warnSampling warns of a log that leaves out requests.
func (p *Policy) warnSampling(whole object) {
	for name, v := range asObject(asObject(whole["logging"])["logs"]) {
		if asObject(v)["sampling"] != nil {
			p.warn(fmt.Sprintf("the log %q of the configuration is sampled: requests that it leaves out are not replayed, so fewer are denied here than would be", name))
		}
	}
}

// warn adds a warning, once.
func (p *Policy) warn(text string) {
	if !slices.Contains(p.Warnings, text) {
		p.Warnings = append(p.Warnings, text)
	}
}

// asObject returns a value that is an object, an empty one for others.
func asObject(v any) object {
	if o, ok := v.(object); ok {
		return o
	}
	return object{}
}

// objectsOf returns the objects of a value that is a list.
func objectsOf(v any) (all []object) {
	list, _ := v.([]any)
	for _, one := range list {
		all = append(all, asObject(one))
	}
	return all
}

// OneZone returns a configuration of one zone, as its JSON has it, that limits all requests. Where
// nodes share them, it syncs.
func OneZone(name string, zone object) any {
	return object{"apps": object{
		"rate_limit": object{"redis": object{"url": "redis://localhost:6379"}},
		"http": object{"servers": object{"simulation": object{
			"listen": []any{":80"},
			"routes": []any{object{"handle": []any{object{"handler": "rate_limit", "rate_limits": object{name: zone}}}}},
		}}},
	}}
}
