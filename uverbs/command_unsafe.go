package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// abiPath says how commands reach the kernel.
type abiPath int

const (
	pathAuto  abiPath = iota // ioctl where the kernel has it, else write
	pathIoctl                // ioctl only; legacy commands inside INVOKE_WRITE
	pathWrite                // write only
)

// abiPathEnv is the environment variable that forces one path.
const abiPathEnv = "RDMAABI"

// pathFromEnv reads abiPathEnv.
func pathFromEnv() (abiPath, error) {
	switch v := os.Getenv(abiPathEnv); v {
	case "", "auto":
		return pathAuto, nil
	case "ioctl":
		return pathIoctl, nil
	case "write":
		return pathWrite, nil
	default:
		return 0, argErr("Open", "environment variable "+abiPathEnv, fmt.Sprintf("%q", v), `"ioctl", "write", "auto" or unset`)
	}
}

// udata is the driver's own part of a command and of its response.
type udata struct {
	in, out []byte

	// more adds an attribute of the driver's, which the ioctl alone has; nil is none. lacks is
	// the error where the kernel does not know it.
	more  func(cmd *ioctlCommand)
	lacks *FeatureError
}

// commandFile is an open uverbs character device. It is safe for concurrent use.
//
// Commands use the descriptor as it is, under a lock that close takes for itself: that costs less
// than RawConn.Control, and than the closure for it.
type commandFile struct {
	f        *os.File
	open     sync.RWMutex // held for reading by commands, except a fastCommand
	shut     bool         // guarded by open
	fd       uintptr      // of f
	path     abiPath
	driverID uint16
	device   string // for errors and traces

	// fake plays the kernel in tests: it gets an ioctl's command, or what would be written.
	fake func(cmd *ioctlCommand, write []byte) syscall.Errno
}

// newCommandFile wraps an open uverbs device.
func newCommandFile(f *os.File, path abiPath, driverID uint16, device string) (*commandFile, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: %w", device, err)
	}
	c := &commandFile{f: f, path: path, driverID: driverID, device: device}
	if err := raw.Control(func(fd uintptr) { c.fd = fd }); err != nil {
		return nil, fmt.Errorf("uverbs: %s: %w", device, err)
	}
	return c, nil
}

// absent reports whether an ioctl's errno means that this kernel does not know
// the ioctl interface, the method or a mandatory attribute.
func absent(errno syscall.Errno) bool {
	return errno == syscall.ENOTTY || errno == syscall.EPROTONOSUPPORT
}

// fail turns an errno into the error that the caller of the verb gets. Errno
// meaning is decided here and nowhere else.
func (c *commandFile) fail(verb string, errno syscall.Errno, hint string) error {
	if errno == 0 {
		return nil
	}
	if errno == errClosedFile {
		return fmt.Errorf("uverbs: %s: %s: %w", c.device, verb, os.ErrClosed)
	}
	if errno == syscall.EINVAL && c.removed() {
		errno, hint = syscall.EIO, ""
	}
	err := &Error{Verb: verb, Device: c.device, Path: "ioctl", Netns: netns(), Errno: errno, Hint: hint}
	if c.path == pathWrite || errno == errWriteDenied {
		err.Path = "write"
	}
	refused := ""
	if c.driverID == uint16(mlx5DriverID) && !absent(errno) {
		refused = mlx5Refusal()
	}
	switch {
	case absent(errno) || errno == syscall.EOPNOTSUPP || errno == syscall.ENOSYS:
		return c.missing(verb, err, runningKernel())
	case errno == errWriteDenied:
		err.Errno = syscall.EACCES
		if hint == "" {
			err.Hint = "the kernel refuses write() to a file opened under other credentials; open the device after changing user or group, or set " + abiPathEnv + "=ioctl"
		}
	case refused != "" && hint != "":
		err.Hint = refused + "; " + hint
	case refused != "":
		err.Hint = refused
	case errno == syscall.EIO && hint == "":
		err.Hint = "the device has been removed"
	}
	return err
}

// removed reports whether the device is gone. Of an object of such a device Linux 5.10 says that
// there is none: EINVAL.
func (c *commandFile) removed() bool {
	if c.fake != nil {
		return false
	}
	resp := &abi.QueryDeviceResp{}
	return c.legacy(abi.IB_USER_VERBS_CMD_QUERY_DEVICE, bytesOf(&abi.QueryDevice{}), bytesOf(resp), udata{}) == syscall.EIO
}

// Numbers that the kernel does not have, among the errnos.
const (
	errClosedFile  = syscall.Errno(1<<20 + iota) // os.ErrClosed
	errWriteDenied                               // EACCES from write(), which an ioctl need not give
)

// writeErrno marks an errno that came from write().
func writeErrno(errno syscall.Errno) syscall.Errno {
	if errno == syscall.EACCES {
		return errWriteDenied
	}
	return errno
}

