package algorithms_test

import (
	"fmt"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A machine decides for one state; the limit comes with every call.
func Example() {
	params := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 2, Window: time.Minute, Burst: 3}
	limit := params.Compile()
	machine := algorithms.MachineOf[algorithms.BucketState](params.Kind)

	var client algorithms.BucketState // a key never seen
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixNano()
	for range 4 {
		r := machine.Take(&client, limit, now, 1, 0)
		fmt.Println(r.Allowed, r.Remaining)
	}
	w := machine.Waits(&client, limit, now, 1, 0, algorithms.WantRetry)
	fmt.Println("again in", w.Retry)
	// Output:
	// true 2
	// true 1
	// true 0
	// false 0
	// again in 30s
}

// A limit can differ from request to request: what is spent counts under each.
func ExampleLimit() {
	kind := algorithms.FixedWindow
	machine := algorithms.MachineOf[algorithms.WindowState](kind)
	free := algorithms.Params{Kind: kind, Limit: 1, Window: time.Hour}.Compile()
	paid := algorithms.Params{Kind: kind, Limit: 100, Window: time.Hour}.Compile()

	var client algorithms.WindowState
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixNano()
	fmt.Println(machine.Take(&client, free, now, 1, 0).Allowed)
	fmt.Println(machine.Take(&client, free, now, 1, 0).Allowed)
	fmt.Println(machine.Take(&client, paid, now, 1, 0).Remaining)
	// Output:
	// true
	// false
	// 98
}
