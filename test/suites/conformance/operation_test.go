package conformance

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestUC: an unreliable connection sends and writes, and has nothing that needs an answer.
func TestUC(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{Type: ib.UC})
		attr, err := a.qp.Query()
		must(t, err)
		if attr.State != ib.QPRTS || attr.DestQPN != b.qp.QPN() {
			t.Fatalf("state %s to QP %d, want RTS to QP %d", attr.State, attr.DestQPN, b.qp.QPN())
		}
		for _, n := range []int{0, 1, 1024, 5000} {
			want := a.fill(0, n, byte(n))
			must(t, b.qp.PostRecv(1, b.mr.SGE(32768, 20000)), a.qp.PostSend(send(2, a.mr.SGE(0, n))))
			a.want(t, 2, uverbs.WCSend)
			if wc := b.want(t, 1, uverbs.WCRecv); int(wc.ByteLen) != n {
				t.Fatalf("received %d bytes, want %d", wc.ByteLen, n)
			}
			b.holds(t, 32768, want)

			wr := send(3, a.mr.SGE(0, n))
			wr.Opcode, wr.Imm, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWriteWithImm, 77, b.mr.Addr(), b.mr.RKey()
			must(t, b.qp.PostRecv(4), a.qp.PostSend(wr))
			a.want(t, 3, uverbs.WCRDMAWrite)
			if wc := b.want(t, 4, uverbs.WCRecvRDMAWrite); wc.Imm != 77 {
				t.Fatalf("immediate %d, want 77", wc.Imm)
			}
			b.holds(t, 0, want)
		}
		for _, op := range []uverbs.WROpcode{uverbs.WRRDMARead, uverbs.WRCompareSwap, uverbs.WRFetchAdd, uverbs.WRAtomicWrite, uverbs.WRFlush} {
			errorIs(t, a.qp.PostSend(uverbs.SendWR{Opcode: op}), uverbs.ErrOpcode, "%s on UC", op)
		}
		if !onMLX5 { // which takes it; rxe's kernel says that it has it, and fails
			op := uverbs.WRSendWithInv
			errorIs(t, a.qp.PostSend(uverbs.SendWR{Opcode: op}), uverbs.ErrOpcode, "%s on UC", op)
		}
	})
}

// TestUCLostMessage checks that a message without a receive is lost on a UC QP, and that its sender
// gets no error.
func TestUCLostMessage(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{Type: ib.UC})
		must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 10))))
		a.want(t, 1, uverbs.WCSend)
		b.none(t)
	})
}

// word is 8 bytes of a side's buffer as a number.
func (s *side) word(offset int) uint64 { return binary.NativeEndian.Uint64(s.buf.Bytes()[offset:]) }

func (s *side) setWord(offset int, v uint64) {
	binary.NativeEndian.PutUint64(s.buf.Bytes()[offset:], v)
}

func TestAtomic(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard, testenv.Unordered)
	testenv.NeedsIB(t, "atomics")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		b.setWord(64, 1000)
		wr := send(1, a.mr.SGE(8, 8))
		wr.RemoteAddr, wr.RKey = b.mr.Addr()+64, b.mr.RKey()
		if lacksAtomics(t, a.dev) {
			for _, wr.Opcode = range []uverbs.WROpcode{uverbs.WRFetchAdd, uverbs.WRCompareSwap} {
				errorIs(t, a.qp.PostSend(wr), errors.ErrUnsupported, "%s on a device without atomic operations", wr.Opcode)
			}
			a.none(t)
			return
		}

		wr.Opcode, wr.CompareAdd = uverbs.WRFetchAdd, 1<<63+5
		must(t, a.qp.PostSend(wr))
		if wc := a.want(t, 1, uverbs.WCFetchAdd); wc.ByteLen != 8 && wc.ByteLen != 0 {
			t.Errorf("length %d", wc.ByteLen)
		}
		if a.word(8) != 1000 || b.word(64) != 1<<63+1005 {
			t.Fatalf("fetched %d, now %#x", a.word(8), b.word(64))
		}
		wr.Opcode, wr.CompareAdd, wr.Swap = uverbs.WRCompareSwap, 7, 8 // does not compare
		must(t, a.qp.PostSend(wr))
		a.want(t, 1, uverbs.WCCompareSwap)
		if a.word(8) != 1<<63+1005 || b.word(64) != 1<<63+1005 {
			t.Fatalf("fetched %#x, now %#x", a.word(8), b.word(64))
		}
		wr.CompareAdd = 1<<63 + 1005
		must(t, a.qp.PostSend(wr))
		a.want(t, 1, uverbs.WCCompareSwap)
		if b.word(64) != 8 {
			t.Fatalf("swapped to %d, want 8", b.word(64))
		}
		wr.RemoteAddr += 4
		if err := a.qp.PostSend(wr); !wrongField(err, "RemoteAddr", "multiple of 8") {
			t.Errorf("an atomic at an odd address: %v", err)
		}
	})
}

