package conformance

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// talk is two sides of a transport, and what is particular to it.
type talk struct {
	a, b *side
	ah   *uverbs.AH // ah leads from a to b; nil where there is a connection
	grh  int        // grh is what a receive has before the data, in bytes
}

// eachTransport runs a test once for each of RC, UC and UD, on the way to the kernel that the
// library chooses: what is posted takes none.
func eachTransport(t *testing.T, o uverbs.QPOptions, test func(t *testing.T, c *talk)) {
	testenv.Guest(t)
	for _, typ := range []ib.QPType{reliable, ib.UC, ib.UD} {
		t.Run(typ.String(), func(t *testing.T) { test(t, newTalk(t, typ, o)) })
	}
}

// newTalk makes two sides of a transport.
func newTalk(t *testing.T, typ ib.QPType, o uverbs.QPOptions) *talk {
	t.Helper()
	o.Type = typ
	if typ != ib.UD {
		a, b := pair(t, o)
		return &talk{a: a, b: b}
	}
	a, b, ah := udPair(t, o)
	return &talk{a: a, b: b, ah: ah, grh: uverbs.GRHSize}
}

// send is a signalled SEND from a to b.
func (c *talk) send(id uint64, sgl ...uverbs.SGE) uverbs.SendWR {
	if c.ah != nil {
		return datagram(id, c.ah, c.b, sgl...)
	}
	return send(id, sgl...)
}

// got waits for a receive and checks how many bytes came.
func (c *talk) got(t *testing.T, id uint64, n int) uverbs.WC {
	t.Helper()
	wc := c.b.want(t, id, uverbs.WCRecv)
	if int(wc.ByteLen) != c.grh+n {
		t.Fatalf("received %d bytes, want %d", wc.ByteLen, c.grh+n)
	}
	return wc
}

// scatter cuts n bytes of a side's buffer into k SGEs of uneven lengths, which are apart and
// in falling order.
func (s *side) scatter(offset, n, k int) (sgl []uverbs.SGE) {
	for left := k; left > 0; left-- {
		length := n / left
		if left > 1 {
			length += (left%3 - 1) * length / 2
		}
		n -= length
		sgl = append(sgl, s.mr.SGE(offset+n+5*left, length))
	}
	return sgl
}

// gathered returns the bytes of a list.
func (s *side) gathered(sgl []uverbs.SGE) (data []byte) {
	for _, sge := range sgl {
		data = append(data, s.buf.Bytes()[sge.Addr-s.mr.Addr():][:sge.Length]...)
	}
	return data
}

