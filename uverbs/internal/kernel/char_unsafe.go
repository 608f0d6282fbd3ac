//go:build linux

package kernel

import (
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// CharDevice is a [Device] behind a character device of the kernel.
//
// Commands and Map use the descriptor as it is: [Conn] closes the device only when none of them is
// under way. That costs less than RawConn.Control and the closure for it.
type CharDevice struct {
	f        *os.File
	fd       uintptr // of f
	driverID uint32
	software bool
}

// CharOptions are the properties of a [CharDevice].
type CharOptions struct {
	DriverID uint32 // DriverID is the number of the kernel's driver (enum rdma_driver_id).

	// Software says that the device is one in software, which carries brief commands out without
	// waiting for hardware. They are issued without telling Go's scheduler, see [Repeated].
	Software bool
}

// NewCharDevice returns a device that issues commands to f. Closing it closes f.
func NewCharDevice(f *os.File, o CharOptions) (*CharDevice, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	d := &CharDevice{f: f, driverID: o.DriverID, software: o.Software}
	if err := raw.Control(func(fd uintptr) { d.fd = fd }); err != nil {
		return nil, err
	}
	return d, nil
}

// Do implements [Device].
func (d *CharDevice) Do(c *Command, byWrite bool) syscall.Errno {
	if byWrite {
		return d.write(c)
	}
	c.encode(d.driverID)
	call := ioctlCall
	if c.Brief && d.software {
		call = ioctlCallShort
	}
	errno := call(d.fd, c)
	c.decode()
	return errno
}

// Map implements [Device].
func (d *CharDevice) Map(offset uint64, size int, readOnly bool) (*mmio.Region, error) {
	return mmio.MapDescriptor(d.fd, d.f.Name(), offset, size, !readOnly)
}

// Events implements [Device].
func (d *CharDevice) Events(number uint32, name string) (EventFile, error) {
	f, err := OpenEvents(int(number), name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Close implements [Device].
func (d *CharDevice) Close() error { return d.f.Close() }

// char returns the device to which a [Repeated] is issued directly. Types that embed a CharDevice
// have the method as well.
func (d *CharDevice) char() *CharDevice { return d }

// encode writes the form of the command for the ioctl. The attributes keep the memory alive whose
// addresses it has.
func (c *Command) encode(driverID uint32) {
	if c.wire == nil {
		c.wire = new(ioctlForm)
	}
	hdr, attrs := &c.wire.hdr, c.wire.attrs[:c.n]
	*hdr = abi.IoctlHdr{ObjectID: c.Object, MethodID: c.Method, NumAttrs: uint16(c.n), DriverID: driverID}
	hdr.Length = uint16(int(unsafe.Sizeof(*hdr)) + len(SliceBytes(attrs)))
	for i := range attrs {
		a, w := &c.attrs[i], &attrs[i]
		*w = abi.Attr{AttrID: a.ID, Len: a.Len, Flags: a.Flags, Data: a.Data}
		w.AttrData.EnumData().ElemID = a.Enum
		if mem := a.memory(); len(mem) > 0 {
			w.Data = Addr(mem)
		}
	}
}

// decode takes over the handles that the kernel has written.
func (c *Command) decode() {
	for i := range c.attrs[:c.n] {
		if a := &c.attrs[i]; a.memory() == nil {
			a.Data = c.wire.attrs[i].Data
		}
	}
}

// write issues a legacy command with write().
func (d *CharDevice) write(c *Command) syscall.Errno {
	l, ok := c.Legacy()
	if !ok {
		return syscall.ENOTTY
	}
	var addr uint64
	// Not every kernel writes every byte of a response.
	resp := slices.Concat(l.Out, l.DrvOut)
	if len(resp) > 0 {
		var pin runtime.Pinner // resp may be on the stack
		pin.Pin(&resp[0])
		defer pin.Unpin()
		addr = Addr(resp)
	}
	errno := writeCall(d.fd, l.Request(addr))
	if errno == 0 {
		l.setResponse(resp)
	}
	return errno
}

// issueWrite issues the bytes of a legacy command. brief has the meaning of [Command.Brief].
func (d *CharDevice) issueWrite(b []byte, brief bool) syscall.Errno {
	if !brief || !d.software {
		return writeCall(d.fd, b)
	}
	for {
		if errno := writeCallShort(d.fd, &b[0], uint8(len(b))); errno != syscall.EINTR {
			return errno
		}
	}
}

// ioctlCall and ioctlCallShort are the only places that issue RDMA_VERBS_IOCTL. The short one does
// not tell Go's scheduler, see [Repeated].
func ioctlCall(fd uintptr, c *Command) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, uintptr(abi.RDMA_VERBS_IOCTL), uintptr(unsafe.Pointer(c.wire)))
		if errno != syscall.EINTR {
			return errno
		}
	}
}

func ioctlCallShort(fd uintptr, c *Command) syscall.Errno {
	for {
		_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, fd, uintptr(abi.RDMA_VERBS_IOCTL), uintptr(unsafe.Pointer(c.wire)))
		if errno != syscall.EINTR {
			return errno
		}
	}
}

// writeCall and writeCallShort are the only places that issue a legacy command with write(). The
// short one does not tell Go's scheduler, see [Repeated].
func writeCall(fd uintptr, b []byte) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno != syscall.EINTR {
			return errno
		}
	}
}

// writeCallShort is one call without a loop so that the compiler inlines it into Issue. If a signal
// interrupts it, Repeated.retry repeats it.
func writeCallShort(fd uintptr, p *byte, n uint8) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(p)), uintptr(n), 0, 0, 0)
	return errno
}
