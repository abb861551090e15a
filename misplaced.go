package ratelimit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

var globalOptions = []string{"redis", "sync_rate", "namespace", "strict_timeout", "persist"}

// directives are Caddy's own, without those that are options here. One of them among options means
// that a brace is not closed before it.
var directives = strings.Fields(`
	abort acme_server basic_auth basicauth bind encode error file_server forward_auth fs handle handle_errors handle_path header import intercept invoke
	log log_append log_name log_skip map method metrics php_fastcgi push rate_limit redir request_body request_header respond reverse_proxy rewrite root route
	skip_log templates tls tracing try_files uri vars`)

// misplaced says where a word belongs that is right in another place than a block with these
// options, nil if there is no such place.
func misplaced(option string, others []string) error {
	global, redis := slices.Contains(others, "persist"), slices.Contains(others, "address")
	zone := slices.Contains(others, "match")
	ofSite := slices.Contains(handlerOptions, option) || slices.Contains(zoneOptions, option)
	switch {
	case global && ofSite:
		return fmt.Errorf("%s belongs into a site, not into the global options; move it into the block after rate_limit in a site", option)
	case redis && slices.Contains(globalOptions, option):
		return fmt.Errorf("%s is an option beside redis, not one of redis itself; move it out of the braces of redis", option)
	case global || redis:
	case slices.Contains(globalOptions, option):
		text, _, _ := strings.Cut(example(option), "`")
		return fmt.Errorf("%s belongs into the global options, not into a site; move it to the block without a site at the top of the Caddyfile, into rate_limit there, as `%s`", option, text)
	case isMatcher(option) && zone:
		return fmt.Errorf("%s is a matcher, not an option; put it into the block of match", option)
	case isMatcher(option):
		return fmt.Errorf("%s is a matcher, not an option; put it into the match block of a zone", option)
	}
	if slices.Contains(directives, option) {
		return fmt.Errorf("%s is a directive, not an option; close the block before it with a }", option)
	}
	return nil
}

// example is how an option is written right.
func example(option string) string {
	if text := examples[option]; text != "" {
		return text
	}
	return option + " <value>"
}

func isMatcher(name string) bool {
	_, err := caddy.GetModule("http.matchers." + name)
	return err == nil
}
