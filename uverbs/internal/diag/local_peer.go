package diag

import (
	"fmt"
	"time"
)

// LocalPeer is the QP at the other end of a connection, if it belongs to this process.
type LocalPeer struct {
	Name string // such as "QP 17 of rxe0"
	PD   uint32

	Datagram bool // it has no connection

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

// is names the peer after what is known of it.
func (p *LocalPeer) is() string { return "; the peer is " + p.Name + ", of this program" }

// RecvText says how many receives the peer has, for a message that found none.
func (p *LocalPeer) RecvText() string {
	where, timer := "", ""
	if p.SharedRecvs {
		where = " in its SRQ"
	}
	if p.MinRNRTimer != 0 {
		timer = fmt.Sprintf(" and a MinRNRTimer of %s", p.MinRNRTimer)
	}
	return fmt.Sprintf("the peer has %d receives posted%s now%s%s", p.Recvs, where, timer, p.is())
}

// MTUText says that the two QPs have different path MTUs, in bytes.
func (p *LocalPeer) MTUText(here, there int) string {
	return fmt.Sprintf("the path MTU is %d here, %d at the peer; give Connect the Endpoint of the other side with its MTU, or both the same PathOptions.MTU%s", here, there, p.is())
}

// StateText says that the peer cannot receive in its state.
func (p *LocalPeer) StateText(state string) string {
	remedy := "connect both QPs again"
	if p.Datagram {
		remedy = "ReadyUD makes it ready"
	}
	return fmt.Sprintf("the peer's QP is in state %s, so it does not receive; %s%s", state, remedy, p.is())
}

// QKeyText says that the peer has another Q_Key than the request.
func (p *LocalPeer) QKeyText(here, there uint32) string {
	return fmt.Sprintf("the peer's QP has the Q_Key %#x, and RemoteQKey is %#x%s", there, here, p.is())
}

// OtherText says that the peer is connected to another QP.
func (p *LocalPeer) OtherText(qpn, here uint32) string {
	return fmt.Sprintf("the peer's QP is connected to QP %d, not to this one; give its Connect the Endpoint of QP %d%s", qpn, here, p.is())
}

// ReceiveText repeats why the peer's receive failed.
func (p *LocalPeer) ReceiveText(hint string) string {
	return "at the peer: " + hint + p.is()
}

// MemoryText says what is wrong with the peer's memory that a request named, or that nothing is now.
func (p *LocalPeer) MemoryText(r *Request) (text string, wrong bool) {
	text, wrong = p.memoryFault(r)
	return text + p.is(), wrong
}

func (p *LocalPeer) memoryFault(r *Request) (text string, wrong bool) {
	switch w := p.Window; {
	case !p.QPPermits:
		return fmt.Sprintf("the peer's QP does not permit %s; its access is %s", r.Op, p.QPAccess), true
	case w != nil && w.RKey != r.RKey:
		return fmt.Sprintf("rkey %#x was that of %s; it has %#x now", r.RKey, w, w.RKey), true
	case w != nil:
		return fmt.Sprintf("rkey %#x belongs to %s, which its last bind limits", r.RKey, w), true
	case p.MR == nil:
		return fmt.Sprintf("no MR and no memory window of the peer has rkey %#x", r.RKey), true
	}
	switch mr := p.MR; {
	case mr.PD != p.PD:
		return fmt.Sprintf("the peer's MR with rkey %#x is of another PD than its QP", r.RKey), true
	case !mr.covers(r.RemoteAddr, uint64(r.Length)):
		return fmt.Sprintf("%#x+%d is outside the peer's MR, %#x+%d", r.RemoteAddr, r.Length, mr.Addr, mr.Length), true
	case !p.MRPermits:
		return fmt.Sprintf("the peer's MR with rkey %#x does not have %s; its access is %s", r.RKey, p.Right, mr.Access), true
	}
	return fmt.Sprintf("the peer's MR with rkey %#x permits it now", r.RKey), false
}