// TestSGELimit has lists as long as the device takes them, on both sides and in order; one
// SGE more is refused.
func TestSGELimit(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "SGE limits that can be exceeded")
	testenv.Guest(t)
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			limit := most(t, typ, "MaxSendSGE", func(o *uverbs.QPOptions, n int) { o.MaxSendSGE = n })
			if limit < 20 {
				t.Fatalf("the device takes %d SGEs", limit)
			}
			c := newTalk(t, typ, uverbs.QPOptions{MaxSendSGE: limit, MaxRecvSGE: limit})
			a, b := c.a, c.b
			a.fill(0, 32<<10, 9)
			for _, n := range []int{limit, 999, 20000} {
				if c.ah != nil && n > 1000 {
					continue // it is one packet
				}
				from, into := a.scatter(0, n, limit), b.scatter(1000, c.grh+n, limit)
				want := a.gathered(from)
				must(t, b.qp.PostRecv(1, into...), a.qp.PostSend(c.send(2, from...)))
				a.want(t, 2, uverbs.WCSend)
				c.got(t, 1, n)
				if !bytes.Equal(b.gathered(into)[c.grh:], want) {
					t.Fatalf("%d bytes in %d SGEs are not what was sent", n, limit)
				}
				if c.ah != nil {
					continue
				}
				wr := send(3, from...)
				wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr()+30001, b.mr.RKey()
				clear(b.buf.Bytes())
				must(t, a.qp.PostSend(wr))
				a.want(t, 3, uverbs.WCRDMAWrite)
				if typ == ib.UC { // what follows completes after it
					must(t, b.qp.PostRecv(4), a.qp.PostSend(c.send(5)))
					a.want(t, 5, uverbs.WCSend)
					c.got(t, 4, 0)
				}
				b.holds(t, 30001, want)
				if typ != ib.RC {
					continue
				}
				back := a.scatter(33000, n, min(limit, int(a.dev.Attr().MaxSGERead)))
				wr.ID, wr.Opcode, wr.SGL = 6, uverbs.WRRDMARead, back
				must(t, a.qp.PostSend(wr))
				a.want(t, 6, uverbs.WCRDMARead)
				if !bytes.Equal(a.gathered(back), want) {
					t.Fatalf("%d bytes in %d SGEs are not what was read", n, len(back))
				}
			}
			var post *uverbs.PostError
			many := a.scatter(0, 999, a.qp.Caps().MaxSendSGE+1)
			if err := a.qp.PostSend(c.send(7), c.send(8, many...)); !errors.As(err, &post) || post.Index != 1 || !errors.Is(err, uverbs.ErrTooManySGE) {
				t.Errorf("%d SGEs to send: %v, want ErrTooManySGE at index 1", len(many), err)
			}
			many = b.scatter(0, 999, b.qp.Caps().MaxRecvSGE+1)
			errorIs(t, b.qp.PostRecv(9, many...), uverbs.ErrTooManySGE, "%d SGEs to receive", len(many))
			_, err := a.pd.CreateQP(uverbs.QPOptions{Type: typ, SendCQ: a.cq, RecvCQ: a.cq, MaxSendSGE: limit + 1})
			argError(t, err, "MaxSendSGE")
			a.none(t)
		})
	}
}

// TestSRQLimitOfSGEs receives into lists as long as an SRQ takes them.
func TestSRQLimitOfSGEs(t *testing.T) {
	testenv.NeedsIB(t, "SGE limits that can be exceeded")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		limit := int(dev.Attr().MaxSRQSGE)
		pd, srq := newSRQ(t, dev, uverbs.SRQOptions{MaxWR: 8, MaxSGE: limit})
		if got := srq.Attr().MaxSGE; limit < 20 || got < limit {
			t.Fatalf("the SRQ takes %d SGEs, the device %d", got, limit)
		}
		buf := newBuffer(t, bufferSize)
		mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		closeLater(t, mr)
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 64})
		must(t, err)
		closeLater(t, cq)
		qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq})
		must(t, err, qp.Init())
		closeLater(t, qp)
		b := &side{dev: dev, pd: pd, buf: buf, mr: mr, cq: cq, qp: &queuePair{QP: qp}}
		a := newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		for i, n := range []int{limit, 999, 20000} {
			want := a.fill(0, n, byte(i))
			into := b.scatter(500, n, limit)
			must(t, srq.PostRecv(uint64(i), into...), a.qp.PostSend(send(2, a.mr.SGE(0, n))))
			a.want(t, 2, uverbs.WCSend)
			if wc := b.want(t, uint64(i), uverbs.WCRecv); int(wc.ByteLen) != n || !bytes.Equal(b.gathered(into), want) {
				t.Fatalf("%d of %d bytes in %d SGEs, or they are not what was sent", wc.ByteLen, n, limit)
			}
		}
		errorIs(t, srq.PostRecv(9, b.scatter(0, 999, srq.Attr().MaxSGE+1)...), uverbs.ErrTooManySGE, "one SGE more")
		_, err = pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, MaxSGE: limit + 1})
		argError(t, err, "MaxSGE")
	})
}

