package uverbs

// SendInline adds a SEND of data, which is copied at once. It is Send and Inline in one call.
func (b *SendBuilder) SendInline(id uint64, flags SendFlags, data []byte) {
	b.addInline(id, WRSend, flags, 0, 0, data)
}

// SendSGE adds a SEND of registered memory. It is Send and SGE in one call.
func (b *SendBuilder) SendSGE(id uint64, flags SendFlags, sge SGE) {
	b.addSGE(id, WRSend, flags, 0, 0, &sge)
}

// WriteInline adds an RDMA WRITE of data, which is copied at once, to the peer's memory at raddr. It is Write
// and Inline in one call.
func (b *SendBuilder) WriteInline(id uint64, flags SendFlags, raddr uint64, rkey uint32, data []byte) {
	b.addInline(id, WRRDMAWrite, flags, raddr, rkey, data)
}

// WriteSGE adds an RDMA WRITE of registered memory to the peer's memory at raddr. It is Write and SGE in one
// call.
func (b *SendBuilder) WriteSGE(id uint64, flags SendFlags, raddr uint64, rkey uint32, sge SGE) {
	b.addSGE(id, WRRDMAWrite, flags, raddr, rkey, &sge)
}

// ReadSGE adds an RDMA READ of the peer's memory at raddr into registered memory. It is Read and SGE in one
// call.
func (b *SendBuilder) ReadSGE(id uint64, flags SendFlags, raddr uint64, rkey uint32, sge SGE) {
	b.addSGE(id, WRRDMARead, flags, raddr, rkey, &sge)
}

// direct reports whether a work request may be written to the queue at once. The flags are checked here, the
// rest by [QP.reserve] and by what writes it.
func (b *SendBuilder) direct(flags SendFlags) bool {
	return b.n < b.room && !b.staged && flags <= sendFlagsAll
}

// addInline adds a SEND or a WRITE of data.
func (b *SendBuilder) addInline(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, data []byte) {
	if b.direct(flags) && b.q.putInline(id, op, flags, raddr, rkey, data) {
		b.n++
		return
	}
	if b.rdma(id, op, flags, raddr, rkey) {
		b.Inline(data)
		b.finish()
	}
}

// addSGE adds a SEND, a WRITE or a READ with an SGE.
func (b *SendBuilder) addSGE(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, e *SGE) {
	if b.direct(flags) && b.q.putSGE(id, op, flags, raddr, rkey, e) {
		b.n++
		return
	}
	if b.rdma(id, op, flags, raddr, rkey) {
		b.SGE(*e)
		b.finish()
	}
}
