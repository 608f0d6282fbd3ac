package conformance

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// binder is a QP that is connected to itself and does nothing but what windows are for, with
// a CQ of its own.
type binder struct {
	cq *uverbs.CQ
	qp *uverbs.QP
}

// newBinder makes one.
func newBinder(t *testing.T, pd *uverbs.PD) (_ closer, err error) {
	b := &binder{}
	if b.cq, err = pd.Device().CreateCQ(uverbs.CQOptions{Size: 10}); err != nil {
		return nil, err
	}
	if b.qp, err = pd.CreateQP(uverbs.QPOptions{SendCQ: b.cq, RecvCQ: b.cq, MaxInline: 8, Path: ownGID()}); err != nil {
		return nil, errors.Join(err, b.cq.Close())
	}
	local, err := b.qp.Endpoint()
	if err == nil {
		err = b.qp.Connect(t.Context(), local)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close closes both.
func (b *binder) Close() error { return errors.Join(b.qp.Close(), b.cq.Close()) }

// do posts a request and returns the completion's status.
func (b *binder) do(wr uverbs.SendWR) (uverbs.WCStatus, error) {
	if err := b.qp.PostSend(wr); err != nil {
		return 0, err
	}
	var wc [1]uverbs.WC
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		if n, err := b.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0].Status, err
		}
	}
	return 0, fmt.Errorf("no completion of %s within %s", wr.Opcode, deadline)
}

// binds reports whether a QP is an open binder's.
func (w *walker) binds(qp *uverbs.QP) bool {
	return slices.ContainsFunc(w.nodes, func(n *node) bool {
		b, ok := n.obj.(*binder)
		return ok && b.qp == qp && !n.closed
	})
}

// tie notes what a window is bound to; nil is nothing.
func (n *node) tie(mr, by *node) {
	if n.bound != nil {
		n.bound.windows--
	}
	if n.bound, n.by = mr, by; mr != nil {
		mr.windows++
	}
}

// mate returns an open object of a kind that uses a PD, or any of the kind.
func (w *walker) mate(kind string, pd *node) *node {
	if w.rand.IntN(6) > 0 {
		if n := w.pickOf(kind, func(n *node) bool { return !n.closed && n.uses[0] == pd }); n != nil {
			return n
		}
	}
	return w.pick(kind)
}

// window binds a window, unbinds or invalidates it, or writes through it.
func (w *walker) window() {
	what := w.rand.IntN(4)
	n := w.pickOf("MW", func(n *node) bool {
		return !n.closed && slices.ContainsFunc(w.nodes, func(b *node) bool { return b.kind == "Binder" && !b.closed && b.uses[0] == n.uses[0] })
	})
	if n == nil || w.rand.IntN(6) == 0 {
		n = w.pick("MW")
	}
	if n == nil {
		return
	}
	by, mr := w.mate("Binder", n.uses[0]), w.mate("MR", n.uses[0])
	if by == nil || mr == nil {
		return
	}
	mw := n.obj.(*uverbs.MW)
	if n.bound != nil && !n.closed {
		if mw.Type() == uverbs.MWType2 {
			by = n.by // nobody else may invalidate it, or write through it
		}
		if what == 0 {
			w.writeThrough(n, by)
			return
		}
		if what == 1 && mw.Type() == uverbs.MWType2 {
			w.invalidate(n)
			return
		}
	}
	w.bind(n, mr, by, what == 1)
}

// bind binds a window, or unbinds one of type 1.
func (w *walker) bind(n, mr, by *node, unbind bool) {
	mw, b, m := n.obj.(*uverbs.MW), by.obj.(*binder), mr.obj.(*uverbs.MR)
	closed := n.closed || mr.closed || by.closed
	foreign := n.dev != by.dev || mr.dev != by.dev
	// Old kernels bind what is of different PDs. See TestWindowBindOtherPD.
	if !closed && !foreign && (n.uses[0] != by.uses[0] || mr.uses[0] != by.uses[0]) {
		return
	}
	wr := uverbs.SendWR{Opcode: uverbs.WRBindMW, Flags: uverbs.SendSignaled, Bind: uverbs.BindInfo{
		MW: mw, MR: m, Addr: m.Addr(), Length: uint64(m.Len()), Access: uverbs.AccessRemoteWrite,
	}}
	if unbind = unbind && mw.Type() == uverbs.MWType1; unbind {
		wr.Bind.Length, wr.Bind.Access = 0, 0
	}
	key := mw.RKey()
	status, err := b.do(wr)
	w.note("bind %s to %s by %s: %s, %v", n.name, mr.name, by.name, status, err)
	ok, good := false, false
	switch {
	case closed || foreign:
		w.count["bind of closed"]++
		ok = closed && (errors.Is(err, os.ErrClosed) || wrongField(err, "Bind", "open MW")) || foreign && wrongField(err, "Bind", "another device")
	case by.broken:
		ok = err == nil && status == uverbs.WCWRFlushErr
	case mw.Type() == uverbs.MWType2 && n.bound != nil:
		w.count["bound twice"]++
		by.broken = true
		ok = err == nil && status != uverbs.WCSuccess
	default:
		good = true
		ok = err == nil && status == uverbs.WCSuccess
	}
	if good {
		key = uverbs.IncRKey(key)
	}
	if !ok || mw.RKey() != key {
		w.fail("bind %s to %s by %s: %s, %v, key %#x, want %#x", n.name, mr.name, by.name, status, err, mw.RKey(), key)
		return
	}
	switch {
	case good && unbind:
		w.count["unbound"]++
		n.tie(nil, nil)
	case good:
		w.count["bound"]++
		n.tie(mr, by)
		switch next := w.rand.IntN(8); {
		case next == 0:
			w.close(mr)
		case next < 3 && mw.Type() == uverbs.MWType2:
			w.invalidate(n)
		}
	}
}

// invalidate takes a window of type 2 from its region.
func (w *walker) invalidate(n *node) {
	if n.by.broken {
		return
	}
	status, err := n.by.obj.(*binder).do(uverbs.SendWR{Opcode: uverbs.WRLocalInv, Flags: uverbs.SendSignaled, InvalidateRKey: n.obj.(*uverbs.MW).RKey()})
	w.note("invalidate %s: %s, %v", n.name, status, err)
	if w.count["invalidated"]++; err != nil || status != uverbs.WCSuccess {
		w.fail("invalidate %s: %s, %v", n.name, status, err)
	}
	n.tie(nil, nil)
}

// writeThrough writes through a window that is bound.
func (w *walker) writeThrough(n, by *node) {
	if by.closed || by.broken || by.uses[0] != n.uses[0] {
		return
	}
	status, err := by.obj.(*binder).do(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, Inline: []byte{1},
		RemoteAddr: n.bound.obj.(*uverbs.MR).Addr(), RKey: n.obj.(*uverbs.MW).RKey()})
	w.note("write through %s by %s: %s, %v", n.name, by.name, status, err)
	if w.count["written through"]++; err != nil || status != uverbs.WCSuccess {
		w.fail("write through %s by %s: %s, %v", n.name, by.name, status, err)
	}
}