// TestTransports: what RC has tests of its own for, each transport does.
func TestTransports(t *testing.T) {
	testenv.NeedsIB(t, "inline data of 128 bytes")
	eachTransport(t, uverbs.QPOptions{MaxInline: 128, MaxSendWR: 32, MaxRecvWR: 32}, func(t *testing.T, c *talk) {
		a, b := c.a, c.b
		// Inline data, in one piece, with an immediate.
		data := []byte("inline data that lives on the Go heap")
		want := bytes.Clone(data)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 200)))
		wr := c.send(2)
		wr.Opcode, wr.Imm, wr.Inline = uverbs.WRSendWithImm, 0xfffefdfc, data
		must(t, a.qp.PostSend(wr))
		clear(data)
		a.want(t, 2, uverbs.WCSend)
		if wc := c.got(t, 1, len(want)); wc.Imm != wr.Imm || wc.Flags&uverbs.WCWithImm == 0 {
			t.Errorf("immediate %#x with flags %#x, want %#x", wc.Imm, wc.Flags, wr.Imm)
		}
		b.holds(t, c.grh, want)
		wr.Inline = make([]byte, a.qp.Caps().MaxInline+1)
		errorIs(t, a.qp.PostSend(wr), uverbs.ErrInlineTooLong, "%d bytes inline", len(wr.Inline))

		// A run without completions, longer than the queue, and the one at its end.
		rounds := 3 * a.qp.Caps().MaxSendWR / 8
		for round := range rounds {
			var list []uverbs.SendWR
			for i := range uint64(8) {
				a.setWord(int(8*i), uint64(round)<<8|i)
				wr := c.send(i, a.mr.SGE(int(8*i), 8))
				if i < 7 {
					wr.Flags = 0
				}
				list = append(list, wr)
				must(t, b.qp.PostRecv(10+i, b.mr.SGE(int(100*i), 100)))
			}
			must(t, a.qp.PostSend(list...))
			a.want(t, 7, uverbs.WCSend)
			for i := range uint64(8) {
				c.got(t, 10+i, 8)
				if got := b.word(int(100*i) + c.grh); got != uint64(round)<<8|i {
					t.Fatalf("message %d of round %d holds %#x", i, round, got)
				}
			}
		}
		a.none(t)

		// Who asks for the solicited has an event for those alone.
		must(t, b.qp.PostRecv(20, b.mr.SGE(0, 100)), b.qp.PostRecv(21, b.mr.SGE(0, 100)), b.cq.NotifySolicited())
		must(t, a.qp.PostSend(c.send(22, a.mr.SGE(0, 8))))
		a.want(t, 22, uverbs.WCSend)
		c.got(t, 20, 8)
		raised(t, b, false)
		wr = c.send(23, a.mr.SGE(0, 8))
		wr.Flags |= uverbs.SendSolicited
		must(t, a.qp.PostSend(wr))
		raised(t, b, true)
		a.want(t, 23, uverbs.WCSend)
		c.got(t, 21, 8)
	})
}

// TestWindowUC binds a window by the work request of a UC QP, writes through it, and not once
// it is gone.
func TestWindowUC(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	a, b := pair(t, uverbs.QPOptions{Type: ib.UC})
	mw, mr := window(t, b, uverbs.MWType2)
	rkey := bind(t, b, mw, mr)
	want := a.fill(0, 500, 5)
	wr := send(1, a.mr.SGE(0, 500))
	wr.Opcode, wr.Imm, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWriteWithImm, 7, b.mr.Addr()+100, rkey
	must(t, b.qp.PostRecv(2), a.qp.PostSend(wr))
	a.want(t, 1, uverbs.WCRDMAWrite)
	b.want(t, 2, uverbs.WCRecvRDMAWrite)
	b.holds(t, 100, want)
	inv := uverbs.SendWR{ID: 3, Opcode: uverbs.WRLocalInv, Flags: uverbs.SendSignaled, InvalidateRKey: rkey}
	if onMLX5 {
		must(t, b.qp.PostSend(inv))
		b.want(t, 3, uverbs.WCLocalInv)
	} else { // rxe has that on RC alone
		errorIs(t, b.qp.PostSend(inv), uverbs.ErrOpcode, "LOCAL_INV on UC")
		must(t, mw.Close())
	}
	wr.Opcode = uverbs.WRRDMAWrite
	a.fill(0, 500, 6)
	must(t, a.qp.PostSend(wr))
	a.want(t, 1, uverbs.WCRDMAWrite) // the sender never learns
	b.none(t)
	if bytes.Equal(b.buf.Bytes()[100:600], a.buf.Bytes()[:500]) {
		t.Error("a write through the key of a window that is gone has an effect")
	}
}
