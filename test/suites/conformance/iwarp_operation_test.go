package conformance

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// onIWARP skips a test on other transports, whose tests of the same are others.
func onIWARP(t *testing.T) {
	t.Helper()
	testenv.Guest(t)
	testenv.Needs(t, "iWARP", "siw")
}

// TestIWARPInline sends and writes as much inline data as there may be, in one piece and in several.
func TestIWARPInline(t *testing.T) {
	onIWARP(t)
	const limit = 80 // of struct siw_sqe
	a, b := pairOnce(t, uverbs.QPOptions{MaxInline: limit})
	if got := a.qp.Caps().MaxInline; got != limit {
		t.Fatalf("Caps().MaxInline is %d, want %d", got, limit)
	}
	for _, n := range []int{1, 4, 16, 17, 63, limit} {
		data := slices.Clone(a.fill(0, n, byte(n)))
		want := bytes.Clone(data)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, limit)))
		must(t, a.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, Inline: data}))
		clear(data) // it has been copied
		a.want(t, 2, uverbs.WCSend)
		if wc := b.want(t, 1, uverbs.WCRecv); int(wc.ByteLen) != n {
			t.Errorf("received %d bytes, want %d", wc.ByteLen, n)
		}
		b.holds(t, 0, want)
		s := a.qp.BeginSend()
		s.Write(3, uverbs.SendSignaled, b.mr.Addr()+300, b.mr.RKey())
		s.Inline(want[:n/2])
		s.Inline(want[n/2:])
		must(t, s.Post())
		a.want(t, 3, uverbs.WCRDMAWrite)
		b.holds(t, 300, want)
	}
	errorIs(t, a.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Inline: make([]byte, limit+1)}), uverbs.ErrInlineTooLong, "too much inline data")
	for _, op := range []uverbs.WROpcode{uverbs.WRSendWithInv, uverbs.WRRDMARead} {
		if err := a.qp.PostSend(uverbs.SendWR{Opcode: op, Inline: make([]byte, 8)}); !wrongField(err, "Inline", "cannot be combined") {
			t.Errorf("%s inline: %v", op, err)
		}
	}
	a.none(t)
}

// TestIWARPManySGEs has lists as long as they may be, on both sides; a READ goes to one place.
func TestIWARPManySGEs(t *testing.T) {
	onIWARP(t)
	const limit = 6 // of struct siw_sqe and siw_rqe
	a, b := pairOnce(t, uverbs.QPOptions{MaxSendSGE: limit, MaxRecvSGE: limit})
	if got := int(a.dev.Attr().MaxSGE); got != limit {
		t.Errorf("the device takes %d SGEs, want %d", got, limit)
	}
	a.fill(0, 32<<10, 9)
	for _, n := range []int{limit, 999, 20000} {
		from, into := a.scatter(0, n, limit), b.scatter(1000, n, limit)
		want := a.gathered(from)
		must(t, b.qp.PostRecv(1, into...), a.qp.PostSend(send(2, from...)))
		a.want(t, 2, uverbs.WCSend)
		if wc := b.want(t, 1, uverbs.WCRecv); int(wc.ByteLen) != n || !bytes.Equal(b.gathered(into), want) {
			t.Fatalf("%d of %d bytes, or they are not what was sent", wc.ByteLen, n)
		}
		wr := send(3, from...)
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr()+30001, b.mr.RKey()
		must(t, a.qp.PostSend(wr))
		a.want(t, 3, uverbs.WCRDMAWrite)
		b.holds(t, 30001, want)
		wr.ID, wr.Opcode, wr.SGL = 4, uverbs.WRRDMARead, []uverbs.SGE{a.mr.SGE(40000, n)}
		must(t, a.qp.PostSend(wr))
		a.want(t, 4, uverbs.WCRDMARead)
		a.holds(t, 40000, want)
	}
	many := a.scatter(0, 999, limit+1)
	errorIs(t, a.qp.PostSend(send(5, many...)), uverbs.ErrTooManySGE, "%d SGEs to send", len(many))
	errorIs(t, a.qp.PostRecv(5, many...), uverbs.ErrTooManySGE, "%d SGEs to receive", len(many))
	read := send(5, many[:2]...)
	read.Opcode, read.RemoteAddr, read.RKey = uverbs.WRRDMARead, b.mr.Addr(), b.mr.RKey()
	errorIs(t, a.qp.PostSend(read), uverbs.ErrTooManySGE, "a READ to two places")
	_, err := a.pd.CreateQP(uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq, MaxSendSGE: limit + 1})
	argError(t, err, "MaxSendSGE")
	_, err = a.pd.CreateQP(uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq, MaxRecvSGE: limit + 1})
	argError(t, err, "MaxRecvSGE")
	a.none(t)
}

