package conformance

import (
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// windowRights are all that a window can give.
const windowRights = uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic

// eachWindow runs a test for both types of windows.
func eachWindow(t *testing.T, test func(t *testing.T, typ uverbs.MWType)) {
	for _, typ := range []uverbs.MWType{uverbs.MWType1, uverbs.MWType2} {
		t.Run(typ.String(), func(t *testing.T) { test(t, typ) })
	}
}

// needWindows skips the test where rxe has no windows.
func needWindows(t *testing.T) {
	testenv.Guest(t)
	mw, err := newPD(t, openDevice(t, deviceName)).AllocMW(uverbs.MWType1)
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, mw)
}

// newWindow allocates a window.
func newWindow(t *testing.T, pd *uverbs.PD, typ uverbs.MWType) *uverbs.MW {
	t.Helper()
	mw, err := pd.AllocMW(typ)
	must(t, err)
	closeLater(t, mw)
	return mw
}

// binding is a signalled request that binds a window to a whole region.
func binding(id uint64, mw *uverbs.MW, mr *uverbs.MR, access uverbs.Access) uverbs.SendWR {
	return uverbs.SendWR{ID: id, Opcode: uverbs.WRBindMW, Flags: uverbs.SendSignaled, Bind: uverbs.BindInfo{
		MW: mw, MR: mr, Addr: mr.Addr(), Length: uint64(mr.Len()), Access: access,
	}}
}

// bound binds a window of a side to a whole region and returns its key.
func (s *side) bound(t *testing.T, mw *uverbs.MW, mr *uverbs.MR, access uverbs.Access) uint32 {
	t.Helper()
	must(t, s.qp.PostSend(binding(50, mw, mr, access)))
	s.want(t, 50, uverbs.WCBindMW)
	return mw.RKey()
}

// twin makes a side with the PD and the memory of another, and a QP of its own.
func twin(t *testing.T, s *side) *side {
	t.Helper()
	other := *s
	var err error
	other.cq, err = s.dev.CreateCQ(uverbs.CQOptions{Size: 64})
	must(t, err)
	closeLater(t, other.cq)
	other.qp, err = asSide(s.pd.CreateQP(uverbs.QPOptions{SendCQ: other.cq, RecvCQ: other.cq}))
	must(t, err)
	closeLater(t, other.qp)
	must(t, other.qp.Init())
	return &other
}

// peerOf connects a new side to one.
func peerOf(t *testing.T, s *side) *side {
	t.Helper()
	a := newSide(t, s.dev, uverbs.QPOptions{})
	connect(t, a, s)
	return a
}

// TestWindowAccess reads, writes and does atomics through windows: with only the access right that
// the operation needs, with all others, over another QP than the one that bound the window, and
// over a QP of another PD.
func TestWindowAccess(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "memory windows")
	needWindows(t)
	eachWindow(t, func(t *testing.T, typ uverbs.MWType) {
		for _, c := range oneSided {
			for _, how := range []struct {
				name   string
				access uverbs.Access
				ok     bool
			}{
				{"", c.right, true}, // the region has not the right for atomics, and need not
				{" without the access right", windowRights &^ c.right, false},
				{" over another QP", windowRights, typ == uverbs.MWType1},
				{" over another PD", windowRights, false},
			} {
				t.Run(c.op.String()+how.name, func(t *testing.T) {
					a, b := pair(t, uverbs.QPOptions{})
					needsAtomics(t, a.dev, c.op)
					mw, mr := window(t, b, typ)
					rkey := b.bound(t, mw, mr, how.access)
					switch how.name {
					case " over another QP":
						a = peerOf(t, twin(t, b))
					case " over another PD":
						a = peerOf(t, newSide(t, b.dev, uverbs.QPOptions{}))
					}
					must(t, a.qp.PostSend(request(a, b, c.op, a.mr.SGE(ourPlace, 8), mr.Addr()+theirPlace, rkey)))
					if !how.ok {
						a.breaksWith(t, 1, uverbs.WCRemAccessErr, c.op.String())
						words(t, a, b, ours, before)
						return
					}
					a.want(t, 1, c.done)
					our, their := effect(c.op)
					words(t, a, b, our, their)
				})
			}
		}
	})
}

