package hca

import (
	"bytes"
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// verbs is a running card with what every QP needs.
type verbs struct {
	*driver
	u, eqn, pdn, key uint32
}

// newVerbs makes a UAR, an EQ, a PD and a memory key over all of the memory.
func newVerbs(t *testing.T, mode Mode) *verbs {
	t.Helper()
	return newVerbsOf(t, mode, Personality{})
}

// newVerbsOf is newVerbs of a card with a personality.
func newVerbsOf(t *testing.T, mode Mode, p Personality) *verbs {
	t.Helper()
	v := &verbs{driver: newRunningOf(t, mode, p)}
	v.u = v.uar()
	v.eqn = v.eq(v.u, 1, 0, v.page())
	v.pdn = v.pd()
	v.key = v.create(prm.CreateMKey, v.mkeyIn(0x42))<<8 | 0x42
	return v
}

// mkeyIn makes CREATE_MKEY's input: all rights, bus addresses.
func (v *verbs) mkeyIn(variant uint8) []byte {
	in := v.with()
	x := in[prm.MKCtx:]
	for _, f := range []prm.Field{prm.MKCLocalRead, prm.MKCLocalWrite, prm.MKCRemoteRead, prm.MKCRemoteWrite, prm.MKCAtomic} {
		f.Put(x, 1)
	}
	prm.MKCQPN.Put(x, 0xffffff)
	prm.MKCKey.Put(x, uint64(variant))
	prm.MKCLength64.Put(x, 1)
	prm.MKCPD.Put(x, uint64(v.pdn))
	return in
}

// qpIn makes CREATE_QP's input: an RQ of 16 WQEs of 16 bytes, then an SQ of 16 blocks.
func (v *verbs) qpIn(st uint64, cqn uint32, page, dbr uint64) []byte {
	in := v.with(page)
	x := in[prm.QPCtx:]
	prm.QPCType.Put(x, st)
	prm.QPCPMState.Put(x, 3)
	prm.QPCPD.Put(x, uint64(v.pdn))
	prm.QPCLogRQSize.Put(x, 4)
	prm.QPCLogSQSize.Put(x, 4)
	prm.QPCUAR.Put(x, uint64(v.u))
	prm.QPCUserIndex.Put(x, 0xffffff)
	prm.QPCCQNSnd.Put(x, uint64(cqn))
	prm.QPCCQNRcv.Put(x, uint64(cqn))
	prm.QPCPageOff.Put(x, 2) // 128 bytes into a page of 4096
	prm.QPCDBR.Put(x, dbr)
	return in
}

// modifyIn makes the input of a transition.
func (v *verbs) modifyIn(qpn uint32) []byte {
	in := v.with()
	prm.ObjectNumber.Put(in, uint64(qpn))
	return in
}

// rts brings an RC QP up, connected to another of this card.
func (v *verbs) rts(qpn, remote uint32) {
	v.t.Helper()
	in := v.modifyIn(qpn)
	x := in[prm.QPCtx:]
	prm.QPCRRE.Put(x, 1)
	prm.QPCRWE.Put(x, 1)
	prm.QPCPMState.Put(x, 3)
	prm.ADSPort.Put(x[prm.QPCPrimary:], 1)
	v.must(prm.RST2INITQP, 0, in, small)
	in = v.modifyIn(qpn)
	x = in[prm.QPCtx:]
	prm.QPCMTU.Put(x, 3)
	prm.QPCLogMsgMax.Put(x, 30)
	prm.QPCRemoteQPN.Put(x, uint64(remote))
	prm.QPCNextRcvPSN.Put(x, 100)
	prm.QPCMinRNRNAK.Put(x, 12)
	path := x[prm.QPCPrimary:]
	prm.ADSPort.Put(path, 1)
	prm.ADSRLID.Put(path, uint64(v.d.eng.Port().LID))
	v.must(prm.INIT2RTRQP, 0, in, small)
	in = v.modifyIn(qpn)
	x = in[prm.QPCtx:]
	prm.QPCNextSendPSN.Put(x, 100)
	prm.QPCRetryCount.Put(x, 7)
	prm.QPCRNRRetry.Put(x, 7)
	prm.ADSAckTimeout.Put(x[prm.QPCPrimary:], 14)
	v.must(prm.RTR2RTSQP, 0, in, small)
}

// A message goes from one QP to another, through everything that commands have described: the
// buffers' offsets, the records, the keys and the path.
func TestTraffic(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, cq, _ := v.newCQ(v.u, v.eqn)
	var qpn [2]uint32
	var buf, dbr [2]uint64
	for i := range qpn {
		buf[i], dbr[i] = v.page(), v.page()
		qpn[i] = v.create(prm.CreateQP, v.qpIn(prm.STRC, cqn, buf[i], dbr[i]))
	}
	v.rts(qpn[0], qpn[1])
	v.rts(qpn[1], qpn[0])

	src, dst := v.page(), v.page()
	copy(v.mem[src-ramBase:], "through the command interface")
	// A receive WQE in the first slot of the second QP, at byte 128 of its buffer.
	recv := v.mem[buf[1]-ramBase+128:]
	be.PutUint32(recv, 64)
	be.PutUint32(recv[4:], v.key)
	be.PutUint64(recv[8:], dst)
	be.PutUint32(v.mem[dbr[1]-ramBase:], 1)
	// A SEND in the first block of the first QP, behind its RQ.
	send := v.mem[buf[0]-ramBase+128+256:]
	be.PutUint32(send, 0x0a)
	be.PutUint32(send[4:], qpn[0]<<8|2)
	send[11] = 8
	be.PutUint32(send[16:], 29)
	be.PutUint32(send[20:], v.key)
	be.PutUint64(send[24:], src)
	be.PutUint32(v.mem[dbr[0]-ramBase+4:], 1)
	v.d.WriteBAR(0, uint64(v.u)*uarPage+0x800, bytes.Clone(send[:8]))
	if !v.fabric.Run(10000) {
		t.Fatal("the fabric does not come to rest")
	}
	if got := string(v.mem[dst-ramBase:][:29]); got != "through the command interface" {
		t.Errorf("%q has arrived", got)
	}
	var ops []byte
	for i := range 2 {
		e := v.mem[cq-ramBase+uint64(64*i):][:64]
		ops = append(ops, e[63]>>4)
	}
	if !bytes.Contains([]byte{2, 0, 2}, ops) {
		t.Errorf("completions %x, want a send's and a receive's", ops)
	}
	v.violations(0)

	// A query returns the requested attributes, with what has changed since.
	x := v.must(prm.QueryQP, 0, v.object(qpn[0]), list)[prm.QPCtx:]
	for name, f := range map[string]struct {
		f    prm.Field
		want uint64
	}{
		"state": {prm.QPCState, prm.QPStateRTS}, "type": {prm.QPCType, prm.STRC}, "pd": {prm.QPCPD, uint64(v.pdn)}, "mtu": {prm.QPCMTU, 3},
		"remote": {prm.QPCRemoteQPN, uint64(qpn[1])}, "psn": {prm.QPCNextSendPSN, 101}, "cq": {prm.QPCCQNSnd, uint64(cqn)}, "retry": {prm.QPCRetryCount, 7},
		"sq": {prm.QPCLogSQSize, 4}, "uar": {prm.QPCUAR, uint64(v.u)}, "dbr": {prm.QPCDBR, dbr[0]}, "rwe": {prm.QPCRWE, 1}, "rae": {prm.QPCRAE, 0}, "rnr": {prm.QPCMinRNRNAK, 12},
	} {
		if got := f.f.Get(x); got != f.want {
			t.Errorf("QUERY_QP: %s is %#x, want %#x", name, got, f.want)
		}
	}
	y := v.must(prm.QueryCQ, 0, v.object(cqn), list)[prm.CQCtx:]
	if prm.CQCProducer.Get(y) != 2 || prm.CQCLogSize.Get(y) != 6 || prm.CQCEQN.Get(y) != uint64(v.eqn) {
		t.Errorf("QUERY_CQ: %x", y[:64])
	}
	z := v.must(prm.QueryMKey, 0, v.object(v.key>>8), list)[prm.MKCtx:]
	if prm.MKCKey.Get(z) != 0x42 || prm.MKCPD.U32(z) != v.pdn || !prm.MKCLength64.Bool(z) || !prm.MKCAtomic.Bool(z) {
		t.Errorf("QUERY_MKEY: %x", z[:64])
	}
	v.refused(prm.BadQPState, prm.RST2INITQP, 0, v.modifyIn(qpn[0]), small)
	v.must(prm.ToERRQP, 0, v.object(qpn[0]), small)
	v.must(prm.ToRSTQP, 0, v.object(qpn[0]), small)
	for _, n := range qpn {
		v.must(prm.DestroyQP, 0, v.object(n), small)
	}
}

// Objects in use cannot be destroyed until they are free.
func TestInUse(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	qpn := v.create(prm.CreateQP, v.qpIn(prm.STRC, cqn, v.page(), v.page()))
	eq := v.in(small)
	prm.EQNumber.Put(eq, uint64(v.eqn))
	v.refused(prm.ResBusy, prm.DestroyEQ, 0, eq, small)
	v.refused(prm.ResBusy, prm.DestroyCQ, 0, v.object(cqn), small)
	v.refused(prm.ResBusy, prm.DeallocPD, 0, v.object(v.pdn), small)
	v.must(prm.DestroyQP, 0, v.object(qpn), small)
	v.must(prm.DestroyCQ, 0, v.object(cqn), small)
	v.must(prm.DestroyEQ, 0, eq, small)
	v.refused(prm.ResBusy, prm.DeallocPD, 0, v.object(v.pdn), small)
	v.must(prm.DestroyMKey, 0, v.object(v.key>>8), small)
	v.must(prm.DeallocPD, 0, v.object(v.pdn), small)
	v.must(prm.DeallocUAR, 0, v.object(v.u), small)

	// And then it is not there any more.
	for _, op := range []prm.Op{
		prm.DestroyCQ, prm.QueryCQ, prm.DestroyQP, prm.QueryQP, prm.ToERRQP, prm.DestroyMKey, prm.QueryMKey, prm.DeallocPD, prm.DeallocUAR,
		prm.DeallocXRCD, prm.DestroyRMP, prm.QueryRMP, prm.DestroyXRCSRQ, prm.QueryXRCSRQ, prm.DeallocTransportDom, prm.DestroyTIS, prm.DestroySQ, prm.QuerySQ,
	} {
		v.refused(prm.BadResource, op, 0, v.object(qpn), list)
	}
	v.refused(prm.BadResource, prm.DestroyEQ, 0, eq, small)
	v.violations(0)
}

func TestBadObjects(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	page, dbr := v.page(), v.page()
	change := func(in []byte, at int, f prm.Field, value uint64) []byte {
		f.Put(in[at:], value)
		return in
	}
	eq := func() []byte { return v.eqIn(v.u, 1, 0, page) }
	cq := func() []byte { return v.cqIn(v.u, v.eqn, page, dbr) }
	qp := func() []byte { return v.qpIn(prm.STRC, cqn, page, dbr) }
	key := func() []byte { return v.mkeyIn(1) }
	for name, tt := range map[string]struct {
		op   prm.Op
		in   []byte
		want prm.Status
	}{
		"EQ UAR":           {prm.CreateEQ, change(eq(), prm.EQCtx, prm.EQCUAR, 0x999), prm.BadResource},
		"EQ vector":        {prm.CreateEQ, change(eq(), prm.EQCtx, prm.EQCIntr, Vectors), prm.BadIndex},
		"EQ pages":         {prm.CreateEQ, change(eq(), prm.EQCtx, prm.EQCLogSize, 7), prm.BadInLen},
		"EQ page":          {prm.CreateEQ, v.eqIn(v.u, 1, 0, page+64), prm.BadParam},
		"EQ memory":        {prm.CreateEQ, v.eqIn(v.u, 1, 0, 1<<40), prm.BadParam},
		"CQ EQ":            {prm.CreateCQ, change(cq(), prm.CQCtx, prm.CQCEQN, 99), prm.BadResource},
		"CQ UAR":           {prm.CreateCQ, change(cq(), prm.CQCtx, prm.CQCUAR, 5), prm.BadResource},
		"CQ pages":         {prm.CreateCQ, change(cq(), prm.CQCtx, prm.CQCCQESize, 1), prm.BadInLen},
		"CQ CQE size":      {prm.CreateCQ, change(cq(), prm.CQCtx, prm.CQCCQESize, 2), prm.BadParam},
		"CQ compression":   {prm.CreateCQ, change(change(cq(), prm.CQCtx, prm.CQCComp, 1), prm.CQCtx, prm.CQCMini, 2), prm.BadParam},
		"CQ record":        {prm.CreateCQ, change(cq(), prm.CQCtx, prm.CQCDBR, 1<<40), prm.BadParam},
		"CQ page size":     {prm.CreateCQ, change(cq(), prm.CQCtx, prm.CQCLogPage, 31), prm.BadParam},
		"key PD":           {prm.CreateMKey, change(key(), prm.MKCtx, prm.MKCPD, 0x777), prm.BadResource},
		"key mode":         {prm.CreateMKey, change(key(), prm.MKCtx, prm.MKCMode42, 1), prm.BadParam},
		"key signature":    {prm.CreateMKey, change(key(), prm.MKCtx, prm.MKCBSFEn, 1), prm.BadParam},
		"fault of nothing": {prm.PageFaultResume, v.object(0), prm.BadResource},
		"key of too many":  {prm.CreateMKey, change(change(key(), prm.MKCtx, prm.MKCMode10, 3), prm.MKCtx, prm.MKCTranslations, 1<<18+1), prm.BadParam},
		"key list":         {prm.CreateMKey, change(change(key(), prm.MKCtx, prm.MKCMode10, 1), 0, prm.MKeyTranslations, 4), prm.BadInLen},
		"key list of PA":   {prm.CreateMKey, change(key(), 0, prm.MKeyTranslations, 1), prm.BadParam},
		"QP PD":            {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCPD, 0x777), prm.BadResource},
		"QP CQ":            {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCCQNSnd, 0x777), prm.BadResource},
		"QP receive CQ":    {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCCQNRcv, 0x777), prm.BadResource},
		"QP UAR":           {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCUAR, 1), prm.BadResource},
		"QP type":          {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCType, prm.STDCI), prm.BadParam},
		"QP signature":     {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCWQSignature, 1), prm.BadParam},
		"QP pages":         {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCLogSQSize, 6), prm.BadInLen},
		"QP scatter":       {prm.CreateQP, change(qp(), prm.QPCtx, prm.QPCScatterRes, 9), prm.BadParam},
		"QP SRQ":           {prm.CreateQP, change(change(qp(), prm.QPCtx, prm.QPCRQType, prm.RQSRQ), prm.QPCtx, prm.QPCSRQN, 0x777), prm.BadResource},
		"nothing":          {prm.CreateQP, qp(), prm.OK},
		"XRC SRQ, no CQ":   {prm.CreateXRCSRQ, v.xrcIn(page, dbr, 0x777), prm.BadResource},
		"RMP of no state":  {prm.CreateRMP, v.rmpIn(page, dbr, prm.WQStateRST, prm.WQLinkedList), prm.BadParam},
		"RMP, cyclic":      {prm.CreateRMP, v.rmpIn(page, dbr, prm.WQStateRDY, prm.WQCyclic), prm.BadParam},
		"group without QP": {prm.AttachToMCG, append(v.object(0x777), make([]byte, 16)...), prm.BadResource},
	} {
		if out, status := v.call(tt.op, 0, tt.in, small); status != tt.want {
			t.Errorf("%s: %s, want %s (syndrome %#x)", name, status, tt.want, prm.OutSyndrome.Get(out))
		}
	}
	v.violations(0)
}

