package uverbs

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestCloseAll: users are closed before what they use, though a window was made before its MR, and
// nothing stays behind.
func TestCloseAll(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	mw := value(pd.AllocMW(MWType2))(t)
	ch := value(d.CreateCompChannel())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 1, Channel: ch}))(t)
	mr := value(pd.RegSlice(make([]byte, 1), 0))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	closed := value(d.AllocPD())(t)
	must(t, closed.Close())
	k.took()
	must(t, d.CloseAll())
	k.sent("ioctl DEALLOC_MW", "ioctl DESTROY_QP", "ioctl DEREG_MR", "ioctl DESTROY_CQ", "ioctl DEALLOC_PD")
	if n := k.ringsMapped(); n != 0 {
		t.Errorf("%d bytes of rings stay mapped", n)
	}
	must(t, d.CloseAll(), d.Close(), qp.Close(), mw.Close(), mr.Close(), cq.Close(), ch.Close(), pd.Close())
	errorIs(t, second(d.AllocPD()), os.ErrClosed, "AllocPD afterwards")
	if err := new(Device).CloseAll(); err == nil {
		t.Error("a zero Device is closed without an error")
	}
}

// TestCloseAllRefused: what the kernel refuses to destroy stays, with what it uses, and all errors are
// returned; the rest is closed, and the device works on.
func TestCloseAllRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 1}))(t)
	mr := value(pd.RegSlice(make([]byte, 1), 0))(t)
	value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	k.refuse["DEREG_MR"] = syscall.EAGAIN
	err := d.CloseAll()
	if !errors.Is(err, syscall.EAGAIN) || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("CloseAll: %v, want the errors of the MR and of the PD", err)
	}
	errorIs(t, cq.Notify(), os.ErrClosed, "the CQ is still open")
	if mr.usable() != nil || pd.usable() != nil {
		t.Error("the MR or the PD is closed")
	}
	must(t, value(d.AllocPD())(t).Close())
	delete(k.refuse, "DEREG_MR")
	must(t, d.CloseAll())
}

// TestCloseAllBesideCreate: goroutines create and close objects while the device is closed. None of
// these is lost.
func TestCloseAllBesideCreate(t *testing.T) {
	for range 20 {
		d, k := fakeDevice(t, pathAuto)
		pd := value(d.AllocPD())(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					mr, err := pd.RegSlice(make([]byte, 1), 0)
					if errors.Is(err, os.ErrClosed) {
						return
					}
					must(t, err)
					if time.Now().UnixNano()%2 == 0 {
						must(t, mr.Close())
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		if err := d.CloseAll(); err != nil {
			t.Errorf("CloseAll: %v", err)
		}
		wg.Wait()
		k.took()
	}
}
