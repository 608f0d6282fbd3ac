package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/cm/internal/redial"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// PacketConn sends and receives datagrams, to and from any number of peers and multicast groups. A
// datagram may be lost on the way, and is lost if the receiver has no room for it.
//
// All methods are safe for concurrent use. Concurrent calls of Recv and ReadFrom run one after the other, and
// so do calls of Send and WriteTo.
//
// It is a [net.PacketConn], too. Recv does not copy, and has a context.
type PacketConn struct {
	loop  *eventLoop
	id    *rdmacm.ID
	o     PacketOptions
	dev   *device
	addrs rdmacm.Addrs
	qkey  uint32
	mtu   int
	size  int   // of a receive, in bytes
	peer  *Peer // the peer of DialPacket, nil after ListenPacket

	mem        memory // slots for receiving, then for sending
	qp         *uverbs.QP
	send, recv packetQueue
	last       sender  // guarded by recv.turn: the sender of the last datagram
	heldSlot   int     // guarded by recv.turn: slot of the datagram that Recv has returned, -1 if there is none
	sent       int     // guarded by send.turn: number of datagrams sent, which gives the slot of the next
	inFlight   int     // guarded by send.turn: datagrams whose sends have not completed
	lost       int     // guarded by send.turn: of the datagrams sent before, those that are flushed are part of a failure that is known
	sendErr    error   // guarded by send.turn: of datagrams that were not sent, until Send returns it
	ahs        ahCache // guarded by send.turn

	broken  atomic.Bool   // the QP has failed, and is mostly in state ERR, until revive makes it ready again
	revived chan struct{} // guarded by send.turn: closed and replaced by revive

	closing atomic.Bool           // it is being closed, or has failed
	closed  atomic.Bool           // Close was called
	endErr  atomic.Pointer[error] // why it has failed

	mu     sync.Mutex
	joined map[netip.Addr]*membership // guarded by mu

	readDeadline, writeDeadline deadline // of ReadFrom and WriteTo
}

// PacketOptions are the options of [ListenPacket] and [DialPacket]. The zero value suits most
// programs.
type PacketOptions struct {
	Depth     int // Depth is how many received datagrams wait for the program before further ones are lost; zero is 64.
	SendDepth int // SendDepth is how many datagrams may be in the send queue; zero is 16.

	Wait WaitMode      // Wait is the way to wait.
	Spin time.Duration // Spin is how long WaitSpinThenPark polls before it parks, and what it considers a short wait; zero is 50 µs.

	// PrivateData is sent with the request of DialPacket, up to 180 bytes, or with each answer
	// of ListenPacket, up to 136 bytes.
	PrivateData []byte
	LocalAddr   netip.AddrPort // LocalAddr is the address that DialPacket uses on this side; the zero value is any.
	Timeout     time.Duration  // Timeout is how long DialPacket tries to reach the host, if its context has no deadline; zero is 10 s.
}

// defaults returns the options with their defaults filled in.
func (o PacketOptions) defaults(op string, maxData int) (PacketOptions, error) {
	all, err := ConnOptions{Depth: o.Depth, Tuning: Tuning{SendDepth: o.SendDepth, Wait: o.Wait, Spin: o.Spin}}.defaults(op)
	if err == nil {
		err = checkPrivateData(op, o.PrivateData, maxData)
	}
	if err != nil {
		return o, err
	}
	const depth, sendDepth = 64, 16
	if o.Depth == 0 {
		o.Depth = depth
	}
	if o.SendDepth == 0 {
		o.SendDepth = sendDepth
	}
	n := optionChecker{op: op}
	if o.Timeout = n.duration("Timeout", o.Timeout, redial.Timeout); n.err != nil {
		return o, n.err
	}
	o.Spin = all.Spin
	return o, nil
}

// longestDatagram is the size of the longest datagram that a receive has room for, in bytes: the largest
// MTU that there is. Strangers can send datagrams that are longer than the MTU of this port, and on some
// devices one that is longer than its receive breaks the QP. Tests change it.
var longestDatagram = ib.MTU4096.Bytes()

// Limits of PacketOptions.PrivateData, in bytes.
const (
	maxPacketRequest = 180
	maxPacketAnswer  = 136
)

