package rdmacm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// ID is a communication identifier: one end of a connection, or a listener (struct rdma_cm_id). It
// is safe for concurrent use, but the operations of one connection must follow one another.
type ID struct {
	space     PortSpace
	handle    uint32
	uid       uint64 // the number that events of the ID carry
	channel   atomic.Pointer[Channel]
	remote    atomic.Pointer[Addr]   // the address that was to be resolved, for errors
	device    atomic.Pointer[string] // name of the device, for errors; nil if it was not asked for
	exclusive atomic.Bool            // events are for Wait, not for Next
	queues    queues

	listens atomic.Int32 // calls of Listen that have succeeded or are under way
	backlog atomic.Int64 // of a listener: requests that may wait for the program; 0 is defaultBacklog

	ackTimeout atomic.Uint32         // ib.AckTimeout of a QP of CreateQP; 0 is what the kernel chooses
	retry      atomic.Pointer[uint8] // set by SetRetryCount; nil is what the side that connects asks for
	rnrRetry   atomic.Pointer[uint8] // set by SetRNRRetryCount; nil is what the peer asks for

	answerMTU atomic.Pointer[func([]byte) ib.MTU] // given to Connect
	lowerMTU  atomic.Uint32                       // what it has returned

	open    sync.RWMutex // held for reading by commands; see hold
	closing atomic.Int32 // calls of Close that run or have succeeded
	closed  atomic.Bool  // set with open
}

// Names of operations, for errors.
const (
	opCreate     = "create ID"
	opBind       = "bind"
	opListen     = "listen"
	opConnect    = "connect"
	opAccept     = "accept"
	opResolve    = "resolve address"
	opRoute      = "resolve route"
	opDisconnect = "disconnect"
	opJoin       = "join group"
	opService    = "resolve service"
	opSetPath    = "set path"
	opWriteEvent = "write event"
)

// NewID makes an ID in a port space (rdma_create_id).
func (c *Channel) NewID(space PortSpace) (*ID, error) {
	switch space {
	case TCP, UDP, IB, IPoIB:
	default:
		return nil, argErr("NewID", "port space", space, "TCP, UDP, IB or IPoIB")
	}
	id := &ID{space: space, uid: lastUID.Add(1)}
	if err := c.addID(id); err != nil {
		return nil, err
	}
	resp := &abi.CreateIDResp{}
	errno := query(c.file, abi.RDMA_USER_CM_CMD_CREATE_ID,
		&abi.CreateID{Uid: id.uid, Response: abi.PtrTo(resp), Ps: uint16(space), QPType: space.qpType()}, resp)
	if errno != 0 {
		c.removeID(id)
		return nil, opError(opCreate, "", errno)
	}
	id.handle = resp.ID
	return id, nil
}

// datagrams reports whether the port space is one for datagrams.
func (id *ID) datagrams() bool { return id.space == UDP || id.space == IPoIB }

// hold keeps the ID open, and on the channel that it returns, until release is called. It returns nil
// if the ID is closed or being closed. Every command about an ID or a group is given between the two, since the
// kernel soon gives the handle of a destroyed ID to another one. The caller must not call hold again
// meanwhile. It may not take the lock of the queues either, because createQP holds that when it calls
// hold.
func (id *ID) hold() *Channel {
	if id.closing.Load() > 0 { // waiting for open would mean to wait for commands of others
		return nil
	}
	id.open.RLock()
	if id.closed.Load() {
		id.open.RUnlock()
		return nil
	}
	return id.channel.Load()
}

// release ends hold.
func (id *ID) release() { id.open.RUnlock() }

// issue issues a command about the ID, or returns errClosedID.
func (id *ID) issue(o rawCommand) syscall.Errno {
	issue := (*file).issue
	if o.hdr.Cmd == abi.RDMA_USER_CM_CMD_CONNECT && id.mayDial() {
		issue = (*file).issueNoSignals
	}
	c := id.hold()
	if c == nil {
		return errClosedID
	}
	defer id.release()
	return issue(c.file, o)
}

// do issues a command about the ID. The address is for errors and may be nil.
func do[Q any](id *ID, op string, addr *Addr, cmd uint32, req *Q) error {
	return addrErr(op, addr, id.issue(newMessage(cmd, req, 0).raw(nil)))
}

// addrErr returns the error of a command with an address, which may be nil.
func addrErr(op string, addr *Addr, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	about := ""
	if addr != nil {
		about = addr.String()
	}
	if op == opBind {
		return bindErr(addr, errno)
	}
	return opError(op, about, errno)
}

