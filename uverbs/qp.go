package uverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// QPType is the transport service of a QP (enum ib_uverbs_qp_type).
type QPType uint8

// QP types.
const (
	RC        QPType = abi.IB_UVERBS_QPT_RC         // reliable connection (IBV_QPT_RC)
	UC        QPType = abi.IB_UVERBS_QPT_UC         // unreliable connection: what is lost stays lost (IBV_QPT_UC)
	UD        QPType = abi.IB_UVERBS_QPT_UD         // unreliable datagrams, each to an AH (IBV_QPT_UD)
	RawPacket QPType = abi.IB_UVERBS_QPT_RAW_PACKET // Ethernet frames (IBV_QPT_RAW_PACKET)
	XRCSend   QPType = abi.IB_UVERBS_QPT_XRC_INI    // extended reliable connection, sending side (IBV_QPT_XRC_SEND)
	XRCRecv   QPType = abi.IB_UVERBS_QPT_XRC_TGT    // extended reliable connection, receiving side (IBV_QPT_XRC_RECV)
)

// qpTypeNames are the names of the types.
var qpTypeNames = map[QPType]string{RC: "RC", UC: "UC", UD: "UD", RawPacket: "raw packet", XRCSend: "XRC send", XRCRecv: "XRC receive"}

// String returns the type's name.
func (t QPType) String() string {
	if name, ok := qpTypeNames[t]; ok {
		return name
	}
	return fmt.Sprintf("QP type %d", uint8(t))
}

// QPCaps are the sizes of a QP's queues (struct ibv_qp_cap).
type QPCaps struct {
	MaxSendWR  int // MaxSendWR is the number of work requests in the send queue.
	MaxRecvWR  int // MaxRecvWR is the number of work requests in the receive queue.
	MaxSendSGE int // MaxSendSGE is the most SGEs of a send work request.
	MaxRecvSGE int // MaxRecvSGE is the most SGEs of a receive work request.
	MaxInline  int // MaxInline is the most inline data of a work request, in bytes.
}

// QPOptions are the options of [PD.CreateQP]. SendCQ and RecvCQ are required and may
// be the same.
type QPOptions struct {
	Type       QPType // Type is the transport service; zero is RC.
	SendCQ     *CQ    // SendCQ gets the completions of send work requests.
	RecvCQ     *CQ    // RecvCQ gets the completions of receive work requests.
	SRQ        *SRQ   // SRQ is where receives are taken from; the QP has no receive queue of its own then.
	MaxSendWR  int    // MaxSendWR is the least size of the send queue; zero is 64.
	MaxRecvWR  int    // MaxRecvWR is the least size of the receive queue; zero is 64.
	MaxSendSGE int    // MaxSendSGE is the most SGEs of a send; zero is 1.
	MaxRecvSGE int    // MaxRecvSGE is the most SGEs of a receive; zero is 1.
	MaxInline  int    // MaxInline is the most inline data of a send, in bytes.
	SignalAll  bool   // SignalAll makes every send raise a completion, as if it had Signaled.
	Path       PathOptions
}

// PathOptions say how a QP reaches its peer. A zero field takes the default; a value
// that is zero itself can be set by [QP.Modify].
type PathOptions struct {
	Port         uint8      // Port is the local port; by default the first active one.
	GID          GIDChoice  // GID is the local GID; by default see [ChooseGID].
	MTU          MTU        // MTU is the path MTU, the same on both sides; by default the port's active MTU.
	SL           uint8      // SL is the service level.
	TrafficClass uint8      // TrafficClass goes into the IP header on RoCE.
	FlowLabel    uint32     // FlowLabel has 20 bits.
	HopLimit     uint8      // HopLimit is that of the GRH, by default 64; on RoCE the kernel takes the route's TTL.
	Timeout      AckTimeout // Timeout is the wait for an acknowledgement; by default 14, 67 ms.
	RetryCount   uint8      // RetryCount is the number of retries, up to 7, which is without end on rxe; by default 6.
	RNRRetry     uint8      // RNRRetry is the number of retries when the peer has no receive posted; 7, the default, is without end.
	MinRNRTimer  RNRTimer   // MinRNRTimer is how long the peer shall wait before such a retry; by default 12, 0.64 ms.
	MaxRdAtomic  uint8      // MaxRdAtomic is the number of READs and atomics in flight, each way; by default 16, or what the device has.
	Access       Access     // Access is what the peer may do; by default RDMA READ, WRITE and, if the device has them, atomics.
}