// rmpIn makes CREATE_RMP's input: 16 WQEs of 32 bytes.
func (v *verbs) rmpIn(page, dbr uint64, state, kind uint64) []byte {
	in := v.with(page)
	x := in[prm.WQCtx:]
	wq := x[prm.WQInCtx:]
	prm.RMPCState.Put(x, state)
	prm.WQType.Put(wq, kind)
	prm.WQPD.Put(wq, uint64(v.pdn))
	prm.WQDBR.Put(wq, dbr)
	prm.WQLogStride.Put(wq, 5)
	prm.WQLogSize.Put(wq, 4)
	return in
}

func (v *verbs) xrcIn(page, dbr uint64, cqn uint32) []byte {
	in := v.with(page)
	x := in[prm.SRQCtx:]
	prm.SRQCLogSize.Put(x, 4)
	prm.SRQCLogStride.Put(x, 1)
	prm.SRQCCQN.Put(x, uint64(cqn))
	prm.SRQCPD.Put(x, uint64(v.pdn))
	prm.SRQCDBR.Put(x, dbr)
	prm.SRQCXRCD.Put(x, uint64(v.create(prm.AllocXRCD, v.in(small))))
	return in
}

func TestSRQ(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	dbr := v.page()
	rmpn := v.create(prm.CreateRMP, v.rmpIn(v.page(), dbr, prm.WQStateRDY, prm.WQLinkedList))
	xrcn := v.create(prm.CreateXRCSRQ, v.xrcIn(v.page(), dbr+64, cqn))
	// Ten WQEs are posted to each: with fewer than the limit it would be reached at once.
	for _, record := range []uint64{dbr, dbr + 64} {
		be.PutUint32(v.mem[record-ramBase:], 10)
	}

	// Each is known by its own commands only.
	v.refused(prm.BadResource, prm.DestroyXRCSRQ, 0, v.object(rmpn), small)
	v.refused(prm.BadResource, prm.QueryRMP, 0, v.object(xrcn), list)
	arm := v.object(xrcn)
	prm.ArmLWM.Put(arm, 5)
	v.refused(prm.BadOp, prm.ArmXRCSRQ, 0, arm, small)
	v.must(prm.ArmXRCSRQ, 1, arm, small)
	if x := v.must(prm.QueryXRCSRQ, 0, v.object(xrcn), list)[prm.SRQCtx:]; prm.SRQCLWM.Get(x) != 5 || prm.SRQCLogStride.Get(x) != 1 || prm.SRQCCQN.U32(x) != cqn {
		t.Errorf("QUERY_XRC_SRQ: %x", x[:64])
	}
	modify := v.rmpIn(0, 0, prm.WQStateRDY, 0)
	prm.ObjectNumber.Put(modify, uint64(rmpn))
	prm.ModifyState.Put(modify, prm.WQStateRDY)
	prm.WQLWM.Put(modify[prm.WQCtx+prm.WQInCtx:], 7)
	v.refused(prm.BadParam, prm.ModifyRMP, 0, modify, small)
	prm.ModifyMaskLWM.Put(modify, 1)
	v.must(prm.ModifyRMP, 0, modify, small)
	if x := v.must(prm.QueryRMP, 0, v.object(rmpn), list)[prm.WQCtx:]; prm.WQLWM.Get(x[prm.WQInCtx:]) != 7 || prm.RMPCState.Get(x) != prm.WQStateRDY {
		t.Errorf("QUERY_RMP: %x", x[:256])
	}
	qp := v.qpIn(prm.STRC, cqn, v.page(), v.page())
	prm.QPCRQType.Put(qp[prm.QPCtx:], prm.RQSRQ)
	prm.QPCSRQN.Put(qp[prm.QPCtx:], uint64(rmpn))
	qpn := v.create(prm.CreateQP, qp)
	v.refused(prm.ResBusy, prm.DestroyRMP, 0, v.object(rmpn), small)
	v.must(prm.DestroyQP, 0, v.object(qpn), small)
	v.must(prm.DestroyRMP, 0, v.object(rmpn), small)
	v.must(prm.DestroyXRCSRQ, 0, v.object(xrcn), small)
	v.violations(0)
}

