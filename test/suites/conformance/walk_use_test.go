package conformance

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// use calls a method of an object.
func (w *walker) use(n *node) {
	if n.shared && w.index > 0 && n.kind != "PD" {
		return // a CQ is for one goroutine, and so is waiting
	}
	what, err := "", error(nil)
	switch o := n.obj.(type) {
	case *uverbs.Device:
		if w.rand.IntN(2) == 0 {
			w.waitEvent(n, o)
			return
		}
		what = "Port"
		_, err = o.Port(uint8(w.rand.IntN(3)))
	case *uverbs.CompChannel:
		w.wait(n, o)
		return
	case *uverbs.BufferPool:
		w.slot(n, o)
		return
	case *uverbs.MR:
		w.reregister(n, o)
		return
	case *uverbs.CQ:
		what, err = w.useCQ(n, o)
	case *uverbs.SRQ:
		what, err = w.useSRQ(n, o)
	case *uverbs.QP:
		what, err = w.useQP(n, o)
	}
	if what == "" {
		return
	}
	w.note("%s of %s: %v", what, n.name, err)
	if w.count["used"]++; n.closed {
		w.count["used when closed"]++
	}
	var arg *uverbs.ArgError
	if n.closed && !errors.Is(err, os.ErrClosed) && !errors.As(err, &arg) {
		w.fail("%s of %s after Close: %v", what, n.name, err)
	}
	if !n.closed && !allowed(err) {
		w.fail("%s of %s: %v", what, n.name, err)
	}
}

// allowed reports whether an error is one of those that answer a random request to an open
// object.
func allowed(err error) bool {
	var arg *uverbs.ArgError
	var kernel *uverbs.Error
	var post *uverbs.PostError
	return err == nil || errors.As(err, &arg) || errors.As(err, &kernel) || errors.As(err, &post) ||
		errors.Is(err, uverbs.ErrQueueFull) || errors.Is(err, uverbs.ErrState) || errors.Is(err, uverbs.ErrNoRecvQueue)
}

// useCQ calls a method of a CQ.
func (w *walker) useCQ(n *node, cq *uverbs.CQ) (string, error) {
	switch w.rand.IntN(3) {
	case 0:
		var wcs [8]uverbs.WC
		_, err := cq.Poll(wcs[:])
		if errors.Is(err, uverbs.ErrCQOverrun) {
			return "", nil // more completions than it has room for are possible
		}
		return "Poll", err
	case 1:
		return "Notify", cq.Notify()
	}
	size := w.rand.IntN(200) - 5
	err := cq.Resize(size)
	var arg *uverbs.ArgError
	switch {
	case n.closed:
	case !w.resize && errors.Is(err, errors.ErrUnsupported):
		return "", nil
	case size < 1:
		if !errors.As(err, &arg) || arg.Field != "size" {
			w.fail("Resize of %s to %d: %v", n.name, size, err)
		}
	case err == nil:
		if w.count["CQ resized"]++; cq.Size() < size {
			w.fail("Resize of %s to %d: it has room for %d", n.name, size, cq.Size())
		}
	case !errors.Is(err, syscall.EINVAL): // there may be more completions in it
		w.fail("Resize of %s to %d: %v", n.name, size, err)
	}
	return "Resize", err
}

// useSRQ calls a method of an SRQ.
func (w *walker) useSRQ(n *node, srq *uverbs.SRQ) (string, error) {
	switch w.rand.IntN(4) {
	case 0:
		return "PostRecv", srq.PostRecv(w.rand.Uint64(), w.sge())
	case 1:
		_, err := srq.Query()
		return "Query", err
	case 2:
		return "SetLimit", srq.SetLimit(w.rand.IntN(20))
	}
	size := w.rand.IntN(200) - 5
	err := srq.Resize(size)
	var arg *uverbs.ArgError
	switch {
	case n.closed:
	case size < 1:
		if !errors.As(err, &arg) || arg.Field != "MaxWR" {
			w.fail("Resize of %s to %d: %v", n.name, size, err)
		}
	case onMLX5:
		if !errors.Is(err, errors.ErrUnsupported) {
			w.fail("Resize of %s to %d: %v", n.name, size, err)
		}
		return "", nil
	case err == nil:
		if w.count["SRQ resized"]++; srq.Attr().MaxWR < size {
			w.fail("Resize of %s to %d: it has room for %d", n.name, size, srq.Attr().MaxWR)
		}
	case !errors.Is(err, syscall.EINVAL): // more may be posted, or the limit higher
		w.fail("Resize of %s to %d: %v", n.name, size, err)
	}
	return "Resize", err
}

