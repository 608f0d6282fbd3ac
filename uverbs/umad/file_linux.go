package umad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/umad/internal/abi"
)

// hdrSize is the size of the header that precedes a MAD in the file.
const hdrSize = 64

// firstBuffer holds the header and a MAD of any kind of device; those of Omni-Path have 2048 bytes.
const firstBuffer = hdrSize + 2048

// file is an open /dev/infiniband/umadN, as a Transport.
type file struct {
	f    *os.File
	wake *os.File // an eventfd, which Interrupt makes readable
	raw  syscall.RawConn

	fds [2]unix.PollFd // of f and wake, for Receive
	buf []byte         // of Receive
}

// openFile opens the file of a port.
func openFile(dev netlinkrdma.CharDev) (Transport, error) {
	if dev.ABI != abi.IB_USER_MAD_ABI_VERSION {
		return nil, fmt.Errorf("%s has ABI version %d, this library supports %d: %w", dev.Path(), dev.ABI, abi.IB_USER_MAD_ABI_VERSION, errors.ErrUnsupported)
	}
	f, err := openNode(dev, dev.Path())
	if err != nil {
		return nil, err
	}
	return newFile(f)
}

// newFile returns the transport of an open file, which it closes if it fails.
func newFile(f *os.File) (*file, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	// A read that finds nothing returns at once: only poll waits, which Interrupt ends.
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		f.Close()
		unix.Close(wake)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &file{
		f: f, wake: os.NewFile(uintptr(wake), "eventfd"), raw: raw, buf: make([]byte, firstBuffer),
		fds: [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}},
	}, nil
}

// openNode opens the node of a character device at a path, and makes sure that it is one. The open
// does not block.
func openNode(dev netlinkrdma.CharDev, path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w%s", &fs.PathError{Op: "open", Path: path, Err: err}, openHint(dev, err))
	}
	// Package os registers files that do not block with Go's netpoller. Then each message would wake the thread
	// that sleeps there, too.
	err = unix.SetNonblock(fd, false)
	f := os.NewFile(uintptr(fd), path)
	if err != nil {
		f.Close()
		return nil, err
	}
	var st unix.Stat_t
	raw, err := f.SyscallConn()
	if err == nil {
		var statErr error
		err = raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &st) })
		err = errors.Join(err, statErr)
	}
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != dev.Major || unix.Minor(st.Rdev) != dev.Minor) {
		err = fmt.Errorf("%s is not the kernel's device %d:%d (a stale node): %w", path, dev.Major, dev.Minor, fs.ErrNotExist)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openHint returns what to do about a failed open.
func openHint(dev netlinkrdma.CharDev, err error) string {
	path := dev.Path()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf(" (no such node; in a container: --device %s, else run udev or mknod -m 600 %s c %d %d)", path, path, dev.Major, dev.Minor)
	case errors.Is(err, syscall.EPERM):
		return " (the device belongs to another network namespace, or a device control group forbids it; in a container: --device " + path + ")"
	case errors.Is(err, syscall.EACCES):
		mode := ""
		if st, err := os.Stat(path); err == nil {
			mode = fmt.Sprintf("mode %v; ", st.Mode().Perm())
		}
		return fmt.Sprintf(" (%sthis process is user %d; only root can open it unless a udev rule says otherwise)", mode, os.Geteuid())
	case errors.Is(err, syscall.EAGAIN):
		return " (another program has it open)"
	}
	return ""
}

// Register implements Transport.
func (f *file) Register(r Registration) (uint32, error) {
	req := abi.RegReq2{QPN: r.QPN, MgmtClass: uint8(r.Class), MgmtClassVersion: r.Version, Oui: r.OUI}
	for _, m := range r.Methods {
		req.MethodMask[m/64] |= 1 << (m % 64)
	}
	if r.RMPP {
		req.RmppVersion = 1
	}
	err := f.call(func(fd uintptr) syscall.Errno { return registerAgent(fd, &req) })
	return req.ID, err
}

