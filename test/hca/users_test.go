package hca

import (
	"testing"

	"github.com/goverbs/goverbs/test/hca/prm"
)

// newUser makes a user context that may do what the bits say.
func (v *driver) newUser(caps uint32) uint32 {
	v.t.Helper()
	in := v.in(0x200 / 8)
	prm.UCtxCaps.Put(in, uint64(caps))
	return prm.UCtxID.U32(v.must(prm.CreateUCtx, 0, in, small))
}

// of puts the number of a user context into a command.
func of(uid uint32, in []byte) []byte {
	prm.InUID.Put(in, uint64(uid))
	return in
}

// user makes the input of DESTROY_UCTX.
func user(uid uint32) []byte {
	in := make([]byte, small)
	prm.UCtxID.Put(in, uint64(uid))
	return in
}

// TestUserContexts: a context has its own objects, may not use those of others or of the driver, and stays while
// it has any.
func TestUserContexts(t *testing.T) {
	v := newVerbsOf(t, RoCE, Personality{DEVX: true})
	one, two := v.newUser(prm.UCtxRawTX), v.newUser(0)
	if one == two {
		t.Fatalf("two contexts have the number %#x", one)
	}
	v.refused(prm.BadParam, prm.AllocPD, 0, of(two+1, v.in(small)), small)
	v.refused(prm.BadParam, prm.CreateUCtx, 0, func() []byte { in := v.in(0x200 / 8); prm.UCtxCaps.Put(in, 2); return in }(), small)
	pd := v.create(prm.AllocPD, of(one, v.in(small)))
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	qp := v.qpIn(prm.STRC, cqn, v.page(), v.page())
	qpn := v.create(prm.CreateQP, of(one, qp))
	v.refused(prm.BadResource, prm.ToERRQP, 0, of(two, v.object(qpn)), small)
	v.refused(prm.BadResource, prm.QueryCQ, 0, of(one, v.object(cqn)), list) // the driver's
	v.must(prm.QueryQP, 0, of(one, v.object(qpn)), list)
	v.must(prm.QueryQP, 0, v.object(qpn), list)
	v.refused(prm.BadResource, prm.DeallocPD, 0, of(two, v.object(pd)), small)
	v.refused(prm.ResBusy, prm.DestroyUCtx, 0, user(one), small)
	v.must(prm.DestroyQP, 0, of(one, v.object(qpn)), small)
	v.refused(prm.BadResource, prm.ToERRQP, 0, of(one, v.object(qpn)), small)
	v.refused(prm.ResBusy, prm.DestroyUCtx, 0, user(one), small)
	v.must(prm.DeallocPD, 0, of(one, v.object(pd)), small)
	v.must(prm.DestroyUCtx, 0, user(one), small)
	v.refused(prm.BadResource, prm.DestroyUCtx, 0, user(one), small)
	v.refused(prm.BadParam, prm.AllocPD, 0, of(one, v.in(small)), small)
	v.refused(prm.BadResource, prm.CreateCQ, 0, of(two, v.cqIn(v.u, v.eqn, v.page(), v.page())), small)
	shared := prm.EQNumber.U32(v.must(prm.CreateEQ, 0, of(sharedUID, v.eqIn(v.u, 1, 0, v.page())), small))
	cqn = v.create(prm.CreateCQ, of(two, v.cqIn(v.u, shared, v.page(), v.page())))
	v.must(prm.DestroyCQ, 0, of(two, v.object(cqn)), small)
	v.must(prm.DestroyUCtx, 0, user(two), small)
	v.violations(0)
}

// TestUserSendsRaw: only a context that may send raw frames has an SQ.
func TestUserSendsRaw(t *testing.T) {
	v := newVerbsOf(t, RoCE, Personality{DEVX: true})
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	sq := func() []byte {
		in := v.in(list + 8)
		x := in[prm.WQCtx:]
		prm.SQCCQN.Put(x, uint64(cqn))
		wq := x[prm.WQInCtx:]
		prm.WQType.Put(wq, prm.WQCyclic)
		prm.WQLogStride.Put(wq, 6)
		prm.WQLogSize.Put(wq, 4)
		prm.WQPD.Put(wq, uint64(v.pdn))
		prm.WQUAR.Put(wq, uint64(v.u))
		prm.WQDBR.Put(wq, v.page())
		be.PutUint64(in[list:], v.page())
		return in
	}
	without, with := v.newUser(0), v.newUser(prm.UCtxRawTX)
	v.refused(prm.BadParam, prm.CreateSQ, 0, of(without, sq()), small)
	v.must(prm.DestroySQ, 0, of(with, v.object(v.create(prm.CreateSQ, of(with, sq())))), small)
	v.violations(0)
}

// TestNoUserContexts: the usual card does not have user contexts.
func TestNoUserContexts(t *testing.T) {
	v := newRunningOf(t, IB, Personality{})
	v.refused(prm.BadOp, prm.CreateUCtx, 0, v.in(0x200/8), small)
	if n := prm.CapLogMaxUCtx.Get(v.caps(prm.CapGeneral)); n != 0 {
		t.Errorf("log_max_uctx is %d", n)
	}
}

