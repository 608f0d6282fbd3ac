package conformance

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// hasRereg reports whether the driver supports reregistration. rxe of Linux 6.1 and siw do not; rxe
// of Linux 6.12 changes PD and rights.
func hasRereg(t *testing.T) bool { return since(t, 6, 12) && !rig.IWARP() && !rig.EFA() || onMLX5 }

func TestReregAccess(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, refusing)
		mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		closeLater(t, mr)
		err = mr.Rereg(uverbs.ReregOptions{Access: new(remoteRights)})
		if !hasRereg(t) {
			absent(t, err, "REREG_MR")
			queryMR(t, mr)
			return
		}
		must(t, err)
		queryMR(t, mr)
		if mr.Access() != remoteRights {
			t.Errorf("rights are %s", mr.Access())
		}
		usable(t, a, mr, 100)
		must(t, mr.Rereg(uverbs.ReregOptions{Access: new(uverbs.AccessLocalWrite)}))
		queryMR(t, mr)
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 8), mr.Addr(), mr.RKey()); st == uverbs.WCSuccess {
			t.Error("the peer can write although the right was taken away")
		}

		// Memory that was pinned for reading does not become writable: rxe refuses it, and so does
		// mlx5_ib of Linux 6.12.118 and 7.2. That of Debian's 6.1.0-56 pins the memory anew; then
		// the peer must be able to write.
		c, d := pair(t, refusing)
		ro, err := d.pd.RegMR(d.buf, uverbs.MROptions{Access: uverbs.AccessRemoteRead})
		must(t, err)
		closeLater(t, ro)
		err = ro.Rereg(uverbs.ReregOptions{Access: new(remoteRights)})
		if onMLX5 && err == nil {
			usable(t, c, ro, 0)
			return
		}
		if !errors.Is(err, syscall.EACCES) {
			t.Errorf("a read-only region becomes writable: %v, want EACCES", err)
		} else {
			says(t, err, "for reading only")
		}
		queryMR(t, ro)
	})
}

func TestReregPD(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		if testenv.Modelled() && kernelBefore(t, 6, 0) {
			// Where a card can't change a key by a work request, as the model can't, mlx5_ib of
			// Linux 5.10 makes it anew without its pages, and when the card refuses it, PDs are
			// lost in the kernel.
			testenv.Skip(t, &uverbs.FeatureError{Feature: "REREG_MR to another PD alone", Since: uverbs.Version{6, 0}})
		}
		dev := openDevice(t, deviceName)
		other, err := dev.AllocPD()
		must(t, err)
		defer other.Close()
		buf := newBuffer(t, 16384)
		mr, err := other.RegMR(buf, uverbs.MROptions{Access: remoteRights})
		must(t, err)
		defer mr.Close()
		a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
		connect(t, a, b)

		err = mr.Rereg(uverbs.ReregOptions{PD: b.pd})
		if !hasRereg(t) {
			absent(t, err, "REREG_MR")
			errorIs(t, other.Close(), syscall.EBUSY, "close the PD of the region")
			return
		}
		must(t, err)
		queryMR(t, mr)
		usable(t, a, mr, 0)
		must(t, other.Close()) // nobody uses it now
		if err := b.pd.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "2 MR") {
			t.Errorf("close the new PD: %v, want EBUSY because of 2 MR", err)
		}
		must(t, mr.Close())
	})
}

// TestReregAtomic takes the right to atomics from a region, so that the peer's fail, and gives it back.
func TestReregAtomic(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "atomics")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, refusing)
		if lacksAtomics(t, a.dev) {
			return
		}
		const may, not = uverbs.AccessLocalWrite | uverbs.AccessRemoteAtomic, uverbs.AccessLocalWrite
		mr := other(t, b, may)
		b.setWord(0, 40)
		add := func(want uverbs.WCStatus, sum uint64) {
			t.Helper()
			wr := operation(uverbs.WRFetchAdd, a, b)
			wr.RemoteAddr, wr.RKey, wr.CompareAdd = mr.Addr(), mr.RKey(), 1
			must(t, a.qp.PostSend(wr))
			if wc := a.next(t); wc.Status != want || b.word(0) != sum {
				t.Errorf("with %s: %v, and the sum is %d; want %v and %d", mr.Access(), a.qp.Err(&wc), b.word(0), want, sum)
			}
		}
		add(uverbs.WCSuccess, 41)
		err := mr.Rereg(uverbs.ReregOptions{Access: new(not)})
		if !hasRereg(t) {
			absent(t, err, "REREG_MR")
			return
		}
		must(t, err)
		add(uverbs.WCRemAccessErr, 41)
		reconnect(t, a, b)
		must(t, mr.Rereg(uverbs.ReregOptions{Access: new(may)}))
		add(uverbs.WCSuccess, 42)
	})
}