// TestWindowBounds reads and writes 100 bytes, or none, of a region in and around a window.
func TestWindowBounds(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "memory windows")
	needWindows(t)
	const start, size = 4096, 8192
	for _, c := range []struct {
		name    string
		from, n int
		ok      bool
	}{
		{"at the start", start, 100, true},
		{"at the end", start + size - 100, 100, true},
		{"starts before the window", start - 1, 100, false},
		{"ends after the window", start + size - 99, 100, false},
		{"ends after the region", bufferSize - 99, 100, false},
		{"length 0", start, 0, true},
		{"length 0, outside", 0, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			// rxe checks the region's bounds alone.
			if strings.HasSuffix(c.name, "the window") && !onMLX5 && testenv.KnownBug(t, "window-bounds") {
				c.ok = true
			}
			eachWindow(t, func(t *testing.T, typ uverbs.MWType) {
				a, b := pair(t, uverbs.QPOptions{})
				mw, mr := window(t, b, typ)
				wr := binding(50, mw, mr, windowRights)
				wr.Bind.Addr, wr.Bind.Length = mr.Addr()+start, size
				must(t, b.qp.PostSend(wr))
				b.want(t, 50, uverbs.WCBindMW)
				b.fill(0, bufferSize, 9)
				must(t, a.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, c.n)},
					RemoteAddr: mr.Addr() + uint64(c.from), RKey: mw.RKey()}))
				if !c.ok {
					a.breaksWith(t, 1, uverbs.WCRemAccessErr, "RDMA_READ")
					return
				}
				a.want(t, 1, uverbs.WCRDMARead)
				a.holds(t, 0, b.buf.Bytes()[c.from:][:c.n])
				want := a.fill(0, c.n, 10)
				wc := writeTo(t, a, b, c.from, c.n, mw.RKey())
				must(t, a.qp.Err(&wc))
				b.holds(t, c.from, want)
			})
		})
	}
}

// TestWindowRevokedDuringReads takes a window away while many reads through it are in flight: none
// is lost, one says why it failed, and those after it are flushed.
func TestWindowRevokedDuringReads(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "memory windows")
	needWindows(t)
	const reads, outstanding = 400, 100
	const longTimeout = 20 // 4 s
	for _, c := range []struct {
		name string
		do   func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR)
		want uverbs.WCStatus
	}{
		{"window stays bound", func(*testing.T, *side, *uverbs.MW, *uverbs.MR) {}, uverbs.WCSuccess},
		{"bind again", func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) {
			must(t, b.qp.PostSend(binding(7, mw, mr, windowRights)))
			b.fails(t, 7, uverbs.WCMWBindErr, "BIND_MW")
		}, uverbs.WCRetryExcErr}, // the QP that failed does not answer
		{"invalidate", func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) {
			must(t, b.qp.PostSend(uverbs.SendWR{ID: 7, Opcode: uverbs.WRLocalInv, Flags: uverbs.SendSignaled, InvalidateRKey: mw.RKey()}))
			b.want(t, 7, uverbs.WCLocalInv)
		}, uverbs.WCRemAccessErr},
		{"close", func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) {
			must(t, mw.Close())
		}, uverbs.WCRemAccessErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want == uverbs.WCRemAccessErr {
				testenv.NeedsNoLoss(t, "a QP that one READ has broken does not answer an earlier one again")
			}
			path := uverbs.PathOptions{RetryCount: 3}
			if c.want == uverbs.WCRemAccessErr {
				path.Timeout = longTimeout // that QP does not answer a request that is repeated early either
			}
			a, b := pair(t, uverbs.QPOptions{MaxSendWR: outstanding, Path: path})
			mw, mr := window(t, b, uverbs.MWType2)
			wr := uverbs.SendWR{Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 100)},
				RemoteAddr: mr.Addr(), RKey: b.bound(t, mw, mr, windowRights)}
			failed := uverbs.WCSuccess
			for posted, done := 0, 0; failed == uverbs.WCSuccess && done < reads || done < posted; done++ {
				for ; failed == uverbs.WCSuccess && posted < reads && posted-done < outstanding; posted++ {
					wr.ID = uint64(posted)
					must(t, a.qp.PostSend(wr))
				}
				if done == outstanding {
					c.do(t, b, mw, mr)
				}
				wc := a.next(t)
				switch {
				case wc.ID != uint64(done):
					t.Fatalf("completion of %d, want %d", wc.ID, done)
				case failed != uverbs.WCSuccess && wc.Status != uverbs.WCWRFlushErr:
					t.Fatalf("completion of %d after the failure: %s", done, wc.Status)
				case failed == uverbs.WCSuccess:
					failed = wc.Status
				}
			}
			if failed != c.want {
				t.Errorf("the reads end with %s, want %s", failed, c.want)
			}
			a.none(t)
		})
	}
}
