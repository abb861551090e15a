module github.com/caddy-tide/ratelimit/bench/peer

go 1.26.0

require github.com/caddy-tide/ratelimit/bench v0.0.0

replace (
	github.com/caddy-tide/ratelimit => ../../
	github.com/caddy-tide/ratelimit/bench => ../
)
