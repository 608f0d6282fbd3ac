package rdmacm

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// TestEventHints: an event that is a failure says the likely cause, by the event and its errno.
func TestEventHints(t *testing.T) {
	for _, c := range []struct {
		typ   EventType
		errno syscall.Errno
		space PortSpace
		says  string // "": there is no hint
	}{
		{EventAddrError, syscall.EINVAL, IPoIB, noIPoIB},
		{EventAddrError, syscall.EINVAL, TCP, ""},
		{EventAddrError, syscall.ENODEV, TCP, noDevice("")},
		{EventAddrError, syscall.ENODEV, IPoIB, noDevice("")},
		{EventAddrError, syscall.ETIMEDOUT, TCP, "no host on the network"},
		{EventAddrError, syscall.EHOSTUNREACH, TCP, "no host on the network"},
		{EventAddrError, syscall.ENOMEM, TCP, ""},
		{EventRejected, 0, TCP, "has rejected the connection"},
		{EventConnectError, syscall.EINVAL, TCP, "another version of MPA"},
		{EventConnectError, syscall.ETIMEDOUT, TCP, ""},
		{EventMulticastError, syscall.ENETRESET, UDP, "leave the group and join again"},
		{EventMulticastError, syscall.ETIMEDOUT, UDP, "does not answer"},
		{EventMulticastError, syscall.EINVAL, UDP, "has refused"},
		{EventAddrInfoError, syscall.ENOENT, TCP, "no such service"},
		{EventUnreachable, syscall.ETIMEDOUT, TCP, "UDP port 4791"},
		{EventRouteError, syscall.ENODEV, TCP, ""},
		{EventDisconnected, syscall.EINVAL, TCP, ""},
	} {
		e := &EventError{Type: c.typ, space: c.space}
		if got := e.likelyCause(c.errno); (c.says == "") != (got == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s, %v: the hint is %q, want %q", c.typ, c.errno, got, c.says)
		}
	}
}

// TestPrivate: private data has the length that the event says, up to all, and none is nil.
func TestPrivate(t *testing.T) {
	var b [abi.RDMA_MAX_PRIVATE_DATA]uint8
	for i := range b {
		b[i] = uint8(i + 1)
	}
	if got := private(&b, 0); got != nil {
		t.Errorf("no private data is %v, want nil", got)
	}
	for _, n := range []uint8{1, 2, 255} {
		if got := private(&b, n); !bytes.Equal(got, b[:n]) {
			t.Errorf("%d bytes of private data are %v", n, got)
		}
	}
}
