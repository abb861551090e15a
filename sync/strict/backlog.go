package strict

import (
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// ErrBacklog is the error of a request that has waited for its call longer than Redis has for an
// answer: more is asked than the calls under way can carry. It says nothing of how Redis is.
var ErrBacklog = errors.New("too many requests wait to be decided by redis")

// backlogQuiet is how long after the last request that waited too long a backlog is over.
const backlogQuiet = 10 * time.Second

// backlogs tell once of requests that wait for too long, until that is over.
type backlogs struct {
	log  *zap.Logger
	last atomic.Int64 // when it was last there, in nanoseconds
}

// noteBacklog tells of requests that have waited for too long, once Redis answers. Where it
// doesn't, the outage is told of, for which they have waited.
func (s *Limiter) noteBacklog(c *circuit, r result) {
	if c.overdue.Load() == 0 || r != answered && r != unanswered {
		return
	}
	n := c.overdue.Swap(0)
	if r == unanswered || n == 0 {
		return
	}
	now := time.Now().UnixNano()
	if last := s.backlog.last.Swap(now); last != 0 && now-last < int64(backlogQuiet) {
		return
	}
	s.backlog.log.Warn("requests of strict zones wait longer for their call to redis than strict_timeout, and go by on_redis_loss; raise pool_size or strict_timeout, use a nearer redis, or set an interval as sync_rate",
		warning.Field(warning.Backlog), zap.Int64("requests", n), zap.Duration("strict_timeout", time.Duration(s.timeout.Load())))
}