// TestAtomicWrite: kernels that do not have it say so in the completion.
func TestAtomicWrite(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "ATOMIC_WRITE", "rxe")
		a, b := pair(t, uverbs.QPOptions{})
		b.setWord(128, 1)
		value := []byte{1, 2, 3, 4, 5, 6, 7, 8}
		must(t, a.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRAtomicWrite, Flags: uverbs.SendSignaled, Inline: value,
			RemoteAddr: b.mr.Addr() + 128, RKey: b.mr.RKey()}))
		wc := a.next(t)
		if old := kernelBefore(t, 6, 2); old {
			if wc.Status == uverbs.WCSuccess && b.word(128) != 1 {
				t.Error("the kernel has it already")
			}
			testenv.Skip(t, &uverbs.FeatureError{Feature: "ATOMIC_WRITE", Since: uverbs.Version{6, 2}})
			return
		}
		must(t, a.qp.Err(&wc))
		if wc.Opcode != uverbs.WCAtomicWrite {
			t.Errorf("completion of %s", wc.Opcode)
		}
		b.holds(t, 128, value)
	})
}

// TestFlush makes sure that what was written is visible, or says that the kernel cannot.
func TestFlush(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "FLUSH", "rxe")
		rights := uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessFlushGlobal
		a, b := pair(t, uverbs.QPOptions{Path: uverbs.PathOptions{Access: rights}})
		mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: rights})
		if kernelBefore(t, 6, 2) {
			// Older ones take the bit for nothing, or refuse it.
			if err == nil {
				must(t, mr.Close())
			}
			testenv.Skip(t, &uverbs.FeatureError{Feature: "FLUSH", Since: uverbs.Version{6, 2}})
		}
		must(t, err)
		closeLater(t, mr)
		want := a.fill(0, 100, 1)
		s := a.qp.BeginSend()
		s.Write(1, 0, mr.Addr(), mr.RKey())
		s.SGE(a.mr.SGE(0, 100))
		s.Flush(2, uverbs.SendSignaled, mr.Addr(), 100, mr.RKey(), uverbs.FlushGlobal, uverbs.FlushRange)
		must(t, s.Post())
		a.want(t, 2, uverbs.WCFlush)
		b.holds(t, 0, want)
		must(t, a.qp.PostSend(uverbs.SendWR{ID: 3, Opcode: uverbs.WRFlush, Flags: uverbs.SendSignaled, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
			Placement: uverbs.FlushGlobal, Level: uverbs.FlushMR}))
		a.want(t, 3, uverbs.WCFlush)
		must(t, a.qp.PostSend(uverbs.SendWR{ID: 4, Opcode: uverbs.WRFlush, Flags: uverbs.SendSignaled, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
			Length: 10, Placement: uverbs.FlushPersistent}))
		if wc := a.next(t); wc.Status != uverbs.WCRemAccessErr && wc.Status != uverbs.WCRemInvReqErr {
			t.Errorf("a flush to persistence without the right: %s", wc.Status)
		}
	})
}

// kernelBefore reports whether the kernel is older than a version.
func kernelBefore(t *testing.T, major, minor int) bool {
	k := testenv.Kernel(t)
	return k[0] < major || k[0] == major && k[1] < minor
}

// rxeBefore reports whether the devices are rxe's and the kernel is older than a version.
func rxeBefore(t *testing.T, major, minor int) bool {
	return !onMLX5 && !rig.EFA() && kernelBefore(t, major, minor)
}

