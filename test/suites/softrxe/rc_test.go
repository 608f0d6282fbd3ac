package softrxe

import (
	"encoding/binary"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// sizes of messages, around the path MTU and multiples of it.
var sizes = []int{0, 1, 2, 3, 4, 5, 255, 1023, 1024, 1025, 4095, 4096, 4097, 8191, 20000, 65536, 100_001}

// slot is the offset of a message in the memory of an end.
const slot = 128 << 10

// send is a SEND of memory of an end.
func (e *end) send(id uint64, offset, n int) uverbs.SendWR {
	wr := uverbs.SendWR{ID: id, Opcode: uverbs.WRSend}
	if n > 0 {
		wr.SGL = []uverbs.SGE{e.sge(offset, n)}
	}
	return wr
}

// remote makes a request one for memory of the peer.
func remote(wr uverbs.SendWR, op uverbs.WROpcode, peer *end, offset int) uverbs.SendWR {
	wr.Opcode, wr.RemoteAddr, wr.RKey = op, peer.at(offset), peer.mr.RKey()
	return wr
}

// word sets 8 bytes of memory to a number.
func (e *end) word(offset int, v uint64) { binary.NativeEndian.PutUint64(e.buf.Bytes()[offset:], v) }

// atomic is an atomic operation on 8 bytes of the peer's memory, with the old value at an own offset.
func (e *end) atomic(id uint64, op uverbs.WROpcode, own int, peer *end, offset int, compareAdd, swap uint64) uverbs.SendWR {
	wr := remote(e.send(id, own, 8), op, peer, offset)
	wr.CompareAdd, wr.Swap = compareAdd, swap
	return wr
}

// refusing are the options of a QP that gives up after a few retries where there is no receive, and
// impatient those of one that does where there is no answer.
var (
	refusing  = uverbs.QPOptions{Path: uverbs.PathOptions{RNRRetry: 2, MinRNRTimer: 1, Timeout: 18}}
	impatient = uverbs.QPOptions{Path: uverbs.PathOptions{RetryCount: 1, Timeout: 10}}
)

// rcCases are about reliable connections. End a is the requester.
var rcCases = []verbsCase{
	{name: "SEND", run: func(x *exchange) {
		for i, n := range sizes {
			x.b.recv(uint64(100+i), x.b.sge(slot, n))
			x.a.post(x.a.send(uint64(i), i, n))
			x.a.sent(1)
			x.b.got(1)
		}
	}},
	{name: "SEND with immediate data", run: func(x *exchange) {
		for i, n := range sizes {
			x.b.recv(uint64(100+i), x.b.sge(slot, slot))
			wr := x.a.send(uint64(i), i, n)
			wr.Opcode, wr.Imm = uverbs.WRSendWithImm, 0x01020304+uint32(i)
			x.a.post(wr)
			x.a.sent(1)
			x.b.got(1)
		}
	}},
	{name: "lists of SGEs", a: uverbs.QPOptions{MaxSendSGE: 4}, b: uverbs.QPOptions{MaxRecvSGE: 3}, run: func(x *exchange) {
		sgl := []uverbs.SGE{x.a.sge(100, 10), x.a.sge(3000, 2000), x.a.sge(9000, 1), x.a.sge(10000, 3989)}
		x.b.recv(1, x.b.sge(50000, 1), x.b.sge(0, 1999), x.b.sge(60000, 5000))
		x.a.post(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, SGL: sgl},
			remote(uverbs.SendWR{ID: 3, SGL: sgl}, uverbs.WRRDMAWrite, x.b, 70000),
			remote(uverbs.SendWR{ID: 4, SGL: sgl}, uverbs.WRRDMARead, x.b, 80000))
		x.a.sent(3)
		x.b.got(1)
	}},
	{name: "inline data", a: uverbs.QPOptions{MaxInline: 256}, run: func(x *exchange) {
		data := []byte("inline data that is not registered, of a length that is not a multiple of 4 bytes...")
		x.b.recv(1, x.b.sge(0, 256))
		x.a.post(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Inline: data},
			remote(uverbs.SendWR{ID: 3, Inline: data}, uverbs.WRRDMAWrite, x.b, 1001))
		x.a.sent(2)
		x.b.got(1)
	}},
	{name: "RDMA WRITE", run: func(x *exchange) {
		for i, n := range sizes {
			x.a.post(remote(x.a.send(uint64(i), i, n), uverbs.WRRDMAWrite, x.b, slot+i))
			x.a.sent(1)
		}
		x.b.empty()
	}},
	{name: "RDMA WRITE with immediate data", run: func(x *exchange) {
		for i, n := range sizes {
			x.b.recv(uint64(100 + i))
			wr := remote(x.a.send(uint64(i), i, n), uverbs.WRRDMAWriteWithImm, x.b, slot+i)
			wr.Imm = 0xfffffff0 + uint32(i)
			x.a.post(wr)
			x.a.sent(1)
			x.b.got(1)
		}
	}},
	{name: "RDMA READ", run: func(x *exchange) {
		for i, n := range sizes {
			x.a.post(remote(x.a.send(uint64(i), slot+i, n), uverbs.WRRDMARead, x.b, i))
			x.a.sent(1)
		}
		x.b.empty()
	}},
	{name: "many RDMA READs", run: func(x *exchange) {
		var wrs []uverbs.SendWR
		for i := range 40 {
			wrs = append(wrs, remote(x.a.send(uint64(i), slot+3000*i, 3000), uverbs.WRRDMARead, x.b, 1000*i))
		}
		x.a.post(wrs...)
		x.a.sent(len(wrs))
	}},
	{name: "atomics", sinceB: v6_0, run: func(x *exchange) {
		x.b.word(64, 1000)
		x.a.post(x.a.atomic(1, uverbs.WRFetchAdd, 8, x.b, 64, 1<<63+5, 0),
			x.a.atomic(2, uverbs.WRCompareSwap, 16, x.b, 64, 7, 8), // does not compare
			x.a.atomic(3, uverbs.WRCompareSwap, 24, x.b, 64, 1<<63+1005, 9),
			x.a.atomic(4, uverbs.WRFetchAdd, 32, x.b, 64, ^uint64(0), 0))
		x.a.sent(4)
		for i := range 50 {
			x.a.post(x.a.atomic(uint64(i), uverbs.WRFetchAdd, 100+8*i, x.b, 64, uint64(i), 0))
		}
		x.a.sent(50)
	}},
	{name: "ATOMIC WRITE", noCard: true, sinceA: v6_2, sinceB: v6_2, run: func(x *exchange) {
		x.a.post(remote(uverbs.SendWR{ID: 1, Inline: []byte("8 bytes.")}, uverbs.WRAtomicWrite, x.b, 64),
			remote(uverbs.SendWR{ID: 2, Inline: []byte("8 others")}, uverbs.WRAtomicWrite, x.b, 128))
		x.a.sent(2)
	}},
	{name: "FLUSH", noCard: true, sinceA: v6_2, sinceB: v6_2, a: flushing, b: flushing, run: func(x *exchange) {
		mr, err := x.b.pd.RegMR(x.b.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessFlushGlobal})
		must(x.t, err)
		closeLater(x.t, mr)
		flush := uverbs.SendWR{ID: 2, Opcode: uverbs.WRFlush, RemoteAddr: mr.Addr(), RKey: mr.RKey(), Length: 5000, Placement: uverbs.FlushGlobal}
		whole := uverbs.SendWR{ID: 3, Opcode: uverbs.WRFlush, RemoteAddr: mr.Addr(), RKey: mr.RKey(), Placement: uverbs.FlushGlobal, Level: uverbs.FlushMR}
		x.a.post(remote(x.a.send(1, 0, 5000), uverbs.WRRDMAWrite, x.b, 0), flush, whole)
		x.a.sent(3)
	}},
	{name: "FLUSH to persistent memory without the right", noCard: true, sinceA: v6_2, sinceB: v6_2, a: flushing, b: flushing, run: func(x *exchange) {
		x.a.post(remote(uverbs.SendWR{ID: 1, Length: 10, Placement: uverbs.FlushPersistent}, uverbs.WRFlush, x.b, 0))
		x.a.sent(1)
		x.a.fails()
		x.b.fails()
	}, want: "a: 1: remote invalid request error; a: ERR; b: ERR"},
	{name: "both directions", run: func(x *exchange) {
		const n = 60
		var toB, toA []uverbs.SendWR
		for i := range n {
			x.a.recv(uint64(100+i), x.a.sge(slot+2000*i, 2000))
			x.b.recv(uint64(100+i), x.b.sge(slot+2000*i, 2000))
			toB = append(toB, x.a.send(uint64(i), 1900*i, 1900))
			toA = append(toA, x.b.send(uint64(i), 1800*i, 1800))
		}
		x.a.post(toB...)
		x.b.post(toA...)
		x.a.sent(n)
		x.b.sent(n)
		x.a.got(n)
		x.b.got(n)
	}},
	{name: "receive posted late", sinceA: v6_0, b: uverbs.QPOptions{Path: uverbs.PathOptions{MinRNRTimer: 1}}, run: func(x *exchange) {
		wr := remote(x.a.send(2, 5000, 4000), uverbs.WRRDMAWriteWithImm, x.b, 70000)
		wr.Imm = 5
		x.a.post(x.a.send(1, 0, 5000), wr, x.a.send(3, 9000, 10))
		x.b.empty()
		for id := range 3 {
			x.b.recv(uint64(10+id), x.b.sge(slot+6000*id, 6000))
			x.a.sent(1)
			x.b.got(1)
		}
	}},
	{name: "no receive", a: refusing, b: refusing, run: func(x *exchange) {
		x.a.post(x.a.send(1, 0, 100), x.a.send(2, 0, 100))
		x.a.sent(2)
		x.a.fails()
		x.b.state()
	}, want: "a: 1: RNR retry counter exceeded; a: 2: flushed; a: ERR; b: RTS"},
	{name: "no receive for immediate data", a: refusing, b: refusing, run: func(x *exchange) {
		x.a.post(remote(x.a.send(1, 0, 3000), uverbs.WRRDMAWriteWithImm, x.b, slot))
		x.a.sent(1)
		x.a.fails()
		x.b.state()
	}, want: "a: 1: RNR retry counter exceeded; a: ERR; b: RTS"},
	{name: "receive too short", run: func(x *exchange) {
		x.b.recv(10, x.b.sge(0, 99))
		x.b.recv(11, x.b.sge(0, 99))
		x.a.post(x.a.send(1, 0, 100))
		x.a.sent(1)
		x.b.got(2)
		x.a.fails()
		x.b.fails()
	}, want: "a: 1: remote operation error; b: receive 10: local QP operation error; b: receive 11: flushed; a: ERR; b: ERR",
		wantSpec: "a: 1: remote invalid request error; b: receive 10: local length error; b: receive 11: flushed; a: ERR; b: ERR"},
	{name: "receive too short for the second packet", run: func(x *exchange) {
		x.b.recv(10, x.b.sge(slot, 5000))
		x.a.post(x.a.send(1, 0, 6000))
		x.a.sent(1)
		x.b.got(1)
		x.a.fails()
		x.b.fails()
	}, want: "a: 1: remote operation error; b: receive 10: local QP operation error; a: ERR; b: ERR",
		wantSpec: "a: 1: remote invalid request error; b: receive 10: local length error; a: ERR; b: ERR"},
	{name: "receive with a wrong lkey", run: func(x *exchange) {
		sge := x.b.sge(0, 100)
		sge.LKey ^= 0x5500
		x.b.recv(10, sge)
		x.a.post(x.a.send(1, 0, 100))
		x.a.sent(1)
		x.b.got(1)
		x.a.fails()
		x.b.fails()
	}, want: "a: 1: remote operation error; b: receive 10: local QP operation error; a: ERR; b: ERR",
		wantSpec: "a: 1: remote operation error; b: receive 10: local protection error; a: ERR; b: ERR"},
	wrongKey("RDMA WRITE with a wrong rkey", uverbs.WRRDMAWrite, func(x *exchange, wr *uverbs.SendWR) { wr.RKey ^= 0x5500 }),
	wrongKey("RDMA READ with a wrong rkey", uverbs.WRRDMARead, func(x *exchange, wr *uverbs.SendWR) { wr.RKey ^= 0x5500 }),
	wrongKey("RDMA WRITE with a wrong low byte of the rkey", uverbs.WRRDMAWrite, func(x *exchange, wr *uverbs.SendWR) { wr.RKey ^= 1 }),
	wrongKey("atomic with a wrong rkey", uverbs.WRFetchAdd, func(x *exchange, wr *uverbs.SendWR) { wr.RKey ^= 0x5500 }),
	wrongKey("RDMA WRITE past the end", uverbs.WRRDMAWrite, func(x *exchange, wr *uverbs.SendWR) { wr.RemoteAddr = x.b.at(bufferSize - 7) }),
	wrongKey("RDMA READ past the end", uverbs.WRRDMARead, func(x *exchange, wr *uverbs.SendWR) { wr.RemoteAddr = x.b.at(bufferSize - 7) }),
	wrongKey("RDMA WRITE before the start", uverbs.WRRDMAWrite, func(x *exchange, wr *uverbs.SendWR) { wr.RemoteAddr = x.b.at(-1) }),
	wrongKey("RDMA WRITE to the end of all addresses", uverbs.WRRDMAWrite, func(x *exchange, wr *uverbs.SendWR) { wr.RemoteAddr = ^uint64(0) - 3 }),
	wrongKey("RDMA WRITE into memory of another PD", uverbs.WRRDMAWrite, func(x *exchange, wr *uverbs.SendWR) {
		wr.RKey = otherPD(x).RKey()
	}),
	wrongKey("RDMA WRITE into memory without the right", uverbs.WRRDMAWrite, func(x *exchange, wr *uverbs.SendWR) {
		wr.RKey = x.region(uverbs.AccessLocalWrite | uverbs.AccessRemoteRead).RKey()
	}),
	wrongKey("RDMA READ of memory without the right", uverbs.WRRDMARead, func(x *exchange, wr *uverbs.SendWR) {
		wr.RKey = x.region(uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite).RKey()
	}),
	wrongKey("atomic on memory without the right", uverbs.WRCompareSwap, func(x *exchange, wr *uverbs.SendWR) {
		wr.RKey = x.region(uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead).RKey()
	}),
	refused("RDMA WRITE that the QP does not permit", uverbs.WRRDMAWrite, uverbs.AccessRemoteRead|uverbs.AccessRemoteAtomic),
	refused("RDMA READ that the QP does not permit", uverbs.WRRDMARead, uverbs.AccessRemoteWrite|uverbs.AccessRemoteAtomic),
	refused("atomic that the QP does not permit", uverbs.WRFetchAdd, uverbs.AccessRemoteRead|uverbs.AccessRemoteWrite),
	{name: "RDMA WRITE of no bytes with a wrong rkey", run: func(x *exchange) {
		wr := remote(uverbs.SendWR{ID: 1}, uverbs.WRRDMAWrite, x.b, 0)
		wr.RKey ^= 0x5500
		x.a.post(wr)
		x.a.sent(1)
	}},
	{name: "wrong key after good requests", sinceB: v6_0, run: func(x *exchange) {
		bad := remote(x.a.send(3, 0, 8), uverbs.WRRDMAWrite, x.b, 0)
		bad.RKey ^= 0x5500
		x.b.recv(10, x.b.sge(0, 100))
		x.a.post(remote(x.a.send(1, 0, 5000), uverbs.WRRDMAWrite, x.b, slot), remote(x.a.send(2, slot, 5000), uverbs.WRRDMARead, x.b, 0), bad,
			x.a.send(4, 0, 10), remote(x.a.send(5, slot, 100), uverbs.WRRDMARead, x.b, 0))
		x.a.sent(5)
		x.b.got(1)
		x.a.fails()
		x.b.fails()
	}, want: "a: 1: RDMA_WRITE; a: 2: RDMA_READ 5000; a: 3: remote access error; a: 4: flushed; a: 5: flushed" +
		"; b: receive 10: flushed; a: ERR; b: ERR"},
	{name: "SGE with a wrong lkey", noCard: true, run: func(x *exchange) {
		wr := x.a.send(1, 0, 100)
		wr.SGL[0].LKey ^= 0x5500
		x.a.post(wr, x.a.send(2, 0, 1))
		x.a.sent(2)
		x.a.fails()
		x.b.state()
	}, sinceA: v6_12, want: "a: 1: flushed; a: 2: flushed; a: ERR; b: RTS",
		ownError: true, wantSpec: "a: 1: local protection error; a: 2: flushed; a: ERR; b: RTS"},
	{name: "READ into memory without LOCAL_WRITE", run: func(x *exchange) {
		mr, err := x.a.pd.RegMR(x.a.buf, uverbs.MROptions{})
		must(x.t, err)
		closeLater(x.t, mr)
		wr := remote(uverbs.SendWR{ID: 1, SGL: []uverbs.SGE{mr.SGE(0, 100)}}, uverbs.WRRDMARead, x.b, 0)
		x.a.post(wr)
		x.a.sent(1)
		x.a.fails()
		x.b.state()
	}, sinceA: v6_12, want: "a: 1: local protection error; a: ERR; b: RTS"},
	{name: "peer in state ERR", a: impatient, run: func(x *exchange) {
		x.b.recv(10, x.b.sge(0, 100))
		must(x.t, x.b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		x.b.got(1)
		x.a.post(x.a.send(1, 0, 100), x.a.send(2, 0, 100))
		x.a.sent(2)
		x.a.fails()
	}, want: "b: receive 10: flushed; a: 1: transport retry counter exceeded; a: 2: flushed; a: ERR"},
	{name: "SEND_WITH_INV", sinceA: v6_2, sinceB: v6_2, run: func(x *exchange) {
		mw := bound(x, uverbs.MWType2, uverbs.AccessRemoteWrite)
		x.b.recv(10, x.b.sge(0, 100))
		write := remote(x.a.send(1, 0, 100), uverbs.WRRDMAWrite, x.b, 200)
		write.RKey = mw.RKey()
		inv := x.a.send(2, 0, 10)
		inv.Opcode, inv.InvalidateRKey = uverbs.WRSendWithInv, mw.RKey()
		write2 := write
		write2.ID = 3
		x.a.post(write, inv)
		x.a.sent(2)
		x.b.got(1)
		x.a.post(write2)
		x.a.sent(1)
		x.b.fails()
	}, want: "b: 50: BIND_MW; a: 1: RDMA_WRITE; a: 2: SEND; b: receive 10: RECV 10 invalidated; a: 3: remote access error; b: ERR"},
	{name: "window of type 1", sinceA: v6_2, sinceB: v6_2, run: func(x *exchange) {
		mw := bound(x, uverbs.MWType1, uverbs.AccessRemoteRead)
		read := remote(x.a.send(1, slot, 900), uverbs.WRRDMARead, x.b, 200)
		read.RKey = mw.RKey()
		past := read
		past.ID, past.RemoteAddr = 2, x.b.at(bufferSize-100)
		x.a.post(read, past)
		x.a.sent(2)
		x.b.fails()
	}, want: "b: 50: BIND_MW; a: 1: RDMA_READ 900; a: 2: remote access error; b: ERR"},
	{name: "fence", run: func(x *exchange) {
		read := remote(x.a.send(1, 0, 20000), uverbs.WRRDMARead, x.b, 0)
		write := remote(x.a.send(2, 0, 20000), uverbs.WRRDMAWrite, x.b, slot)
		write.Flags = uverbs.SendFence
		x.a.post(read, write)
		x.a.sent(2)
	}},
	{name: "path MTU of 256 bytes", a: smallMTU, b: smallMTU, run: func(x *exchange) {
		x.b.recv(10, x.b.sge(slot, 70000))
		x.a.post(x.a.send(1, 0, 70000), remote(x.a.send(2, 0, 3001), uverbs.WRRDMAWrite, x.b, 0), remote(x.a.send(3, slot, 70001), uverbs.WRRDMARead, x.b, 0))
		x.a.sent(3)
		x.b.got(1)
	}},
	{name: "QP used again after an error", sinceB: v6_0, run: func(x *exchange) {
		bad := remote(x.a.send(1, 0, 8), uverbs.WRRDMAWrite, x.b, 0)
		bad.RKey ^= 0x5500
		x.a.post(bad)
		x.a.sent(1)
		x.a.fails()
		x.b.fails()
		for _, e := range []*end{x.a, x.b} {
			must(x.t, e.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState), e.qp.Init())
		}
		connect(x.t, x.a, x.b)
		x.b.recv(10, x.b.sge(slot, 5000))
		x.a.post(x.a.send(2, 0, 5000))
		x.a.sent(1)
		x.b.got(1)
	}, want: "a: 1: remote access error; a: ERR; b: ERR; a: 2: SEND; b: receive 10: RECV 5000"},
}

