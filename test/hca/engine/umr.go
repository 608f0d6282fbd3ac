package engine

// The UMR control segment (struct mlx5_wqe_umr_ctrl_seg) and its flags.
const (
	umrCtrlBytes = 48
	umrMkeyBytes = 64

	umrInline      = 1 << 7
	umrCheckFree   = 2 << 5 // fail if the key is free (MLX5_UMR_CHECK_FREE)
	umrCheckNot    = 1 << 5 // fail if the key is not free (MLX5_UMR_CHECK_NOT_FREE)
	umrOffset      = 1 << 4
	umrCheckQPN    = 1 << 3
	umrKnown       = umrInline | umrCheckFree | umrCheckNot | umrOffset | umrCheckQPN
	umrFreeStatus  = 1 << 6 // MLX5_MKEY_STATUS_FREE
	umrLen64       = 1 << 31
	umrRemoteInval = 1 << 24
)

// umrUnit is how many octowords a key's room is a multiple of: drivers write lists in units of 64 bytes
// (MLX5_UMR_MTT_ALIGNMENT in mlx5_ib.h), whatever the key's size.
const umrUnit = 4

// umrRoom is how many octowords a UMR may fill of a key that does not say.
const umrRoom = 1 << 12

// The mkey mask (MLX5_MKEY_MASK_*).
const (
	maskLen        = 1 << 0
	maskPageSize   = 1 << 1
	maskStart      = 1 << 6
	maskPD         = 1 << 7
	maskRInval     = 1 << 8
	maskSigErr     = 1 << 9
	maskBSF        = 1 << 12
	maskKey        = 1 << 13
	maskQPN        = 1 << 14
	maskLR         = 1 << 17
	maskLW         = 1 << 18
	maskRR         = 1 << 19
	maskRW         = 1 << 20
	maskA          = 1 << 21
	maskSmallFence = 1 << 23
	maskFree       = 1 << 29
	maskKnown      = maskLen | maskPageSize | maskStart | maskPD | maskRInval | maskSigErr | maskBSF | maskKey | maskQPN |
		maskLR | maskLW | maskRR | maskRW | maskA | maskSmallFence | maskFree
	// maskOrdering are bits for relaxed ordering, which has no effect in memory that is
	// always in order.
	maskOrdering = 1<<24 | 1<<25 | 1<<26 | 1<<27
)

// umr is a user memory region update: new translation and rights for a key.
type umr struct {
	flags  uint8
	octos  int    // octowords of translation
	offset uint64 // where they go, with umrOffset
	mask   uint64

	status  uint8
	access  Access
	mode    AccessMode
	umrEn   bool
	qpn     uint32
	variant uint8
	len64   bool
	rinval  bool
	pd      uint32
	start   uint64
	length  uint64
	xltSize int
	logPage uint
	list    []byte // the translation, if it is in the WQE
}

// decodeUMR reads a UMR, or a local invalidate, which is its own opcode for old drivers.
func (w *sendWQE) decodeUMR(r *reader) {
	c := r.take(umrCtrlBytes, "the UMR control segment")
	if c == nil {
		return
	}
	u := &umr{flags: c[0], octos: int(be.Uint16(c[4:])), offset: uint64(be.Uint16(c[6:])) | uint64(be.Uint32(c[16:]))<<16, mask: be.Uint64(c[8:])}
	w.umr = u
	if !zero(c[1:4]) || !zero(c[20:48]) {
		w.violate("wqe-reserved", "reserved bytes of the UMR control segment are set: %x", c)
	}
	if u.flags&^uint8(umrKnown) != 0 || u.flags&umrOffset == 0 && u.offset != 0 {
		w.malformed("wqe-umr-flags", "UMR flags %#x, offset %#x", u.flags, u.offset)
		return
	}
	if u.mask&(maskSigErr|maskBSF) != 0 {
		w.malformed("wqe-not-modelled", "a UMR of signature fields (mask %#x) is not modelled", u.mask)
		return
	}
	if u.mask&^(maskKnown|maskOrdering) != 0 {
		w.malformed("wqe-umr-mask", "unknown bits %#x in the mkey mask", u.mask&^(maskKnown|maskOrdering))
		return
	}
	m := r.take(umrMkeyBytes, "the mkey segment")
	if m == nil {
		return
	}
	u.status, u.access, u.mode, u.umrEn = m[0], Access(m[2])&rights, AccessMode(m[2]&3), m[2]&0x80 != 0
	v := be.Uint32(m[4:])
	u.qpn, u.variant = v>>8, uint8(v)
	f := be.Uint32(m[12:])
	u.len64, u.rinval, u.pd = f&umrLen64 != 0, f&umrRemoteInval != 0, f&maxNumber
	u.start, u.length = be.Uint64(m[16:]), be.Uint64(m[24:])
	u.xltSize, u.logPage = int(be.Uint32(m[52:])), uint(m[59]&0x3f)
	// Fields that the mask does not name aren't read, and drivers leave what was there.
	if u.mask&maskFree != 0 && u.status&^uint8(umrFreeStatus) != 0 {
		w.violate("wqe-reserved", "reserved bits of the mkey's status %#x are set", u.status)
	}
	if u.octos == 0 {
		return
	}
	if u.flags&umrInline != 0 {
		// The list is padded to 64 bytes; octowords count the padded one.
		if u.octos%4 != 0 {
			w.malformed("wqe-umr-size", "%d octowords of inline translation, which comes in units of 4", u.octos)
			return
		}
		u.list = r.take(u.octos*16, "inline translation")
		return
	}
	w.decodeData(r)
}

