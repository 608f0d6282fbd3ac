package kernel

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// newRepeated returns REQ_NOTIFY_CQ.
func newRepeated(c *Conn) *Repeated {
	r := new(Repeated)
	r.Init(c, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, Bytes(&abi.ReqNotifyCQ{CQHandle: 3, SolicitedOnly: 1}), 0)
	return r
}

// TestRepeated: the same bytes are written each time, without an allocation; by ioctl alone nothing
// is written.
func TestRepeated(t *testing.T) {
	c, r := openPipe(t, PathAuto)
	f := newRepeated(c)
	b := make([]byte, 16)
	for _, long := range []bool{false, true, false} {
		if errno := f.Issue(long); errno != 0 {
			t.Fatal(errno)
		}
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatal(err)
		}
		same(t, b, words(uint32(23), uint16(4), uint16(0), uint32(3), uint32(1)))
	}
	f = newRepeated(openFile(t, os.DevNull, PathAuto))
	if n := testing.AllocsPerRun(100, func() { f.Issue(false); f.Issue(true) }); n != 0 {
		t.Errorf("issuing makes %v allocations, want 0", n)
	}
	c, _ = openPipe(t, PathIoctl)
	if errno := newRepeated(c).Issue(false); errno != syscall.ENOTTY {
		t.Errorf("ioctl only: %v, want ENOTTY", errno)
	}
}

// TestRepeatedResponse: the kernel gets the address of the room behind the command.
func TestRepeatedResponse(t *testing.T) {
	c, _ := openPipe(t, PathAuto)
	f := new(Repeated)
	f.Init(c, abi.IB_USER_VERBS_CMD_POST_SEND, Bytes(&abi.PostSend{}), len(Bytes(&abi.PostSendResp{})))
	hot = f // on the heap, as the QPs are that have one
	room := f.buf[f.size:]
	if got := binary.LittleEndian.Uint64(f.Request()[8:]); got != Addr(room) || len(room) < len(Bytes(&abi.PostSendResp{})) {
		t.Errorf("the response goes to %#x, %d bytes are at %#x", got, len(room), Addr(room))
	}
	if l, ok := f.Command().Legacy(); !ok || l.Number != abi.IB_USER_VERBS_CMD_POST_SEND || len(l.In) != len(Bytes(&abi.PostSend{})) || &l.Out[0] != &room[0] || len(l.Out) != 4 {
		t.Errorf("the command is %+v", l)
	}
}

// hot keeps a command.
var hot *Repeated

// TestRepeatedRefused: if write() is refused, the ioctl is tried; without an ioctl the caller gets
// the refusal.
func TestRepeatedRefused(t *testing.T) {
	c, _ := openPipe(t, PathAuto)
	f := newRepeated(c)
	for refused, want := range map[syscall.Errno]syscall.Errno{
		syscall.EACCES: ErrnoWriteDenied,
		syscall.EINVAL: syscall.EINVAL,
	} {
		if errno := f.retry(refused); errno != want || f.general {
			t.Errorf("after %v: %v and ioctl %v, want %v", refused, errno, f.general, want)
		}
	}
}

// TestRepeatedEINVAL: EINVAL is the answer to a command, unless it is known that write() is refused with it.
func TestRepeatedEINVAL(t *testing.T) {
	for known, want := range map[int32]bool{writeUnknown: false, writeWorks: false, writeRefused: true} {
		f := newRepeated(openFile(t, "/dev/urandom", PathAuto)) // EINVAL to every ioctl
		f.conn.written.Store(known)
		if errno := f.retry(syscall.EINVAL); errno != syscall.EINVAL || f.general != want {
			t.Errorf("write() %d: %v and ioctl %v, want %v", known, errno, f.general, want)
		}
	}
}

