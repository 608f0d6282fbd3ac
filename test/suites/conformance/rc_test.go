package conformance

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// operation returns a signaled request for 8 bytes at the start of both buffers.
func operation(op uverbs.WROpcode, a, b *side) uverbs.SendWR {
	wr := send(1, a.mr.SGE(0, 8))
	if wr.Opcode = op; needsRemote(op) {
		wr.RemoteAddr, wr.RKey = b.mr.Addr(), b.mr.RKey()
	}
	return wr
}

// needRNR keeps a test whose messages find no receive away from rxe of Linux 5.10, which may
// then retry without end, in the kernel.
func needRNR(t *testing.T) {
	t.Helper()
	if rxeBefore(t, 6, 0) {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "RNR_RETRY", Since: uverbs.Version{6, 0}})
	}
}

// TestNoReceive: a message that finds no receive is retried as often as the QP says, which
// may be for ever.
func TestNoReceive(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	needRNR(t)
	for _, op := range []uverbs.WROpcode{uverbs.WRSend, uverbs.WRRDMAWriteWithImm} {
		t.Run(op.String(), func(t *testing.T) {
			few := uverbs.QPOptions{Path: uverbs.PathOptions{RNRRetry: 2, MinRNRTimer: 1}}
			a, b := newSide(t, openDevice(t, deviceName), few), newSide(t, openDevice(t, deviceName), few)
			connect(t, a, b)
			must(t, a.qp.PostSend(operation(op, a, b)))
			wc := a.next(t)
			if wc.Status != uverbs.WCRNRRetryExcErr {
				t.Errorf("completion: %v, want %v", wc.Err(), uverbs.WCRNRRetryExcErr)
			}
			if rig.EFA() {
				says(t, a.qp.Err(&wc), op.String(), "the peer has posted no receive")
			} else {
				says(t, a.qp.Err(&wc), op.String(), "had no receive posted at 3 attempts",
					fmt.Sprintf("the peer has 0 receives posted now and a MinRNRTimer of 10µs; the peer is QP %d of %s", b.qp.QPN(), b.dev.Name()))
				must(t, b.qp.PostRecvs(uverbs.RecvWR{ID: 3}, uverbs.RecvWR{ID: 4}))
				says(t, a.qp.Err(&wc), "has 2 receives posted now")
			}
			if attr, err := b.qp.Query(); err != nil || attr.State != ib.QPRTS {
				t.Errorf("the peer is in state %s, %v, want RTS", attr.State, err)
			}

			a, b = pair(t, uverbs.QPOptions{Path: uverbs.PathOptions{MinRNRTimer: 1}}) // RNRRetry 7 is the default
			want := a.fill(0, 8, 50)
			must(t, a.qp.PostSend(operation(op, a, b)))
			a.none(t)
			must(t, b.qp.PostRecv(2, b.mr.SGE(0, 8)))
			if wc := a.next(t); wc.ID != 1 || wc.Status != uverbs.WCSuccess {
				t.Errorf("completion of %d: %v", wc.ID, a.qp.Err(&wc))
			}
			if wc := b.next(t); wc.ID != 2 || wc.Status != uverbs.WCSuccess {
				t.Errorf("the peer's completion of %d: %v", wc.ID, b.qp.Err(&wc))
			}
			b.holds(t, 0, want)
		})
	}
}

