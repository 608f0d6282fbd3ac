package uverbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// importFake imports a device of a kernel that change has changed. handles are the handles of its
// PDs.
func importFake(t *testing.T, change func(k *fakeKernel), handles ...uint32) (*Device, *fakeKernel, error) {
	t.Helper()
	d, k := newFakeDevice(t, pathIoctl, change)
	k.after(func(c *fakeCall, errno syscall.Errno) {
		if c.verb == "QUERY_CONTEXT" && errno == 0 {
			k.put(c.attr(abi.UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS).Out, u32(2))
		}
		if c.verb != "INFO_HANDLES" || errno != 0 {
			return
		}
		list := c.attr(abi.UVERBS_ATTR_INFO_HANDLES_LIST)
		n := min(len(handles), int(list.Len/4))
		k.put(list.Out, sliceBytes(handles[:n]))
		k.put(c.attr(abi.UVERBS_ATTR_INFO_TOTAL_HANDLES).Out, u32(uint32(n)))
	})
	if err := d.importContext(); err != nil {
		return d, k, err
	}
	return d, k, d.queryDevice()
}

// asItIs is a kernel without changes.
func asItIs(*fakeKernel) {}

// TestFile: the copy of the device's file is another descriptor of it, which a program that is
// executed does not inherit, and it stays open when the device is closed.
func TestFile(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	f := value(d.File())(t)
	defer f.Close()
	var is, want unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &is), unix.Fstat(int(k.file.Fd()), &want))
	if is.Ino != want.Ino || is.Dev != want.Dev || f.Fd() == k.file.Fd() {
		t.Errorf("descriptor %d of inode %d, want another one than %d of inode %d", f.Fd(), is.Ino, k.file.Fd(), want.Ino)
	}
	if flags := value(unix.FcntlInt(f.Fd(), unix.F_GETFD, 0))(t); flags&unix.FD_CLOEXEC == 0 {
		t.Error("programs inherit the descriptor")
	}
	must(t, d.Close())
	if err := unix.Fstat(int(f.Fd()), &is); err != nil {
		t.Errorf("after Close of the device: %v", err)
	}
	errorIs(t, second(d.File()), os.ErrClosed, "File of a closed device")
	if _, err := new(Device).File(); err == nil {
		t.Error("a zero Device has a file")
	}
}

// TestImportWrongFile: the error says what file was given.
func TestImportWrongFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "plain")
	f := value(os.Create(name))(t)
	_, err := ImportDevice(f)
	wantArg(t, err, "file")
	if !strings.Contains(err.Error(), name+", which is no character device") || !strings.Contains(err.Error(), "Device.File") {
		t.Error(err)
	}
	must(t, f.Close())
	_, err = ImportDevice(f)
	wantArg(t, err, "file")
	_, err = ImportDevice(nil)
	wantArg(t, err, "file")
	t.Setenv(abiPathEnv, "smoke")
	_, err = ImportDevice(f)
	wantArg(t, err, "environment variable RDMAABI")
}

// TestImportContext: the context is queried, not created, and the device has its own file of
// asynchronous events. If the driver does not describe the context, there is one vector.
func TestImportContext(t *testing.T) {
	d, k, err := importFake(t, asItIs)
	must(t, err)
	if got := k.took(); !slices.Equal(got[:2], []string{"ioctl QUERY_CONTEXT", "ioctl ASYNC_EVENT_ALLOC"}) {
		t.Errorf("commands are %v", got)
	}
	if d.vectors != 2 || d.async == nil {
		t.Errorf("%d vectors, asynchronous events %v", d.vectors, d.async)
	}
	handle := d.targets.add(nil)
	if handle < 1<<20 {
		t.Errorf("the first object has the number %d, which objects of other processes have, too", handle)
	}
	d, _, err = importFake(t, func(k *fakeKernel) { k.refuse["QUERY_CONTEXT"] = syscall.EOPNOTSUPP })
	must(t, err)
	if d.vectors != 1 {
		t.Errorf("%d vectors, want 1", d.vectors)
	}
}

// TestImportContextRefused: what the error says if there is no context, or no method.
func TestImportContextRefused(t *testing.T) {
	_, _, err := importFake(t, func(k *fakeKernel) { k.refuse["QUERY_CONTEXT"] = syscall.EINVAL })
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "no context") {
		t.Errorf("without a context: %v", err)
	}
	var f *FeatureError
	_, _, err = importFake(t, func(k *fakeKernel) { k.refuse["QUERY_CONTEXT"] = syscall.EPROTONOSUPPORT })
	if !errors.As(err, &f) || f.Since != (Version{5, 9}) {
		t.Errorf("an old kernel: %v", err)
	}
	d, _ := newFakeDevice(t, pathWrite, asItIs)
	if err := d.importContext(); !errors.As(err, &f) || !strings.Contains(err.Error(), "RDMAABI=write") {
		t.Errorf("without ioctl: %v", err)
	}
}

