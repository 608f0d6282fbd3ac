package cm

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
)

// ID is a communication identifier: an end of a connection, or a listener (struct
// rdma_cm_id). It is safe for concurrent use, though the steps of one connection follow each
// other.
type ID struct {
	space     PortSpace
	handle    uint32
	uid       uint64 // that events carry
	channel   atomic.Pointer[Channel]
	remote    atomic.Pointer[Addr]   // what was to be resolved, for messages
	device    atomic.Pointer[string] // the name of its device, for messages, once it was asked for
	exclusive atomic.Bool            // events are for Wait alone, not for Next
	queues    queues

	backlog atomic.Int64 // of a listener: requests that may wait for the program; 0 is defaultBacklog

	ackTimeout uverbs.AckTimeout // of a QP that the ID drives, instead of the kernel's; 0 is that

	closeMu sync.Mutex
	closed  atomic.Bool
}

// Names of the steps, for errors.
const (
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
		return nil, argErr("NewID", "port space", space, "TCP, UDP, IB, IPoIB")
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
		return nil, opError("create ID", "", errno)
	}
	id.handle = resp.ID
	return id, nil
}

// datagrams reports whether the port space is one of datagrams.
func (id *ID) datagrams() bool { return id.space == UDP || id.space == IPoIB }

// Space returns the port space.
func (id *ID) Space() PortSpace { return id.space }

// do gives a command about the ID, and about an address unless that is nil.
func do[Q any](id *ID, op string, addr *Addr, cmd uint32, req *Q) error {
	if id.closed.Load() {
		return id.errClosed()
	}
	var errno syscall.Errno
	if f := id.channel.Load().file; cmd == abi.RDMA_USER_CM_CMD_CONNECT && id.mayDial() {
		errno = commandNoSignals(f, cmd, req)
	} else {
		errno = command(f, cmd, req)
	}
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
	qp := id.queues.queuePair()
	return !id.datagrams() && (qp == nil || onIWARP(qp.Device()))
}

func (id *ID) errClosed() error { return fmt.Errorf("cm: ID: %w", os.ErrClosed) }

// Bind gives the ID a local address (rdma_bind_addr). The unspecified address is all of them;
// with port 0 the kernel chooses one.
func (id *ID) Bind(local netip.AddrPort) error {
	a, err := AddrOf(id.space, local)
	if err != nil {
		return err
	}
	return id.BindTo(a)
}

// ResolveAddr looks for the device and the way to an address, from a local one or, if that is
// the zero value, any (rdma_resolve_addr). It ends with AddrResolved or AddrError, at the
// latest after the timeout.
func (id *ID) ResolveAddr(local, remote netip.AddrPort, timeout time.Duration) error {
	to, err := AddrOf(id.space, remote)
	if err != nil {
		return err
	}
	var from Addr
	if local.IsValid() {
		if from, err = AddrOf(id.space, local); err != nil {
			return err
		}
	}
	return id.ResolveTo(from, to, timeout)
}

// remoteName returns the address that was to be resolved, for messages.
func (id *ID) remoteName() string {
	if a := id.remote.Load(); a != nil {
		return a.String()
	}
	return ""
}

// deviceName returns the name of the ID's device, for messages, empty if that is not known.
func (id *ID) deviceName() string {
	if name := id.device.Load(); name != nil {
		return *name
	}
	return ""
}

// milliseconds checks a timeout.
func milliseconds(op string, d time.Duration) (uint32, error) {
	const longest = time.Hour
	if d < time.Millisecond || d > longest {
		return 0, argErr(op, "timeout", d, "1ms to %s", longest)
	}
	return uint32(d / time.Millisecond), nil
}

// ResolveRoute looks for the route to the address that was resolved (rdma_resolve_route). It
// ends with RouteResolved or RouteError.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	ms, err := milliseconds("ResolveRoute", timeout)
	if err != nil {
		return err
	}
	return do(id, opRoute, id.remote.Load(), abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, &abi.ResolveRoute{ID: id.handle, TimeoutMs: ms})
}

// Listen lets others connect to the address that the ID is bound to (rdma_listen). Each is a
// ConnectRequest; backlog is how many may wait, and 0 is the kernel's limit.
func (id *ID) Listen(backlog int) error {
	if backlog < 0 {
		return argErr("Listen", "backlog", backlog, "from 0")
	}
	id.backlog.Store(int64(backlog))
	return do(id, opListen, nil, abi.RDMA_USER_CM_CMD_LISTEN, &abi.Listen{ID: id.handle, Backlog: uint32(backlog)})
}

