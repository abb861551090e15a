package scenario

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sort"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A Load is the requests of all clients together, from the start of its phases on.
type Load []Phase

// A Phase is one part of a Load: a rate in requests per second for a time.
type Phase struct {
	For  time.Duration
	Rate float64
	// To is the share of the requests that each node gets meanwhile; nil stands for the scenario's
	// Weights.
	To []float64
}

// Constant is the same rate all the time.
func Constant(rate float64, d time.Duration) Load { return Load{{For: d, Rate: rate}} }

// Bursts are times of a rate, each followed by silence.
func Bursts(rate float64, on, off time.Duration, times int) (l Load) {
	for range times {
		l = append(l, Phase{For: on, Rate: rate}, Phase{For: off})
	}
	return l
}

// Wandering is a rate that goes to one node for a while, then to the next.
func Wandering(rate float64, stay time.Duration, nodes, stays int) (l Load) {
	for i := range stays {
		to := make([]float64, nodes)
		to[i%nodes] = 1
		l = append(l, Phase{For: stay, Rate: rate, To: to})
	}
	return l
}

func (l Load) length() (sum time.Duration) {
	for _, p := range l {
		sum += p.For
	}
	return sum
}

// An arrival is one request: when it comes, to which node, of which client.
type arrival struct {
	at       int64
	node, of int
}

// arrivals yields the requests. They are the same for every Model.
func (sc Scenario[S]) arrivals(yield func(arrival) bool) {
	rng := rand.New(rand.NewPCG(sc.Seed, 1))
	clients := sc.popularity()
	start := epoch
	for _, p := range sc.Load {
		end := start + int64(p.For)
		for at := start; p.Rate > 0; {
			gap := 1.0
			if !sc.Even {
				gap = rng.ExpFloat64()
			}
			at += int64(gap * float64(time.Second) / p.Rate)
			if at >= end {
				break
			}
			of := 0
			if len(clients) > 1 {
				of = sort.SearchFloat64s(clients, rng.Float64())
			}
			if !yield(arrival{at, sc.pick(rng, p, of, time.Duration(at-epoch)), of}) {
				return
			}
		}
		start = end
	}
}

// popularity is the share of the requests of the first clients together, for each number of them.
func (sc Scenario[S]) popularity() []float64 {
	shares := make([]float64, max(1, sc.Clients))
	sum := 0.0
	for i := range shares {
		sum += math.Pow(float64(i+1), -sc.Zipf)
		shares[i] = sum
	}
	for i := range shares {
		shares[i] /= sum
	}
	shares[len(shares)-1] = 1
	return shares
}

// pick is the node that a request goes to: one that is there.
func (sc Scenario[S]) pick(rng *rand.Rand, p Phase, of int, at time.Duration) int {
	weights := p.To
	if weights == nil {
		weights = sc.Weights
	}
	share := func(node int) float64 {
		if sc.away(node, at) {
			return 0
		}
		if weights == nil {
			return 1
		}
		return weights[node]
	}
	sum := 0.0
	for node := range sc.Nodes {
		sum += share(node)
	}
	x := rng.Float64()
	if sc.Sticky {
		// The same for each request of a client, and spread over all clients.
		x = math.Mod(float64(of+1)*math.Phi, 1)
	}
	x *= sum
	picked := 0
	for node := range sc.Nodes {
		if s := share(node); s > 0 {
			picked = node
			if x -= s; x < 0 {
				break
			}
		}
	}
	return picked
}

// away reports whether a node is down.
func (sc Scenario[S]) away(node int, at time.Duration) bool {
	for _, a := range sc.Away {
		if a.Node == node && at >= a.From && at < a.To {
			return true
		}
	}
	return false
}

// A key is a client's, as a table has it.
type key struct {
	raw []byte
	key keys.Key
}

func keysOf(clients int) []key {
	allKeys := make([]key, max(1, clients))
	for i := range allKeys {
		raw := binary.BigEndian.AppendUint32(nil, uint32(i))
		allKeys[i] = key{raw, keys.KeyOf(raw)}
	}
	return allKeys
}