// TestIWARPInvalidate: a key that was invalidated, by its own side or by the peer, is one that there
// is not, and the region is closed as others are.
func TestIWARPInvalidate(t *testing.T) {
	onIWARP(t)
	const n, at = 100, 5000
	region := func(t *testing.T, s *side) *uverbs.MR {
		t.Helper()
		mr, err := s.pd.RegMR(s.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead})
		must(t, err)
		closeLater(t, mr)
		return mr
	}
	write := func(a *side, mr *uverbs.MR) uverbs.SendWR {
		wr := send(1, a.mr.SGE(0, n))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, mr.Addr()+at, mr.RKey()
		return wr
	}
	for name, invalidate := range map[string]func(t *testing.T, a, b *side, key uint32){
		"LOCAL_INV": func(t *testing.T, _, b *side, key uint32) {
			must(t, b.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRLocalInv, Flags: uverbs.SendSignaled, InvalidateRKey: key}))
			b.want(t, 2, uverbs.WCLocalInv)
		},
		"SEND_WITH_INV": func(t *testing.T, a, b *side, key uint32) {
			wr := send(2, a.mr.SGE(0, n))
			wr.Opcode, wr.InvalidateRKey = uverbs.WRSendWithInv, key
			must(t, b.qp.PostRecv(3, b.mr.SGE(0, n)), a.qp.PostSend(wr))
			a.want(t, 2, uverbs.WCSend)
			if wc := b.want(t, 3, uverbs.WCRecv); wc.ByteLen != n {
				t.Errorf("received %d bytes, want %d", wc.ByteLen, n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pairOnce(t, uverbs.QPOptions{})
			mr := region(t, b)
			want := slices.Clone(a.fill(0, n, 7))
			must(t, a.qp.PostSend(write(a, mr)))
			a.want(t, 1, uverbs.WCRDMAWrite)
			b.holds(t, at, want)
			invalidate(t, a, b, mr.RKey())
			old := slices.Clone(b.fill(at, n, 8))
			must(t, a.qp.PostSend(write(a, mr)))
			a.over(t, b)
			b.holds(t, at, old)
		})
	}
	t.Run("LOCAL_INV of no key", func(t *testing.T) {
		a, _ := pairOnce(t, uverbs.QPOptions{})
		must(t, a.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRLocalInv, Flags: uverbs.SendSignaled, InvalidateRKey: a.mr.RKey() ^ 0x5500}))
		if wc := a.next(t); wc.ID != 2 || wc.Status != uverbs.WCLocQPOpErr {
			t.Errorf("completion of %d: %v", wc.ID, a.qp.Err(&wc))
		} else if err := a.qp.Err(&wc); !strings.Contains(err.Error(), "the key that it invalidates") {
			t.Error(err)
		}
		a.inError(t)
	})
	t.Run("SEND_WITH_INV of no key", func(t *testing.T) {
		a, b := pairOnce(t, uverbs.QPOptions{})
		wr := send(2, a.mr.SGE(0, n))
		wr.Opcode, wr.InvalidateRKey = uverbs.WRSendWithInv, b.mr.RKey()^0x5500
		must(t, b.qp.PostRecv(3, b.mr.SGE(0, n)), a.qp.PostSend(wr))
		if wc := b.next(t); wc.ID != 3 || wc.Status != uverbs.WCRemInvReqErr {
			t.Errorf("completion of %d: %v", wc.ID, b.qp.Err(&wc))
		}
		b.inError(t)
	})
	// For programs siw reads and leaves the key as it is; it invalidates for the kernel's own QPs.
	t.Run("READ_WITH_INV", func(t *testing.T) {
		a, b := pairOnce(t, uverbs.QPOptions{})
		mr := region(t, a)
		want := slices.Clone(b.fill(at, n, 9))
		for i := range 2 {
			clear(a.buf.Bytes()[:n])
			wr := uverbs.SendWR{ID: 4, Opcode: uverbs.WRRDMAReadWithInv, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mr.SGE(0, n)},
				RemoteAddr: b.mr.Addr() + at, RKey: b.mr.RKey()}
			must(t, a.qp.PostSend(wr))
			if a.want(t, 4, uverbs.WCRDMARead); !bytes.Equal(a.buf.Bytes()[:n], want) {
				t.Errorf("READ %d has not brought what is there", i)
			}
		}
	})
}

