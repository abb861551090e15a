package redistest

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
)

// The tests that run scripts in Go make much garbage of little memory: with fewer collections they
// take a quarter less of a processor's time.
func init() { debug.SetGCPercent(400) }

// Times is how often a test does something: short in `make test`, once in `make race`, where all
// takes eight times as long and looks for something else, and long in `make chaos`.
func Times(short, long int) int {
	switch {
	case Chaos:
		return long
	case Raced:
		return 1
	}
	return short
}

// Seeds are the seeds of a random test, as many as Times says: from 0 on, and in `make chaos` from
// one that is new each time, or the one that the environment variable TIDE_SEED names.
func Seeds(short, long int) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for i := range Times(short, long) {
			if !yield(FirstSeed() + uint64(i)) {
				return
			}
		}
	}
}

// FirstSeed is the first of the Seeds.
var FirstSeed = sync.OnceValue(func() uint64 {
	if !Chaos {
		return 0
	}
	seed, err := strconv.ParseUint(os.Getenv("TIDE_SEED"), 10, 32)
	if err != nil {
		seed = uint64(rand.Uint32())
	}
	fmt.Printf("Seeds begin with %d; TIDE_SEED=%d repeats them.\n", seed, seed)
	return seed
})

// UpdateGoldens has a test write what it gets into the file, picture or page that it compares with:
// UPDATE_GOLDENS=1.
var UpdateGoldens = os.Getenv("UPDATE_GOLDENS") != ""
