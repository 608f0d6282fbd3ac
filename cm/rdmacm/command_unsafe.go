package rdmacm

import (
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/interpose"
)

// file is an open /dev/infiniband/rdma_cm, or its counterpart in this process. Its commands are safe for concurrent
// use.
//
// Commands use the file descriptor directly, and close excludes them with a lock. That costs less
// than RawConn.Control and the closure that it needs.
type file struct {
	f     *os.File
	raw   syscall.RawConn
	local commander // carries out the commands; nil for the kernel

	thread *credThread // issues the commands, nil if any thread may

	open sync.RWMutex // held for reading by commands
	fd   int          // guarded by open: -1 once the file is closed
}

// commander carries out the commands of a file instead of the kernel. The descriptor of the file is
// readable while there are events.
type commander = interpose.Commander

// newFile makes a file that works with Go's netpoller.
func newFile(fd int, name string) (*file, error) {
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &file{f: f, raw: raw, fd: fd}, nil
}

// close closes the file after the commands in progress.
func (f *file) close() error {
	f.open.Lock()
	defer f.open.Unlock()
	f.fd = -1
	if f.local != nil {
		f.local.Close()
	}
	err := f.f.Close() // waits for the goroutine that reads events
	if f.thread != nil {
		f.thread.stop()
	}
	return err
}

// message is a command as it is written to the file.
type message[Q any] struct {
	hdr abi.CmdHdr
	req Q
}

// newMessage makes a command whose answer has out bytes.
func newMessage[Q any](cmd uint32, req *Q, out uintptr) *message[Q] {
	return &message[Q]{hdr: abi.CmdHdr{Cmd: cmd, In: uint16(unsafe.Sizeof(*req)), Out: uint16(out)}, req: *req}
}

// isShort reports whether a command takes the kernel less time than it takes to tell Go's scheduler
// about it. Other commands may wait for something that the kernel does with the ID.
func isShort(cmd uint32) bool {
	switch cmd {
	case abi.RDMA_USER_CM_CMD_CREATE_ID, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR,
		abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, abi.RDMA_USER_CM_CMD_QUERY, abi.RDMA_USER_CM_CMD_QUERY_ROUTE, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR,
		abi.RDMA_USER_CM_CMD_CONNECT, abi.RDMA_USER_CM_CMD_ACCEPT, abi.RDMA_USER_CM_CMD_GET_EVENT:
		return true
	}
	return false
}

// rawCommand is a message without its type, and the memory for the answer.
type rawCommand struct {
	hdr *abi.CmdHdr // header of the message, followed by the request
	out unsafe.Pointer
}

// raw returns the message as a rawCommand.
func (m *message[Q]) raw(out unsafe.Pointer) rawCommand { return rawCommand{&m.hdr, out} }

// write issues a command.
func (f *file) write(fd uintptr, o rawCommand) syscall.Errno {
	const head = unsafe.Sizeof(*o.hdr)
	if f.local != nil {
		return f.doLocal(o)
	}
	errno := f.writeKernel(fd, o, head+uintptr(o.hdr.In))
	runtime.KeepAlive(o)
	if errno == syscall.EACCES {
		credsRefused.Store(true)
	}
	return errno
}

// doLocal has a command carried out in this process.
func (f *file) doLocal(o rawCommand) syscall.Errno {
	in := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(o.hdr), unsafe.Sizeof(*o.hdr))), o.hdr.In)
	return f.local.Do(o.hdr.Cmd, in, unsafe.Slice((*byte)(o.out), o.hdr.Out))
}

// command issues a command without an answer.
func command[Q any](f *file, cmd uint32, req *Q) syscall.Errno {
	return f.issue(newMessage(cmd, req, 0).raw(nil))
}

// issueNoSignals is issue for a command that may take long and that a signal must not interrupt.
// Go's scheduler uses signals to preempt goroutines. On iWARP the kernel makes a TCP connection
// during a command: a signal aborts it, and the command starts again with a port that is still in
// use. If the peer is soft iWARP, it mistakes the aborted connection for the end of its listener.
func (f *file) issueNoSignals(o rawCommand) syscall.Errno {
	f.open.RLock()
	defer f.open.RUnlock()
	switch {
	case f.fd < 0:
		return errClosedFile
	case f.local != nil:
		return f.write(uintptr(f.fd), o)
	}
	var errno syscall.Errno
	f.thread.run(func() { errno = writeNoSignals(f.fd, o) })
	return errno
}

// query issues a command with an answer. The caller has put the address of resp into the request.
func query[Q, R any](f *file, cmd uint32, req *Q, resp *R) syscall.Errno {
	return f.issue(newMessage(cmd, req, unsafe.Sizeof(*resp)).raw(unsafe.Pointer(resp)))
}

// ask is query for a command about the ID, or returns errClosedID.
func ask[Q, R any](id *ID, cmd uint32, req *Q, resp *R) syscall.Errno {
	return id.issue(newMessage(cmd, req, unsafe.Sizeof(*resp)).raw(unsafe.Pointer(resp)))
}

