package uverbs

import (
	"errors"
	"math/bits"
	"syscall"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// createDC creates a DCI or a DCT.
func (p *PD) createDC(o QPOptions, dc hook.DC) (*QP, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	if o.Type == ib.DCT && o.SRQ == nil {
		return nil, argErr("CreateDCT", "SRQ", "nil", "an SRQ, which has the receives")
	}
	if o.Type == ib.DCI {
		o.MaxSendWR, o.MaxSendSGE = orDefault(o.MaxSendWR, defaultQueueSize), orDefault(o.MaxSendSGE, 1)
	}
	d := p.dev
	if err := o.check(d); err != nil {
		return nil, err
	}
	if err := d.checkStreams(&dc); err != nil {
		return nil, err
	}
	s := &qpSpec{QPOptions: o, pd: p, dc: &dc}
	switch o.Type { // the kernel requires both CQs
	case ib.DCI:
		s.RecvCQ = o.SendCQ
	case ib.DCT:
		s.SendCQ = o.RecvCQ
		s.prepare = (*QP).prepareDCT
	}
	q, err := newQP(d, s)
	if f, ok := errors.AsType[*FeatureError](err); ok && f.Feature == "QP type "+o.Type.String() {
		err = noDC(o.Type, d.driver.name())
	}
	return q, err
}

// noDC is the error of a device without DC.
func noDC(t ib.QPType, driver string) error {
	return &FeatureError{Feature: "QP type " + t.String(), Driver: driver, Err: errors.New("the adapter does not have the capability dct")}
}

// checkStreams returns an error if the device does not support the streams of a DCI.
func (d *Device) checkStreams(want *hook.DC) error {
	if want.Streams == 0 && want.Failed == 0 {
		return nil
	}
	var streams, failed uint8
	var err error
	if d.mlx5 != nil {
		streams, failed, err = d.mlx5.dciStreams()
	}
	switch {
	case err != nil:
		return err
	case streams == 0:
		return &FeatureError{
			Feature: "CREATE_QP with DCIStreams", Driver: d.driver.name(),
			Err: errors.New("the adapter does not have the capability log_max_dci_stream_channels, or the kernel is older than Linux 5.14"),
		}
	case !powerOfTwo(want.Streams, 2, streams):
		return argErr("CreateDCI", "Streams.Concurrent", want.Streams, "powers of two from 2 to %d, or no streams", 1<<streams)
	case want.Failed != 0 && !powerOfTwo(want.Failed, 1, failed):
		return argErr("CreateDCI", "Streams.Failed", want.Failed, "powers of two from 1 to %d", 1<<failed)
	}
	return nil
}

// powerOfTwo reports whether n is a power of two from least to the one with a logarithm.
func powerOfTwo(n, least int, log uint8) bool {
	return n >= least && n&(n-1) == 0 && bits.TrailingZeros(uint(n)) <= int(log)
}

// readyDC moves a DCI from [ib.QPReset] to [ib.QPRTS], and a DCT to [ib.QPRTR]. maxReads returns the maximum
// number of READs and atomics that a DCI has in flight, or 0 if it is not known.
func (q *QP) readyDC(maxReads func(*QP) uint8) error {
	if err := q.usable(); err != nil {
		return err
	}
	switch {
	case !isDC(q.typ):
		return argErr("ReadyDC", "QP type", q.typ, "DCI or DCT")
	case q.State() != ib.QPReset:
		return argErr("ReadyDC", "state", q.State(), "%s", ib.QPReset)
	}
	port, attr, err := q.activePort(q.dev.recentPort) // with the current MTU
	if err != nil {
		return err
	}
	mtu, err := q.pathMTU("ReadyDC", port, attr)
	if err != nil {
		return err
	}
	init, err := q.initAttr("ReadyDC", port)
	if err != nil {
		return err
	}
	if q.typ == ib.DCT {
		return q.readyDCT(init, attr, mtu)
	}
	if err := q.Modify(init, AttrState|AttrPKeyIndex|AttrPort); err != nil {
		return err
	}
	if err := q.Modify(QPAttr{State: ib.QPRTR, PathMTU: mtu}, AttrState|AttrPathMTU); err != nil {
		return err
	}
	return q.readyDCI(maxReads(q))
}

// readyDCI moves a DCI from [ib.QPRTR] to [ib.QPRTS]. QUERY_DEVICE has the limits of RC for READs and atomics
// in flight, and an adapter may allow a DCI fewer: most, or if that is 0 an unknown number. Then readyDCI halves
// the default as long as the device refuses it.
func (q *QP) readyDCI(most uint8) error {
	rts := q.rtsAttr()
	if most > 0 && q.path.MaxRdAtomic > most {
		return argErr("ReadyDC", "Path.MaxRdAtomic", q.path.MaxRdAtomic, "1 to %d, the limit of DCIs, or 0 for the default", most)
	}
	if most > 0 {
		rts.MaxRdAtomic = min(rts.MaxRdAtomic, most)
	}
	var first error
	for {
		err := q.Modify(rts, AttrState|attrXRCSend|AttrSQPSN)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if most > 0 || q.path.MaxRdAtomic > 0 || rts.MaxRdAtomic <= 1 || !errors.Is(err, syscall.EINVAL) {
			return first
		}
		rts.MaxRdAtomic /= 2
	}
}

// readyDCT makes a DCT ready. The device creates it in the second step, and gives it its number.
func (q *QP) readyDCT(init QPAttr, attr PortAttr, mtu ib.MTU) error {
	ah, err := q.ownAddress(init.Port, attr)
	if err != nil {
		return err
	}
	if err := q.acquireState(); err != nil {
		return err
	}
	defer q.releaseState()
	if s := q.State(); s != ib.QPReset { // another goroutine was faster
		return argErr("ReadyDC", "state", s, "%s", ib.QPReset)
	}
	const initMask = AttrState | AttrPKeyIndex | AttrPort | AttrAccess
	u := q.modifyUdataMlx5()
	if errno := q.issueModify(&init, initMask, u); errno != 0 {
		return q.modifyError(&init, initMask, ib.QPReset, ib.QPInit, errno, "", u)
	}
	q.modified(&init, initMask, ib.QPReset, ib.QPInit)
	rtr := QPAttr{State: ib.QPRTR, PathMTU: mtu, MinRNRTimer: orDefault(q.path.MinRNRTimer, 12), AH: ah}
	const rtrMask = AttrState | AttrAH | AttrPathMTU | AttrMinRNRTimer
	u = q.dctUdata()
	if errno := q.issueModify(&rtr, rtrMask, u); errno != 0 {
		return q.modifyError(&rtr, rtrMask, ib.QPInit, ib.QPRTR, errno, routeHint(q.dev, errno, ah), u)
	}
	q.modified(&rtr, rtrMask, ib.QPInit, ib.QPRTR)
	return q.dctReady(u)
}

// ownAddress returns the path that a DCT answers on: the local GID, as the source, is what counts.
func (q *QP) ownAddress(port uint8, attr PortAttr) (AHAttr, error) {
	e, err := q.EndpointFor(Endpoint{})
	if err != nil || e.GID.IsZero() {
		return AHAttr{DLID: attr.LID, SL: q.path.SL, Port: port}, err
	}
	ah, _, err := q.address("ReadyDC", port, attr, Endpoint{LID: attr.LID, GID: e.GID}, &e.GID)
	return ah, err
}

// PathTo returns the attributes of an AH for a peer that a UD or SRD QP or a DCI sends to. It
// uses the local port and the GID of the QP.
func (q *QP) PathTo(remote Endpoint) (AHAttr, error) {
	if err := q.usable(); err != nil {
		return AHAttr{}, err
	}
	port, attr, err := q.activePort(q.dev.currentPort)
	if err != nil {
		return AHAttr{}, err
	}
	ah, _, err := q.address("PathTo", port, attr, remote, nil)
	return ah, err
}

// ToDCT sets the target of a work request of a DCI: the number of a DCT at the address ah, and its
// access key (mlx5dv_wr_set_dc_addr).
//
// If no DCT has the number, or it has been closed, the request fails with [WCRetryExcErr]. So it
// does with a wrong key, which some adapters may report as [WCRemAccessErr].
func (b *SendBuilder) ToDCT(ah *AH, dctn uint32, key uint64) { b.ToDCTStream(ah, dctn, key, 0) }

// ToDCTStream is like ToDCT, and sets the stream of the request (mlx5dv_wr_set_dc_addr_stream). It
// is any number; the device limits how many streams are in use at a time. If the DCI was created
// without streams, one other than 0 is a [PostError].
func (b *SendBuilder) ToDCTStream(ah *AH, dctn uint32, key uint64, stream uint16) {
	if !b.begun() {
		return
	}
	if b.q.typ != ib.DCI {
		b.failLast(errNotDC)
		return
	}
	w := &b.wr[0]
	w.AH, w.RemoteQPN, w.DCAccessKey, w.DCStream = ah, dctn, key, stream
}

// prepareDCT is prepareQP for a DCT, which has no queues of its own: its SRQ has the receives.
func (q *QP) prepareDCT(s *qpSpec) (udata, error) {
	x := &q.mlx5
	*x = mlx5QP{mlx5TableEntry: mlx5TableEntry{owner: mlx5Owner{qp: q, srq: q.srq}, index: mlx5.NoUserIndex}, outOfOrder: s.OutOfOrder}
	if s.OutOfOrder {
		if err := (mlx5Driver{}).hasOutOfOrder(q.dev); err != nil {
			return udata{}, err
		}
	}
	if err := x.register(q.dev.mlx5); err != nil {
		return udata{}, err
	}
	req := mlx5.QPRequest{UserIndex: x.index, DC: mlx5.Target, AccessKey: s.dc.Key, ECE: q.dev.mlx5.ECE}
	return udata{in: req.Encode(), out: make([]byte, mlx5.QPRespSize)}, nil
}

// dciStreams returns the largest values of DCIStreams; 0 means no streams.
func (m *mlx5Context) dciStreams() (concurrent, errored uint8, err error) {
	b, err := m.dev.queryMlx5()
	if err != nil {
		return 0, 0, err
	}
	concurrent, errored = mlx5.DecodeStreams(b)
	return concurrent, errored, nil
}

// dctUdata returns the driver's part of the MODIFY_QP that makes a DCT ready.
func (q *QP) dctUdata() udata {
	u := q.modifyUdataMlx5()
	if u.out == nil { // the answer has the number in any case
		u.out = make([]byte, mlx5.ModifyQPRespSize)
	}
	return u
}

// dctReady takes the number of a DCT from the response.
func (q *QP) dctReady(u udata) error {
	dctn, _, err := mlx5.DecodeModifyQP(u.out)
	if err == nil {
		err = q.modifyAnswerMlx5(u)
	}
	if err != nil {
		return err
	}
	q.dctn.Store(dctn)
	q.recvCQ.qps.Store(dctn, q)
	q.mlx5.registerNumber(q.dev.mlx5, dctn)
	return nil
}
