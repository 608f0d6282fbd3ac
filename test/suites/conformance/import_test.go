package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// imported imports a device. A software device has no file; its handles can be used on itself.
func imported(t *testing.T, dev *uverbs.Device) *uverbs.Device {
	t.Helper()
	f, err := dev.File()
	if rig.Soft {
		errorIs(t, err, errors.ErrUnsupported, "File of a software device")
		return dev
	}
	must(t, err)
	imp, err := uverbs.ImportDevice(f)
	must(t, f.Close())
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, imp)
	return imp
}

// readWrite is what the peer may do with a shared region.
const readWrite = uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead

// importedPair returns two connected sides in a PD, with memory of their own.
func importedPair(t *testing.T, pd *uverbs.PD) (a, b *side) {
	t.Helper()
	var sides [2]*side
	for i := range sides {
		s := &side{dev: pd.Device(), pd: pd, buf: newBuffer(t, bufferSize)}
		var err error
		s.mr, err = pd.RegMR(s.buf, uverbs.MROptions{Access: readWrite})
		must(t, err)
		closeLater(t, s.mr)
		s.ch, err = s.dev.CreateCompChannel()
		must(t, err)
		closeLater(t, s.ch)
		s.cq, err = s.dev.CreateCQ(uverbs.CQOptions{Size: 64, Channel: s.ch})
		must(t, err)
		closeLater(t, s.cq)
		s.qp, err = asSide(pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: s.cq, RecvCQ: s.cq}))
		must(t, err, initQP(s.qp.QP))
		closeLater(t, s.qp)
		sides[i] = s
	}
	connect(t, sides[0], sides[1])
	return sides[0], sides[1]
}

// useShared sends from a region by its lkey, all of the text and small parts, alone and in a list, and
// writes to it by its rkey, from QPs of the same PD. The text in the region is in upper case
// afterwards. The region is long enough for text.
func useShared(t *testing.T, a, b *side, mr *uverbs.MR, text string) {
	t.Helper()
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 4096)), b.cq.Notify(), a.qp.PostSend(send(2, mr.SGE(0, len(text)))))
	a.want(t, 2, uverbs.WCSend)
	if _, err := b.ch.Next(withDeadline(t)); err != nil {
		t.Error(err)
	}
	b.want(t, 1, uverbs.WCRecv)
	b.holds(t, 0, []byte(text))
	var list []uverbs.SendWR
	for i := range 4 {
		must(t, b.qp.PostRecv(uint64(10+i), b.mr.SGE(512*i, 512)))
		list = append(list, send(uint64(20+i), mr.SGE(i, i+1)))
	}
	must(t, a.qp.PostSend(list...))
	for i := range 4 {
		a.want(t, uint64(20+i), uverbs.WCSend)
		from := i
		if wc := b.want(t, uint64(10+i), uverbs.WCRecv); rig.EFA() { // any of the list may come first
			from = int(wc.ByteLen) - 1
		}
		b.holds(t, 512*i, []byte(text[from:2*from+1]))
	}
	copy(a.buf.Bytes(), strings.ToUpper(text))
	wr := send(3, a.mr.SGE(0, len(text)))
	wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, mr.Addr(), mr.RKey()
	must(t, a.qp.PostSend(wr))
	a.want(t, 3, uverbs.WCRDMAWrite)
	wr = send(4, a.mr.SGE(1024, len(text)))
	wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, mr.Addr(), mr.RKey()
	must(t, a.qp.PostSend(wr))
	a.want(t, 4, uverbs.WCRDMARead)
	a.holds(t, 1024, []byte(strings.ToUpper(text)))
}

// TestImport uses a PD and a region of one Device on another one that shares its context. Objects
// that the other one closes stay here.
func TestImport(t *testing.T) {
	testenv.Guest(t)
	t.Setenv("RDMAABI", "auto")
	dev := openDevice(t, deviceName)
	owner := newSide(t, dev, uverbs.QPOptions{})
	const text = "registered here, used there"
	copy(owner.buf.Bytes(), text)
	imp := imported(t, dev)
	if imp.Name() != dev.Name() || imp.Attr().MaxQP != dev.Attr().MaxQP {
		t.Errorf("%s was imported as %s", dev.Name(), imp.Name())
	}
	t.Run("use", func(t *testing.T) {
		pd, err := imp.ImportPD(owner.pd.Handle())
		must(t, err)
		closeLater(t, pd)
		mr, err := pd.ImportMR(owner.mr.Handle(), uverbs.ImportMROptions{Memory: owner.buf.Bytes()})
		must(t, err)
		closeLater(t, mr)
		if mr.LKey() != owner.mr.LKey() || mr.RKey() != owner.mr.RKey() || mr.Addr() != owner.mr.Addr() || mr.Len() != owner.mr.Len() {
			t.Errorf("the imported MR has other keys or another place: %#x %#x %#x %d", mr.LKey(), mr.RKey(), mr.Addr(), mr.Len())
		}
		a, b := importedPair(t, pd)
		useShared(t, a, b, mr, text)
	})
	// The owner's objects outlive the imported ones.
	if attr, err := owner.mr.Query(); err != nil || attr.LKey != owner.mr.LKey() {
		t.Errorf("the MR after it was closed as an imported one: %+v, %v", attr, err)
	}
	owner.holds(t, 0, []byte(strings.ToUpper(text)))
	connect(t, owner, newSide(t, dev, uverbs.QPOptions{}))
}

