package diag

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestBindFault: why a window cannot be bound.
func TestBindFault(t *testing.T) {
	const qpPD, otherPD = 3, 4
	type1, type2 := &Window{PD: qpPD}, &Window{Type2: true, PD: qpPD}
	region := func(mr MR) *MR { mr.Addr, mr.Length = 0x1000, 0x100; return &mr }
	mr := region(MR{PD: qpPD, MWBind: true, LocalWrite: true})
	readOnly := region(MR{PD: qpPD, MWBind: true})
	for _, c := range []struct {
		window *Window
		to     Range
		want   string
	}{
		{nil, Range{}, "no window of this device has the rkey 0x701"},
		{type1, Range{MR: mr, Addr: 0x1000, Length: 0x100}, ""},
		{type1, Range{MR: mr}, ""},
		{type2, Range{MR: mr}, "a window of type 2 is bound to one byte at least"},
		{type1, Range{LKey: 0x500, Length: 1}, "no MR of this device has the lkey 0x500"},
		{type1, Range{MR: region(MR{PD: otherPD, MWBind: true}), Length: 1}, "the MR is of another PD than the QP"},
		{type1, Range{MR: region(MR{PD: qpPD, LocalWrite: true}), Length: 1}, "the MR does not have AccessMWBind"},
		{type1, Range{MR: readOnly, Addr: 0x1000, Length: 1}, ""},
		{type1, Range{MR: readOnly, Addr: 0x1000, Length: 1, Writing: "REMOTE_WRITE"}, "the MR does not have AccessLocalWrite, which a window with REMOTE_WRITE needs"},
		{type1, Range{MR: mr, Addr: 0x1000, Length: 1, Writing: "REMOTE_WRITE"}, ""},
		{type1, Range{MR: mr, Addr: 0x0fff, Length: 1}, "0xfff+1 is outside the MR, which is 0x1000+256"},
		{type1, Range{MR: mr, Addr: 0x10ff, Length: 2}, "0x10ff+2 is outside the MR, which is 0x1000+256"},
		{type1, Range{MR: mr, Addr: 0x1010, Length: 1<<64 - 1}, "0x1010+18446744073709551615 is outside the MR, which is 0x1000+256"},
		{type1, Range{MR: mr, Addr: 0x10ff, Length: 1}, ""},
		{type1, Range{MR: mr, Addr: 1, Length: 1, ZeroBased: true}, ""},
		{type2, Range{MR: mr, Addr: 0x1000, Length: 1}, "a window of type 2 that is bound must be invalidated before it is bound again"},
		{&Window{Type2: true, PD: otherPD}, Range{MR: mr, Addr: 0x1000, Length: 1}, "the window is of another PD than the QP"},
	} {
		r := &Request{PD: qpPD, Bind: &Bind{OldKey: 0x701, Window: c.window, To: &c.to}}
		if got := r.localFault(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.to, got, c.want)
		}
	}
	if got := (&Request{Bind: &Bind{}}).localFault(); got != "" {
		t.Errorf("a bind whose memory is not known: %q", got)
	}
}

// TestInvalidateFault: why a key cannot be invalidated.
func TestInvalidateFault(t *testing.T) {
	for _, c := range []struct {
		key  Invalidate
		want string
	}{
		{Invalidate{}, "no window of this device has the key 0x701"},
		{Invalidate{IsMR: true}, "the key 0x701 belongs to an MR, which ends with Close"},
		{Invalidate{Window: &Window{RKey: 0x701}}, "the key 0x701 belongs to a window of type 1; a bind of no bytes takes its memory away"},
		{Invalidate{Window: &Window{Type2: true, RKey: 0x702}}, "the key of the window is 0x702, not 0x701"},
		{Invalidate{Window: &Window{Type2: true, RKey: 0x701}}, ""},
	} {
		if got := (&Request{Invalidates: new(uint32(0x701)), Invalidated: &c.key}).localFault(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.key, got, c.want)
		}
	}
}