// close closes the file once the commands that are under way have ended.
func (c *commandFile) close() error {
	c.open.Lock()
	defer c.open.Unlock()
	c.shut = true
	return c.f.Close()
}

// maxAttrs is the largest number of attributes of a command.
const maxAttrs = 16

// ioctlCommand is one call of RDMA_VERBS_IOCTL: header and attributes are one
// object, and what attributes point to is pinned until the call is over. Who calls done
// when the answer was read gives it to the next command.
type ioctlCommand struct {
	wire struct {
		hdr   abi.IoctlHdr
		attrs [maxAttrs]abi.Attr
	}
	n     int
	pin   runtime.Pinner
	brief bool // a software device waits for nothing to carry it out: see fastCommand
	kept  bool // a test may look at it still
}

// spareIoctls are commands that are done.
var spareIoctls = sync.Pool{New: func() any { return new(ioctlCommand) }}

// newIoctl starts a command.
func newIoctl(object, method uint16) *ioctlCommand {
	c := spareIoctls.Get().(*ioctlCommand)
	c.wire.hdr = abi.IoctlHdr{ObjectID: object, MethodID: method}
	c.n, c.brief = 0, false
	return c
}

// done ends the use of a command that was issued, and of its attributes.
func (c *ioctlCommand) done() {
	if !c.kept {
		spareIoctls.Put(c)
	}
}

// attr adds a mandatory attribute.
func (c *ioctlCommand) attr(id uint16) *abi.Attr {
	a := &c.wire.attrs[c.n]
	c.n++
	*a = abi.Attr{AttrID: id, Flags: abi.UVERBS_ATTR_F_MANDATORY}
	return a
}

// obj adds the handle of an object; u64 and u32 add inline integers, as does fd.
func (c *ioctlCommand) obj(id uint16, handle uint32) { c.attr(id).Data = uint64(handle) }

// newObj adds the handle of an object to be created and returns the attribute,
// whose Data is the handle afterwards.
func (c *ioctlCommand) newObj(id uint16) *abi.Attr { return c.attr(id) }

func (c *ioctlCommand) fd(id uint16, fd int) *abi.Attr {
	a := c.attr(id)
	a.Data = uint64(fd)
	return a
}

func (c *ioctlCommand) u64(id uint16, v uint64) *abi.Attr {
	a := c.attr(id)
	a.Len = 8
	a.Data = v
	return a
}

func (c *ioctlCommand) u32(id uint16, v uint32) *abi.Attr {
	a := c.attr(id)
	a.Len = 4
	a.Data = uint64(v) // little endian: the value is the word's first four bytes
	return a
}

// in adds an input buffer: inline up to 8 bytes, else by address.
func (c *ioctlCommand) in(id uint16, b []byte) {
	if len(b) > 8 {
		c.out(id, b)
		return
	}
	a := c.attr(id)
	a.Len = uint16(len(b))
	var word [8]byte
	copy(word[:], b)
	a.Data = binary.LittleEndian.Uint64(word[:])
}

// out adds an output buffer.
func (c *ioctlCommand) out(id uint16, b []byte) {
	c.pin.Pin(&b[0])
	a := c.attr(id)
	a.Len = uint16(len(b))
	a.Data = uint64(uintptr(unsafe.Pointer(&b[0])))
}

// udata adds the driver's part.
func (c *ioctlCommand) udata(u udata) {
	if len(u.in) > 0 {
		c.in(abi.UVERBS_ATTR_UHW_IN, u.in)
	}
	if len(u.out) > 0 {
		c.out(abi.UVERBS_ATTR_UHW_OUT, u.out)
	}
	if u.more != nil {
		u.more(c)
	}
}

// finish writes what is known only when all attributes are there.
func (c *ioctlCommand) finish(driverID uint16) {
	c.wire.hdr.Length = uint16(unsafe.Sizeof(c.wire.hdr) + uintptr(c.n)*unsafe.Sizeof(c.wire.attrs[0]))
	c.wire.hdr.NumAttrs = uint16(c.n)
	c.wire.hdr.DriverID = uint32(driverID)
}

// ioctl issues a command and releases what it had pinned. With the write path
// forced it answers ENOTTY, as a kernel without ioctl would.
func (c *commandFile) ioctl(cmd *ioctlCommand) syscall.Errno {
	defer cmd.pin.Unpin()
	if c.path == pathWrite {
		return syscall.ENOTTY
	}
	cmd.finish(c.driverID)
	c.open.RLock()
	defer c.open.RUnlock()
	var errno syscall.Errno
	switch {
	case c.shut:
		return errClosedFile
	case c.fake != nil:
		cmd.kept = true
		errno = c.fake(cmd, nil)
	case cmd.brief && c.driverID == abi.RDMA_DRIVER_RXE:
		errno = ioctlCallShort(c.fd, cmd)
	default:
		errno = ioctlCall(c.fd, cmd)
	}
	trace(c.device, "ioctl", uint32(cmd.wire.hdr.ObjectID), uint32(cmd.wire.hdr.MethodID), errno)
	return errno
}

