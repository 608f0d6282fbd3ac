package hca

import (
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// eth is a running card with receive queues and what leads to them.
type eth struct {
	*verbs
	domain uint32
	rqs    []uint32
}

func newEth(t *testing.T, rqs int) *eth {
	t.Helper()
	e := &eth{verbs: newVerbs(t, RoCE)}
	cqn, _, _ := e.newCQ(e.u, e.eqn)
	e.domain = e.create(prm.AllocTransportDomain, e.in(small))
	for range rqs {
		in := e.with(e.page())
		x := in[prm.WQCtx:]
		wq := x[prm.WQInCtx:]
		prm.RQCCQN.Put(x, uint64(cqn))
		prm.WQType.Put(wq, prm.WQCyclic)
		prm.WQPD.Put(wq, uint64(e.pdn))
		prm.WQDBR.Put(wq, e.page())
		prm.WQLogStride.Put(wq, 6)
		prm.WQLogSize.Put(wq, 4)
		rqn := e.create(prm.CreateRQ, in)
		e.must(prm.ModifyRQ, 0, e.stateIn(rqn, prm.WQStateRST, prm.WQStateRDY), small)
		e.rqs = append(e.rqs, rqn)
	}
	return e
}

// stateIn makes the input of MODIFY_RQ and MODIFY_SQ.
func (e *eth) stateIn(n uint32, from, to uint64) []byte {
	in := e.with()
	prm.ObjectNumber.Put(in, uint64(n))
	prm.ModifyState.Put(in, from)
	prm.RQCState.Put(in[prm.WQCtx:], to)
	return in
}

func (e *eth) tir(rqn uint32) uint32 {
	in := e.with()
	x := in[prm.WQCtx:]
	prm.TIRCInlineRQN.Put(x, uint64(rqn))
	prm.TIRCDomain.Put(x, uint64(e.domain))
	return e.create(prm.CreateTIR, in)
}

func (e *eth) table(kind uint64) uint32 {
	in := e.in(0x200 / 8)
	prm.FTType.Put(in, kind)
	prm.FTCLogSize.Put(in[prm.FTCtx:], 4)
	return e.create(prm.CreateFlowTable, in)
}

func tableIn(n int, kind uint64, table uint32) []byte {
	in := make([]byte, n)
	prm.FTType.Put(in, kind)
	prm.FTNumber.Put(in, uint64(table))
	return in
}

// group makes a group that matches some fields.
func (e *eth) group(table uint32, first, last uint32, fields ...prm.Field) uint32 {
	e.t.Helper()
	return e.create(prm.CreateFlowGroup, e.groupIn(table, first, last, fields...))
}

func (e *eth) groupIn(table uint32, first, last uint32, fields ...prm.Field) []byte {
	in := tableIn(0x2000/8, tableNICReceive, table)
	prm.FGStart.Put(in, uint64(first))
	prm.FGEnd.Put(in, uint64(last))
	prm.FGEnable.Put(in, enableOuter)
	for _, f := range fields {
		f.Put(in[prm.FGMatch:], ^uint64(0))
	}
	return in
}

type match struct {
	f prm.Field
	v uint64
}

func (e *eth) entryIn(table, group, index uint32, dests []dest, matches ...match) []byte {
	in := append(tableIn(0x1a00/8, tableNICReceive, table), make([]byte, 8*len(dests))...)
	prm.FTEIndex.Put(in, uint64(index))
	x := in[prm.FTECtx:]
	prm.FTEGroup.Put(x, uint64(group))
	prm.FTEAction.Put(x, actionForward)
	prm.FTEDestCount.Put(x, uint64(len(dests)))
	for i, to := range dests {
		prm.DestType.Put(x[prm.FTEDest+8*i:], uint64(to.kind))
		prm.DestID.Put(x[prm.FTEDest+8*i:], uint64(to.id))
	}
	for _, m := range matches {
		m.f.Put(x[prm.FTEMatch:], m.v)
	}
	return in
}

func (e *eth) entry(table, group, index uint32, to dest, matches ...match) {
	e.t.Helper()
	e.must(prm.SetFlowTableEntry, 0, e.entryIn(table, group, index, []dest{to}, matches...), small)
}

const frameUDP = "\x50\x6b\x4b\xc0\xff\x07\x02\x00\x00\x00\x00\x01\x08\x00" +
	"\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x01\x00\x02\x0a\x01\x00\x01" +
	"\xc0\x00\x12\xb7\x00\x08\x00\x00"

const frameARP = "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x08\x06" + "\x00\x01\x08\x00\x06\x04\x00\x01"

func TestSteering(t *testing.T) {
	e := newEth(t, 3)
	root, second := e.table(tableNICReceive), e.table(tableNICReceive)
	udp, rest := e.tir(e.rqs[0]), e.tir(e.rqs[1])
	byMAC := e.group(root, 0, 3, matchDMACHigh, matchDMACLow)
	all := e.group(root, 4, 4)
	byPort := e.group(second, 0, 0, matchIPVersion, matchProtocol, matchUDPDport)
	others := e.group(second, 15, 15)
	e.entry(root, byMAC, 2, dest{destTable, second}, match{matchDMACHigh, 0x506b4bc0}, match{matchDMACLow, 0xff07})
	e.entry(second, byPort, 0, dest{destTIR, udp}, match{matchIPVersion, 4}, match{matchProtocol, protoUDP}, match{matchUDPDport, 4791})
	tagged := e.entryIn(second, others, 15, []dest{{destTIR, rest}})
	prm.FTETag.Put(tagged[prm.FTECtx:], 0x345678)
	e.must(prm.SetFlowTableEntry, 0, tagged, small)
	if got := e.d.eth.receive([]byte(frameUDP)); got != nil {
		t.Errorf("without a root, a frame goes to %x", got)
	}
	e.must(prm.SetFlowTableRoot, 0, tableIn(0x200/8, tableNICReceive, root), small)

	check := func(what string, frame []byte, want ...uint32) {
		t.Helper()
		got := e.d.eth.receive(frame)
		if !slices.EqualFunc(got, want, func(d engine.Delivery, rq uint32) bool { return d.RQ == rq }) {
			t.Errorf("%s goes to %x, want %x", what, got, want)
		}
		for _, d := range got {
			if tag := map[bool]uint32{true: 0x345678}[what == "another port"]; d.Tag != tag {
				t.Errorf("%s has tag %#x, want %#x", what, d.Tag, tag)
			}
		}
	}
	other := []byte(frameUDP)
	other[14+20+3]++
	check("RoCE", []byte(frameUDP), e.rqs[0])
	check("another port", other, e.rqs[1])
	check("a broadcast", []byte(frameARP))
	check("a short frame", []byte(frameARP)[:13])
	inVLAN := slices.Concat([]byte(frameUDP)[:12], []byte{0x81, 0x00, 0x20, 0x05}, []byte(frameUDP)[12:])
	check("a VLAN's frame", inVLAN, e.rqs[0])
	for n := range frameUDP {
		e.d.eth.receive([]byte(frameUDP)[:n]) // no panic, whatever is cut off
		e.d.eth.receive(inVLAN[:n])
	}
	// A table of several queues: a flow stays in one of them.
	spread, rqtn := e.spread()
	both := e.entryIn(root, all, 4, []dest{{destTIR, spread}, {destTIR, udp}})
	e.must(prm.SetFlowTableEntry, 0, both, small)
	e.checkSpread(t)

	// What leads somewhere keeps it there.
	e.refused(prm.ResBusy, prm.DestroyTIR, 0, e.object(udp), small)
	e.refused(prm.ResBusy, prm.DestroyRQT, 0, e.object(rqtn), small)
	e.refused(prm.ResBusy, prm.DestroyRQ, 0, e.object(e.rqs[0]), small)
	e.refused(prm.ResBusy, prm.DeallocTransportDom, 0, e.object(e.domain), small)
	e.refused(prm.ResBusy, prm.DestroyFlowTable, 0, tableIn(0x200/8, tableNICReceive, second), small)
	destroy := tableIn(0x200/8, tableNICReceive, root)
	prm.FGNumber.Put(destroy, uint64(all))
	e.refused(prm.ResBusy, prm.DestroyFlowGroup, 0, destroy, small)
	del := tableIn(0x200/8, tableNICReceive, root)
	prm.FTEIndex.Put(del, 4)
	e.must(prm.DeleteFlowTableEntry, 0, del, small)
	e.refused(prm.BadResource, prm.DeleteFlowTableEntry, 0, del, small)
	check("a broadcast", []byte(frameARP))
	e.must(prm.DestroyFlowGroup, 0, destroy, small)
	e.must(prm.DestroyTIR, 0, e.object(spread), small)
	e.must(prm.DestroyRQT, 0, e.object(rqtn), small)
	e.violations(0)
}

// spread makes a table of the second and third queue, and a TIR that spreads flows over them.
func (e *eth) spread() (tirn, rqtn uint32) {
	rqt := append(e.with(), make([]byte, 64)...)
	x := rqt[prm.WQCtx:]
	prm.RQTActual.Put(x, 2)
	prm.RQTEntry.Put(x[prm.RQTList:], uint64(e.rqs[1]))
	prm.RQTEntry.Put(x[prm.RQTList+4:], uint64(e.rqs[2]))
	rqtn = e.create(prm.CreateRQT, rqt)
	tir := e.with()
	prm.TIRCDispType.Put(tir[prm.WQCtx:], tirIndirect)
	prm.TIRCIndirect.Put(tir[prm.WQCtx:], uint64(rqtn))
	prm.TIRCDomain.Put(tir[prm.WQCtx:], uint64(e.domain))
	return e.create(prm.CreateTIR, tir), rqtn
}

// checkSpread checks that the frames of a flow go to the first queue and, always the same one, a
// queue of the table, and that flows go to both queues of the table.
func (e *eth) checkSpread(t *testing.T) {
	t.Helper()
	seen := map[uint32]bool{}
	for i := range 64 {
		frame := []byte(frameARP)
		frame[11] = byte(i)
		a, b := e.d.eth.receive(frame), e.d.eth.receive(frame)
		if len(a) != 2 || !slices.Equal(a, b) || a[0].RQ != e.rqs[0] {
			t.Fatalf("a frame goes to %x and %x", a, b)
		}
		seen[a[1].RQ] = true
	}
	if len(seen) != 2 {
		t.Errorf("all flows go to the same queue of the table: %v", seen)
	}
}

func TestBadSteering(t *testing.T) {
	e := newEth(t, 1)
	table := e.table(tableNICReceive)
	g := e.group(table, 0, 3, matchEtherType)
	tirn := e.tir(e.rqs[0])
	inner := e.groupIn(table, 8, 9)
	prm.FGEnable.Put(inner, 4)
	l4 := e.groupIn(table, 8, 9)
	l4[prm.FGMatch+0x18] = 0xff // l4_type
	kind := e.in(0x200 / 8)
	prm.FTType.Put(kind, 4)
	miss := e.in(0x200 / 8)
	prm.FTCMissAction.Put(miss[prm.FTCtx:], missForward)
	prm.FTCMissTable.Put(miss[prm.FTCtx:], 0x999)
	count := e.entryIn(table, g, 0, []dest{{destTIR, tirn}})
	prm.FTEAction.Put(count[prm.FTECtx:], 8)
	cut := e.entryIn(table, g, 0, []dest{{destTIR, tirn}})
	prm.FTEDestCount.Put(cut[prm.FTECtx:], 5)
	noDomain := e.with()
	prm.TIRCInlineRQN.Put(noDomain[prm.WQCtx:], uint64(e.rqs[0]))
	noRQ := e.with()
	prm.TIRCDomain.Put(noRQ[prm.WQCtx:], uint64(e.domain))
	rqt := e.with()
	prm.RQTActual.Put(rqt[prm.WQCtx:], 1)
	for name, tt := range map[string]struct {
		op   prm.Op
		in   []byte
		want prm.Status
	}{
		"table type":     {prm.CreateFlowTable, kind, prm.BadParam},
		"miss table":     {prm.CreateFlowTable, miss, prm.BadResource},
		"no table":       {prm.SetFlowTableRoot, tableIn(0x200/8, tableNICReceive, 0x999), prm.BadResource},
		"table's type":   {prm.SetFlowTableRoot, tableIn(0x200/8, tableNICTransmit, table), prm.BadParam},
		"group overlaps": {prm.CreateFlowGroup, e.groupIn(table, 3, 5), prm.BadParam},
		"group's range":  {prm.CreateFlowGroup, e.groupIn(table, 8, 16), prm.BadParam},
		"inner headers":  {prm.CreateFlowGroup, inner, prm.BadParam},
		"unknown field":  {prm.CreateFlowGroup, l4, prm.BadParam},
		"entry's index":  {prm.SetFlowTableEntry, e.entryIn(table, g, 4, []dest{{destTIR, tirn}}), prm.BadParam},
		"entry's group":  {prm.SetFlowTableEntry, e.entryIn(table, 99, 0, []dest{{destTIR, tirn}}), prm.BadParam},
		"counter":        {prm.SetFlowTableEntry, count, prm.BadParam},
		"no TIR":         {prm.SetFlowTableEntry, e.entryIn(table, g, 0, []dest{{destTIR, 0x999}}), prm.BadResource},
		"no next table":  {prm.SetFlowTableEntry, e.entryIn(table, g, 0, []dest{{destTable, 0x999}}), prm.BadResource},
		"a vport":        {prm.SetFlowTableEntry, e.entryIn(table, g, 0, []dest{{0, 1}}), prm.BadParam},
		"cut off":        {prm.SetFlowTableEntry, cut, prm.BadInLen},
		"TIR, no domain": {prm.CreateTIR, noDomain, prm.BadResource},
		"TIR, no RQ":     {prm.CreateTIR, noRQ, prm.BadResource},
		"RQT, cut off":   {prm.CreateRQT, rqt, prm.BadInLen},
		"RQ's state":     {prm.ModifyRQ, e.stateIn(e.rqs[0], prm.WQStateRST, prm.WQStateRDY), prm.BadResState},
		"TIS, no domain": {prm.CreateTIS, e.in(0x600 / 8), prm.BadResource},
		"SQ of no type":  {prm.CreateSQ, e.with(), prm.BadParam},
	} {
		if out, status := e.call(tt.op, 0, tt.in, small); status != tt.want {
			t.Errorf("%s: %s, want %s (syndrome %#x)", name, status, tt.want, prm.OutSyndrome.Get(out))
		}
	}
	e.violations(0)
}

// A loop of tables ends.
func TestSteeringLoop(t *testing.T) {
	e := newEth(t, 1)
	a, b := e.table(tableNICReceive), e.table(tableNICReceive)
	e.entry(a, e.group(a, 0, 0), 0, dest{destTable, b})
	e.entry(b, e.group(b, 0, 0), 0, dest{destTable, a})
	e.must(prm.SetFlowTableRoot, 0, tableIn(0x200/8, tableNICReceive, a), small)
	if got := e.d.eth.receive([]byte(frameUDP)); got != nil {
		t.Errorf("a frame in a loop goes to %x", got)
	}
}

// TestFlowCounter: an entry counts the frames that it takes, and those that it drops.
func TestFlowCounter(t *testing.T) {
	e := newEth(t, 1)
	tir := e.tir(e.rqs[0])
	table := e.table(tableNICReceive)
	e.must(prm.SetFlowTableRoot, 0, tableIn(0x200/8, tableNICReceive, table), small)
	group := e.group(table, 0, 3, matchEtherType)
	id := prm.FlowCounterID.Get(e.must(prm.AllocFlowCounter, 0, e.in(small), small))
	counter := func(n uint64) []byte {
		in := e.in(small)
		prm.FlowCounterID.Put(in, n)
		return in
	}
	counts := func() (packets, octets uint64) {
		t.Helper()
		in := e.in(0x100 / 8)
		prm.FlowQueryID.Put(in, id)
		x := e.must(prm.QueryFlowCounter, 0, in, 0x180/8)[prm.FlowStatistics:]
		return be.Uint64(x), be.Uint64(x[8:])
	}
	counting := func(index uint32, dests []dest, action uint64, etherType, n uint64) []byte {
		in := append(e.entryIn(table, group, index, dests, match{matchEtherType, etherType}), make([]byte, 8)...)
		x := in[prm.FTECtx:]
		prm.FTEAction.Put(x, action|actionCount)
		prm.FTECntCount.Put(x, 1)
		be.PutUint32(x[prm.FTEDest+8*len(dests):], uint32(n))
		return in
	}
	e.refused(prm.BadResource, prm.SetFlowTableEntry, 0, counting(0, []dest{{destTIR, tir}}, actionForward, etherIPv4, id+1), small)
	e.must(prm.SetFlowTableEntry, 0, counting(0, []dest{{destTIR, tir}}, actionForward, etherIPv4, id), small)
	e.must(prm.SetFlowTableEntry, 0, counting(1, nil, actionDrop, 0x0806, id), small)
	if p, o := counts(); p != 0 || o != 0 {
		t.Errorf("%d packets, %d bytes before any", p, o)
	}
	for range 3 {
		e.d.eth.receive([]byte(frameUDP))
	}
	e.d.eth.receive([]byte(frameARP))
	if p, o := counts(); p != 4 || o != uint64(3*len(frameUDP)+len(frameARP)) {
		t.Errorf("%d packets, %d bytes; want 4 and %d", p, o, 3*len(frameUDP)+len(frameARP))
	}
	e.refused(prm.ResBusy, prm.DeallocFlowCounter, 0, counter(id), small)
	for index := range uint64(2) {
		in := tableIn(0x200/8, tableNICReceive, table)
		prm.FTEIndex.Put(in, index)
		e.must(prm.DeleteFlowTableEntry, 0, in, small)
	}
	e.must(prm.DeallocFlowCounter, 0, counter(id), small)
	e.refused(prm.BadResource, prm.DeallocFlowCounter, 0, counter(id), small)
	in := e.in(0x100 / 8)
	prm.FlowQueryID.Put(in, id)
	e.refused(prm.BadResource, prm.QueryFlowCounter, 0, in, 0x180/8)
}

// TestRDMACounter: the tables for packets of RDMA count those of RoCE that a port sends or receives, and no frame is
// made of a packet as long as nothing counts.
func TestRDMACounter(t *testing.T) {
	e := newEth(t, 1)
	made := 0
	frame := func() []byte { made++; return []byte(frameUDP) }
	e.d.eth.countRoCE(engine.Received, frame)
	if made != 0 {
		t.Error("a frame is made for nothing")
	}
	var ids [2]uint64
	for way, kind := range map[engine.Way]uint64{engine.Received: tableRDMAReceive, engine.Sent: tableRDMATransmit} {
		table := e.table(kind)
		e.must(prm.SetFlowTableRoot, 0, tableIn(0x200/8, kind, table), small)
		in := e.groupIn(table, 0, 0, matchIPVersion)
		prm.FTType.Put(in, kind)
		group := e.create(prm.CreateFlowGroup, in)
		ids[way] = prm.FlowCounterID.Get(e.must(prm.AllocFlowCounter, 0, e.in(small), small))
		in = append(e.entryIn(table, group, 0, nil, match{matchIPVersion, 4}), make([]byte, 8)...)
		prm.FTType.Put(in, kind)
		x := in[prm.FTECtx:]
		prm.FTEAction.Put(x, actionAllow|actionCount)
		prm.FTECntCount.Put(x, 1)
		be.PutUint32(x[prm.FTEDest:], uint32(ids[way]))
		e.must(prm.SetFlowTableEntry, 0, in, small)
	}
	e.d.eth.countRoCE(engine.Received, frame)
	e.d.eth.countRoCE(engine.Sent, frame)
	e.d.eth.countRoCE(engine.Sent, frame)
	e.d.eth.countRoCE(engine.Sent, func() []byte { return nil }) // a packet without a form of RoCE v2
	for way, want := range []uint64{engine.Received: 1, engine.Sent: 2} {
		in := e.in(0x100 / 8)
		prm.FlowQueryID.Put(in, ids[way])
		x := e.must(prm.QueryFlowCounter, 0, in, 0x180/8)[prm.FlowStatistics:]
		if p, o := be.Uint64(x), be.Uint64(x[8:]); p != want || o != want*uint64(len(frameUDP)) {
			t.Errorf("way %d: %d packets, %d bytes, want %d of %d", way, p, o, want, len(frameUDP))
		}
	}
	e.violations(0)
}