// TestSGEFault: the first SGE that is wrong is named.
func TestSGEFault(t *testing.T) {
	good := SGE{Addr: 0x1000, Length: 0x100, MR: &MR{Addr: 0x1000, Length: 0x100, PD: 3, LocalWrite: true}}
	for _, c := range []struct {
		writes bool
		change func(e *SGE)
		want   string
	}{
		{true, func(*SGE) {}, ""},
		{false, func(e *SGE) { e.MR, e.LKey = nil, 0x500 }, "no MR of this device has the lkey 0x500 of SGE 1"},
		{false, func(e *SGE) { e.MR, e.LKey, e.IsWindow = nil, 0x500, true }, "the lkey 0x500 of SGE 1 is the key of a memory window, which is for the peer alone"},
		{false, func(e *SGE) { e.MR.PD = 4 }, "the MR of SGE 1 is of another PD than the QP"},
		{false, func(e *SGE) { e.Addr++ }, "SGE 1 is outside its MR, which is 0x1000+256"},
		{false, func(e *SGE) { e.Addr-- }, "SGE 1 is outside its MR, which is 0x1000+256"},
		{false, func(e *SGE) { e.Addr = 1<<64 - 1 }, "SGE 1 is outside its MR, which is 0x1000+256"},
		{true, func(e *SGE) { e.MR.LocalWrite = false }, "the MR of SGE 1 does not have AccessLocalWrite"},
		{false, func(e *SGE) { e.MR.LocalWrite = false }, ""},
	} {
		bad, mr := good, *good.MR
		bad.MR = &mr
		c.change(&bad)
		r := &Request{PD: 3, SGEs: []SGE{good, bad, bad}, Writes: c.writes}
		if got := r.localFault(); got != c.want {
			t.Errorf("%+v: %q, want %q", bad, got, c.want)
		}
	}
}

// TestCompletionHint: each status is explained by the queue, the request and the peer.
func TestCompletionHint(t *testing.T) {
	good, bad := &Request{}, &Request{SGEs: []SGE{{LKey: 5}}}
	const fault = "no MR of this device has the lkey 0x5 of SGE 0"
	peer := &Peer{Attempts: 7, Timeout: time.Second, RNRAttempts: 3, MTU: 1024}
	gone := errors.New("the peer is gone")
	for _, c := range []struct {
		c    Completion
		want string // the hint is empty, or has this
	}{
		{Completion{Status: RetryExcErr, Queue: SendQueue}, "it did not acknowledge after all retries; it is gone,"},
		{Completion{Status: RetryExcErr, Peer: peer}, "for 7 attempts of 1s each; it is gone"},
		{Completion{Status: RetryExcErr, Peer: peer}, "get through (RoCE uses UDP port 4791), at least those of the path MTU, 1024 bytes"},
		{Completion{Status: RetryExcErr, Peer: &Peer{}}, "(RoCE uses UDP port 4791)"},
		{Completion{Status: RetryExcErr, Peer: &Peer{InfiniBand: true}}, "get through (both ports must be in the QPs' partition, and one of them a full member)"},
		{Completion{Status: RNRRetryExcErr}, "it had no receive posted"},
		{Completion{Status: RNRRetryExcErr, Peer: peer}, "it had no receive posted at 3 attempts; the time between them is its MinRNRTimer"},
		{Completion{Status: RemAccessErr}, "is gone, as when the peer ends"},
		{Completion{Status: RetryExcErr, Peer: peer, Request: &Request{Writes: true, Length: 257}}, "at least those of the path MTU, 1024 bytes, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: good}, "the peer's receive may be too short"},
		{Completion{Status: RemOpErr}, "the peer's receive may be too short for the message, or not valid"},
		{Completion{Status: RemInvReqErr}, "the peer's receive may be too short, its QP may not permit the operation or so many READs and atomics at once, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: &Request{Length: 257}}, "the peer's receive may be too short, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: &Request{Remote: true, Length: 257}}, "the peer's QP may not permit the operation, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: &Request{Remote: true, Writes: true}}, "the peer's QP may not permit the operation, or so many READs and atomics at once (MaxDestRdAtomic)"},
		{Completion{Status: RemInvReqErr, SendInv: true}, "the key that it invalidates may not be one of an MR or MW that the peer's QP may invalidate, the peer's"},
		{Completion{Status: LocProtErr, Request: bad}, fault},
		{Completion{Status: LocProtErr, Request: good}, "an SGE is outside its MR, has a wrong lkey, or the MR does not have AccessLocalWrite"},
		{Completion{Status: LocProtErr}, "an SGE is outside its MR"},
		{Completion{Status: MWBindErr, Request: good}, ""},
		{Completion{Status: MWBindErr, Request: bad}, fault},
		{Completion{Status: LocQPOpErr, Request: bad, IWARP: true}, fault},
		{Completion{Status: LocQPOpErr, Request: good, NoRoute: true}, "nothing is wrong with its memory; the device may have no route to the peer"},
		{Completion{Status: LocQPOpErr, Request: good}, "the device does not accept the request: the type or state of the QP may forbid it, and a READ or atomic needs MaxRdAtomic above 0"},
		{Completion{Status: LocQPOpErr, Request: good, IWARP: true}, "nothing is wrong with its memory; the connection has broken"},
		{Completion{Status: LocQPOpErr, Request: good, IWARP: true, Inv: true}, "may not be one of the QP's protection domain"},
		{Completion{Status: LocQPOpErr, Request: good, Inv: true}, "nothing is wrong with its memory; the device does not accept the request"},
		{Completion{Status: LocQPOpErr}, ""},
		{Completion{Status: LocLenErr}, "the message is longer than the buffers of the receive, or, if it is a send, than the device sends"},
		{Completion{Status: LocLenErr, Queue: SendQueue}, "a datagram may be as long as the port's MTU, another message as PortAttr.MaxMsgSize"},
		{Completion{Status: GeneralErr}, ""},

		{Completion{Status: LocLenErr, Queue: RecvQueue}, "the message is longer than the buffers of the receive"},
		{Completion{Status: LocQPOpErr, Queue: RecvQueue}, "the message is longer than the buffers of the receive (a datagram needs 40 bytes more), or an SGE"},
		{Completion{Status: GeneralErr, Queue: RecvQueue}, "the connection broke while the message arrived"},
		{Completion{Status: RetryExcErr, Queue: RecvQueue}, ""},

		{Completion{Status: WRFlushErr, Cause: gone, Queue: SendQueue, Request: bad}, "the peer is gone; sends that were still posted are flushed"},
		{Completion{Status: WRFlushErr, Cause: gone, IWARP: true}, "the peer is gone; requests that were still posted are flushed"},
		{Completion{Status: WRFlushErr, Request: bad}, fault},
		{Completion{Status: WRFlushErr, Queue: RecvQueue}, "the device moved the QP to state ERR, and no completion that was polled says why; an asynchronous event of the QP may (Device.WaitEvent), or the completion of a send"},
		{Completion{Status: WRFlushErr, Queue: SendQueue, Request: good}, "some kernels say no more of a send that they cannot execute"},
		{Completion{Status: WRFlushErr, Queue: RecvQueue, IWARP: true}, "the connection has ended: the peer disconnected, closed its QP or is gone, or this side refused a message of the peer; receives that"},
	} {
		if got := c.c.Hint(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%+v: %q, want %q", c.c, got, c.want)
		}
	}
}

