package conformance

import (
	"bytes"
	"os"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// TestNullMR: a receive and a READ drop what they put into memory that is none, between pieces
// that they keep, and what is sent from there is zeros.
func TestNullMR(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		null, err := dev.NullLKey()
		if !onMLX5 {
			absent(t, err, "ALLOC_NULL_MR")
			return
		}
		must(t, err)
		a, b := newSide(t, dev, uverbs.QPOptions{MaxSendSGE: 3, MaxRecvSGE: 3}), newSide(t, dev, uverbs.QPOptions{MaxSendSGE: 3, MaxRecvSGE: 3})
		connect(t, a, b)
		around := func(s *side) []uverbs.SGE {
			return []uverbs.SGE{s.mr.SGE(8192, 10), {Addr: 0x1234, Length: 3000, LKey: null}, s.mr.SGE(8300, 20)}
		}
		check := func(s *side, what string, want []byte) {
			t.Helper()
			got := s.buf.Bytes()[8192:8400]
			clean := bytes.Clone(got)
			clear(clean[:10])
			clear(clean[108:128])
			if !bytes.Equal(got[:10], want[:10]) || !bytes.Equal(got[108:128], want[3010:]) || bytes.Count(clean, []byte{0}) != len(clean) {
				t.Errorf("%s around memory that is none leaves %x, want %x and %x", what, got, want[:10], want[3010:])
			}
		}
		want := a.fill(0, 3030, 5)
		clear(b.buf.Bytes()[8192:8400])
		must(t, b.qp.PostRecv(1, around(b)...), a.qp.PostSend(send(2, a.mr.SGE(0, 3030))))
		a.want(t, 2, uverbs.WCSend)
		if wc := b.want(t, 1, uverbs.WCRecv); wc.ByteLen != 3030 {
			t.Errorf("%d bytes were received, want 3030", wc.ByteLen)
		}
		check(b, "a receive", want)

		want = b.fill(0, 3030, 77)
		clear(a.buf.Bytes()[8192:8400])
		must(t, a.qp.PostSend(uverbs.SendWR{ID: 3, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: around(a), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		a.want(t, 3, uverbs.WCRDMARead)
		check(a, "a READ", want)

		want = a.fill(0, 30, 9)
		b.fill(4096, 130, 1)
		must(t, a.qp.PostSend(uverbs.SendWR{ID: 4, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, RemoteAddr: b.mr.Addr() + 4096, RKey: b.mr.RKey(),
			SGL: []uverbs.SGE{a.mr.SGE(0, 10), {Length: 100, LKey: null}, a.mr.SGE(10, 20)}}))
		a.want(t, 4, uverbs.WCRDMAWrite)
		b.holds(t, 4096, append(append(bytes.Clone(want[:10]), make([]byte, 100)...), want[10:]...))
	})
}

// TestImplicitODP registers all memory of the process if the device supports that, and has the kernel page some of
// it in. Otherwise the test checks what the error says.
func TestImplicitODP(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		mr, err := b.pd.RegImplicit(remoteRights)
		const implicit = 2 // IB_UVERBS_ODP_SUPPORT_IMPLICIT
		switch caps := dev.Attr().ODPGeneralCaps; {
		case caps == 0:
			absent(t, err, "on-demand paging")
			return
		case caps&implicit == 0:
			absent(t, err, "implicit on-demand paging")
			return
		}
		must(t, err)
		closeLater(t, mr)
		buf := newBuffer(t, 1<<20) // after the registration
		want := a.fill(0, 1000, 3)
		addr := addrOf(buf)
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 1000), addr, mr.RKey()); st != uverbs.WCSuccess || !bytes.Equal(buf.Bytes()[:1000], want) {
			t.Errorf("RDMA WRITE: %s, or it is not there", st)
		}
		waits := []bool{true, false}
		if os.Getenv("RDMAABI") == "write" { // advice has no legacy command
			waits = nil
		}
		for _, wait := range waits {
			const size = 4 << 20
			buf := newBuffer(t, size)
			sge := uverbs.SGE{Addr: addrOf(buf), Length: size, LKey: mr.LKey()}
			must(t, b.pd.AdviseMR(uverbs.AdvicePrefetchWrite, []uverbs.SGE{sge}, uverbs.AdviseOptions{Flush: wait}))
			if n := resident(t, buf); wait && n < size*3/4 {
				t.Errorf("of %d bytes %d became resident", size, n)
			}
			if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 1000), sge.Addr+size/2, mr.RKey()); st != uverbs.WCSuccess || !bytes.Equal(buf.Bytes()[size/2:][:1000], want) {
				t.Errorf("RDMA WRITE after advice: %s, or it is not there", st)
			}
		}
	})
}

// throughDMABuf moves data into and out of the memory of a dma-buf, which the file memory is too.
func throughDMABuf(t *testing.T, dev *uverbs.Device, f, memory *os.File) {
	t.Helper()
	a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
	connect(t, a, b)
	mr, err := b.pd.RegDMABuf(f, uverbs.MROptions{Offset: 4096, Length: 8192, Access: rightsOnDevice(dev, remoteRights)})
	must(t, err)
	closeLater(t, mr)
	const at = 4000 // over the end of the region's first page
	want := a.fill(0, 1000, 11)
	if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 1000), mr.Addr()+at, mr.RKey()); st != uverbs.WCSuccess {
		t.Errorf("RDMA WRITE to a dma-buf: %s", st)
	}
	got := make([]byte, 1000)
	_, err = memory.ReadAt(got, 4096+at)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("what was written by RDMA is not in the dma-buf's memory")
	}
	for i := range got {
		got[i] ^= 0x55
	}
	_, err = memory.WriteAt(got, 4096+at)
	must(t, err)
	if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(8192, 1000), mr.Addr()+at, mr.RKey()); st != uverbs.WCSuccess {
		t.Errorf("RDMA READ of a dma-buf: %s", st)
	}
	a.holds(t, 8192, got)
	must(t, b.qp.PostRecv(1, mr.SGE(0, 100)), a.qp.PostSend(send(2, a.mr.SGE(0, 100))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
	_, err = memory.ReadAt(got[:100], 4096)
	must(t, err)
	if !bytes.Equal(got[:100], want[:100]) {
		t.Error("what was received is not in the dma-buf's memory")
	}
	if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 10), mr.Addr()+8190, mr.RKey()); st != uverbs.WCRemAccessErr {
		t.Errorf("RDMA WRITE beyond a region of a dma-buf: %s", st)
	}
}
