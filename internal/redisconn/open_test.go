package redisconn

import (
	"context"
	"fmt"
	"log"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// lines takes what is written, line by line.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(line))
	return len(line), nil
}

func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// What go-redis writes about another plugin's servers goes where it went without us, and looks the
// same; what it writes about ours does not.
func TestOtherPluginsKeepTheirRedisLines(t *testing.T) {
	var stderr lines
	l := &clientLog{others: log.New(&stderr, "redis: ", log.LstdFlags|log.Lshortfile)}
	redis.SetLogger(l)
	t.Cleanup(logging.Disable) // as in all tests with a Redis
	nobody := []string{"127.0.0.1:1"}
	ours, err := Settings{Mode: Failover, Addresses: nobody, MasterName: "ours"}.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	l.add(&Settings{MasterName: "ours"})
	theirs := redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: nobody, MasterName: "theirs", MaxRetries: -1})
	defer theirs.Close()
	redistest.Eventually(t, "go-redis reports the other plugin's master", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if ours.Ping(ctx).Err() == nil || theirs.Ping(ctx).Err() == nil {
			t.Error("a sentinel answers that is not there")
		}
		return len(stderr.with(`"theirs"`)) > 0
	})
	if found := stderr.with(`"ours"`); len(found) > 0 {
		t.Errorf("lines about our master: %q", found)
	}
	for _, line := range stderr.with("theirs") {
		if !strings.HasPrefix(line, "redis: ") || !strings.Contains(line, " sentinel.go:") {
			t.Errorf("the line has another form than go-redis gives it: %q", line)
		}
	}
}

type lendsAny struct{ client any }

func (l lendsAny) GetClient() any { return l.client }

type lendsClient struct{ client redis.UniversalClient }

func (l lendsClient) GetClient() redis.UniversalClient { return l.client }

func TestBorrowClient(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	for _, storage := range []any{lendsAny{client}, lendsClient{client}} {
		if got, err := BorrowClient(storage); err != nil || got != redis.UniversalClient(client) {
			t.Errorf("BorrowClient(%T) = %v, %v, want the client", storage, got, err)
		}
	}
	for _, storage := range []any{nil, "x", lendsAny{}, lendsAny{"x"}, lendsClient{}} {
		_, err := BorrowClient(storage)
		if err == nil || !strings.Contains(fmt.Sprint(err), "write redis redis://") {
			t.Errorf("BorrowClient(%T) = %v, want an error that says what to write", storage, err)
		}
	}
}