// TestLocalPeer: what a peer in this process knows of a request that failed.
func TestLocalPeer(t *testing.T) {
	for _, c := range []struct {
		peer LocalPeer
		want string
	}{
		{LocalPeer{Recvs: 2}, "QP 17 of rxe0 has 2 receives posted now"},
		{LocalPeer{SharedRecvs: true, MinRNRTimer: time.Second}, "QP 17 of rxe0 has 0 receives posted in its SRQ now and a MinRNRTimer of 1s"},
	} {
		c.peer.Name = "QP 17 of rxe0"
		if got := c.peer.RecvText(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	r := &Request{Op: "RDMA_WRITE", RemoteAddr: 0x1000, Length: 0x100, RKey: 0x701}
	mr := &MR{Addr: 0x1000, Length: 0x100, PD: 3, Access: "REMOTE_READ"}
	for _, c := range []struct {
		peer LocalPeer
		want string
	}{
		{LocalPeer{QPAccess: "0", MR: mr}, " does not permit RDMA_WRITE: its access is 0"},
		{LocalPeer{QPPermits: true}, ": no MR and no memory window has rkey 0x701"},
		{LocalPeer{QPPermits: true, Window: &Window{RKey: 0x702}}, ": rkey 0x701 was that of a memory window of type 1, which has 0x702 now"},
		{LocalPeer{QPPermits: true, Window: &Window{RKey: 0x701, Type2: true}}, ": rkey 0x701 belongs to a memory window of type 2, which its last bind limits"},
		{LocalPeer{QPPermits: true, MR: mr, PD: 4}, ": the MR with rkey 0x701 is of another PD than this QP"},
		{LocalPeer{QPPermits: true, MR: &MR{Addr: 0x1001, Length: 0x100, PD: 3}}, ": the MR with rkey 0x701 is 0x1001+256, and 0x1000+256 is outside"},
		{LocalPeer{QPPermits: true, MR: mr, Right: "REMOTE_WRITE"}, ": the MR with rkey 0x701 does not have REMOTE_WRITE: its access is REMOTE_READ"},
		{LocalPeer{QPPermits: true, MR: mr, MRPermits: true}, ": the MR with rkey 0x701 permits it now"},
	} {
		c.peer.Name = "QP 17"
		if c.peer.PD == 0 {
			c.peer.PD = 3
		}
		if got := c.peer.MemoryText(r); got != "QP 17"+c.want {
			t.Errorf("%q, want %q", got, "QP 17"+c.want)
		}
	}
}
