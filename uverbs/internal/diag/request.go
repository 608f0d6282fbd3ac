package diag

import (
	"fmt"
	"strings"
)

// Request is a send request that its ring still holds.
type Request struct {
	Op     string // the operation, such as "RDMA_WRITE"
	Length uint32 // bytes of data
	PD     uint32 // of the QP
	SGEs   []SGE
	Writes bool // the operation writes to the memory of the SGEs

	Remote     bool   // the request names memory of the peer, with RemoteAddr and RKey
	RemoteAddr uint64 // the first byte
	RKey       uint32
	RemoteQPN  uint32 // where a datagram goes, otherwise 0

	Bind        *Bind       // what BIND_MW does
	Invalidates *uint32     // the key that the request invalidates, nil if there is none or it is not known
	Invalidated *Invalidate // what that key belongs to, if only the key of a memory window of this side will do
}

// SGE is a scatter/gather element, with what its lkey belongs to.
type SGE struct {
	Addr         uint64
	Length, LKey uint32
	MR           *MR  // nil if no MR has the lkey
	IsWindow     bool // the lkey is the key of a memory window
}

// MR is a memory region of this process.
type MR struct {
	Addr, Length uint64
	PD           uint32
	Access       string // all of its rights
	LocalWrite   bool   // it has AccessLocalWrite
	MWBind       bool   // it has AccessMWBind
}

// covers reports whether the MR has all bytes of a range.
func (m *MR) covers(addr, length uint64) bool {
	end := addr + length
	return addr >= m.Addr && end >= addr && end <= m.Addr+m.Length
}

// Window is a memory window of this process.
type Window struct {
	Type2 bool // the window is of type 2, otherwise of type 1
	PD    uint32
	RKey  uint32 // its key now
}

// String names the window by its type.
func (w *Window) String() string {
	if w.Type2 {
		return "a memory window of type 2"
	}
	return "a memory window of type 1"
}

// Bind is the bind of a memory window.
type Bind struct {
	OldKey, NewKey uint32
	Window         *Window // nil if no window has OldKey
	To             *Range  // nil if the ring does not say
}

// Range is what a memory window is bound to.
type Range struct {
	Addr, Length uint64
	LKey         uint32
	MR           *MR    // nil if no MR has the lkey
	Writing      string // the window's rights that need an MR with AccessLocalWrite, "" if there are none
	ZeroBased    bool   // Addr counts from the beginning of the MR
}

// Invalidate is what a key that LOCAL_INV invalidates belongs to.
type Invalidate struct {
	Window *Window // nil if no window has the key
	IsMR   bool
}

// String describes the request.
func (r *Request) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %d bytes", r.Op, r.Length)
	if r.Remote {
		fmt.Fprintf(&b, ", remote address %#x with rkey %#x", r.RemoteAddr, r.RKey)
	}
	if r.Bind != nil {
		fmt.Fprintf(&b, ", from rkey %#x to %#x", r.Bind.OldKey, r.Bind.NewKey)
	}
	if r.Invalidates != nil {
		fmt.Fprintf(&b, ", invalidating %#x", *r.Invalidates)
	}
	if r.RemoteQPN != 0 {
		fmt.Fprintf(&b, " to QP %d", r.RemoteQPN)
	}
	for n, e := range r.SGEs {
		fmt.Fprintf(&b, ", SGE %d %#x+%d with lkey %#x", n, e.Addr, e.Length, e.LKey)
	}
	return b.String()
}

// localFault says what is wrong with the request on this side, and "" if nothing is known to be. The
// request may be nil.
func (r *Request) localFault() string {
	switch {
	case r == nil:
		return ""
	case r.Bind != nil && r.Bind.To != nil:
		return r.bindFault()
	case r.Invalidated != nil:
		return r.Invalidated.fault(*r.Invalidates)
	}
	return r.sgeFault()
}

// sgeFault says what is wrong with the memory of the request.
func (r *Request) sgeFault() string {
	for i, e := range r.SGEs {
		switch mr := e.MR; {
		case mr == nil && e.IsWindow:
			return fmt.Sprintf("the lkey %#x of SGE %d is the key of a memory window, which is for the peer alone", e.LKey, i)
		case mr == nil:
			return fmt.Sprintf("no MR of this device has the lkey %#x of SGE %d", e.LKey, i)
		case mr.PD != r.PD:
			return fmt.Sprintf("the MR of SGE %d is of another PD than the QP", i)
		case !mr.covers(e.Addr, uint64(e.Length)):
			return fmt.Sprintf("SGE %d is outside its MR, which is %#x+%d", i, mr.Addr, mr.Length)
		case r.Writes && !mr.LocalWrite:
			return fmt.Sprintf("the MR of SGE %d does not have AccessLocalWrite", i)
		}
	}
	return ""
}

// bindFault says why a window cannot be bound.
func (r *Request) bindFault() string {
	w, to := r.Bind.Window, r.Bind.To
	switch mr := to.MR; {
	case w == nil:
		return fmt.Sprintf("no window of this device has the rkey %#x", r.Bind.OldKey)
	case w.Type2 && w.PD != r.PD:
		return "the window is of another PD than the QP"
	case to.Length == 0 && w.Type2:
		return "a window of type 2 is bound to one byte at least"
	case to.Length == 0:
		return ""
	case mr == nil:
		return fmt.Sprintf("no MR of this device has the lkey %#x", to.LKey)
	case mr.PD != r.PD:
		return "the MR is of another PD than the QP"
	case !mr.MWBind:
		return "the MR does not have AccessMWBind"
	case to.Writing != "" && !mr.LocalWrite:
		return fmt.Sprintf("the MR does not have AccessLocalWrite, which a window with %s needs", to.Writing)
	case !to.ZeroBased && !mr.covers(to.Addr, to.Length):
		return fmt.Sprintf("%#x+%d is outside the MR, which is %#x+%d", to.Addr, to.Length, mr.Addr, mr.Length)
	case w.Type2:
		return "a window of type 2 that is bound must be invalidated before it is bound again"
	}
	return ""
}

// fault says why a key cannot be invalidated.
func (i *Invalidate) fault(key uint32) string {
	switch w := i.Window; {
	case w == nil && i.IsMR:
		return fmt.Sprintf("the key %#x belongs to an MR, which ends with Close", key)
	case w == nil:
		return fmt.Sprintf("no window of this device has the key %#x", key)
	case !w.Type2:
		return fmt.Sprintf("the key %#x belongs to a window of type 1; a bind of no bytes takes its memory away", key)
	case w.RKey != key:
		return fmt.Sprintf("the key of the window is %#x, not %#x", w.RKey, key)
	}
	return ""
}
