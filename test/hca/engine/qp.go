package engine

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// qp is a QP, or an Ethernet send queue (SQ), which is one without a transport.
type qp struct {
	d        *Device
	n        uint32
	spec     QPSpec
	sq       *SQSpec // of an SQ
	state    QPState
	draining bool
	gone     bool
	attr     QPAttr
	counts   *Counts // its counter set, or nil

	pd             *pd
	sendCQ, recvCQ *cq
	rq             *wq // its own, or the SRQ
	xrcd           *xrcd

	send sendQueue
	req  requester
	resp responder

	reg       uint32 // the doorbell register that it uses, once it used one
	hasReg    bool
	commEst   bool          // the event was written
	scheduled bool          // run is among the tasks
	flushing  bool          // flushRecvs is among the tasks
	flushWait time.Duration // until the next one
	faults    []*wqeFault
	asked     bool // an event is due when the send queue has drained

	dci    dcConn          // of a DCI: its connection
	failed map[uint16]bool // of a DCI: streams that have failed
	dct    *dct            // of a responder of DC: its target
	conn   uint32          // of a responder of DC: the connection's number
}

// typeNames are the services' names.
var typeNames = map[QPType]string{RC: "RC", UC: "UC", UD: "UD", XRC: "XRC", DCI: "DCI", QP0: "QP0", QP1: "QP1", RawEth: "RAW", RegUMR: "REG_UMR"}

// String is the service's name.
func (t QPType) String() string {
	if s, ok := typeNames[t]; ok {
		return s
	}
	return hex("type ", uint32(t))
}

// datagram reports whether sends carry an address vector.
func (q *qp) datagram() bool {
	return q.sq == nil && (q.spec.Type == UD || q.spec.Type == QP0 || q.spec.Type == QP1)
}

// reliable reports whether packets are acknowledged.
func (q *qp) reliable() bool {
	return q.sq == nil && (q.spec.Type == RC || q.spec.Type == XRC || q.spec.Type == DCI)
}

