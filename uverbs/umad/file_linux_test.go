package umad

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// fullAddr has a value in every field.
var fullAddr = Addr{
	LID: 0x1234, QPN: 1, QKey: 0x80010000, SL: 5, PathBits: 6, PKeyIndex: 2,
	GRH: true, GID: ib.GID{0: 0xfe, 1: 0x80, 15: 1}, GIDIndex: 3, HopLimit: 64, TrafficClass: 7, FlowLabel: 0xabcde,
}

// TestHeader: the header in the file, byte by byte. Numbers in host order are little-endian,
// because the library supports no other hosts.
func TestHeader(t *testing.T) {
	b := make([]byte, hdrSize)
	*header(b) = headerOf(&Message{Agent: 9, Timeout: 1500*time.Microsecond + 1, Addr: fullAddr})
	want := "09000000" + "00000000" + "02000000" + "00000000" + "00000000" + "00000001" + "80010000" + "1234" + "0506" + "01034007" +
		"fe800000000000000000000000000001" + "000abcde" + "0200" + "000000000000"
	if hex.EncodeToString(b) != want {
		t.Errorf("%x, want %s", b, want)
	}
	without := fullAddr
	without.QKey = 0 // it does not arrive
	m := received(append(b, 1, 2, 3))
	if diff := cmp.Diff(&Message{Agent: 9, Addr: without, MAD: []byte{1, 2, 3}}, m); diff != "" {
		t.Error(diff)
	}
	header(b).Status = uint32(syscall.ETIMEDOUT)
	header(b).GRHPresent = 0
	if m = received(b); !m.TimedOut || m.Addr.GRH || m.Addr.GID != (ib.GID{}) {
		t.Errorf("%+v", m)
	}
}

// TestReceivedLengths: whatever the file returns, and whatever length the header gives, nothing is read
// out of bounds.
func TestReceivedLengths(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, hdrSize+mad.Size)
	for n := range len(b) + 1 {
		if m := received(b[:n:n]); (m != nil) != (n >= hdrSize) || m != nil && len(m.MAD) != n-hdrSize {
			t.Fatalf("%d bytes: %+v", n, m)
		}
	}
	for _, tt := range []struct {
		length uint32
		want   int
	}{{0, 4224}, {4225, 4225}, {1 << 20, 1 << 20}} {
		binary.NativeEndian.PutUint32(b[16:], tt.length)
		if n := larger(firstBuffer, header(b).Length); n != tt.want {
			t.Errorf("length %d: buffer of %d bytes, want %d", tt.length, n, tt.want)
		}
	}
}

// TestOpenHints: what the errors say of a node that is missing, stale, or closed to the user.
func TestOpenHints(t *testing.T) {
	dev := netlinkrdma.CharDev{Name: "umad99", Major: 231, Minor: 99, ABI: 5}
	if _, err := openFile(dev); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "mknod -m 600 /dev/infiniband/umad99 c 231 99") {
		t.Error(err)
	}
	if _, err := openNode(dev, "/dev/null"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "stale") {
		t.Error(err)
	}
	for errno, want := range map[syscall.Errno]string{syscall.EACCES: "udev", syscall.EPERM: "network namespace", syscall.EAGAIN: "another program", syscall.EIO: ""} {
		if hint := openHint(dev, errno); !strings.Contains(hint, want) || (want == "") != (hint == "") {
			t.Errorf("%v: %q", errno, hint)
		}
	}
	dev.ABI = 6
	if _, err := openFile(dev); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "ABI version 6") {
		t.Error(err)
	}
	if _, err := Open("no-such-device", 1); err == nil || !strings.Contains(err.Error(), "no-such-device port 1: open") {
		t.Error(err)
	}
	if _, err := OpenIsSM("no-such-device", 1); err == nil || !strings.Contains(err.Error(), "set IsSM") {
		t.Error(err)
	}
}

// socketFile returns the kernel's transport with a socket in place of the file, and the socket's other end.
func socketFile(t *testing.T) (f *file, peer int) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(ends[1]) })
	f, err = newFile(os.NewFile(uintptr(ends[0]), "socket"))
	must(t, err)
	return f, ends[1]
}

// TestFileReceive: Receive returns a message, and nothing when its time is over or it is interrupted.
func TestFileReceive(t *testing.T) {
	f, peer := socketFile(t)
	message := make([]byte, hdrSize+mad.Size)
	header(message).ID = 9
	for _, wait := range []time.Duration{0, briefWait, time.Hour} {
		_, err := unix.Write(peer, message)
		must(t, err)
		if m, err := f.Receive(wait); err != nil || m == nil || m.Agent != 9 || len(m.MAD) != mad.Size {
			t.Errorf("wait of %v: %+v, %v", wait, m, err)
		}
	}
	calls := 0
	for begin := time.Now(); time.Since(begin) < 30*time.Millisecond; calls++ { // a signal may end a wait
		if m, err := f.Receive(30 * time.Millisecond); err != nil || m != nil {
			t.Fatalf("no message: %+v, %v", m, err)
		}
		if calls > 20 {
			t.Fatal("Receive does not wait")
		}
	}
	if m, err := f.read(); err != nil || m != nil {
		t.Errorf("a read without a message: %+v, %v", m, err)
	}
	for _, late := range []time.Duration{0, time.Millisecond} {
		time.AfterFunc(late, f.Interrupt)
		for f.fds[1].Revents = 0; f.fds[1].Revents == 0; {
			if m, err := f.Receive(time.Hour); err != nil || m != nil {
				t.Fatalf("interrupted: %+v, %v", m, err)
			}
		}
	}
	must(t, f.Close())
}

// TestFileInterrupts: any number of interrupts end one wait.
func TestFileInterrupts(t *testing.T) {
	f, _ := socketFile(t)
	for range 1000 {
		f.Interrupt()
	}
	m, err := f.Receive(time.Hour)
	if m != nil || err != nil || f.fds[1].Revents == 0 {
		t.Errorf("%+v, %v", m, err)
	}
	for {
		n, err := unix.Poll(f.fds[:], 0)
		if err == unix.EINTR {
			continue
		}
		if n != 0 || err != nil {
			t.Errorf("the interrupts are not over: %d, %v", n, err)
		}
		break
	}
	must(t, f.Close())
	var pipe [2]int // gets the numbers that the files had
	must(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	f.Interrupt()
	if n, err := unix.Read(pipe[0], make([]byte, 8)); err != unix.EAGAIN {
		t.Errorf("an interrupt after Close went to another file: %d, %v", n, err)
	}
}

// TestFileClosed: what is called after Close says so.
func TestFileClosed(t *testing.T) {
	f, _ := socketFile(t)
	must(t, f.Close())
	_, err := f.Register(Registration{})
	for i, err := range []error{err, f.Unregister(1), f.Send(&Message{})} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}