// TestImportPD imports PDs by their handles. Close does not free them, and objects of them work.
func TestImportPD(t *testing.T) {
	d, k, err := importFake(t, asItIs, 3, 70)
	must(t, err)
	pd := value(d.ImportPD(70))(t)
	if pd.Handle() != 70 || pd.Device() != d {
		t.Errorf("handle %d", pd.Handle())
	}
	buf := value(AllocBuffer(4096, BufferOptions{}))(t)
	mr := value(pd.RegMR(buf, MROptions{Access: AccessLocalWrite}))(t)
	if got := request[abi.RegMR](k, "REG_MR").PDHandle; got != 70 {
		t.Errorf("the MR belongs to PD %d", got)
	}
	errorIs(t, pd.Close(), syscall.EBUSY, "Close of a used PD")
	k.took()
	must(t, mr.Close(), pd.Close(), buf.Close())
	if got := k.took(); !slices.Equal(got, []string{"ioctl DEREG_MR"}) {
		t.Errorf("Close has issued %v", got)
	}
	if _, err := pd.RegMR(buf, MROptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("RegMR in a closed PD: %v", err)
	}
	_, err = d.ImportPD(4)
	wantArg(t, err, "handle")
	if !strings.Contains(err.Error(), "handle is 4") || !strings.Contains(err.Error(), "3, 70") {
		t.Error(err)
	}
	must(t, d.Close())
}

// TestImportManyPDs: the list of handles may be long.
func TestImportManyPDs(t *testing.T) {
	var all []uint32
	for i := range uint32(1000) {
		all = append(all, 2*i)
	}
	d, _, err := importFake(t, asItIs, all...)
	must(t, err)
	must(t, value(d.ImportPD(1998))(t).Close())
	_, err = d.ImportPD(1)
	wantArg(t, err, "handle")
	if !strings.HasSuffix(err.Error(), "16, 18 and 990 more") {
		t.Error(err)
	}
	none, _, err := importFake(t, asItIs)
	must(t, err)
	_, err = none.ImportPD(1)
	if wantArg(t, err, "handle"); !strings.HasSuffix(err.Error(), "there is none") {
		t.Error(err)
	}
}

// TestImportMR: an imported region has the kernel's keys and address, and this process's memory.
// Close leaves it registered, and Rereg refuses to change it.
func TestImportMR(t *testing.T) {
	d, k, err := importFake(t, asItIs, 1)
	must(t, err)
	pd := value(d.ImportPD(1))(t)
	memory := make([]byte, 0x3334) // the fake kernel's MRs have this length
	mr := value(pd.ImportMR(9, ImportMROptions{Access: AccessLocalWrite, Memory: memory}))(t)
	query := k.last("QUERY_MR")
	if got := query.attr(abi.UVERBS_ATTR_QUERY_MR_HANDLE).Data; got != 9 || mr.Handle() != 9 {
		t.Errorf("handle %d was queried, the MR has %d", got, mr.Handle())
	}
	got := fmt.Sprintf("%#x %#x %#x %#x %s", mr.LKey(), mr.RKey(), mr.Addr(), mr.Len(), mr.Access())
	if want := "0x1112 0x2223 0x4445 0x3334 LOCAL_WRITE"; got != want {
		t.Errorf("the MR is %s, want %s", got, want)
	}
	if &mr.Bytes()[0] != &memory[0] || mr.SGE(1, 2) != (SGE{Addr: 0x4446, Length: 2, LKey: 0x1112}) {
		t.Errorf("SGE %+v", mr.SGE(1, 2))
	}
	if r := d.mrOf(0x1112); r == nil || &r.mem[0] != &memory[0] || r.addr != 0x4445 {
		t.Errorf("the MR with the key is %+v", r)
	}
	err = mr.Rereg(ReregOptions{Access: new(AccessLocalWrite)})
	wantArg(t, err, "MR")
	k.took()
	must(t, mr.Close())
	if got := k.took(); len(got) != 0 || d.mrOf(0x1112) != nil {
		t.Errorf("Close has issued %v, its key belongs to %v", got, d.mrOf(0x1112))
	}
	errorIs(t, second(mr.Query()), os.ErrClosed, "Query after Close")

	// Nothing is blamed on rights that are not known.
	mr = value(pd.ImportMR(9, ImportMROptions{}))(t)
	if r := d.mrOf(0x1112); mr.Bytes() != nil || mr.Access() != 0 || r.access&AccessLocalWrite == 0 || r.access&AccessMWBind == 0 {
		t.Errorf("without options: %d bytes, access %s, recorded as %s", len(mr.Bytes()), mr.Access(), r.access)
	}
	must(t, mr.Close(), pd.Close())
}