// QP is a queue pair (struct ibv_qp). One goroutine at a time may use its send side
// (PostSend), and one its receive side (PostRecv, PostRecvs); the other methods are
// safe for concurrent use.
type QP struct {
	object
	handle uint32
	cookie uint64 // user_handle that events carry
	qpn    uint32
	psn    atomic.Uint32
	typ    QPType
	caps   QPCaps
	sigAll bool
	sendCQ *CQ
	recvCQ *CQ
	srq    *SRQ
	path   PathOptions

	state atomic.Uint32 // QPState as last set or seen
	port  atomic.Uint32 // the port that Modify was told last
	peer  atomic.Pointer[peerInfo]
	first atomic.Pointer[WCError] // the failure that brought it into error

	kind     driverKind
	sq       *rxe.SendQueue
	rq       *rxe.RecvQueue
	sqRegion *mmio.Region
	rqRegion *mmio.Region
	doorbell *fastCommand // POST_SEND without a work request
	ops      opcodeSet    // what can be posted
	builder  SendBuilder
}

// maxInline bounds MaxInline before the driver is asked, whose own limit no query tells.
const maxInline = 1 << 16

// defaultQueueSize is the number of work requests of a queue when none is asked for.
const defaultQueueSize = 64

// orDefault returns v, or def if v is zero.
func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// CreateQP creates a queue pair in state [Reset] (ibv_create_qp). [QP.Caps] tells
// what its queues can hold, which is at least what was asked for.
func (p *PD) CreateQP(o QPOptions) (*QP, error) {
	o.Type = orDefault(o.Type, RC)
	o.MaxSendWR = orDefault(o.MaxSendWR, defaultQueueSize)
	if o.SRQ == nil {
		o.MaxRecvWR = orDefault(o.MaxRecvWR, defaultQueueSize)
		o.MaxRecvSGE = orDefault(o.MaxRecvSGE, 1)
	}
	o.MaxSendSGE = orDefault(o.MaxSendSGE, 1)
	if err := o.check(p.dev); err != nil {
		return nil, err
	}
	qp := &QP{
		typ:    o.Type,
		sigAll: o.SignalAll,
		sendCQ: o.SendCQ,
		recvCQ: o.RecvCQ,
		path:   o.Path,
		srq:    o.SRQ,
		kind:   p.dev.driver.kind(),
	}
	qp.newPSN()
	qp.ops, _ = p.dev.driver.operations(o.Type)
	qp.state.Store(uint32(Reset))
	uses := []*object{&p.object, &o.SendCQ.object}
	if o.RecvCQ != o.SendCQ {
		uses = append(uses, &o.RecvCQ.object)
	}
	if o.SRQ != nil {
		uses = append(uses, &o.SRQ.object)
	}
	if err := qp.join(p.dev, "QP", "DESTROY_QP", uses...); err != nil {
		return nil, err
	}
	if err := qp.create(p, o); err != nil {
		qp.leave()
		return nil, err
	}
	return qp, nil
}

// check compares the options with what the device allows.
func (o *QPOptions) check(d *Device) error {
	if _, known := qpTypeNames[o.Type]; !known {
		return argErr("CreateQP", "Type", o.Type, "the QPType constants")
	}
	if _, ok := d.driver.operations(o.Type); !ok {
		return &FeatureError{Feature: "QP type " + o.Type.String(), Driver: d.driver.name()}
	}
	if o.SendCQ == nil {
		return argErr("CreateQP", "SendCQ", "nil", "a CQ")
	}
	if o.RecvCQ == nil {
		return argErr("CreateQP", "RecvCQ", "nil", "a CQ")
	}
	for _, f := range []struct {
		name  string
		given int
		limit uint32
		what  string
	}{
		{"MaxSendWR", o.MaxSendWR, d.attr.MaxQPWR, "max_qp_wr"},
		{"MaxRecvWR", o.MaxRecvWR, d.attr.MaxQPWR, "max_qp_wr"},
		{"MaxSendSGE", o.MaxSendSGE, d.attr.MaxSGE, "max_sge"},
		{"MaxRecvSGE", o.MaxRecvSGE, d.attr.MaxSGE, "max_sge"},
	} {
		if o.SRQ != nil && strings.HasPrefix(f.name, "MaxRecv") {
			if f.given != 0 {
				return argErr("CreateQP", f.name, f.given, "0 with an SRQ, which has the receives")
			}
			continue
		}
		if f.given < 1 || f.given > int(f.limit) {
			return argErr("CreateQP", f.name, f.given, "1 to %d (%s of %s)", f.limit, f.what, d.Name())
		}
	}
	if o.MaxInline < 0 || o.MaxInline > maxInline {
		return argErr("CreateQP", "MaxInline", o.MaxInline, "0 to %d bytes, or less by driver", maxInline)
	}
	return o.Path.check(d)
}

