package netlinkrdma

import (
	"io/fs"
	"os"
)

// client sends requests to the kernel. It is immutable.
type client struct {
	dial  func() (socket, error)
	sysfs fs.FS // /sys
}

// system asks the running kernel.
var system = &client{dial: dialKernel, sysfs: os.DirFS("/sys")}

// session is a socket for one request or several in sequence.
type session struct {
	sock socket
}

func (s *session) close() { s.sock.Close() }

// unreachable means that the kernel gave no answer over netlink, so sysfs is read instead.
type unreachable struct {
	err error
}

func (e *unreachable) Error() string { return e.err.Error() }
func (e *unreachable) Unwrap() error { return e.err }
