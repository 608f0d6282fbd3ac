//go:build unix && !linux

package ucm

import "golang.org/x/sys/unix"

// descriptor is a pipe that is readable while it is set.
type descriptor struct{ r, w int }

func newDescriptor() (descriptor, error) {
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return descriptor{}, err
	}
	for _, fd := range p {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			unix.Close(p[0])
			unix.Close(p[1])
			return descriptor{}, err
		}
	}
	return descriptor{p[0], p[1]}, nil
}

// number returns the file descriptor that becomes readable.
func (d descriptor) number() int { return d.r }

// set makes the descriptor readable. It cannot fail, as the pipe is empty.
func (d descriptor) set() { unix.Write(d.w, []byte{1}) }

// clear makes the descriptor unreadable.
func (d descriptor) clear() {
	var b [1]byte
	unix.Read(d.r, b[:])
}

// release frees the resources of the descriptor other than its number.
func (d descriptor) release() { unix.Close(d.w) }