// TestReregAll changes PD and access with one command, and the memory too if the device supports
// that.
func TestReregAll(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		other, err := dev.AllocPD()
		must(t, err)
		defer other.Close()
		mr, err := other.RegMR(newBuffer(t, 16384), uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		defer mr.Close()
		a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
		connect(t, a, b)
		o := uverbs.ReregOptions{PD: b.pd, Access: new(remoteRights)}
		err = mr.Rereg(o)
		if !hasRereg(t) {
			absent(t, err, "REREG_MR")
			queryMR(t, mr)
			if err := other.Close(); mr.Access() != uverbs.AccessLocalWrite || !errors.Is(err, syscall.EBUSY) {
				t.Errorf("the region has rights %s after a refusal, and its PD closes: %v, want EBUSY", mr.Access(), err)
			}
			return
		}
		must(t, err, other.Close()) // nobody uses the PD of before
		queryMR(t, mr)
		if err := b.pd.Close(); mr.Access() != remoteRights || !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "2 MR") {
			t.Errorf("the region has rights %s, and its PD closes: %v, want EBUSY because of 2 MR", mr.Access(), err)
		}
		usable(t, a, mr, 4096)

		third := newSide(t, dev, refusing)
		from := newPeer(t, third)
		o = uverbs.ReregOptions{PD: third.pd, Access: new(uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead),
			Buffer: newBuffer(t, 32768), Offset: 4096, Length: 20000, IOVA: new(uint64(1 << 40))}
		before := mr.Addr()
		err = mr.Rereg(o)
		if !onMLX5 {
			absent(t, err, "REREG_MR")
			if queryMR(t, mr); mr.Addr() != before || mr.Access() != remoteRights {
				t.Errorf("the region is at %#x with rights %s after a refusal", mr.Addr(), mr.Access())
			}
			usable(t, a, mr, 0)
			return
		}
		if testenv.Lacks(t, err) {
			if queryMR(t, mr); mr.Addr() != before || mr.Access() != remoteRights {
				t.Errorf("the region is at %#x with rights %s after a refusal", mr.Addr(), mr.Access())
			}
			usable(t, a, mr, 0)
			return
		}
		must(t, err)
		queryMR(t, mr)
		if mr.Addr() != 1<<40 || mr.Len() != 20000 || mr.Access() != *o.Access {
			t.Errorf("the region has %d bytes at %#x with rights %s", mr.Len(), mr.Addr(), mr.Access())
		}
		usable(t, from, mr, 8000)
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 8), mr.Addr(), mr.RKey()); st == uverbs.WCSuccess {
			t.Error("a peer of the PD of before can write")
		}
		must(t, mr.Close())
	})
}

// TestWriteToMROfOtherPD checks that a QP of another PD cannot write to an MR, without which
// TestReregPD would prove nothing.
func TestWriteToMROfOtherPD(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
		connect(t, a, b)
		mr, err := newPD(t, dev).RegMR(b.buf, uverbs.MROptions{Access: remoteRights})
		must(t, err)
		defer mr.Close()
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 8), mr.Addr(), mr.RKey()); st == uverbs.WCSuccess {
			t.Error("the peer can write to a region of another PD")
		}
	})
}

// TestReregMemory changes the memory of an MR. rxe cannot do that, and the MR stays as it was.
func TestReregMemory(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		other := newBuffer(t, 8192)
		before := b.mr.Addr()
		if onMLX5 {
			must(t, b.mr.Rereg(uverbs.ReregOptions{Buffer: other}))
			if b.mr.Addr() == before || b.mr.Len() != 8192 {
				t.Errorf("the region is at %#x, %d bytes", b.mr.Addr(), b.mr.Len())
			}
			queryMR(t, b.mr)
			usable(t, a, b.mr, 0)
			must(t, b.mr.Close()) // before its buffer
			return
		}
		absent(t, b.mr.Rereg(uverbs.ReregOptions{Buffer: other}), "REREG_MR")
		if b.mr.Addr() != before || b.mr.Len() != bufferSize {
			t.Errorf("the region is at %#x now, %d bytes", b.mr.Addr(), b.mr.Len())
		}
		queryMR(t, b.mr)
		usable(t, a, b.mr, 0)
		argError(t, b.mr.Rereg(uverbs.ReregOptions{}), "options")
	})
}
