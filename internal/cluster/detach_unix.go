//go:build unix

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// detach keeps a process out of the terminal's group, so that Ctrl-C reaches this program alone,
// which then ends the others in order.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// Suspend takes the CPU from the process, and Resume gives it back. One thread has to run once more
// for that, so it waits until all stand still where the system shows that in /proc.
func (n *Node) Suspend() error {
	p := n.process.cmd.Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 10_000 {
		if stands(p.Pid) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("process %d was told to stop, and goes on", p.Pid)
}

func (n *Node) Resume() error { return n.process.cmd.Process.Signal(syscall.SIGCONT) }

// stands reports whether no thread of a process runs, true where nothing shows it.
func stands(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if _, state, ok := bytes.Cut(text, []byte(") ")); err == nil && ok && !bytes.HasPrefix(state, []byte("T")) {
			return false
		}
	}
	return true
}
