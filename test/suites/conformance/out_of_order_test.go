package conformance

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// TestOutOfOrder keeps the receive queue of a QP with the option OutOfOrder full: there is room for
// another receive after each completion, whichever receive it is of, and for no more than the queue
// has. Each message is in the receive that its completion names. After Reset the QP does so again.
func TestOutOfOrder(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "OutOfOrder", "mlx5")
		for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
			t.Run(typ.String(), func(t *testing.T) { outOfOrder(t, typ) })
		}
	})
}

// outOfOrderSize is the size of a receive of TestOutOfOrder.
const outOfOrderSize = 128

// outOfOrder tests a type.
func outOfOrder(t *testing.T, typ ib.QPType) {
	dev := openDevice(t, deviceName)
	o := uverbs.QPOptions{Type: typ, MaxRecvWR: 8, OutOfOrder: true}
	pd := newPD(t, dev)
	cq, err := dev.CreateCQ(uverbs.CQOptions{})
	must(t, err)
	closeLater(t, cq)
	o.SendCQ, o.RecvCQ = cq, cq
	probe, err := pd.CreateQP(o)
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, probe)
	ready := probe.Init
	if typ == ib.UD {
		ready = func() error { return probe.ReadyUD(testQKey) }
	}
	err = ready()
	testenv.Skip(t, err) // on a card with the option for other types
	must(t, err)
	o.SendCQ, o.RecvCQ = nil, nil
	var a, b *side
	var ah *uverbs.AH
	if typ == ib.UD {
		a, b, ah = udPair(t, o)
	} else {
		a, b = pair(t, o)
	}
	posted := b.qp.Caps().MaxRecvWR
	if posted != o.MaxRecvWR {
		t.Errorf("there is room for %d receives, want %d", posted, o.MaxRecvWR)
	}
	messagesOutOfOrder(t, a, b, ah, 300)
	if got, err := b.qp.DataInOrder(uverbs.WRRDMAWrite); got != 0 || err != nil {
		t.Errorf("data is in order: %v, %v", got, err)
	}
	must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	flushed := map[uint64]bool{}
	for range posted {
		wc := b.next(t)
		if wc.Status != uverbs.WCWRFlushErr || wc.ID >= uint64(posted) || flushed[wc.ID] {
			t.Errorf("completion %+v, want that of a flush", wc)
		}
		flushed[wc.ID] = true
	}
	b.none(t)

	// The second connection begins with an empty queue, and in any order again.
	again := func(s *side) {
		t.Helper()
		must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
		if typ == ib.UD {
			must(t, s.qp.ReadyUD(testQKey))
		} else {
			must(t, s.qp.Init())
		}
	}
	again(a)
	again(b)
	if typ != ib.UD {
		connect(t, a, b)
	}
	messagesOutOfOrder(t, a, b, ah, 100)
	again(b) // with receives in the queue
	b.none(t)
	for id := range uint64(posted) {
		must(t, b.qp.PostRecv(id, b.mr.SGE(0, outOfOrderSize)))
	}
	errorIs(t, b.qp.PostRecv(99, b.mr.SGE(0, outOfOrderSize)), uverbs.ErrQueueFull, "more than %d receives after Reset", posted)
}

// messagesOutOfOrder fills the empty receive queue of b and sends n messages from a, each of which takes a receive
// that is posted again. It leaves the queue full.
func messagesOutOfOrder(t *testing.T, a, b *side, ah *uverbs.AH, n uint64) {
	t.Helper()
	const size = outOfOrderSize
	posted := b.qp.Caps().MaxRecvWR
	under := map[uint64]bool{}
	post := func(id uint64) {
		t.Helper()
		if err := b.qp.PostRecv(id, b.mr.SGE(int(id)*size, size)); err != nil {
			t.Fatalf("receive %d with %d others: %v", id, len(under), err)
		}
		under[id] = true
	}
	full := func() {
		t.Helper()
		if err := b.qp.PostRecv(99, b.mr.SGE(0, size)); !errors.Is(err, uverbs.ErrQueueFull) {
			t.Fatalf("more than %d receives: %v, want %v", posted, err, uverbs.ErrQueueFull)
		}
	}
	for id := range uint64(posted) {
		post(id)
	}
	full()
	head := 0
	wr := send(1, a.mr.SGE(0, 8))
	if ah != nil {
		head = uverbs.GRHSize
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, b.qp.QPN(), testQKey
	}
	turned, last := uint64(0), uint64(posted-1)
	for i := range n {
		binary.NativeEndian.PutUint64(a.buf.Bytes(), i)
		wr, at, sent := wr, -1, uverbs.WCSend
		if ah == nil && i%3 == 1 { // takes a receive, and nothing of its memory
			at, sent = 1<<15, uverbs.WCRDMAWrite
			wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWriteWithImm, b.mr.Addr()+uint64(at), b.mr.RKey()
		}
		must(t, a.qp.PostSend(wr))
		a.want(t, 1, sent)
		wc := b.next(t)
		if wc.Err() != nil || !under[wc.ID] || int(wc.ByteLen) != head+8 {
			t.Fatalf("message %d: completion %+v", i, wc)
		}
		delete(under, wc.ID)
		if at < 0 {
			at = int(wc.ID)*size + head
		}
		if got := binary.NativeEndian.Uint64(b.buf.Bytes()[at:]); got != i {
			t.Fatalf("receive %d has message %d, want %d", wc.ID, got, i)
		}
		if wc.ID != (last+1)%uint64(posted) {
			turned++
		}
		last = wc.ID
		post(wc.ID)
		full()
	}
	if turned < n/30 && testenv.Modelled() {
		t.Errorf("%d of %d receives out of order", turned, n)
	}
}

