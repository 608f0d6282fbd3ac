package conformance

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestBuilderWindow binds a window, takes it away by LOCAL_INV, binds another and takes that
// away by the peer's SEND, without structs.
func TestBuilderWindow(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "memory windows")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		first, mr := window(t, b, uverbs.MWType2)
		second, err := b.pd.AllocMW(uverbs.MWType2)
		must(t, err)
		closeLater(t, second)
		for i, mw := range []*uverbs.MW{first, second} {
			rkey := uverbs.IncRKey(mw.RKey())
			s := b.qp.BeginSend()
			s.BindMW(1, uverbs.SendSignaled, mw, rkey, mr, mr.Addr()+100, 1000, uverbs.AccessRemoteWrite)
			must(t, s.Post())
			b.want(t, 1, uverbs.WCBindMW)
			if mw.RKey() != rkey {
				t.Fatalf("the key is %#x after a bind, want %#x", mw.RKey(), rkey)
			}
			want := a.fill(0, 500, byte(i))
			s = a.qp.BeginSend()
			s.Write(2, uverbs.SendSignaled, b.mr.Addr()+100, rkey)
			s.SGE(a.mr.SGE(0, 500))
			must(t, s.Post())
			a.want(t, 2, uverbs.WCRDMAWrite)
			b.holds(t, 100, want)
			if mw == first {
				s = b.qp.BeginSend()
				s.LocalInv(3, uverbs.SendSignaled, rkey)
				s.SGE() // nothing is no data
				must(t, s.Post())
				b.want(t, 3, uverbs.WCLocalInv)
				s = b.qp.BeginSend()
				s.LocalInv(3, uverbs.SendSignaled, rkey)
				s.SGE(b.mr.SGE(0, 1))
				if err := s.Post(); !wrongField(err, "SGL", "takes no SGE") {
					t.Errorf("LOCAL_INV with data: %v, want an error about SGL", err)
				}
				continue
			}
			must(t, b.qp.PostRecv(4, b.mr.SGE(2000, 100)))
			s = a.qp.BeginSend()
			s.SendInv(5, uverbs.SendSignaled, rkey)
			s.SGE(a.mr.SGE(0, 100))
			must(t, s.Post())
			a.want(t, 5, uverbs.WCSend)
			if wc := b.want(t, 4, uverbs.WCRecv); wc.Flags&uverbs.WCWithInv == 0 || wc.InvalidatedRKey != rkey || wc.ByteLen != 100 {
				t.Errorf("completion %+v, want 100 bytes and key %#x invalidated", wc, rkey)
			}
			b.holds(t, 2000, want[:100])
			if wc := writeTo(t, a, b, 100, 10, rkey); wc.Status != uverbs.WCRemAccessErr {
				t.Errorf("a write through what was invalidated: %s", wc.Status)
			}
		}
	})
}

// TestBuilderAtomicWrite writes 8 bytes at once without structs, where the device has it.
func TestBuilderAtomicWrite(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "ATOMIC_WRITE", "rxe")
		if kernelBefore(t, 6, 2) {
			testenv.Skip(t, &uverbs.FeatureError{Feature: "ATOMIC_WRITE", Since: uverbs.Version{6, 2}})
		}
		a, b := pair(t, uverbs.QPOptions{})
		s := a.qp.BeginSend()
		s.AtomicWrite(1, 0, b.mr.Addr()+128, b.mr.RKey(), [8]byte{1, 2, 3, 4, 5, 6, 7, 8})
		s.AtomicWrite(2, uverbs.SendSignaled, b.mr.Addr()+136, b.mr.RKey(), [8]byte{9, 8, 7, 6, 5, 4, 3, 2})
		must(t, s.Post())
		a.want(t, 2, uverbs.WCAtomicWrite)
		a.none(t)
		b.holds(t, 128, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2})
		s = a.qp.BeginSend()
		s.AtomicWrite(3, uverbs.SendSignaled, b.mr.Addr()+132, b.mr.RKey(), [8]byte{})
		if err := s.Post(); !wrongField(err, "RemoteAddr", "multiple of 8") {
			t.Errorf("at an odd address: %v, want an error about RemoteAddr", err)
		}
	})
}

// TestBuilderData gives data inline, in pieces, and as lists as long as the QP takes them,
// on each transport; a datagram says where it goes first.
func TestBuilderData(t *testing.T) {
	testenv.NotOnEFA(t, "completions in the order of posting")
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "immediate data")
	eachTransport(t, uverbs.QPOptions{MaxSendSGE: 8, MaxRecvSGE: 8, MaxInline: 96}, func(t *testing.T, c *talk) {
		a, b := c.a, c.b
		limit := a.qp.Caps().MaxSendSGE
		a.fill(0, 4000, 3)
		from := a.scatter(0, 900, limit)
		want := a.gathered(from)
		inline := bytes.Clone(want[:96])
		to := func(s *uverbs.SendBuilder) {
			if c.ah != nil {
				s.To(c.ah, b.qp.QPN(), testQKey)
			}
		}
		into := b.scatter(5000, c.grh+900, 8)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 200)), b.qp.PostRecv(2, into...), b.qp.PostRecv(3, b.mr.SGE(1000, 1000)))
		s := a.qp.BeginSend()
		s.SendImm(10, 0, 77)
		to(s)
		s.Inline(inline[:1])
		s.Inline(inline[1:50])
		s.Inline(inline[50:])
		s.Send(11, 0)
		to(s)
		s.SGE(from...)
		s.Send(12, uverbs.SendSignaled)
		to(s)
		for _, sge := range from {
			s.SGE(sge)
		}
		must(t, s.Post())
		a.want(t, 12, uverbs.WCSend)
		a.none(t)
		if wc := c.got(t, 1, len(inline)); wc.Imm != 77 || wc.Flags&uverbs.WCWithImm == 0 {
			t.Errorf("immediate %d with flags %#x, want 77", wc.Imm, wc.Flags)
		}
		b.holds(t, c.grh, inline)
		c.got(t, 2, len(want))
		if !bytes.Equal(b.gathered(into)[c.grh:], want) {
			t.Error("a list is not what was sent")
		}
		c.got(t, 3, len(want))
		b.holds(t, 1000+c.grh, want)

		for _, fault := range []struct {
			field, text string
			data        func(s *uverbs.SendBuilder)
		}{
			{"SGL", uverbs.ErrTooManySGE.Error(), func(s *uverbs.SendBuilder) { to(s); s.SGE(from...); s.SGE(from[0]) }},
			{"Inline", uverbs.ErrInlineTooLong.Error(), func(s *uverbs.SendBuilder) { to(s); s.Inline(make([]byte, 1+a.qp.Caps().MaxInline)) }},
			{"AH", map[bool]string{true: "needs an open AH", false: "only UD and SRD QPs"}[c.ah != nil], func(s *uverbs.SendBuilder) {
				if c.ah == nil {
					s.To(nil, 1, 1)
				}
				s.SGE(from[0])
			}},
		} {
			s = a.qp.BeginSend()
			s.Send(20, uverbs.SendSignaled)
			to(s)
			s.SGE(from[0])
			s.Send(21, uverbs.SendSignaled)
			fault.data(s)
			var post *uverbs.PostError
			if err := s.Post(); !errors.As(err, &post) || post.Index != 1 || !wrongField(err, fault.field, fault.text) {
				t.Errorf("%v, want %s: %s at index 1", err, fault.field, fault.text)
			}
		}
		a.none(t)
	})
}