// useQP calls a method of a QP.
func (w *walker) useQP(n *node, qp *uverbs.QP) (string, error) {
	switch w.rand.IntN(10) {
	case 0:
		if err := qp.ReadyUD(testQKey); err == nil {
			return "ReadyUD", nil
		}
		local, err := qp.Endpoint()
		if err != nil {
			return "Endpoint", err
		}
		return "Connect", qp.Connect(w.t.Context(), local) // to itself
	case 1:
		states := []ib.QPState{ib.QPReset, ib.QPInit, ib.QPRTR, ib.QPRTS, ib.QPSQD, ib.QPSQE, ib.QPErr}
		return "Modify", qp.Modify(uverbs.QPAttr{State: states[w.rand.IntN(len(states))], Port: 1}, uverbs.AttrState|uverbs.QPAttrMask(w.rand.Uint32()&w.rand.Uint32()&w.rand.Uint32()&0x7f))
	case 2:
		_, err := qp.Query()
		return "Query", err
	case 3:
		return "PostRecv", qp.PostRecv(w.rand.Uint64(), w.sge())
	case 4, 5:
		w.multicast(n, byte(w.rand.IntN(3)), w.rand.IntN(2) == 0)
		return "", nil
	case 6, 7:
		return w.build(qp)
	}
	wr := w.wr()
	if w.sends {
		return "PostSend", qp.PostSend(wr)
	}
	return "Modify", qp.Modify(uverbs.QPAttr{}, 0)
}

// build begins work requests in place, and posts them, drops them or leaves them.
func (w *walker) build(qp *uverbs.QP) (string, error) {
	b := qp.BeginSend()
	for range w.rand.IntN(4) {
		switch id := w.rand.Uint64(); w.rand.IntN(4) {
		case 0:
			b.Send(id, uverbs.SendSignaled)
		case 1:
			b.Read(id, uverbs.SendSignaled, w.rand.Uint64(), w.rand.Uint32())
		case 2:
			b.WriteImm(id, 0, w.rand.Uint64(), w.rand.Uint32(), w.rand.Uint32())
		case 3:
			b.LocalInv(id, 0, 0)
		}
		b.SGE(w.sge())
		if n := w.pick("AH"); n != nil && w.rand.IntN(2) == 0 {
			b.To(n.obj.(*uverbs.AH), w.rand.Uint32(), testQKey)
		}
	}
	switch how := w.rand.IntN(3); {
	case how == 0:
		b.Abandon()
		w.count["abandoned"]++
		if err := b.Post(); err != nil {
			w.fail("Post after Abandon: %v", err)
		}
	case how == 1:
		w.count["left begun"]++
	case w.sends:
		w.count["built"]++
		return "Post", b.Post()
	}
	return "", nil
}

// multicast attaches a QP to a group or detaches it.
func (w *walker) multicast(n *node, group byte, attach bool) {
	if rig.InfiniBand() || rig.EFA() {
		return
	}
	qp, verb := n.obj.(*uverbs.QP), "detach"
	gid := ib.GID{0xff, 0x0e, 13: 7, 15: group}
	call := qp.DetachMulticast
	if attach {
		verb, call = "attach", qp.AttachMulticast
	}
	err := call(gid, 0)
	w.note("%s %s, group %d: %v", verb, n.name, group, err)
	var arg *uverbs.ArgError
	ok := err == nil
	switch {
	case n.closed:
		w.count["used when closed"]++
		ok = errors.Is(err, os.ErrClosed)
	case errors.As(err, &arg):
		ok = arg.Field == "QP type" && len(n.groups) == 0
	case attach: // once more is the same
		w.count["attached"]++
		if n.groups[group] = true; w.rand.IntN(4) == 0 {
			w.close(n)
		}
	case n.groups[group]:
		w.count["detached"]++
		delete(n.groups, group)
	default:
		w.count["not attached"]++
		ok = errors.Is(err, syscall.EINVAL)
	}
	if !ok {
		w.fail("%s %s, group %d: %v", verb, n.name, group, err)
	}
}