// newPSN chooses the first packet sequence number at random, so that packets of an
// earlier connection are not taken for those of the next.
func (q *QP) newPSN() { q.psn.Store(rand.Uint32() & maxPSN) }

// create asks the kernel for the QP and maps its rings.
func (q *QP) create(p *PD, o QPOptions) (err error) {
	d := q.dev
	q.cookie = d.addTarget(q)
	defer func() {
		if err != nil {
			d.dropTarget(q.cookie)
		}
	}()
	u := d.driver.qpUdata()
	errno := q.createKernel(p, o, u)
	if errno == syscall.EINVAL && o.MaxInline > 0 {
		if limit, ok := q.probeInline(p, o); ok {
			return argErr("CreateQP", "MaxInline", o.MaxInline, "0 to %d bytes (found by trying)", limit)
		}
	}
	if errno != 0 {
		return d.cmd.fail("CREATE_QP", errno, "")
	}
	if err := d.driver.mapQP(q, u); err != nil {
		return errors.Join(err, q.destroyKernel())
	}
	req := &abi.PostSend{QPHandle: q.handle, WQESize: uint32(len(bytesOf(&abi.SendWR{})))}
	resp := &abi.PostSendResp{}
	q.doorbell = newFastCommand(d.cmd, abi.IB_USER_VERBS_CMD_POST_SEND, bytesOf(req), bytesOf(resp))
	q.sendCQ.qps.Store(q.qpn, q)
	q.recvCQ.qps.Store(q.qpn, q)
	return nil
}

// createKernel creates the kernel's object by the way that it has.
func (q *QP) createKernel(p *PD, o QPOptions, u udata) syscall.Errno {
	errno := q.createIoctl(p, o, u)
	if absent(errno) {
		errno = q.createLegacy(p, o, u)
	}
	return errno
}

// probeInline finds the most inline data that the driver takes, which no query tells.
// ok is false if inline data is not what the driver objects to.
func (q *QP) probeInline(p *PD, o QPOptions) (limit int, ok bool) {
	try := func(n int) bool {
		o.MaxInline = n
		if q.createKernel(p, o, q.dev.driver.qpUdata()) != 0 {
			return false
		}
		return q.destroyKernel() == nil
	}
	lo, hi := 0, o.MaxInline
	if !try(lo) {
		return 0, false
	}
	for hi-lo > 1 { // lo is taken, hi is not
		if mid := (lo + hi) / 2; try(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, true
}

// createIoctl uses UVERBS_METHOD_QP_CREATE.
func (q *QP) createIoctl(p *PD, o QPOptions, u udata) syscall.Errno {
	cmd := newIoctl(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE)
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_QP_HANDLE)
	cmd.obj(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, p.handle)
	cmd.obj(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, o.SendCQ.handle)
	cmd.obj(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, o.RecvCQ.handle)
	if o.SRQ != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, o.SRQ.handle)
	}
	cmd.u64(abi.UVERBS_ATTR_CREATE_QP_TYPE, uint64(o.Type))
	cmd.u64(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, q.cookie)
	q.dev.eventFDAttr(cmd, abi.UVERBS_ATTR_CREATE_QP_EVENT_FD)
	caps := &abi.QPCap{
		MaxSendWR:     uint32(o.MaxSendWR),
		MaxRecvWR:     uint32(o.MaxRecvWR),
		MaxSendSGE:    uint32(o.MaxSendSGE),
		MaxRecvSGE:    uint32(o.MaxRecvSGE),
		MaxInlineData: uint32(o.MaxInline),
	}
	cmd.in(abi.UVERBS_ATTR_CREATE_QP_CAP, bytesOf(caps))
	if o.SignalAll {
		cmd.u32(abi.UVERBS_ATTR_CREATE_QP_FLAGS, abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL)
	}
	got := &abi.QPCap{}
	var qpn [4]byte
	cmd.out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, bytesOf(got))
	cmd.out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, qpn[:])
	cmd.udata(u)
	errno := q.dev.cmd.ioctl(cmd)
	if errno == 0 {
		q.handle, q.qpn = uint32(handle.Data), le32(qpn[:])
		q.caps = QPCaps{
			MaxSendWR:  int(got.MaxSendWR),
			MaxRecvWR:  int(got.MaxRecvWR),
			MaxSendSGE: int(got.MaxSendSGE),
			MaxRecvSGE: int(got.MaxRecvSGE),
			MaxInline:  int(got.MaxInlineData),
		}
	}
	return errno
}

