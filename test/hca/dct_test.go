package hca

import (
	"testing"

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
