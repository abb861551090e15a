package redis

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// TestScript measures the server's CPU time for a key of the sync's script, beside scripts that
// do only a part of it: two commands a key are the floor of any script that reads and writes it.
func TestScript(t *testing.T) {
	const batch = 100
	keys, rounds := 2500, 2
	if *figures {
		keys, rounds = 10_000, 9
	}
	push, err := os.ReadFile("../../sync/push.lua")
	if err != nil {
		t.Fatal(err)
	}
	scripts := []struct{ name, source string }{
		{"the sync's script", string(push)},
		{"HMGET and HSET only", `for k = 1, #KEYS do redis.pcall('HMGET', KEYS[k], ARGV[1], 'sum') redis.pcall('HSET', KEYS[k], ARGV[1], ARGV[2], 'sum', ARGV[2]) end return ''`},
		{"these, and an answer, reading nothing", `local reply, head = {}, ARGV[2] .. ' '
for k = 1, #KEYS do
  local had = redis.pcall('HMGET', KEYS[k], ARGV[1], 'sum')
  local total, tries = ARGV[3 + 2 * k], ARGV[4 + 2 * k]
  local sum = string.format('%d %d', total, tries)
  redis.pcall('HSET', KEYS[k], ARGV[1], head .. total .. ' ' .. tries, 'sum', sum)
  reply[2 * k - 1], reply[2 * k] = had[1] or '', sum
end
return table.concat(reply, '\n')`},
		{"nothing, with the same arguments", `return ''`},
	}
	server := redistest.Start(t)
	client := server.Client()
	best := make([]float64, len(scripts))
	for round := range rounds + 1 { // the first one makes the keys
		for i, s := range scripts {
			script, begun := redis.NewScript(s.source), cpu(t, server)
			for at := 0; at < keys; at += batch {
				names, args := make([]string, batch), []any{"node", (round+1)*keys + at, "", 600_000}
				for k := range names {
					names[k] = fmt.Sprintf("bench:2:{0}:%d:s-1h:%022d:482956", i, at+k)
					args = append(args, 10+round, 10+round)
				}
				if err := script.Run(context.Background(), client, names, args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			each := (cpu(t, server) - begun) * 1e6 / float64(keys)
			if round == 1 || round > 1 && each < best[i] {
				best[i] = each
			}
		}
	}
	for i, s := range scripts {
		t.Logf("%-38s %.2f us a key, the least of %d rounds", s.name, best[i], rounds)
	}
}