// local executes a WQE that sends nothing. If it can't be, the WQE says so.
func (q *qp) local(w *sendWQE) (why string) {
	if w.umr == nil {
		return ""
	}
	if why = q.update(w); why != "" && w.bad == 0 {
		w.refuse(MWBind, "%s", why)
	}
	return why
}

// update executes a UMR.
func (q *qp) update(w *sendWQE) string {
	u, d := w.umr, q.d
	m := d.mkeys[w.imm>>8]
	switch {
	case m == nil:
		return hex("no key has index ", w.imm>>8)
	case m.spec.Variant != uint8(w.imm) && !m.spec.Free:
		// A free key is not told by its low byte: the kernel's REG_MR names one by what that will be.
		return hex("the key's low byte is not ", w.imm&0xff)
	case !m.spec.UMREnable:
		return "the key does not allow UMR"
	case m.spec.PD != q.pd.n && u.mask&maskPD == 0 && q.spec.Type != RegUMR:
		return hex("the key belongs to another PD: ", m.spec.PD)
	case u.flags&umrCheckNot != 0 && !m.spec.Free:
		return "the key is not free, as it had to be"
	case u.flags&umrCheckFree != 0 && m.spec.Free:
		return "the key is free, and must not be"
	case u.flags&umrCheckQPN != 0 && m.spec.QPN != q.n:
		return hex("the key is bound to another QP: ", m.spec.QPN)
	}
	next := m.spec
	if why := u.apply(&next, q); why != "" {
		return why
	}
	if u.octos > 0 {
		list := u.list
		if u.flags&umrInline == 0 {
			data, why := w.gather(0, w.size)
			if why != "" {
				w.refuse(LocalProt, "%s", why)
				return why
			}
			if len(data) < u.octos*16 {
				return "the list is shorter than the translation"
			}
			list = data[:u.octos*16]
		}
		if why := u.translation(&next, list); why != "" {
			return why
		}
	}
	if why := d.checkWindow(m, &next, u, q); why != "" {
		return why
	}
	if u.mask&maskPD != 0 && next.PD != m.spec.PD {
		to := d.pds[next.PD]
		if to == nil {
			return hex("no PD has number ", next.PD)
		}
		m.pd.refs--
		to.refs++
		m.pd = to
	}
	m.spec = next
	d.bind(m)
	return ""
}

// apply takes over what the mask names.
func (u *umr) apply(s *MKeySpec, q *qp) string {
	if u.mask&maskFree != 0 {
		s.Free = u.status&umrFreeStatus != 0
		if s.Free {
			s.QPN = NoUserIndex
		}
	}
	if u.mask&maskKey != 0 {
		s.Variant = u.variant
	}
	if u.mask&maskQPN != 0 {
		if u.qpn != NoUserIndex && u.qpn != q.n {
			return hex("a key may be bound to the QP itself or to none, not to ", u.qpn)
		}
		s.QPN = u.qpn
	}
	if u.mask&maskPD != 0 {
		s.PD = u.pd
	}
	if u.mask&maskLen != 0 {
		s.Length, s.Length64 = u.length, u.len64
	}
	if u.mask&maskStart != 0 {
		s.Start = u.start
	}
	if u.mask&maskPageSize != 0 {
		if s.Mode == ModeMTT && u.logPage < 12 || u.logPage > 43 {
			return hex("a page size of 2^", uint32(u.logPage))
		}
		s.LogPageSize = u.logPage
	}
	if u.mask&maskRInval != 0 {
		s.RemoteInval = u.rinval
	}
	for _, e := range []struct {
		mask uint64
		bit  Access
	}{{maskLR, LocalRead}, {maskLW, LocalWrite}, {maskRR, RemoteRead}, {maskRW, RemoteWrite}, {maskA, RemoteAtomic}} {
		if u.mask&e.mask != 0 {
			s.Access = s.Access&^e.bit | u.access&e.bit
		}
	}
	if !s.Length64 && s.Length != 0 && s.Start+s.Length-1 < s.Start {
		return "the range wraps"
	}
	if !s.Free && s.Mode == ModeMTT && s.LogPageSize < 12 {
		return hex("a valid key needs a page size, and has 2^", uint32(s.LogPageSize))
	}
	return ""
}

