package harness

import "fmt"

type bench struct {
	name        string
	config      string
	keys        int
	denies      bool
	errorRoutes bool
	parallel    bool
	memory      bool
}

const many = 10_000

// Tide is the program whose handler has more options than that of the older plugin.
const Tide = "tide"

// cases are what a program is measured by. Cases of one name are compared with each other.
func cases(who string) []*bench {
	if who == Tide {
		return append(common(`,"headers":["off"]`), own()...)
	}
	return common("")
}

// old is a configuration in the words of the older plugin: a request is admitted if there were
// fewer than n in the window before.
func old(n int, window, options string) string {
	return fmt.Sprintf(`{"rate_limits":{"zone":{"key":"{http.vars.client_ip}","window":%q,"max_events":%d}}%s}`, window, n, options)
}

func common(options string) []*bench {
	var all []*bench
	for _, parallel := range []bool{false, true} {
		suffix := map[bool]string{true: ", parallel"}[parallel]
		all = append(all,
			&bench{name: "same words: admitted" + suffix, config: old(1000, "100ms", options), keys: many, parallel: parallel},
			&bench{name: "same words: denied" + suffix, config: old(1, "1h", options), keys: many, parallel: parallel, denies: true},
			&bench{name: "same words: denied, error routes" + suffix, config: old(1, "1h", options), keys: many, parallel: parallel, denies: true, errorRoutes: true},
		)
	}
	for _, limit := range []int{10, 1000} {
		all = append(all, &bench{name: fmt.Sprintf("same words: memory at limit %d", limit), config: old(limit, "1h", options), keys: 100_000, memory: true})
	}
	return all
}

// own are what Tide has by itself: its default algorithm and what its options cost.
func own() []*bench {
	zone := func(name, key, limits string) string {
		return fmt.Sprintf(`%q:{"key":%q,"limits":[%s]}`, name, key, limits)
	}
	const (
		ip    = "{http.vars.client_ip}"
		huge  = `{"max_events":1000000000,"window":"1m"}`
		huge2 = huge + `,{"max_events":2000000000,"window":"1h"}`
		once  = `{"max_events":1,"window":"1h"}`
	)
	handler := func(zones, options string) string { return fmt.Sprintf(`{"rate_limits":{%s}%s}`, zones, options) }
	off := `,"headers":["off"]`
	var all []*bench
	for _, parallel := range []bool{false, true} {
		suffix := map[bool]string{true: ", parallel"}[parallel]
		all = append(all,
			&bench{name: "admitted, headers off" + suffix, config: handler(zone("z", ip, huge), off), parallel: parallel},
			&bench{name: "admitted, ietf headers" + suffix, config: handler(zone("z", ip, huge), ""), parallel: parallel},
			&bench{name: "denied, headers off" + suffix, config: handler(zone("z", ip, once), off), parallel: parallel, denies: true},
			&bench{name: "denied, ietf headers" + suffix, config: handler(zone("z", ip, once), ""), parallel: parallel, denies: true},
		)
	}
	all = append(all,
		&bench{name: "admitted, kong headers", config: handler(zone("z", ip, huge), `,"headers":["kong"]`)},
		&bench{name: "admitted, github headers", config: handler(zone("z", ip, huge), `,"headers":["github"]`)},
		&bench{name: "admitted, all headers", config: handler(zone("z", ip, huge), `,"headers":["ietf","kong","github"]`)},
		&bench{name: "admitted, metrics off", config: handler(zone("z", ip, huge), off+`,"disable_metrics":true`)},
		&bench{name: "admitted, two limits", config: handler(zone("z", ip, huge2), off)},
		&bench{name: "admitted, three zones", config: handler(zone("a", ip, huge)+","+zone("b", ip, huge)+","+zone("c", ip, huge), off)},
		&bench{name: "admitted, three zones, ietf headers", config: handler(zone("a", ip, huge)+","+zone("b", ip, huge)+","+zone("c", ip, huge), "")},
		&bench{name: "admitted, key: a header", config: handler(zone("z", "{http.request.header.X-Api-Key}", huge), off)},
		&bench{name: "admitted, key: host", config: handler(zone("z", "{http.request.host}-"+ip, huge), off)},
		&bench{name: "admitted, key: host, path, method", config: handler(zone("z", "{http.request.host}{http.request.uri.path}{http.request.method}-"+ip, huge), off)},
		&bench{name: "admitted, shared key", config: handler(zone("z", "all", huge), off)},
		&bench{name: "admitted, 100k keys", config: handler(zone("z", ip, huge), off), keys: 100_000},
		&bench{name: "memory, sliding_window", config: handler(zone("z", ip, `{"max_events":1000,"window":"1h"}`), off), keys: 100_000, memory: true},
	)
	for _, c := range all {
		if c.keys == 0 {
			c.keys = many
		}
	}
	return all
}
