package redisconn

import (
	"cmp"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Client makes a client without network I/O. The client never retries by itself: a repeated
// increment counts twice, and the sync has a backoff of its own. On a new connection it sends only
// HELLO (or AUTH) and SELECT, which a restricted user may.
func (s Settings) Client() (redis.UniversalClient, error) {
	timeout := cmp.Or(s.Timeout, DefaultTimeout)
	o := redis.UniversalOptions{
		Addrs: s.Addresses, DB: s.DB, Protocol: s.Protocol,
		Username: s.Username, Password: s.Password, CredentialsProviderContext: s.Credentials,
		MasterName: s.MasterName, SentinelUsername: s.SentinelUsername, SentinelPassword: s.SentinelPassword,
		IsClusterMode: s.Mode == Cluster,
		MaxRetries:    -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
		PoolSize: s.poolSize(), PipelinePoolSize: -1,
		FailingTimeoutSeconds: 1, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 10 * time.Millisecond,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	var err error
	if o.TLSConfig, err = s.TLS.Config(); err != nil {
		return nil, err
	}
	o.Dialer = dialer(timeout, o.TLSConfig)
	if s.Mode == Failover {
		// It switches maintenance notifications off by itself.
		return redis.NewFailoverClient(o.Failover()), nil
	}
	return redis.NewUniversalClient(&o), nil
}

// minPoolSize lets a node that ends, or a reload, send the last counts of many tables side by side
// where it has few CPUs: each table waits for a connection of its own.
const minPoolSize = 40

func (s Settings) poolSize() int {
	if s.PoolSize > 0 {
		return s.PoolSize
	}
	size := max(minPoolSize, 10*runtime.GOMAXPROCS(0))
	if s.Mode == Cluster {
		size /= 2 // of each server, which has a part of the tables' calls
	}
	return size
}