// mayDial reports whether the kernel may connect by TCP for the ID, as it does on iWARP.
func (id *ID) mayDial() bool {
	qp := id.queues.qp.Load()
	return !id.datagrams() && (qp == nil || onIWARP(qp.Device()))
}

// errIDClosed is the error of the methods of an ID that is closed.
var errIDClosed = fmt.Errorf("cm: ID: %w", os.ErrClosed)

// Bind assigns a local address to the ID (rdma_bind_addr). The unspecified address stands for all
// addresses. With port 0 the kernel chooses a port.
func (id *ID) Bind(local Addr) error {
	s, size, err := id.storage("Bind", "local", &local)
	if err != nil {
		return err
	}
	return do(id, opBind, &local, abi.RDMA_USER_CM_CMD_BIND, &abi.Bind{ID: id.handle, AddrSize: size, Addr: s})
}

// ResolveAddr starts to look for the device and the link-layer address for a remote address
// (rdma_resolve_addr). If the local address is the zero value, the kernel chooses one. The result
// is [EventAddrResolved] or [EventAddrError], after the timeout at the latest. The timeout is
// between 1 ms and an hour.
func (id *ID) ResolveAddr(local, remote Addr, timeout time.Duration) error {
	const op = "ResolveAddr"
	ms, err := milliseconds(op, timeout)
	if err != nil {
		return err
	}
	req := abi.ResolveAddr{ID: id.handle, TimeoutMs: ms}
	if req.DstAddr, req.DstSize, err = id.storage(op, "remote", &remote); err != nil {
		return err
	}
	if local.IP.IsValid() {
		if req.SrcAddr, req.SrcSize, err = id.storage(op, "local", &local); err != nil {
			return err
		}
	}
	id.remote.Store(&remote)
	return do(id, opResolve, &remote, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, &req)
}

// storage returns an address in the kernel's layout. It sets the port space of the address if there
// is none, and fails if it is not that of the ID.
func (id *ID) storage(op, field string, a *Addr) (s abi.KernelSockaddrStorage, size uint16, err error) {
	if !a.IP.IsValid() {
		return s, 0, argErr(op, field, "the zero value", "an address")
	}
	if a.Space == 0 {
		a.Space = id.space
	}
	if a.Space != id.space {
		return s, 0, argErr(op, field, a.Network()+" "+a.String(), "an address of port space %s", id.space)
	}
	return a.storage()
}

// remoteName returns the address that was to be resolved, for errors.
func (id *ID) remoteName() string {
	if a := id.remote.Load(); a != nil {
		return a.String()
	}
	return ""
}

// deviceName returns the name of the ID's device for errors, empty if it is not known.
func (id *ID) deviceName() string {
	if name := id.device.Load(); name != nil {
		return *name
	}
	return ""
}

// milliseconds converts a timeout, which must be between a millisecond and an hour.
func milliseconds(op string, d time.Duration) (uint32, error) {
	const longest = time.Hour
	if d < time.Millisecond || d > longest {
		return 0, argErr(op, "timeout", d, "1ms to %s", longest)
	}
	return uint32(d / time.Millisecond), nil
}

// ResolveRoute starts to look for the route to the resolved address (rdma_resolve_route). The
// result is [EventRouteResolved] or [EventRouteError]. The timeout is between 1 ms and an hour.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	ms, err := milliseconds("ResolveRoute", timeout)
	if err != nil {
		return err
	}
	return do(id, opRoute, id.remote.Load(), abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, &abi.ResolveRoute{ID: id.handle, TimeoutMs: ms})
}

// Listen makes the ID a listener on the address that it is bound to (rdma_listen). Each request of
// a peer is an [EventConnectRequest]. Up to backlog requests may wait for the program; 0 is the
// default of the kernel, 1024.
func (id *ID) Listen(backlog int) error {
	if backlog < 0 {
		return argErr("Listen", "backlog", backlog, "at least 0")
	}
	id.backlog.Store(int64(backlog))
	id.listens.Add(1)
	err := do(id, opListen, nil, abi.RDMA_USER_CM_CMD_LISTEN, &abi.Listen{ID: id.handle, Backlog: uint32(backlog)})
	if err != nil {
		id.listens.Add(-1)
	}
	return err
}

// maxPrivate is how much private data an operation can carry, in bytes, for connections and for
// datagrams. In a request for a connection, the header of the connection manager takes some of the
// space in the packet. On iWARP there is no such header, and the kernel's interface sets the limit.
var maxPrivate = map[string][2]int{opConnect: {56, 180}, opAccept: {196, 136}, "reject": {148, 136}}