// maxPrivate is how much private data goes with a step, in bytes, for connections and for
// datagrams. The connection manager's own header takes part of what the wire has for connects.
// On iWARP it has no header, and the kernel's interface is the limit.
var maxPrivate = map[string][2]int{opConnect: {56, 180}, opAccept: {196, 136}, "reject": {148, 136}}

// checkPrivate compares private data with what a step can carry.
func (id *ID) checkPrivate(op string, data []byte) error {
	limit := maxPrivate[op][0]
	if qp := id.queues.queuePair(); id.datagrams() {
		limit = maxPrivate[op][1]
	} else if qp != nil && onIWARP(qp.Device()) {
		limit = math.MaxUint8
	}
	if len(data) > limit {
		return argErr(op, "PrivateData", fmt.Sprintf("%d bytes long", len(data)), "up to %d bytes in port space %s", limit, id.space)
	}
	return nil
}

// param lays the parameters out.
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

// check compares the parameters with their ranges.
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
	return nil
}

// Connect asks the peer for a connection, or for the QP that takes datagrams
// (rdma_connect). It ends with Established, or with Rejected, Unreachable or ConnectError.
// With a QP that is not of [ID.CreateQP] it ends with ConnectResponse, whereupon the QP is to
// be brought to RTS and the ID to be established; on iWARP that ends with Established too, and
// [uverbs.QP.Moved] is to be called.
func (id *ID) Connect(p ConnParam, ece ECE) error {
	if err := id.checkPrivate(opConnect, p.PrivateData); err != nil {
		return err
	}
	if err := p.check(opConnect); err != nil {
		return err
	}
	if qp := id.queues.queuePair(); qp != nil {
		p.QPN, p.SRQ = qp.QPN(), id.queues.usesSRQ()
	}
	return do(id, opConnect, id.remote.Load(), abi.RDMA_USER_CM_CMD_CONNECT,
		&abi.Connect{ConnParam: p.param(), ID: id.handle, Ece: abi.Ece{VendorID: ece.VendorID, AttrMod: ece.Options}})
}

// Accept accepts a ConnectRequest (rdma_accept). It ends with Established once the peer is
// ready. A QP of [ID.CreateQP] it brings to RTS, to serve and to have under way as many READs
// and atomics as p says; any other is to be there before. On iWARP it is the kernel that does
// so, and the side that has connected sends first: until something has been received sends are
// refused, see [uverbs.QP.Moved], which is to be called for a QP that is not of CreateQP.
func (id *ID) Accept(p ConnParam, ece ECE) error {
	if err := id.checkPrivate(opAccept, p.PrivateData); err != nil {
		return err
	}
	if err := p.check(opAccept); err != nil {
		return err
	}
	if qp := id.queues.queuePair(); qp != nil {
		p.QPN, p.SRQ = qp.QPN(), id.queues.usesSRQ()
		if !id.datagrams() {
			if err := id.modifyToRTS(qp, &p); err != nil {
				return fmt.Errorf("cm: accept: %w", err)
			}
		}
	}
	id.queues.acceptedRequest.Store(true)
	err := do(id, opAccept, nil, abi.RDMA_USER_CM_CMD_ACCEPT,
		&abi.Accept{Uid: id.uid, ConnParam: p.param(), ID: id.handle, Ece: abi.Ece{VendorID: ece.VendorID, AttrMod: ece.Options}})
	if qp := id.queues.queuePair(); err == nil && qp != nil && onIWARP(qp.Device()) {
		qp.Moved(uverbs.RTR) // it fails only if the QP has gone on already
	}
	return err
}

// Establish tells the peer that has accepted that this side is ready (rdma_establish).
func (id *ID) Establish() error {
	return do(id, "establish", nil, abi.RDMA_USER_CM_CMD_ACCEPT, &abi.Accept{Uid: id.uid, ID: id.handle})
}

// Reject rejects a ConnectRequest, or an answer (rdma_reject). The reason is
// [ReasonConsumer], or [ReasonVendorOption] for the options of enhanced connections.
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