// TestPeerState: a peer that is not ready to receive does not answer. All requests are posted
// before the first wait, as each takes as long as its retries.
func TestPeerState(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	type asked struct {
		state ib.QPState
		op    uverbs.WROpcode
		a     *side
	}
	var all []asked
	ops := []uverbs.WROpcode{uverbs.WRSend, uverbs.WRRDMAWrite, uverbs.WRRDMARead}
	if !lacksAtomics(t, dev) {
		ops = append(ops, uverbs.WRFetchAdd, uverbs.WRCompareSwap)
	}
	for _, state := range []ib.QPState{ib.QPReset, ib.QPInit, ib.QPRTR, ib.QPRTS, ib.QPErr} {
		for _, op := range ops {
			a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
			rtr, rts := rcSteps(t, b, a)
			receive := func() { must(t, b.qp.PostRecv(2, b.mr.SGE(0, 8))) }
			switch state {
			case ib.QPReset:
				must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
			case ib.QPInit:
				receive()
			case ib.QPRTR:
				receive()
				rtr()
			case ib.QPRTS:
				receive()
				rtr()
				rts()
			case ib.QPErr:
				must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
			}
			end, err := b.qp.Endpoint()
			must(t, err, a.qp.Connect(t.Context(), end), a.qp.PostSend(operation(op, a, b)))
			all = append(all, asked{state, op, a})
		}
	}
	for _, c := range all {
		t.Run(c.state.String()+"/"+c.op.String(), func(t *testing.T) {
			want := uverbs.WCRetryExcErr
			if c.state == ib.QPRTR || c.state == ib.QPRTS {
				want = uverbs.WCSuccess
			}
			if wc := c.a.next(t); wc.Status != want {
				t.Errorf("completion: %v, want %v", c.a.qp.Err(&wc), want)
			}
		})
	}
}

// TestSendToOtherQPType checks that a QP ignores a message from a QP of another type.
func TestSendToOtherQPType(t *testing.T) {
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	rc, ud := newSide(t, dev, refusing), newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
	must(t, ud.qp.PostRecv(1, ud.mr.SGE(0, 100)), rc.qp.PostRecv(1, rc.mr.SGE(0, 100)))
	refused := uverbs.WCRetryExcErr
	if rig.EFA() {
		connect(t, rc, ud)
		refused = uverbs.WCRemInvRDReqErr
	} else {
		end, err := ud.qp.Endpoint()
		must(t, err, rc.qp.Connect(t.Context(), end))
	}
	must(t, ud.qp.PostSend(datagram(2, wayTo(t, ud, rc), rc, ud.mr.SGE(0, 8))))
	ud.want(t, 2, uverbs.WCSend) // it was sent, which is all that UD promises
	rc.none(t)
	must(t, rc.qp.PostSend(send(3, rc.mr.SGE(0, 8))))
	if wc := rc.next(t); wc.ID != 3 || wc.Status != refused {
		t.Errorf("completion of %d: %v, want 3 with %v", wc.ID, rc.qp.Err(&wc), refused)
	}
	ud.none(t)
}

// TestUnsignaledRead checks that an unsignaled READ has no completion, and that the completion of
// the next request comes after its data.
func TestUnsignaledRead(t *testing.T) {
	testenv.NotOnEFA(t, "completions in the order of posting")
	testenv.Guest(t)
	a, b := pair(t, uverbs.QPOptions{})
	want := b.fill(0, 8, 77)
	quiet := operation(uverbs.WRRDMARead, a, b)
	quiet.Flags = 0
	sgl := slices.Clone(quiet.SGL)
	quiet.SGL = sgl
	must(t, a.qp.PostSend(quiet))
	sgl[0] = uverbs.SGE{} // the queue has it already
	next := operation(uverbs.WRRDMARead, a, b)
	next.ID, next.SGL = 2, []uverbs.SGE{a.mr.SGE(64, 8)}
	must(t, a.qp.PostSend(next))
	a.want(t, 2, uverbs.WCRDMARead) // the first completion, after the first READ has ended
	a.holds(t, 0, want)
}

