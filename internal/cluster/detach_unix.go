//go:build unix

package cluster

import (
	"os/exec"
	"syscall"
)

// detach keeps a process out of the terminal's group, so that Ctrl-C reaches this program alone, which then ends the others in order.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
