package ring

import "github.com/goverbs/goverbs/uverbs/soft/internal/abi"

// MaxSGE is the largest number of scatter/gather entries of a work request (RXE_MAX_SGE).
const MaxSGE = 32

// MaxInline is the largest amount of inline data of a work request in bytes (RXE_MAX_INLINE_DATA).
const MaxInline = 512

// CQESize is the size of a completion's element: that of struct rxe_cqe, a union of the kernel's
// struct ib_wc, which has 72 bytes since Linux 5.13, and struct ib_uverbs_wc. The program sees the
// latter alone. In a ring it takes 128 bytes.
const CQESize = 72

// SendElemSize returns the size of a send queue's element (rxe_init_sq). The program gets as many
// scatter/gather entries and as much inline data as fit; see SendCaps.
func SendElemSize(maxSGE, maxInline int) int { return sendSize + max(maxSGE*sgeSize, maxInline) }

// SendCaps returns the limits that rxe grants for those that a program asked for (rxe_init_sq).
func SendCaps(maxSGE, maxInline int) (sge, inline int) {
	room := max(maxSGE*sgeSize, maxInline)
	return room / sgeSize, room
}

// RecvElemSize returns the size of an element of a receive queue or an SRQ (rxe_init_rq,
// rxe_srq_from_init).
func RecvElemSize(maxSGE int) int { return recvSize + maxSGE*sgeSize }

// An SGE is a piece of registered memory.
type SGE struct {
	Addr   uint64
	Length uint32 // in bytes
	LKey   uint32
}

// A Send is a copy of a send work request. Fields that its opcode does not have are zero.
type Send struct {
	WRID     uint64
	Opcode   uint32
	Flags    uint32 // SendFence and others
	ImmOrKey uint32 // immediate data as stored, in network order; or the rkey to invalidate

	RemoteAddr uint64 // reads, writes, atomics, atomic writes, flushes
	RKey       uint32 // the same; of a bind the new key of the window
	CompareAdd uint64 // atomics
	Swap       uint64 // compare and swap

	QPN       uint32 // datagrams, and all other sends, where it has no meaning
	QKey      uint32
	PKeyIndex uint16
	AH        uint32 // number of the address handle

	BindAddr   uint64
	BindLength uint64 // in bytes
	MRLKey     uint32 // key of the MR to bind to
	MWRKey     uint32 // key of the window before the bind
	BindAccess uint32 // IB_ACCESS flags

	FlushType  uint8 // enum ib_placement_type
	FlushLevel uint8 // enum ib_selectivity_level

	Length uint32 // in bytes, of the message
	NumSGE int
	SGEs   [MaxSGE]SGE
	// Inline is the data of a request with SendInline and of an atomic write, Length bytes; nil
	// otherwise. It is memory of the ring: valid until the element is consumed, and the program may
	// change it.
	Inline []byte
}

// ReadSend copies the send work request of an index into s. It reports false if the program wrote
// more scatter/gather entries than maxSGE, entries that are together shorter than the message, or
// inline data that does not fit. Then only WRID, Opcode and Flags are valid.
//
// Preconditions: the ring has elements of SendElemSize; maxSGE is what SendCaps returned.
func (r *Ring) ReadSend(i uint32, s *Send, maxSGE int) bool {
	w := sendAt(r.Elem(i))
	s.WRID = w.WR.WRID
	s.Opcode = w.WR.Opcode
	s.Flags = w.WR.SendFlags
	s.ImmOrKey = *w.WR.Ex.InvalidateRKey()
	s.clearUnion()
	// rxe sends iova, which the program sets to the address of the operation and rxe advances.
	s.RemoteAddr = w.IOVA
	switch s.Opcode {
	case OpWrite, OpWriteImm, OpRead, OpAtomicWrite:
		s.RKey = w.WR.WR.RDMA().RKey
	case OpAtomicCAS, OpAtomicFAA:
		a := w.WR.WR.Atomic()
		s.RKey, s.CompareAdd, s.Swap = a.RKey, a.CompareAdd, a.Swap
	case OpSend, OpSendImm, OpSendInv:
		s.RemoteAddr = 0
		s.readUD(w.WR.WR.UD())
	case OpBindMW:
		s.RemoteAddr = 0
		m := w.WR.WR.MW()
		s.BindAddr, s.BindLength, s.BindAccess = m.Addr, m.Length, m.Access
		s.MRLKey, s.MWRKey, s.RKey = m.MRLKey, m.MWRKey, m.RKey
	case OpFlush:
		f := w.WR.WR.Flush()
		s.RKey, s.FlushType, s.FlushLevel = f.RKey, f.Type, f.Level
	}
	return s.readData(&w.DMA, r.Elem(i)[sendSize:r.used], maxSGE)
}

// SendID returns the ID of the send work request of an index.
func (r *Ring) SendID(i uint32) uint64 { return sendAt(r.Elem(i)).WR.WRID }

// RecvID returns the ID of the receive work request of an index.
func (r *Ring) RecvID(i uint32) uint64 { return recvAt(r.Elem(i)).WRID }

// SetSendStatus stores the status of a failed send in its element, where the program can find it.
func (r *Ring) SetSendStatus(i, status uint32) { sendAt(r.Elem(i)).Status = status }

