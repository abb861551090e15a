package redistest

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// Main runs the tests of a package of which most wait, for servers and heartbeats: unless -parallel
// says otherwise, more of them at once than there are cores. It is for TestMain.
func Main(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(6*runtime.GOMAXPROCS(0)))
	}
	os.Exit(m.Run())
}
