package conformance

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// window allocates a window of side b and registers all of b's buffer for windows. It skips the
// test if the kernel does not support windows.
func window(t *testing.T, b *side, typ uverbs.MWType) (*uverbs.MW, *uverbs.MR) {
	t.Helper()
	mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: rightsOnDevice(b.dev, remoteRights) | uverbs.AccessMWBind})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, mr)
	mw, err := b.pd.AllocMW(typ)
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, mw) // before its MR, which stays as long as a window is bound to it
	return mw, mr
}

// bind binds a window of side b to 1000 bytes at 100 and returns its key.
func bind(t *testing.T, b *side, mw *uverbs.MW, mr *uverbs.MR) uint32 {
	t.Helper()
	old := mw.RKey()
	must(t, b.qp.PostSend(uverbs.SendWR{ID: 50, Opcode: uverbs.WRBindMW, Flags: uverbs.SendSignaled, Bind: uverbs.BindInfo{
		MW: mw, MR: mr, Addr: mr.Addr() + 100, Length: 1000, Access: uverbs.AccessRemoteWrite,
	}}))
	b.want(t, 50, uverbs.WCBindMW)
	if mw.RKey() != uverbs.IncRKey(old) {
		t.Fatalf("the key is %#x after a bind, want %#x", mw.RKey(), uverbs.IncRKey(old))
	}
	return mw.RKey()
}

// writeTo writes through a key and returns the completion.
func writeTo(t *testing.T, a, b *side, offset, n int, rkey uint32) uverbs.WC {
	t.Helper()
	wr := send(1, a.mr.SGE(0, n))
	wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr()+uint64(offset), rkey
	must(t, a.qp.PostSend(wr))
	return a.next(t)
}

// TestWindow writes through windows of both types, and does nothing that they are not for.
func TestWindow(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		for _, typ := range []uverbs.MWType{uverbs.MWType1, uverbs.MWType2} {
			t.Run(typ.String(), func(t *testing.T) {
				a, b := pair(t, uverbs.QPOptions{})
				mw, mr := window(t, b, typ)
				rkey := bind(t, b, mw, mr)
				want := a.fill(0, 500, 5)
				wc := writeTo(t, a, b, 100, 500, rkey)
				must(t, a.qp.Err(&wc))
				b.holds(t, 100, want)
				if typ == uverbs.MWType1 { // it can be bound again
					old := rkey
					rkey = bind(t, b, mw, mr)
					wc = writeTo(t, a, b, 600, 500, rkey)
					must(t, a.qp.Err(&wc))
					if wc = writeTo(t, a, b, 600, 500, old); wc.Status != uverbs.WCRemAccessErr {
						t.Errorf("a write with the key of before: %s", wc.Status)
					}
					says(t, a.qp.Err(&wc), fmt.Sprintf("rkey %#x was that of a memory window of type 1; it has %#x now", old, rkey))
					return
				}
				// rxe checks the rights of a window, and its bounds by those of the MR.
				wr := send(2, a.mr.SGE(0, 10))
				wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, b.mr.Addr()+100, rkey
				must(t, a.qp.PostSend(wr))
				if wc = a.next(t); wc.Status != uverbs.WCRemAccessErr {
					t.Errorf("a read through a window for writing: %s", wc.Status)
				}
				says(t, a.qp.Err(&wc), fmt.Sprintf("rkey %#x belongs to a memory window of type 2", rkey))
				// A window is for the peer: its own side names the MR.
				must(t, b.qp.PostSend(send(3, uverbs.SGE{Addr: mr.Addr() + 100, Length: 10, LKey: rkey})))
				if wc = b.next(t); wc.Err() == nil {
					t.Error("a window was taken for local memory")
				}
				says(t, b.qp.Err(&wc), fmt.Sprintf("the lkey %#x of SGE 0 is the key of a memory window", rkey))
			})
		}
	})
}

