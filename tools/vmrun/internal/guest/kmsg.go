package guest

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
)

// kmsgReader sends the kernel's log to the host, from its first line on. It sleeps until there is more:
// whatever runs in the guest by the clock takes processors, and what they have cached, from the
// programs that are measured there.
type kmsgReader struct {
	out  *frame.Writer
	fd   int
	stop int // an eventfd that is readable when the reader shall end
	once sync.Once
	done chan struct{}
}

func startKmsg(out *frame.Writer) *kmsgReader {
	k := &kmsgReader{out: out, stop: -1, done: make(chan struct{})}
	if err := k.open(); err != nil {
		_ = out.Send(frame.Log, []byte(err.Error()))
		close(k.done)
		return k
	}
	go k.run()
	return k
}

func (k *kmsgReader) open() (err error) {
	if k.fd, err = unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open /dev/kmsg: %w", err)
	}
	if k.stop, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return fmt.Errorf("make an eventfd: %w", err)
	}
	return nil
}

// drain sends what is in the log now, and ends the reader.
func (k *kmsgReader) drain() {
	if k == nil {
		return
	}
	k.once.Do(func() { unix.Write(k.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }) // no reader: an error, and done is closed
	<-k.done
}

func (k *kmsgReader) run() {
	defer close(k.done)
	buf := make([]byte, 16<<10) // a record is at most 8 KiB
	fds := []unix.PollFd{{Fd: int32(k.fd), Events: unix.POLLIN}, {Fd: int32(k.stop), Events: unix.POLLIN}}
	for {
		last := fds[1].Revents != 0
		if !k.readAll(buf) || last {
			return
		}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// readAll sends every record that is there, and reports whether more may come.
func (k *kmsgReader) readAll(buf []byte) bool {
	for {
		n, err := unix.Read(k.fd, buf)
		switch {
		case err == nil && n > 0:
			if k.out.Send(frame.Kmsg, buf[:n]) != nil {
				return false
			}
		case errors.Is(err, unix.EAGAIN):
			return true
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			// EPIPE: records were overwritten before they were read.
		default:
			return false
		}
	}
}
