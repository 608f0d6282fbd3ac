package vfiouser

import (
	"sync"

	"golang.org/x/sys/unix"
)

// vectors are the MSI-X interrupts, each of which the client gives an eventfd for.
type vectors struct {
	mu      sync.Mutex
	fd      []int  // guarded by mu; -1 for a vector without a descriptor of the client
	pending []bool // guarded by mu; raised while there was none
}

func newVectors(n int) *vectors {
	v := &vectors{fd: make([]int, n), pending: make([]bool, n)}
	for i := range v.fd {
		v.fd[i] = -1
	}
	return v
}

// raise signals a vector. One that nobody listens to yet stays pending, as the bit in the
// pending array would.
func (v *vectors) raise(i int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i < 0 || i >= len(v.fd) {
		return
	}
	if v.fd[i] < 0 {
		v.pending[i] = true
		return
	}
	v.signal(i)
}

// signal adds 1 to the eventfd. Only a counter that is full, which says the same, or a client
// that is gone can refuse it.
func (v *vectors) signal(i int) {
	one := [8]byte{1}
	_, _ = unix.Write(v.fd[i], one[:])
}

// assign gives vectors their eventfds, which from now on belong to them, or takes them away
// where fds is nil.
func (v *vectors) assign(start, count int, fds []int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if start > len(v.fd) || count > len(v.fd)-start {
		return unix.EINVAL
	}
	for i, fd := range fds {
		// A writer must not hang on what the client passes off as an eventfd.
		if err := unix.SetNonblock(fd, true); err != nil {
			closeAll(fds[i:])
			return err
		}
		v.set(start+i, fd)
	}
	if fds == nil {
		for i := range count {
			v.set(start+i, -1)
		}
	}
	return nil
}

// set replaces the eventfd of one vector.
func (v *vectors) set(i, fd int) {
	if v.fd[i] >= 0 {
		unix.Close(v.fd[i])
	}
	v.fd[i] = fd
	if fd >= 0 && v.pending[i] {
		v.pending[i] = false
		v.signal(i)
	}
}

// disable takes all eventfds away.
func (v *vectors) disable() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.fd {
		v.set(i, -1)
		v.pending[i] = false
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
