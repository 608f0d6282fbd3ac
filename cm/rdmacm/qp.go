package rdmacm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"weak"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// queues are the QP and the SRQ of an ID.
type queues struct {
	mu  sync.Mutex                 // held while the QP or the SRQ is created or closed, which a device may delay
	qp  atomic.Pointer[uverbs.QP]  // set with mu; nil if there is none
	srq atomic.Pointer[uverbs.SRQ] // set with mu; nil if there is none
	ece eceState

	closed bool // guarded by mu: the ID is being closed, so that there will be no new QP or SRQ

	bound  atomic.Pointer[boundDevice] // nil if it is not known yet
	device weak.Pointer[uverbs.Device] // of qp, set before qp

	acceptedRequest atomic.Bool // the ID has accepted a request
}

// boundDevice is the device that the kernel has chosen for an ID. An ID keeps its device.
type boundDevice struct {
	index uint32
	port  uint8
}

// close closes the QP and the SRQ.
func (q *queues) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if qp := q.qp.Load(); qp != nil {
		if err := qp.Close(); err != nil {
			return err
		}
		q.qp.Store(nil)
	}
	if srq := q.srq.Load(); srq != nil {
		if err := srq.Close(); err != nil {
			return err
		}
		q.srq.Store(nil)
	}
	q.closed = true
	return nil
}

// lockQueues locks the queues to create one. It fails at once while Close closes them.
func (id *ID) lockQueues() error {
	if id.closing.Load() > 0 {
		return errIDClosed
	}
	id.queues.mu.Lock()
	if id.queues.closed {
		id.queues.mu.Unlock()
		return errIDClosed
	}
	return nil
}

// checkDevice returns an error unless the PD belongs to the device of the ID, and otherwise the port of the ID.
func (id *ID) checkDevice(op string, pd *uverbs.PD) (port uint8, err error) {
	if pd == nil {
		return 0, argErr(op, "pd", "nil", "a PD")
	}
	if id.queues.bound.Load() == nil {
		if _, _, err := id.AddrsByIndex(); err != nil {
			return 0, err
		}
	}
	bound := id.queues.bound.Load()
	switch {
	case bound == nil:
		return 0, &Error{Op: op, Errno: syscall.EINVAL, Hint: "the ID has no device yet; bind it to an address of a device, or resolve an address"}
	case pd.Device() == nil:
		return 0, argErr(op, "pd", "a zero value", "a PD")
	case bound.index == pd.Device().Info().Index:
		name := pd.Device().Name()
		id.device.Store(&name)
		return bound.port, nil
	}
	name, err := inprocess.DeviceName(bound.index)
	if err != nil {
		return 0, fmt.Errorf("cm: %s: %w", op, err)
	}
	if name == pd.Device().Name() { // its index was not known when it was opened
		id.device.Store(&name)
		return bound.port, nil
	}
	return 0, argErr(op, "pd", "of device "+pd.Device().Name(), "one of %s, the device of the address", name)
}

// CreateSRQ creates an SRQ for the QP of the ID (rdma_create_srq, rdma_create_srq_ex). It must be
// called before [ID.CreateQP]. The SRQ is closed with the ID.
func (id *ID) CreateSRQ(pd *uverbs.PD, o uverbs.SRQOptions) (*uverbs.SRQ, error) {
	const op = "create SRQ"
	if _, err := id.checkDevice(op, pd); err != nil {
		return nil, err
	}
	if err := id.lockQueues(); err != nil {
		return nil, err
	}
	defer id.queues.mu.Unlock()
	if id.queues.srq.Load() != nil || id.queues.qp.Load() != nil {
		return nil, &Error{Op: op, Errno: syscall.EBUSY, Hint: "the ID has an SRQ or a QP already"}
	}
	srq, err := pd.CreateSRQ(o)
	if err != nil {
		return nil, err
	}
	id.queues.srq.Store(srq)
	return srq, nil
}

