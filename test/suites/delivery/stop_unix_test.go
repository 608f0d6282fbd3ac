//go:build unix

package delivery

import (
	"os"
	"syscall"
)

// stop stops a process, and waits until it has stopped.
func stop(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		if _, err := syscall.Wait4(p.Pid, nil, syscall.WUNTRACED, nil); err != syscall.EINTR {
			return err
		}
	}
}

func init() { deaths["stopped"] = stop }
