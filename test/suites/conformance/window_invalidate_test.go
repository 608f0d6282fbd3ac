package conformance

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// invalidateCase is a key to invalidate.
type invalidateCase struct {
	name string
	key  func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32
	ok   bool
}

// tolerated returns what becomes of the case: rxe does not look at the QP of a window, which alone may
// invalidate it.
func (c invalidateCase) tolerated(t *testing.T) invalidateCase {
	if strings.HasPrefix(c.name, "window of") && onRxe && testenv.KnownBug(t, "window-of-another-qp") {
		c.ok = true
	}
	return c
}

// onRxe says that the devices belong to the kernel's rxe.
var onRxe = !onMLX5 && !rig.EFA() && !rig.Soft

// invalidateCases are the keys of TestInvalidateKeys.
var invalidateCases = []invalidateCase{
	{"own key", func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
		return b.bound(t, mw, mr, windowRights)
	}, true},
	{"own key with other low bits", func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
		return uverbs.IncRKey(b.bound(t, mw, mr, windowRights))
	}, false},
	{"unknown key", func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
		return b.bound(t, mw, mr, windowRights) + 50<<8
	}, false},
	{"key of a region", func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
		return mr.RKey()
	}, false},
	{"key of a type 1 window", func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
		return b.bound(t, newWindow(t, b.pd, uverbs.MWType1), mr, windowRights)
	}, false},
	{"window of another QP", func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
		other := twin(t, b)
		peerOf(t, other)
		closeLater(t, mw) // before the other QP, see TestWindowLifetime
		return other.bound(t, mw, mr, windowRights)
	}, false},
	{"window of the sender", func(t *testing.T, a, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
		own, region := window(t, a, uverbs.MWType2)
		return a.bound(t, own, region, windowRights)
	}, false},
}

// TestInvalidateKeys invalidates keys of windows and other keys, from this side and from the peer. No window
// is invalidated twice, since rxe would follow a nil pointer.
func TestInvalidateKeys(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "memory windows")
	needWindows(t)
	for _, c := range invalidateCases {
		t.Run("local, "+c.name, func(t *testing.T) { invalidateLocal(t, c.tolerated(t)) })
		t.Run("remote, "+c.name, func(t *testing.T) { invalidateRemote(t, c.tolerated(t)) })
	}
	t.Run("remote, no receive", invalidateWithoutReceive)
}

// invalidateLocal invalidates a key with LOCAL_INV.
func invalidateLocal(t *testing.T, c invalidateCase) {
	a, b := pair(t, uverbs.QPOptions{})
	mw, mr := window(t, b, uverbs.MWType2)
	wr := uverbs.SendWR{ID: 3, Opcode: uverbs.WRLocalInv, InvalidateRKey: c.key(t, a, b, mw, mr)}
	if c.ok {
		wr.Flags = uverbs.SendSignaled // an error completes without it
	}
	must(t, b.qp.PostSend(wr))
	if c.ok {
		b.want(t, 3, uverbs.WCLocalInv)
	} else {
		want := uverbs.WCMWBindErr
		if onRxe {
			want = uverbs.WCLocQPOpErr
		}
		b.fails(t, 3, want, "LOCAL_INV")
	}
}

// invalidateRemote invalidates a key with the peer's SEND_WITH_INV.
func invalidateRemote(t *testing.T, c invalidateCase) {
	a, b := pair(t, uverbs.QPOptions{})
	mw, mr := window(t, b, uverbs.MWType2)
	wr := send(4)
	wr.Opcode, wr.InvalidateRKey = uverbs.WRSendWithInv, c.key(t, a, b, mw, mr)
	must(t, b.qp.PostRecv(5), a.qp.PostSend(wr))
	if !c.ok && onMLX5 { // the peer's QP breaks, and says so
		b.breaksWith(t, 5, uverbs.WCLocAccessErr, "")
		a.breaksWith(t, 4, uverbs.WCRemAccessErr, "SEND_WITH_INV")
		return
	}
	if !c.ok {
		// The peer's QP breaks, and rxe acknowledges the SEND all the same. The
		// specification has it neither acknowledged nor refused.
		testenv.NeedsNoLoss(t, "a QP that is broken does not repeat the acknowledgement")
		b.breaksWith(t, 5, uverbs.WCRemInvReqErr, "")
		a.want(t, 4, uverbs.WCSend)
		return
	}
	a.want(t, 4, uverbs.WCSend)
	wc := b.want(t, 5, uverbs.WCRecv)
	if wc.Flags&uverbs.WCWithInv == 0 || wc.InvalidatedRKey != wr.InvalidateRKey || wc.ByteLen != 0 {
		t.Errorf("invalidated %#x with flags %#x and %d bytes, want %#x and none", wc.InvalidatedRKey, wc.Flags, wc.ByteLen, wr.InvalidateRKey)
	}
}