// CreateQP creates a QP that follows the state of the ID (rdma_create_qp, rdma_create_qp_ex). The new
// QP is in state INIT, so that receives can be posted. The ID moves it to RTS when the connection is
// established; for datagrams CreateQP does so at once. [ID.Disconnect] moves it to ERR, and [ID.Close]
// closes it. The type of the QP is UD in the port spaces for datagrams, and otherwise RC unless o.Type
// sets another one. The QP uses the SRQ of [ID.CreateSRQ] unless o.SRQ is set.
//
// The QP has the path of the ID, not o.Path. On InfiniBand its partition is the one of the network
// interface, such as ib0.8001, or of a [GIDAddr] with another PKey.
//
// The address and the route of the ID must be resolved, or the ID must belong to a request. For
// datagrams it is enough that the ID is bound to an address of a device.
func (id *ID) CreateQP(pd *uverbs.PD, o uverbs.QPOptions) (*uverbs.QP, error) {
	const op = "create QP"
	port, err := id.checkDevice(op, pd)
	if err != nil {
		return nil, err
	}
	return id.createQP(pd, port, o)
}

// onIWARP reports whether d is an iWARP device. There the kernel moves a QP when it is connected,
// and no command does.
func onIWARP(d *uverbs.Device) bool { return d.Info().IWARP() }

// createQP is CreateQP for a PD that was checked. The port is the port of the ID.
func (id *ID) createQP(pd *uverbs.PD, port uint8, o uverbs.QPOptions) (*uverbs.QP, error) {
	const op = "create QP"
	if err := id.lockQueues(); err != nil {
		return nil, err
	}
	defer id.queues.mu.Unlock()
	if id.queues.qp.Load() != nil {
		return nil, &Error{Op: op, Errno: syscall.EBUSY, Hint: "the ID has a QP already"}
	}
	if o.SRQ == nil {
		o.SRQ = id.queues.srq.Load()
	}
	if id.datagrams() {
		o.Type = ib.UD
	}
	qp, err := pd.CreateQP(o)
	if err != nil {
		return nil, err
	}
	id.queues.device = weak.Make(pd.Device())
	err = id.queues.ece.offer(qp)
	switch {
	case err != nil:
	case onIWARP(pd.Device()):
		err = qp.Init()
	case id.datagrams():
		for state := ib.QPInit; err == nil && state <= ib.QPRTS; state++ {
			err = id.modifyTo(qp, state, nil)
		}
	default:
		err = id.modifyToInit(qp, port)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cm: %s: %w", op, err), qp.Close())
	}
	id.queues.qp.Store(qp)
	return qp, nil
}

// rnrTimer is how long the peer waits, at least, when it finds no receive: 640 µs. The kernel chooses 0, which is
// 655 ms.
const rnrTimer ib.RNRTimer = 12

// modifyTo moves a QP to a state, mostly with the attributes that the kernel chooses. If p is not nil, it
// limits the number of READs and atomics.
func (id *ID) modifyTo(qp *uverbs.QP, state ib.QPState, p *ConnParam) error {
	attr, mask, err := id.QPAttr(state)
	if err != nil {
		return err
	}
	if state == ib.QPRTR && !id.datagrams() { // the access rights of the peer were not known before
		if attr.Access, err = id.peerAccess(attr.MaxDestRdAtomic > 0); err != nil {
			return err
		}
		mask |= uverbs.AttrAccess
	}
	if attr.Access&uverbs.AccessRemoteAtomic != 0 && qp.Device().Attr().AtomicCap == ib.AtomicNone {
		attr.Access &^= uverbs.AccessRemoteAtomic // the kernel gives it with READs; mlx5_ib refuses it on a card without atomics
	}
	if t := ib.AckTimeout(id.ackTimeout.Load()); t != 0 && mask&uverbs.AttrTimeout != 0 {
		attr.Timeout = t
	}
	if mask&uverbs.AttrMinRNRTimer != 0 {
		attr.MinRNRTimer = rnrTimer
	}
	if n := id.retry.Load(); n != nil && mask&uverbs.AttrRetryCount != 0 {
		attr.RetryCount = *n
	}
	if n := id.rnrRetry.Load(); n != nil && mask&uverbs.AttrRNRRetry != 0 {
		attr.RNRRetry = *n
	}
	if state == ib.QPRTR && mask&uverbs.AttrPathMTU != 0 {
		if err := id.limitMTU(qp, &attr, p); err != nil {
			return err
		}
	}
	if p != nil {
		if mask&uverbs.AttrMaxDestRdAtomic != 0 {
			attr.MaxDestRdAtomic = p.ResponderResources
		}
		if mask&uverbs.AttrMaxRdAtomic != 0 {
			attr.MaxRdAtomic = p.InitiatorDepth
		}
	}
	return qp.Modify(attr, mask)
}

