package uverbs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/rxe"
)

// lackingDriver has no MRs.
type lackingDriver struct{ driver }

func (lackingDriver) unsupportedMR(*Device, *region) string { return "memory" }

// TestRegMRLacking: an MR that the driver does not have leaves its PD without a user, and the kernel
// is not asked.
func TestRegMRLacking(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, buf := value(d.AllocPD())(t), value(AllocBuffer(4096, BufferOptions{}))(t)
	d.driver = lackingDriver{d.driver}
	k.took()
	_, err := pd.RegMR(buf, MROptions{Access: AccessLocalWrite})
	if f, ok := errors.AsType[*FeatureError](err); !ok || f.Feature != "REG_MR with memory" || f.Driver != "rxe" {
		t.Errorf("%v, want a FeatureError about memory", err)
	}
	k.sent()
	must(t, pd.Close(), buf.Close())
}

// TestRegDMABufClosed: a closed PD takes no dma-buf.
func TestRegDMABufClosed(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	f := os.NewFile(uintptr(value(unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC))(t)), "dmabuf")
	defer f.Close()
	must(t, f.Truncate(4096), pd.Close())
	k.took()
	if mr, err := pd.RegDMABuf(f, MROptions{}); mr != nil || !errors.Is(err, os.ErrClosed) {
		t.Errorf("%+v, %v, want os.ErrClosed", mr, err)
	}
	k.sent()
}

// TestRegDMABufRefused: a dma-buf that the kernel refuses leaves its PD without a user.
func TestRegDMABufRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	f := os.NewFile(uintptr(value(unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC))(t)), "dmabuf")
	defer f.Close()
	must(t, f.Truncate(4096))
	k.refuse["REG_DMABUF_MR"] = syscall.ENOMEM
	if _, err := pd.RegDMABuf(f, MROptions{}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v, want ENOMEM", err)
	}
	must(t, pd.Close())
}

// TestCreateCQHostile: rings that cannot be mapped or used. The CQ is destroyed again, and nothing
// stays mapped.
func TestCreateCQHostile(t *testing.T) {
	for name, spoil := range map[string]struct {
		change func(k *fakeKernel, c *fakeCall)
		want   error
	}{
		"no ring there": {func(k *fakeKernel, c *fakeCall) { k.put(c.drv, u64(1)) }, syscall.EINVAL},
		"no size":       {func(k *fakeKernel, c *fakeCall) { k.put(c.drv[8:], u32(0)) }, nil},
		"index":         {func(k *fakeKernel, c *fakeCall) { k.rings[k.next][0].producer.Release(1 << 20) }, rxe.ErrCorrupt},
		"element size":  {func(k *fakeKernel, c *fakeCall) { copy(k.rings[k.next][0].mem, u32(40)) }, rxe.ErrCorrupt},
	} {
		d, k := fakeDevice(t, pathIoctl)
		k.after(func(c *fakeCall, _ syscall.Errno) {
			if c.verb == "CREATE_CQ" {
				spoil.change(k, c)
			}
		})
		k.took()
		cq, err := d.CreateCQ(CQOptions{Size: 7})
		if cq != nil || err == nil || spoil.want != nil && !errors.Is(err, spoil.want) {
			t.Errorf("%s: %v, want %v", name, err, spoil.want)
		}
		k.sent("ioctl CREATE_CQ", "ioctl DESTROY_CQ")
		must(t, d.Close())
		if n := k.ringsMapped(); n != 0 {
			t.Errorf("%s: %d bytes of rings stay mapped", name, n)
		}
	}
}

// TestRxeShort: answers that are too short are errors, and nothing is mapped.
func TestRxeShort(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
	before := k.ringsMapped()
	other := &CQ{object: object{dev: d, kind: "CQ"}}
	qp := &QP{object: object{dev: d, kind: "QP"}, sendCQ: cq, recvCQ: cq}
	srq := &SRQ{object: object{dev: d, kind: "SRQ"}}
	short := func(n int) udata { return udata{out: make([]byte, n-1)} }
	_, err := rxeDriver{}.remapCQ(cq, 15, short(rxe.ResizeCQRespSize))
	for name, err := range map[string]error{
		"RESIZE_CQ":  err,
		"CREATE_CQ":  rxeDriver{}.mapCQ(other, short(rxe.CQRespSize)),
		"CREATE_QP":  rxeDriver{}.mapQP(qp, short(rxe.QPRespSize)),
		"CREATE_SRQ": rxeDriver{}.mapSRQ(srq, short(rxe.SRQRespSize)),
	} {
		if err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%s: %v, want an error about the size", name, err)
		}
	}
	if n := k.ringsMapped(); n != before {
		t.Errorf("%d bytes of rings are mapped, want %d", n, before)
	}
	must(t, cq.Close())
}