// TestOutOfOrderSRQ does the same with an SRQ, of a QP of RC, of XRC and of a target of DC. The entries of an
// SRQ are a list, so none of them waits for others.
func TestOutOfOrderSRQ(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	const posted = 8
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "OutOfOrder", "mlx5")
		t.Run("RC", func(t *testing.T) {
			dev := openDevice(t, deviceName)
			a := newSide(t, dev, uverbs.QPOptions{}) // its PD has the SRQ
			srq, err := a.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: posted})
			must(t, err)
			closeLater(t, srq)
			o := uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq, OutOfOrder: true}
			q, err := a.pd.CreateQP(o)
			testenv.Skip(t, err)
			must(t, err)
			closeLater(t, q)
			o.SRQ = srq
			r, err := a.pd.CreateQP(o)
			must(t, err)
			closeLater(t, r)
			here, err := q.Endpoint()
			must(t, err)
			there, err := r.Endpoint()
			must(t, err, q.Connect(t.Context(), there), r.Connect(t.Context(), here))
			srqOutOfOrder(t, a, srq, posted, func(wr uverbs.SendWR) error { return q.PostSend(wr) }, a.next)
		})
		t.Run("XRC", func(t *testing.T) {
			p := newXRCPair(t, true)
			srqOutOfOrder(t, p.side, p.srqs[0], posted, func(wr uverbs.SendWR) error {
				wr.RemoteSRQN = p.srqs[0].SRQN()
				return p.sender.PostSend(wr)
			}, p.nextRecv)
		})
		t.Run("DC", func(t *testing.T) {
			r := newDC(t, mlx5.DCIOptions{OutOfOrder: true}, 1)
			d := &r.targets[0]
			srqOutOfOrder(t, r.side, d.srq, posted, func(wr uverbs.SendWR) error { return r.dci.PostSend(d.to(wr)) }, r.next)
		})
	})
}

// srqOutOfOrder keeps some receives in an SRQ and sends messages, one after the other. a has the memory and the
// completions of sends, and next returns those of the SRQ.
func srqOutOfOrder(t *testing.T, a *side, srq *uverbs.SRQ, posted uint64, post func(uverbs.SendWR) error, next func(*testing.T) uverbs.WC) {
	t.Helper()
	const at, size, sends = 4096, outOfOrderSize, 1000
	var list []uint64 // the receives, in the order in which they were posted
	recv := func(id uint64) {
		t.Helper()
		must(t, srq.PostRecv(id, a.mr.SGE(at+int(id)*size, size)))
		list = append(list, id)
	}
	for id := range posted {
		recv(id)
	}
	turned := 0
	for i := range uint64(200) {
		binary.NativeEndian.PutUint64(a.buf.Bytes(), i)
		must(t, post(send(sends, a.mr.SGE(0, 8))))
		sent, got := a.next(t), next(t)
		if sent.ID != sends { // a CQ of both has them in any order
			sent, got = got, sent
		}
		n := slices.Index(list, got.ID)
		if sent.ID != sends || sent.Err() != nil || got.Err() != nil || got.ByteLen != 8 || n < 0 {
			t.Fatalf("message %d: completions %+v and %+v, want one of the receives %d", i, sent, got, list)
		}
		if text := binary.NativeEndian.Uint64(a.buf.Bytes()[at+int(got.ID)*size:]); text != i {
			t.Fatalf("receive %d has message %d, want %d", got.ID, text, i)
		}
		if n > 0 {
			turned++
		}
		list = slices.Delete(list, n, n+1)
		recv(got.ID)
	}
	if turned < 10 && testenv.Modelled() {
		t.Errorf("%d of 200 receives out of order", turned)
	}
}