// limitMTU lowers the path MTU of a QP to what the peer's answer allows or, for the QP that answers
// with p, to what this side does.
func (id *ID) limitMTU(qp *uverbs.QP, attr *uverbs.QPAttr, p *ConnParam) error {
	switch {
	case p == nil:
		if mtu := ib.MTU(id.lowerMTU.Load()); mtu.Bytes() != 0 {
			attr.PathMTU = min(attr.PathMTU, mtu)
		}
	case p.MTU != 0:
		attr.PathMTU = min(attr.PathMTU, p.MTU)
	default:
		port, err := qp.Device().Port(attr.AH.Port)
		if err != nil {
			return err
		}
		if attr.PathMTU > port.ActiveMTU {
			return fmt.Errorf("%w: the peer asks for path MTU %d, and port %d of %s has %d", syscall.EMSGSIZE, attr.PathMTU.Bytes(), attr.AH.Port, qp.Device().Name(), port.ActiveMTU.Bytes())
		}
	}
	return nil
}

// modifyToInit moves the QP of a connection to INIT, without access rights, which it gets in RTR. On Ethernet all
// connections of a port have the same attributes, so one query to the kernel is enough.
func (id *ID) modifyToInit(qp *uverbs.QP, port uint8) error {
	key := queriedKey{device: id.queues.device, port: port}
	queried.mu.Lock()
	known, asked := queried.init[key]
	queried.mu.Unlock()
	if known != nil {
		return qp.Modify(*known, initMask)
	}
	attr, mask, err := id.QPAttr(ib.QPInit)
	if err != nil {
		return err
	}
	attr.Access = 0
	if !asked {
		p, err := qp.Device().Port(port)
		if err != nil {
			return err
		}
		if p.LinkLayer == ib.LinkLayerEthernet && attr.Port == port && mask == initMask {
			known = &attr
		}
		queried.mu.Lock()
		queried.init[key] = known
		queried.mu.Unlock()
		runtime.AddCleanup(qp.Device(), forgetQueried, key)
	}
	return qp.Modify(attr, mask)
}

// initMask are the attributes with which a QP of a connection becomes INIT.
const initMask = uverbs.AttrState | uverbs.AttrPKeyIndex | uverbs.AttrPort | uverbs.AttrAccess

// queried has what the kernel says about the QPs of connections, by device and port or kind. Entries are
// removed with the open device, after which another device may have the index.
var queried = struct {
	mu sync.Mutex
	// init has the attributes for INIT, by port. An entry is nil if connections of the port may have
	// different ones.
	init map[queriedKey]*uverbs.QPAttr // guarded by mu
	// access has the access rights that the kernel gives to peers. They depend only on the device and on
	// whether there may be READs and atomics, so one query to the kernel is enough for each combination.
	access map[queriedKey]uverbs.Access // guarded by mu
}{init: map[queriedKey]*uverbs.QPAttr{}, access: map[queriedKey]uverbs.Access{}}

type queriedKey struct {
	device weak.Pointer[uverbs.Device]
	port   uint8 // in init
	reads  bool  // in access
}