// TestRepeatedTakenOver: if write() is refused and the ioctl is there, the ioctl is used from then
// on. /dev/urandom has no ENOTTY: it answers EINVAL to every ioctl.
func TestRepeatedTakenOver(t *testing.T) {
	for _, path := range []Path{PathAuto, PathWrite} {
		f := newRepeated(openFile(t, "/dev/urandom", path))
		if errno := f.Issue(false); errno != 0 || f.general {
			t.Fatalf("write() is not the first choice: %v", errno)
		}
		if errno := f.retry(syscall.EINTR); errno != 0 || f.general {
			t.Errorf("path %d: a write() that was interrupted is not repeated: %v", path, errno)
		}
		want := map[Path]syscall.Errno{PathAuto: syscall.EINVAL, PathWrite: syscall.EPERM}[path]
		if errno := f.retry(syscall.EPERM); errno != want || f.general != (path == PathAuto) {
			t.Errorf("path %d: %v and ioctl %v, want %v", path, errno, f.general, want)
		}
		for _, long := range []bool{false, true} {
			if errno := f.Issue(long); (errno == syscall.EINVAL) != f.general {
				t.Errorf("path %d, ioctl %v: issued with %v", path, f.general, errno)
			}
		}
	}
}

// overriding is a device that embeds a CharDevice.
type overriding struct {
	*CharDevice
	got int
}

// Do implements [Device].
func (o *overriding) Do(*Command, bool) syscall.Errno {
	o.got++
	return 0
}

// TestRepeatedEmbedded: a repeated command passes by the Do of a device that embeds a CharDevice,
// unless nothing must be written.
func TestRepeatedEmbedded(t *testing.T) {
	for path, want := range map[Path]int{PathAuto: 0, PathWrite: 0, PathIoctl: 1} {
		d := &overriding{CharDevice: openFile(t, os.DevNull, path).dev.(*CharDevice)}
		if errno := newRepeated(NewConn(d, path, "rxe0")).Issue(false); errno != 0 || d.got != want {
			t.Errorf("path %d: %v, the device got %d commands, want %d", path, errno, d.got, want)
		}
	}
}

// counting is a device without a file that counts its commands and the channels that were closed.
type counting struct {
	Device
	commands int
	closed   []uint32
}

// Do implements [Device].
func (c *counting) Do(cmd *Command, _ bool) syscall.Errno {
	if l, ok := cmd.Legacy(); ok && l.Number == abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ {
		c.commands++
	}
	return 0
}

// EventsClosed implements [EventsCloser].
func (c *counting) EventsClosed(number uint32) { c.closed = append(c.closed, number) }

// TestRepeatedWithoutFile: a device without a file gets each command in Do, without an allocation.
func TestRepeatedWithoutFile(t *testing.T) {
	for _, path := range []Path{PathAuto, PathIoctl, PathWrite} {
		d := &counting{}
		r := newRepeated(NewConn(d, path, "soft0"))
		const runs = 100
		n := testing.AllocsPerRun(runs, func() {
			if errno := r.Issue(false) + r.Issue(true); errno != 0 {
				t.Error(errno)
			}
		})
		if n != 0 || d.commands != 2*(runs+1) { // AllocsPerRun runs once more, first
			t.Errorf("path %d: %v allocations and %d commands, want 0 and %d", path, n, d.commands, 2*(runs+1))
		}
	}
}

// repeating is a device in the process that takes doorbells as they are, or wants commands.
type repeating struct {
	Device
	takes         bool
	repeated, did int
}

func (d *repeating) Repeat(number uint32, in, out []byte) (syscall.Errno, bool) {
	if number == abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ && bytes.Equal(in, Bytes(&abi.ReqNotifyCQ{CQHandle: 3, SolicitedOnly: 1})) && len(out) == 0 {
		d.repeated++
	}
	return syscall.ENOSPC, d.takes
}

func (d *repeating) Do(*Command, bool) syscall.Errno {
	d.did++
	return syscall.ENOMEM
}

// TestRepeater: a device that takes a Repeated gets no Command, unless it wants one.
func TestRepeater(t *testing.T) {
	d := &repeating{takes: true}
	f := newRepeated(NewConn(d, PathAuto, "x"))
	if errno := f.Issue(false); errno != syscall.ENOSPC || d.repeated != 1 || d.did != 0 || f.invoke != nil {
		t.Errorf("%v, %d repeated, %d commands", errno, d.repeated, d.did)
	}
	d.takes = false
	if errno := f.Issue(true); errno != syscall.ENOMEM || d.repeated != 2 || d.did != 1 {
		t.Errorf("a device that wants a command: %v, %d repeated, %d commands", errno, d.repeated, d.did)
	}
}
