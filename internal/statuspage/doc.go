// Package statuspage is the handler rate_limit_status: a page for people, and the same as JSON,
// that shows how the rate limits of a node stand. It is read-only, for clients on this machine
// unless others are allowed, and shows keys of zones with log_key alone.
//
// It is a handler of a site and not part of the admin endpoint, which rightly rejects browsers.
package statuspage
