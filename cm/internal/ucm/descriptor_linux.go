package ucm

import "golang.org/x/sys/unix"

// descriptor is an eventfd that is readable while it is set.
type descriptor struct{ fd int }

func newDescriptor() (descriptor, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return descriptor{fd}, err
}

// number returns the file descriptor that becomes readable.
func (d descriptor) number() int { return d.fd }

// set makes the descriptor readable. It cannot fail, as the counter is 0.
func (d descriptor) set() { unix.Write(d.fd, []byte{0: 1, 7: 0}) }

// clear makes the descriptor unreadable.
func (d descriptor) clear() {
	var count [8]byte
	unix.Read(d.fd, count[:])
}

// release frees the resources of the descriptor other than its number.
func (descriptor) release() {}