// Disconnect ends the connection (rdma_disconnect). The peer gets Disconnected, and this side
// does once the peer has called Disconnect too, or closed its ID. What is posted to a QP of
// [ID.CreateQP] completes as flushed.
func (id *ID) Disconnect() error {
	qp := id.queues.queuePair()
	if qp != nil && !id.datagrams() && !id.closed.Load() {
		qp.SetErrCause(errDisconnected) // it counts unless the peer has disconnected before
	}
	flush := func() error {
		if qp == nil || id.datagrams() || id.closed.Load() {
			return nil
		}
		if err := qp.Modify(uverbs.QPAttr{State: uverbs.Err}, uverbs.AttrState); err != nil {
			return fmt.Errorf("cm: disconnect: %w", err)
		}
		return nil
	}
	end := func() error {
		return do(id, opDisconnect, nil, abi.RDMA_USER_CM_CMD_DISCONNECT, &abi.Disconnect{ID: id.handle})
	}
	steps := []func() error{flush, end}
	if qp != nil && onIWARP(qp.Device()) { // there a QP in error is a connection that is broken
		steps = []func() error{end, flush}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Notify tells the connection manager of an event of the QP, such as
// [uverbs.EventCommEst] (rdma_notify).
func (id *ID) Notify(event uverbs.EventType) error {
	return do(id, "notify", nil, abi.RDMA_USER_CM_CMD_NOTIFY, &abi.Notify{ID: id.handle, Event: uint32(event)})
}

// QPAttr returns what [uverbs.QP.Modify] takes to bring the connection's QP into a state
// (rdma_init_qp_attr).
func (id *ID) QPAttr(state uverbs.QPState) (uverbs.QPAttr, uverbs.QPAttrMask, error) {
	if id.closed.Load() {
		return uverbs.QPAttr{}, 0, id.errClosed()
	}
	resp := attrPool.Get().(*abi.IbUverbsQPAttr)
	defer attrPool.Put(resp)
	*resp = abi.IbUverbsQPAttr{}
	errno := query(id.channel.Load().file, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR,
		&abi.InitQPAttr{Response: abi.PtrTo(resp), ID: id.handle, QPState: uint32(state)}, resp)
	if errno != 0 {
		return uverbs.QPAttr{}, 0, opError("attributes for state "+state.String(), "", errno)
	}
	mask := uverbs.QPAttrMask(resp.QPAttrMask)
	if id.datagrams() && state != uverbs.Init { // the kernel answers as for Init
		mask = uverbs.AttrState
		if state == uverbs.RTS {
			mask |= uverbs.AttrSQPSN
		}
	}
	return qpAttr(resp), mask, nil
}

// attrPool are answers that were read.
var attrPool = sync.Pool{New: func() any { return new(abi.IbUverbsQPAttr) }}

// qpAttr takes the kernel's attributes.
func qpAttr(r *abi.IbUverbsQPAttr) uverbs.QPAttr {
	return uverbs.QPAttr{
		State:           uverbs.QPState(r.QPState),
		CurState:        uverbs.QPState(r.CurQPState),
		PathMTU:         uverbs.MTU(r.PathMTU),
		PathMigState:    uverbs.PathMigState(r.PathMigState),
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
		MinRNRTimer:     uverbs.RNRTimer(r.MinRNRTimer),
		Port:            r.PortNum,
		Timeout:         uverbs.AckTimeout(r.Timeout),
		RetryCount:      r.RetryCnt,
		RNRRetry:        r.RNRRetry,
		AltPort:         r.AltPortNum,
		AltTimeout:      uverbs.AckTimeout(r.AltTimeout),
	}
}

// ahAttr takes the kernel's description of a way.
func ahAttr(a *abi.IbUverbsAHAttr) uverbs.AHAttr {
	return uverbs.AHAttr{
		DLID:        a.DLID,
		SL:          a.SL,
		SrcPathBits: a.SrcPathBits,
		StaticRate:  uverbs.StaticRate(a.StaticRate),
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

// Close destroys the ID (rdma_destroy_id): a listener no longer listens, and a connection
// that was not ended is. The QP and the SRQ that were created on it are closed first; one
// that was made otherwise the program closes itself, before. Who waits for an event of the
// ID gets an error that matches [os.ErrClosed]. With EACCES, as the process has changed user or
// group, the ID is closed too, but what the kernel has of it goes with its channel.
func (id *ID) Close() error {
	id.closeMu.Lock()
	defer id.closeMu.Unlock()
	if id.closed.Load() {
		return nil
	}
	if err := id.queues.close(); err != nil {
		return err
	}
	c := id.channel.Load()
	errno := destroy(c.file, id.handle)
	if errno == 0 || errno == syscall.EACCES {
		id.closed.Store(true)
		c.removeID(id)
	}
	return opError("destroy ID", "", errno)
}

// destroy destroys the kernel's ID. The kernel drops the events of it that nobody has read.
func destroy(f *file, handle uint32) syscall.Errno {
	resp := &abi.DestroyIDResp{}
	return query(f, abi.RDMA_USER_CM_CMD_DESTROY_ID, &abi.DestroyID{Response: abi.PtrTo(resp), ID: handle}, resp)
}
