package hca

import (
	"bytes"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// dctIn makes CREATE_DCT's input.
func (v *verbs) dctIn(cqn, srqn uint32) []byte {
	in := make([]byte, prm.DCTCtxSize)
	x := in[prm.DCTCtx:]
	prm.DCTCPD.Put(x, uint64(v.pdn))
	prm.DCTCCQN.Put(x, uint64(cqn))
	prm.DCTCSRQN.Put(x, uint64(srqn))
	prm.DCTCUserIndex.Put(x, 0x77)
	prm.DCTCKey.Put(x, 0x0123456789abcdef)
	prm.DCTCRRE.Put(x, 1)
	prm.DCTCRAE.Put(x, 1)
	prm.DCTCMTU.Put(x, 3)
	prm.DCTCPort.Put(x, 1)
	prm.DCTCMinRNRNAK.Put(x, 12)
	prm.DCTCHopLimit.Put(x, 64)
	prm.DCTCFlowLabel.Put(x, 0x12345)
	return in
}

// TestDCT: a target of DC by its commands.
func TestDCT(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	rmpn := v.create(prm.CreateRMP, v.rmpIn(v.page(), v.page(), prm.WQStateRDY, prm.WQLinkedList))
	bad := v.dctIn(cqn, rmpn)
	prm.DCTCScatterRes.Put(bad[prm.DCTCtx:], 7)
	v.refused(prm.BadParam, prm.CreateDCT, 0, bad, small)
	v.refused(prm.BadResource, prm.CreateDCT, 0, v.dctIn(cqn, rmpn+1), small)
	prm.DCTCScatterRes.Put(bad[prm.DCTCtx:], 0)
	prm.DCTCOrdering1.Put(bad[prm.DCTCtx:], 1) // without dp_ordering_force
	v.refused(prm.BadParam, prm.CreateDCT, 0, bad, small)
	in := v.dctIn(cqn, rmpn)
	prm.DCTCOrdering1.Put(in[prm.DCTCtx:], 1)
	prm.DCTCForceOrder.Put(in[prm.DCTCtx:], 1)
	dctn := v.create(prm.CreateDCT, in)
	got := v.must(prm.QueryDCT, 0, v.object(dctn), prm.DCTCtxSize)[prm.DCTCtx:]
	for name, f := range map[string]prm.Field{
		"pd": prm.DCTCPD, "cqn": prm.DCTCCQN, "srqn": prm.DCTCSRQN, "user_index": prm.DCTCUserIndex, "key": prm.DCTCKey, "rre": prm.DCTCRRE,
		"rwe": prm.DCTCRWE, "rae": prm.DCTCRAE, "mtu": prm.DCTCMTU, "port": prm.DCTCPort, "min_rnr_nak": prm.DCTCMinRNRNAK,
		"hop_limit": prm.DCTCHopLimit, "flow_label": prm.DCTCFlowLabel, "state": prm.DCTCState,
		"dp_ordering_1": prm.DCTCOrdering1, "dp_ordering_force": prm.DCTCForceOrder,
	} {
		if want := f.Get(in[prm.DCTCtx:]); f.Get(got) != want {
			t.Errorf("QUERY_DCT: %s is %#x, want %#x", name, f.Get(got), want)
		}
	}
	v.must(prm.ArmDCT, 0, v.object(dctn), small)
	v.refused(prm.ResBusy, prm.DestroyRMP, 0, v.object(rmpn), small)
	v.must(prm.DrainDCT, 0, v.object(dctn), small)
	v.fabric.Run(10)
	if x := v.must(prm.QueryDCT, 0, v.object(dctn), prm.DCTCtxSize)[prm.DCTCtx:]; prm.DCTCState.Get(x) != 2 {
		t.Errorf("state %d after DRAIN_DCT", prm.DCTCState.Get(x))
	}
	v.must(prm.DestroyDCT, 0, v.object(dctn), small)
	v.must(prm.DestroyRMP, 0, v.object(rmpn), small)
	v.violations(0)
}

// TestStreamReset: a command resets a stream of a DCI if its extended context is there and has it.
func TestStreamReset(t *testing.T) {
	v := newVerbs(t, IB)
	if n := prm.CapQPExtension.Get(v.caps(prm.CapGeneral)); n != 1 {
		t.Errorf("qpc_extension is %d", n)
	}
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	dci := func(streams uint64) uint32 {
		in := v.qpIn(prm.STDCI, cqn, v.page(), v.page())
		x := in[prm.QPCtx:]
		prm.QPCRQType.Put(x, prm.RQNone)
		prm.QPCLogDCIStreams.Put(x, streams)
		prm.QPCLogDCIFailed.Put(x, streams)
		qpn := v.create(prm.CreateQP, in)
		v.rts(qpn, 0)
		return qpn
	}
	qpn := dci(2)
	reset := func(qpn uint32, ext, second uint64, size int) []byte {
		in := make([]byte, size)
		prm.ObjectNumber.Put(in, uint64(qpn))
		prm.QPHasExt.Put(in, ext)
		prm.QPOptParam2.Put(in, second)
		return in
	}
	const size = prm.QPOptParam2End + prm.QPExtSize
	v.must(prm.RTS2RTSQP, 0, reset(qpn, 1, 1, size), small)
	v.refused(prm.BadInLen, prm.RTS2RTSQP, 0, reset(qpn, 1, 1, size-4), small)
	v.refused(prm.BadParam, prm.RTS2RTSQP, 0, reset(qpn, 0, 1, size), small)
	v.refused(prm.BadParam, prm.RTS2RTSQP, 0, reset(dci(0), 1, 1, size), small)
	v.violations(0)
}

// TestStreamResetNumber: the command resets the stream that it names, and no other one.
func TestStreamResetNumber(t *testing.T) {
	const (
		stream, other = 0x0203, 2
		key           = 0x0123456789abcdef // of dctIn
	)
	v := newVerbs(t, IB)
	cqn, cq, _ := v.newCQ(v.u, v.eqn)
	target := v.dctIn(cqn, v.create(prm.CreateRMP, v.rmpIn(v.page(), v.page(), prm.WQStateRDY, prm.WQLinkedList)))
	prm.DCTCRWE.Put(target[prm.DCTCtx:], 1)
	dctn := v.create(prm.CreateDCT, target)
	buf, dbr := v.page(), v.page()
	in := v.qpIn(prm.STDCI, cqn, buf, dbr)
	x := in[prm.QPCtx:]
	prm.QPCRQType.Put(x, prm.RQNone)
	prm.QPCPageOff.Put(x, 0)
	prm.QPCLogDCIStreams.Put(x, 2)
	prm.QPCLogDCIFailed.Put(x, 2)
	dci := v.create(prm.CreateQP, in)
	v.rts(dci, 0)

	// write posts an RDMA WRITE without data on a stream, and returns its completion's opcode and syndrome.
	posted := 0
	write := func(stream uint16, key uint64) (c [2]byte) {
		t.Helper()
		w := v.mem[buf-ramBase+uint64(128*posted):] // two blocks of 64 bytes each
		clear(w[:128])
		be.PutUint32(w, uint32(2*posted)<<8|0x08)
		be.PutUint32(w[4:], dci<<8|5)
		be.PutUint16(w[9:], stream)
		w[11] = 8
		be.PutUint64(w[16:], key)
		be.PutUint32(w[24:], 1<<31|dctn)
		be.PutUint16(w[30:], v.d.eng.Port().LID)
		be.PutUint64(w[64:], ramBase)
		be.PutUint32(w[72:], v.key)
		e := v.mem[cq-ramBase+uint64(64*posted):]
		posted++
		be.PutUint32(v.mem[dbr-ramBase+4:], uint32(2*posted))
		v.d.WriteBAR(0, uint64(v.u)*uarPage+0x800, bytes.Clone(w[:8]))
		if !v.fabric.Run(10000) {
			t.Fatal("the fabric does not come to rest")
		}
		if c[0] = e[63] >> 4; c[0] != 0 {
			c[1] = e[55]
		}
		return c
	}
	done, flushed, noAnswer := [2]byte{0, 0}, [2]byte{13, byte(engine.Flushed)}, [2]byte{13, byte(engine.RetryExceeded)}
	got := [][2]byte{write(stream, key+1), write(other, key+1), write(stream, key), write(other, key)}
	reset := v.in(prm.QPOptParam2End + prm.QPExtSize)
	prm.ObjectNumber.Put(reset, uint64(dci))
	prm.QPHasExt.Put(reset, 1)
	prm.QPOptParam2.Put(reset, 1)
	be.PutUint16(reset[prm.QPOptParam2End+2:], stream) // dci_stream_channel_id, written without package prm
	v.must(prm.RTS2RTSQP, 0, reset, small)
	got = append(got, write(stream, key), write(other, key))
	if want := [][2]byte{noAnswer, noAnswer, flushed, flushed, done, flushed}; !slices.Equal(got, want) {
		t.Errorf("completions %x, want %x", got, want)
	}
	v.violations(0)
}

// TestNoDC: a card without DC refuses what DC needs.
func TestNoDC(t *testing.T) {
	v := newVerbsOf(t, IB, Personality{NoDC: true})
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	v.refused(prm.BadOp, prm.CreateDCT, 0, v.dctIn(cqn, 0), small)
	in := v.qpIn(prm.STDCI, cqn, v.page(), v.page())
	prm.QPCRQType.Put(in[prm.QPCtx:], prm.RQNone)
	v.refused(prm.BadParam, prm.CreateQP, 0, in, small)
	v.violations(0)
}
