package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cell"
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
	scripts := []struct{ name, source string }{
		{"the sync's script", cell.Script},
		{"HMGET and HSET only", `for k = 1, #KEYS do redis.pcall('HMGET', KEYS[k], 'node', 'sum') redis.pcall('HSET', KEYS[k], 'node', ARGV[1], 'sum', ARGV[1]) end return ''`},
		{"these, and an answer, reading nothing", `local reply, head = {}, ARGV[1] .. ' '
for k = 1, #KEYS do
  local had = redis.pcall('HMGET', KEYS[k], 'node', 'sum')
  local total, more = ARGV[2 + 3 * k], ARGV[3 + 3 * k]
  local sum = string.format('%d 0 0%s', total, more)
  redis.pcall('HSET', KEYS[k], 'node', head .. total .. more, 'sum', sum)
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
				names, args := said(i, round, at, batch, (round+1)*keys+at)
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

// said are the keys and the arguments of a call that says what a node has spent of so many keys.
func said(script, round, first, batch, seq int) (names []string, args []any) {
	rule := cell.Rule{Kind: cell.Fades, Window: time.Hour, Parts: 1, Kept: 2, Size: 1e6, TTL: 2 * time.Hour}
	call := cell.Call{Seq: int64(seq)}
	state := cell.State{Epoch: rule.Epoch(time.Now().UnixMicro()), Totals: []int64{int64(10 + round)}}
	for k := range batch {
		name := fmt.Sprintf("bench:3:{0}:%d:s-1h:%022d", script, first+k)
		call.Cells = append(call.Cells, cell.Update{Key: name, Rule: rule.String(), Node: "node", State: state})
	}
	var a cell.Args
	call.Append(&a)
	a.Finish()
	all := a.All()
	for _, one := range all[1 : 1+batch] {
		names = append(names, *one.(*string))
	}
	for _, one := range all[1+batch:] {
		args = append(args, *one.(*string))
	}
	return names, args
}
