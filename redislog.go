package ratelimit

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// redisLog takes what go-redis writes for failed attempts. It has one logger for all clients of the
// process, those of other plugins too, and writes to stderr, past Caddy's log and its format. Lines
// about our servers go to Caddy's log at level debug: what an operator must know is logged by the
// sync. All other lines go where go-redis writes by itself, and look the same.
type redisLog struct {
	others *log.Logger

	mu  sync.Mutex
	own map[string]struct{} // addresses and quoted names of masters
}

// clientLines is set as go-redis' logger with the first client of ours, not before.
var (
	clientLines = &redisLog{others: log.New(os.Stderr, "redis: ", log.LstdFlags|log.Lshortfile)}
	setLines    sync.Once
)

// add takes lines about these servers out.
func (l *redisLog) add(s ratesync.Settings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own == nil {
		l.own = make(map[string]struct{})
	}
	for _, address := range s.Addresses {
		l.own[address] = struct{}{}
	}
	if s.MasterName != "" {
		l.own[strconv.Quote(s.MasterName)] = struct{}{}
	}
}

// isOwn reports whether a line is about a server of ours.
func (l *redisLog) isOwn(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range l.own {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// Printf is called by go-redis.
func (l *redisLog) Printf(_ context.Context, format string, v ...any) {
	line := fmt.Sprintf(format, v...)
	if !l.isOwn(line) {
		_ = l.others.Output(3, line) // the caller of go-redis' own Printf
		return
	}
	if c := caddy.Log().Named("rate_limit.redis").Check(zap.DebugLevel, "redis client"); c != nil {
		c.Write(zap.String("message", line))
	}
}

// newClient makes a client whose lines are ours.
func newClient(s ratesync.Settings) (redis.UniversalClient, error) {
	clientLines.add(s)
	setLines.Do(func() { redis.SetLogger(clientLines) })
	return s.Client()
}
