package kernel

import (
	"encoding/binary"
	"runtime"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Repeated is a legacy command that is issued again and again with the same bytes: a doorbell or
// the arming of a CQ. It is built once, and issuing it does not allocate. It is not safe for
// concurrent use.
//
// A short command is issued without telling Go's scheduler. Telling it costs more than such a
// command takes, and the scheduler's monitor wakes up to some thousand times a second to look after
// a goroutine that is often in system calls. The price is that the garbage collector waits for the
// command to end. A doorbell for much data is therefore a long command, since some kernels transmit
// in it.
type Repeated struct {
	char     *CharDevice // nil if the device has no file
	general  bool        // issue the command with Do
	size     uint8
	respSize uint8
	buf      [40]byte // the command in size bytes, and its response behind them

	conn   *Conn
	invoke *Command // for Do; nil until it is needed
}

// Init prepares a command that is not an extended one, with a core struct and a response of
// respSize bytes as in [Conn.Legacy]. The kernel gets addresses inside r, which must be a heap
// object, since such objects do not move.
//
// Preconditions: command and response together have no more bytes than buf.
func (r *Repeated) Init(c *Conn, number uint32, in []byte, respSize int) {
	*r = Repeated{conn: c, respSize: uint8(respSize)}
	if d, ok := c.dev.(interface{ char() *CharDevice }); ok {
		r.char = d.char()
	}
	r.general = r.char == nil || c.path == PathIoctl
	r.size = uint8(hdrSize + len(in))
	var resp uint64
	if respSize > 0 {
		resp = Addr(r.buf[r.size:])
	}
	putRequest(r.buf[:], number, in, respSize, resp)
}

// Request returns the bytes for write().
func (r *Repeated) Request() []byte { return r.buf[:r.size] }

// Command returns the command for Do.
func (r *Repeated) Command() *Command {
	if r.invoke == nil {
		number := binary.LittleEndian.Uint32(r.buf[:])
		c := &Command{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_INVOKE_WRITE, attrs: make([]Attr, writeAttrs)}
		c.addWrite(number, r.buf[hdrSize:r.size], r.buf[r.size:][:r.respSize])
		r.invoke = c
	}
	return r.invoke
}

// Issue issues the command, which may take a while if it is long. With a file, write() costs less
// than the ioctl, so it is the first choice; if the kernel or a sandbox refuses write(), the ioctl
// takes over.
//
// The descriptor is used as it is. RawConn.Control would take an atomic reference each time, and is
// not needed: the object that owns the command keeps the device open, and does not issue the
// command once it is closed.
func (r *Repeated) Issue(long bool) syscall.Errno {
	if r.general {
		if d := r.conn.again; d != nil {
			if errno, ok := d.Repeat(binary.LittleEndian.Uint32(r.buf[:]), r.buf[hdrSize:r.size], r.buf[r.size:][:r.respSize]); ok {
				return errno
			}
		}
		return r.conn.dev.Do(r.Command(), false)
	}
	var errno syscall.Errno
	if long {
		errno = writeCall(r.char.fd, r.Request())
	} else {
		errno = writeCallShort(r.char.fd, &r.buf[0], r.size)
	}
	runtime.KeepAlive(r.char.f)
	if errno != 0 {
		return r.retry(errno)
	}
	return 0
}

// retry repeats a write() that was interrupted, and switches to the ioctl if write() itself was
// refused.
func (r *Repeated) retry(refused syscall.Errno) syscall.Errno {
	for refused == syscall.EINTR {
		if refused = writeCallShort(r.char.fd, &r.buf[0], r.size); refused == 0 {
			return 0
		}
	}
	denied := refused == syscall.EACCES || refused == syscall.EPERM || refused == syscall.EINVAL && r.conn.written.Load() == writeRefused
	if r.conn.path != PathAuto || !denied {
		return writeErrno(refused)
	}
	errno := r.char.Do(r.Command(), false)
	if Absent(errno) {
		return writeErrno(refused)
	}
	r.general = true
	return errno
}