// forgetQueried removes the entries of a key.
func forgetQueried(k queriedKey) {
	queried.mu.Lock()
	defer queried.mu.Unlock()
	delete(queried.init, k)
	delete(queried.access, k)
}

// peerAccess returns the access rights of the peer for a QP in state RTR.
func (id *ID) peerAccess(reads bool) (uverbs.Access, error) {
	key := queriedKey{device: id.queues.device, reads: reads}
	queried.mu.Lock()
	access, ok := queried.access[key]
	queried.mu.Unlock()
	if ok {
		return access, nil
	}
	init, _, err := id.QPAttr(ib.QPInit)
	if err != nil {
		return 0, err
	}
	queried.mu.Lock()
	queried.access[key] = init.Access
	queried.mu.Unlock()
	if dev := key.device.Value(); dev != nil {
		runtime.AddCleanup(dev, forgetQueried, key)
	}
	return init.Access, nil
}

// modifyToRTS moves a QP to RTS, with options for enhanced connections that the peer has asked for or,
// if answer is true, has answered with. On iWARP the kernel moves the QP.
func (id *ID) modifyToRTS(qp *uverbs.QP, p *ConnParam, peer ECE, answer bool) error {
	if onIWARP(qp.Device()) {
		return nil
	}
	err := id.useECE(qp, peer, answer, func() error { return id.modifyTo(qp, ib.QPRTR, p) })
	if err != nil {
		return err
	}
	return id.modifyTo(qp, ib.QPRTS, p)
}

// AdvanceQP moves the QP of the event's ID to the state that the event requires. It is needed once
// for each event of [Channel.Read], before the event is used, and for no other. When the peer has
// accepted, it moves the QP to RTS, confirms that to the peer, and turns the event into Established.
// If that fails it rejects the answer of the peer and turns the event into ConnectError.
func (e *Event) AdvanceQP() {
	id := e.ID
	if id == nil {
		return
	}
	qp := id.queues.qp.Load()
	if qp == nil {
		return
	}
	iwarp := onIWARP(qp.Device())
	switch {
	case e.Type == EventDeviceRemoval:
		qp.SetErrCause(errRemoved(id.deviceName()))
	case e.Type == EventDisconnected && iwarp:
		qp.SetErrCause(errIWARPGone)
	case e.Type == EventDisconnected:
		qp.SetErrCause(errPeerGone)
	}
	if id.datagrams() {
		return
	}
	if iwarp {
		e.followKernel(qp)
		return
	}
	if e.Type != EventConnectResponse || e.Status != 0 {
		return
	}
	if mtu := id.answerMTU.Load(); mtu != nil && *mtu != nil {
		id.lowerMTU.Store(uint32((*mtu)(e.Param.PrivateData))) // of the answer
	}
	err := id.modifyToRTS(qp, nil, e.Param.ECE, true)
	if err == nil {
		err = id.Establish()
	}
	if err == nil {
		e.Type = EventEstablished
		return
	}
	id.Reject(nil, rejectReason(err))
	e.Type, e.cause = EventConnectError, err
	e.Status = -int32(syscall.EIO)
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		e.Status = -int32(errno)
	case errors.Is(err, os.ErrClosed):
		e.Status = -int32(syscall.ECANCELED)
	}
}

// rejectReason returns the reason for the peer if this side fails to connect.
func rejectReason(err error) Reason {
	if errors.Is(err, ErrNoECE) {
		return ReasonVendorOption
	}
	return ReasonConsumer
}

// followKernel updates an iWARP QP to the state to which the kernel has moved it.
func (e *Event) followKernel(qp *uverbs.QP) {
	switch {
	case e.Type == EventEstablished && e.Status == 0 && !e.ID.queues.acceptedRequest.Load():
		qp.SetKernelState(ib.QPRTS) // it fails only if the QP has gone on already
	case e.Type == EventDisconnected:
		// It is in error, or about to be; now what was posted meanwhile is flushed too.
		qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState)
	}
}
