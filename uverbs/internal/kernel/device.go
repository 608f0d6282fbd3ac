package kernel

import (
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Device carries out commands. The package documentation says how to implement one.
type Device interface {
	// Do carries out a command and returns 0 or an errno. If byWrite is set, the command is an
	// INVOKE_WRITE that must be issued with write(); a device without that distinction ignores it.
	Do(c *Command, byWrite bool) syscall.Errno

	// Map maps size bytes at an offset that a command has answered with.
	Map(offset uint64, size int, readOnly bool) (*mmio.Region, error)

	// Events opens an event channel by the number that a command has answered with.
	Events(number uint32, name string) (EventFile, error)

	// Close closes the device. The files of event channels stay open.
	Close() error
}

// EventFile is an open event channel, such as an [os.File]. Its methods do what those of an os.File do,
// with the same errors. Reads return the structs of rdma/ib_user_verbs.h. After the device was removed
// they fail with EIO or return the end of the file.
type EventFile interface {
	io.ReadCloser
	SetReadDeadline(t time.Time) error
}

// EventsCloser is a [Device] that is told when a completion channel is closed, which the kernel
// learns from the file descriptor.
type EventsCloser interface {
	// EventsClosed says that the file of an event channel was closed, or could not be opened. The
	// number of the channel must not be that of the file: the file's may be in use again.
	EventsClosed(number uint32)
}

// Poller is a [Device] in the process whose work a program that polls an empty CQ can do itself. It need
// not wait then until another goroutine runs, for which there may be no processor.
type Poller interface {
	// Poll handles what has arrived from the network. It does not wait for more.
	Poll()
}

// Repeater is a [Device] in the process that takes a [Repeated] as it is. That one has no [Command] then.
type Repeater interface {
	// Repeat carries out a legacy command: in is its core struct, and out gets the response. It reports false if the
	// device wants a Command.
	Repeat(number uint32, in, out []byte) (errno syscall.Errno, ok bool)
}

// Path says how commands reach the kernel.
type Path int

// Paths.
const (
	PathAuto  Path = iota // ioctl if the kernel supports it, else write; see [Conn.Writes] for exceptions
	PathIoctl             // ioctl only; legacy commands inside INVOKE_WRITE
	PathWrite             // write only
)

// Conn is an open device. It is safe for concurrent use.
type Conn struct {
	dev   Device
	path  Path
	name  string      // for traces
	write *CharDevice // for legacyByWrite; nil unless dev is a CharDevice and the path is PathAuto
	again Repeater    // nil unless dev is one

	written atomic.Int32 // whether the device takes write()

	mu     sync.RWMutex // held for reading by commands, except a Repeated, and for writing by Close alone
	closed bool         // guarded by mu
}

// NewConn returns a Conn that passes commands to dev. name is the name of the RDMA device.
func NewConn(dev Device, path Path, name string) *Conn {
	c := &Conn{dev: dev, path: path, name: name}
	c.again, _ = dev.(Repeater)
	if path == PathAuto {
		c.write, _ = dev.(*CharDevice) // and not a type that embeds one, which has its own Do
	}
	return c
}

// Path returns the path that was given to [NewConn].
func (c *Conn) Path() Path { return c.path }

// Do issues a method of the ioctl interface. On [PathWrite] it returns ENOTTY, as a kernel without
// the ioctl does.
func (c *Conn) Do(cmd *Command) syscall.Errno {
	if c.path == PathWrite {
		return syscall.ENOTTY
	}
	return c.do(cmd, false)
}

// Legacy issues a command of the write() interface. The slices in and out are its core structs. If
// the command has a response, in starts with 8 bytes for the address of it, which Legacy fills in.
// The slices drvIn and drvOut are the driver's part of request and response. A number with
// IB_USER_VERBS_CMD_FLAG_EXTENDED is an extended command.
//
// On [PathAuto] the commands of [Conn.Writes] are issued with write().
func (c *Conn) Legacy(number uint32, in, out, drvIn, drvOut []byte) syscall.Errno {
	if c.Writes(number) && len(drvIn)+len(drvOut) == 0 {
		return c.LegacyBrief(number, in, out, number == abi.IB_USER_VERBS_CMD_MODIFY_QP)
	}
	cmd := invokeWrite(number, in, out, drvIn, drvOut)
	defer cmd.Done()
	if c.path != PathWrite {
		if errno := c.do(cmd, false); c.path == PathIoctl || !Absent(errno) {
			return errno
		}
	}
	return writeErrno(c.do(cmd, true))
}

// Whether the device takes write(). Once a write() has succeeded, EINVAL is the answer to a command.
const (
	writeUnknown int32 = iota
	writeWorks
	writeRefused
)

// LegacyBrief is Legacy for a command of [Conn.Writes] without driver's part. brief has the meaning
// of [Command.Brief]. LegacyBrief does not retain in.
//
// If write() itself is refused, the command is issued once more, with the ioctl. Linux refuses write() with
// EACCES or EPERM, and gVisor with EINVAL. EINVAL may also be the answer to the command. The command
// had no effect then, so issuing it again changes nothing, and its answer counts.
func (c *Conn) LegacyBrief(number uint32, in, out []byte, brief bool) syscall.Errno {
	if !c.Writes(number) {
		return c.Legacy(number, slices.Clone(in), out, nil, nil)
	}
	refused := c.legacyByWrite(number, in, out, brief)
	switch {
	case refused == 0:
		if c.written.Load() == writeUnknown {
			c.written.Store(writeWorks)
		}
		return 0
	case refused == syscall.EACCES, refused == syscall.EPERM:
	case refused == syscall.EINVAL && c.written.Load() != writeWorks:
	default:
		return refused
	}
	cmd := invokeWrite(number, slices.Clone(in), out, nil, nil)
	defer cmd.Done()
	errno := c.do(cmd, false)
	switch {
	case Absent(errno):
		return writeErrno(refused)
	case errno != refused: // so it was not the command that was refused, but write()
		c.written.Store(writeRefused)
	}
	return errno
}

// Writes reports whether [Conn.Legacy] issues a command with write() although the kernel may support the
// ioctl: write() executes fewer instructions, 2,000 instead of 3,300 for MODIFY_QP on Linux 6.1. The ioctl
// takes over if write() turns out to be refused.
func (c *Conn) Writes(number uint32) bool {
	return c.write != nil && c.written.Load() != writeRefused && writtenCommand(number)
}

// writtenCommand reports whether a command is one of [Conn.Writes].
func writtenCommand(number uint32) bool {
	switch number {
	case abi.IB_USER_VERBS_CMD_MODIFY_QP, abi.IB_USER_VERBS_CMD_REG_MR, abi.IB_USER_VERBS_CMD_DEREG_MR, abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		return true
	}
	return false
}

// legacyByWrite issues a command without driver's part that is not an extended one. The memory of out
// must not move, so it must not be on a stack.
//
// Preconditions: in has at most maxWritten-hdrSize bytes.
func (c *Conn) legacyByWrite(number uint32, in, out []byte, brief bool) syscall.Errno {
	if !c.enter() {
		return ErrnoClosed
	}
	defer c.mu.RUnlock()
	var buf [maxWritten]byte
	var resp uint64
	if len(out) > 0 {
		resp = Addr(out)
	}
	n := putRequest(buf[:], number, in, len(out), resp)
	errno := c.write.issueWrite(buf[:n], brief)
	runtime.KeepAlive(out)
	if traceLevel() >= 1 {
		trace(c.name, invokeWrite(number, slices.Clone(in), out, nil, nil), true, errno)
	}
	return errno
}

// maxWritten is the size of the largest command of [Conn.Writes].
const maxWritten = 120

// enter begins a command, which ends with mu.RUnlock. It returns false once Close has begun.
func (c *Conn) enter() bool {
	switch {
	case !c.mu.TryRLock():
		return false
	case c.closed:
		c.mu.RUnlock()
		return false
	}
	return true
}

// do passes a command to the device.
func (c *Conn) do(cmd *Command, byWrite bool) syscall.Errno {
	if !c.enter() {
		return ErrnoClosed
	}
	defer c.mu.RUnlock()
	errno := c.dev.Do(cmd, byWrite)
	trace(c.name, cmd, byWrite, errno)
	return errno
}

// Map maps memory of the device for reading and writing.
func (c *Conn) Map(offset uint64, size int) (*mmio.Region, error) {
	return c.mapMemory(offset, size, false)
}

// MapReadOnly maps memory of the device for reading only.
func (c *Conn) MapReadOnly(offset uint64, size int) (*mmio.Region, error) {
	return c.mapMemory(offset, size, true)
}

func (c *Conn) mapMemory(offset uint64, size int, readOnly bool) (*mmio.Region, error) {
	if !c.enter() {
		return nil, os.ErrClosed
	}
	defer c.mu.RUnlock()
	return c.dev.Map(offset, size, readOnly)
}

// Events opens an event channel by the number that a command has answered with.
func (c *Conn) Events(number uint32, name string) (EventFile, error) {
	return c.dev.Events(number, name)
}

// EventsClosed tells an [EventsCloser] that the file of an event channel was closed.
func (c *Conn) EventsClosed(number uint32) {
	if d, ok := c.dev.(EventsCloser); ok {
		d.EventsClosed(number)
	}
}

// File returns another descriptor of the device's file. It fails with [errors.ErrUnsupported] if
// the device has no file.
func (c *Conn) File() (*os.File, error) {
	if !c.enter() {
		return nil, os.ErrClosed
	}
	defer c.mu.RUnlock()
	d, ok := c.dev.(interface{ char() *CharDevice })
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return DupFile(d.char().f)
}

// Removed reports whether the device was removed while it was open.
func (c *Conn) Removed() bool {
	var req abi.QueryDevice
	var resp abi.QueryDeviceResp
	return c.Legacy(abi.IB_USER_VERBS_CMD_QUERY_DEVICE, Bytes(&req), Bytes(&resp), nil, nil) == syscall.EIO
}

// Close closes the device after the commands that are under way. Those that begin meanwhile fail.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.dev.Close()
}
