package redisconn

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// IsSevere reports whether an error is about the server or the way to it, not about one key.
func IsSevere(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return true
	}
	err = Rejection(inScript(reply.Error()))
	return redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsOOMError(err) || redis.IsAuthError(err) || redis.IsPermissionError(err) ||
		redis.IsClusterDownError(err) || redis.IsMasterDownError(err) || redis.IsMaxClientsError(err) || redis.IsNoReplicasError(err) ||
		redis.HasErrorPrefix(err, "BUSY") || redis.HasErrorPrefix(err, "MISCONF")
}

// IsWrongType reports whether another program uses the key.
func IsWrongType(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && strings.HasPrefix(inScript(reply.Error()), "WRONGTYPE")
}

// IsMoving reports whether an error says that a slot of a Cluster is on its way, or that its nodes
// don't agree whose it is.
func IsMoving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN") || redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
}