// checkPrivate returns an error if an operation cannot carry so much private data.
func (id *ID) checkPrivate(op string, data []byte) error {
	limit := maxPrivate[op][0]
	if qp := id.queues.qp.Load(); id.datagrams() {
		limit = maxPrivate[op][1]
	} else if qp != nil && onIWARP(qp.Device()) {
		limit = math.MaxUint8
	}
	if len(data) > limit {
		return argErr(op, "PrivateData", fmt.Sprintf("%d bytes long", len(data)), "up to %d bytes in port space %s", limit, id.space)
	}
	return nil
}

// param returns the parameters in the kernel's layout.
func (p *ConnParam) param() abi.ConnParam {
	q := abi.ConnParam{
		QPNum:              p.QPN,
		QKey:               p.QKey,
		PrivateDataLen:     uint8(len(p.PrivateData)),
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		RetryCount:         p.RetryCount,
		RNRRetryCount:      p.RNRRetryCount,
		Valid:              1,
	}
	copy(q.PrivateData[:], p.PrivateData)
	if p.SRQ {
		q.SRQ = 1
	}
	if p.FlowControl {
		q.FlowControl = 1
	}
	return q
}

// complete checks the parameters and sets those that depend on the ID's QP. It returns the QP, or
// nil if there is none.
func (id *ID) complete(op string, p *ConnParam) (*uverbs.QP, error) {
	if err := id.checkPrivate(op, p.PrivateData); err != nil {
		return nil, err
	}
	if err := p.check(op); err != nil {
		return nil, err
	}
	qp := id.queues.qp.Load()
	if qp != nil {
		p.QPN, p.SRQ = qp.QPN(), id.queues.srq.Load() != nil
	}
	return qp, nil
}

// check returns an error if a parameter is out of range.
func (p *ConnParam) check(op string) error {
	const maxRetries = 7
	for _, f := range []struct {
		name  string
		given uint8
	}{{"RetryCount", p.RetryCount}, {"RNRRetryCount", p.RNRRetryCount}} {
		if f.given > maxRetries {
			return argErr(op, f.name, f.given, "0 to %d", maxRetries)
		}
	}
	if p.MTU != 0 && p.MTU.Bytes() == 0 {
		return argErr(op, "MTU", uint8(p.MTU), "0, or %d to %d", uint8(ib.MTU256), uint8(ib.MTU4096))
	}
	return nil
}

// Connect sends a request for a connection, or for the QP of a peer that receives datagrams
// (rdma_connect). The result is [EventEstablished], or [EventRejected], [EventUnreachable] or
// [EventConnectError].
//
// If the QP was not made with [ID.CreateQP], the result is [EventConnectResponse]. The program then
// moves the QP to RTS and calls [ID.Establish]. On iWARP the result is EventEstablished in this
// case too, and the program calls [uverbs.QP.SetKernelState].
func (id *ID) Connect(p ConnParam) error {
	if _, err := id.complete(opConnect, &p); err != nil {
		return err
	}
	if p.ECE == (ECE{}) {
		p.ECE = id.offeredECE()
	}
	id.answerMTU.Store(&p.AnswerMTU)
	id.lowerMTU.Store(0)
	return do(id, opConnect, id.remote.Load(), abi.RDMA_USER_CM_CMD_CONNECT,
		&abi.Connect{ConnParam: p.param(), ID: id.handle, Ece: abi.Ece{VendorID: p.ECE.VendorID, AttrMod: p.ECE.Options}})
}