// TestImportRefused: handles of nothing, and of something else, are refused.
func TestImportRefused(t *testing.T) {
	testenv.Guest(t)
	t.Setenv("RDMAABI", "auto")
	dev := openDevice(t, deviceName)
	s := newSide(t, dev, uverbs.QPOptions{})
	imp := imported(t, dev)
	_, err := imp.ImportPD(1 << 20)
	says(t, argError(t, err, "handle"), "is 1048576", fmt.Sprint(s.pd.Handle()))
	if s.mr.Handle() != s.pd.Handle() {
		_, err = imp.ImportPD(s.mr.Handle())
		argError(t, err, "handle")
	}
	pd, err := imp.ImportPD(s.pd.Handle())
	must(t, err)
	closeLater(t, pd)
	for _, handle := range []uint32{1 << 20, s.pd.Handle()} {
		if _, err := pd.ImportMR(handle, uverbs.ImportMROptions{}); !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("an MR with handle %d, which is of none: %v", handle, err)
		} else {
			says(t, err, "QUERY_MR", "no MR with the handle")
		}
	}
	if _, err := pd.ImportMR(s.mr.Handle(), uverbs.ImportMROptions{Memory: make([]byte, 1)}); err == nil {
		t.Error("memory of the wrong length is taken")
	} else {
		argError(t, err, "length of Memory")
	}
	if _, err := imp.ImportDM(1 << 20); onMLX5 && !errors.Is(err, syscall.ENOENT) {
		if !errors.Is(err, errors.ErrUnsupported) || since(t, 5, 13) {
			t.Errorf("device memory with a wrong handle: %v", err)
		}
	} else if !onMLX5 && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("device memory of %s: %v", rig.Driver, err)
	}
}

// TestImportOtherFiles: only a file with the context of a device can be imported.
func TestImportOtherFiles(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "device files")
	t.Setenv("RDMAABI", "auto")
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	_, err = uverbs.ImportDevice(null)
	says(t, argError(t, err, "file"), "character device 1:3")
	dev := openDevice(t, deviceName)
	fresh, err := os.OpenFile(dev.Info().CharDev, os.O_RDWR, 0)
	must(t, err)
	defer fresh.Close()
	if _, err = uverbs.ImportDevice(fresh); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a file without a context: %v", err)
	}
	says(t, err, "no context")
}