// soon is how long walkers wait.
const soon = 200 * time.Microsecond

// short returns a context that ends soon, or has ended.
func (w *walker) short() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(w.t.Context(), soon)
	if w.rand.IntN(3) == 0 {
		cancel()
	}
	return ctx, cancel
}

// ended reports whether a wait ended because its context did.
func ended(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// wait waits for a completion event.
func (w *walker) wait(n *node, ch *uverbs.CompChannel) {
	ctx, cancel := w.short()
	defer cancel()
	cq, err := ch.Next(ctx)
	w.note("Wait of %s: %v", n.name, err)
	w.count["waited for"]++
	switch {
	case n.closed:
		if !errors.Is(err, os.ErrClosed) {
			w.fail("Wait of %s after Close: %v", n.name, err)
		}
	case err == nil:
		w.count["event"]++
		if w.alone && !slices.ContainsFunc(w.nodes, func(o *node) bool { return o.obj == closer(cq) && !o.closed && slices.Contains(o.uses, n) }) {
			w.fail("Wait of %s returns a CQ that is closed or of another channel", n.name)
		}
	case !ended(err):
		w.fail("Wait of %s: %v", n.name, err)
	}
}

// waitEvent waits for an asynchronous event.
func (w *walker) waitEvent(n *node, dev *uverbs.Device) {
	ctx, cancel := w.short()
	defer cancel()
	e, err := dev.NextEvent(ctx)
	w.note("NextEvent of %s: %v, %v", n.name, e, err)
	open := func(obj closer) bool {
		return !w.alone || slices.ContainsFunc(w.nodes, func(o *node) bool { return o.obj == obj && !o.closed && o.dev == n.dev })
	}
	switch {
	case err != nil:
		if w.count["no event"]++; !ended(err) {
			w.fail("NextEvent of %s: %v", n.name, err)
		}
	case e.QP != nil && !open(e.QP) && !w.binds(e.QP) || e.CQ != nil && !open(e.CQ) || e.SRQ != nil && !open(e.SRQ):
		w.fail("NextEvent of %s: %v, of what is closed", n.name, e)
	default:
		w.count["asynchronous event"]++
	}
}

// slot takes a slot out of a pool, or puts one back, which may be back already.
func (w *walker) slot(n *node, p *uverbs.BufferPool) {
	var err error
	var want error
	if w.rand.IntN(2) == 0 {
		var s uverbs.Slot
		s, err = p.Get()
		w.note("Get of %s: %v", n.name, err)
		switch {
		case n.closed:
			want = os.ErrClosed
		case len(n.slots) == n.size:
			w.count["pool empty"]++
			want = uverbs.ErrPoolEmpty
		case err == nil:
			n.slots = append(n.slots, s)
		}
	} else {
		s, again := uverbs.Slot{}, w.rand.IntN(3) == 0
		if len(n.slots) > 0 {
			s = n.slots[0]
		}
		err = p.Put(s)
		w.note("Put of %s: %v", n.name, err)
		switch {
		case n.closed:
			want = os.ErrClosed
		case len(n.slots) == 0:
			want = uverbs.ErrSlotFree
		case err == nil:
			w.count["slot put"]++
			n.slots = n.slots[1:]
			if again {
				w.count["slot put again"]++
				if err := p.Put(s); !errors.Is(err, uverbs.ErrSlotFree) {
					w.fail("Put of %s, the same slot again: %v", n.name, err)
				}
			}
		}
	}
	if !errors.Is(err, want) {
		w.fail("slot of %s: %v, want %v", n.name, err, want)
	}
	if out := n.size - len(n.slots); !n.closed && p.Free() != out {
		w.fail("%s has %d slots, want %d", n.name, p.Free(), out)
	}
}

// reregister changes a region.
func (w *walker) reregister(n *node, mr *uverbs.MR) {
	var o uverbs.ReregOptions
	what, access := 1+w.rand.IntN(7), w.rights()
	pd, buf := w.pick("PD"), w.pick("Buffer")
	if what&1 == 0 {
		pd = nil
	}
	if what&2 != 0 {
		o.Access = &access
	}
	if what&4 == 0 {
		buf = nil
	}
	if pd != nil {
		o.PD = pd.obj.(*uverbs.PD)
	}
	if buf != nil {
		o.Buffer = buf.obj.(*uverbs.Buffer)
	}
	// Nobody may change a region with a window. mlx5_ib of Linux 5.10 forgets the pages of one
	// that gets another PD and nothing else.
	if n.windows > 0 || o == (uverbs.ReregOptions{}) || pd != nil && !w.refusal {
		return
	}
	err := mr.Rereg(o)
	w.note("Rereg of %s, %03b: %v", n.name, what, err)
	var arg *uverbs.ArgError
	foreign := pd != nil && pd.dev != n.dev
	switch {
	case n.closed || pd != nil && pd.closed || buf != nil && buf.closed:
		w.count["Rereg of a closed object"]++
		if !errors.Is(err, os.ErrClosed) && !(foreign && errors.As(err, &arg)) {
			w.fail("Rereg of %s: %v, want os.ErrClosed", n.name, err)
		}
	case foreign:
		if !errors.As(err, &arg) || arg.Field != "PD" {
			w.fail("Rereg of %s to a PD of another device: %v", n.name, err)
		}
	case !w.rereg || buf != nil && !onMLX5:
		if !errors.Is(err, errors.ErrUnsupported) {
			w.fail("Rereg of %s: %v, want a FeatureError", n.name, err)
		}
	case err != nil:
		w.fail("Rereg of %s: %v", n.name, err)
	default:
		w.count["Rereg"]++
		if pd != nil {
			n.replace("PD", pd)
		}
		if buf != nil {
			n.replace("Buffer", buf)
		}
	}
}

// replace makes an object use another one of a kind.
func (n *node) replace(kind string, by *node) {
	by.ref()
	for i, u := range n.uses {
		if u.kind == kind {
			u.unref()
			n.uses[i] = by
			return
		}
	}
	n.uses = append(n.uses, by)
}

// sge returns a piece of any MR, which may be closed, or of a pool.
func (w *walker) sge() uverbs.SGE {
	offset, length := w.rand.IntN(20), w.rand.IntN(4000)
	pool := w.pick("BufferPool")
	if n := w.pick("MR"); n != nil && (pool == nil || offset < 15) {
		return n.obj.(*uverbs.MR).SGE(offset, length)
	}
	if pool != nil && len(pool.slots) > 0 {
		return pool.slots[0].SGE(length / 10)
	}
	return uverbs.SGE{}
}

// wr returns any work request.
func (w *walker) wr() uverbs.SendWR {
	wr := uverbs.SendWR{
		ID: w.rand.Uint64(), Opcode: uverbs.WROpcode(w.rand.IntN(18)), Flags: uverbs.SendFlags(w.rand.IntN(8)),
		SGL: []uverbs.SGE{w.sge()}, RemoteQPN: w.rand.Uint32(), RemoteQKey: testQKey, RemoteAddr: w.rand.Uint64(), RKey: w.rand.Uint32(),
	}
	if n := w.pick("AH"); n != nil && w.rand.IntN(2) == 0 {
		wr.AH = n.obj.(*uverbs.AH)
	}
	if rig.EFA() { // so that some are posted
		wr.Opcode, wr.Flags, wr.RemoteQPN = wr.Opcode%6, wr.Flags&uverbs.SendSignaled, wr.RemoteQPN%300
	}
	return wr
}
