package conformance

import (
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// to is a state for Modify.
func to(s ib.QPState) uverbs.QPAttr { return uverbs.QPAttr{State: s, Port: 1} }

// createQP tries to create a QP with options, with type reliable and CQs unless the options have some.
func createQP(s *side, o uverbs.QPOptions) error {
	if o.SendCQ == nil {
		o.SendCQ, o.RecvCQ = s.cq, s.cq
	}
	if o.Type == 0 {
		o.Type = reliable
	}
	_, err := s.pd.CreateQP(o)
	return err
}

// second returns the error of a call that returns something else, too.
func second[T any](_ T, err error) error { return err }

// post is a call that posts a work request that change has made wrong.
func post(change func(wr *uverbs.SendWR, a, b *side)) func(t *testing.T, a, b *side) error {
	return func(t *testing.T, a, b *side) error {
		wr := write(a, b)
		change(&wr, a, b)
		return a.qp.PostSend(wr)
	}
}

// ud is a row's options for a UD QP.
var ud = uverbs.QPOptions{Type: ib.UD}

// callMistakes are calls that fail. A call that only the library refuses needs no command of the kernel.
var callMistakes = []mistake{
	// Posting.
	{name: "send in state INIT", efa: "QPs that are not ready", alone: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.PostSend(send(1, a.mr.SGE(0, 100)))
	}, mine: "not in a state to post: ... is in INIT, sends need RTS: Connect",
		on: map[string]string{"siw": "not in a state to post: ... is in INIT, sends need RTS: package cm connects it"}},
	{name: "receive in state RESET", alone: true, call: func(t *testing.T, a, b *side) error {
		must(t, a.qp.Modify(to(ib.QPReset), uverbs.AttrState))
		return a.qp.PostRecv(1)
	}, ib: true, mine: "not in a state to post: ... is in RESET, receives need INIT: call Init first"},
	{name: "too many SGEs", call: func(t *testing.T, a, b *side) error {
		wr := send(1)
		for range a.qp.Caps().MaxSendSGE + 1 {
			wr.SGL = append(wr.SGL, a.mr.SGE(0, 1))
		}
		return a.qp.PostSend(wr)
	}, mine: "work request 0: SGL: too many SGEs for this QP: ... allowed: up to "},
	{name: "too many SGEs of a receive", call: func(t *testing.T, a, b *side) error {
		return a.qp.PostRecv(1, slices.Repeat([]uverbs.SGE{a.mr.SGE(0, 1)}, a.qp.Caps().MaxRecvSGE+1)...)
	}, mine: "SGL: too many SGEs for this QP: ... allowed: up to "},
	{name: "inline data too long", call: post(func(wr *uverbs.SendWR, a, b *side) {
		wr.SGL, wr.Inline = nil, make([]byte, a.qp.Caps().MaxInline+1)
	}), mine: "Inline: inline data too long for this QP: ... bytes, allowed: up to "},
	{name: "inline data and SGEs", call: post(func(wr *uverbs.SendWR, a, b *side) { wr.Inline = []byte{1} }),
		mine: "Inline: inline data cannot be combined with SGEs"},
	{name: "SGE longer than its MR", call: post(func(wr *uverbs.SendWR, a, b *side) { wr.SGL[0] = a.mr.SGE(10, bufferSize) }),
		mine: "SGL: an SGE is outside its MR: SGE 0 is 65536 bytes at offset 10, the MR has 65536 bytes"},
	{name: "receive longer than its MR", call: func(t *testing.T, a, b *side) error { return a.qp.PostRecv(1, a.mr.SGE(0, bufferSize+1)) },
		mine: "SGL: an SGE is outside its MR: SGE 0 is 65537 bytes at offset 0, the MR has 65536 bytes"},
	{name: "unknown operation", call: post(func(wr *uverbs.SendWR, a, b *side) { wr.Opcode = 77 }),
		mine: "Opcode: this type of QP does not support the operation: "},
	{name: "unknown flag", call: post(func(wr *uverbs.SendWR, a, b *side) { wr.Flags = 1 << 7 }), mine: "Flags: unknown send flag"},
	{name: "atomic of 4 bytes", ib: true, atomics: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.PostSend(request(a, b, uverbs.WRFetchAdd, a.mr.SGE(0, 4), b.mr.Addr(), b.mr.RKey()))
	}, mine: "SGL: an atomic needs SGEs of 8 bytes together: 4 bytes"},
	{name: "atomic at an odd address", ib: true, atomics: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.PostSend(request(a, b, uverbs.WRFetchAdd, a.mr.SGE(0, 8), b.mr.Addr()+1, b.mr.RKey()))
	}, mine: "RemoteAddr: the remote address of an atomic must be a multiple of 8: 0x"},
	{name: "address handle on RC", efa: "connections", ib: true, call: func(t *testing.T, a, b *side) error {
		wr := send(1)
		wr.AH = wayTo(t, a, b)
		return a.qp.PostSend(wr)
	}, mine: "AH: only UD and SRD QPs and DCIs take an AH"},
	{name: "datagram without an address handle", o: ud, call: func(t *testing.T, a, b *side) error { return a.qp.PostSend(send(1)) },
		mine: "AH: a datagram or a request of a DCI needs an open AH"},
	{name: "WRITE on UD", o: ud, call: func(t *testing.T, a, b *side) error { return a.qp.PostSend(write(a, b)) },
		mine: "Opcode: this type of QP does not support the operation: RDMA_WRITE of a QP of type UD"},
	{name: "receive queue full", call: func(t *testing.T, a, b *side) (err error) {
		for err == nil {
			err = a.qp.PostRecv(1)
		}
		return err
	}, mine: "queue full: poll the CQ"},
	{name: "batch longer than the queue", call: func(t *testing.T, a, b *side) error {
		return a.qp.PostRecvs(make([]uverbs.RecvWR, a.qp.Caps().MaxRecvWR+1)...)
	}, mine: "number of work requests is ... allowed: up to ... the size of the queue"},
	{name: "receive of a QP with an SRQ", alone: true, call: func(t *testing.T, a, b *side) error {
		_, srq := newSRQ(t, a.dev, uverbs.SRQOptions{})
		qp, err := a.pd.CreateQP(uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq, SRQ: srq})
		must(t, err)
		closeLater(t, qp)
		must(t, qp.Init())
		return qp.PostRecv(1)
	}, mine: "no receive queue of its own: post to its SRQ"},
	{name: "too many SGEs for an SRQ", alone: true, call: func(t *testing.T, a, b *side) error {
		_, srq := newSRQ(t, a.dev, uverbs.SRQOptions{})
		return srq.PostRecv(1, slices.Repeat([]uverbs.SGE{a.mr.SGE(0, 1)}, srq.Attr().MaxSGE+1)...)
	}, mine: "too many SGEs for this QP: ... allowed: up to "},

	// Connecting.
	{name: "connected already", efa: "connections", ib: true, call: func(t *testing.T, a, b *side) error {
		e, err := b.qp.Endpoint()
		must(t, err)
		return a.qp.Connect(t.Context(), e)
	}, mine: "Modify RC QP in RTS: State is RTR, allowed: RESET, RTS, SQD, ERR; it is connected or ready already: Modify it to RESET first"},
	{name: "Init of a connected QP", efa: "connections", ib: true, call: func(t *testing.T, a, b *side) error { return a.qp.Init() },
		mine: "it is connected or ready already: Modify it to RESET first"},
	{name: "Connect of UD", o: ud, call: func(t *testing.T, a, b *side) error {
		return a.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 17, GID: ib.GID{15: 1}})
	},
		mine: "Connect: QP type is UD, allowed: a connected type; use ReadyUD"},
	{name: "ReadyUD of RC", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error { return a.qp.ReadyUD(1) },
		mine: "ReadyUD: QP type is RC, allowed: UD, SRD or RawPacket; use mlx5.ReadyDC"},
	{name: "ReadyUD twice", o: ud, call: func(t *testing.T, a, b *side) error { return a.qp.ReadyUD(testQKey) },
		mine: "it is connected or ready already: Modify it to RESET first"},
	{name: "states out of order", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.Modify(to(ib.QPRTS), uverbs.AttrState)
	}, mine: "Modify RC QP in INIT: State is RTS, allowed: RESET, INIT, RTR, ERR"},
	{name: "attributes left out", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.Modify(to(ib.QPRTR), uverbs.AttrState|uverbs.AttrPathMTU)
	}, mine: "Modify RC QP in INIT to RTR: mask is missing AV, RQPSN, MinRNRTimer, MaxDestRdAtomic, DestQPN; it has PathMTU"},
	{name: "attribute too many", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.Modify(to(ib.QPErr), uverbs.AttrState|uverbs.AttrQKey)
	}, mine: "Modify RC QP in INIT to ERR: mask is of superfluous QKey; it has QKey"},
	{name: "P_Key index past the table", efa: "QPs that are not ready", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		attr := to(ib.QPInit)
		attr.PKeyIndex = 5000
		return a.qp.Modify(attr, uverbs.AttrState|uverbs.AttrPKeyIndex)
	}, mine: "Modify: PKeyIndex is 5000, allowed: 0 to ... the P_Key table of port 1"},
	{name: "port that there is not", efa: "QPs that are not ready", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		attr := to(ib.QPInit)
		attr.Port = 77
		return a.qp.Modify(attr, uverbs.AttrState|uverbs.AttrPort)
	}, mine: "Modify: Port is 77, allowed: 1 to 1"},
	{name: "too many READs at once", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		attr := to(ib.QPRTR)
		attr.MaxDestRdAtomic = 255
		return a.qp.Modify(attr, uverbs.AttrState|uverbs.AttrAH|uverbs.AttrPathMTU|uverbs.AttrDestQPN|uverbs.AttrRQPSN|uverbs.AttrMaxDestRdAtomic|uverbs.AttrMinRNRTimer)
	}, mine: "Modify: MaxDestRdAtomic is 255, allowed: 0 to "},
	{name: "no GID of the peer", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		if rig.InfiniBand() { // there a LID is enough
			return a.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 1 << 24, LID: 1})
		}
		return a.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 17})
	}, mine: " is ... allowed: ", on: map[string]string{"soft": "Connect: remote GID is zero, allowed: the peer's GID, which RoCE needs",
		"rxe": "Connect: remote GID is zero, allowed: the peer's GID, which RoCE needs"}},
	{name: "peer's number too large", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 1 << 24, GID: gidOf(t, a.dev).GID})
	}, mine: "is 16777216, allowed: 0 to 16777215"},
	{name: "path MTU above the port's", efa: "connections", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		port, err := a.dev.Port(1)
		must(t, err)
		if port.ActiveMTU == ib.MTU4096 { // there is none above
			return second(a.pd.CreateQP(uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq, Path: uverbs.PathOptions{MTU: ib.MTU4096 + 1}}))
		}
		return second(newSide(t, a.dev, uverbs.QPOptions{Path: uverbs.PathOptions{MTU: ib.MTU4096}}).qp.Endpoint())
	}, mine: "Path.MTU is 4096, allowed: up to ... the active MTU of port 1",
		on: map[string]string{"soft": "Path.MTU is 6, allowed: 1 to 5", "mlx5": "Path.MTU is "}},
	{name: "right that a QP does not have", efa: "rights of QPs", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		return a.qp.Modify(uverbs.QPAttr{Access: 1 << 19}, uverbs.AttrAccess)
	}, mine: "Modify: Access is ... allowed: "},
	{name: "port of an address handle", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		return second(a.pd.CreateAH(uverbs.AHAttr{Port: 9}))
	}, mine: "CreateAH: Port is 9, allowed: 1 to 1"},
	{name: "multicast group that is none", o: ud, call: func(t *testing.T, a, b *side) error {
		return a.qp.AttachMulticast(ib.GID{15: 1}, 0)
	}, mine: "ATTACH_MCAST: GID is ::1, allowed: a multicast address"},

	// Creating.
	{name: "CQ larger than the device's", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.dev.CreateCQ(uverbs.CQOptions{Size: int(a.dev.Attr().MaxCQE) + 1}))
	}, mine: "CreateCQ: Size is ... allowed: 1 to ... max_cqe of "},
	{name: "vector that there is not", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.dev.CreateCQ(uverbs.CQOptions{Vector: 1 << 20}))
	}, mine: "CreateCQ: Vector is 1048576, allowed: 0 to "},
	{name: "QP without CQ", alone: true, call: func(t *testing.T, a, b *side) error { return second(a.pd.CreateQP(uverbs.QPOptions{Type: reliable})) },
		mine: "CreateQP: SendCQ is nil, allowed: "},
	{name: "unknown type of QP", alone: true, call: func(t *testing.T, a, b *side) error { return createQP(a, uverbs.QPOptions{Type: 77}) },
		mine: "CreateQP: Type is ... allowed: "},
	{name: "send queue too long", alone: true, call: func(t *testing.T, a, b *side) error {
		return createQP(a, uverbs.QPOptions{MaxSendWR: int(a.dev.Attr().MaxQPWR) + 1})
	}, mine: "CreateQP: MaxSendWR is ... allowed: "},
	{name: "receive queue too long", alone: true, call: func(t *testing.T, a, b *side) error {
		return createQP(a, uverbs.QPOptions{MaxRecvWR: int(a.dev.Attr().MaxQPWR) + 1})
	}, mine: "CreateQP: MaxRecvWR is ... allowed: "},
	{name: "more SGEs than the device's", alone: true, call: func(t *testing.T, a, b *side) error {
		return createQP(a, uverbs.QPOptions{MaxSendSGE: int(a.dev.Attr().MaxSGE) + 1})
	}, mine: "CreateQP: MaxSendSGE is ... allowed: "},
	{name: "more inline data than the device's", alone: true, call: func(t *testing.T, a, b *side) error {
		return createQP(a, uverbs.QPOptions{MaxInline: 1 << 15})
	}, mine: "CreateQP: MaxInline is 32768, allowed: "},
	{name: "port of a QP", alone: true, call: func(t *testing.T, a, b *side) error {
		return createQP(a, uverbs.QPOptions{Path: uverbs.PathOptions{Port: 9}})
	}, mine: "CreateQP: Path.Port is 9, allowed: "},
	{name: "CQ of another device", alone: true, call: func(t *testing.T, a, b *side) error {
		cq, err := openDevice(t, deviceName).CreateCQ(uverbs.CQOptions{Size: 8})
		must(t, err)
		closeLater(t, cq)
		return createQP(a, uverbs.QPOptions{SendCQ: cq, RecvCQ: a.cq})
	}, mine: "create QP: CQ is an object of another Open of ... allowed: objects of "},
	{name: "SRQ too long", efa: "SRQ", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: int(a.dev.Attr().MaxSRQWR) + 1}))
	}, mine: "CreateSRQ: MaxWR is ... allowed: "},
	{name: "limit above the SRQ", alone: true, call: func(t *testing.T, a, b *side) error {
		_, srq := newSRQ(t, a.dev, uverbs.SRQOptions{})
		return srq.SetLimit(srq.Attr().MaxWR + 1)
	}, mine: "SetLimit: limit is ... allowed: 0 to ... the size of the SRQ"},
	{name: "REMOTE_WRITE without LOCAL_WRITE", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.pd.RegMR(a.buf, uverbs.MROptions{Access: uverbs.AccessRemoteWrite}))
	}, mine: "RegMR: ... REMOTE_WRITE ... LOCAL_WRITE"},
	{name: "memory past the buffer", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.pd.RegMR(a.buf, uverbs.MROptions{Offset: 10, Length: bufferSize}))
	}, mine: "RegMR: ... allowed: "},
	{name: "memory that is not mapped", alone: true, call: func(t *testing.T, a, b *side) error {
		// The kernel fills a gap from its end: what another goroutine maps meanwhile is not at the beginning of a large one.
		mem, err := syscall.Mmap(-1, 0, 1<<30, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		must(t, err, syscall.Munmap(mem))
		return second(a.pd.RegSlice(mem[:32768], uverbs.AccessLocalWrite))
	}, mine: "bad address: the memory at 0x ... is not mapped; given: 32768 bytes at"},
	{name: "memory that is not writable", alone: true, call: func(t *testing.T, a, b *side) error {
		mem, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		must(t, err)
		t.Cleanup(func() { must(t, syscall.Munmap(mem)) })
		return second(a.pd.RegSlice(mem, uverbs.AccessLocalWrite))
	}, mine: "bad address: the memory at 0x ... is not writable (r--p); "},

	// Closing.
	{name: "PD in use", alone: true, call: func(t *testing.T, a, b *side) error { return a.pd.Close() },
		mine: "DEALLOC_PD: device or resource busy: still used by 1 MR, 1 QP; close them first"},
	{name: "CQ in use", alone: true, call: func(t *testing.T, a, b *side) error { return a.cq.Close() },
		mine: "device or resource busy: still used by ... QP; close them first"},
	{name: "memory in use", alone: true, call: func(t *testing.T, a, b *side) error { return a.buf.Close() },
		mine: "still registered as 1 MR; close them first"},
	{name: "QP that is closed", alone: true, call: func(t *testing.T, a, b *side) error {
		qp, err := a.pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: a.cq, RecvCQ: a.cq})
		must(t, err, qp.Close())
		return qp.PostSend(send(1))
	}, mine: "QP ... file already closed"},
	{name: "CQ that is closed", alone: true, call: func(t *testing.T, a, b *side) error {
		cq, err := a.dev.CreateCQ(uverbs.CQOptions{Size: 8})
		must(t, err, cq.Close())
		return second(cq.Poll(make([]uverbs.WC, 1)))
	}, mine: "CQ ... file already closed"},
}
