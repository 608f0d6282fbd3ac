package uverbs

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// QP is a queue pair (struct ibv_qp). It is safe for concurrent use, except for batches of
// [QP.BeginSend]: see Concurrency in the package documentation.
//
// Close may be called at any time. Calls that begin after it fail with [os.ErrClosed]. A work
// request that is posted during Close may be lost without an error.
type QP struct {
	object
	handle uint32
	cookie uint64 // user_handle that events carry
	qpn    uint32
	psn    atomic.Uint32 // of firstPSN, with a bit that says that it is chosen
	typ    ib.QPType
	caps   QPCaps
	sendCQ *CQ
	recvCQ *CQ
	srq    *SRQ
	pd     uint32 // handle of the PD
	noRecv error  // why there is no receive queue, or nil
	path   PathOptions

	// changing is held while a command changes the state or reads it, until the library has followed. It
	// comes after closeMu and before the locks of CQs and of the two sides.
	changing sync.Mutex
	port     atomic.Uint32 // the port of the last Modify that set it
	pkey     atomic.Uint32 // the P_Key index of the last Modify that set it
	peer     atomic.Pointer[peerInfo]
	told     atomic.Pointer[ib.GID]  // the GID that Endpoint has returned or Connect uses; nil after Reset
	first    atomic.Pointer[WCError] // the failure that moved the QP to QPErr

	// The fields that every message needs, up to the driver's send queue, are in one cache line.
	sending   mmio.Lock // held while sends are posted; a successful Close keeps it
	receiving mmio.Lock // the same for receives, if the driver needs it
	kind      driverKind
	always    SendFlags     // flags that every work request has
	plain     uint16        // a bit for each WROpcode that PostSend can encode without the builder
	addressed uint16        // a bit for each WROpcode of SENDs, WRITEs and READs, if each request names its peer
	state     atomic.Uint32 // QPState as last set or seen; to leave or enter QPReset it takes the locks of the sides, too
	resets    atomic.Uint32 // how often the QP has begun to enter QPReset; also guarded by the locks of the sides
	qpDrivers
	sqRegion *mmio.Region
	rqRegion *mmio.Region
	doorbell fastCommand // POST_SEND without a work request
	ops      opcodeSet   // the operations that can be posted
	lacking  opcodeSet   // the operations that the type of QP permits and the device does not have
	builder  SendBuilder

	// awaitFirstRecv means that nothing has arrived from the peer yet, so that the accepting side of
	// an iWARP connection may not send.
	awaitFirstRecv atomic.Bool
	movingToErr    atomic.Bool // Modify is moving the QP to QPErr, or has done so
	bound          atomic.Bool // this QP has bound a window
	ringChecked    atomic.Bool // failed has searched the ring for the failure after a flush

	cause     atomic.Pointer[errCause] // why the QP is in state QPErr, if no failed completion says so
	flushSeen atomic.Bool              // a request was flushed before a cause other than an event was known

	dctn atomic.Uint32 // the number of a DCT; 0 before it is ready
}

// maxInline is the largest MaxInline that the library requests if the driver does not report its
// limit, which is lower.
const maxInline = 1 << 16

// defaultQueueSize is the default number of work requests of a queue.
const defaultQueueSize = 64

// orDefault returns v, or def if v is zero.
func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// newDoorbell prepares the command that rings the doorbell.
func (q *QP) newDoorbell() {
	req := &abi.PostSend{QPHandle: q.handle, WQESize: uint32(len(bytesOf(&abi.SendWR{})))}
	q.doorbell.Init(q.dev.cmd.Conn, abi.IB_USER_VERBS_CMD_POST_SEND, bytesOf(req), len(bytesOf(&abi.PostSendResp{})))
}

