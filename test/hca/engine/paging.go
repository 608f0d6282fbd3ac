package engine

// notPresent is why an access fails whose page the driver has not given to the device.
const notPresent = "the page is not present"

// Flags of an entry of a list of pages (MLX5_IB_MTT_READ and MLX5_IB_MTT_WRITE in mlx5_ib.h).
const (
	pageRead  = 1 << 0
	pageWrite = 1 << 1
)

// Kinds of page faults: enum mlx5_pagefault_type_flags and wqe_page_fault_type in mlx5/driver.h and
// mlx5/device.h.
const (
	faultRMP   = 0 // of a receive WQE of an SRQ
	faultSend  = 1 // of a send WQE whose data are read
	faultRecv  = 2 // of a receive WQE of a QP
	faultFetch = 3 // of a send WQE whose result is written
	faultRDMA  = 4 // of memory that the peer reads
	faultWrite = 2 // with faultRDMA: that it writes
)

// Subtypes of a page fault's event (MLX5_PFAULT_SUBTYPE_*).
const (
	faultOfWQE  = 0
	faultOfRDMA = 1
)

// PageFault names a page fault in PAGE_FAULT_RESUME.
type PageFault struct {
	Type  uint8  // Type is the event's page fault type.
	Token uint32 // Token is the event's token, 24 bits.
	WQ    uint32 // WQ is the event's queue; of a fault of RDMA the token again.
}

// faultKey tells page faults that are not resolved from each other.
type faultKey struct {
	typ   uint8
	token uint32
}

// pageFault is a page fault that the driver has not resolved.
type pageFault struct {
	wq      uint32
	resolve func(f *pageFault, failed bool)
}

// pages reports whether a QP may wait for pages, of the data that it sends or of other memory: whether somebody takes
// the events, and the service is one of those that capabilities name.
func (q *qp) pages(sends bool) bool {
	typ := q.spec.Type
	if q.sq != nil || typ != UD && !q.reliable() || (typ == UD || typ == DCI) && !sends {
		return false
	}
	for _, e := range q.d.eqs {
		if e.spec.Events>>EventPageFault&1 == 1 {
			return true
		}
	}
	return false
}

// wqeFaulted writes the event of a WQE that leads to a page which is not there.
func (d *Device) wqeFaulted(typ uint8, wq uint32, index uint16, committed, packet int, resolve func(*pageFault, bool)) *pageFault {
	d.nextToken = d.nextToken%maxNumber + 1
	f := &pageFault{wq: wq, resolve: resolve}
	d.pageFaults[faultKey{typ, d.nextToken}] = f
	data := make([]byte, eqeDataBytes)
	be.PutUint32(data, uint32(committed))
	be.PutUint16(data[6:], index)
	be.PutUint16(data[10:], uint16(packet))
	be.PutUint32(data[12:], d.nextToken)
	be.PutUint32(data[24:], uint32(typ)<<24|wq)
	d.event(EventPageFault, faultOfWQE, data)
	return f
}

// rdmaFaulted writes the event for memory that a QP's peer accesses. Its token is the QP's number,
// and what has been there before goes before the address.
func (q *qp) rdmaFaulted(typ uint8, rkey uint32, va uint64, committed, n, packet int, resolve func(*pageFault, bool)) *pageFault {
	f := &pageFault{wq: q.n, resolve: resolve}
	q.d.pageFaults[faultKey{typ, q.n}] = f
	data := make([]byte, eqeDataBytes)
	be.PutUint32(data, uint32(committed))
	be.PutUint32(data[4:], rkey)
	be.PutUint16(data[10:], uint16(packet))
	be.PutUint32(data[12:], uint32(n))
	be.PutUint64(data[16:], va)
	be.PutUint32(data[24:], uint32(typ)<<24|q.n)
	q.d.event(EventPageFault, faultOfRDMA, data)
	return f
}

