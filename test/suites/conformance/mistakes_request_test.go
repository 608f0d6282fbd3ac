package conformance

import (
	"slices"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// mistakes is the table of all mistakes.
var mistakes = slices.Concat(requestMistakes, callMistakes, hostMistakes)

// noNak is what a request gets that rxe before Linux 6.0 does not answer.
const noNak = "transport retry counter exceeded: "

// fast gives up on a peer soon.
var unready = uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 18, RNRRetry: 1, MinRNRTimer: 1}} // only what is not ready may end it
var fast = uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 12, RetryCount: 2, RNRRetry: 1, MinRNRTimer: 1}}

// badOnEFA is what a message gets in the model of EFA whose receive is at fault.
var badOnEFA = map[string]string{"efa": "bad response; ... the peer has answered with an unknown status"}

// requestMistakes are work requests that fail.
var requestMistakes = []mistake{
	{name: "receive too short", on: map[string]string{"efa": "the peer's receive is too short", "their efa": ""}, o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.PostRecv(9, b.mr.SGE(0, 10)))
		return send(1, a.mr.SGE(0, 100))
	}, mine: "at the peer: the receive of 10 bytes is too short; ... SEND of 100 bytes",
		far:    "the peer's receive is likely too short for the 100 bytes",
		theirs: "the receive of 10 bytes is too short; work request 9 (receive"},
	{name: "wrong rkey", o: refusing, ib: true, old: noNak, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := write(a, b)
		wr.RKey ^= 0x5500
		return wr
	}, mine: "remote access error: no MR and no memory window of the peer has rkey 0x ... the peer is QP ... RDMA_WRITE of 100 bytes",
		far: "remote access error: the peer's memory does not permit it; likely ... rkey"},
	{name: "past the end of the peer's MR", o: refusing, ib: true, old: noNak, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := read(a, b)
		wr.RemoteAddr += bufferSize - 50
		return wr
	}, mine: "remote access error: 0x ... +100 is outside the peer's MR, 0x ... +65536; "},
	{name: "key of a closed MR", o: refusing, ib: true, old: noNak, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: remoteRights})
		must(t, err)
		wr := write(a, b)
		wr.RKey = mr.RKey()
		must(t, mr.Close())
		return wr
	}, mine: "no MR and no memory window of the peer has rkey 0x"},
	{name: "no REMOTE_WRITE", o: refusing, ib: true, old: noNak, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := write(a, b)
		wr.RKey = other(t, b, uverbs.AccessLocalWrite|uverbs.AccessRemoteRead).RKey()
		return wr
	}, mine: "remote access error: the peer's MR with rkey 0x ... does not have REMOTE_WRITE; its access is LOCAL_WRITE|REMOTE_READ"},
	{name: "peer's MR of another PD", o: refusing, ib: true, old: noNak, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := write(a, b)
		wr.RemoteAddr, wr.RKey = a.mr.Addr(), a.mr.RKey()
		return wr
	}, mine: "remote access error: the peer's MR ... is of another PD than its QP"},
	{name: "wrong lkey", o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := send(1, a.mr.SGE(0, 100))
		wr.SGL[0].LKey ^= 0x5500
		return wr
	}, mine: "no MR of this device has the lkey 0x"},
	{name: "SGE past the end", o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := send(1, a.mr.SGE(bufferSize-50, 50))
		wr.SGL[0].Length = 100
		return wr
	}, mine: "SGE 0 is outside its MR, which is 0x ... +65536"},
	{name: "MR of another PD", o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		return send(1, b.mr.SGE(0, 100))
	}, mine: "the MR of SGE 0 is of another PD than the QP"},
	{name: "READ into memory without LOCAL_WRITE", o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := read(a, b)
		wr.SGL[0] = other(t, a, 0).SGE(0, 100)
		return wr
	}, mine: "the MR of SGE 0 does not have AccessLocalWrite"},
	{name: "receive into memory without LOCAL_WRITE", on: badOnEFA, o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.PostRecv(9, other(t, b, 0).SGE(0, 1000)))
		return send(1, a.mr.SGE(0, 100))
	}, mine: "remote operation error: at the peer: the MR of SGE 0 does not have AccessLocalWrite", far: "the peer's receive is likely too short",
		theirs: "the MR of SGE 0 does not have AccessLocalWrite"},
	{name: "atomic without REMOTE_ATOMIC", o: refusing, ib: true, atomics: true, old: noNak, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := request(a, b, uverbs.WRFetchAdd, a.mr.SGE(0, 8), b.mr.Addr(), other(t, b, remoteRights).RKey())
		return wr
	}, mine: "remote access error: the peer's MR with rkey 0x ... does not have REMOTE_ATOMIC; its access is LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ"},
	{name: "peer's QP without the right", efa: "rights of QPs", o: refusing, ib: true, old: noNak, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.Modify(uverbs.QPAttr{Access: uverbs.AccessRemoteRead}, uverbs.AttrAccess))
		return write(a, b)
	}, mine: "the peer's QP does not permit RDMA_WRITE; its access is REMOTE_READ", far: "the peer's QP likely does not permit RDMA_WRITE; "},
	{name: "datagram into a receive without room for the GRH", o: ud, lost: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.PostRecv(9, b.mr.SGE(0, 64)))
		return datagram(1, wayTo(t, a, b), b, a.mr.SGE(0, 64))
	}, theirs: "the receive of 64 bytes is too short; a datagram needs 40 bytes more than its data, at the beginning, for the GRH"},
	{name: "receive that is shorter than a GRH", o: ud, lost: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.PostRecv(9, b.mr.SGE(0, uverbs.GRHSize-1)))
		return datagram(1, wayTo(t, a, b), b)
	}, theirs: "the receive of 39 bytes is too short; a datagram needs 40 bytes more than its data, at the beginning, for the GRH"},
	{name: "datagram above the port's MTU", efa: "an MTU below 5000 bytes", o: ud, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		return datagram(1, wayTo(t, a, b), b, a.mr.SGE(0, 5000))
	}, mine: "local length error: the datagram of 5000 bytes exceeds the port's MTU of ... bytes; ", on: map[string]string{"rxe": ""}}, // which drops it
	{name: "receive of an SRQ too short", efa: "SRQ", ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		_, srq := newSRQ(t, a.dev, uverbs.SRQOptions{})
		o := refusing
		o.SRQ = srq
		*a, *b = *newSide(t, a.dev, refusing), *newSide(t, a.dev, o)
		connect(t, a, b)
		must(t, srq.PostRecv(9, b.mr.SGE(0, 10)))
		return send(1, a.mr.SGE(0, 100))
	}, mine: "receive", far: "the peer's receive is likely too short for the 100 bytes", theirs: "too short",
		on: map[string]string{"their mlx5": "longer than the receive"}},
	{name: "memory of a receive of another PD", on: badOnEFA, o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.PostRecv(9, a.mr.SGE(0, 1000)))
		return send(1, a.mr.SGE(0, 100))
	}, mine: "remote operation error: at the peer: the MR of SGE 0 is of another PD than the QP", theirs: "the MR of SGE 0 is of another PD than the QP"},
	{name: "receive past its MR", on: badOnEFA, o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.PostRecv(9, uverbs.SGE{Addr: b.mr.Addr() + bufferSize - 4, Length: 1000, LKey: b.mr.LKey()}))
		return send(1, a.mr.SGE(0, 100))
	}, mine: "remote operation error: at the peer: SGE 0 is outside its MR", theirs: "SGE 0 is outside its MR, which is 0x ... +65536"},
	{name: "receive whose MR is closed", on: badOnEFA, o: refusing, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err, b.qp.PostRecv(9, mr.SGE(0, 1000)), mr.Close())
		return send(1, a.mr.SGE(0, 100))
	}, mine: "remote operation error: at the peer: no MR of this device has the lkey 0x", theirs: "no MR of this device has the lkey 0x ... of SGE 0"},
	{name: "peer is connected to another QP", efa: "connections", o: fast, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		reconnect(t, a, newSide(t, a.dev, fast)) // b does not know
		c := newSide(t, a.dev, fast)
		reconnect(t, c, b)
		e, err := b.qp.Endpoint()
		must(t, err, a.qp.Modify(to(ib.QPReset), uverbs.AttrState), a.qp.Connect(t.Context(), e))
		return write(a, b)
	}, mine: "the peer's QP is connected to QP ... not to this one; "},
	{name: "path MTUs that differ", efa: "connections", ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		small, large := fast, fast
		small.Path.MTU, large.Path.MTU = ib.MTU256, ib.MTU1024
		*a, *b = *newSide(t, a.dev, small), *newSide(t, a.dev, large)
		ea, err := a.qp.Endpoint()
		must(t, err)
		eb, err := b.qp.EndpointFor(ea)
		must(t, err)
		ea.MTU, eb.MTU = 0, 0 // as programs that do not exchange them
		must(t, a.qp.Connect(t.Context(), eb), b.qp.Connect(t.Context(), ea))
		wr := write(a, b)
		wr.SGL = []uverbs.SGE{a.mr.SGE(0, 8192)}
		return wr
	}, mine: "the path MTU is 256 here, 1024 at the peer; give Connect the Endpoint", far: "the peer has another path MTU",
		on: map[string]string{"mlx5": ""}}, // the modelled card takes packets that are shorter than its path MTU
	{name: "peer is closed", efa: "connections", o: fast, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		c := newSide(t, a.dev, fast)
		qp, err := c.pd.CreateQP(uverbs.QPOptions{SendCQ: c.cq, RecvCQ: c.cq, Path: fast.Path})
		must(t, err)
		gone := *c
		gone.qp = &queuePair{QP: qp}
		reconnect(t, a, c)
		must(t, a.qp.Modify(to(ib.QPReset), uverbs.AttrState), qp.Init())
		connect(t, a, &gone)
		must(t, qp.Close())
		return write(a, c)
	}, mine: "no acknowledgement for 3 attempts of ... likely the peer is gone, or its QP is not ready ... to tell: ping"},
	{name: "no receive posted", on: map[string]string{"efa": "the peer has posted no receive"}, o: unready, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		needRNR(t)
		return send(1, a.mr.SGE(0, 100))
	}, mine: "the peer had no receive posted at 2 attempts ... RNRRetry ... has 0 receives posted now",
		far: "the peer had no receive posted at 2 attempts; "},
	{name: "peer's QP was reset", efa: "connections", o: fast, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
		return write(a, b)
	}, mine: "is in state RESET",
		far: "no acknowledgement for 3 attempts of ... likely ... gone ... QP is not ready ... to tell"},
}
