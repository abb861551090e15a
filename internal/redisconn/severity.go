package redisconn

import "github.com/redis/go-redis/v9"

// IsSevere reports whether an error is about the server or the way to it, not about one key.
func IsSevere(err error) bool {
	if !is[redis.Error](err) {
		return true
	}
	return redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsOOMError(err) || redis.IsAuthError(err) || redis.IsPermissionError(err) ||
		redis.IsClusterDownError(err) || redis.IsMasterDownError(err) || redis.IsMaxClientsError(err) || redis.IsNoReplicasError(err) ||
		redis.HasErrorPrefix(err, "BUSY") || redis.HasErrorPrefix(err, "MISCONF")
}

// IsMoving reports whether an error says that a slot of a Cluster is on its way, or that its nodes
// don't agree whose it is.
func IsMoving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN") || redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
}
