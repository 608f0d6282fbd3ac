package diag

import (
	"fmt"
	"time"
)

// LocalPeer is the QP at the other end of a connection, if it belongs to this process.
type LocalPeer struct {
	Name string // such as "QP 17 of rxe0"
	PD   uint32

	Recvs       int           // how many receives it has
	SharedRecvs bool          // they are in an SRQ
	MinRNRTimer time.Duration // 0 if it is not known

	Right     string  // the right that the request needs
	QPAccess  string  // the rights of the QP
	QPPermits bool    // the QP has the right, or its rights are not known
	Window    *Window // the window that the rkey belongs to, or nil
	MR        *MR     // the MR that the rkey belongs to, or nil
	MRPermits bool    // the MR has the right
}

// RecvText says how many receives the peer has, for a message that found none.
func (p *LocalPeer) RecvText() string {
	where, timer := "", ""
	if p.SharedRecvs {
		where = " in its SRQ"
	}
	if p.MinRNRTimer != 0 {
		timer = fmt.Sprintf(" and a MinRNRTimer of %s", p.MinRNRTimer)
	}
	return fmt.Sprintf("%s has %d receives posted%s now%s", p.Name, p.Recvs, where, timer)
}

// MTUText says that the two QPs have different path MTUs, in bytes.
func (p *LocalPeer) MTUText(here, there int) string {
	return fmt.Sprintf("%s has path MTU %d, and this QP %d: give Connect the Endpoint of the other side with its MTU, or both the same PathOptions.MTU", p.Name, there, here)
}

// MemoryText says what is wrong with the peer's memory that a request named.
func (p *LocalPeer) MemoryText(r *Request) string {
	switch w := p.Window; {
	case !p.QPPermits:
		return fmt.Sprintf("%s does not permit %s: its access is %s", p.Name, r.Op, p.QPAccess)
	case w != nil && w.RKey != r.RKey:
		return fmt.Sprintf("%s: rkey %#x was that of %s, which has %#x now", p.Name, r.RKey, w, w.RKey)
	case w != nil:
		return fmt.Sprintf("%s: rkey %#x belongs to %s, which its last bind limits", p.Name, r.RKey, w)
	case p.MR == nil:
		return fmt.Sprintf("%s: no MR and no memory window has rkey %#x", p.Name, r.RKey)
	}
	what, mr := fmt.Sprintf("%s: the MR with rkey %#x ", p.Name, r.RKey), p.MR
	switch {
	case mr.PD != p.PD:
		return what + "is of another PD than this QP"
	case !mr.covers(r.RemoteAddr, uint64(r.Length)):
		return what + fmt.Sprintf("is %#x+%d, and %#x+%d is outside", mr.Addr, mr.Length, r.RemoteAddr, r.Length)
	case !p.MRPermits:
		return what + fmt.Sprintf("does not have %s: its access is %s", p.Right, mr.Access)
	}
	return what + "permits it now"
}
