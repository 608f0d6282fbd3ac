package rdmacm

import (
	"errors"
	"syscall"
)

// RetryPort calls try until it succeeds or fails for another reason than a port that TCP uses, nine
// times at most, and returns the last error. try makes an ID and connects it, or listens with it on
// port 0. On iWARP the connection manager chooses the port of an ID without asking TCP, so the port
// may be in use. It chooses another port for the next ID. Dial and Listen of package cm call RetryPort.
func RetryPort(try func() error) error {
	const most = 9
	err := try()
	for calls := 1; portTaken(err) && calls < most; calls++ {
		err = try()
	}
	return err
}

// portTaken reports whether Connect or Listen failed because TCP uses the port of the ID.
func portTaken(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Errno == syscall.EADDRINUSE && (e.Op == opConnect || e.Op == opListen) || e.Errno == syscall.EADDRNOTAVAIL && e.Op == opConnect
}