// invalidateWithoutReceive sends a SEND_WITH_INV for which there is no receive, and which invalidates
// nothing.
func invalidateWithoutReceive(t *testing.T) {
	a, b := pair(t, uverbs.QPOptions{Path: uverbs.PathOptions{RNRRetry: 1, MinRNRTimer: 1}})
	mw, mr := window(t, b, uverbs.MWType2)
	wr := send(4)
	wr.Opcode, wr.InvalidateRKey = uverbs.WRSendWithInv, b.bound(t, mw, mr, windowRights)
	must(t, a.qp.PostSend(wr))
	a.breaksWith(t, 4, uverbs.WCRNRRetryExcErr, "SEND_WITH_INV")
	stillBound(t, mr)
}

// refusesBound reports whether a region with a window is known not to be closed. mlx5_ib of Linux 5.10
// does not say what the device answers: the region is gone for the program, and its key stays,
// with which the PD cannot be closed any more. That of Linux 6.12 frees the key by a work request, which the
// model of a card does though a window is bound; what a card does no source at hand tells.
func refusesBound(t *testing.T) bool {
	t.Helper()
	return !onMLX5 || !kernelBefore(t, 6, 0) && !(testenv.Modelled() && since(t, 6, 12))
}

// stillBound checks that a region cannot be closed because of a window.
func stillBound(t *testing.T, mr *uverbs.MR) {
	t.Helper()
	refusal := syscall.EINVAL
	if onMLX5 {
		refusal = syscall.EBUSY
	}
	if !refusesBound(t) {
		lack := &uverbs.FeatureError{Feature: "refusal of DEREG_MR"}
		if kernelBefore(t, 6, 0) {
			lack.Since = uverbs.Version{6, 0}
		}
		testenv.Lacks(t, lack)
		return
	}
	if err := mr.Close(); !errors.Is(err, refusal) || !strings.Contains(err.Error(), "a memory window may still be bound to it") {
		t.Errorf("close a region with a window: %v, want %v and why", err, refusal)
	}
}

// TestWindowLifetime closes MRs, QPs and windows while a window is bound, and checks what can still
// be used.
func TestWindowLifetime(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "memory windows")
	needWindows(t)
	for _, c := range []struct {
		name string
		typ  uverbs.MWType
		do   func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR)
		ok   bool // the window can be used afterwards
	}{
		{"close the region", uverbs.MWType1, nil, true},
		{"close the region", uverbs.MWType2, nil, true},
		{"close the window", uverbs.MWType1, func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) {
			must(t, mw.Close())
		}, false},
		{"close the window", uverbs.MWType2, func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) {
			must(t, mw.Close())
		}, false},
		{"unbind", uverbs.MWType1, func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) {
			wr := binding(8, mw, mr, 0)
			wr.Bind.Length = 0
			must(t, b.qp.PostSend(wr))
			b.want(t, 8, uverbs.WCBindMW)
		}, false},
		// A QP that a window of type 2 is bound to must not be closed: rxe frees it, and the
		// window goes on pointing to it.
		{"close the QP", uverbs.MWType1, func(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) {
			must(t, b.qp.Close())
		}, true},
	} {
		t.Run(c.typ.String()+", "+c.name, func(t *testing.T) {
			a, b := pair(t, uverbs.QPOptions{})
			mw, mr := window(t, b, c.typ)
			rkey := b.bound(t, mw, mr, windowRights)
			stillBound(t, mr)
			if c.do != nil {
				c.do(t, b, mw, mr)
			}
			if c.typ == uverbs.MWType1 {
				a = peerOf(t, twin(t, b))
			}
			wr := request(a, b, uverbs.WRRDMAWrite, a.mr.SGE(ourPlace, 8), mr.Addr()+theirPlace, rkey)
			must(t, a.qp.PostSend(wr))
			if c.ok {
				a.want(t, 1, uverbs.WCRDMAWrite)
				words(t, a, b, ours, ours)
				stillBound(t, mr)
				return
			}
			a.breaksWith(t, 1, uverbs.WCRemAccessErr, "RDMA_WRITE")
			words(t, a, b, ours, before)
			must(t, mr.Close())
		})
	}
}