// firstPSN returns a random first packet sequence number, so that packets of an earlier connection
// are not taken for those of the next one, and nobody can guess it. A connection manager brings its own.
func (q *QP) firstPSN() uint32 {
	if psn := q.psn.Load(); psn != 0 { // it was chosen since the QP was in RESET
		return psn & maxPSN
	}
	var b [4]byte
	rand.Read(b[:]) // never fails
	q.psn.CompareAndSwap(0, binary.NativeEndian.Uint32(b[:])|(maxPSN+1))
	return q.firstPSN()
}

// lockSide locks the send or the receive side, or returns why nothing can be posted. A successful
// Close keeps the locks.
func (q *QP) lockSide(side *mmio.Lock) error {
	if side.TryLock() {
		return nil
	}
	return q.lockSideSlow(side)
}

// lockSideSlow is lockSide while another post, a change of state or Close holds the lock.
func (q *QP) lockSideSlow(side *mmio.Lock) error {
	for {
		if err := q.acquire(); err != nil { // it is Close, or Close waits
			return err
		}
		q.release()
		if side.TryLock() {
			return nil
		}
		runtime.Gosched()
	}
}

// Device returns the queue pair's device.
func (q *QP) Device() *Device { return q.dev }

// label returns the name of the queue pair in errors.
func (q *QP) label() string { return fmt.Sprintf("QP %d", q.QPN()) }

// QPN returns the queue pair's number, which the peer needs. That of a DCT is 0 before it is in
// state [ib.QPRTR].
func (q *QP) QPN() uint32 {
	if q.typ == ib.DCT {
		return q.dctn.Load()
	}
	return q.qpn
}

// Caps returns the sizes of the queues.
func (q *QP) Caps() QPCaps { return q.caps }

// State returns the state that the library last set or read. The device may have moved the QP to
// [ib.QPSQE] or [ib.QPErr] since; [QP.Query] reads the current state.
func (q *QP) State() ib.QPState { return ib.QPState(q.state.Load()) }

// cqs appends the CQs of the QP to all, each once.
func (q *QP) cqs(all []*CQ) []*CQ {
	if q.sendCQ != nil {
		all = append(all, q.sendCQ)
	}
	if q.recvCQ != nil && q.recvCQ != q.sendCQ {
		all = append(all, q.recvCQ)
	}
	return all
}

// destroyKernel destroys the kernel's object.
func (q *QP) destroyKernel() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_DESTROY_QP_HANDLE, q.handle)
	resp := &abi.DestroyQPResp{}
	cmd.out(abi.UVERBS_ATTR_DESTROY_QP_RESP, bytesOf(resp))
	errno := q.dev.cmd.ioctl(cmd)
	if absent(errno) {
		req := &abi.DestroyQP{QPHandle: q.handle}
		errno = q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DESTROY_QP, bytesOf(req), bytesOf(resp), udata{})
	}
	hint := ""
	if errno == syscall.EBUSY && q.typ == ib.UD {
		hint = "it may still be attached to a multicast group (DetachMulticast)"
	}
	if errno == 0 {
		return nil
	}
	return about(q.dev.cmd.fail("DESTROY_QP", errno, hint), q.label(), "")
}

// Close destroys the queue pair (ibv_destroy_qp). Work requests that are still posted never
// complete. Completions that are already in the CQ stay there, except with mlx5 and efa. Close memory
// windows of type 2 that are bound by the QP first, because rxe keeps a pointer to it.
//
// If a ring cannot be unmapped, Close returns an error, but the queue pair is destroyed.
func (q *QP) Close() error {
	return q.close(func() error {
		// A post in progress rings its doorbell before the QP is destroyed, and none does so later:
		// another QP may get the number of the doorbell.
		q.sending.Lock()
		q.receiving.Lock()
		if err := q.destroyKernel(); err != nil {
			q.sending.Unlock()
			q.receiving.Unlock()
			return err
		}
		q.dev.targets.drop(q.cookie)
		var few [2]*CQ
		for _, cq := range q.cqs(few[:0]) {
			cq.qps.Delete(q.QPN(), q)
		}
		return nil
	}, func() error { return q.dev.driver.freeQP(q) })
}