// TestAtomicVariants scatters the fetched value over several SGEs, uses atomics that change
// nothing, and needs no access but REMOTE_ATOMIC.
func TestAtomicVariants(t *testing.T) {
	testenv.NeedsIB(t, "atomics")
	testenv.Guest(t)
	a, b := pair(t, uverbs.QPOptions{MaxSendSGE: 3})
	testenv.Skip(t, noAtomics(a.dev))
	mr := other(t, b, uverbs.AccessLocalWrite|uverbs.AccessRemoteAtomic)
	b.setWord(0, 0x1122334455667788)
	for _, op := range []uverbs.WROpcode{uverbs.WRFetchAdd, uverbs.WRCompareSwap} {
		clear(a.buf.Bytes()[:256])
		wr := operation(op, a, b) // adds 0, or compares with 0
		wr.RKey = mr.RKey()
		wr.SGL = []uverbs.SGE{a.mr.SGE(0, 3), a.mr.SGE(100, 1), a.mr.SGE(200, 4)}
		must(t, a.qp.PostSend(wr))
		if wc := a.next(t); wc.Status != uverbs.WCSuccess {
			t.Fatalf("%s: %v", op, a.qp.Err(&wc))
		}
		got := a.buf.Bytes()
		fetched := slices.Concat(got[0:3], got[100:101], got[200:204])
		if want := []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}; !bytes.Equal(fetched, want) {
			t.Errorf("%s: fetched %x, want %x", op, fetched, want)
		}
		if w := b.word(0); w != 0x1122334455667788 {
			t.Errorf("%s: the word is %#x now", op, w)
		}
		// The library refuses what the device would, whatever the keys are.
		for _, length := range []int{4, 8, 16} {
			wr.SGL = []uverbs.SGE{a.mr.SGE(0, length)}
			wr.SGL[0].LKey, wr.RKey = 1, 2
			field, text := "SGL", "8 bytes"
			if wr.RemoteAddr = b.mr.Addr(); length == 8 {
				wr.RemoteAddr++
				field, text = "RemoteAddr", "multiple of 8"
			}
			if err := a.qp.PostSend(wr); !wrongField(err, field, text) {
				t.Errorf("%s of %d bytes at %#x: %v, want %s: %s", op, length, wr.RemoteAddr, err, field, text)
			}
		}
	}
}

// TestRelaxedOrdering: messages and WRITEs arrive whole where their bytes may be written in
// any order.
func TestRelaxedOrdering(t *testing.T) {
	testenv.Guest(t)
	a, b := pair(t, uverbs.QPOptions{})
	c, d := newSide(t, a.dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, a.dev, uverbs.QPOptions{Type: ib.UD})
	for _, s := range []*side{b, d} {
		s.mr = other(t, s, remoteRights|uverbs.AccessRelaxedOrdering)
	}
	want := a.fill(0, 5000, 3)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 5000)), a.qp.PostSend(send(2, a.mr.SGE(0, 5000))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
	b.holds(t, 0, want)
	wr := operation(uverbs.WRRDMAWrite, a, b)
	wr.SGL[0], wr.RemoteAddr = a.mr.SGE(0, 5000), b.mr.Addr()+10000
	must(t, a.qp.PostSend(wr))
	a.want(t, 1, uverbs.WCRDMAWrite)
	b.holds(t, 10000, want)

	want = c.fill(0, 900, 4)
	must(t, d.qp.PostRecv(1, d.mr.SGE(0, 1000)), c.qp.PostSend(datagram(2, wayTo(t, c, d), d, c.mr.SGE(0, 900))))
	c.want(t, 2, uverbs.WCSend)
	d.want(t, 1, uverbs.WCRecv)
	d.holds(t, uverbs.GRHSize, want)
}

