//go:build chaos

package ratesync

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/sim/scenario"
)

// figurePage is the page with the figures of regions.
const figurePage = "../docs/internals/accuracy-figures.md"

// regionRun is a load on regions. The tables, estimates, loops, relays and scripts are the real
// ones; only time and the network are models.
type regionRun struct {
	name string
	*regionSetup
	load  scenario.Load
	warm  time.Duration
	limit int64
	// over is set where peaks and means are by those of one counter. peak and mean are the most
	// that may be, 0 for whatever. Where denies is not set none may be denied.
	over       bool
	peak, mean float64
	denies     bool
	quick      bool // it is run by default
}

// far is 100 ms there and back, whichever the regions.
func far(int, int) time.Duration { return 50 * time.Millisecond }

// regionSetup is regions with so many nodes each, and how long a message takes from one to another.
type regionSetup struct {
	regions, nodes int
	way            func(a, b int) time.Duration
}

var (
	// twoPairs and sixPairs are as the real servers of docs/internals/accuracy-figures.md.
	twoPairs   = &regionSetup{2, 2, far}
	sixPairs   = &regionSetup{6, 2, far}
	twoRegions = &regionSetup{2, 5, far}
	// sixRegions are two in Europe, two in North America and two in Asia.
	sixRegions = &regionSetup{6, 3, func(a, b int) time.Duration {
		trips := [3][3]time.Duration{{20, 90, 220}, {90, 65, 150}, {220, 150, 50}}
		return trips[a/2][b/2] * time.Millisecond / 2
	}}
)

// cold is a client that comes in the middle of a window, at a multiple of the limit, steady one
// that is always there, and moving one that goes to the next region every 7 s.
func cold(times float64) scenario.Load {
	return scenario.Load{{For: 15 * time.Second}, {For: 20 * time.Second, Rate: times * 100}}
}

func steady(times float64) scenario.Load { return scenario.Constant(times*100, 60*time.Second) }

func (s *regionSetup) moving(times float64) (l scenario.Load) {
	for stay := range 9 {
		to := make([]float64, s.regions*s.nodes)
		for i := range s.nodes {
			to[stay%s.regions*s.nodes+i] = 1
		}
		l = append(l, scenario.Phase{For: 7 * time.Second, Rate: times * 100, To: to})
	}
	return l
}

// regionRuns are the loads, with what regions have to reach. Only some are run by default.
func regionRuns() (all []regionRun) {
	const middle, settled = 15 * time.Second, 20 * time.Second
	for _, s := range []*regionSetup{twoRegions, sixRegions} {
		flood, two := 1.05, s == twoRegions
		if !two {
			flood = 1.10
		}
		all = append(all,
			regionRun{"cold at 20x", s, cold(20), middle, 1000, true, flood, 0, true, true},
			regionRun{"cold at 50x", s, cold(50), middle, 1000, true, 1.20, 0, true, false},
			regionRun{"steady at 5x", s, steady(5), settled, 1000, false, 1.06, 1.03, true, two},
			regionRun{"steady at 0.8x", s, steady(.8), 0, 1000, false, 0, 0, false, false},
			regionRun{"moving at 0.9x", s, s.moving(.9), 0, 1000, false, 0, 0, false, two},
			regionRun{"cold at 50 a second", s, scenario.Constant(50, 59*time.Second), 0, 100, true, 0, 0, true, false},
			regionRun{"cold at 50 a second", s, scenario.Constant(50, 59*time.Second), 0, 10, true, 0, 0, true, false},
		)
	}
	for _, s := range []*regionSetup{twoPairs, sixPairs} {
		all = append(all, regionRun{"cold at 2000 a second", s, scenario.Constant(2000, 3*time.Second), 0, 2000, true, 1.12, 0, true, false})
	}
	return all
}

// onePeak is how far one run may be above what the median of several may be.
const onePeak = .05

// alg is 1000/10s, and smaller limits a minute.
func (c regionRun) alg() algorithms.Params {
	p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: c.limit, Window: 10 * time.Second, SubWindows: 1}
	if c.limit < 1000 {
		p.Window = time.Minute
	}
	return p
}

func (c regionRun) String() string {
	window := strings.TrimSuffix(c.alg().Window.String(), "m0s")
	return fmt.Sprintf("%d regions of %d nodes, %d/%s, %s", c.regions, c.nodes, c.limit, strings.Replace(window+"m", "sm", "s", 1), c.name)
}

