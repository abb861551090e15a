package ratesync

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

// shardsWith are those that share the fate of a key's: its own in a Cluster, else all.
func shardsWith(cluster bool, id keys.ID) uint64 {
	if cluster {
		return 1 << ShardOf(id)
	}
	return allShards
}

// lostAfter are the shards that are lost to a table after a cycle. In a cycle all keys have their
// message; a shard without one is not held for lost, as requests for its keys may wait for that.
func (r *Replicator) lostAfter(at *attachment, early bool, err error) uint64 {
	switch {
	case !r.cluster && err != nil:
		return allShards
	case !r.cluster:
		return 0
	case early:
		return at.lost.Load()&^at.answered | at.failed
	}
	return at.failed
}

// unreached asks the server of each shard of a Cluster for something, which the heartbeat, in one
// of them, does not. It returns the shards whose server gives no answer, and one of the reasons.
func (r *Replicator) unreached(ctx context.Context) (lost uint64, why error) {
	ctx, cancel := context.WithTimeout(ctx, min(r.timeout, heartbeatInterval))
	defer cancel()
	calls := r.client.Pipeline()
	var replies [ShardCount]*redis.StringCmd
	for shard := range replies {
		replies[shard] = calls.HGet(ctx, r.keys.Nodes(shard), r.node)
	}
	_, _ = calls.Exec(ctx)
	for shard, reply := range replies {
		err := reply.Err()
		if err != nil && !errors.Is(err, redis.Nil) && redisconn.IsSevere(err) && !redisconn.IsMoving(err) {
			lost, why = lost|1<<shard, err
		}
	}
	return lost, why
}
