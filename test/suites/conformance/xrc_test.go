package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// xrcPair is an XRC send QP that is connected to the receiving QP of a domain with two SRQs.
type xrcPair struct {
	*side    // PD, CQ and memory of the sender
	srqs     [2]*uverbs.SRQ
	recvCQ   *uverbs.CQ // of both SRQs
	sender   *uverbs.QP
	receiver *uverbs.QP
}

// newXRCPair makes a domain, its SRQs and a connected pair of QPs on one device, with the option OutOfOrder if
// unordered is set.
func newXRCPair(t *testing.T, unordered bool) *xrcPair {
	t.Helper()
	dev := openDevice(t, deviceName)
	p := &xrcPair{side: newSide(t, dev, uverbs.QPOptions{})}
	xrcd, err := dev.OpenXRCD(uverbs.XRCDOptions{})
	must(t, err)
	closeLater(t, xrcd)
	p.recvCQ, err = dev.CreateCQ(uverbs.CQOptions{Size: 64, Flags: uverbs.CQTimestamp})
	must(t, err)
	closeLater(t, p.recvCQ)
	for i := range p.srqs {
		p.srqs[i], err = p.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, XRCD: xrcd, CQ: p.recvCQ})
		must(t, err)
		closeLater(t, p.srqs[i])
	}
	if p.srqs[0].SRQN() == p.srqs[1].SRQN() || p.srqs[0].SRQN() == 0 {
		t.Fatalf("the SRQs have the numbers %d and %d", p.srqs[0].SRQN(), p.srqs[1].SRQN())
	}
	p.sender, err = p.pd.CreateQP(uverbs.QPOptions{Type: ib.XRCSend, SendCQ: p.cq, MaxInline: 64, OutOfOrder: unordered})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, p.sender)
	p.receiver, err = xrcd.CreateQP(uverbs.XRCRecvOptions{Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}, OutOfOrder: unordered})
	must(t, err)
	closeLater(t, p.receiver)
	es, err := p.sender.Endpoint()
	must(t, err)
	er, err := p.receiver.Endpoint()
	must(t, err)
	err = p.sender.Connect(t.Context(), er)
	testenv.Skip(t, err) // on a card with OutOfOrder for other types
	must(t, err, p.receiver.Connect(t.Context(), es))
	return p
}

// nextRecv returns the next completion of the SRQs.
func (p *xrcPair) nextRecv(t *testing.T) uverbs.WC {
	t.Helper()
	var wc [1]uverbs.WC
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		if n, err := p.recvCQ.Poll(wc[:]); err != nil {
			t.Fatal(err)
		} else if n == 1 {
			return wc[0]
		}
	}
	t.Fatal("no completion of an SRQ")
	return wc[0]
}

// done posts a request, which must succeed.
func (p *xrcPair) done(t *testing.T, wr uverbs.SendWR) {
	t.Helper()
	must(t, p.sender.PostSend(wr))
	if wc := p.next(t); wc.Err() != nil {
		t.Fatalf("%s: %v", wr.Opcode, p.sender.Err(&wc))
	}
}

// TestXRC sends from one QP to two SRQs of an XRC domain, through one receiving QP.
func TestXRC(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "XRC", "mlx5")
		p := newXRCPair(t, false)
		xrcSends(t, p)
		xrcReadsWrites(t, p)
		xrcAtomics(t, p)
		xrcLimits(t, p)
		b := p.qp.BeginSend()
		b.Send(1, 0)
		b.ToSRQ(1)
		if err := b.Post(); err == nil {
			t.Error("an SRQ is named on an RC QP")
		}
	})
}