// isDC reports whether a type is one of DC.
func isDC(t ib.QPType) bool { return t == ib.DCI || t == ib.DCT }

// connected reports whether a QP of this type connects to one peer.
func (q *QP) connected() bool { return !isDatagram(q.typ) && q.typ != ib.RawPacket && !isDC(q.typ) }

// isDatagram reports whether each send of a type names its destination by an AH, a QP number and a Q_Key.
func isDatagram(t ib.QPType) bool { return t == ib.UD || t == ib.SRD }

// peerInfo describes a QP's peer and path, for errors.
type peerInfo struct {
	Endpoint
	timeout    ib.AckTimeout
	retries    uint8
	rnrRetries uint8
	mtu        ib.MTU // of the path
	noReads    bool   // MaxRdAtomic is 0

	minRNRTimer ib.RNRTimer // of this QP; the peer waits for it
}

// AttachMulticast makes a UD queue pair receive the datagrams of a multicast group, sent to QP number
// [ib.MulticastQPN] (ibv_attach_mcast). On RoCE gid is an IP multicast address and lid is 0; on InfiniBand
// lid is the group's LID (0xc000 to 0xfffe), chosen by the subnet manager. The host must also join the
// group, or nothing arrives: by package cm, or on RoCE by a UDP socket or soft's Device.JoinGroup.
// Attaching a QP twice has no effect; one DetachMulticast detaches it.
func (q *QP) AttachMulticast(gid ib.GID, lid uint16) error {
	return q.multicast("ATTACH_MCAST", abi.IB_USER_VERBS_CMD_ATTACH_MCAST, gid, lid)
}

// DetachMulticast detaches a queue pair from a group (ibv_detach_mcast). Close fails while the QP
// is attached.
func (q *QP) DetachMulticast(gid ib.GID, lid uint16) error {
	return q.multicast("DETACH_MCAST", abi.IB_USER_VERBS_CMD_DETACH_MCAST, gid, lid)
}

// multicasting is held during the two commands of any QP of the kernel's rxe: it loses a group that one QP leaves while
// another joins it, and the second can neither be detached nor destroyed then. No command of rxe waits for hardware.
var multicasting sync.Mutex

// multicast issues either command; their structs have the same layout.
func (q *QP) multicast(verb string, cmd uint32, gid ib.GID, lid uint16) error {
	if err := q.acquire(); err != nil {
		return err
	}
	defer q.release()
	if q.typ != ib.UD {
		return argErr(verb, "QP type", q.typ, "UD")
	}
	if !gid.Addr().IsMulticast() {
		return argErr(verb, "GID", gid.Addr(), "a multicast address: 224.0.0.0/4 or ff00::/8")
	}
	req := &abi.AttachMcast{GID: gid, QPHandle: q.handle, MLID: lid}
	oneByOne := q.dev.driver.capabilities().hostRoutes && !q.dev.info.InProcess
	if oneByOne {
		multicasting.Lock()
	}
	errno := q.dev.cmd.legacy(cmd, bytesOf(req), nil, udata{})
	if oneByOne {
		multicasting.Unlock()
	}
	hint := ""
	switch {
	case errno == syscall.EINVAL && verb == "ATTACH_MCAST" && !gid.Addr().Is4() && (lid < 0xc000 || lid > 0xfffe):
		hint = fmt.Sprintf("lid is %#x, allowed: on InfiniBand the LID of the group, 0xc000 to 0xfffe", lid)
	case errno == syscall.EINVAL && verb == "DETACH_MCAST":
		hint = "the QP is not attached to the group"
	case errno == syscall.ENOMEM:
		hint = "the device has no room for another group or QP (max_mcast_grp, max_mcast_qp_attach)"
	}
	return about(q.dev.cmd.fail(verb, errno, hint), q.label(), gid.Addr().String())
}
