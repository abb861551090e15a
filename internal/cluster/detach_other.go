//go:build !unix

package cluster

import (
	"errors"
	"os/exec"
)

func detach(*exec.Cmd) {}

// Suspend and Resume need signals that this system lacks.
func (n *Node) Suspend() error { return errors.ErrUnsupported }

func (n *Node) Resume() error { return errors.ErrUnsupported }