// Peer is a sender or receiver of datagrams, or a multicast group. It is a plain value and a
// [net.Addr].
type Peer struct {
	attr uverbs.AHAttr
	qpn  uint32
	qkey uint32
	ip   netip.Addr // on InfiniBand, where attr does not have it; zero if unknown
}

// peerOf returns the peer or group at an address.
func peerOf(ud rdmacm.UDParam, ip netip.Addr) Peer {
	p := Peer{attr: ud.AH, qpn: ud.QPN, qkey: ud.QKey}
	if p.infiniBand() {
		p.ip = ip
	}
	return p
}

// infiniBand reports whether the peer is on InfiniBand, where there is no LID 0.
func (p Peer) infiniBand() bool { return p.attr.DLID != 0 }

// IP returns the address of the peer or the group. Datagrams on InfiniBand do not have the address of
// their sender: there, IP returns the zero Addr for a peer of [PacketConn.Recv].
func (p Peer) IP() netip.Addr {
	if p.infiniBand() {
		return p.ip
	}
	return p.attr.GRH.DGID.Addr().Unmap()
}

// QPN returns the number of the peer's QP, or [rdmacm.MulticastQPN] for a group.
func (p Peer) QPN() uint32 { return p.qpn }

// Network returns "rdma+udp".
func (p Peer) Network() string { return "rdma+udp" }

// String returns the address, or else the LID, and the QP number.
func (p Peer) String() string {
	if ip := p.IP(); ip.IsValid() {
		return fmt.Sprintf("%s QP %d", ip, p.qpn)
	}
	return fmt.Sprintf("LID %d QP %d", p.attr.DLID, p.qpn)
}

// packetQueue is a CQ. One goroutine at a time, the one whose turn it is, polls it and waits for
// it.
type packetQueue struct {
	completions
	turn     chan struct{} // held by a value in the channel
	spinHint bool          // the last wait was short
	closing  *atomic.Bool  // the PacketConn is being closed
}

// drain takes both turns and keeps them, so that no goroutine waits for the CQs any more. It takes up to
// flushGrace longer if the device does not flush its queues. A Recv that waits for the turn to send gets
// it then, too.
func (p *PacketConn) drain() {
	dead := time.AfterFunc(flushGrace, func() {
		p.recv.ch.Shutdown()
		p.send.ch.Shutdown()
	})
	defer dead.Stop()
	p.recv.turn <- struct{}{}
	p.send.turn <- struct{}{}
}

