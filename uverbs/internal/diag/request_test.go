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
		{Completion{Status: RetryExcErr, Queue: SendQueue}, "no acknowledgement; likely the peer is gone, or its QP is not ready"},
		{Completion{Status: RetryExcErr, Peer: peer}, "no acknowledgement for 7 attempts of 1s each; likely the peer is gone"},
		{Completion{Status: RetryExcErr, Peer: peer}, "get through (RoCE uses UDP port 4791, a software device may have another), at least those of the path MTU, 1024 bytes"},
		{Completion{Status: RetryExcErr, Peer: &Peer{}}, "(RoCE uses UDP port 4791, a software device may have another)"},
		{Completion{Status: RetryExcErr, Peer: &Peer{InfiniBand: true}}, "get through (both ports must be in the QPs' partition, and one of them a full member)"},
		{Completion{Status: RNRRetryExcErr}, "the peer had no receive posted; it must post receives"},
		{Completion{Status: RNRRetryExcErr, Peer: peer}, "the peer had no receive posted at 3 attempts; it must"},
		{Completion{Status: RemAccessErr}, "the peer's memory does not permit it; likely the rkey, the range or the access right is wrong, or its MR or MW is gone"},
		{Completion{Status: RetryExcErr, Peer: peer, Request: &Request{Writes: true, Length: 257}}, "at least those of the path MTU, 1024 bytes, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: good}, "the peer's receive is likely too short for the 0 bytes; the peer's completion of it says more"},
		{Completion{Status: RemOpErr}, "the peer's receive is likely too short; or an SGE of it is wrong (lkey, range, LOCAL_WRITE, MR closed)"},
		{Completion{Status: RemInvReqErr}, "the peer's receive is likely too short; or its QP does not permit the operation or so many READs and atomics at once, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: &Request{Length: 257}}, "the peer's receive is likely too short for the 257 bytes; the peer's completion of it says more, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: &Request{Op: "X", Remote: true, Length: 257}}, "the peer's QP likely does not permit X; see PathOptions.Access or QPAttr.Access there, or the peer has another path MTU"},
		{Completion{Status: RemInvReqErr, Request: &Request{Op: "X", Remote: true, Writes: true}}, "the peer's QP likely does not permit X; or not so many READs and atomics at once (MaxDestRdAtomic)"},
		{Completion{Status: RemInvReqErr, SendInv: true}, "the key that it invalidates is likely not valid there; it must be one of an MR or MW that the peer's QP may invalidate; or the peer's"},
		{Completion{Status: LocProtErr, Request: bad}, fault},
		{Completion{Status: LocProtErr, Request: good}, "an SGE is not valid; it is outside its MR, has a wrong lkey, or the MR does not have AccessLocalWrite"},
		{Completion{Status: LocProtErr, Request: good, OldRoute: true}, NoRoute},
		{Completion{Status: LocProtErr, Request: &Request{Op: "RDMA_READ", Writes: true}, OldRoute: true}, "an SGE is not valid; it"},
		{Completion{Status: LocProtErr, Request: good, NoRoute: true}, "an SGE is not valid; it"},
		{Completion{Status: LocLenErr, Queue: SendQueue, Request: &Request{Length: 1025}, Datagram: true, MTU: 1024}, "the datagram of 1025 bytes exceeds the port's MTU of 1024 bytes"},
		{Completion{Status: LocLenErr, Queue: SendQueue, Request: &Request{Length: 1024}, Datagram: true, MTU: 1024}, tooLongSend},
		{Completion{Status: LocLenErr, Queue: SendQueue, Request: &Request{Length: 1025}, Datagram: true}, tooLongSend},
		{Completion{Status: LocProtErr}, "an SGE is not valid; it"},
		{Completion{Status: MWBindErr, Request: good}, ""},
		{Completion{Status: MWBindErr, Request: bad}, fault},
		{Completion{Status: LocQPOpErr, Request: bad, IWARP: true}, fault},
		{Completion{Status: LocQPOpErr, Request: good, NoRoute: true}, "the device likely has no route to the peer; nothing is wrong with the memory"},
		{Completion{Status: LocQPOpErr, Request: &Request{Writes: true}, Peer: &Peer{NoReads: true}}, "the QP sends no READ or atomic, as its MaxRdAtomic is 0; set it"},
		{Completion{Status: LocQPOpErr, Request: good, IWARP: true}, "the connection has broken, as when the peer is gone; its memory is right"},
		{Completion{Status: LocQPOpErr, Request: good, IWARP: true, Inv: true}, "may not be one of the QP's protection domain"},
		{Completion{Status: LocQPOpErr, Request: good, Inv: true}, "the device does not accept the request; its memory is right, so likely the type or state of the QP forbids it"},
		{Completion{Status: LocQPOpErr}, ""},
		{Completion{Status: LocLenErr}, "the message is longer than the receive; or, if it is a send, than the device sends"},
		{Completion{Status: LocLenErr, Queue: SendQueue}, "a datagram may be as long as the port's MTU, another message as PortAttr.MaxMsgSize"},
		{Completion{Status: GeneralErr}, ""},

		{Completion{Status: LocLenErr, Queue: RecvQueue}, "the message is longer than the receive"},
		{Completion{Status: LocLenErr, Queue: RecvQueue, Request: &Request{Length: 10, SGEs: bad.SGEs}}, "the receive of 10 bytes is too short"},
		{Completion{Status: LocQPOpErr, Queue: RecvQueue, Request: bad}, fault},
		{Completion{Status: LocProtErr, Queue: RecvQueue, Request: bad}, fault},
		{Completion{Status: LocProtErr, Queue: RecvQueue, Request: good}, "the memory of the receive is not valid; an SGE"},
		{Completion{Status: LocQPOpErr, Queue: RecvQueue, Request: good, Datagram: true}, "the receive of 0 bytes is too short; a datagram needs 40 bytes more than its data, at the beginning, for the GRH"},
		{Completion{Status: LocQPOpErr, Queue: RecvQueue}, "the message is likely longer than the receive; or an SGE"},
		{Completion{Status: GeneralErr, Queue: RecvQueue}, "the connection broke while the message arrived"},
		{Completion{Status: RetryExcErr, Queue: RecvQueue}, ""},

		{Completion{Status: WRFlushErr, Cause: gone, Queue: SendQueue, Request: bad}, "the peer is gone; sends that were still posted are flushed"},
		{Completion{Status: WRFlushErr, Cause: gone, IWARP: true}, "the peer is gone; requests that were still posted are flushed"},
		{Completion{Status: WRFlushErr, Request: bad}, fault},
		{Completion{Status: WRFlushErr, Queue: RecvQueue}, "the device moved the QP to state ERR; no completion polled so far says why; an asynchronous event of the QP may (Device.NextEvent), or the completion of a send"},
		{Completion{Status: WRFlushErr, Queue: SendQueue, Request: good}, "some kernels say no more of a send that they cannot execute"},
		{Completion{Status: WRFlushErr, Queue: RecvQueue, IWARP: true}, "the connection has ended; the peer disconnected, closed its QP or is gone, or this side refused a message of the peer; receives that"},
	} {
		got := c.c.Hint()
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%+v: %q, want %q", c.c, got, c.want)
		}
		if first, _, _ := strings.Cut(got, "; "); len(first) > 75 {
			t.Errorf("%+v: the first sentence, %q, has %d characters, want up to 75", c.c, first, len(first))
		}
	}
}

