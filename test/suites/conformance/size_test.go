package conformance

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// sized is a sender whose queue has sizes that a test chose, and whoever receives from it.
type sized struct {
	a *side // with the QP that sends
	// request makes a signalled SEND of what sgl has, or of inline data.
	request func(sgl ...uverbs.SGE) uverbs.SendWR
	// into posts a receive of n bytes and returns what waits for it and returns its data; nil if
	// nobody receives.
	into func(t *testing.T, n int) func() []byte
	// remote is memory that the sender may write to; nil without RDMA.
	remote *uverbs.MR
}

// sizedBy makes a sender of a type of QP, which skips the test if the device does not support it.
func sizedBy(t *testing.T, typ ib.QPType, o uverbs.QPOptions) *sized {
	t.Helper()
	o.Type = typ
	switch typ {
	case ib.XRCSend:
		return sizedXRC(t, o)
	case ib.DCI:
		return sizedDC(t, o)
	case ib.RawPacket:
		testenv.Needs(t, "raw packets", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		a := rawSide(t, deviceName, o)
		rawReady(t, a)
		return &sized{a: a, request: func(sgl ...uverbs.SGE) uverbs.SendWR { return send(1, sgl...) }}
	}
	dev := openDevice(t, deviceName)
	c := &talk{a: newSide(t, dev, o), b: newSide(t, dev, uverbs.QPOptions{Type: typ, MaxRecvSGE: 1})}
	remote := c.b.mr
	if typ == ib.UD {
		c.ah, c.grh, remote = wayTo(t, c.a, c.b), uverbs.GRHSize, nil
	} else {
		connect(t, c.a, c.b)
	}
	return &sized{a: c.a, remote: remote, request: func(sgl ...uverbs.SGE) uverbs.SendWR { return c.send(1, sgl...) },
		into: func(t *testing.T, n int) func() []byte {
			must(t, c.b.qp.PostRecv(2, c.b.mr.SGE(0, c.grh+n)))
			return func() []byte {
				c.got(t, 2, n)
				return c.b.buf.Bytes()[c.grh:][:n]
			}
		}}
}

// sizedXRC is sizedBy of the sending end of an extended reliable connection.
func sizedXRC(t *testing.T, o uverbs.QPOptions) *sized {
	t.Helper()
	testenv.Needs(t, "XRC", "mlx5")
	dev := openDevice(t, deviceName)
	a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
	xrcd, err := dev.OpenXRCD(uverbs.XRCDOptions{})
	must(t, err)
	closeLater(t, xrcd)
	srq, err := b.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, XRCD: xrcd, CQ: b.cq})
	must(t, err)
	closeLater(t, srq)
	o.SendCQ = a.cq
	a.qp, err = asSide(a.pd.CreateQP(o))
	must(t, err)
	closeLater(t, a.qp)
	b.qp, err = asSide(xrcd.CreateQP(uverbs.XRCRecvOptions{Path: o.Path}))
	must(t, err)
	closeLater(t, b.qp)
	from, err := a.qp.Endpoint()
	must(t, err)
	to, err := b.qp.EndpointFor(from)
	must(t, err, a.qp.Connect(t.Context(), to), b.qp.Connect(t.Context(), from))
	return &sized{a: a, remote: b.mr, request: func(sgl ...uverbs.SGE) uverbs.SendWR {
		wr := send(1, sgl...)
		wr.RemoteSRQN = srq.SRQN()
		return wr
	}, into: func(t *testing.T, n int) func() []byte {
		must(t, srq.PostRecv(2, b.mr.SGE(0, n)))
		return func() []byte {
			if wc := b.want(t, 2, uverbs.WCRecv); int(wc.ByteLen) != n {
				t.Fatalf("received %d bytes, want %d", wc.ByteLen, n)
			}
			return b.buf.Bytes()[:n]
		}
	}}
}

// dciOptions are the options of an initiator that has the sizes of o.
func dciOptions(o uverbs.QPOptions) mlx5.DCIOptions {
	return mlx5.DCIOptions{SendCQ: o.SendCQ, MaxSendWR: o.MaxSendWR, MaxSendSGE: o.MaxSendSGE, MaxInline: o.MaxInline}
}

// sizedDC is sizedBy of an initiator of DC.
func sizedDC(t *testing.T, o uverbs.QPOptions) *sized {
	t.Helper()
	a, b := newDC(t, dciOptions(o), 0), newDC(t, mlx5.DCIOptions{}, 1)
	a.qp = &queuePair{QP: a.dci}
	target := b.targets[0]
	b.qp = &queuePair{QP: target.qp}
	to, err := target.qp.Endpoint()
	must(t, err)
	target.ah = a.address(t, to)
	return &sized{a: a.side, remote: b.mr, request: func(sgl ...uverbs.SGE) uverbs.SendWR { return target.to(send(1, sgl...)) },
		into: func(t *testing.T, n int) func() []byte {
			must(t, target.srq.PostRecv(2, b.mr.SGE(0, n)))
			return func() []byte {
				if wc := b.want(t, 2, uverbs.WCRecv); int(wc.ByteLen) != n {
					t.Fatalf("received %d bytes, want %d", wc.ByteLen, n)
				}
				return b.buf.Bytes()[:n]
			}
		}}
}