// ioctlCall and ioctlCallShort are the only places that issue RDMA_VERBS_IOCTL. The short one
// keeps Go's scheduler out, see fastCommand.
func ioctlCall(fd uintptr, cmd *ioctlCommand) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, uintptr(abi.RDMA_VERBS_IOCTL), uintptr(unsafe.Pointer(&cmd.wire)))
		if errno != syscall.EINTR {
			return errno
		}
	}
}

func ioctlCallShort(fd uintptr, cmd *ioctlCommand) syscall.Errno {
	for {
		_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, fd, uintptr(abi.RDMA_VERBS_IOCTL), uintptr(unsafe.Pointer(&cmd.wire)))
		if errno != syscall.EINTR {
			return errno
		}
	}
}

// writeCall and writeCallShort are the only places that issue a legacy command by
// write(). The short one keeps Go's scheduler out, see fastCommand.
func writeCall(fd uintptr, b []byte) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno != syscall.EINTR {
			return errno
		}
	}
}

// It is one call and no loop, so that it is part of issue: what interrupts it is for retry.
func writeCallShort(fd uintptr, p *byte, n uint8) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(p)), uintptr(n), 0, 0, 0)
	return errno
}

// legacy issues a command of the write() interface: in and out are its core
// structs, and where there is a response, in starts with the address of it, which
// legacy fills in. It goes through INVOKE_WRITE where the kernel has that. A cmd
// with IB_USER_VERBS_CMD_FLAG_EXTENDED is an extended one.
func (c *commandFile) legacy(cmd uint32, in, out []byte, u udata) syscall.Errno {
	if c.path != pathWrite {
		invoke := invokeWrite(cmd, in, out, u)
		errno := c.ioctl(invoke)
		invoke.done()
		if c.path == pathIoctl || !absent(errno) {
			return errno
		}
	}
	w := newWriteCommand(cmd, in, out, u)
	defer w.pin.Unpin()
	c.open.RLock()
	defer c.open.RUnlock()
	var errno syscall.Errno
	switch {
	case c.shut:
		return errClosedFile
	case c.fake != nil:
		errno = c.fake(nil, w.wire)
	default:
		errno = writeCall(c.fd, w.wire)
	}
	trace(c.device, "write", cmd, 0, errno)
	if errno == 0 {
		w.copyOut(out, u)
	}
	return writeErrno(errno)
}

// invokeWrite wraps a legacy command into the ioctl that carries it.
func invokeWrite(cmd uint32, in, out []byte, u udata) *ioctlCommand {
	c := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE)
	if len(in) > 0 {
		c.in(abi.UVERBS_ATTR_CORE_IN, in)
	}
	if len(out) > 0 {
		c.out(abi.UVERBS_ATTR_CORE_OUT, out)
	}
	c.u64(abi.UVERBS_ATTR_WRITE_CMD, uint64(cmd))
	c.udata(u)
	c.brief = cmd == abi.IB_USER_VERBS_CMD_MODIFY_QP
	return c
}

// writeCommand is one write() to the command file.
type writeCommand struct {
	wire []byte // header, core and driver parts
	resp []byte // core and driver parts of the response, one after the other
	pin  runtime.Pinner
}

// newWriteCommand lays a legacy command out. The response's address is pinned.
func newWriteCommand(cmd uint32, in, out []byte, u udata) *writeCommand {
	w := &writeCommand{}
	var addr uint64
	if n := len(out) + len(u.out); n > 0 {
		w.resp = make([]byte, n)
		// Not every kernel writes every byte of a response.
		copy(w.resp, out)
		copy(w.resp[len(out):], u.out)
		w.pin.Pin(&w.resp[0])
		addr = uint64(uintptr(unsafe.Pointer(&w.resp[0])))
	}
	if cmd&abi.IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
		ex := abi.ExCmdHdr{
			ProviderInWords:  uint16(len(u.in) / 8),
			ProviderOutWords: uint16(len(u.out) / 8),
		}
		hdr := abi.CmdHdr{Command: cmd, InWords: uint16(len(in) / 8), OutWords: uint16(len(out) / 8)}
		w.wire = make([]byte, 0, int(unsafe.Sizeof(hdr)+unsafe.Sizeof(ex))+len(in)+len(u.in))
		w.wire = append(w.wire, bytesOf(&hdr)...)
		w.wire = append(w.wire, bytesOf(&ex)...)
		binary.LittleEndian.PutUint64(w.wire[unsafe.Sizeof(hdr)+unsafe.Offsetof(ex.Response):], addr)
		w.wire = append(append(w.wire, in...), u.in...)
		return w
	}
	hdr := abi.CmdHdr{Command: cmd, OutWords: uint16(len(w.resp) / 4)}
	hdr.InWords = uint16((int(unsafe.Sizeof(hdr)) + len(in) + len(u.in)) / 4)
	w.wire = make([]byte, 0, int(unsafe.Sizeof(hdr))+len(in)+len(u.in))
	w.wire = append(append(append(w.wire, bytesOf(&hdr)...), in...), u.in...)
	if addr != 0 {
		binary.LittleEndian.PutUint64(w.wire[unsafe.Sizeof(hdr):], addr)
	}
	return w
}

