package scenario

import (
	"encoding/binary"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

const (
	tableKeys = 1000
	shared    = 65536 // counters of keys beyond max_keys
)

// A Flooded is what a full table does when far more keys come than it has room for.
type Flooded struct {
	// Admitted is what keys that ask for more than their limit got of it; the others are the
	// denied of newcomers that ask for little.
	Admitted, DeniedFirst, DeniedFive float64
}

// Flood fills a table, and then has as many other keys as load times the shared counters ask for
// one more than their limit each, all in one window.
func Flood(load float64, limit int64) (f Flooded) {
	alg := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: limit, Window: 60 * sec, SubWindows: 1}
	t := table.New[algorithms.WindowState](alg.Kind, tableKeys)
	next := uint64(0)
	take := func(id uint64, times int64) (n int64) {
		raw := binary.BigEndian.AppendUint64(nil, id)
		key := keys.KeyOf(raw)
		for range times {
			if t.Take(alg.Compile(), key, raw, epoch, 1, 0).Allowed {
				n++
			}
		}
		return n
	}
	for ; next < tableKeys; next++ {
		take(next, 1)
	}
	attackers, got := int64(load*shared), int64(0)
	for range attackers {
		got += take(next, limit+1)
		next++
	}
	f.Admitted = float64(got) / float64(attackers*limit)
	const newcomers = 2000
	first, five := int64(0), int64(0)
	for range newcomers {
		first += 1 - take(next, 1)
		next++
	}
	for range newcomers {
		five += 5 - take(next, 5)
		next++
	}
	f.DeniedFirst, f.DeniedFive = float64(first)/newcomers, float64(five)/newcomers/5
	return f
}