// xrcSends sends messages to both SRQs, inline and from memory, with and without immediate data,
// to memory of different kinds.
func xrcSends(t *testing.T, p *xrcPair) {
	mrs := []*uverbs.MR{p.mr, other(t, p.side, uverbs.AccessLocalWrite|uverbs.AccessRelaxedOrdering)}
	if hasODP(t, p.dev) {
		mrs = append(mrs, other(t, p.side, uverbs.AccessLocalWrite|uverbs.AccessOnDemand))
	}
	for i := range uint64(40) {
		srq := p.srqs[i%3%2]
		want := p.fill(0, 100, byte(i))
		must(t, srq.PostRecv(1000+i, mrs[int(i)%len(mrs)].SGE(4096, 100)))
		wr := send(i, p.mr.SGE(0, 100))
		wr.RemoteSRQN = srq.SRQN()
		if i%2 == 1 {
			wr.SGL, wr.Inline, want = nil, bytes.Clone(want[:50]), want[:50]
		}
		if i%4 == 2 {
			wr.Opcode, wr.Imm = uverbs.WRSendWithImm, uint32(i)
		}
		must(t, p.sender.PostSend(wr))
		if wc := p.nextRecv(t); wc.ID != 1000+i || wc.Err() != nil || wc.Opcode != uverbs.WCRecv || int(wc.ByteLen) != len(want) || wc.QPN != p.receiver.QPN() ||
			wc.Imm != wr.Imm || (wc.Flags == uverbs.WCWithImm) != (wr.Opcode == uverbs.WRSendWithImm) || wc.Timestamp == 0 {
			t.Fatalf("%d: completion %+v", i, wc)
		}
		p.holds(t, 4096, want)
		if wc := p.next(t); wc.ID != i || wc.Err() != nil || wc.Opcode != uverbs.WCSend || wc.QPN != p.sender.QPN() {
			t.Fatalf("%d: completion %+v", i, wc)
		}
	}
}

// xrcReadsWrites reads and writes. These operations name an SRQ too: the peer's memory must be of
// its PD.
func xrcReadsWrites(t *testing.T, p *xrcPair) {
	for _, op := range []uverbs.WROpcode{uverbs.WRRDMAWrite, uverbs.WRRDMARead} {
		want := p.fill(0, 64, 77)
		wr := send(5, p.mr.SGE(0, 64))
		wr.Opcode, wr.RemoteAddr, wr.RKey, wr.RemoteSRQN = op, p.mr.Addr()+8192, p.mr.RKey(), p.srqs[0].SRQN()
		if op == uverbs.WRRDMARead {
			p.fill(8192, 64, 99)
			want = slices.Clone(p.buf.Bytes()[8192:8256])
		}
		p.done(t, wr)
		p.holds(t, 8192, want)
		p.holds(t, 0, want)
	}
}

// xrcAtomics does atomic operations, which name an SRQ too, if the device has them.
func xrcAtomics(t *testing.T, p *xrcPair) {
	if lacksAtomics(t, p.dev) {
		return
	}
	for i, op := range []uverbs.WROpcode{uverbs.WRFetchAdd, uverbs.WRCompareSwap} {
		clear(p.buf.Bytes()[8192:8200])
		p.buf.Bytes()[8192] = 5
		wr := send(5, p.mr.SGE(64, 8))
		wr.Opcode, wr.RemoteAddr, wr.RKey, wr.RemoteSRQN, wr.CompareAdd, wr.Swap = op, p.mr.Addr()+8192, p.mr.RKey(), p.srqs[i].SRQN(), 5, 9
		p.done(t, wr)
		p.holds(t, 64, []byte{5, 0, 0, 0, 0, 0, 0, 0})
		p.holds(t, 8192, []byte{map[uverbs.WROpcode]byte{uverbs.WRFetchAdd: 10, uverbs.WRCompareSwap: 9}[op], 0, 0, 0, 0, 0, 0, 0})
	}
}

