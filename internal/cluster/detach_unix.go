//go:build unix

package cluster

import (
	"os/exec"
	"syscall"
)

// detach keeps a process out of the terminal's group, so that Ctrl-C reaches this program alone,
// which then ends the others in order.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// Suspend takes the CPU from the process, and Resume gives it back.
func (n *Node) Suspend() error { return n.process.cmd.Process.Signal(syscall.SIGSTOP) }
func (n *Node) Resume() error  { return n.process.cmd.Process.Signal(syscall.SIGCONT) }
