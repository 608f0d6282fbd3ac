package guest

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
)

// kmsgReader sends the kernel's log to the host, from its first line on.
type kmsgReader struct {
	out  *frame.Writer
	fd   int
	stop chan struct{}
	once sync.Once
	done chan struct{}
}

func startKmsg(out *frame.Writer) *kmsgReader {
	k := &kmsgReader{out: out, stop: make(chan struct{}), done: make(chan struct{})}
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = out.Send(frame.Log, []byte("open /dev/kmsg: "+err.Error()))
		close(k.done)
		return k
	}
	k.fd = fd
	go k.run()
	return k
}

// drain sends what is in the log now, and ends the reader.
func (k *kmsgReader) drain() {
	if k == nil {
		return
	}
	k.once.Do(func() { close(k.stop) })
	<-k.done
}

func (k *kmsgReader) run() {
	defer close(k.done)
	buf := make([]byte, 16<<10) // a record is at most 8 KiB
	for {
		last := false
		select {
		case <-k.stop:
			last = true
		default:
		}
		if !k.readAll(buf) || last {
			return
		}
		fds := []unix.PollFd{{Fd: int32(k.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 20); err != nil && !errors.Is(err, unix.EINTR) {
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
