package conformance

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestXRC sends from one sender to two SRQs of a domain, through one receiving end.
func TestXRC(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "XRC", "mlx5")
		dev := openDevice(t, deviceName)
		a := newSide(t, dev, uverbs.QPOptions{})
		xrcd, err := dev.OpenXRCD(uverbs.XRCDOptions{})
		must(t, err)
		closeLater(t, xrcd)
		cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 64, Flags: uverbs.CQTimestamp})
		must(t, err)
		closeLater(t, cq)
		places := []*uverbs.MR{a.mr, other(t, a, uverbs.AccessLocalWrite|uverbs.AccessRelaxedOrdering)}
		if hasODP(t, dev) {
			places = append(places, other(t, a, uverbs.AccessLocalWrite|uverbs.AccessOnDemand))
		}
		var srqs []*uverbs.SRQ
		for range 2 {
			srq, err := a.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, XRCD: xrcd, CQ: cq})
			must(t, err)
			closeLater(t, srq)
			srqs = append(srqs, srq)
		}
		if srqs[0].SRQN() == srqs[1].SRQN() || srqs[0].SRQN() == 0 {
			t.Fatalf("the SRQs have the numbers %d and %d", srqs[0].SRQN(), srqs[1].SRQN())
		}
		sender, err := a.pd.CreateQP(uverbs.QPOptions{Type: uverbs.XRCSend, SendCQ: a.cq, MaxInline: 64})
		must(t, err)
		closeLater(t, sender)
		path := uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}
		receiver, err := xrcd.CreateQP(path)
		must(t, err)
		closeLater(t, receiver)
		es, err := sender.Endpoint()
		must(t, err)
		er, err := receiver.Endpoint()
		must(t, err)
		must(t, sender.Connect(t.Context(), er), receiver.Connect(t.Context(), es))

		next := func() uverbs.WC {
			t.Helper()
			var wc [1]uverbs.WC
			for end := time.Now().Add(deadline); time.Now().Before(end); {
				if n, err := cq.Poll(wc[:]); err != nil {
					t.Fatal(err)
				} else if n == 1 {
					return wc[0]
				}
			}
			t.Fatal("no completion of an SRQ")
			return wc[0]
		}
		for i := range uint64(40) {
			srq := srqs[i%3%2]
			want := a.fill(0, 100, byte(i))
			must(t, srq.PostRecv(1000+i, places[int(i)%len(places)].SGE(4096, 100)))
			wr := send(i, a.mr.SGE(0, 100))
			wr.RemoteSRQN = srq.SRQN()
			if i%2 == 1 {
				wr.SGL, wr.Inline, want = nil, bytes.Clone(want[:50]), want[:50]
			}
			if i%4 == 2 {
				wr.Opcode, wr.Imm = uverbs.WRSendWithImm, uint32(i)
			}
			must(t, sender.PostSend(wr))
			if wc := next(); wc.ID != 1000+i || wc.Err() != nil || wc.Opcode != uverbs.WCRecv || int(wc.ByteLen) != len(want) || wc.QPN != receiver.QPN() ||
				wc.Imm != wr.Imm || (wc.Flags == uverbs.WCWithImm) != (wr.Opcode == uverbs.WRSendWithImm) || wc.Timestamp == 0 {
				t.Fatalf("%d: completion %+v", i, wc)
			}
			a.holds(t, 4096, want)
			if wc := a.next(t); wc.ID != i || wc.Err() != nil || wc.Opcode != uverbs.WCSend || wc.QPN != sender.QPN() {
				t.Fatalf("%d: completion %+v", i, wc)
			}
		}
		// A READ and a WRITE name an SRQ too: it is its PD that the peer's memory must be of.
		for _, op := range []uverbs.WROpcode{uverbs.WRRDMAWrite, uverbs.WRRDMARead} {
			want := a.fill(0, 64, 77)
			wr := send(5, a.mr.SGE(0, 64))
			wr.Opcode, wr.RemoteAddr, wr.RKey, wr.RemoteSRQN = op, a.mr.Addr()+8192, a.mr.RKey(), srqs[0].SRQN()
			if op == uverbs.WRRDMARead {
				a.fill(8192, 64, 99)
				want = slices.Clone(a.buf.Bytes()[8192:8256])
			}
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.Err() != nil {
				t.Fatalf("%s: %v", op, sender.Err(&wc))
			}
			a.holds(t, 8192, want)
			a.holds(t, 0, want)
		}
		// So do atomics.
		atomics := []uverbs.WROpcode{uverbs.WRAtomicFAA, uverbs.WRAtomicCAS}
		if lacksAtomics(t, dev) {
			atomics = nil
		}
		for i, op := range atomics {
			clear(a.buf.Bytes()[8192:8200])
			a.buf.Bytes()[8192] = 5
			wr := send(5, a.mr.SGE(64, 8))
			wr.Opcode, wr.RemoteAddr, wr.RKey, wr.RemoteSRQN, wr.CompareAdd, wr.Swap = op, a.mr.Addr()+8192, a.mr.RKey(), srqs[i].SRQN(), 5, 9
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.Err() != nil {
				t.Fatalf("%s: %v", op, sender.Err(&wc))
			}
			a.holds(t, 64, []byte{5, 0, 0, 0, 0, 0, 0, 0})
			a.holds(t, 8192, []byte{map[uverbs.WROpcode]byte{uverbs.WRAtomicFAA: 10, uverbs.WRAtomicCAS: 9}[op], 0, 0, 0, 0, 0, 0, 0})
		}
		// Each has a limit of its own, and an event when fewer receives are left.
		for i := range uint64(3) {
			must(t, srqs[0].PostRecv(i, a.mr.SGE(4096, 100)), srqs[1].PostRecv(i, a.mr.SGE(4096, 100)))
		}
		must(t, srqs[0].SetLimit(1), srqs[1].SetLimit(2))
		for i := range uint64(2) {
			wr := send(i, a.mr.SGE(0, 100))
			wr.RemoteSRQN = srqs[1].SRQN()
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.Err() != nil {
				t.Fatal(sender.Err(&wc))
			}
			if wc := next(); wc.ID != i || wc.Err() != nil {
				t.Fatalf("%d: completion %+v", i, wc)
			}
		}
		if ev := event(t, dev, uverbs.EventSRQLimitReached); ev.SRQ != srqs[1] {
			t.Errorf("event %s, want one of the SRQ that was used", ev)
		}
		if attr, err := srqs[0].Query(); err != nil || attr.Limit != 1 {
			t.Errorf("the limit of the other SRQ is %d, %v; want 1", attr.Limit, err)
		}
		b := a.qp.BeginSend()
		b.Send(1, 0)
		b.ToSRQ(1)
		if err := b.Post(); err == nil {
			t.Error("an SRQ is named on an RC QP")
		}
	})
}