func TestModifyCQ(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	in := v.with(v.page(), v.page())
	x := in[prm.CQCtx:]
	prm.ObjectNumber.Put(in, uint64(cqn))
	prm.ModifyCQSelect.Put(in, prm.ModifyCQPeriod|prm.ModifyCQCount)
	prm.CQCMaxCount.Put(x, 9)
	prm.CQCPeriod.Put(x, 33)
	v.must(prm.ModifyCQ, prm.ModifyCQOpModify, in, small)
	prm.ModifyCQSelect.Put(in, prm.ModifyCQOverrun)
	v.refused(prm.BadParam, prm.ModifyCQ, prm.ModifyCQOpModify, in, small)
	v.refused(prm.BadOp, prm.ModifyCQ, 3, in, small)
	prm.CQCLogSize.Put(x, 7)
	v.must(prm.ModifyCQ, prm.ModifyCQOpResize, in, small)
	y := v.must(prm.QueryCQ, 0, v.object(cqn), list)[prm.CQCtx:]
	if prm.CQCMaxCount.Get(y) != 9 || prm.CQCPeriod.Get(y) != 33 {
		t.Errorf("QUERY_CQ: %x", y[:64])
	}
	if s, err := v.d.eng.QueryCQ(cqn); err != nil || s.EntrySize != 64 {
		t.Errorf("%+v, %v", s, err)
	}
	v.refused(prm.BadResource, prm.ModifyCQ, prm.ModifyCQOpResize, v.cqIn(v.u, v.eqn, v.page(), 0), small)
}

