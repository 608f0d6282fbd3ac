package mlx5

import "unsafe"

// Access rights of a window: the values of enum ib_uverbs_access_flags.
const (
	AccessLocalWrite   uint32 = 1 << 0
	AccessRemoteWrite  uint32 = 1 << 1
	AccessRemoteRead   uint32 = 1 << 2
	AccessRemoteAtomic uint32 = 1 << 3
	AccessZeroBased    uint32 = 1 << 5
)

// Window has the parameters of BindMW.
type Window struct {
	Key    uint32 // Key is the current key of the window.
	NewKey uint32 // NewKey is the new key, which differs in the last 8 bits.
	Type2  bool   // Type2 says that it belongs to the QP that binds it.
	LKey   uint32 // LKey is the key of the region.
	Addr   uint64 // Addr is the address of the first byte, in the region.
	Length uint64 // Length is the number of bytes; 0 unbinds.
	Access uint32 // Access is what the peer may do.
}

// SetBind sets what BindMW binds. The error is ErrTooLong if the length does not fit into the 32
// bits of a translation; the request is then unusable.
func (s *SendSlot) SetBind(w *Window) error {
	if w.Length > maxLength {
		return ErrTooLong
	}
	put32(s.ctrl(), ctrlImm, w.Key)
	s.umrCtrl(w.Type2, w.Length != 0)
	m := s.mkey()
	if w.Length == 0 {
		s.freeKey(m, w.NewKey)
		return nil
	}
	qpn := uint32(mkeyNoQPN)
	if w.Type2 {
		qpn = s.q.number >> 8
	}
	put32(m, mkeyQPNKey, qpn<<8|w.NewKey&0xff)
	var access uint8
	for bit, flag := range [...]uint8{mkeyLocalWrite, mkeyRemoteWrite, mkeyRemoteRead, mkeyRemoteAtomic} {
		if w.Access>>bit&1 != 0 {
			access |= flag
		}
	}
	put8(m, mkeyAccess, access)
	if w.Access&AccessZeroBased == 0 {
		put64(m, mkeyStart, w.Addr)
	}
	put64(m, mkeyLen, w.Length)

	p := s.at(s.pos)
	*(*[klmSize]byte)(p) = [klmSize]byte{}
	put32(p, 0, uint32(w.Length))
	put32(p, 4, w.LKey)
	put64(p, 8, w.Addr)
	s.pos += klmSize
	return nil
}

// SetLocalInv sets the key of the type 2 window that LocalInv invalidates.
func (s *SendSlot) SetLocalInv(rkey uint32) {
	put32(s.ctrl(), ctrlImm, rkey)
	s.umrCtrl(true, false)
	s.freeKey(s.mkey(), 0)
}

// umrCtrl writes the segment that says which fields of the key change.
func (s *SendSlot) umrCtrl(type2, bind bool) {
	p := s.at(s.pos)
	*(*[umrCtrlSize]byte)(p) = [umrCtrlSize]byte{}
	flags, mask := uint8(umrInline|umrOffset), uint64(maskFree|maskKey)
	if type2 {
		mask |= maskQPN
	}
	if bind {
		put16(p, umrOcto, klmSize/octoSize)
		mask |= maskLen | maskStart | maskLocalWrite | maskRemoteRead | maskRemoteWrite | maskRemoteAtomic
	}
	switch {
	case type2 && bind:
		flags |= umrCheckFree
	case type2:
		flags |= umrCheckQPN
	}
	put8(p, umrFlags, flags)
	put64(p, umrMask, mask)
	s.pos += umrCtrlSize
}

// mkey begins the segment with the new fields of the key.
func (s *SendSlot) mkey() unsafe.Pointer {
	m := s.at(s.pos)
	*(*[mkeySize]byte)(m) = [mkeySize]byte{}
	s.pos += mkeySize
	return m
}

// freeKey makes the key refer to nothing.
func (s *SendSlot) freeKey(m unsafe.Pointer, key uint32) {
	put8(m, mkeyFree, mkeyIsFree)
	put32(m, mkeyQPNKey, mkeyNoQPN<<8|key&0xff)
}