// smallMTU is a path MTU of 256 bytes.
var smallMTU = uverbs.QPOptions{Path: uverbs.PathOptions{MTU: ib.MTU256}}

// flushing lets the peer flush.
var flushing = uverbs.QPOptions{Path: uverbs.PathOptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessFlushGlobal}}

// wrongKey is a case of a request for memory that the peer does not permit.
func wrongKey(name string, op uverbs.WROpcode, change func(x *exchange, wr *uverbs.SendWR)) verbsCase {
	return verbsCase{name: name, sinceB: v6_0, run: func(x *exchange) {
		x.b.recv(10, x.b.sge(0, 100))
		wr := remote(x.a.send(1, 0, 8), op, x.b, 64)
		change(x, &wr)
		x.a.post(wr, x.a.send(2, 0, 100))
		x.a.sent(2)
		x.b.got(1)
		x.a.fails()
		x.b.fails()
	}, want: "a: 1: remote access error; a: 2: flushed; b: receive 10: flushed; a: ERR; b: ERR"}
}

// refused is a case of a request that the peer's QP does not permit.
func refused(name string, op uverbs.WROpcode, access uverbs.Access) verbsCase {
	return verbsCase{name: name, sinceB: v6_0, b: uverbs.QPOptions{Path: uverbs.PathOptions{Access: access}}, run: func(x *exchange) {
		x.b.recv(10, x.b.sge(0, 100))
		x.a.post(remote(x.a.send(1, 0, 8), op, x.b, 64))
		x.a.sent(1)
		x.b.got(1)
		x.a.fails()
		x.b.fails()
	}, want: "a: 1: remote invalid request error; b: receive 10: flushed; a: ERR; b: ERR"}
}

