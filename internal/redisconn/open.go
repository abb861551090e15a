package redisconn

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
)

// NewClient makes a client whose lines in the log are ours.
func NewClient(s *Settings) (redis.UniversalClient, error) {
	processLog.add(s)
	setProcessLog.Do(func() { redis.SetLogger(processLog) })
	return s.Client()
}

// BorrowClient returns the client of a storage of Caddy's. It stays the storage's, which closes it.
func BorrowClient(storage any) (redis.UniversalClient, error) {
	var client any
	switch s := storage.(type) {
	case interface{ GetClient() any }:
		client = s.GetClient()
	case interface{ GetClient() redis.UniversalClient }:
		client = s.GetClient()
	default:
		return nil, fmt.Errorf("redis storage: Caddy's storage (%T) doesn't lend its Redis client; write redis redis://localhost:6379/0 with the address of your Redis", storage)
	}
	c, ok := client.(redis.UniversalClient)
	if !ok || c == nil {
		return nil, fmt.Errorf("redis storage: what Caddy's storage lends (%T) is not a client of go-redis v9; write redis redis://localhost:6379/0 with the address of your Redis", client)
	}
	return c, nil
}

// A clientLog takes what go-redis writes for failed attempts. go-redis has one logger for all
// clients of the process, those of other plugins too, and writes to stderr, past Caddy's log and
// its format. Lines about our servers go to Caddy's log at level debug: what an operator must know
// is logged by the sync. All other lines go where go-redis writes by itself, and look the same.
type clientLog struct {
	others *log.Logger

	mu  sync.Mutex
	own map[string]struct{} // addresses and quoted names of masters
}

// processLog becomes the logger of go-redis with the first client of ours, not before.
var (
	processLog    = &clientLog{others: log.New(os.Stderr, "redis: ", log.LstdFlags|log.Lshortfile)}
	setProcessLog sync.Once
)

// add makes the lines about these servers ours.
func (l *clientLog) add(s *Settings) {
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
		l.own[allSentinels] = struct{}{} // without a name of whose they are
	}
}

// isOwn reports whether a line is about a server of ours.
func (l *clientLog) isOwn(line string) bool {
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
func (l *clientLog) Printf(_ context.Context, format string, v ...any) {
	line := fmt.Sprintf(format, v...)
	if !l.isOwn(line) {
		_ = l.others.Output(3, line) // the caller of go-redis' own Printf
		return
	}
	if c := caddy.Log().Named("rate_limit.redis").Check(zap.DebugLevel, "redis client"); c != nil {
		c.Write(zap.String("message", line))
	}
}