// Unregister implements Transport.
func (f *file) Unregister(agent uint32) error {
	return f.call(func(fd uintptr) syscall.Errno { return unregisterAgent(fd, &agent) })
}

// call issues a system call while the file is open.
func (f *file) call(call func(fd uintptr) syscall.Errno) error {
	var errno syscall.Errno
	if f.raw.Control(func(fd uintptr) { errno = call(fd) }) != nil {
		return os.ErrClosed
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// Send implements Transport.
func (f *file) Send(m *Message) error {
	b := make([]byte, hdrSize, hdrSize+len(m.MAD))
	*header(b) = headerOf(m)
	_, err := f.f.Write(append(b, m.MAD...))
	return err
}

// headerOf returns the header of a message to send.
func headerOf(m *Message) abi.Hdr {
	a := &m.Addr
	h := abi.Hdr{
		ID: m.Agent, TimeoutMs: uint32(min((m.Timeout+time.Millisecond-1)/time.Millisecond, math.MaxInt32)),
		SL: a.SL, PathBits: a.PathBits, PKeyIndex: a.PKeyIndex,
	}
	h.QPN.Put(a.QPN)
	h.QKey.Put(a.QKey)
	h.LID.Put(a.LID)
	if a.GRH {
		h.GRHPresent, h.GIDIndex, h.HopLimit, h.TrafficClass, h.GID = 1, a.GIDIndex, a.HopLimit, a.TrafficClass, a.GID
		h.FlowLabel.Put(a.FlowLabel)
	}
	return h
}

// Receive implements Transport. It waits in the thread of its caller, and not in Go's netpoller, from which another
// thread would have to wake it.
func (f *file) Receive(wait time.Duration) (*Message, error) {
	_, err := unix.Poll(f.fds[:], int(min((wait+time.Millisecond-1)/time.Millisecond, math.MaxInt32)))
	switch {
	case err == syscall.EINTR:
		return nil, nil
	case err != nil:
		return nil, os.NewSyscallError("poll", err)
	case f.fds[0].Revents != 0:
	case f.fds[1].Revents != 0:
		var count [8]byte
		_, err := f.wake.Read(count[:])
		return nil, err
	default:
		return nil, nil
	}
	return f.read()
}

// read returns the message that has come, or nil if there is none.
func (f *file) read() (*Message, error) {
	for {
		n, err := unix.Read(int(f.fds[0].Fd), f.buf)
		switch err {
		case nil:
			return received(f.buf[:n]), nil
		case syscall.EAGAIN:
			return nil, nil
		case syscall.EINTR:
		case syscall.ENOSPC:
			// A message of several packets that does not fit. The kernel keeps it and has stored how long it is.
			f.buf = make([]byte, larger(len(f.buf), header(f.buf).Length))
		default:
			return nil, err
		}
	}
}

// Interrupt implements Transport.
func (f *file) Interrupt() { f.wake.Write(binary.NativeEndian.AppendUint64(nil, 1)) }

// larger returns the size of the buffer for a message that does not fit into one of the given size.
func larger(size int, length uint32) int { return max(2*size, int(length)) }

// received decodes what was read from the file. It returns nil if that is too short.
func received(b []byte) *Message {
	if len(b) < hdrSize {
		return nil
	}
	h := header(b)
	m := &Message{
		Agent: h.ID, TimedOut: h.Status != 0, MAD: append([]byte(nil), b[hdrSize:]...),
		Addr: Addr{LID: h.LID.Get(), QPN: h.QPN.Get(), SL: h.SL, PathBits: h.PathBits, PKeyIndex: h.PKeyIndex},
	}
	if h.GRHPresent != 0 {
		m.Addr.GRH, m.Addr.GID, m.Addr.GIDIndex, m.Addr.HopLimit = true, h.GID, h.GIDIndex, h.HopLimit
		m.Addr.TrafficClass, m.Addr.FlowLabel = h.TrafficClass, h.FlowLabel.Get()
	}
	return m
}

// Close implements Transport.
func (f *file) Close() error { return errors.Join(f.f.Close(), f.wake.Close()) }