// run sends the load of one seed, and measures it as the simulator does.
func (c regionRun) run(t *testing.T, seed uint64) (got, exact scenario.Result) {
	alg := c.alg()
	sc := scenario.Windows{
		Algorithm: alg, Rate: time.Second, Nodes: c.regions * c.nodes, Latency: time.Millisecond / 2, Load: c.load, Warm: c.warm, Seed: seed,
	}
	synctest.Test(t, func(t *testing.T) {
		w := &world[algorithms.WindowState]{t: t, random: rand.New(rand.NewPCG(seed, 11)), alg: alg, own: make(map[string]int64)}
		w.addRegions(seed, c.regions, c.way)
		for _, r := range w.regions {
			r.net.slow(sc.Latency)
		}
		for range c.nodes {
			for _, r := range w.regions {
				w.join(r)
			}
		}
		var all []*member[algorithms.WindowState]
		for _, r := range w.regions {
			for _, m := range r.nodes {
				m.source.SetLeastTold(LeastTold(alg))
				all = append(all, m)
			}
		}
		time.Sleep(200 * time.Second) // the relays are there, and windows begin as in the simulator
		start, raw := time.Now(), []byte("client")
		got = sc.On(func(at time.Duration) { time.Sleep(time.Until(start.Add(at))) }, func(node, _ int) algorithms.Result {
			return all[node].table.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0).Result
		})
		got.Hits = nil
		w.close()
	})
	return got, sc.Exact()
}

// What regions admit stays within the bars, and what is below the limit is not denied. In
// `make chaos` UPDATE_GOLDENS=1 writes the table of docs/internals/accuracy-figures.md.
func TestRegionFigures(t *testing.T) {
	report := "| regions, limit, load | peak (worst) | mean | admitted | by one counter | denied | by one counter |\n|---|---|---|---|---|---|---|\n"
	for _, c := range regionRuns() {
		if redistest.Times(1, 5) == 1 && (!c.quick || redistest.Raced && !(c.over && c.regions == 2)) {
			continue
		}
		t.Run(c.String(), func(t *testing.T) { report += c.measure(t) })
	}
	if redistest.Chaos && redistest.UpdateGoldens && !t.Failed() {
		writeFigures(t, figurePage, report)
	}
}

// measure runs some seeds, holds their medians to the bars, and returns a row of the table.
func (c regionRun) measure(t *testing.T) string {
	var peaks, means, denied, admitted, one []float64
	ideal := 0.
	for seed := range redistest.Seeds(1, 5) {
		got, exact := c.run(t, seed)
		peak, mean := got.Peak, got.Mean
		if c.over {
			peak, mean = peak/exact.Peak, mean/exact.Mean
		}
		peaks, means, denied = append(peaks, peak), append(means, mean), append(denied, 1-got.Share())
		admitted, one = append(admitted, float64(got.Admitted)), append(one, float64(exact.Admitted))
		ideal = max(ideal, 1-exact.Share())
	}
	for _, all := range [][]float64{peaks, means, denied, admitted, one} {
		slices.Sort(all)
	}
	i, most := len(peaks)/2, c.peak
	if len(peaks) == 1 {
		most += onePeak
	}
	if c.peak > 0 && peaks[i] > most || c.mean > 0 && means[i] > c.mean {
		t.Errorf("peak %.3f and mean %.3f, at most %.2f and %.2f", peaks[i], means[i], most, c.mean)
	}
	// Of six regions the farthest hears up to a third of a second late that a client has left.
	if !c.denies && denied[i] > 0 && !(c.regions == 6 && denied[i] < .005) {
		t.Errorf("%.4f of the requests are denied below the limit", denied[i])
	}
	row := fmt.Sprintf("| %s | %.3f (%.3f) | %.3f | %.0f | %.0f | %.1f %% | %.1f %% |\n",
		c, peaks[i], peaks[len(peaks)-1], means[i], admitted[i], one[i], 100*denied[i], 100*ideal)
	t.Log(row)
	return row
}

// writeFigures puts a table between the marks of a page.
func writeFigures(t *testing.T, path, table string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- figures of regions -->\n", "<!-- end of figures of regions -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the figures of regions", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+"\n"+table+"\n"+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}