// xrcLimits checks that each SRQ has its own limit, and that only the SRQ with fewer receives than
// its limit raises an event.
func xrcLimits(t *testing.T, p *xrcPair) {
	for i := range uint64(3) {
		must(t, p.srqs[0].PostRecv(i, p.mr.SGE(4096, 100)), p.srqs[1].PostRecv(i, p.mr.SGE(4096, 100)))
	}
	must(t, p.srqs[0].SetLimit(1), p.srqs[1].SetLimit(2))
	for i := range uint64(2) {
		wr := send(i, p.mr.SGE(0, 100))
		wr.RemoteSRQN = p.srqs[1].SRQN()
		p.done(t, wr)
		if wc := p.nextRecv(t); wc.ID != i || wc.Err() != nil {
			t.Fatalf("%d: completion %+v", i, wc)
		}
	}
	if ev := event(t, p.dev, uverbs.EventSRQLimitReached); ev.SRQ != p.srqs[1] {
		t.Errorf("event %s, want one of the SRQ that was used", ev)
	}
	if attr, err := p.srqs[0].Query(); err != nil || attr.Limit != 1 {
		t.Errorf("the limit of the other SRQ is %d, %v; want 1", attr.Limit, err)
	}
}

// TestSharedXRCD shares an XRC domain between two opens of a device through a file. The second
// opens the receiving QP that the first has created, connects it, and gets messages in its own SRQ,
// even after the first has closed its objects.
func TestSharedXRCD(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "XRC", "mlx5")
		f, err := os.Create(filepath.Join(t.TempDir(), "domain"))
		must(t, err)
		defer f.Close()
		one, two := openDevice(t, deviceName), openDevice(t, deviceName)
		errorIs(t, errorOf(one.OpenXRCD(uverbs.XRCDOptions{File: f})), syscall.EAGAIN, "a file without a domain")
		first, err := one.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL})
		must(t, err)
		closeLater(t, first)
		errorIs(t, errorOf(two.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL})), syscall.EINVAL, "a file with a domain, and O_EXCL")
		second, err := two.OpenXRCD(uverbs.XRCDOptions{File: f})
		must(t, err)
		closeLater(t, second)

		a, b := newSide(t, one, uverbs.QPOptions{}), newSide(t, two, uverbs.QPOptions{})
		sender, err := a.pd.CreateQP(uverbs.QPOptions{Type: ib.XRCSend, SendCQ: a.cq, Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}})
		must(t, err)
		closeLater(t, sender)
		made, err := first.CreateQP(uverbs.XRCRecvOptions{Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}})
		must(t, err)
		closeLater(t, made)
		errorIs(t, errorOf(second.OpenQP(sender.QPN())), syscall.EINVAL, "OpenQP of a QP that is none of the domain")
		es, err := sender.Endpoint()
		must(t, err)
		er, err := made.Endpoint()
		must(t, err)
		must(t, sender.Connect(t.Context(), er), made.Connect(t.Context(), es))
		opened, err := second.OpenQP(made.QPN())
		must(t, err)
		closeLater(t, opened)
		if opened.QPN() != made.QPN() || opened.State() != ib.QPRTS {
			t.Errorf("the QP that was opened is %d in %s, want %d in RTS", opened.QPN(), opened.State(), made.QPN())
		}
		srq, err := b.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, XRCD: second, CQ: b.cq})
		must(t, err)
		closeLater(t, srq)
		for i := range uint64(2) {
			want := a.fill(0, 300, byte(i+1))
			must(t, srq.PostRecv(10+i, b.mr.SGE(0, 300)))
			wr := send(i, a.mr.SGE(0, 300))
			wr.RemoteSRQN = srq.SRQN()
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.ID != i || wc.Err() != nil {
				t.Fatalf("message %d: %v", i, sender.Err(&wc))
			}
			if wc := b.next(t); wc.ID != 10+i || wc.Err() != nil || wc.QPN != opened.QPN() {
				t.Errorf("message %d: completion %+v", i, wc)
			}
			b.holds(t, 0, want)
			must(t, made.Close(), first.Close()) // the second still has the QP
		}
	})
}