// Accept accepts the request of an [EventConnectRequest] (rdma_accept). [EventEstablished] follows
// when the peer is ready. Accept moves a QP of [ID.CreateQP] to RTS, with as many READs and atomics
// as p allows. The program must move any other QP itself before it calls Accept.
//
// A connection has the path MTU that the request asks for. If this side's port has a smaller one,
// Accept of an ID with a QP of CreateQP fails with EMSGSIZE, since longer messages could not arrive.
// With ConnParam.MTU the QP has the smaller one; the peer must have it, too, by ConnParam.AnswerMTU or
// an agreement of its own. Connections on iWARP have no path MTU.
//
// On iWARP the kernel moves the QP, and the side that connects has to send first. Sends of this
// side fail until something has been received. If the QP was not made with CreateQP, the program
// calls [uverbs.QP.SetKernelState].
func (id *ID) Accept(p ConnParam) error {
	qp, err := id.complete(opAccept, &p)
	if err != nil {
		return err
	}
	if qp != nil && !id.datagrams() {
		if p.ECE, err = id.acceptECE(qp, &p); err != nil {
			return fmt.Errorf("cm: accept: %w", err)
		}
	}
	id.queues.acceptedRequest.Store(true)
	err = do(id, opAccept, nil, abi.RDMA_USER_CM_CMD_ACCEPT,
		&abi.Accept{Uid: id.uid, ConnParam: p.param(), ID: id.handle, Ece: abi.Ece{VendorID: p.ECE.VendorID, AttrMod: p.ECE.Options}})
	if qp := id.queues.qp.Load(); err == nil && qp != nil && onIWARP(qp.Device()) {
		qp.SetKernelState(ib.QPRTR) // it fails only if the QP has gone on already
	}
	return err
}

// Establish tells a peer that has accepted that this side is ready (rdma_establish).
func (id *ID) Establish() error {
	return do(id, "establish", nil, abi.RDMA_USER_CM_CMD_ACCEPT, &abi.Accept{Uid: id.uid, ID: id.handle})
}

// Reject rejects a request, or the answer of the peer (rdma_reject, rdma_reject_ece). The reason is
// [ReasonConsumer], or [ReasonVendorOption] if the options for enhanced connections are not
// acceptable. To take back an Accept, call Close, which rejects at once: after Reject, the kernel goes on
// repeating the answer, and Close waits for that, about a minute.
func (id *ID) Reject(private []byte, reason Reason) error {
	if err := id.checkPrivate("reject", private); err != nil {
		return err
	}
	if reason != ReasonConsumer && reason != ReasonVendorOption {
		return argErr("reject", "reason", uint16(reason), "%d and %d", ReasonConsumer, ReasonVendorOption)
	}
	req := abi.Reject{ID: id.handle, PrivateDataLen: uint8(len(private)), Reason: uint8(reason)}
	copy(req.PrivateData[:], private)
	return do(id, "reject", nil, abi.RDMA_USER_CM_CMD_REJECT, &req)
}

