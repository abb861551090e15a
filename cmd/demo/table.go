package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/plot/picture"
)

// What is shown: the client asks for twice the limit, so every window begins with room and ends
// without. A window is ten lines of the table.
const (
	limit  = 300
	window = 10 * time.Second
	demand = 60 // requests a second
)

// A table writes lines under a heading, with a rule where a window ends.
type table struct {
	out       io.Writer
	color     bool
	recording picture.Recording
	window    int64 // of the line before
}

const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	blue   = "\x1b[36m"
)

func paint(style, text string) string { return style + text + "\x1b[0m" }

var styles = regexp.MustCompile("\x1b\\[\\d+m")

// print writes a line, and notes it for the picture, in which it has its colors.
func (t *table) print(line string) {
	fmt.Fprintln(&t.recording, line)
	if !t.color {
		line = styles.ReplaceAllString(line, "")
	}
	fmt.Fprintln(t.out, line)
}

// row writes how a window stands after an instant in it: what was counted, admitted and denied.
func (t *table) row(since time.Duration, counted string, admitted int64, rest string) {
	number := time.Now().UnixNano() / int64(window)
	if t.window != 0 && t.window != number {
		t.print(paint(dim, fmt.Sprintf("---- a new window of %s: the counts start at zero %s", window, strings.Repeat("-", 32))))
	}
	t.window = number
	sum := fmt.Sprintf("%4d/%d", admitted, limit)
	if admitted > limit {
		sum = paint(red, sum)
	}
	t.print(fmt.Sprintf("%4.0fs %s%s %s  %s", since.Seconds(), counted, sum, rest, paint(blue, bar(admitted))))
}

// bar shows how far the limit is reached; an exclamation mark is beyond it.
func bar(admitted int64) string {
	const width = 10
	n := int(min(admitted, limit) * width / limit)
	b := strings.Repeat("#", n) + strings.Repeat(".", width-n)
	if admitted > limit {
		b += "!"
	}
	return b
}

// draw draws what was printed, if a file is named.
func (t *table) draw(file string) error {
	if file == "" {
		return nil
	}
	return os.WriteFile(file, t.recording.SVG(), 0o644)
}

// load sends what is twice the limit to the nodes that pick names until the demonstration is over,
// and has each second a line written.
func (o options) load(ctx context.Context, nodes []*cluster.Node, pick func(i int) int, line func(since time.Duration, t *cluster.Tally) error) (*cluster.Tally, error) {
	ctx, cancel := context.WithTimeout(ctx, o.length)
	client, tally, start := cluster.NewClient(100), new(cluster.Tally), time.Now()
	var sending sync.WaitGroup
	sending.Go(func() { client.Steady(ctx, nodes, "/", demand, 0, pick, tally) })
	defer client.Close()
	defer sending.Wait()
	defer cancel()
	for {
		// Just before the second is full, so that the last line of a window shows all of it.
		at := time.Now().Add(50 * time.Millisecond).Truncate(time.Second).Add(950 * time.Millisecond)
		select {
		case <-ctx.Done():
			return tally, nil
		case <-time.After(time.Until(at)):
		}
		if err := line(time.Since(start), tally); err != nil && ctx.Err() == nil {
			return tally, err
		}
	}
}