// region registers the memory of b with other rights.
func (x *exchange) region(access uverbs.Access) *uverbs.MR {
	mr, err := x.b.pd.RegMR(x.b.buf, uverbs.MROptions{Access: access})
	must(x.t, err)
	closeLater(x.t, mr)
	return mr
}

// otherPD registers the memory of b in another PD.
func otherPD(x *exchange) *uverbs.MR {
	pd, err := x.b.dev.AllocPD()
	must(x.t, err)
	closeLater(x.t, pd)
	mr, err := pd.RegMR(x.b.buf, uverbs.MROptions{Access: rights})
	must(x.t, err)
	closeLater(x.t, mr)
	return mr
}

// bound binds a window of b to 1000 bytes at 100.
func bound(x *exchange, typ uverbs.MWType, access uverbs.Access) *uverbs.MW {
	mw, err := x.b.pd.AllocMW(typ)
	must(x.t, err)
	closeLater(x.t, mw)
	x.b.post(uverbs.SendWR{ID: 50, Opcode: uverbs.WRBindMW,
		Bind: uverbs.BindInfo{MW: mw, MR: x.b.mr, Addr: x.b.at(100), Length: 1000, Access: access}})
	x.b.sent(1)
	return mw
}

// TestRC uses reliable connections between all pairings, over IPv4.
func TestRC(t *testing.T) {
	rxe, software := newHosts(t, false)
	runCases(t, rxe, software, rcCases)
}

// TestRCIPv6 is TestRC over IPv6.
func TestRCIPv6(t *testing.T) {
	rxe, software := newHosts(t, true)
	runCases(t, rxe, software, rcCases)
}

// TestRCMTU is TestRC with the MTU of the port and of the path raised to 4096.
func TestRCMTU(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			testenv.Guest(t)
			raiseMTU(t)
			rxe, software := newHosts(t, ipv6)
			runCases(t, rxe, software, rcCases)
		})
	}
}

// Kernels in which rxe changed. That of Linux 5.10 has faults that the package documentation lists.
var (
	v6_0  = [2]int{6, 0}
	v6_1  = [2]int{6, 1}
	v6_2  = [2]int{6, 2}
	v6_12 = [2]int{6, 12}
)
