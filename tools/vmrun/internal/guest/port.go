package guest

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// port is the virtio-serial port. It never blocks inside the kernel's driver: a
// blocking write there spins with interrupts off until the host has taken the
// bytes, so the port is non-blocking and waits in poll.
type port struct{ fd int }

// openPort waits for the port to appear and opens it.
func openPort(timeout time.Duration) (*port, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(2 * time.Millisecond) {
		names, err := filepath.Glob("/dev/vport*p1")
		if err != nil {
			return nil, err
		}
		if len(names) > 0 {
			fd, err := unix.Open(names[0], unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				return &port{fd: fd}, nil
			}
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("open %s: %w", names[0], err)
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no virtio-serial port after %v; the kernel needs virtio_pci and virtio_console", timeout)
		}
	}
}

// Read never returns 0 bytes: the port says "end of file" while the host's end
// is not connected yet.
func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		switch {
		case n > 0:
			return n, nil
		case err == nil:
			time.Sleep(2 * time.Millisecond)
		case errors.Is(err, unix.EAGAIN):
			if err := p.wait(unix.POLLIN); err != nil {
				return 0, err
			}
		case !errors.Is(err, unix.EINTR):
			return 0, fmt.Errorf("read the port: %w", err)
		}
	}
}

func (p *port) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n, err := unix.Write(p.fd, b[sent:])
		switch {
		case err == nil:
			sent += n
		case errors.Is(err, unix.EAGAIN):
			if err := p.wait(unix.POLLOUT); err != nil {
				return sent, err
			}
		case !errors.Is(err, unix.EINTR):
			return sent, fmt.Errorf("write the port: %w", err)
		}
	}
	return sent, nil
}

func (p *port) wait(events int16) error {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: events}}
	_, err := unix.Poll(fds, 1000)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll the port: %w", err)
	}
	if fds[0].Revents&unix.POLLHUP != 0 {
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}
