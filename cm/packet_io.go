package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// LocalAddr returns the address of this side, an [rdmacm.Addr].
func (p *PacketConn) LocalAddr() net.Addr { return p.addrs.Local }

// DialedPeer returns the peer that DialPacket found. It returns false after ListenPacket.
func (p *PacketConn) DialedPeer() (Peer, bool) {
	if p.peer == nil {
		return Peer{}, false
	}
	return *p.peer, true
}

// MaxDatagram returns the size of the largest datagram in bytes, which is the MTU of the port.
func (p *PacketConn) MaxDatagram() int { return p.mtu }

// post posts the receive of a slot.
func (p *PacketConn) post(slot int) error {
	return p.qp.PostRecv(uint64(slot), p.mem.sge(slot, p.size))
}

// opError returns the error of an operation that has failed.
func (p *PacketConn) opError(what string, err error) error {
	switch why := p.endErr.Load(); {
	case p.closed.Load():
		err = errClosed
	case why != nil:
		err = *why
	default:
		err = removed(err, p.addrs.Device)
	}
	return fmt.Errorf("cm: %s: datagrams at %s: %w", what, p.addrs.Local, err)
}

// begin takes the turn of a queue. It fails if p is closed.
func (p *PacketConn) begin(ctx context.Context, l *packetQueue, what string) error {
	if p.closing.Load() {
		return p.opError(what, errClosed)
	}
	if err := l.takeTurn(ctx); err != nil {
		return p.opError(what, err)
	}
	if p.closing.Load() {
		<-l.turn
		return p.opError(what, errClosed)
	}
	return nil
}

// Recv waits for a datagram and returns it with its sender. The slice is valid until the next Recv or ReadFrom.
// After Close it stays valid as long as the program refers to p.
func (p *PacketConn) Recv(ctx context.Context) (data []byte, from Peer, err error) {
	const what = "receive"
	if err := p.begin(ctx, &p.recv, what); err != nil {
		return nil, Peer{}, err
	}
	defer func() { <-p.recv.turn }()
	return p.next(ctx, what)
}

// next is Recv for the caller that has the turn of the receive queue.
func (p *PacketConn) next(ctx context.Context, what string) (data []byte, from Peer, err error) {
	if p.heldSlot >= 0 && !p.broken.Load() {
		if err := p.post(p.heldSlot); err != nil {
			return nil, Peer{}, p.opError(what, err)
		}
	}
	p.heldSlot = -1
	for {
		if p.broken.Load() {
			if err := p.revive(ctx); err != nil {
				return nil, Peer{}, p.opError(what, err)
			}
		}
		wcs, err := p.recv.next(ctx, &p.o, 1)
		if err != nil {
			return nil, Peer{}, p.opError(what, err)
		}
		wc := &wcs[0]
		if wc.Status != uverbs.WCSuccess {
			if err := p.recover(ctx, wc); err != nil {
				return nil, Peer{}, p.opError(what, err)
			}
			continue
		}
		if wc.ID > uint64(p.o.Depth) || int64(wc.ByteLen) > int64(p.mem.size) {
			return nil, Peer{}, p.opError(what, fmt.Errorf("the device has completed receive %d of %d with %d bytes: %w", wc.ID, p.o.Depth+1, wc.ByteLen, syscall.EIO))
		}
		slot := int(wc.ID)
		b := p.mem.bytes(slot)[:wc.ByteLen]
		attr, err := p.sender(wc, b)
		if err == nil {
			p.heldSlot = slot
			return b[uverbs.GRHSize:], Peer{attr: attr, qpn: wc.SrcQP, qkey: p.qkey}, nil
		}
		if !errors.Is(err, syscall.EINVAL) {
			p.heldSlot = slot // the next Recv posts the receive again
			return nil, Peer{}, p.opError(what, err)
		}
		// The datagram cannot be answered. Any host can send any number of such datagrams,
		// so skip it.
		if err = p.post(slot); err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, Peer{}, p.opError(what, err)
		}
	}
}