// TestLAG: the port that a QP and a TIS send by is kept, and must be one of those that there are.
func TestLAG(t *testing.T) {
	v := newVerbsOf(t, RoCE, Personality{LAG: true})
	if out := v.must(prm.QueryLAG, 0, v.in(small), small); prm.LAGState.Get(out) != 1 || prm.LAGRemap1.Get(out) != 1 || prm.LAGRemap2.Get(out) != 2 {
		t.Errorf("QUERY_LAG: %x", out)
	}
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	in := v.qpIn(prm.STUD, cqn, v.page(), v.page())
	qpn := v.create(prm.CreateQP, in)
	modify := func(op prm.Op, opt, port uint64) []byte {
		in := v.modifyIn(qpn)
		prm.QPOptParam.Put(in, opt)
		x := in[prm.QPCtx:]
		prm.QPCLAGPort.Put(x, port)
		prm.QPCMTU.Put(x, 3)
		prm.QPCPMState.Put(x, 3)
		if op == prm.RST2INITQP {
			prm.ADSPort.Put(x[prm.QPCPrimary:], 1)
		}
		return in
	}
	port := func(want uint64) {
		t.Helper()
		if got := prm.QPCLAGPort.Get(v.must(prm.QueryQP, 0, v.object(qpn), list)[prm.QPCtx:]); got != want {
			t.Errorf("the QP sends by port %d, want %d", got, want)
		}
	}
	v.refused(prm.BadParam, prm.RST2INITQP, 0, modify(prm.RST2INITQP, 0, 3), small)
	v.must(prm.RST2INITQP, 0, modify(prm.RST2INITQP, 0, 2), small)
	port(2)
	v.must(prm.INIT2RTRQP, 0, modify(prm.INIT2RTRQP, 0, 1), small)
	port(2)
	v.must(prm.RTR2RTSQP, 0, modify(prm.RTR2RTSQP, 0, 0), small)
	v.must(prm.RTS2RTSQP, 0, modify(prm.RTS2RTSQP, prm.OptLAGPort, 1), small)
	port(1)
	v.refused(prm.BadParam, prm.RTS2RTSQP, 0, modify(prm.RTS2RTSQP, prm.OptLAGPort, 3), small)
	port(1)

	domain := v.create(prm.AllocTransportDomain, v.in(small))
	tis := v.in(0x600 / 8)
	prm.TISCDomain.Put(tis[prm.WQCtx:], uint64(domain))
	tisn := v.create(prm.CreateTIS, tis)
	prm.ObjectNumber.Put(tis, uint64(tisn))
	prm.TISCLAGPort.Put(tis[prm.WQCtx:], 2)
	for _, select1 := range []uint64{0, 1} {
		prm.TISModifyLAG.Put(tis, select1)
		v.must(prm.ModifyTIS, 0, tis, small)
		x := v.must(prm.QueryTIS, 0, v.object(tisn), prm.TISCtx+prm.TISCSize)[prm.TISCtx:]
		if prm.TISCLAGPort.Get(x) != 2*select1 || prm.TISCDomain.U32(x) != domain {
			t.Errorf("QUERY_TIS: port %d of domain %#x", prm.TISCLAGPort.Get(x), prm.TISCDomain.Get(x))
		}
	}
	v.violations(0)

	v = newVerbs(t, RoCE)
	v.refused(prm.BadOp, prm.QueryLAG, 0, v.in(small), small)
	cqn, _, _ = v.newCQ(v.u, v.eqn)
	qpn = v.create(prm.CreateQP, v.qpIn(prm.STUD, cqn, v.page(), v.page()))
	v.refused(prm.BadParam, prm.RST2INITQP, 0, modify(prm.RST2INITQP, 0, 1), small)
}

// TestSport: the UDP source port of a QP changes in RTS, if the second mask of optional parameters says so.
func TestSport(t *testing.T) {
	v := newVerbs(t, RoCE)
	addr := v.in(0x180 / 8)
	x := prm.Record(addr, prm.RoCEAddr, prm.RoCESize)
	copy(x, "0123456789abcdef")
	prm.RoCEVersion.Put(x, roceVersion2)
	v.must(prm.SetRoCEAddress, 0, addr, small)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	qpn := v.create(prm.CreateQP, v.qpIn(prm.STRC, cqn, v.page(), v.page()))
	modify := func(op prm.Op, second, sport uint64) []byte {
		in := v.modifyIn(qpn)
		prm.QPOptParam2.Put(in, second)
		x := in[prm.QPCtx:]
		prm.QPCMTU.Put(x, 3)
		prm.QPCPMState.Put(x, 3)
		path := x[prm.QPCPrimary:]
		prm.ADSPort.Put(path, 1)
		prm.ADSRMACLow.Put(path, 1)
		prm.ADSUDPSport.Put(path, sport)
		return in
	}
	v.must(prm.RST2INITQP, 0, modify(prm.RST2INITQP, 0, 0), small)
	v.must(prm.INIT2RTRQP, 0, modify(prm.INIT2RTRQP, 0, 0xc001), small)
	v.must(prm.RTR2RTSQP, 0, modify(prm.RTR2RTSQP, 0, 0xc002), small)
	sport := func(want uint64) {
		t.Helper()
		x := v.must(prm.QueryQP, 0, v.object(qpn), list)[prm.QPCtx:]
		if got := prm.ADSUDPSport.Get(x[prm.QPCPrimary:]); got != want {
			t.Errorf("source port %#x, want %#x", got, want)
		}
	}
	sport(0xc001)
	v.must(prm.RTS2RTSQP, 0, modify(prm.RTS2RTSQP, 0, 0xc003), small)
	sport(0xc001)
	v.must(prm.RTS2RTSQP, 0, modify(prm.RTS2RTSQP, prm.OptSport, 0xffff), small)
	sport(0xffff)
	v.refused(prm.BadParam, prm.RTS2RTSQP, 0, modify(prm.RTS2RTSQP, prm.OptSport, 0xbfff), small)
	v.refused(prm.BadParam, prm.RTS2RTSQP, 0, modify(prm.RTS2RTSQP, 1<<5, 0xc000), small)
	v.refused(prm.BadParam, prm.RTS2RTSQP, 0, modify(prm.RTS2RTSQP, 1<<63, 0xc000), small)
	sport(0xffff)
	v.violations(0)
}