// TestIWARPReadAccess checks that siw ignores the access rights of memory that is read and checks
// only its key, its bounds and its PD, see TestIWARPFailedRequests; the documentation says so.
func TestIWARPReadAccess(t *testing.T) {
	onIWARP(t)
	a, b := pairOnce(t, uverbs.QPOptions{})
	for _, access := range []uverbs.Access{0, uverbs.AccessLocalWrite, uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite} {
		mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: access})
		must(t, err)
		closeLater(t, mr)
		want := slices.Clone(b.fill(100, 1000, byte(access)))
		wr := send(1, a.mr.SGE(0, 1000))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, mr.Addr()+100, mr.RKey()
		must(t, a.qp.PostSend(wr))
		a.want(t, 1, uverbs.WCRDMARead)
		a.holds(t, 0, want)
	}
}

// TestIWARPFence reads and writes the same memory in one batch over a slow link. A WRITE completes
// as soon as TCP has it, before a READ that was posted earlier, unless a fence makes it wait; it
// then has what the READ has brought. Where the processor is taken away in between, the READ may
// be first without a fence too, but not every time.
func TestIWARPFence(t *testing.T) {
	onIWARP(t)
	const n, to = 4000, 30000
	a := newSide(t, openDevice(t, rig.Devices[0]), uverbs.QPOptions{})
	b := newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
	connect(t, a, b)
	slowLink(t, "50ms")
	told := false // whether the fence makes a difference
	for round := 0; round < 3 || round < 20 && !told; round++ {
		for _, fence := range []uverbs.SendFlags{uverbs.SendFence, 0} {
			old := slices.Clone(b.fill(0, n, byte(50+round)))
			clear(a.buf.Bytes()[:n])
			clear(b.buf.Bytes()[to:][:n])
			read := uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			write := uverbs.SendWR{ID: 2, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled | fence, SGL: []uverbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr() + to, RKey: b.mr.RKey()}
			last := send(3, a.mr.SGE(0, 1))
			must(t, b.qp.PostRecv(4, b.mr.SGE(0, 1)), a.qp.PostSend(read, write, last))
			var order []uint64
			for range 3 {
				wc := a.next(t)
				must(t, a.qp.Err(&wc))
				order = append(order, wc.ID)
			}
			b.want(t, 4, uverbs.WCRecv) // behind what was written
			brought := bytes.Equal(b.buf.Bytes()[to:][:n], old)
			switch {
			case fence != 0 && (!slices.Equal(order, []uint64{1, 2, 3}) || !brought):
				t.Errorf("with a fence the order is %v, and what was written is what the READ has brought: %t", order, brought)
			case fence == 0 && slices.Equal(order, []uint64{2, 3, 1}) && !brought:
				told = true
			}
		}
	}
	if !told {
		t.Error("without the fence the WRITE waits as well: the test sees nothing")
	}
}

