package hca

import (
	"bytes"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// TestSubnetTables: a subnet manager sets P_Keys, GUIDs, and the tables of SLs and VLs.
func TestSubnetTables(t *testing.T) {
	m := newManager(t)
	block := func(n int, first byte) []byte {
		b := make([]byte, subnetBytes)
		for i := range n {
			b[i] = first + byte(i)
		}
		return b
	}
	for _, c := range []struct {
		attr uint16
		mod  uint32
		n    int // bytes that are kept
		bad  []uint32
	}{
		{attrPKeyTable, 3, 64, []uint32{4, 1 << 16}},
		{attrGUIDInfo, 7, 64, []uint32{8}},
		{attrSLToVL, 0, 8, nil},
		{attrVLArb, 1 << 16, 64, []uint32{0, 5 << 16}},
		{attrVLArb, 4 << 16, 64, nil},
	} {
		data := block(64, byte(c.attr))
		want := append(bytes.Clone(data[:c.n]), make([]byte, subnetBytes-c.n)...)
		for _, r := range []request{{method: methodSet, data: data}, {method: methodGet}} {
			r.class, r.attr, r.mod = classSubnet, c.attr, c.mod
			if got := m.ask(statusOK, r)[:subnetBytes]; !bytes.Equal(got, want) {
				t.Errorf("attribute %#x, modifier %#x: %x, want %x", c.attr, c.mod, got, want)
			}
			for _, mod := range c.bad {
				r.mod = mod
				m.ask(statusBadValue, r)
			}
		}
	}
	p := m.d.eng.Port()
	if p.PKeys[96] != 0x1617 || p.PKeys[0] != 0xffff || be.Uint64(p.GIDs[63].Addr[:]) != subnetPrefix || p.GIDs[63].Addr[15] != 0x14+63 || p.GIDs[63].Invalid {
		t.Errorf("P_Keys %#x and %#x, GID %+v", p.PKeys[0], p.PKeys[96], p.GIDs[63])
	}
	// The first GUID is the port's own. 0 removes one.
	got := m.ask(statusOK, request{class: classSubnet, method: methodSet, attr: attrGUIDInfo, data: append(make([]byte, 16), block(48, 1)...)})
	if be.Uint64(got) != m.d.guid() || be.Uint64(got[8:]) != 0 || got[16] != 1 {
		t.Errorf("GUIDs %x", got[:64])
	}
	if p := m.d.eng.Port(); !p.GIDs[1].Invalid || p.GIDs[2].Invalid {
		t.Errorf("GIDs %+v", p.GIDs[:3])
	}
}

// TestMADStatus: what no agent knows has a status.
func TestMADStatus(t *testing.T) {
	m := newManager(t)
	for _, c := range []struct {
		status uint16
		r      request
	}{
		{statusBadAttr, request{class: classSubnet, method: methodGet, attr: 0x99}},
		{statusBadAttr, request{class: classSubnet, method: methodSet, attr: attrNodeInfo}},
		{statusBadAttr, request{class: classSubnet, method: methodSet, attr: attrNodeDesc}},
		{statusBadAttr | statusDirected, request{class: classDirected, method: methodGet, attr: 0x12}},
		{statusBadMethod, request{class: classSubnet, method: 0x05, attr: attrPortInfo}},
		{statusBadMethod, request{class: classPerf, method: methodTrapRepress, attr: attrPortCounters}},
		{statusBadAttr, request{class: classPerf, method: methodGet, attr: 0x99}},
		{statusBadAttr, request{class: classPerf, method: methodSet, attr: attrClassPortInfo}},
		{statusBadValue, request{class: classPerf, method: methodGet, attr: attrPortCounters, data: []byte{0, 2}}},
		{statusBadAttr, request{class: 0x09, method: methodGet, attr: 0x10}},
		{statusBadAttr, request{class: 0x0a, method: methodGet, attr: 0x50}},
		{statusBadAttr, request{class: 0x21, method: methodSet, attr: 0x11}},
		{statusOK, request{class: classSubnet, method: methodTrapRepress, attr: 0x02}},
		{statusOK, request{class: classSubnet, method: methodGet, attr: attrMellanoxPort, mod: 1}},
	} {
		m.ask(c.status, c.r)
	}
	n := prm.MADData + prm.MADSize
	for _, at := range []int{madBase, madClassVer} {
		in := m.input(request{class: classSubnet, method: methodGet, attr: attrNodeInfo})
		in[prm.MADData+at] = 3
		if a := m.must(prm.MADIFC, 0, in, n)[prm.MADData:]; be.Uint16(a[madStatus:]) != statusBadVersion {
			t.Errorf("byte %d of the header: %x", at, a[:24])
		}
	}
	in := m.input(request{class: classSubnet, method: methodGet, attr: attrNodeInfo})
	m.refused(prm.BadParam, prm.MADIFC, 4, in, n)
	prm.MADPort.Put(in, 2)
	m.refused(prm.BadParam, prm.MADIFC, 0, in, n)
}

// TestPortEvents: the driver is told what a subnet manager changes, if it has asked to be.
func TestPortEvents(t *testing.T) {
	m := newManager(t)
	uar, page := m.uar(), m.page()
	m.eq(uar, 3, 1<<prm.EventPortChange, page)
	m.eq(uar, 4, 1<<prm.EventCQError, m.page())
	seen := 0
	told := func(what string, want ...byte) {
		t.Helper()
		var got []byte
		for ; m.mem[page-ramBase:][64*seen+1] == prm.EventPortChange; seen++ {
			e := m.mem[page-ramBase:][64*seen:][:64]
			if e[40]>>4 != 1 {
				t.Errorf("%s: an event of port %d", what, e[40]>>4)
			}
			got = append(got, e[3])
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: events %d, want %d", what, got, want)
		}
	}
	m.setPort(statusOK, 0, setting{piState, portArmed})
	told("a LID", engine.PortLID)
	m.setPort(statusOK, 0, setting{piState, portActive}, setting{piReregister, 1})
	told("activation", engine.PortActive, engine.PortRereg)
	if b := m.portInfo(); piReregister.Bool(b) {
		t.Error("the reregister bit stays")
	}
	m.setPort(statusOK, 0, setting{piSMLID, 5}, setting{piSMSL, 2})
	told("another subnet manager")
	m.ask(statusOK, request{class: classSubnet, method: methodSet, attr: attrPKeyTable, data: []byte{0xff, 0xff, 0x80, 0x01}})
	told("a P_Key", engine.PortPKey)
	m.ask(statusOK, request{class: classSubnet, method: methodSet, attr: attrPKeyTable, data: []byte{0xff, 0xff, 0x80, 0x01}})
	told("the same P_Keys")
	m.ask(statusOK, request{class: classSubnet, method: methodSet, attr: attrGUIDInfo, data: append(make([]byte, 8), 1, 2, 3, 4, 5, 6, 7, 8)})
	told("a GUID", engine.PortGUID)
	m.setPort(statusOK, 0, setting{piPrefix, 0xfec0 << 48})
	told("a prefix", engine.PortGUID)
	m.setPort(statusOK, 0, setting{piState, portDown})
	told("a link that comes up again", engine.PortDown, engine.PortInit)
	m.violations(0)
}

// TestNoSMI: without a subnet management interface there are no such datagrams and no subnet manager, and the rest
// works.
func TestNoSMI(t *testing.T) {
	v := newRunningOf(t, IB, Personality{NoSMI: true})
	m := &manager{driver: v}
	n := prm.HCAVPort + prm.HCAVPortSize
	x := v.must(prm.QueryHCAVPortCtx, 0, v.in(small), n)[prm.HCAVPort:]
	if prm.HVPHasSMI.Bool(x) || prm.HVPCapMask1Sel.U32(x)&capIsSM != 0 {
		t.Errorf("the virtual port has an SMI, or a subnet manager: %x", x[:0x70])
	}
	in := v.in(n)
	prm.HVPCapMask1Sel.Put(in[prm.HCAVPort:], capIsSM)
	v.refused(prm.BadParam, prm.ModifyHCAVPortCtx, 0, in, small)
	for _, class := range []byte{classSubnet, classDirected} {
		v.refused(prm.BadParam, prm.MADIFC, 0, m.input(request{class: class, method: methodGet, attr: attrNodeInfo}), prm.MADData+prm.MADSize)
	}
	m.ask(statusOK, perf(methodGet, attrPortCounters))
	if _, err := New(Config{Mode: IB, Managed: true, Personality: Personality{NoSMI: true}}); err == nil {
		t.Error("a port without a subnet management interface is managed")
	}
	if _, err := New(Config{Mode: RoCE, Managed: true}); err == nil {
		t.Error("a port of Ethernet is managed")
	}
}

// TestEthernetSMI: a card on Ethernet answers what its driver asks of subnet management, and lets nobody change it.
func TestEthernetSMI(t *testing.T) {
	m := &manager{driver: newRunning(t, RoCE)}
	m.ask(statusOK, request{class: classSubnet, method: methodGet, attr: attrNodeInfo})
	m.ask(statusOK, request{class: classSubnet, method: methodGet, attr: attrMellanoxPort, mod: 1})
	before := m.d.eng.Port()
	for _, class := range []byte{classSubnet, classDirected} {
		for _, attr := range []uint16{attrPortInfo, attrGUIDInfo, attrPKeyTable, attrSLToVL} {
			m.refused(prm.BadParam, prm.MADIFC, ignoreMKey, m.input(request{class: class, method: methodSet, attr: attr, data: make([]byte, subnetBytes)}), prm.MADData+prm.MADSize)
		}
	}
	if after := m.d.eng.Port(); !slices.Equal(after.PKeys, before.PKeys) || !slices.Equal(after.GIDs, before.GIDs) {
		t.Errorf("the port has P_Keys %#x and GIDs %v, had %#x and %v", after.PKeys, after.GIDs, before.PKeys, before.GIDs)
	}
}

// TestIsSM: the driver says that a subnet manager runs on the port.
func TestIsSM(t *testing.T) {
	m := newManager(t)
	for _, on := range []uint64{capIsSM, 0} {
		in := m.in(prm.HCAVPort + prm.HCAVPortSize)
		prm.HVPCapMask1Sel.Put(in[prm.HCAVPort:], capIsSM)
		prm.HVPCapMask1.Put(in[prm.HCAVPort:], on)
		m.must(prm.ModifyHCAVPortCtx, 0, in, small)
		m.wantFields("capability mask", m.portInfo(), setting{piCapMask, uint64(capMask1) | on})
	}
}

// TestUnmanagedPort: a port that is not managed comes up by itself, until a subnet manager has set it.
func TestUnmanagedPort(t *testing.T) {
	m := &manager{driver: newRunning(t, IB)}
	again := func(want uint64) {
		t.Helper()
		m.d.SetLink(false)
		m.d.SetLink(true)
		m.wantFields("plugged in again", m.portInfo(), setting{piState, want}, setting{piLID, 8})
	}
	again(portActive)
	m.setPort(statusOK, 0)
	again(portInit)
	m.d.eng.SetPortCounts(engine.PortCounts{XmitDiscards: 9, PKeyViolations: 7})
	m.ask(statusOK, perf(methodSet, attrPortCounters, append([]byte{0xff, 0xff}, make([]byte, 40)...)...))
	m.d.Reset()
	for i, p := range pmaCounters {
		b := make([]byte, perfBytes)
		if m.d.counters.pma.fill(b, m.d.eng.PortCounts()); p.f.Get(b) != 0 {
			t.Errorf("after a reset of the function, counter %d is %d", i, p.f.Get(b))
		}
	}
	if n := m.d.subnet.pkeyViolations.of(m.d.eng.PortCounts().PKeyViolations, 16); n != 0 {
		t.Errorf("after a reset of the function there are %d violations of the P_Key", n)
	}
	m.d.SetLink(false)
	m.d.SetLink(true)
	if p := m.d.eng.Port(); p.State != engine.LinkActive {
		t.Errorf("after a reset of the function the port is in state %d", p.State)
	}
}
