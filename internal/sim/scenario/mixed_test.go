package scenario

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// Clients with limits far apart get of them what they get alone.
func TestLimitsOfOneZoneDontTouchEachOther(t *testing.T) {
	of := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 60, Window: time.Minute}
	got, exact := Mixed[algorithms.WindowState](of, []Client{{5, 5}, {5000, 1.6}}, 3, time.Second, 1)
	within(t, "5/1m: peak beyond the centralized limiter's", got[0].Peak-exact[0].Peak, -.2, 3.0/5+.2)
	within(t, "5/1m: mean", got[0].Mean, exact[0].Mean-.05, 1.6)
	within(t, "5000/1m: peak beyond the centralized limiter's", got[1].Peak-exact[1].Peak, -.02, .02)
	within(t, "5000/1m: mean", got[1].Mean, .98, 1.02)
}

// What nodes sync of a bucket drains at the limit of the requests that they decided, however high
// the one is that work without a request has: 60 a minute, and one bucket of 60.
func TestSyncedBucketsDrainAtTheLimitInForce(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket} {
		of := algorithms.Params{Kind: kind, Limit: 600_000, Window: time.Minute, Burst: 60, Queue: 59}
		for seed := range uint64(3) {
			got, exact := Mixed[algorithms.BucketState](of, []Client{{60, 5}}, 3, time.Second, seed)
			within(t, kind.String()+": peak beyond the centralized limiter's", got[0].Peak-exact[0].Peak, -.1, .1)
			within(t, kind.String()+": mean", got[0].Mean, .97, 1.05)
		}
	}
}

// A Client is one of several in a zone whose limits come with the request.
type Client struct {
	// Limit is its number of requests in the window, Demand what it asks for in multiples of that.
	Limit  int64
	Demand float64
}

// A Share is what a client of a mixed zone got: the most in any interval of the window's length and
// the mean, both as multiples of its limit.
type Share struct{ Peak, Mean float64 }

// Mixed runs clients with limits of their own in one zone, after a time to warm up. of is the limit
// without a number, and the parameters of work without a request. It returns what each of them got
// from the nodes, and from one centralized limiter.
func Mixed[S any](of algorithms.Params, clients []Client, nodes int, rate time.Duration, seed uint64) (got, exact []Share) {
	const warm, length = 60 * sec, 240 * sec
	w := newWorld(Scenario[S]{
		Algorithm: of, Model: Shipped, Mixed: true, Rate: rate, Nodes: nodes, Clients: len(clients), Latency: near,
		Load: Constant(0, length), Seed: seed,
	})
	rng := rand.New(rand.NewPCG(seed, 3))
	states, machine := make([]S, len(clients)), algorithms.MachineOf[S](of.Kind)
	hits := [2][][]int64{make([][]int64, len(clients)), make([][]int64, len(clients))}
	for _, a := range mixedArrivals(rng, of.Window, clients, length) {
		w.Until(a.at)
		of.Limit = clients[a.of].Limit
		l, n, key := of.Compile(), w.nodes[rng.IntN(nodes)], &w.clients[a.of]
		for i, allowed := range []bool{
			n.Take(l, key.key, key.raw, n.clock(), 1, 0).Allowed,
			machine.Take(&states[a.of], l, a.at, 1, 0).Allowed,
		} {
			if allowed && a.at >= epoch+int64(warm) {
				hits[i][a.of] = append(hits[i][a.of], a.at)
			}
		}
	}
	for i, c := range clients {
		due := float64(c.Limit) * (length - warm).Seconds() / of.Window.Seconds() * min(1, c.Demand)
		share := func(at []int64) Share {
			return Share{float64(most(at, int64(of.Window))) / float64(c.Limit), float64(len(at)) / due}
		}
		got, exact = append(got, share(hits[0][i])), append(exact, share(hits[1][i]))
	}
	return got, exact
}

// mixedArrivals are the requests of all clients, in order: a Poisson process each.
func mixedArrivals(rng *rand.Rand, window time.Duration, clients []Client, length time.Duration) (all []arrival) {
	for of, c := range clients {
		perNanosecond := float64(c.Limit) * c.Demand / float64(window)
		for at := 0.0; ; {
			if at += rng.ExpFloat64() / perNanosecond; at >= float64(length) {
				break
			}
			all = append(all, arrival{at: epoch + int64(at), of: of})
		}
	}
	slices.SortFunc(all, func(a, b arrival) int { return int(a.at - b.at) })
	return all
}

// most is how many of instants lie in one window at most.
func most(at []int64, window int64) (n int) {
	first := 0
	for i := range at {
		for at[first] <= at[i]-window {
			first++
		}
		n = max(n, i-first+1)
	}
	return n
}