// TestMWForgotten: a window that is closed is no object of the device any more, unless the kernel
// refused.
func TestMWForgotten(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	mw := value(pd.AllocMW(MWType2))(t)
	k.refuse["DEALLOC_MW"] = syscall.EBUSY
	if err := mw.Close(); !errors.Is(err, syscall.EBUSY) || d.windowOf(mw.RKey()) != mw {
		t.Errorf("Close: %v, the key is of window %p, want EBUSY and %p", err, d.windowOf(mw.RKey()), mw)
	}
	delete(k.refuse, "DEALLOC_MW")
	must(t, mw.Close())
	if w := d.windowOf(mw.RKey()); w != nil || len(d.targets.all) != 0 {
		t.Errorf("after Close the key is of window %p, and %d objects are left", w, len(d.targets.all))
	}
	must(t, pd.Close())
}

// TestRefusedRemoved: EINVAL for an object of a device that was removed is ErrDeviceRemoved. The
// hint on the arguments is dropped.
func TestRefusedRemoved(t *testing.T) {
	for removed, want := range map[syscall.Errno]string{
		0:           "invalid argument",
		syscall.EIO: "input/output error: the device has been removed",
	} {
		d, k := fakeDevice(t, pathAuto)
		cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
		k.refuse["QUERY_DEVICE"], k.refuse["RESIZE_CQ"] = removed, syscall.EINVAL
		err := cq.Resize(20)
		if errors.Is(err, ErrDeviceRemoved) != (removed != 0) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "poll them first") != (removed == 0) {
			t.Errorf("QUERY_DEVICE answers %v: %v, want %q", removed, err, want)
		}
		must(t, cq.Close(), d.Close())
	}
}

// TestPKeyIndexRefused: without the port's attributes there is no table to look at.
func TestPKeyIndexRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.refuse["QUERY_PORT"] = syscall.EACCES
	if i, err := d.PKeyIndex(1, 0xffff); i != 0 || !errors.Is(err, syscall.EACCES) {
		t.Errorf("%d, %v, want EACCES", i, err)
	}
}

// TestSiwPostClosed: nothing is posted to a QP that is closed.
func TestSiwPostClosed(t *testing.T) {
	r := newSiwRig(t)
	r.qp.sending.Lock() // as Close does
	r.qp.receiving.Lock()
	r.qp.closed.Store(true)
	for name, err := range map[string]error{
		"PostSend":  r.qp.PostSend(SendWR{Opcode: WRSend}),
		"PostRecv":  r.qp.PostRecv(1),
		"PostRecvs": r.qp.PostRecvs(RecvWR{}),
	} {
		errorIs(t, err, os.ErrClosed, "%s", name)
	}
	if _, _, _, ok := r.take(); ok {
		t.Error("a send is in the ring")
	}
}

// TestMemoryText: a request of the peer is refused by the access of the QP, or by what its key belongs to.
func TestMemoryText(t *testing.T) {
	k := newFakeQP(t, QPOptions{})
	k.qp.dev.mrs.insert(&mrRecord{lkey: 0x777, addr: 0x1000, length: 8, pd: k.qp.pd, access: AccessRemoteRead})
	for _, c := range []struct {
		access Access
		rkey   uint32
		want   string
	}{
		{0, 0x999, "the peer's QP does not permit RDMA_WRITE; its access is "},
		{AccessLocalWrite, 0x999, "the peer's QP does not permit RDMA_WRITE; its access is "},
		{AccessRemoteRead | AccessRemoteAtomic, 0x999, "the peer's QP does not permit RDMA_WRITE; its access is "},
		{AccessRemoteWrite, 0x999, "no MR and no memory window of the peer has rkey 0x999"},
		{AccessLocalWrite | AccessRemoteWrite, 0x999, "no MR and no memory window of the peer has rkey 0x999"},
		{AccessRemoteWrite, 0x777, "the peer's MR with rkey 0x777 does not have " + AccessRemoteWrite.String() + "; its access is " + AccessRemoteRead.String()},
	} {
		k.query.QPAccessFlags = uint32(c.access)
		got, _ := k.qp.memoryText(&sentWR{op: WRRDMAWrite, raddr: 0x1000, length: 8, rkey: c.rkey})
		if name := fmt.Sprintf("; the peer is QP %d of rxe0, of this program", k.qp.qpn); !strings.HasPrefix(got, c.want) || !strings.HasSuffix(got, name) {
			t.Errorf("access %s: %q, want %q", c.access, got, c.want)
		}
	}
}