// recover deals with a failed receive, which a stranger can cause. It posts the receive again, or notes that
// the device has moved the QP to state ERR. The caller has the turn of the receive queue.
func (p *PacketConn) recover(ctx context.Context, wc *uverbs.WC) error {
	failed := ofRequest(p.qp.Err(wc))
	if p.closing.Load() || wc.ID > uint64(p.o.Depth) {
		return failed
	}
	attr, err := p.qp.Query()
	if err != nil {
		p.broken.Store(true) // the next Recv tries again
		return errors.Join(failed, err)
	}
	if attr.State == ib.QPErr {
		p.broken.Store(true)
		return nil
	}
	return errors.Join(p.post(int(wc.ID)), ctx.Err())
}

// revive makes a broken QP ready again and posts all receives except that of the datagram that the program has;
// datagrams in both queues are lost. If it fails, the next Recv or Send tries again. The caller has the turn of the
// receive queue.
func (p *PacketConn) revive(ctx context.Context) error {
	if err := p.send.takeTurn(ctx); err != nil {
		return err
	}
	defer func() { <-p.send.turn }()
	if p.closing.Load() {
		return errClosed
	}
	if !p.broken.Load() {
		return nil
	}
	if err := p.takeCompletions(); err != nil { // RESET may remove completions
		return err
	}
	if err := p.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState); err != nil {
		return err
	}
	if err := p.takeCompletions(); err != nil {
		return err
	}
	if p.inFlight > 0 { // the device says no more of these
		p.sendsCompleted([]uverbs.WC{{ID: uint64(p.sent - 1), Status: uverbs.WCWRFlushErr, QPN: p.qp.QPN()}})
	}
	p.inFlight = 0
	for _, state := range []ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS} {
		attr, mask, err := p.id.QPAttr(state)
		if err != nil {
			return err
		}
		if err := p.qp.Modify(attr, mask); err != nil {
			return err
		}
	}
	for slot := range p.o.Depth + 1 {
		if slot == p.heldSlot {
			continue
		}
		if err := p.post(slot); err != nil {
			return err
		}
	}
	p.broken.Store(false)
	close(p.revived)
	p.revived = make(chan struct{})
	return nil
}

// takeCompletions takes the completions of a QP in state ERR or RESET. The caller has the turns of both queues.
func (p *PacketConn) takeCompletions() error {
	for _, q := range []*packetQueue{&p.recv, &p.send} {
		for n := 1; n > 0; {
			var err error
			if n, err = q.cq.Poll(q.wcs[:]); err != nil {
				return err
			}
			if q == &p.send {
				p.sendsCompleted(q.wcs[:n])
			}
		}
	}
	return nil
}

// sender returns the address of the sender of a datagram. The error matches EINVAL if the headers
// of the datagram do not have it. Finding it takes several commands, so the result for the last
// sender is kept for a second.
func (p *PacketConn) sender(wc *uverbs.WC, b []byte) (uverbs.AHAttr, error) {
	const valid = time.Second // the GID table may change
	if len(b) < uverbs.GRHSize {
		return uverbs.AHAttr{}, syscall.EINVAL
	}
	key := senderKey{slid: wc.SLID, sl: wc.SL, pathBits: wc.PathBits, global: wc.Flags&uverbs.WCWithGRH != 0}
	if key.global {
		var err error
		if key.grh, err = uverbs.ParseGRH(b); err != nil {
			return uverbs.AHAttr{}, err
		}
	}
	if p.last.key == key && time.Since(p.last.asked) < valid {
		return p.last.attr, nil
	}
	attr, err := p.dev.dev.AHAttrFor(p.addrs.Port, wc, b)
	if err == nil {
		p.last = sender{key, attr, time.Now()}
	}
	return attr, err
}

// senderKey has everything in a datagram that the address of its sender depends on.
type senderKey struct {
	grh      uverbs.ReceivedGRH
	slid     uint16
	sl       uint8
	pathBits uint8
	global   bool
}

// sender is the address of a sender.
type sender struct {
	key   senderKey
	attr  uverbs.AHAttr
	asked time.Time // when the device was queried
}