// queryList queries the ID. The answer of type R is followed by room for n elements of type T.
func queryList[R, T any](id *ID, op string, option uint32, n int) (*R, error) {
	var r R
	var t T
	size := unsafe.Sizeof(r) + uintptr(n)*unsafe.Sizeof(t)
	buf := make([]uint64, (size+7)/8) // aligned for both
	resp := (*R)(unsafe.Pointer(unsafe.SliceData(buf)))
	req := abi.Query{Response: abi.PtrTo(resp), ID: id.handle, Option: option}
	errno := id.issue(newMessage(abi.RDMA_USER_CM_CMD_QUERY, &req, size).raw(unsafe.Pointer(resp)))
	return resp, opError(op, "", errno)
}

// These mean that the command was not given, because the file or the ID is closed. No errno of the
// kernel has these numbers.
const (
	errClosedFile = syscall.Errno(1<<20 + iota)
	errClosedID
)

// issue issues a command unless the file is closed.
func (f *file) issue(o rawCommand) syscall.Errno {
	f.open.RLock()
	defer f.open.RUnlock()
	if f.fd < 0 {
		return errClosedFile
	}
	return f.write(uintptr(f.fd), o)
}

// queryAbout is query for a request that contains the descriptor of another file, which stays open
// during the command.
func queryAbout[Q, R any](f, other *file, cmd uint32, req func(fd uint32) Q, resp *R) syscall.Errno {
	other.open.RLock()
	defer other.open.RUnlock()
	if other.fd < 0 {
		return errClosedFile
	}
	q := req(uint32(other.fd))
	return query(f, cmd, &q, resp)
}

// eventReader has what a channel needs to read events again and again.
type eventReader struct {
	mu     sync.Mutex // held from the reading of an event until it is delivered, and by Migrate
	resp   abi.EventResp
	cmd    *message[abi.GetEvent]
	read   func(fd uintptr) bool // reads one event
	errno  syscall.Errno         // the result of read
	follow *readCanceler         // is started by read if there is no event
}

func newEventReader(f *file) *eventReader {
	r := &eventReader{}
	r.read = func(fd uintptr) bool {
		r.mu.Lock()
		if r.errno = f.write(fd, r.cmd.raw(unsafe.Pointer(&r.resp))); r.errno == 0 {
			return true // and keep mu
		}
		r.mu.Unlock()
		if r.errno == syscall.EAGAIN {
			r.follow.start()
		}
		return r.errno != syscall.EAGAIN && r.errno != syscall.EINTR
	}
	r.cmd = newMessage(abi.RDMA_USER_CM_CMD_GET_EVENT, &abi.GetEvent{Response: abi.PtrTo(&r.resp)}, unsafe.Sizeof(r.resp))
	return r
}

// event waits for the next event, until the deadline of the file. It starts follow before it waits.
// The result is valid until the next call. If there is one, the caller unlocks r.mu after its delivery.
func (f *file) event(r *eventReader, follow *readCanceler) (*abi.EventResp, error) {
	r.resp, r.follow = abi.EventResp{}, follow
	err := f.raw.Read(r.read)
	r.follow = nil
	if err != nil {
		return nil, err
	}
	if r.errno != 0 {
		return nil, opError("read event", "", r.errno)
	}
	return &r.resp, nil
}

// Address families of Linux, which the commands use on every system.
const (
	afInet  = 2  // AF_INET
	afInet6 = 10 // AF_INET6
)

// sockaddr returns an IP address and a port in the kernel's layout. The scope is the index of the
// network interface of a link-local address.
func sockaddr(ip netip.Addr, port uint16, scope uint32) (s abi.KernelSockaddrStorage, size uint16) {
	b := s.Data()
	binary.BigEndian.PutUint16(b[:], port)
	if ip.Is4() {
		*s.SsFamily() = afInet
		*(*[4]byte)(b[2:]) = ip.As4()
		return s, 16 // struct sockaddr_in
	}
	*s.SsFamily() = afInet6
	*(*[16]byte)(b[6:]) = ip.As16()
	binary.NativeEndian.PutUint32(b[22:], scope)
	return s, 28 // struct sockaddr_in6
}

// getPort loads a port in network byte order.
func getPort(from *uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(from))
	return uint16(b[0])<<8 | uint16(b[1])
}

// address decodes an address of the kernel. It returns the zero value if there is none.
func address(s *abi.KernelSockaddrStorage, space PortSpace) Addr {
	a := Addr{Space: space}
	b := s.Data()
	switch *s.SsFamily() {
	case afIB:
		return gidAddress(s, space)
	case afInet:
		a.IP, a.Port = netip.AddrFrom4([4]byte(b[2:])), binary.BigEndian.Uint16(b[:])
	case afInet6:
		ip := netip.AddrFrom16([16]byte(b[6:]))
		a.IP, a.Port = withZone(ip, binary.NativeEndian.Uint32(b[22:])), binary.BigEndian.Uint16(b[:])
	}
	return a
}

// setOption sets an option of the ID.
func setOption[T any](id *ID, op string, level, name uint32, value *T) error {
	return do(id, op, nil, abi.RDMA_USER_CM_CMD_SET_OPTION, &abi.SetOption{
		Optval: abi.PtrTo(value), ID: id.handle, Level: level, Optname: name, Optlen: uint32(unsafe.Sizeof(*value)),
	})
}
