package deploy

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// A container is a directory as the root of processes, as an engine would make it from the image:
// empty but for what the image, the configuration and the secrets put there, read-only, with
// nobody as its user. It has a mount namespace and a host name of its own, and shares the network.
type container struct {
	name, root, user string
	env              []string
	tmpfs            map[string]string // options, by where it is mounted
	log              cluster.Log
	process          *cluster.Process
}

// needRoot ends a test where no process can have another root. The Makefile says so as well.
func needRoot(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("it needs Linux and root, for chroot")
	}
}

// newContainer makes one with the program alone.
func newContainer(t *testing.T, name, program string) *container {
	t.Helper()
	c := &container{name: name, root: t.TempDir(), user: "65534:65534", tmpfs: map[string]string{}}
	// What t.TempDir makes is for its owner alone.
	for dir := c.root; dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c.put(t, "/usr/bin/caddy", file, 0o755)
	t.Cleanup(func() {
		if c.process != nil {
			c.process.Kill()
		}
		faults := []string{"panic"}
		if c.tmpfs["/data"] != "" {
			faults = append(faults, "permission denied", "read-only file system")
		}
		for _, what := range faults {
			for _, line := range c.log.With(what) {
				t.Errorf("%s: %s", c.name, line)
			}
		}
		if t.Failed() {
			t.Logf("%s wrote last:\n%s", c.name, c.log.Tail(12))
		}
	})
	return c
}

// put writes a file into the container, which belongs to root.
func (c *container) put(t *testing.T, path string, from io.Reader, mode os.FileMode) {
	t.Helper()
	path = filepath.Join(c.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
}

func (c *container) write(t *testing.T, path, text string) {
	t.Helper()
	c.put(t, path, strings.NewReader(text), 0o644)
}

// command is a program that runs in the container. Where the kernel lets nobody mount, all that is
// there belongs to root nevertheless, and nobody can't write it.
func (c *container) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	chroot, err := exec.LookPath("chroot")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	fmt.Fprintln(&script, "set -e")
	isolated := exec.Command("unshare", "--mount", "--uts", "true").Run() == nil
	if isolated {
		fmt.Fprintf(&script, "hostname %s\nmount --bind '%[2]s' '%[2]s'\nmount -o remount,bind,ro '%[2]s'\n", c.name, c.root)
	}
	for at, options := range c.tmpfs {
		dir := filepath.Join(c.root, at)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if isolated {
			fmt.Fprintf(&script, "mount -t tmpfs -o %s none '%s'\n", options, dir)
		} else {
			fmt.Fprintf(&script, "chown %s '%s'\n", c.user, dir)
		}
	}
	fmt.Fprintln(&script, `exec env -i "$@"`)
	all := append([]string{"sh", "-c", script.String(), "sh"}, c.env...)
	all = append(append(all, chroot, "--userspec="+c.user, c.root), args...)
	if isolated {
		all = append([]string{"unshare", "--mount", "--uts"}, all...)
	}
	return exec.Command(all[0], all[1:]...)
}

// start starts what the container is for.
func (c *container) start(t *testing.T, args ...string) {
	t.Helper()
	cmd := c.command(t, args...)
	cmd.Stdout, cmd.Stderr = &c.log, &c.log
	var err error
	if c.process, err = cluster.StartProcess(cmd); err != nil {
		t.Fatal(err)
	}
}