// Send sends a datagram to a peer or a group. It copies the datagram, which may be a slice that
// Recv returned, and returns as soon as the copy is posted. The program cannot tell whether the
// datagram arrives.
//
// If the device could not send an earlier datagram, one later call of Send returns the error, and does
// not send its own. The datagrams behind the one that failed may be lost without an error of their own.
func (p *PacketConn) Send(ctx context.Context, data []byte, to Peer) error {
	const what = "send"
	if len(data) > p.mtu {
		return argErr(what, "data", fmt.Sprintf("%d bytes long", len(data)), "up to %d bytes, the port's MTU", p.mtu)
	}
	if to == (Peer{}) {
		return argErr(what, "to", "the zero value", "a peer of Recv, DialedPeer or Join")
	}
	if err := p.beginSend(ctx, what); err != nil {
		return err
	}
	defer func() { <-p.send.turn }()
	room := p.o.SendDepth
	if p.ahs.full(to.attr) { // an address handle will be closed, which no outstanding send may use
		room = 1
	}
	n, err := p.send.cq.Poll(p.send.wcs[:min(p.inFlight, len(p.send.wcs))])
	for wcs := p.send.wcs[:n]; err == nil; wcs, err = p.send.next(ctx, &p.o, p.inFlight) {
		if p.sendsCompleted(wcs) {
			p.resume()
		}
		if err, p.sendErr = p.sendErr, nil; err != nil || p.inFlight < room {
			break
		}
	}
	if err != nil {
		return p.opError(what, err)
	}
	ah, err := p.ahs.get(to.attr)
	if err != nil {
		return p.opError(what, err)
	}
	slot := p.o.Depth + 1 + p.sent%p.o.SendDepth // behind the slots for receiving
	copy(p.mem.bytes(slot), data)
	err = p.qp.PostSend(uverbs.SendWR{ID: uint64(p.sent), Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{p.mem.sge(slot, len(data))},
		AH: ah, RemoteQPN: to.qpn, RemoteQKey: to.qkey})
	return p.sendPosted(what, err)
}

// sendPosted counts the datagram that was posted last. err is the error of posting it. If the datagram is in the queue
// nevertheless, the QP begins anew. The caller has the turn of the send queue.
func (p *PacketConn) sendPosted(what string, err error) error {
	if err != nil && !queuedAnyway(err) {
		return p.opError(what, err)
	}
	p.sent++
	p.inFlight++
	if err == nil {
		return nil
	}
	p.lost = p.sent
	p.broken.Store(true)
	return p.opError(what, err)
}

// beginSend takes the turn of the send queue. If the QP is broken it makes it ready first, or has a Recv that runs do so.
func (p *PacketConn) beginSend(ctx context.Context, what string) error {
	for {
		if err := p.begin(ctx, &p.send, what); err != nil || !p.broken.Load() {
			return err
		}
		revived := p.revived
		var err error
		if len(p.recv.turn) > 0 { // a Recv may wait for a receive; moving to ERR flushes them all, also if the QP is in ERR
			err = p.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState)
		}
		<-p.send.turn
		if err != nil { // nothing would wake the Recv
			return p.opError(what, err)
		}
		select {
		case p.recv.turn <- struct{}{}:
			err := p.revive(ctx)
			<-p.recv.turn
			if err != nil {
				return p.opError(what, err)
			}
		case <-revived:
		case <-ctx.Done():
			return p.opError(what, ctx.Err())
		}
	}
}

// sendsCompleted takes completions of sends. It reports whether one has failed, and keeps its error for Send. The device
// flushes those that are behind one that fails; they are part of the same failure. The caller has the turn of the send
// queue.
func (p *PacketConn) sendsCompleted(wcs []uverbs.WC) (failed bool) {
	p.inFlight -= len(wcs)
	for i := range wcs {
		if wc := &wcs[i]; wc.Status != uverbs.WCSuccess && (wc.Status != uverbs.WCWRFlushErr || wc.ID >= uint64(p.lost)) {
			p.sendErr = errors.Join(p.sendErr, ofRequest(p.qp.Err(wc)))
			p.lost = p.sent
			failed = true
		}
	}
	return failed
}

// resume has the QP send again after a failed send, as of a datagram that is longer than the MTU is by now. A device may
// move the QP to state SQE then, or to ERR; the next Recv or Send deals with the latter. The caller has the turn of the
// send queue.
func (p *PacketConn) resume() {
	attr, err := p.qp.Query()
	if err == nil && attr.State == ib.QPSQE {
		err = p.qp.Modify(uverbs.QPAttr{State: ib.QPRTS}, uverbs.AttrState)
	}
	if err != nil {
		p.sendErr = errors.Join(p.sendErr, err)
	}
	if err != nil || attr.State == ib.QPErr {
		p.broken.Store(true)
	}
}

