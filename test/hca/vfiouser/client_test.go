package vfiouser

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	testBAR     = 1 << 20
	testVectors = 4
)

// device remembers what was done to it.
type device struct {
	mu     sync.Mutex
	writes []string
	resets int
}

func (d *device) ReadBAR(bar int, off uint64, p []byte) {
	for i := range p {
		p[i] = byte(off) + byte(i)
	}
}

func (d *device) WriteBAR(bar int, off uint64, p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes = append(d.writes, string(le.AppendUint64(nil, off))+string(p))
}

func (d *device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resets++
}

// client plays the monitor.
type client struct {
	t     *testing.T
	conn  *net.UnixConn
	srv   *Server
	dev   *device
	id    uint16
	ended chan error
}

func connect(t *testing.T) *client {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var conns [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		must(t, err)
		conns[i] = c.(*net.UnixConn)
	}
	cfg := Config{ID: ID{Vendor: 0x15b3, Device: 0x1018, Class: 0x020000}, Vectors: testVectors, Table: 0x2000, PBA: 0x3000}
	cfg.BARs[0] = testBAR
	c := &client{t: t, conn: conns[0], srv: New(cfg), dev: &device{}, ended: make(chan error, 1)}
	go func() {
		err := c.srv.Serve(conns[1], c.dev)
		conns[1].Close() // before anybody counts what is open
		c.ended <- err
	}()
	t.Cleanup(func() {
		conns[0].Close()
		if err := c.srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// send sends a message, with descriptors if there are any.
func (c *client) send(cmd command, flags uint32, body []byte, fds ...int) {
	c.t.Helper()
	c.id++
	h := header{id: c.id, cmd: cmd, flags: flags}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.conn.WriteMsgUnix(append(h.appendTo(nil, len(body)), body...), oob, nil); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads the answer to the last message.
func (c *client) answer() ([]byte, unix.Errno) {
	c.t.Helper()
	var head [headerSize]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		c.t.Fatal(err)
	}
	h := parseHeader(&head)
	body := make([]byte, h.size-headerSize)
	if _, err := io.ReadFull(c.conn, body); err != nil {
		c.t.Fatal(err)
	}
	if h.id != c.id || h.flags&flagReply == 0 || (h.flags&flagError != 0) != (h.errno != 0) {
		c.t.Fatalf("answer %+v to message %d", h, c.id)
	}
	return body, unix.Errno(h.errno)
}

// call sends a message and reads the answer.
func (c *client) call(cmd command, body []byte, fds ...int) ([]byte, unix.Errno) {
	c.t.Helper()
	c.send(cmd, 0, body, fds...)
	return c.answer()
}

// must is call for what has to be answered well.
func (c *client) must(cmd command, body []byte, fds ...int) []byte {
	c.t.Helper()
	b, errno := c.call(cmd, body, fds...)
	if errno != 0 {
		c.t.Fatalf("command %d: %v", cmd, errno)
	}
	return b
}

// refused is call for what has to be refused.
func (c *client) refused(want unix.Errno, cmd command, body []byte, fds ...int) {
	c.t.Helper()
	if _, errno := c.call(cmd, body, fds...); errno != want {
		c.t.Errorf("command %d: %v, want %v", cmd, errno, want)
	}
}

// hangUp ends the connection and gives what Serve said.
func (c *client) hangUp() error {
	c.conn.Close()
	return <-c.ended
}

func words(v ...uint32) []byte {
	var b []byte
	for _, w := range v {
		b = le.AppendUint32(b, w)
	}
	return b
}

func dmaMap(flags uint32, offset, addr, size uint64) []byte {
	b := words(32, flags)
	for _, v := range []uint64{offset, addr, size} {
		b = le.AppendUint64(b, v)
	}
	return b
}

func dmaUnmap(flags uint32, addr, size uint64) []byte {
	return le.AppendUint64(le.AppendUint64(words(24, flags), addr), size)
}

func access(off uint64, region, count uint32, data ...byte) []byte {
	return append(append(le.AppendUint64(nil, off), words(region, count)...), data...)
}

// memfd makes a file as a monitor's memory is one.
func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Ftruncate(fd, size))
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// raised reads an eventfd: how often it was signalled since the last time.
func raised(t *testing.T, fd int) uint64 {
	t.Helper()
	var b [8]byte
	_, err := unix.Read(fd, b[:])
	if errors.Is(err, unix.EAGAIN) {
		return 0
	}
	must(t, err)
	return le.Uint64(b[:])
}

// openFDs counts the descriptors of this process.
func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// must fails a test on an error.
func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}
