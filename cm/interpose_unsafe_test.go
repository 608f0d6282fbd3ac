package cm

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/interpose"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// interposed opens a channel of the kernel's, or of the software devices, and has look called with each
// command before it is given. If look returns an errno, the command is refused instead.
func interposed(t *testing.T, look func(cmd uint32) syscall.Errno) *rdmacm.Channel {
	t.Helper()
	wrap := func(fd int, c interpose.Commander) interpose.Commander {
		if c == nil {
			c = kernelCommander(fd)
		}
		return watched{c, look}
	}
	interpose.Wrap.Store(&wrap)
	defer interpose.Wrap.Store(nil)
	return value(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))(t)
}

// watched is a commander that is looked at.
type watched struct {
	interpose.Commander
	look func(cmd uint32) syscall.Errno
}

// Do implements [interpose.Commander].
func (w watched) Do(cmd uint32, in, out []byte) syscall.Errno {
	if errno := w.look(cmd); errno != 0 {
		return errno
	}
	return w.Commander.Do(cmd, in, out)
}

// kernelCommander is a file descriptor of the kernel's connection manager.
type kernelCommander int

// Do implements [interpose.Commander]. The header of the command is in front of its request.
func (fd kernelCommander) Do(_ uint32, in, _ []byte) syscall.Errno {
	hdr := (*abi.CmdHdr)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(in)), -int(unsafe.Sizeof(abi.CmdHdr{}))))
	_, _, errno := syscall.Syscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(hdr)), unsafe.Sizeof(*hdr)+uintptr(hdr.In))
	return errno
}

// Close implements [interpose.Commander].
func (kernelCommander) Close() {}