// Disconnect ends the connection (rdma_disconnect). The peer gets [EventDisconnected]. This side
// gets it when the peer has called Disconnect too or has closed its ID. Work requests on a QP of
// [ID.CreateQP] complete as flushed.
func (id *ID) Disconnect() error {
	qp := id.queues.qp.Load()
	if qp != nil && !id.datagrams() {
		qp.SetErrCause(errDisconnected) // has no effect if the peer has disconnected before
	}
	flush := func() error {
		if qp == nil || id.datagrams() {
			return nil
		}
		err := qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState)
		if err != nil && !errors.Is(err, os.ErrClosed) { // closed by the program, or by Close
			return fmt.Errorf("cm: disconnect: %w", err)
		}
		return nil
	}
	steps := []func() error{flush, id.RequestDisconnect}
	if qp != nil && onIWARP(qp.Device()) { // where moving the QP to ERR breaks the connection
		steps = []func() error{id.RequestDisconnect, flush}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// RequestDisconnect is the part of [ID.Disconnect] that concerns the peer. The QP keeps its state, except on iWARP:
// until the program calls Disconnect or closes the ID, the device goes on to acknowledge what the peer sends. The
// connection manager repeats the message until the peer answers, and then this side gets [EventDisconnected], or
// until the ID is closed.
func (id *ID) RequestDisconnect() error {
	return do(id, opDisconnect, nil, abi.RDMA_USER_CM_CMD_DISCONNECT, &abi.Disconnect{ID: id.handle})
}

// Notify tells the connection manager about an event of the QP, such as [uverbs.EventCommEst]
// (rdma_notify).
func (id *ID) Notify(event uverbs.EventType) error {
	return do(id, "notify", nil, abi.RDMA_USER_CM_CMD_NOTIFY, &abi.Notify{ID: id.handle, Event: uint32(event)})
}

// QPAttr returns the attributes with which [uverbs.QP.Modify] moves the QP of the connection to a
// state (rdma_init_qp_attr).
func (id *ID) QPAttr(state ib.QPState) (uverbs.QPAttr, uverbs.QPAttrMask, error) {
	resp := attrPool.Get().(*abi.IbUverbsQPAttr)
	defer attrPool.Put(resp)
	*resp = abi.IbUverbsQPAttr{}
	errno := ask(id, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR,
		&abi.InitQPAttr{Response: abi.PtrTo(resp), ID: id.handle, QPState: uint32(state)}, resp)
	if errno != 0 {
		return uverbs.QPAttr{}, 0, opError("attributes for state "+state.String(), "", errno)
	}
	mask := uverbs.QPAttrMask(resp.QPAttrMask)
	if id.datagrams() && state != ib.QPInit { // where the kernel returns the attributes for Init
		mask = uverbs.AttrState
		if state == ib.QPRTS {
			mask |= uverbs.AttrSQPSN
		}
	}
	return qpAttr(resp), mask, nil
}

// attrPool holds memory for the kernel's answers.
var attrPool = sync.Pool{New: func() any { return new(abi.IbUverbsQPAttr) }}

// qpAttr converts the kernel's attributes of a QP.
func qpAttr(r *abi.IbUverbsQPAttr) uverbs.QPAttr {
	return uverbs.QPAttr{
		State:           ib.QPState(r.QPState),
		CurState:        ib.QPState(r.CurQPState),
		PathMTU:         ib.MTU(r.PathMTU),
		PathMigState:    ib.PathMigState(r.PathMigState),
		QKey:            r.QKey,
		RQPSN:           r.RQPSN,
		SQPSN:           r.SQPSN,
		DestQPN:         r.DestQPNum,
		Access:          uverbs.Access(r.QPAccessFlags),
		AH:              ahAttr(&r.AHAttr),
		AltAH:           ahAttr(&r.AltAHAttr),
		PKeyIndex:       r.PKeyIndex,
		AltPKeyIndex:    r.AltPKeyIndex,
		MaxRdAtomic:     r.MaxRDAtomic,
		MaxDestRdAtomic: r.MaxDestRDAtomic,
		MinRNRTimer:     ib.RNRTimer(r.MinRNRTimer),
		Port:            r.PortNum,
		Timeout:         ib.AckTimeout(r.Timeout),
		RetryCount:      r.RetryCnt,
		RNRRetry:        r.RNRRetry,
		AltPort:         r.AltPortNum,
		AltTimeout:      ib.AckTimeout(r.AltTimeout),
	}
}

// ahAttr converts the kernel's attributes of an address handle.
func ahAttr(a *abi.IbUverbsAHAttr) uverbs.AHAttr {
	return uverbs.AHAttr{
		DLID:        a.DLID,
		SL:          a.SL,
		SrcPathBits: a.SrcPathBits,
		StaticRate:  ib.StaticRate(a.StaticRate),
		Port:        a.PortNum,
		Global:      a.IsGlobal != 0,
		GRH: uverbs.GRH{
			DGID:         a.GRH.DGID,
			FlowLabel:    a.GRH.FlowLabel,
			SGIDIndex:    a.GRH.SGIDIndex,
			HopLimit:     a.GRH.HopLimit,
			TrafficClass: a.GRH.TrafficClass,
		},
	}
}

// Close destroys the ID (rdma_destroy_id). A listener stops listening, and a connection ends. Close
// first closes the QP and the SRQ that were created on the ID; the program must close any other QP
// before. Close waits for the commands about the ID that run. A goroutine that waits for an event of the
// ID gets an error that matches [os.ErrClosed], and so does each command that is called meanwhile or later.
//
// If the QP or the SRQ cannot be closed, Close fails, and the ID stays open.
//
// If the process has changed its user or group, Close fails with EACCES. The ID is closed
// nevertheless, and the kernel destroys its own part of it when the channel is closed.
func (id *ID) Close() error {
	if id.channel.Load() == nil {
		return errZero("ID")
	}
	id.closing.Add(1)
	defer func() {
		if !id.closed.Load() {
			id.closing.Add(-1)
		}
	}()
	if err := id.queues.close(); err != nil {
		return err
	}
	id.open.Lock()
	defer id.open.Unlock()
	if id.closed.Load() {
		return nil
	}
	c := id.channel.Load()
	errno := destroy(c.file, id.handle)
	if errno == 0 || errno == syscall.EACCES {
		id.closed.Store(true)
		c.removeID(id)
	}
	return opError("destroy ID", "", errno)
}

// destroy destroys the kernel's ID. The kernel discards its events that were not read.
func destroy(f *file, handle uint32) syscall.Errno {
	resp := &abi.DestroyIDResp{}
	return query(f, abi.RDMA_USER_CM_CMD_DESTROY_ID, &abi.DestroyID{Response: abi.PtrTo(resp), ID: handle}, resp)
}