// TestIWARPSolicited: siw does not tell from a message whether its sender has asked for an event,
// so that who waits for such is woken by any.
func TestIWARPSolicited(t *testing.T) {
	onIWARP(t)
	a, b := pairOnce(t, uverbs.QPOptions{})
	for _, flags := range []uverbs.SendFlags{0, uverbs.SendSolicited} {
		must(t, b.cq.NotifySolicited(), b.qp.PostRecv(1, b.mr.SGE(0, 8)))
		wr := send(2, a.mr.SGE(0, 8))
		wr.Flags |= flags
		must(t, a.qp.PostSend(wr))
		raised(t, b, true)
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	}
	raised(t, b, false)
}

// TestIWARPUnsupported checks that what iWARP does not support is refused with a FeatureError that
// names the driver.
func TestIWARPUnsupported(t *testing.T) {
	onIWARP(t)
	a, _ := pairOnce(t, uverbs.QPOptions{})
	made := func(c closer, err error) error {
		if err == nil {
			closeLater(t, c)
		}
		return err
	}
	for what, ask := range map[string]func() error{
		"UC": func() error {
			return made(a.pd.CreateQP(uverbs.QPOptions{Type: ib.UC, SendCQ: a.cq, RecvCQ: a.cq}))
		},
		"UD": func() error {
			return made(a.pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: a.cq, RecvCQ: a.cq}))
		},
		"XRC": func() error {
			return made(a.pd.CreateQP(uverbs.QPOptions{Type: ib.XRCSend, SendCQ: a.cq}))
		},
		"raw packets": func() error {
			return made(a.pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, SendCQ: a.cq, RecvCQ: a.cq}))
		},
		"memory windows":      func() error { return made(a.pd.AllocMW(uverbs.MWType2)) },
		"binding":             func() error { return made(a.pd.RegMR(a.buf, uverbs.MROptions{Access: uverbs.AccessMWBind})) },
		"zero-based":          func() error { return made(a.pd.RegMR(a.buf, uverbs.MROptions{Access: uverbs.AccessZeroBased})) },
		"on-demand paging":    func() error { return made(a.pd.RegMR(a.buf, uverbs.MROptions{Access: uverbs.AccessOnDemand})) },
		"address handles":     func() error { return made(a.pd.CreateAH(uverbs.AHAttr{Port: 1})) },
		"an end of a path":    func() error { _, err := a.qp.Endpoint(); return err },
		"connecting by hand":  func() error { return a.qp.Connect(t.Context(), uverbs.Endpoint{}) },
		"CQ of another size":  func() error { return a.cq.Resize(512) },
		"SRQ of another size": func() error { return errSRQResize(t, a) },
		"completions of 64 B": func() error { return made(a.dev.CreateCQ(uverbs.CQOptions{Size: 8, CQESize: 64})) },
	} {
		var f *uverbs.FeatureError
		if err := ask(); !errors.As(err, &f) || !errors.Is(err, errors.ErrUnsupported) || f.Driver != "siw" {
			t.Errorf("%s: %v", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	for _, op := range []uverbs.WROpcode{uverbs.WRCompareSwap, uverbs.WRFetchAdd, uverbs.WRSendWithImm, uverbs.WRRDMAWriteWithImm, uverbs.WRBindMW, uverbs.WRFlush, uverbs.WRAtomicWrite} {
		errorIs(t, a.qp.PostSend(uverbs.SendWR{Opcode: op}), uverbs.ErrOpcode, "%s", op)
	}
}

// errSRQResize asks for an SRQ of another size.
func errSRQResize(t *testing.T, s *side) error {
	t.Helper()
	srq, err := s.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 4})
	must(t, err)
	defer srq.Close()
	return srq.Resize(64)
}