// The unit of page_offset is a 64th of a page, whatever its size.
func TestBuffer(t *testing.T) {
	v := newRunning(t, IB)
	c := &call{in: v.with(0x10000, 0x20000, 0x30000)}
	b, err := c.buffer("queue", 2, 3, 2*16384)
	if err != nil || b.PageSize != 16384 || b.Offset != 3*256 || len(b.Pages) != 3 || b.Pages[2] != 0x30000 {
		t.Errorf("%+v, %v", b, err)
	}
	if b, err = c.buffer("queue", 2, 0, 2*16384); err != nil || b.Offset != 0 || len(b.Pages) != 2 {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err = c.buffer("queue", 2, 1, 3*16384); err == nil {
		t.Error("a list that is too short is taken")
	}
}

// Each right of a key is itself and no other.
func TestRights(t *testing.T) {
	v := newVerbs(t, IB)
	for f, want := range map[prm.Field]engine.Access{
		prm.MKCLocalRead: engine.LocalRead, prm.MKCLocalWrite: engine.LocalWrite, prm.MKCRemoteRead: engine.RemoteRead,
		prm.MKCRemoteWrite: engine.RemoteWrite, prm.MKCAtomic: engine.RemoteAtomic,
	} {
		in := v.mkeyIn(7)
		x := in[prm.MKCtx:]
		for _, other := range mkeyRights {
			other.f.PutBool(x, other.f == f)
		}
		n := v.create(prm.CreateMKey, in)
		s, err := v.d.eng.QueryMKey(n)
		if err != nil || s.Access != want {
			t.Errorf("field %v gives %#x, %v; want %#x", f, s.Access, err, want)
		}
		y := v.must(prm.QueryMKey, 0, v.object(n), list)[prm.MKCtx:]
		for _, other := range mkeyRights {
			if other.f.Bool(y) != (other.f == f) {
				t.Errorf("field %v: QUERY_MKEY has field %v as %v", f, other.f, other.f.Bool(y))
			}
		}
	}
}

// A key's list of pages is as long as its range needs.
func TestTranslations(t *testing.T) {
	v := newVerbs(t, IB)
	pages := []uint64{v.page() | 3, v.page() | 3, v.page() | 3}
	in := append(v.mkeyIn(1), v.with(pages...)[list:]...)
	x := in[prm.MKCtx:]
	prm.MKCMode10.Put(x, uint64(engine.ModeMTT))
	prm.MKCLength64.Put(x, 0)
	prm.MKCStart.Put(x, 0x7000_0800)
	prm.MKCLen.Put(x, 0x2000) // the third page is used in half
	prm.MKCLogPage.Put(x, 12)
	prm.MKeyTranslations.Put(in, 2) // two octowords, of which the last half is left out
	s, err := v.d.eng.QueryMKey(v.create(prm.CreateMKey, in))
	if err != nil || len(s.Pages) != 3 || s.Pages[2]&^0xfff != pages[2]&^0xfff {
		t.Errorf("%+v, %v", s, err)
	}
	prm.MKeyTranslations.Put(in, 3)
	v.refused(prm.BadInLen, prm.CreateMKey, 0, in, small)
	prm.MKeyTranslations.Put(in, 1)
	v.refused(prm.BadParam, prm.CreateMKey, 0, in, small) // fewer pages than the range has

	klm := append(v.mkeyIn(2), make([]byte, 16)...)
	x = klm[prm.MKCtx:]
	prm.MKCMode10.Put(x, uint64(engine.ModeKLM))
	prm.MKCLength64.Put(x, 0)
	prm.MKCLen.Put(x, 100)
	prm.MKeyTranslations.Put(klm, 1)
	be.PutUint32(klm[list:], 100)
	be.PutUint32(klm[list+4:], v.key)
	be.PutUint64(klm[list+8:], 0x1234)
	s, err = v.d.eng.QueryMKey(v.create(prm.CreateMKey, klm))
	if err != nil || len(s.KLMs) != 1 || s.KLMs[0] != (engine.KLM{Length: 100, Key: v.key, VA: 0x1234}) {
		t.Errorf("%+v, %v", s, err)
	}
}