// TestLocalPeer: what a peer in this process knows of a request that failed.
func TestLocalPeer(t *testing.T) {
	for _, c := range []struct {
		peer LocalPeer
		want string
	}{
		{LocalPeer{Recvs: 2}, "the peer has 2 receives posted now"},
		{LocalPeer{SharedRecvs: true, MinRNRTimer: time.Second}, "the peer has 0 receives posted in its SRQ now and a MinRNRTimer of 1s"},
	} {
		c.peer.Name = "QP 17 of rxe0"
		if got := c.peer.RecvText(); got != c.want+"; the peer is QP 17 of rxe0, of this program" {
			t.Errorf("%q, want %q and who it is", got, c.want)
		}
	}
	r := &Request{Op: "RDMA_WRITE", RemoteAddr: 0x1000, Length: 0x100, RKey: 0x701}
	mr := &MR{Addr: 0x1000, Length: 0x100, PD: 3, Access: "REMOTE_READ"}
	for _, c := range []struct {
		peer LocalPeer
		want string
	}{
		{LocalPeer{QPAccess: "0", MR: mr}, "the peer's QP does not permit RDMA_WRITE; its access is 0"},
		{LocalPeer{QPPermits: true}, "no MR and no memory window of the peer has rkey 0x701"},
		{LocalPeer{QPPermits: true, Window: &Window{RKey: 0x702}}, "rkey 0x701 was that of a memory window of type 1; it has 0x702 now"},
		{LocalPeer{QPPermits: true, Window: &Window{RKey: 0x701, Type2: true}}, "rkey 0x701 belongs to a memory window of type 2, which its last bind limits"},
		{LocalPeer{QPPermits: true, MR: mr, PD: 4}, "the peer's MR with rkey 0x701 is of another PD than its QP"},
		{LocalPeer{QPPermits: true, MR: &MR{Addr: 0x1001, Length: 0x100, PD: 3}}, "0x1000+256 is outside the peer's MR, 0x1001+256"},
		{LocalPeer{QPPermits: true, MR: mr, Right: "REMOTE_WRITE"}, "the peer's MR with rkey 0x701 does not have REMOTE_WRITE; its access is REMOTE_READ"},
		{LocalPeer{QPPermits: true, MR: mr, MRPermits: true}, "the peer's MR with rkey 0x701 permits it now"},
	} {
		c.peer.Name = "QP 17"
		if c.peer.PD == 0 {
			c.peer.PD = 3
		}
		if got, wrong := c.peer.MemoryText(r); got != c.want+"; the peer is QP 17, of this program" || wrong == c.peer.MRPermits {
			t.Errorf("%q, %v, want %q and who it is", got, wrong, c.want)
		}
	}
}