// TestImportMRRefused: each wrong argument has an error of its own, after which nothing uses the PD.
func TestImportMRRefused(t *testing.T) {
	d, k, err := importFake(t, asItIs, 1)
	must(t, err)
	pd := value(d.ImportPD(1))(t)
	_, err = pd.ImportMR(9, ImportMROptions{Memory: make([]byte, 100)})
	wantArg(t, err, "length of Memory")
	if !strings.Contains(err.Error(), "is 100, allowed: 13108 bytes") {
		t.Error(err)
	}
	_, err = pd.ImportMR(9, ImportMROptions{Access: 1 << 12})
	wantArg(t, err, "Access")
	_, err = new(PD).ImportMR(9, ImportMROptions{})
	wantArg(t, err, "object")
	for _, errno := range []syscall.Errno{syscall.ENOENT, syscall.EINVAL} {
		k.refuse["QUERY_MR"] = errno
		if _, err := pd.ImportMR(9, ImportMROptions{}); !errors.Is(err, errno) || !strings.Contains(err.Error(), "no MR with the handle 9") {
			t.Errorf("a wrong handle: %v", err)
		}
	}
	must(t, pd.Close())
	errorIs(t, second(pd.ImportMR(9, ImportMROptions{})), os.ErrClosed, "ImportMR in a closed PD")
	k.refuse["INFO_HANDLES"] = syscall.ENOENT // rxe has no such objects
	if all, err := d.Handles(ObjectDM); all != nil || err != nil {
		t.Errorf("handles of objects that the driver does not have: %v, %v", all, err)
	}
	if ObjectRWQIndTable.String() != "RWQIndTable" || ObjectKind(99).String() != "object kind 99" {
		t.Errorf("names are %s and %s", ObjectRWQIndTable, ObjectKind(99))
	}
	k.refuse["INFO_HANDLES"] = syscall.EIO
	errorIs(t, second(d.ImportPD(1)), ErrDeviceRemoved, "ImportPD of a removed device")
	var f *FeatureError
	if _, err := d.ImportDM(1); !errors.As(err, &f) || f.Driver != "rxe" {
		t.Errorf("ImportDM on rxe: %v", err)
	}
	must(t, d.Close())
	errorIs(t, second(d.ImportPD(1)), os.ErrClosed, "ImportPD of a closed device")
	errorIs(t, second(d.ImportDM(1)), os.ErrClosed, "ImportDM of a closed device")
}

// TestSharedPDClose: if only the kernel knows why a PD is used, the error names the likely reason.
func TestSharedPDClose(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	k.refuse["DEALLOC_PD"] = syscall.EBUSY
	if err := pd.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("Close: %v", err)
	}
	errorIs(t, d.CloseAll(), syscall.EBUSY, "CloseAll of a device that no other process has")
	must(t, value(d.File())(t).Close(), d.CloseAll())
	if err := pd.Close(); err != nil {
		t.Errorf("Close after CloseAll: %v", err)
	}
}

// TestSharedClose: CloseAll leaves to other processes what they use, but nothing else.
func TestSharedClose(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	must(t, value(d.File())(t).Close())
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{}))(t)
	k.refuse["DEALLOC_PD"], k.refuse["DESTROY_CQ"] = syscall.EBUSY, syscall.EBUSY
	if err := d.CloseAll(); !errors.Is(err, syscall.EBUSY) || strings.Contains(err.Error(), "DEALLOC_PD") {
		t.Errorf("CloseAll with a busy CQ: %v", err)
	}
	delete(k.refuse, "DESTROY_CQ")
	must(t, d.CloseAll(), pd.Close(), cq.Close())
}

// TestImportUndescribed: a device whose driver does not describe the context can be imported, if the library needs no
// description.
func TestImportUndescribed(t *testing.T) {
	for _, drv := range []driver{rxeDriver{}, siwDriver{}} {
		d, _, err := importFake(t, func(k *fakeKernel) { k.driver, k.refuse["QUERY_CONTEXT"] = drv, syscall.EOPNOTSUPP })
		if err != nil {
			t.Errorf("%s: %v", drv.name(), err)
			continue
		}
		must(t, d.Close())
	}
}