// takeTurn waits for the turn.
func (q *packetQueue) takeTurn(ctx context.Context) error {
	select {
	case q.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next waits for completions and returns up to max of them.
func (q *packetQueue) next(ctx context.Context, o *PacketOptions, max int) ([]uverbs.WC, error) {
	wcs := q.wcs[:min(max, len(q.wcs))]
	begin := time.Now()
	spins := q.spinHint
	defer func() { q.spinHint = worthSpinning(begin, o.Spin) }()
	for armed := false; ; {
		n, err := q.cq.Poll(wcs)
		switch {
		case n > 0 || err != nil:
			return wcs[:n], err
		case q.closing.Load():
			return nil, errClosed
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case o.Wait == WaitSpin, o.Wait == WaitSpinThenPark && spins && time.Since(begin) < o.Spin:
			continue
		case !armed:
			if err := q.cq.Notify(); err != nil {
				return nil, err
			}
			armed = true
			continue // a completion may have come before it was armed
		}
		if _, err := q.ch.Next(ctx); err != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		armed = false
	}
}

// ListenPacket receives datagrams on "host:port", where peers find it with [DialPacket]. The host
// must be an address of an RDMA device, because a QP belongs to one device. With port 0 the kernel
// chooses a port; see [PacketConn.LocalAddr]. The context limits only the lookup of the host and
// the port.
func ListenPacket(ctx context.Context, address string, o PacketOptions) (*PacketConn, error) {
	o, err := o.defaults("ListenPacket", maxPacketAnswer)
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, nil, "ip", address)
	if err != nil {
		return nil, err
	}
	if addrs[0].Addr().IsUnspecified() {
		return nil, argErr("ListenPacket", "address", address, "an address of an RDMA device")
	}
	p, err := newPacketConn(o, addrs[0].Addr(), netip.Addr{})
	if err != nil {
		return nil, err
	}
	if err = p.id.Bind(rdmacm.AddrOf(addrs[0])); err == nil {
		err = p.make()
	}
	if err == nil {
		p.loop.register(p.id, eventHandler{p.event, p.endWith})
		err = p.id.Listen(0)
	}
	if err != nil {
		return nil, errors.Join(&addressed{"listen for datagrams on", address, err}, p.Close())
	}
	return p, nil
}

// DialPacket asks the host at "host:port" for the QP that receives its datagrams;
// [PacketConn.DialedPeer] returns it. If the peer rejects the request, the error is as for
// [rdmacm.ID.ConnectWait].
func DialPacket(ctx context.Context, address string, o PacketOptions) (*PacketConn, error) {
	o, err := o.defaults("DialPacket", maxPacketRequest)
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, nil, "ip", address)
	if err != nil {
		return nil, err
	}
	p, err := newPacketConn(o, o.LocalAddr.Addr(), addrs[0].Addr())
	if err != nil {
		return nil, err
	}
	var answer *rdmacm.Event
	err = redial.Within(ctx, o.Timeout, func(ctx context.Context) error {
		err := p.id.ResolveWait(ctx, rdmacm.AddrOf(o.LocalAddr), rdmacm.AddrOf(addrs[0]))
		if err == nil {
			err = p.make()
		}
		if err == nil {
			answer, err = p.id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: o.PrivateData})
		}
		return err
	})
	if err != nil {
		p.dev.forgetIfRemoved(err)
		return nil, errors.Join(&addressed{"dial for datagrams to", address, err}, p.Close())
	}
	to := peerOf(answer.UD, p.addrs.Remote.IP)
	p.peer = &to
	p.loop.register(p.id, eventHandler{p.event, p.endWith})
	return p, nil
}

// newPacketConn makes a PacketConn that has an ID and nothing else, for a local and a remote address.
func newPacketConn(o PacketOptions, local, remote netip.Addr) (*PacketConn, error) {
	loop, id, err := newLoopID(rdmacm.UDP, local, remote, startEventLoop)
	if err != nil {
		return nil, err
	}
	p := &PacketConn{loop: loop, id: id, o: o, heldSlot: -1, revived: make(chan struct{}), joined: map[netip.Addr]*membership{}}
	for _, q := range []*packetQueue{&p.send, &p.recv} {
		q.turn, q.closing = make(chan struct{}, 1), &p.closing
	}
	return p, nil
}

// make allocates memory and queues on the device of the ID, and posts the receives.
func (p *PacketConn) make() error {
	addrs, index, err := p.id.AddrsByIndex()
	if err == nil {
		err = addrs.CheckReachable()
	}
	if err != nil {
		return err
	}
	if p.dev, err = useDevice(index); err != nil {
		return err
	}
	p.addrs = addrs
	dev := p.dev.dev
	p.addrs.Device = dev.Name()
	port, err := dev.Port(addrs.Port)
	if err != nil {
		return err
	}
	p.mtu = port.ActiveMTU.Bytes()
	p.size = uverbs.GRHSize + longestDatagram
	p.ahs.pd = p.dev.shared.pd
	recvs, sends := p.o.Depth+1, p.o.SendDepth // one more receive for the datagram that Recv has returned
	if p.mem, err = p.dev.shared.pool.alloc(recvs+sends, max(p.size, p.mtu)); err != nil {
		return err
	}
	if p.recv.completions, err = newCompletions(dev, recvs); err != nil {
		return err
	}
	if p.send.completions, err = newCompletions(dev, sends); err != nil {
		return err
	}
	o := uverbs.QPOptions{SendCQ: p.send.cq, RecvCQ: p.recv.cq, MaxSendWR: sends, MaxRecvWR: recvs}
	if p.qp, err = p.id.CreateQP(p.dev.shared.pd, o); err != nil {
		return err
	}
	attr, err := p.qp.Query()
	if err != nil {
		return err
	}
	p.qkey = attr.QKey
	for slot := range recvs {
		if err := p.post(slot); err != nil {
			return err
		}
	}
	return nil
}