// post posts a request and checks that it completes and, where somebody receives, that the data
// come, which are want.
func (s *sized) post(t *testing.T, wr uverbs.SendWR, want []byte) {
	t.Helper()
	var got func() []byte
	if s.into != nil {
		got = s.into(t, len(want))
	}
	must(t, s.a.qp.PostSend(wr))
	s.a.want(t, 1, uverbs.WCSend)
	if got != nil && !bytes.Equal(got(), want) {
		t.Fatalf("%d bytes are not what was sent", len(want))
	}
}

// most asks for far too much of a field of QPOptions and returns the limit that the error names.
func most(t *testing.T, typ ib.QPType, field string, set func(o *uverbs.QPOptions, n int)) int {
	t.Helper()
	s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
	create := func(n int) error {
		o := uverbs.QPOptions{Type: typ, SendCQ: s.cq, MaxSendWR: 1}
		set(&o, n)
		var qp *uverbs.QP
		var err error
		switch typ {
		case ib.DCI:
			qp, err = mlx5.CreateDCI(s.pd, dciOptions(o))
		case ib.XRCSend:
			qp, err = s.pd.CreateQP(o)
		default:
			o.RecvCQ = s.cq
			qp, err = s.pd.CreateQP(o)
		}
		if err == nil {
			must(t, qp.Close())
		}
		return err
	}
	// The limit of the device may be more than this type of QP has room for.
	limit := deepest(t, field, 60000, create)
	argError(t, create(limit+1), field)
	return limit
}

// TestSizeLimits makes QPs of every type with the largest work requests that there are, in the
// shortest queues, and posts as much as that, and one more, which is refused.
func TestSizeLimits(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard, testenv.Unordered, testenv.Long)
	testenv.NeedsIB(t, "limits of work requests")
	testenv.Guest(t)
	for name, typ := range map[string]ib.QPType{"RC": reliable, "UC": ib.UC, "UD": ib.UD, "XRC send": ib.XRCSend, "DCI": ib.DCI, "raw packet": ib.RawPacket} {
		t.Run(name, func(t *testing.T) {
			sizedBy(t, typ, uverbs.QPOptions{}) // or skip
			t.Run("inline", func(t *testing.T) { sizeInline(t, typ) })
			t.Run("SGEs", func(t *testing.T) { sizeSGEs(t, typ) })
			t.Run("requests", func(t *testing.T) { sizeRequests(t, typ) })
		})
	}
}

func sizeInline(t *testing.T, typ ib.QPType) {
	limit := most(t, typ, "MaxInline", func(o *uverbs.QPOptions, n int) { o.MaxInline = n })
	s := sizedBy(t, typ, uverbs.QPOptions{MaxSendWR: 1, MaxInline: limit})
	top := s.a.qp.Caps().MaxInline
	if top < limit {
		t.Fatalf("Caps().MaxInline is %d, asked for %d", top, limit)
	}
	data := s.a.fill(0, top+1, 7)
	// Each size from the last one that leaves a unit of 16 bytes, and a block of 64, on.
	for n := max(top-70, 1); n <= top; n++ {
		wr := s.request()
		wr.Inline = data[:n]
		s.post(t, wr, data[:n])
	}
	wr := s.request()
	wr.Inline = data
	errorIs(t, s.a.qp.PostSend(wr), uverbs.ErrInlineTooLong, "%d bytes of inline data", len(data))
	wr.Inline = data[:top]
	s.post(t, wr, data[:top])
}

func sizeSGEs(t *testing.T, typ ib.QPType) {
	limit := most(t, typ, "MaxSendSGE", func(o *uverbs.QPOptions, n int) { o.MaxSendSGE = n })
	s := sizedBy(t, typ, uverbs.QPOptions{MaxSendWR: 1, MaxSendSGE: limit})
	top := s.a.qp.Caps().MaxSendSGE
	if top < limit {
		t.Fatalf("Caps().MaxSendSGE is %d, asked for %d", top, limit)
	}
	s.a.fill(0, 8192, 3)
	for _, n := range []int{1, top - 1, top} {
		sgl := s.a.scatter(0, 900, max(n, 1))
		s.post(t, s.request(sgl...), s.a.gathered(sgl))
	}
	errorIs(t, s.a.qp.PostSend(s.request(s.a.scatter(0, 900, top+1)...)), uverbs.ErrTooManySGE, "%d SGEs", top+1)
	sgl := s.a.scatter(0, 900, top)
	s.post(t, s.request(sgl...), s.a.gathered(sgl))
}

func sizeRequests(t *testing.T, typ ib.QPType) {
	for _, n := range []int{1, 2, 3} {
		s := sizedBy(t, typ, uverbs.QPOptions{MaxSendWR: n})
		top := s.a.qp.Caps().MaxSendWR
		if top < n {
			t.Fatalf("Caps().MaxSendWR is %d, asked for %d", top, n)
		}
		wr := s.request(s.a.mr.SGE(0, 64))
		if s.remote != nil { // which needs no receive
			wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, s.remote.Addr()+4096, s.remote.RKey()
		}
		for range 5 { // over the end of the ring
			must(t, s.a.qp.PostSend(slices.Repeat([]uverbs.SendWR{wr}, top)...))
			for range top {
				wc := s.a.next(t)
				if err := s.a.qp.Err(&wc); err != nil || wc.ID != 1 {
					t.Fatalf("completion of %d: %v", wc.ID, err)
				}
			}
			err := s.a.qp.PostSend(slices.Repeat([]uverbs.SendWR{wr}, top+1)...)
			if !errors.As(err, new(*uverbs.ArgError)) {
				t.Errorf("%d requests at once: %v, want an ArgError", top+1, err)
			}
			s.a.none(t)
		}
	}
}