// event handles an event of the connection manager.
func (p *PacketConn) event(e *rdmacm.Event) {
	switch e.Type {
	case rdmacm.EventConnectRequest: // there is nothing to do but answer
		e.ID.Accept(rdmacm.ConnParam{PrivateData: p.o.PrivateData, QPN: p.qp.QPN(), QKey: p.qkey})
		e.ID.Close()
	case rdmacm.EventDeviceRemoval:
		p.dev.forget()
		p.endWith(errRemoved(p.addrs.Device)) // the kernel waits for it
	}
}

// endWith closes p with an error, which the current and later calls of its methods return.
func (p *PacketConn) endWith(why error) {
	p.endErr.CompareAndSwap(nil, &why)
	go p.destroy()
}

// Close closes p. Pending and later method calls fail with an error that matches [net.ErrClosed]
// and [os.ErrClosed]. Datagrams in the send queue may be lost.
func (p *PacketConn) Close() error {
	p.closed.Store(true)
	err := p.destroy()
	p.readDeadline.set(time.Time{}) // stops the timer
	p.writeDeadline.set(time.Time{})
	return err
}

// destroy releases everything that p has.
func (p *PacketConn) destroy() error {
	if p.closing.Swap(true) {
		return nil
	}
	p.loop.unregister(p.id)
	defer p.loop.release()
	if p.qp == nil { // it was not set up completely
		return p.releaseAll(p.loop.closeID(p.id))
	}
	p.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState) // wakes the goroutines that wait
	p.drain()
	var errs []error
	p.mu.Lock()
	groups := make(map[netip.Addr]*membership, len(p.joined))
	for addr, m := range p.joined {
		groups[addr] = m
	}
	p.mu.Unlock()
	for addr, m := range groups {
		errs = append(errs, p.leave(addr, m))
	}
	// The turns are returned at the very end: the goroutine that gets one finds p closed.
	defer func() { <-p.recv.turn; <-p.send.turn }()
	return errors.Join(append(errs, p.releaseAll(p.loop.closeID(p.id)))...)
}

// releaseAll releases everything except the ID and its QP. The argument is the error of closing
// those. releaseAll returns that error joined with its own errors.
func (p *PacketConn) releaseAll(closed error) error {
	errs := []error{closed, p.ahs.close(), p.recv.close(), p.send.close()}
	if closed == nil { // otherwise the device may still use the memory
		if p.heldSlot >= 0 {
			leaseSlot(p, &p.mem, p.heldSlot)
		}
		p.mem.release()
	}
	if p.dev != nil {
		p.dev.release()
	}
	return errors.Join(errs...)
}

// ahCache has the address handles of the most recent destinations.
type ahCache struct {
	pd  *uverbs.PD
	all map[uverbs.AHAttr]*uverbs.AH
}

// maxAHs is the largest number of handles in an ahCache. Most devices have room for thousands of
// them, but rxe in Linux 5.10 for 100.
const maxAHs = 64

// full reports whether get must close a handle to make one for attr.
func (c *ahCache) full(attr uverbs.AHAttr) bool { return len(c.all) >= maxAHs && c.all[attr] == nil }

// get returns the handle for attr.
func (c *ahCache) get(attr uverbs.AHAttr) (*uverbs.AH, error) {
	if ah := c.all[attr]; ah != nil {
		return ah, nil
	}
	for old, ah := range c.all {
		if len(c.all) < maxAHs {
			break
		}
		if err := ah.Close(); err != nil {
			return nil, err
		}
		delete(c.all, old)
	}
	ah, err := c.pd.CreateAH(attr)
	if err != nil {
		return nil, err
	}
	if c.all == nil {
		c.all = map[uverbs.AHAttr]*uverbs.AH{}
	}
	c.all[attr] = ah
	return ah, nil
}

// close closes all handles.
func (c *ahCache) close() error {
	var errs []error
	for _, ah := range c.all {
		errs = append(errs, ah.Close())
	}
	c.all = nil
	return errors.Join(errs...)
}