// copyOut hands the response back in its two parts.
func (w *writeCommand) copyOut(out []byte, u udata) {
	copy(out, w.resp)
	copy(u.out, w.resp[len(out):])
}

// fastCommand is a legacy command that is issued again and again with the same
// bytes: a doorbell or the arming of a CQ. It is built once and issuing it does
// not allocate. It is not safe for concurrent use.
//
// A short command is issued without telling Go's scheduler: telling it costs more than
// such a command takes, and the scheduler's monitor, which sees a goroutine often in
// system calls, then wakes some thousand times a second to look after it. The price is
// that the garbage collector waits for the command to end. That is why a doorbell for
// much data is a long command: some kernels transmit in it.
type fastCommand struct {
	c        *commandFile
	useIoctl bool
	size     uint8
	buf      [40]byte // the command in size bytes, and its response behind them
	number   uint32
	in, out  []byte        // what inv points to
	inv      *ioctlCommand // nil until it is needed
}

// init prepares a command. The kernel gets addresses inside of f and of in and out, which
// are heap objects that never move.
//
// Preconditions: command and response together have no more bytes than buf.
func (f *fastCommand) init(c *commandFile, cmd uint32, in, out []byte) {
	*f = fastCommand{c: c, number: cmd, in: in, out: out, useIoctl: c.path == pathIoctl}
	w := newWriteCommand(cmd, in, out, udata{})
	w.pin.Unpin()
	f.size = uint8(copy(f.buf[:len(f.buf)-len(out)], w.wire))
	if len(out) > 0 {
		addr := uint64(uintptr(unsafe.Pointer(&f.buf[f.size])))
		binary.LittleEndian.PutUint64(f.buf[unsafe.Sizeof(abi.CmdHdr{}):], addr)
	}
}

// wire returns the command for write().
func (f *fastCommand) wire() []byte { return f.buf[:f.size] }

// ioctl returns the command for ioctl.
func (f *fastCommand) ioctl() *ioctlCommand {
	if f.inv == nil {
		f.inv = invokeWrite(f.number, f.in, f.out, udata{})
		f.inv.pin.Unpin()
		f.inv.finish(f.c.driverID)
	}
	return f.inv
}

// issue sends the command, which may take a while if it is long. write() costs less than the ioctl, so
// it is the first choice; where the kernel or a sandbox refuses write(), the ioctl takes over.
//
// The descriptor is used as it is, not through RawConn.Control, which would take an
// atomic reference each time: the object that owns the command keeps the device open,
// and does not issue it once it is closed.
func (f *fastCommand) issue(long bool) syscall.Errno {
	if f.useIoctl {
		return ioctlCall(f.c.fd, f.ioctl())
	}
	var errno syscall.Errno
	if long {
		errno = writeCall(f.c.fd, f.wire())
	} else {
		errno = writeCallShort(f.c.fd, &f.buf[0], f.size)
	}
	runtime.KeepAlive(f.c.f)
	if errno != 0 {
		return f.retry(errno)
	}
	return 0
}

// retry repeats a write() that was interrupted, and switches to the ioctl if it was write() itself that
// was refused.
func (f *fastCommand) retry(refused syscall.Errno) syscall.Errno {
	for refused == syscall.EINTR {
		if refused = writeCallShort(f.c.fd, &f.buf[0], f.size); refused == 0 {
			return 0
		}
	}
	if f.c.path != pathAuto || refused != syscall.EACCES && refused != syscall.EPERM {
		return writeErrno(refused)
	}
	errno := ioctlCall(f.c.fd, f.ioctl())
	if absent(errno) {
		return writeErrno(refused)
	}
	f.useIoctl = true
	return errno
}

// bytesOf returns the memory of a command struct.
func bytesOf[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

// sliceBytes returns the memory of a slice of command structs.
func sliceBytes[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), uintptr(len(s))*unsafe.Sizeof(s[0]))
}

// addrOf returns the address of a buffer's first byte. The caller keeps b alive
// and in place: off the Go heap, or pinned.
func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// errnoOf returns the errno inside an error.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return 0
}