// TestImportEvents: the events of an object come to the Device that has created it.
func TestImportEvents(t *testing.T) {
	testenv.NeedsIB(t, "datagrams")
	testenv.Guest(t)
	testenv.NeedsKernel(t, "device files")
	t.Setenv("RDMAABI", "auto")
	dev := openDevice(t, deviceName)
	imp := imported(t, dev)
	for _, d := range []*uverbs.Device{imp, dev} {
		_, srq := newSRQ(t, d, uverbs.SRQOptions{MaxWR: 20})
		a := newSide(t, d, uverbs.QPOptions{Type: ib.UD})
		b := newSide(t, d, uverbs.QPOptions{Type: ib.UD, SRQ: srq})
		must(t, srq.PostRecv(1, b.mr.SGE(0, 100)), srq.PostRecv(2, b.mr.SGE(0, 100)), srq.SetLimit(2))
		must(t, a.qp.PostSend(datagram(1, wayTo(t, a, b), b, a.mr.SGE(0, 10))))
		a.want(t, 1, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		want := uverbs.Event{Type: uverbs.EventSRQLimitReached, SRQ: srq}
		if ev := event(t, d, uverbs.EventSRQLimitReached); ev != want {
			t.Errorf("event is %s, want %s of the SRQ", ev, want)
		}
	}
	noEvent(t, dev)
	noEvent(t, imp)
}

// TestImportDeviceMemory reads on one Device what another one that shares its context has written, and
// reaches the memory by an MR.
func TestImportDeviceMemory(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	testenv.Guest(t)
	t.Setenv("RDMAABI", "auto")
	owner := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
	dm := deviceMemory(t, owner, 4096)
	imp := imported(t, owner.dev)
	shared, err := imp.ImportDM(dm.Handle())
	if !since(t, 5, 13) {
		testenv.Skip(t, err)
	}
	must(t, err)
	closeLater(t, shared)
	if shared.Len() != dm.Len() {
		t.Errorf("%d bytes were imported, %d are there", shared.Len(), dm.Len())
	}
	const text = "here for both of them..."
	got := make([]byte, len(text))
	if _, err := dm.WriteAt([]byte(text), 64); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.ReadAt(got, 64); err != nil || string(got) != text {
		t.Errorf("read %q, %v", got, err)
	}
	pd, err := imp.AllocPD()
	must(t, err)
	closeLater(t, pd)
	mr, err := pd.RegDM(shared, 64, 1024, readWrite)
	must(t, err)
	closeLater(t, mr)
	a, b := importedPair(t, pd)
	useShared(t, a, b, mr, text)
	if _, err := dm.ReadAt(got, 64); err != nil || string(got) != strings.ToUpper(text) {
		t.Errorf("the owner reads %q, %v", got, err)
	}
	errorIs(t, dm.Close(), syscall.EBUSY, "the owner's Close while another process uses the memory")
}

// TestImportOfWriteOnly: registers that the kernel chooses for each QP of a context cannot be shared.
func TestImportOfWriteOnly(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "registers of the kernel's choice", "mlx5")
	t.Setenv("RDMAABI", "write")
	dev := openDevice(t, deviceName)
	f, err := dev.File()
	must(t, err)
	defer f.Close()
	t.Setenv("RDMAABI", "auto")
	errorIs(t, errorOf(uverbs.ImportDevice(f)), errors.ErrUnsupported, "import")
}

// loan is what a broker tells a worker. The descriptors of the device and of the memory come with it.
type loan struct {
	PD, MR uint32 // handles
	Text   string // what is in the memory
	Crash  bool   // the worker is to end without closing anything
}

// TestImportAcrossProcesses: a broker registers memory and hands it to a worker, a process of another
// user that may not open the device. The worker uses it with queues of its own.
func TestImportAcrossProcesses(t *testing.T) {
	testenv.NotOnEFA(t, "ImportDevice")
	testenv.Guest(t)
	testenv.NeedsKernel(t, "device files")
	t.Setenv("RDMAABI", "auto")
	if isChild() {
		work(t)
		return
	}
	setMode(t, 0o600)
	for _, crash := range []bool{false, true} {
		before := contextResources(t)
		t.Run(fmt.Sprintf("crash %t", crash), func(t *testing.T) { broker(t, crash) })
		if diff := cmp.Diff(before, contextResources(t)); diff != "" {
			t.Errorf("objects in the kernel (-before +after):\n%s", diff)
		}
	}
}

// contextResources counts the kernel's objects of the device.
func contextResources(t *testing.T) netlinkrdma.ResourceCounts {
	t.Helper()
	devs, err := netlinkrdma.Devices()
	must(t, err)
	for _, d := range devs {
		if d.Name == deviceName {
			counts, err := netlinkrdma.Resources(d, netlinkrdma.ListOptions{})
			must(t, err)
			return counts
		}
	}
	t.Fatalf("%s is not listed", deviceName)
	return netlinkrdma.ResourceCounts{}
}

