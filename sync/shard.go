package ratesync

import (
	"context"
	"errors"
	"slices"

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

// byShard cuts a list into what one call can name: a few, in a Cluster of one shard each.
func byShard[T any](cluster bool, all []T, idOf func(T) keys.ID) (batches [][]T) {
	shardOf := func(one T) int { return ShardOf(idOf(one)) }
	if cluster {
		slices.SortStableFunc(all, func(a, b T) int { return shardOf(a) - shardOf(b) })
	}
	for first, i := 0, 1; i <= len(all); i++ {
		if i == len(all) || i-first == batchSize || cluster && shardOf(all[i]) != shardOf(all[first]) {
			batches = append(batches, all[first:i])
			first = i
		}
	}
	return batches
}

// missedAfter are the shards that a table misses after a cycle. In a cycle all dirty keys have
// their message. A shard of which no key was dirty is not missed: nothing shows that it fails, and
// requests for its keys would be decided without Redis.
func (r *Replicator) missedAfter(a *attachment, early bool, err error) uint64 {
	switch {
	case !r.cluster && err != nil:
		return allShards
	case !r.cluster:
		return 0
	case early:
		return a.missed.Load()&^a.answered | a.failed
	}
	return a.failed
}

// unanswered asks the server of each shard of a Cluster for something, which the heartbeat, in one
// of them, does not. It returns the shards whose server gives no answer, and one of the reasons.
func (r *Replicator) unanswered(ctx context.Context) (shards uint64, why error) {
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
			shards, why = shards|1<<shard, err
		}
	}
	return shards, why
}