// TestBuilder does the work of the slice API without structs.
func TestBuilder(t *testing.T) {
	testenv.NotOnEFA(t, "completions in the order of posting")
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "immediate data")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{MaxSendSGE: 2, MaxInline: 64})
		want := a.fill(0, 300, 1)
		b.setWord(8192, 40)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)), b.qp.PostRecv(2, b.mr.SGE(1000, 1000)), b.qp.PostRecv(3))

		s := a.qp.BeginSend()
		s.Send(10, 0)
		s.SGE(a.mr.SGE(0, 100))
		s.SGE(a.mr.SGE(100, 200))
		s.SendImm(11, 0, 99)
		s.Inline(want[:20])
		s.Inline(want[20:50])
		s.Write(12, 0, b.mr.Addr()+4096, b.mr.RKey())
		s.SGE(a.mr.SGE(0, 300))
		s.WriteImm(13, 0, b.mr.Addr()+5000, b.mr.RKey(), 98)
		s.SGE(a.mr.SGE(0, 10))
		atomics := !lacksAtomics(t, a.dev)
		if atomics {
			s.FetchAdd(14, 0, b.mr.Addr()+8192, b.mr.RKey(), 2)
			s.SGE(a.mr.SGE(2000, 8))
			s.CompareSwap(15, 0, b.mr.Addr()+8192, b.mr.RKey(), 42, 50)
			s.SGE(a.mr.SGE(2008, 8))
		}
		s.Read(16, uverbs.SendSignaled, b.mr.Addr()+4096, b.mr.RKey())
		s.SGE(a.mr.SGE(3000, 300))
		must(t, s.Post())
		a.want(t, 16, uverbs.WCRDMARead)
		a.none(t)
		a.holds(t, 3000, want)
		if atomics && (a.word(2000) != 40 || a.word(2008) != 42 || b.word(8192) != 50) {
			t.Errorf("atomics: fetched %d and %d, now %d", a.word(2000), a.word(2008), b.word(8192))
		}
		b.want(t, 1, uverbs.WCRecv)
		b.holds(t, 0, want)
		if wc := b.want(t, 2, uverbs.WCRecv); wc.Imm != 99 || wc.ByteLen != 50 {
			t.Errorf("inline: %+v", wc)
		}
		b.holds(t, 1000, want[:50])
		if wc := b.want(t, 3, uverbs.WCRecvRDMAWrite); wc.Imm != 98 {
			t.Errorf("write with immediate: %+v", wc)
		}

		// A batch that is abandoned or faulty is not posted, and the next batch is.
		s = a.qp.BeginSend()
		s.Send(20, uverbs.SendSignaled)
		s.SGE(a.mr.SGE(0, 1))
		s.Abandon()
		must(t, s.Post())
		s = a.qp.BeginSend()
		s.Send(21, uverbs.SendSignaled)
		s.Read(22, uverbs.SendSignaled, b.mr.Addr(), b.mr.RKey())
		s.Inline(want[:8])
		s.Send(23, uverbs.SendSignaled)
		var post *uverbs.PostError
		if err := s.Post(); !errors.As(err, &post) || post.Index != 1 || !wrongField(err, "Inline", "cannot be combined") {
			t.Errorf("a faulty batch: %v", err)
		}
		s = a.qp.BeginSend()
		s.SGE(a.mr.SGE(0, 1))
		if err := s.Post(); !wrongField(err, "", "no work request was begun") {
			t.Errorf("data for nothing: %v", err)
		}
		a.none(t)
		must(t, b.qp.PostRecv(4, b.mr.SGE(0, 100)))
		s = a.qp.BeginSend()
		s.Send(24, uverbs.SendSignaled)
		s.SGE(a.mr.SGE(0, 100))
		must(t, s.Post())
		a.want(t, 24, uverbs.WCSend)
		b.want(t, 4, uverbs.WCRecv)
	})
}

// TestBuilderDoesNotAllocate: neither does the slice API, which is made of it.
func TestBuilderDoesNotAllocate(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Memory)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		sgl, to := []uverbs.SGE{a.mr.SGE(0, 64)}, a.qp.peer
		into := b.mr.SGE(0, 64)
		if n := testing.AllocsPerRun(50, func() {
			must(t, b.qp.PostRecv(1, into))
			s := a.qp.BeginSend()
			s.Send(2, uverbs.SendSignaled)
			if to.ah != nil {
				s.To(to.ah, to.qpn, to.qkey)
			}
			s.SGE(sgl...)
			must(t, s.Post())
			a.want(t, 2, uverbs.WCSend)
			b.want(t, 1, uverbs.WCRecv)
		}); n != 0 {
			t.Errorf("%v allocations, want 0", n)
		}
	})
}
