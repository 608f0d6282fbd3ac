package hca

import (
	"bytes"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/hca/prm"
)

// dumpIn is the register RESOURCE_DUMP as a driver writes it.
func (v *driver) dumpIn(segment uint16, index, mkey uint32, addr uint64, size int) []byte {
	in := v.in(prm.RegisterData + prm.DumpRegSize)
	prm.RegisterID.Put(in, regResourceDump)
	r := in[prm.RegisterData:]
	prm.DumpSegment.Put(r, uint64(segment))
	prm.DumpIndex1.Put(r, uint64(index))
	if segment != prm.SegmentMenu {
		prm.DumpNumOfObj1.Put(r, 1)
	}
	prm.DumpMKey.Put(r, uint64(mkey))
	prm.DumpAddress.Put(r, addr)
	prm.DumpSize.Put(r, uint64(size))
	return in
}

// physicalKey makes a key for all physical addresses.
func (v *driver) physicalKey(pd uint32, write bool) uint32 {
	v.t.Helper()
	in := v.in(list)
	x := prm.Record(in, prm.MKCtx, prm.MKCSize)
	prm.MKCLocalRead.Put(x, 1)
	prm.MKCLocalWrite.PutBool(x, write)
	prm.MKCPD.Put(x, uint64(pd))
	prm.MKCLength64.Put(x, 1)
	prm.MKCQPN.Put(x, 0xffffff)
	prm.MKCKey.Put(x, 0x5a)
	return v.create(prm.CreateMKey, in)<<8 | 0x5a
}

// TestResourceDump: the menu names the segments, and a segment has the answer of the query.
func TestResourceDump(t *testing.T) {
	v := newRunning(t, IB)
	if kind := v.must(prm.QueryHCACap, prm.CapDebug<<1|1, v.in(small), prm.CapsData+prm.CapsSize); !prm.CapResourceDump.Bool(kind[prm.CapsData:]) {
		t.Fatal("the card has no capability for RESOURCE_DUMP")
	}
	uar := v.uar()
	eqn := v.eq(uar, 0, 1, v.page())
	cqn, _, _ := v.newCQ(uar, eqn)
	key, page := v.physicalKey(v.pd(), true), v.page()
	mem, _ := v.Bytes(page, 4096)
	size := prm.RegisterData + prm.DumpRegSize
	dump := func(segment uint16, index uint32) []byte {
		t.Helper()
		clear(mem)
		in := v.dumpIn(segment, index, key, page, 4096)
		prm.DumpSeq.Put(in[prm.RegisterData:], 15)
		out := v.must(prm.AccessReg, accessWrite, in, size)[prm.RegisterData:]
		if prm.DumpMore.Bool(out) || prm.DumpSeq.Get(out) != 0 {
			t.Errorf("more %v, sequence %d, want the end and 0", prm.DumpMore.Bool(out), prm.DumpSeq.Get(out))
		}
		return mem[:prm.DumpSize.U32(out)]
	}
	m := dump(prm.SegmentMenu, 0)[prm.InfoSize+prm.CommandSize:]
	types := map[string]uint16{}
	for i := range int(prm.MenuRecords.Get(m)) {
		r := m[prm.MenuSize+i*prm.RecordSize:]
		name, _, _ := strings.Cut(string(r[prm.RecordName:][:prm.RecordNameSize]), "\x00")
		types[name] = uint16(prm.RecordType.Get(r))
	}
	if len(types) != 3 {
		t.Fatalf("the menu is %v", types)
	}
	for name, n := range map[string]uint32{"PRM_QUERY_CQ": cqn, "PRM_QUERY_MKEY": key >> 8} {
		op := map[string]prm.Op{"PRM_QUERY_CQ": prm.QueryCQ, "PRM_QUERY_MKEY": prm.QueryMKey}[name]
		b := dump(types[name], n)
		if prm.SegmentType.Get(b) != prm.SegmentCommand || uint16(prm.CommandCalled.Get(b)) != types[name] || prm.CommandIndex1.U32(b) != n {
			t.Errorf("%s begins with %x", name, b[:prm.CommandSize])
		}
		b = b[prm.CommandSize:]
		if prm.ResourceIndex1.U32(b) != n || !bytes.Equal(b[prm.ResourceSize:][:list], v.must(op, 0, v.object(n), list)) {
			t.Errorf("%s of %d is %x", name, n, b)
		}
		if end := b[4*prm.SegmentLength.Get(b):]; prm.SegmentType.Get(end) != prm.SegmentTerminate || len(end) != prm.TerminateSize {
			t.Errorf("%s ends with %x", name, end)
		}
	}
	refused := func(in []byte) { t.Helper(); v.refused(prm.BadParam, prm.AccessReg, accessWrite, in, size) }
	refused(v.dumpIn(0x4711, cqn, key, page, 4096))
	refused(v.dumpIn(types["PRM_QUERY_CQ"], cqn, key, page, 64))
	refused(v.dumpIn(types["PRM_QUERY_CQ"], cqn, key^1, page, 4096))
	refused(v.dumpIn(types["PRM_QUERY_CQ"], cqn, key, 8, 4096))
	refused(v.dumpIn(types["PRM_QUERY_CQ"], cqn, v.physicalKey(v.pd(), false), page, 4096))
	two := v.dumpIn(types["PRM_QUERY_CQ"], cqn, key, page, 4096)
	prm.DumpNumOfObj1.Put(two[prm.RegisterData:], 2)
	refused(two)
	v.refused(prm.BadParam, prm.AccessReg, accessRead, v.dumpIn(prm.SegmentMenu, 0, key, page, 4096), size)
	v.refused(prm.BadInLen, prm.AccessReg, accessWrite, v.dumpIn(prm.SegmentMenu, 0, key, page, 4096), small)
	v.violations(0)
}