// ResumePageFault lets go on what has waited for a page, or fails it. If the QP has gone or failed
// meanwhile, nothing goes on.
func (d *Device) ResumePageFault(p PageFault, failed bool) error {
	if err := d.lock("page fault"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	key := faultKey{p.Type, p.Token}
	f := d.pageFaults[key]
	if f == nil {
		return refuse(BadResource, "page fault", p.Token, "token", "no page fault of type %d with this token waits", p.Type)
	}
	if f.wq != p.WQ {
		return refuse(BadParam, "page fault", p.Token, "wq_number", "%#x, and the fault is of %#x", p.WQ, f.wq)
	}
	delete(d.pageFaults, key)
	f.resolve(f, failed)
	return nil
}

// sendFault has the send side wait for pages of a WQE. It reports false if it can't.
func (q *qp) sendFault(e *request, typ uint8, committed int) bool {
	if !q.pages(typ == faultSend) {
		return false
	}
	r := &q.req
	q.d.f.cancel(&r.timer)
	r.paging = q.d.wqeFaulted(typ, q.n, e.w.index, committed, 0, func(f *pageFault, failed bool) {
		if r.paging != f || q.gone {
			return
		}
		r.paging = nil
		r.retries = q.attr.RetryCount
		if failed {
			e.w.refuse(LocalProt, notPresent)
			e.fail(LocalProt)
			r.stopped = true
		} else if typ == faultFetch && !e.done {
			q.goBack(e.psn + e.got) // what came meanwhile was dropped
		}
		q.kick()
	})
	return true
}

// suspend has the receive side wait for a page: what comes is dropped until then, and asked for again
// with an RNR NAK.
func (q *qp) suspend(p *packet, f *pageFault) {
	q.d.drop(p, notPresent)
	q.resp.paging, q.resp.nak = f, true
}

// resumed goes on with the receive side, or ends it. It reports whether the QP still waited, and
// must be ended.
func (q *qp) resumed(f *pageFault, failed bool) bool {
	r := &q.resp
	if r.paging != f || q.gone {
		return false
	}
	r.paging = nil
	if !failed {
		q.answer(answer{kind: pktAck, psn: r.ePSN, syndrome: ackRNR | q.attr.MinRNRNAK&0x1f})
	}
	return failed
}

// recvFault has the receive side wait for pages of a receive WQE.
func (q *qp) recvFault(p *packet, w *rwqe, off int) bool {
	if !q.pages(false) {
		return false
	}
	typ, wq := uint8(faultRecv), q.n
	if w.w.kind == "SRQ" {
		typ, wq = faultRMP, w.w.n
		if q.d.cfg.Traits.SRQFaults && off == 0 {
			q.abortRecv(p, w)
			return true
		}
	}
	q.suspend(p, q.d.wqeFaulted(typ, wq, w.index, off, len(p.data), func(f *pageFault, failed bool) {
		if q.resumed(f, failed) {
			q.recvFailed(w, LocalProt, vendorLocalProt)
			q.refuseRequest(p, nakOp, 0, notPresent)
		}
	}))
	return true
}

// abortRecv completes the WQE of an SRQ that leads to a missing page with an error, and has the receive side wait for
// the page. The message comes again, and takes another WQE. The driver must not use the index of this one until the
// fault is resolved: whoever resolves it reads the WQE there.
func (q *qp) abortRecv(p *packet, w *rwqe) {
	srq := w.w
	f := q.d.wqeFaulted(faultRMP, srq.n, w.index, 0, len(p.data), func(f *pageFault, failed bool) {
		delete(srq.faulted, w.index)
		if q.resumed(f, failed) {
			q.refuseRequest(p, nakOp, 0, notPresent)
		}
	})
	srq.faulted[w.index] = true
	q.suspend(p, f)
	q.recvFailed(w, RemoteAborted, vendorPageFault)
}

// writeFault has the receive side wait for pages that the peer writes.
func (q *qp) writeFault(p *packet, rkey uint32, va uint64, off, n int) bool {
	if !q.pages(false) {
		return false
	}
	q.suspend(p, q.rdmaFaulted(faultRDMA|faultWrite, rkey, va, off, n, len(p.data), func(f *pageFault, failed bool) {
		if q.resumed(f, failed) {
			q.refuseRequest(p, nakAccess, EventAccessError, notPresent)
		}
	}))
	return true
}

// readFault has the responses wait for pages that the peer reads.
func (q *qp) readFault(a *answer, n int) bool {
	if !q.pages(false) {
		return false
	}
	r := &q.resp
	r.stalled = q.rdmaFaulted(faultRDMA, a.rkey, a.va, a.off, a.length, n, func(f *pageFault, failed bool) {
		if r.stalled != f || q.gone {
			return
		}
		r.stalled = nil
		if failed {
			r.out = []answer{{kind: pktAck, psn: a.psn, syndrome: nakAccess}}
			r.refused = true
			q.eventOf(EventAccessError)
			q.toError("a READ was refused: " + notPresent)
		}
		q.d.f.soon(q.sendAnswers)
	})
	return true
}

// absent reports whether a page of an access is missing.
func absent(all []extent) bool {
	for _, e := range all {
		if e.absent {
			return true
		}
	}
	return false
}