// clearUnion clears the fields that not every opcode has.
func (s *Send) clearUnion() {
	s.RKey, s.CompareAdd, s.Swap = 0, 0, 0
	s.QPN, s.QKey, s.PKeyIndex, s.AH = 0, 0, 0, 0
	s.BindAddr, s.BindLength, s.MRLKey, s.MWRKey, s.BindAccess = 0, 0, 0, 0, 0
	s.FlushType, s.FlushLevel = 0, 0
	s.Length, s.NumSGE, s.Inline = 0, 0, nil
}

// readUD copies the destination of a datagram. The element has room for its address, too, for programs
// without address handles in the kernel; the device does not support them.
func (s *Send) readUD(u *abi.RxeSendWRUD) {
	s.QPN, s.QKey, s.PKeyIndex, s.AH = u.RemoteQPN, u.RemoteQKey, u.PKeyIndex, u.AHNum
}

// readData copies and checks the length and the place of the data. tail is the element behind the
// fixed part.
func (s *Send) readData(d *abi.RxeDMAInfo, tail []byte, maxSGE int) bool {
	s.Length = d.Length
	n := d.NumSGE
	// As rxe_requester checks it, whatever the opcode.
	if int64(n) > int64(min(maxSGE, MaxSGE)) || int(n)*sgeSize > len(tail) {
		return false
	}
	switch s.Opcode {
	case OpLocalInv, OpBindMW, OpFlush:
		return true // no data; the length of a flush is the peer's
	case OpAtomicWrite: // the value is in the element, with or without the flag
		if s.Length != 8 {
			return false
		}
		s.Inline = tail[:8:8]
		return true
	}
	if s.Flags&SendInline != 0 {
		if uint64(s.Length) > uint64(len(tail)) {
			return false
		}
		s.Inline = tail[:s.Length:s.Length]
		return true
	}
	if readSGEs(s.SGEs[:n], d) < uint64(s.Length) {
		return false // rxe finds out when it runs out of entries (copy_data), with the same status
	}
	s.NumSGE = int(n)
	return true
}

// readSGEs copies scatter/gather entries and returns the sum of their lengths in bytes.
func readSGEs(to []SGE, d *abi.RxeDMAInfo) uint64 {
	sum := uint64(0)
	from := d.TailSGE(len(to))
	for i := range to {
		to[i] = SGE{Addr: from[i].Addr, Length: from[i].Length, LKey: from[i].LKey}
		sum += uint64(to[i].Length)
	}
	return sum
}

// A Recv is a copy of a receive work request.
type Recv struct {
	WRID   uint64
	Length uint32 // in bytes, of all scatter/gather entries
	NumSGE int
	SGEs   [MaxSGE]SGE
}

// ReadRecv copies the receive work request of an index into w. It reports false if the program wrote
// more scatter/gather entries than maxSGE (get_srq_wqe). Then only WRID is valid.
//
// Preconditions: the ring has elements of RecvElemSize(maxSGE).
func (r *Ring) ReadRecv(i uint32, w *Recv, maxSGE int) bool {
	e := recvAt(r.Elem(i))
	w.WRID = e.WRID
	n := e.DMA.NumSGE
	if int64(n) > int64(min(maxSGE, MaxSGE)) || int(n)*sgeSize > r.used-recvSize {
		w.Length, w.NumSGE = 0, 0
		return false
	}
	w.NumSGE = int(n)
	sum := readSGEs(w.SGEs[:n], &e.DMA)
	// rxe takes the length that the program wrote, which is the sum.
	w.Length = uint32(min(sum, uint64(e.DMA.Length)))
	return true
}

// Injected returns Completion.VendorErr of an error that a plan of faults has caused: that of the work
// request with a number, from 0, on its queue. Bit 0 is set, bit 1 means a receive, and the rest is the number plus
// 1, or 0 if it is too large.
func Injected(recv bool, number uint64) uint32 {
	code := uint32(1)
	if recv {
		code |= 1 << 1
	}
	if number < 1<<30-1 {
		code |= uint32(number+1) << 2
	}
	return code
}

// A Completion is what the device reports of a work request (struct ib_uverbs_wc).
type Completion struct {
	WRID         uint64
	Status       uint32 // a value of enum ib_wc_status
	Opcode       uint32 // WCSend and others
	VendorErr    uint32
	ByteLen      uint32 // in bytes
	ImmOrKey     uint32 // immediate data as it came, in network order; or the rkey that was invalidated
	QPN          uint32
	SrcQP        uint32
	Flags        uint32 // WCGRH and others
	PKeyIndex    uint16
	SLID         uint16
	SL           uint8
	DLIDPathBits uint8
	PortNum      uint8
}

// WriteCompletion fills the element of an index of a completion queue. SetProducer makes it visible
// to the program.
//
// Preconditions: the ring has elements of CQESize; the program owns nothing at this index.
func (r *Ring) WriteCompletion(i uint32, c *Completion) {
	w := completionAt(r.Elem(i))
	w.WRID = c.WRID
	w.Status = c.Status
	w.Opcode = c.Opcode
	w.VendorErr = c.VendorErr
	w.ByteLen = c.ByteLen
	*w.Ex.InvalidateRKey() = c.ImmOrKey
	w.QPNum = c.QPN
	w.SrcQP = c.SrcQP
	w.WCFlags = c.Flags
	w.PKeyIndex = c.PKeyIndex
	w.SLID = c.SLID
	w.SL = c.SL
	w.DLIDPathBits = c.DLIDPathBits
	w.PortNum = c.PortNum
}