// broker registers memory, lends it to a worker and takes it back.
func broker(t *testing.T, crash bool) {
	const text = "lent by another process"
	dev := openDevice(t, deviceName)
	pd, err := dev.AllocPD()
	must(t, err)
	fd, err := unix.MemfdCreate("loan", unix.MFD_CLOEXEC)
	must(t, err, unix.Ftruncate(fd, 4096))
	memfd := os.NewFile(uintptr(fd), "loan")
	defer memfd.Close()
	memory := mapShared(t, memfd)
	copy(memory, text)
	mr, err := pd.RegSlice(memory, readWrite)
	must(t, err)
	t.Cleanup(func() { mr.Close(); pd.Close() }) // after a failure

	conn, worker := startWorker(t)
	f, err := dev.File()
	must(t, err)
	message, err := json.Marshal(loan{PD: pd.Handle(), MR: mr.Handle(), Text: text, Crash: crash})
	must(t, err)
	_, _, err = conn.WriteMsgUnix(message, unix.UnixRights(int(f.Fd()), int(memfd.Fd())), nil)
	must(t, err, f.Close())

	var answer [16]byte // that the worker has used the memory
	if n, err := conn.Read(answer[:]); err != nil || string(answer[:n]) != "done" {
		t.Fatalf("the worker says %q, %v\n%s", answer[:n], err, worker.end())
	}
	if want := strings.ToUpper(text); !bytes.HasPrefix(memory, []byte(want)) {
		t.Errorf("the memory holds %q, want %q", memory[:len(want)], want)
	}
	must(t, mr.Close())
	if err := pd.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Close of a PD that the worker uses: %v", err)
	} else {
		says(t, err, "another process")
	}
	must(t, conn.Close()) // the worker ends
	out := worker.end()
	if crash {
		if !strings.Contains(out, "crashing") {
			t.Errorf("the worker did not crash:\n%s", out)
		}
		errorIs(t, pd.Close(), syscall.EBUSY, "Close of the PD of the crashed worker's QPs")
		must(t, dev.CloseAll())
		return
	}
	if !strings.Contains(out, "--- PASS: TestImportAcrossProcesses") {
		t.Errorf("the worker failed:\n%s", out)
	}
	must(t, pd.Close())
}

// mapShared maps a file of one page, until the end of the test.
func mapShared(t *testing.T, f *os.File) []byte {
	t.Helper()
	memory, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(memory)) })
	return memory
}

// child is a worker that runs.
type child struct {
	*exec.Cmd
	out bytes.Buffer
}

// end waits for the worker and returns what it has printed.
func (c *child) end() string {
	err := c.Wait()
	return fmt.Sprintf("%s(%v)", c.out.String(), err)
}

// startWorker starts the worker as an unprivileged user, with a connection to it.
func startWorker(t *testing.T) (*net.UnixConn, *child) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	theirs := os.NewFile(uintptr(fds[1]), "socket")
	defer theirs.Close()
	c := &child{Cmd: exec.Command("/proc/self/exe", "-test.run", "^TestImportAcrossProcesses$", "-test.v")}
	c.Env = append(os.Environ(), childEnv+"=1")
	c.ExtraFiles = []*os.File{theirs}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	c.Stdout, c.Stderr = &c.out, &c.out
	must(t, c.Start())
	t.Cleanup(func() { c.Process.Kill() })
	// On Linux 5.10 it may pin 64 KiB by default.
	must(t, unix.Prlimit(c.Process.Pid, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil))
	return unixConn(t, fds[0]), c
}

// unixConn returns the connection of a socket.
func unixConn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

// work is the worker: it gets the loan, imports it and uses it.
func work(t *testing.T) {
	const socket = 3 // the first of ExtraFiles
	conn := unixConn(t, socket)
	message, rights := make([]byte, 1024), make([]byte, unix.CmsgSpace(2*4))
	n, on, _, _, err := conn.ReadMsgUnix(message, rights)
	must(t, err)
	var l loan
	must(t, json.Unmarshal(message[:n], &l))
	control, err := unix.ParseSocketControlMessage(rights[:on])
	must(t, err)
	fds, err := unix.ParseUnixRights(&control[0])
	must(t, err)
	device, memfd := os.NewFile(uintptr(fds[0]), "device"), os.NewFile(uintptr(fds[1]), "loan")

	if _, err := uverbs.Open(deviceName, uverbs.OpenOptions{}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("the worker may open the device: %v", err)
	}
	dev, err := uverbs.ImportDevice(device)
	must(t, err, device.Close())
	closeLater(t, dev)
	pd, err := dev.ImportPD(l.PD)
	must(t, err)
	closeLater(t, pd)
	memory := mapShared(t, memfd)
	mr, err := pd.ImportMR(l.MR, uverbs.ImportMROptions{Access: readWrite, Memory: memory})
	must(t, err, memfd.Close())
	closeLater(t, mr)
	if !bytes.HasPrefix(mr.Bytes(), []byte(l.Text)) {
		t.Errorf("the memory holds %q, want %q", mr.Bytes()[:len(l.Text)], l.Text)
	}
	a, b := importedPair(t, pd)
	useShared(t, a, b, mr, l.Text)
	_, err = conn.Write([]byte("done"))
	must(t, err)
	conn.Read(message) // until the broker has looked
	if l.Crash {
		fmt.Println("crashing")
		os.Exit(1)
	}
}