// createLegacy uses IB_USER_VERBS_CMD_CREATE_QP.
func (q *QP) createLegacy(p *PD, o QPOptions, u udata) syscall.Errno {
	req := &abi.CreateQP{
		UserHandle:    q.cookie,
		PDHandle:      p.handle,
		SendCQHandle:  o.SendCQ.handle,
		RecvCQHandle:  o.RecvCQ.handle,
		MaxSendWR:     uint32(o.MaxSendWR),
		MaxRecvWR:     uint32(o.MaxRecvWR),
		MaxSendSGE:    uint32(o.MaxSendSGE),
		MaxRecvSGE:    uint32(o.MaxRecvSGE),
		MaxInlineData: uint32(o.MaxInline),
		QPType:        uint8(o.Type),
	}
	if o.SRQ != nil {
		req.IsSRQ, req.SRQHandle = 1, o.SRQ.handle
	}
	if o.SignalAll {
		req.SQSigAll = 1
	}
	resp := &abi.CreateQPResp{}
	errno := q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_CREATE_QP, bytesOf(req), bytesOf(resp), u)
	if errno == 0 {
		q.handle, q.qpn = resp.QPHandle, resp.QPN
		q.caps = QPCaps{
			MaxSendWR:  int(resp.MaxSendWR),
			MaxRecvWR:  int(resp.MaxRecvWR),
			MaxSendSGE: int(resp.MaxSendSGE),
			MaxRecvSGE: int(resp.MaxRecvSGE),
			MaxInline:  int(resp.MaxInlineData),
		}
	}
	return errno
}

// QPN returns the queue pair's number, which the peer needs.
func (q *QP) QPN() uint32 { return q.qpn }

// Caps returns what the queues can hold.
func (q *QP) Caps() QPCaps { return q.caps }

// State returns the state as the library last set or saw it. The device moves a QP
// to [SQE] or [Err] by itself; [QP.Query] asks.
func (q *QP) State() QPState { return QPState(q.state.Load()) }

// destroyKernel destroys the kernel's object.
func (q *QP) destroyKernel() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY)
	cmd.obj(abi.UVERBS_ATTR_DESTROY_QP_HANDLE, q.handle)
	resp := &abi.DestroyQPResp{}
	cmd.out(abi.UVERBS_ATTR_DESTROY_QP_RESP, bytesOf(resp))
	errno := q.dev.cmd.ioctl(cmd)
	if absent(errno) {
		req := &abi.DestroyQP{QPHandle: q.handle}
		errno = q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DESTROY_QP, bytesOf(req), bytesOf(resp), udata{})
	}
	return q.dev.cmd.fail("DESTROY_QP", errno, "")
}

// Close destroys the queue pair (ibv_destroy_qp). Work requests that have not
// completed never will; completions that are in the CQ stay there. If a ring cannot be
// unmapped Close says so, and the queue pair is gone all the same.
func (q *QP) Close() error {
	var unmap error
	err := q.close(func() error {
		if err := q.destroyKernel(); err != nil {
			return err
		}
		q.dev.dropTarget(q.cookie)
		q.sendCQ.qps.Delete(q.qpn)
		q.recvCQ.qps.Delete(q.qpn)
		unmap = q.sqRegion.Close()
		if q.rqRegion != nil {
			unmap = errors.Join(unmap, q.rqRegion.Close())
		}
		return nil
	})
	if err == nil && unmap != nil {
		return fmt.Errorf("uverbs: QP: unmap rings: %w", unmap)
	}
	return err
}
