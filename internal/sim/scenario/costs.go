package scenario

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Costs is how many units of a limit the requests of a client take.
type Costs struct {
	Name string
	// Mean is their mean, as a part of the limit. Spread is that of a lognormal distribution, 0
	// where all cost the same.
	Mean, Spread float64
}

// EachCosts are lumps of several sizes.
func EachCosts() []Costs {
	return []Costs{
		{"0.1 %", .001, 0},
		{"1 %", .01, 0},
		{"5 %", .05, 0},
		{"10 %", .1, 0},
		{"25 %", .25, 0},
		{"lognormal, mean 1 %, sigma 1.5", .01, 1.5},
		{"lognormal, mean 5 %, sigma 1", .05, 1},
	}
}

// of is what one request costs: at most the limit, or it would be too large.
func (c Costs) of(rng *rand.Rand, limit int64) int64 {
	mean := c.Mean * float64(limit)
	if c.Spread == 0 {
		return int64(mean)
	}
	n := mean * math.Exp(c.Spread*rng.NormFloat64()-c.Spread*c.Spread/2)
	return min(limit, max(1, int64(n)))
}

// CostPeaks runs one client whose requests cost so much, and who asks for some times its limit, on
// nodes that sync. It returns the most units that were admitted in any window, and what share of
// the requests was denied: by the nodes and by one centralized limiter, both as multiples of the
// limit.
func CostPeaks[S any](c Costs, of algorithms.Params, model Model, nodes int, demand float64, seed uint64) (peak, exact, denied, exactDenied float64) {
	const length = 180 * time.Second
	w := newWorld(Scenario[S]{Algorithm: of, Model: model, Rate: time.Second, Nodes: nodes, Latency: near, Load: Constant(0, length), Seed: seed})
	rng := rand.New(rand.NewPCG(seed, 4))
	var state S
	machine, l, key := algorithms.MachineOf[S](of.Kind), of.Compile(), &w.clients[0]
	every := float64(of.Window) * c.Mean / demand
	var spent [2]unitsInWindows
	var no [2]int
	asked := 0
	for at := rng.ExpFloat64() * every; at < float64(length); at += rng.ExpFloat64() * every {
		now, n := epoch+int64(at), c.of(rng, of.Limit)
		w.Until(now)
		asked++
		node := w.nodes[rng.IntN(nodes)]
		for i, allowed := range []bool{
			node.Take(l, key.key, key.raw, node.clock(), n, 0).Allowed,
			machine.Take(&state, l, now, n, 0).Allowed,
		} {
			if allowed {
				spent[i].add(now, n, int64(of.Window))
			} else {
				no[i]++
			}
		}
	}
	share := func(n int64) float64 { return float64(n) / float64(of.Limit) }
	part := func(n int) float64 { return float64(n) / float64(max(1, asked)) }
	return share(spent[0].most), share(spent[1].most), part(no[0]), part(no[1])
}

// unitsInWindows knows how many units were admitted in the window that ends now, and in any.
type unitsInWindows struct {
	at, n     []int64
	sum, most int64
}

func (u *unitsInWindows) add(now, n, window int64) {
	u.at, u.n, u.sum = append(u.at, now), append(u.n, n), u.sum+n
	for u.at[0] <= now-window {
		u.sum -= u.n[0]
		u.at, u.n = u.at[1:], u.n[1:]
	}
	u.most = max(u.most, u.sum)
}
