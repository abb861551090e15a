package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// ahead is a library that sets the clock of a program ahead: redis-server reads it here.
const ahead = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
int gettimeofday(struct timeval *t, void *zone) {
	static int (*real)(struct timeval *, void *);
	if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
	int result = real(t, zone);
	if (t) t->tv_sec += SECONDS;
	return result;
}
`

// Ahead sets the clock of the server ahead by whole seconds. It needs a C compiler, as the race
// detector does.
func Ahead(d time.Duration) Option {
	return func(s *Server) {
		s.t.Helper()
		source, library := filepath.Join(s.dir, "ahead.c"), filepath.Join(s.dir, "ahead.so")
		if err := os.WriteFile(source, []byte(ahead), 0o600); err != nil {
			s.t.Fatal(err)
		}
		output, err := exec.Command("cc", "-shared", "-fPIC", fmt.Sprintf("-DSECONDS=%d", int(d.Seconds())), "-o", library, source, "-ldl").CombinedOutput()
		if err != nil {
			s.t.Fatalf("compiling what sets a clock ahead: %v\n%s", err, output)
		}
		s.env = append(s.env, "LD_PRELOAD="+library)
	}
}
