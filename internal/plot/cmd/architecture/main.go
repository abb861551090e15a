// Command architecture draws docs/architecture.svg: how requests are decided and how counts travel.
//
//	go run ./internal/plot/cmd/architecture
//
// With -check it draws nothing, and says whether the picture is another one.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"

	"github.com/caddy-tide/ratelimit/internal/plot/picture"
)

const file = "docs/architecture.svg"

func main() {
	check := flag.Bool("check", false, "say whether the picture is another one, and draw none")
	flag.Parse()
	if err := draw(*check); err != nil {
		fmt.Fprintln(os.Stderr, "architecture:", err)
		os.Exit(1)
	}
}

func draw(check bool) error {
	if !check {
		return os.WriteFile(file, overview().SVG(), 0o644)
	}
	if drawn, err := os.ReadFile(file); err != nil || !bytes.Equal(drawn, overview().SVG()) {
		return fmt.Errorf("%s is not what this code draws (%v); go run ./internal/plot/cmd/architecture brings it up to date", file, err)
	}
	return nil
}

// The styles of the two ways.
const (
	countStyle   = 1
	requestStyle = 2
)

// nodes are what each of them has counted of one client, who has a limit of 100.
var nodes = []int{17, 20, 5}

const limit = 100

// overview is three nodes, the clients before them and the Redis behind.
func overview() picture.Diagram {
	d := picture.Diagram{
		Title: "Requests are decided in memory, counts travel in the background",
		Description: "Clients send requests to three Caddy nodes. Each node decides from counters in its own memory, what it counted itself and what it knows of the others, and answers at once. " +
			"In the background, every sync_rate, each node sends Redis its own totals and gets those of the others.",
		Width: 720, Height: 356,
		Boxes: []picture.Box{
			{X: 16, Y: 74, Width: 92, Height: 220, Lines: []string{"clients"}},
		},
	}
	sum := 0
	for _, own := range nodes {
		sum += own
	}
	redis := picture.Box{X: 598, Y: 74, Width: 106, Height: 220, Lines: []string{"Redis"}}
	for i, own := range nodes {
		y := 74 + 76*float64(i)
		d.Boxes = append(d.Boxes, picture.Box{X: 258, Y: y, Width: 184, Height: 68, Lines: []string{
			fmt.Sprintf("Caddy, node %d", i+1), fmt.Sprintf("own %d + others %d", own, sum-own), fmt.Sprintf("= %d of %d", sum, limit),
		}})
		d.Arrows = append(d.Arrows,
			picture.Arrow{Points: [][2]float64{{110, y + 24}, {255, y + 24}}, Style: requestStyle},
			picture.Arrow{Points: [][2]float64{{256, y + 46}, {111, y + 46}}, Style: requestStyle},
			picture.Arrow{Points: [][2]float64{{444, y + 24}, {595, y + 24}}, Style: countStyle},
			picture.Arrow{Points: [][2]float64{{596, y + 46}, {445, y + 46}}, Style: countStyle})
		d.Labels = append(d.Labels,
			picture.Label{X: 183, Y: y + 18, Anchor: "middle", Text: "request"},
			picture.Label{X: 183, Y: y + 61, Anchor: "middle", Text: "200 or 429"},
			picture.Label{X: 520, Y: y + 18, Anchor: "middle", Text: fmt.Sprintf("its own: %d", own)},
			picture.Label{X: 520, Y: y + 61, Anchor: "middle", Text: fmt.Sprintf("the others: %d", sum-own)})
		redis.Lines = append(redis.Lines, fmt.Sprintf("node %d: %d", i+1, own))
	}
	redis.Lines = append(redis.Lines, fmt.Sprintf("sum: %d", sum))
	d.Boxes = append(d.Boxes, redis)
	d.Labels = append(d.Labels,
		picture.Label{X: 183, Y: 28, Anchor: "middle", Style: requestStyle, Text: "The path of a request"},
		picture.Label{X: 183, Y: 48, Anchor: "middle", Text: "decided in memory, at once"},
		picture.Label{X: 520, Y: 28, Anchor: "middle", Style: countStyle, Text: "The path of a count"},
		picture.Label{X: 520, Y: 48, Anchor: "middle", Text: "every sync_rate, in the background"},
		picture.Label{X: 350, Y: 322, Anchor: "middle", Text: "No request waits for Redis, except in zones with sync_rate strict: there Redis decides."},
		picture.Label{X: 350, Y: 342, Anchor: "middle", Text: "Redis sees a hash of the key, never the client. While it is down, nodes go on with what they know."})
	return d
}
