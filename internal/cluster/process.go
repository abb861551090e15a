package cluster

import (
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// A Process is a program that this one started. It ends with it, even if this one is killed.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	watch  *exec.Cmd
}

// StartProcess starts a program.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, exited: make(chan struct{}), watch: watch(cmd.Process.Pid)}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait()
	}()
	return p, nil
}

// watch starts a shell that ends a process if this program dies without doing so: it waits for the
// end of a pipe.
func watch(pid int) *exec.Cmd {
	cmd := exec.Command("sh", "-c", fmt.Sprintf("cat >/dev/null; kill -9 %d", pid))
	detach(cmd)
	if _, err := cmd.StdinPipe(); err != nil {
		return nil
	}
	if cmd.Start() != nil {
		return nil // a system without a shell has to do without
	}
	return cmd
}

// Exited is closed when the process has ended, for whatever reason.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Stop asks the process to end, as SIGTERM does, and returns when it has. false means that it took
// too long and was killed.
func (p *Process) Stop() bool {
	defer p.Kill()
	if p.cmd.Process.Signal(syscall.SIGTERM) != nil {
		return true // it has ended, or this system has no signals
	}
	select {
	case <-p.exited:
		return true
	case <-time.After(processTimeout):
		return false
	}
}

// Kill ends the process at once, as kill -9 does, and returns when it has ended.
func (p *Process) Kill() {
	if p.watch != nil {
		_ = p.watch.Process.Kill()
		_ = p.watch.Wait()
		p.watch = nil
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}
