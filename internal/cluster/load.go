package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Client sends requests to nodes. It is safe for concurrent use.
type Client struct {
	// Again has a request sent again, three times at most, whose connection is closed without an
	// answer. A server that ends in a reload does that to what it has not begun to serve.
	Again bool

	http  *http.Client
	slots chan struct{}
}

// NewClient returns a client that has at most so many requests under way at once.
func NewClient(concurrency int) *Client {
	return &Client{
		http: &http.Client{
			Timeout: processTimeout,
			Transport: &http.Transport{
				DialContext: (&net.Dialer{Timeout: processTimeout}).DialContext, MaxIdleConnsPerHost: concurrency, DisableCompression: true,
			},
		},
		slots: make(chan struct{}, concurrency),
	}
}

// Close ends the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// A Tally counts answers. It is safe for concurrent use.
type Tally struct {
	mu     sync.Mutex
	status map[int]int
	took   []time.Duration
	first  error
	errors int
}

func (t *Tally) add(status int, took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = append(t.took, took)
	if err != nil {
		t.errors++
		if t.first == nil {
			t.first = err
		}
		return
	}
	if t.status == nil {
		t.status = make(map[int]int)
	}
	t.status[status]++
}

// Status is how many answers had a status.
func (t *Tally) Status(status int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status[status]
}

// Admitted are the answers with status 200, Denied those with 429.
func (t *Tally) Admitted() int { return t.Status(http.StatusOK) }
func (t *Tally) Denied() int   { return t.Status(http.StatusTooManyRequests) }

// Sent is how many requests were sent, answered or not.
func (t *Tally) Sent() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.errors
	for _, n := range t.status {
		sum += n
	}
	return sum
}

// Errors are the requests that had no answer, and the first reason.
func (t *Tally) Errors() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.errors, t.first
}

// Took is how long each request took, answered or not, in the order of their ends.
func (t *Tally) Took() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.took)
}

// Get sends one request, counts its answer and returns the status, 0 without an answer. change may
// alter the request; it can be nil.
func (c *Client) Get(ctx context.Context, addr, path string, change func(*http.Request), t *Tally) int {
	began := time.Now()
	status, err := c.get(ctx, addr, path, change)
	t.add(status, time.Since(began), err)
	return status
}

func (c *Client) get(ctx context.Context, addr, path string, change func(*http.Request)) (status int, err error) {
	for range 4 {
		if status, err = c.once(ctx, addr, path, change); !c.Again || !IsClosed(err) {
			break
		}
	}
	return status, err
}

// IsClosed reports whether a connection was closed without an answer.
func IsClosed(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

func (c *Client) once(ctx context.Context, addr, path string, change func(*http.Request)) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return 0, err
	}
	if change != nil {
		change(r)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode, err
}

// Burst sends a number of requests as fast as the client's bound lets it, to the nodes in turn, and
// returns when all are answered.
func (c *Client) Burst(ctx context.Context, nodes []*Node, path string, requests int, change func(*http.Request)) *Tally {
	t := new(Tally)
	var wg sync.WaitGroup
	for i := range requests {
		c.slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-c.slots }()
			c.Get(ctx, nodes[i%len(nodes)].Addr, path, change, t)
		})
	}
	wg.Wait()
	return t
}

// Steady sends requests at an even rate a second until ctx ends or there were enough of them (0: no
// bound), each to the node that pick says, and waits for the last answers. A request whose time
// comes while the client is at its bound goes late; none is left out.
func (c *Client) Steady(ctx context.Context, nodes []*Node, path string, rate float64, requests int, pick func(i int) int, t *Tally) {
	var wg sync.WaitGroup
	defer wg.Wait()
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; requests == 0 || i < requests; i++ {
		timer.Reset(time.Until(start.Add(time.Duration(float64(i) / rate * float64(time.Second)))))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case c.slots <- struct{}{}:
		}
		wg.Go(func() {
			defer func() { <-c.slots }()
			// What is under way when the end comes is still answered.
			c.Get(context.WithoutCancel(ctx), nodes[pick(i)].Addr, path, nil, t)
		})
	}
}
