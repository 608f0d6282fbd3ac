package conformance

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestOutOfOrder keeps the receive queue of a QP with the option OutOfOrder full: there is room for
// another receive after each completion, whichever receive it is of, and for no more than the queue
// has. Each message is in the receive that its completion names.
func TestOutOfOrder(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "OutOfOrder", "mlx5")
		for _, typ := range []uverbs.QPType{uverbs.RC, uverbs.UC, uverbs.UD} {
			t.Run(typ.String(), func(t *testing.T) { outOfOrder(t, typ) })
		}
	})
}

// outOfOrder tests a type.
func outOfOrder(t *testing.T, typ uverbs.QPType) {
	const size = 128
	dev := openDevice(t, deviceName)
	o := uverbs.QPOptions{Type: typ, MaxRecvWR: 8, OutOfOrder: true}
	pd := newPD(t, dev)
	cq, err := dev.CreateCQ(uverbs.CQOptions{})
	must(t, err)
	closeLater(t, cq)
	o.SendCQ, o.RecvCQ = cq, cq
	probe, err := pd.CreateQP(o)
	testenv.Skip(t, err)
	must(t, err, probe.Close())
	o.SendCQ, o.RecvCQ = nil, nil
	var a, b *side
	var ah *uverbs.AH
	if typ == uverbs.UD {
		a, b, ah = udPair(t, o)
	} else {
		a, b = pair(t, o)
	}
	posted := b.qp.Caps().MaxRecvWR
	if posted != o.MaxRecvWR {
		t.Errorf("there is room for %d receives, want %d", posted, o.MaxRecvWR)
	}
	under := map[uint64]bool{}
	post := func(id uint64) {
		t.Helper()
		if err := b.qp.PostRecv(id, b.mr.SGE(int(id)*size, size)); err != nil {
			t.Fatalf("receive %d with %d others: %v", id, len(under), err)
		}
		under[id] = true
		if err := b.qp.PostRecv(99, b.mr.SGE(0, size)); len(under) == posted && !errors.Is(err, uverbs.ErrQueueFull) {
			t.Fatalf("more than %d receives: %v, want %v", posted, err, uverbs.ErrQueueFull)
		} else if len(under) < posted {
			t.Fatalf("a receive beside %d others: %v", len(under), err)
		}
	}
	for id := range uint64(posted - 1) {
		must(t, b.qp.PostRecv(id, b.mr.SGE(int(id)*size, size)))
		under[id] = true
	}
	post(uint64(posted - 1))
	head := 0
	wr := send(1, a.mr.SGE(0, 8))
	if typ == uverbs.UD {
		head = uverbs.GRHSize
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, b.qp.QPN(), testQKey
	}
	turned, last := 0, uint64(posted-1)
	for n := range uint64(300) {
		binary.NativeEndian.PutUint64(a.buf.Bytes(), n)
		must(t, a.qp.PostSend(wr))
		a.want(t, 1, uverbs.WCSend)
		wc := b.next(t)
		if wc.Err() != nil || !under[wc.ID] || int(wc.ByteLen) != head+8 {
			t.Fatalf("message %d: completion %+v", n, wc)
		}
		delete(under, wc.ID)
		if got := binary.NativeEndian.Uint64(b.buf.Bytes()[int(wc.ID)*size+head:]); got != n {
			t.Fatalf("receive %d has message %d, want %d", wc.ID, got, n)
		}
		if wc.ID != (last+1)%uint64(posted) {
			turned++
		}
		last = wc.ID
		post(wc.ID)
	}
	if turned < 10 && testenv.Modelled() {
		t.Errorf("%d of 300 receives out of order", turned)
	}
	if got, err := b.qp.DataInOrder(uverbs.WRRDMAWrite); got != 0 || err != nil {
		t.Errorf("data is in order: %v, %v", got, err)
	}
	must(t, b.qp.Modify(uverbs.QPAttr{State: uverbs.QPErr}, uverbs.AttrState))
	for range posted {
		wc := b.next(t)
		if wc.Status != uverbs.WCWRFlushErr || !under[wc.ID] {
			t.Errorf("completion %+v, want that of a flush", wc)
		}
		delete(under, wc.ID)
	}
	b.none(t)
}