// TestSharedXRCD: two that open a device share a domain by a file. The second opens the receiving end
// that the first has made, connects it, and gets messages in an SRQ of its own, also when the first
// has closed what it had.
func TestSharedXRCD(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "XRC", "mlx5")
		f, err := os.Create(filepath.Join(t.TempDir(), "domain"))
		must(t, err)
		defer f.Close()
		one, two := openDevice(t, deviceName), openDevice(t, deviceName)
		if _, err := one.OpenXRCD(uverbs.XRCDOptions{File: f}); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("a file without a domain: %v, want EAGAIN", err)
		}
		first, err := one.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL})
		must(t, err)
		closeLater(t, first)
		if _, err := two.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a file with a domain, and O_EXCL: %v, want EINVAL", err)
		}
		second, err := two.OpenXRCD(uverbs.XRCDOptions{File: f})
		must(t, err)
		closeLater(t, second)

		a, b := newSide(t, one, uverbs.QPOptions{}), newSide(t, two, uverbs.QPOptions{})
		sender, err := a.pd.CreateQP(uverbs.QPOptions{Type: uverbs.XRCSend, SendCQ: a.cq, Path: uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}})
		must(t, err)
		closeLater(t, sender)
		made, err := first.CreateQP(uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)})
		must(t, err)
		closeLater(t, made)
		if _, err := second.OpenQP(sender.QPN()); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("OpenQP of a QP that is none of the domain: %v, want EINVAL", err)
		}
		es, err := sender.Endpoint()
		must(t, err)
		er, err := made.Endpoint()
		must(t, err)
		must(t, sender.Connect(t.Context(), er), made.Connect(t.Context(), es))
		opened, err := second.OpenQP(made.QPN())
		must(t, err)
		closeLater(t, opened)
		if opened.QPN() != made.QPN() || opened.State() != uverbs.QPRTS {
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
