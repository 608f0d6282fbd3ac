package umad

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// fullAddr has a value in every field.
var fullAddr = Addr{
	LID: 0x1234, QPN: 1, QKey: 0x80010000, SL: 5, PathBits: 6, PKeyIndex: 2,
	GRH: true, GID: mad.GID{0: 0xfe, 1: 0x80, 15: 1}, GIDIndex: 3, HopLimit: 64, TrafficClass: 7, FlowLabel: 0xabcde,
}

// TestHeader: the header in the file, byte by byte. Numbers in host order are those of a little-endian
// host, the only kind that this library supports.
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
	if m = received(b); !m.TimedOut || m.Addr.GRH || m.Addr.GID != (mad.GID{}) {
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

// TestFileReceive: Receive of the kernel's transport on a socket that behaves as the file. It returns a message, and ends with
// its time and by Interrupt, in all kinds of waits.
func TestFileReceive(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(ends[1])
	f, err := newFile(os.NewFile(uintptr(ends[0]), "socket"))
	must(t, err)
	message := make([]byte, hdrSize+mad.Size)
	header(message).ID = 9
	kinds := []struct {
		name   string
		before bool // the wait before was successful
		wait   time.Duration
		busy   bool // another goroutine keeps a processor
	}{
		{"first", false, briefWait, false}, {"brief", true, briefWait, false}, {"brief, not alone", true, briefWait, true}, {"long", true, time.Minute, false},
	}
	for _, k := range kinds {
		keepsProcessor.Store(k.busy)
		f.brief = k.before
		_, err := unix.Write(ends[1], message)
		must(t, err)
		if m, err := f.Receive(k.wait); err != nil || m == nil || m.Agent != 9 || len(m.MAD) != mad.Size {
			t.Errorf("%s: %+v, %v", k.name, m, err)
		}
		if f.brief != (k.before || k.wait <= briefWait) {
			t.Errorf("%s: after a message, the next wait may keep its processor: %t", k.name, f.brief)
		}
		for _, late := range []time.Duration{0, time.Millisecond} {
			f.brief = k.before
			time.AfterFunc(late, f.Interrupt)
			for begin := time.Now(); ; {
				m, err := f.Receive(k.wait)
				if err != nil || m != nil {
					t.Fatalf("%s, interrupted: %+v, %v", k.name, m, err)
				}
				if f.fds[1].Revents != 0 {
					break
				}
				if time.Since(begin) > 30*time.Second {
					t.Fatalf("%s: Receive is not interrupted", k.name)
				}
			}
			if n, err := unix.Poll(f.fds[:], 0); n != 0 || err != nil {
				t.Errorf("%s: the interrupt is not over: %d, %v", k.name, n, err)
			}
		}
		if k.wait <= briefWait {
			f.brief = true
			for f.brief { // a signal of the scheduler may end a wait
				if m, err := f.Receive(k.wait); err != nil || m != nil {
					t.Fatalf("%s, no message: %+v, %v", k.name, m, err)
				}
			}
		}
		if keepsProcessor.Swap(false) != k.busy {
			t.Errorf("%s: another goroutine keeps a processor: %t, want %t", k.name, !k.busy, k.busy)
		}
	}
	must(t, f.Close())
	f.Interrupt() // has no effect on a file that has the descriptor now
}