// CreateQP makes a QP in the reset state.
func (d *Device) CreateQP(s QPSpec) (n uint32, err error) {
	if err := d.lock("QP"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	if err := d.checkQP(&s); err != nil {
		return 0, err
	}
	q := &qp{d: d, spec: s}
	if n, err = number(d, "QP", firstQPN, d.qps); err != nil {
		return 0, err
	}
	q.n = n
	if s.Type == RegUMR {
		q.pd = &pd{}
	} else if q.pd, err = d.usePD("QP", s.PD); err != nil {
		return 0, err
	}
	if !s.NoSQ {
		q.sendCQ = d.cqs[s.SendCQ]
		q.sendCQ.refs++
	}
	switch s.RQ {
	case RQOwn:
		q.rq = &wq{d: d, n: n, kind: "RQ", pd: q.pd, spec: SRQSpec{DBR: s.DBR, Buf: s.Buf, Log: s.LogRQ, LogStride: s.LogRQStride}}
		q.send.base = 1 << (s.LogRQ + s.LogRQStride)
	case RQSRQ:
		q.rq = d.srqs[s.SRQN]
		q.rq.refs++
	}
	if s.RQ != RQNone {
		q.recvCQ = d.cqs[s.RecvCQ]
		q.recvCQ.refs++
	}
	if s.Type == XRC && s.NoSQ {
		q.xrcd = d.xrcds[s.XRCD]
		q.xrcd.refs++
	}
	q.send.log = s.LogSQ
	d.qps[n] = q
	if s.Type == QP0 || s.Type == QP1 {
		d.special[s.Type] = append(d.special[s.Type], q)
	}
	return n, nil
}

// checkQP says what is wrong with a QP to create.
func (d *Device) checkQP(s *QPSpec) error {
	bad := func(field, format string, args ...any) error {
		return refuse(BadParam, "QP", 0, field, format, args...)
	}
	switch s.Type {
	case RC, UC, UD, XRC, DCI, QP0, QP1, RegUMR:
	default:
		return bad("st", "service %s is not modelled as a QP", s.Type)
	}
	if s.RQ != RQOwn && s.RQ != RQSRQ && s.RQ != RQNone {
		return bad("rq_type", "%d", s.RQ)
	}
	if (s.Type == XRC || s.Type == DCI) && s.RQ == RQOwn {
		return bad("rq_type", "a QP of %s has no receive queue", s.Type)
	}
	if s.Type == DCI && s.NoSQ {
		return bad("no_sq", "a DCI has a send queue")
	}
	if most := d.cfg.Traits.LogMaxStreams; s.LogStreams > most || s.LogFailed > most {
		return bad("log_num_dci_stream_channels, log_num_dci_errored_streams", "2^%d and 2^%d, of a card with 2^%d", s.LogStreams, s.LogFailed, most)
	}
	if s.Type == XRC && s.NoSQ && d.xrcds[s.XRCD] == nil {
		return refuse(BadResource, "QP", 0, "xrcd", "XRCD %#x does not exist", s.XRCD)
	}
	var size uint64
	if s.RQ == RQOwn {
		if s.LogRQ > d.cfg.Traits.LogMaxQPSize {
			return bad("log_rq_size", "2^%d WQEs", s.LogRQ)
		}
		if s.LogRQStride < 4 || s.LogRQStride > 9 {
			return bad("log_rq_stride", "2^%d bytes", s.LogRQStride)
		}
		size = 1 << (s.LogRQ + s.LogRQStride)
	}
	if !s.NoSQ {
		if s.LogSQ > d.cfg.Traits.LogMaxQPSize {
			return bad("log_sq_size", "2^%d blocks", s.LogSQ)
		}
		size += 64 << s.LogSQ
	}
	if size > 0 {
		if err := s.Buf.check(d, "QP", size); err != nil {
			return err
		}
		if err := d.checkDBR("QP", s.DBR); err != nil {
			return err
		}
	}
	if !s.NoSQ && d.cqs[s.SendCQ] == nil {
		return refuse(BadResource, "QP", 0, "cqn_snd", "CQ %#x does not exist", s.SendCQ)
	}
	if s.RQ != RQNone && d.cqs[s.RecvCQ] == nil {
		return refuse(BadResource, "QP", 0, "cqn_rcv", "CQ %#x does not exist", s.RecvCQ)
	}
	if s.RQ == RQSRQ && d.srqs[s.SRQN] == nil {
		return refuse(BadResource, "QP", 0, "srqn_rmpn_xrqn", "SRQ %#x does not exist", s.SRQN)
	}
	// The UMR QP is the driver's own: it has no PD, and changes keys of every one.
	if s.Type != RegUMR && d.pds[s.PD] == nil {
		return refuse(BadResource, "QP", 0, "pd", "PD %#x does not exist", s.PD)
	}
	for _, n := range []int{s.ScatterReq, s.ScatterRes} {
		if n != 0 && n != 32 && n != 64 {
			return bad("cs_req, cs_res", "%d bytes", n)
		}
	}
	return nil
}

// DestroyQP removes a QP in any state. Nothing of it is executed any more.
func (d *Device) DestroyQP(n uint32) error {
	if err := d.lock("QP"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	q := d.qps[n]
	if q == nil || q.sq != nil {
		return unknown("QP", n)
	}
	for gid, all := range d.mcast {
		if slices.Contains(all, q) {
			return refuse(Busy, "QP", n, "", "it is attached to group %x", gid)
		}
	}
	q.quiet()
	q.hangUp()
	q.dropRecv()
	q.gone = true
	q.pd.refs--
	if q.sendCQ != nil {
		q.sendCQ.refs--
	}
	if q.recvCQ != nil {
		q.recvCQ.refs--
	}
	if q.spec.RQ == RQSRQ {
		q.rq.refs--
	}
	if q.xrcd != nil {
		q.xrcd.refs--
	}
	delete(d.qps, n)
	d.special[q.spec.Type] = slices.DeleteFunc(d.special[q.spec.Type], func(e *qp) bool { return e == q })
	return nil
}

// QueryQP says what a QP is like now.
func (d *Device) QueryQP(n uint32) (QPInfo, error) {
	if err := d.lock("QP"); err != nil {
		return QPInfo{}, err
	}
	defer d.f.mu.Unlock()
	q := d.qps[n]
	if q == nil || q.sq != nil {
		return QPInfo{}, unknown("QP", n)
	}
	a := q.attr
	if q.state == RTS || q.state == SQD || q.state == SQErr {
		a.SendPSN, a.LastAckPSN = q.req.nextPSN, (q.req.ackPSN-1)&psnMask
	}
	if q.state >= RTR {
		a.RecvPSN = q.resp.ePSN
	}
	a.HWSQCounter = q.send.next
	if q.spec.RQ == RQOwn {
		a.HWRQCounter = q.rq.head
	}
	return QPInfo{Spec: q.spec, State: q.state, Draining: q.draining, Attr: a}, nil
}

// AttachMcast adds a QP to a multicast group. A QP that is in it already stays.
func (d *Device) AttachMcast(gid [16]byte, n uint32) error {
	if err := d.lock("MCG"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	q := d.qps[n]
	if q == nil || q.sq != nil {
		return refuse(BadResource, "MCG", 0, "qpn", "QP %#x does not exist", n)
	}
	if q.spec.Type != UD {
		return refuse(BadParam, "MCG", 0, "qpn", "QP %#x is %s, not UD", n, q.spec.Type)
	}
	if !d.isGroup(gid) {
		return refuse(BadParam, "MCG", 0, "multicast_gid", "%x is no multicast GID", gid)
	}
	if !slices.Contains(d.mcast[gid], q) {
		d.mcast[gid] = append(d.mcast[gid], q)
	}
	return nil
}

// isGroup reports whether a GID is a group's: a multicast GID, or on Ethernet an IPv4 group's
// address in the form of IPv6, as RoCE v2 has it on IPv4.
func (d *Device) isGroup(gid [16]byte) bool {
	ip := netip.AddrFrom16(gid)
	if ip.Is4In6() && d.cfg.LinkLayer == InfiniBand {
		return false
	}
	return ip.Unmap().IsMulticast()
}

// DetachMcast takes a QP out of a multicast group.
func (d *Device) DetachMcast(gid [16]byte, n uint32) error {
	if err := d.lock("MCG"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	i := slices.IndexFunc(d.mcast[gid], func(q *qp) bool { return q.n == n })
	if i < 0 {
		return refuse(BadResource, "MCG", 0, "qpn", "QP %#x is not in group %x", n, gid)
	}
	d.mcast[gid] = slices.Delete(d.mcast[gid], i, i+1)
	if len(d.mcast[gid]) == 0 {
		delete(d.mcast, gid)
	}
	return nil
}

// sortedQPs lists QPs and SQs by number, so that what is done to all is done in order.
func (d *Device) sortedQPs() []*qp {
	var all []*qp
	for _, n := range slices.Sorted(maps.Keys(d.qps)) {
		all = append(all, d.qps[n])
	}
	return all
}

// setState changes the state.
func (q *qp) setState(s QPState, why string) {
	if s != q.state {
		q.d.trace(TraceEvent{Kind: TraceState, QPN: q.n, From: q.state, To: s, Text: why})
	}
	q.state = s
}

// catastrophe puts a QP into the error state with an event: hardware can't go on.
func (q *qp) catastrophe(why string) {
	if q.state == Err || q.state == Reset || q.gone {
		return
	}
	q.eventOf(EventWQCatas)
	q.toError(why)
}

// eventOf writes an event about the QP or SQ.
func (q *qp) eventOf(t EventType) {
	if q.dct != nil {
		return // the driver knows no QP of this number
	}
	var kind uint8
	if q.sq != nil {
		kind = 2
	}
	q.d.objectEvent(t, kind, q.n)
}

// describe names the QP for a violation.
func (q *qp) describe() string {
	if q.sq != nil {
		return fmt.Sprintf("SQ %#x", q.n)
	}
	return fmt.Sprintf("QP %#x (%s, %s)", q.n, q.spec.Type, q.state)
}
