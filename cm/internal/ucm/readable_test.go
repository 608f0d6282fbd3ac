//go:build unix

package ucm

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// TestReadable: the descriptor is readable exactly while there are events.
func TestReadable(t *testing.T) {
	r := newRig(t)
	f := r.file
	readable := func(want bool) {
		t.Helper()
		p := []unix.PollFd{{Fd: int32(f.FD()), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		if err != nil || (n == 1) != want {
			t.Errorf("readable %t, %v, want %t", n == 1, err, want)
		}
	}
	readable(false)
	a, b := r.create(f, spaceTCP), r.create(f, spaceTCP)
	for range 2 {
		for _, id := range []uint32{a, b} {
			r.ok(do(f, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, abi.WriteCmEvent{ID: id, Event: eventUser}))
		}
	}
	readable(true)
	r.want(f, eventUser, a)
	readable(true)
	_, errno := destroyOf(f, b)
	r.ok(errno)
	readable(true)
	r.want(f, eventUser, a)
	readable(false)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, abi.WriteCmEvent{ID: a, Event: eventUser}))
	readable(true)
	if n, errno := destroyOf(f, a); errno != 0 || n != 2 {
		t.Errorf("%d events, %v", n, errno)
	}
	readable(false)
}
