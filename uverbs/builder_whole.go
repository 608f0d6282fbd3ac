package uverbs

import "github.com/goverbs/goverbs/mmio/efa"

// SendInline adds a SEND of data, which is copied at once. It is Send and Inline in one call.
func (b *SendBuilder) SendInline(id uint64, flags SendFlags, data []byte) {
	if b.direct(flags) {
		if b.queue == nil {
			if b.putInlineEfa(id, WRSend, flags, 0, 0, data) {
				return
			}
		} else if b.queue.PutInline(id, directMeta(WRSend, flags|b.always), 0, 0, data) {
			b.n++
			return
		}
	}
	b.stageInline(id, WRSend, flags, 0, 0, data)
}

// SendSGE adds a SEND of registered memory. It is Send and SGE in one call.
func (b *SendBuilder) SendSGE(id uint64, flags SendFlags, sge SGE) {
	if !sge.outside && b.direct(flags) {
		if b.queue == nil {
			// Not putEfa, which is a call more. Put refuses nothing that is checked here.
			if flags&SendFence == 0 && sge.LKey <= efa.MaxKey && uint64(sge.Length) < b.limits[WRSend] {
				b.efa.Put(b.n, id, efa.NewMeta(efa.Send|quietEfa(flags|b.always), 0), b.peer, 0, sge.Addr, efa.NewLocal(sge.Length, sge.LKey))
				b.n++
				return
			}
		} else if b.queue.PutSGE(id, directMeta(WRSend, flags|b.always), 0, 0, sge.Addr, sge.Length, sge.LKey) {
			b.n++
			return
		}
	}
	b.stageSGE(id, WRSend, flags, 0, 0, sge)
}

// WriteInline adds an RDMA WRITE of data, which is copied at once, to the peer's memory at raddr. It is Write
// and Inline in one call.
func (b *SendBuilder) WriteInline(id uint64, flags SendFlags, raddr uint64, rkey uint32, data []byte) {
	if b.direct(flags) {
		if b.queue == nil {
			if b.putInlineEfa(id, WRRDMAWrite, flags, raddr, rkey, data) {
				return
			}
		} else if b.queue.PutInline(id, directMeta(WRRDMAWrite, flags|b.always), raddr, rkey, data) {
			b.n++
			return
		}
	}
	b.stageInline(id, WRRDMAWrite, flags, raddr, rkey, data)
}

// WriteSGE adds an RDMA WRITE of registered memory to the peer's memory at raddr. It is Write and SGE in one
// call.
func (b *SendBuilder) WriteSGE(id uint64, flags SendFlags, raddr uint64, rkey uint32, sge SGE) {
	b.addSGE(id, WRRDMAWrite, flags, raddr, rkey, &sge)
}

// ReadSGE adds an RDMA READ of the peer's memory at raddr into registered memory. It is Read and SGE in one
// call.
func (b *SendBuilder) ReadSGE(id uint64, flags SendFlags, raddr uint64, rkey uint32, sge SGE) {
	if b.queue == nil && !sge.outside && b.direct(flags) && flags&SendFence == 0 && sge.LKey <= efa.MaxKey && uint64(sge.Length) < b.limits[WRRDMARead] { // as SendSGE
		b.efa.Put(b.n, id, efa.NewMeta(efa.Read|quietEfa(flags|b.always), rkey), b.peer, raddr, sge.Addr, efa.NewLocal(sge.Length, sge.LKey))
		b.n++
		return
	}
	b.addSGE(id, WRRDMARead, flags, raddr, rkey, &sge)
}

// direct reports whether a work request may be written to the queue at once. The flags are checked here, the
// rest by [QP.reserve] and by what writes it.
func (b *SendBuilder) direct(flags SendFlags) bool {
	return b.n < b.room && !b.staged && flags <= sendFlagsAll
}

// addSGE adds a WRITE or a READ with an SGE.
func (b *SendBuilder) addSGE(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, e *SGE) {
	if !e.outside && b.direct(flags) {
		if b.queue == nil {
			if b.putEfa(id, op, flags, raddr, rkey, e.Addr, e.Length, e.LKey) {
				return
			}
		} else if uint32(b.q.plain)>>(op&31)&1 != 0 && b.queue.PutSGE(id, directMeta(op, flags|b.always), raddr, rkey, e.Addr, e.Length, e.LKey) {
			b.n++
			return
		}
	}
	b.stageSGE(id, op, flags, raddr, rkey, *e)
}

// stageInline and stageSGE add a SEND, a WRITE or a READ that cannot be written to the queue at once.
func (b *SendBuilder) stageInline(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, data []byte) {
	if b.begin(id, op, flags) { // not rdma, which is a call more
		b.wr[0].RemoteAddr, b.wr[0].RKey = raddr, rkey
		b.toWhole()
		b.Inline(data)
		b.finish()
	}
}

func (b *SendBuilder) stageSGE(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, e SGE) {
	if b.begin(id, op, flags) {
		b.wr[0].RemoteAddr, b.wr[0].RKey = raddr, rkey
		b.toWhole()
		b.SGE(e)
		b.finish()
	}
}

// toWhole sets the destination of a whole work request.
func (b *SendBuilder) toWhole() {
	if b.addressed {
		b.wr[0].AH, b.wr[0].RemoteQPN, b.wr[0].RemoteQKey = b.to.ah, b.to.qpn, b.to.qkey
	}
}