// TestDatagramEmpty: a datagram without data is one, with a header.
func TestDatagramEmpty(t *testing.T) {
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	a, b := newSide(t, dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
	ah := wayTo(t, a, b)
	for id, sgl := range [][]uverbs.SGE{nil, {a.mr.SGE(0, 0)}} {
		must(t, b.qp.PostRecv(uint64(id), b.mr.SGE(0, 100)), a.qp.PostSend(datagram(9, ah, b, sgl...)))
		a.want(t, 9, uverbs.WCSend)
		if wc := b.want(t, uint64(id), uverbs.WCRecv); wc.ByteLen != uverbs.GRHSize || wc.SrcQP != a.qp.QPN() {
			t.Errorf("%d bytes from QP %d, want %d from %d", wc.ByteLen, wc.SrcQP, uverbs.GRHSize, a.qp.QPN())
		}
	}
}

// TestCloseMRInUse closes an MR while requests use it: requests that come too late fail, and
// nothing more is written to it.
func TestCloseMRInUse(t *testing.T) {
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	const requests, size = 16, 32 << 10
	for _, c := range []struct {
		name string
		op   uverbs.WROpcode
		peer bool // it is the peer's region
	}{{"read", uverbs.WRRDMARead, false}, {"write", uverbs.WRRDMAWrite, false}, {"peer's read", uverbs.WRRDMARead, true}, {"peer's write", uverbs.WRRDMAWrite, true}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, refusing)
			mr := other(t, a, uverbs.AccessLocalWrite)
			wr := operation(c.op, a, b)
			wr.SGL[0] = mr.SGE(0, size)
			written := a.buf
			if c.peer {
				mr = other(t, b, remoteRights)
				wr.SGL[0], wr.RKey, written = a.mr.SGE(0, size), mr.RKey(), b.buf
			}
			for i := range requests {
				wr.ID = uint64(i)
				must(t, a.qp.PostSend(wr))
			}
			must(t, mr.Close())
			if (c.op == uverbs.WRRDMARead) != c.peer { // it is the region that is written to
				clear(written.Bytes())
			}
			failed := false
			for i := range requests {
				wc := a.next(t)
				if wc.ID != uint64(i) && !rig.EFA() {
					t.Fatalf("completion of %d, want %d", wc.ID, i)
				}
				if wc.Status == uverbs.WCSuccess && failed && !rig.EFA() {
					t.Errorf("request %d succeeds after one that failed", i)
				}
				failed = failed || wc.Status != uverbs.WCSuccess
			}
			t.Logf("failed: %t", failed)
			a.reaches(t, map[bool]ib.QPState{true: ib.QPErr, false: ib.QPRTS}[failed && !rig.EFA()])
			if (c.op == uverbs.WRRDMARead) != c.peer && !bytes.Equal(written.Bytes(), make([]byte, bufferSize)) {
				t.Error("the memory was written to after the region was closed")
			}
		})
	}
}

// TestManyWrites has a hundred QPs write in turn, and counts what arrives.
func TestManyWrites(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Guest(t)
	const qps, rounds, list, size = 100, 10, 10, 32
	dev := openDevice(t, deviceName)
	a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
	var from []*uverbs.QP
	for range qps {
		var ends [2]uverbs.Endpoint
		var pair [2]*uverbs.QP
		for i, s := range []*side{a, b} {
			var err error
			pair[i], err = s.pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: s.cq, RecvCQ: s.cq, Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}})
			must(t, err)
			closeLater(t, pair[i])
			ends[i], err = pair[i].Endpoint()
			must(t, err)
		}
		must(t, pair[0].Connect(t.Context(), ends[1]), pair[1].Connect(t.Context(), ends[0]))
		from = append(from, pair[0])
	}
	for round := range rounds {
		want := a.fill(0, qps*list*size, byte(round))
		for i, qp := range from {
			var wrs []uverbs.SendWR
			for j := range list {
				at := (i*list + j) * size
				wr := uverbs.SendWR{ID: uint64(i), Opcode: uverbs.WRRDMAWrite, SGL: []uverbs.SGE{a.mr.SGE(at, size)},
					RemoteAddr: b.mr.Addr() + uint64(at), RKey: b.mr.RKey()}
				if j == list-1 {
					wr.Flags = uverbs.SendSignaled
				}
				wrs = append(wrs, wr)
			}
			must(t, qp.PostSend(wrs...))
		}
		seen := map[uint32]bool{}
		for range qps {
			wc := a.next(t)
			if must(t, wc.Err()); seen[wc.QPN] {
				t.Fatalf("round %d: QP %d completes twice", round, wc.QPN)
			}
			seen[wc.QPN] = true
		}
		b.holds(t, 0, want)
	}
	b.none(t)
}