// translation replaces the key's translation, or a part of it.
func (u *umr) translation(s *MKeySpec, list []byte) string {
	room := s.Entries
	if room == 0 {
		room = max(len(s.Pages)/2, len(s.KLMs), umrRoom)
	}
	room = (room + umrUnit - 1) &^ (umrUnit - 1)
	if u.offset > uint64(room) || int(u.offset)+u.octos > room {
		return hex("more translation than the key has room for, which is octowords ", uint32(room))
	}
	if s.Mode == ModeMTT {
		var pages []uint64
		switch {
		case u.flags&umrOffset == 0:
		case u.mask == 0 && int(u.offset)*2+len(list)/8 <= len(s.Pages):
			pages = s.Pages // nothing can fail any more: in place
		default:
			pages = append(pages, s.Pages...)
		}
		for len(pages) < int(u.offset)*2+len(list)/8 {
			pages = append(pages, 0)
		}
		for i := 0; i < len(list)/8; i++ {
			pages[int(u.offset)*2+i] = be.Uint64(list[i*8:])
		}
		s.Pages = pages
		return ""
	}
	var klms []KLM
	switch {
	case u.flags&umrOffset == 0:
	case u.mask == 0 && s.Mode == ModeKSM && int(u.offset)+len(list)/16 <= len(s.KLMs):
		klms = s.KLMs
	default:
		klms = append(klms, s.KLMs...)
	}
	for len(klms) < int(u.offset)+len(list)/16 {
		klms = append(klms, KLM{})
	}
	for i := 0; i < len(list)/16; i++ {
		b := list[i*16:]
		klms[int(u.offset)+i] = KLM{Length: be.Uint32(b), Key: be.Uint32(b[4:]), VA: be.Uint64(b[8:])}
	}
	// The padding of a list to 64 bytes has no entries.
	for len(klms) > 0 && klms[len(klms)-1] == (KLM{}) {
		klms = klms[:len(klms)-1]
	}
	s.KLMs = klms
	if s.Mode == ModePA {
		s.Mode = ModeKLM
	}
	return ""
}

// checkWindow refuses a memory window on memory that it can't be on: bound within the WQE
// to a key of another PD, out of its range, or with remote writes that the key's local
// rights do not cover.
func (d *Device) checkWindow(m *mkey, next *MKeySpec, u *umr, q *qp) string {
	if next.Free || next.Mode != ModeKLM || u.flags&umrInline == 0 || u.octos == 0 {
		return ""
	}
	for _, k := range next.KLMs {
		if k == (KLM{}) {
			continue
		}
		below := d.mkeys[k.Key>>8]
		if below == m {
			return "a window on itself"
		}
		var need Access
		if next.Access&(RemoteWrite|RemoteAtomic) != 0 {
			need = LocalWrite
		}
		n := uint64(k.Length)
		if n == 0 {
			n = 1 << 31
		}
		if _, why := d.translate(k.Key, q, next.PD, k.VA, n, need); why != "" {
			return "the memory behind: " + why
		}
	}
	return ""
}

// invalidate frees a key at the peer's request (SEND with invalidate).
func (d *Device) invalidate(key uint32, q *qp, pd *pd) string {
	m := d.mkeys[key>>8]
	switch {
	case m == nil:
		return hex("no key has index ", key>>8)
	case m.spec.Variant != uint8(key):
		return hex("the key's low byte is not ", key&0xff)
	case m.spec.PD != pd.n:
		return hex("the key belongs to another PD: ", m.spec.PD)
	case m.spec.Free:
		return "the key is free"
	case !m.spec.RemoteInval && (m.spec.QPN == NoUserIndex || m.spec.QPN == 0):
		return "the key does not allow remote invalidation"
	case m.spec.QPN != NoUserIndex && m.spec.QPN != 0 && m.spec.QPN != q.n:
		return hex("the key is bound to another QP: ", m.spec.QPN)
	}
	m.spec.Free, m.spec.QPN = true, NoUserIndex
	m.unbind()
	return ""
}
