package uverbs

import "fmt"

// boundTo is the memory that a window is bound to, and with which rights.
type boundTo struct {
	addr, length uint64
	lkey         uint32
	access       Access
}

// fault looks for what is wrong with a work request on this side, and returns "" if nothing
// is known to be.
func (q *QP) fault(wr *sentWR) string {
	switch {
	case wr.text == "":
		return ""
	case wr.op == WRBindMW && q.kind == kindRxe:
		return q.faultyBind(wr)
	case wr.op == WRLocalInv && q.kind == kindRxe:
		return q.faultyInvalidate(wr.invalid)
	}
	return q.faultySGE(wr)
}

// faultyBind says why a window cannot be bound.
func (q *QP) faultyBind(wr *sentWR) string {
	mw := q.dev.windowOf(wr.mwRKey)
	if mw == nil {
		return fmt.Sprintf("no window of this device has the rkey %#x", wr.mwRKey)
	}
	if mw.typ == MWType2 && mw.pd != q.pd {
		return "the window is of another PD than the QP"
	}
	b := &wr.bind
	if b.length == 0 {
		if mw.typ == MWType2 {
			return "a window of type 2 is bound to one byte at least"
		}
		return ""
	}
	mr := q.dev.mrs.get(b.lkey)
	if mr == nil {
		return fmt.Sprintf("no MR of this device has the lkey %#x", b.lkey)
	}
	const writing = AccessRemoteWrite | AccessRemoteAtomic
	switch end := b.addr + b.length; {
	case mr.pd != q.pd:
		return "the MR is of another PD than the QP"
	case mr.access&AccessMWBind == 0:
		return "the MR lacks AccessMWBind"
	case b.access&writing != 0 && mr.access&AccessLocalWrite == 0:
		return fmt.Sprintf("the MR lacks AccessLocalWrite, which a window with %s needs", b.access&writing)
	case b.access&AccessZeroBased == 0 && (b.addr < mr.addr || end < b.addr || end > mr.addr+mr.length):
		return fmt.Sprintf("%#x+%d is outside the MR, which is %#x+%d", b.addr, b.length, mr.addr, mr.length)
	case mw.typ == MWType2:
		return "a window of type 2 that is bound already is invalidated before it is bound again"
	}
	return ""
}

// faultyInvalidate says why a key cannot be invalidated.
func (q *QP) faultyInvalidate(key uint32) string {
	mw := q.dev.windowOf(key)
	switch {
	case mw == nil:
		if q.dev.mrs.get(key) != nil {
			return fmt.Sprintf("the key %#x is that of an MR, which ends with Close", key)
		}
		return fmt.Sprintf("no window of this device has the key %#x", key)
	case mw.typ == MWType1:
		return fmt.Sprintf("the key %#x is that of a window of type 1; a bind of no bytes takes its memory away", key)
	case mw.RKey() != key:
		return fmt.Sprintf("the key of the window is %#x, not %#x", mw.RKey(), key)
	}
	return ""
}