// TestWindowInvalidate takes a window of type 2 away, by its owner and by the peer, and binds it
// again.
func TestWindowInvalidate(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		for _, who := range []string{"local", "remote"} {
			t.Run(who, func(t *testing.T) {
				a, b := pair(t, uverbs.QPOptions{})
				mw, mr := window(t, b, uverbs.MWType2)
				rkey := bind(t, b, mw, mr)
				wc := writeTo(t, a, b, 100, 10, rkey)
				must(t, a.qp.Err(&wc))
				if who == "local" {
					must(t, b.qp.PostSend(uverbs.SendWR{ID: 3, Opcode: uverbs.WRLocalInv, Flags: uverbs.SendSignaled, InvalidateRKey: rkey}))
					b.want(t, 3, uverbs.WCLocalInv)
				} else {
					wr := send(4, a.mr.SGE(0, 10))
					wr.Opcode, wr.InvalidateRKey = uverbs.WRSendWithInv, rkey
					must(t, b.qp.PostRecv(5, b.mr.SGE(0, 10)), a.qp.PostSend(wr))
					a.want(t, 4, uverbs.WCSend)
					wc := b.want(t, 5, uverbs.WCRecv)
					if wc.Flags&uverbs.WCWithInv == 0 || wc.InvalidatedRKey != rkey {
						t.Errorf("invalidated %#x with flags %#x, want %#x", wc.InvalidatedRKey, wc.Flags, rkey)
					}
				}
				again := bind(t, b, mw, mr) // it can be bound again, with the next key
				if again != uverbs.IncRKey(rkey) {
					t.Errorf("bound again the key is %#x, want the one after %#x", again, rkey)
				}
				wc = writeTo(t, a, b, 100, 10, again)
				must(t, a.qp.Err(&wc))
				if wc = writeTo(t, a, b, 100, 10, rkey); wc.Status != uverbs.WCRemAccessErr {
					t.Errorf("a write by the key that was invalidated: %s", wc.Status)
				}
			})
		}
	})
}

// TestWindowErrors: what cannot be bound is refused, and the window keeps its key.
func TestWindowErrors(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "memory windows")
	eachPath(t, func(t *testing.T) {
		_, b := pair(t, uverbs.QPOptions{})
		mw, mr := window(t, b, uverbs.MWType2)
		other := newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
		foreign, foreignMR := window(t, other, uverbs.MWType2)
		key := mw.RKey()
		for _, c := range []struct {
			wr          uverbs.SendWR
			field, text string
		}{
			{uverbs.SendWR{Opcode: uverbs.WRBindMW}, "Bind", "open MW"},
			{uverbs.SendWR{Opcode: uverbs.WRBindMW, Bind: uverbs.BindInfo{MW: mw}}, "Bind", "open MW"},
			{uverbs.SendWR{Opcode: uverbs.WRBindMW, Bind: uverbs.BindInfo{MW: foreign, MR: mr}}, "Bind", "another device"},
			{uverbs.SendWR{Opcode: uverbs.WRBindMW, Bind: uverbs.BindInfo{MW: mw, MR: foreignMR}}, "Bind", "another device"},
			{uverbs.SendWR{Opcode: uverbs.WRBindMW, RKey: key + 0x100, Bind: uverbs.BindInfo{MW: mw, MR: mr}}, "RKey", "last 8 bits"},
		} {
			good := uverbs.SendWR{Opcode: uverbs.WRBindMW, Bind: uverbs.BindInfo{MW: mw, MR: mr, Addr: mr.Addr(), Length: 1}}
			if err := b.qp.PostSend(good, c.wr); !wrongField(err, c.field, c.text) {
				t.Errorf("%v, want %s: %s", err, c.field, c.text)
			}
			if mw.RKey() != key {
				t.Fatalf("the key is %#x after a refusal, was %#x", mw.RKey(), key)
			}
		}
		b.none(t)
		// An MR that was not registered for windows: the device says so.
		err := b.qp.PostSend(uverbs.SendWR{ID: 6, Opcode: uverbs.WRBindMW, Flags: uverbs.SendSignaled,
			Bind: uverbs.BindInfo{MW: mw, MR: b.mr, Addr: b.mr.Addr(), Length: 10, Access: uverbs.AccessRemoteRead}})
		if onMLX5 { // or else the library, since ConnectX does not look
			if !wrongField(err, "Bind.MR", "without AccessMWBind") {
				t.Errorf("a bind to an MR without AccessMWBind: %v", err)
			}
			return
		}
		must(t, err)
		if wc := b.next(t); wc.Status != uverbs.WCMWBindErr && wc.Status != uverbs.WCWRFlushErr { // the latter on 7.2
			t.Errorf("a bind to an MR without AccessMWBind: %s", b.qp.Err(&wc))
		}
	})
}
