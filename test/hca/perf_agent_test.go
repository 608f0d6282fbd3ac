package hca

import (
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// perf is a request for counters of the port.
func perf(method byte, attr uint16, data ...byte) request {
	return request{class: classPerf, method: method, attr: attr, data: append([]byte{0, 1}, data...)}
}

// TestPortCounters: all ways to the counters of a port show the same, and each is set on its own.
func TestPortCounters(t *testing.T) {
	m := newManager(t)
	m.setPort(statusOK, 0)
	class := m.ask(statusOK, request{class: classPerf, method: methodGet, attr: attrClassPortInfo})
	if class[0] != 1 || class[1] != 1 || be.Uint16(class[2:]) != capAllPortSelect|capExtWidth {
		t.Errorf("ClassPortInfo %x", class[:16])
	}
	m.d.eng.SetPortCounts(engine.PortCounts{
		Xmit: engine.Flow{Unicast: engine.Traffic{Packets: 11, Octets: 400}, Multicast: engine.Traffic{Packets: 1, Octets: 40}},
		Recv: engine.Flow{Unicast: engine.Traffic{Packets: 22, Octets: 1 << 40}, Multicast: engine.Traffic{Packets: 2, Octets: 80}},
		// More than fits.
		XmitDiscards: 1 << 16, VL15Dropped: 5, LinkDowned: 300, PKeyViolations: 7, QKeyViolations: 1 << 20,
	})
	short := func(want ...uint64) {
		t.Helper()
		b := m.ask(statusOK, perf(methodGet, attrPortCounters))
		for i, p := range pmaCounters {
			if got := p.f.Get(b); got != want[i] || b[perfPort] != 1 {
				t.Errorf("PortCounters, byte %d: %d, want %d", p.f.Off/8, got, want[i])
			}
		}
	}
	long := func(want ...uint64) {
		t.Helper()
		b := m.ask(statusOK, perf(methodGet, attrPortCountExt))
		for i, p := range extCounters {
			if got := p.f.Get(b); got != want[i] {
				t.Errorf("PortCountersExtended, byte %d: %d, want %d", p.f.Off/8, got, want[i])
			}
		}
	}
	short(0xff, 0xffff, 5, 110, 0xffffffff, 12, 24)
	long(110, 1<<38+20, 12, 24, 11, 22, 1, 2)
	vport := func(clear bool) []byte {
		t.Helper()
		in := m.in(32)
		prm.QueryClear.PutBool(in, clear)
		return m.must(prm.QueryVPortCounter, 0, in, 0x1080/8)
	}
	want := []uint64{1 << 16, 22, 1 << 40, 11, 400, 2, 80, 1, 40}
	for i, p := range vportCounters {
		if got := p.f.Get(vport(i == len(vportCounters)-1)); got != want[i] {
			t.Errorf("QUERY_VPORT_COUNTER, byte %d: %d, want %d", p.f.Off/8, got, want[i])
		}
	}
	if got := prm.VPCXmitUnicast.Get(vport(false)); got != 0 {
		t.Errorf("%d packets after they were cleared", got)
	}
	m.wantFields("violations", m.portInfo(), setting{piPKeyViolations, 7}, setting{piQKeyViolations, 0xffff})
	m.setPort(statusOK, 0, setting{piPKeyViolations, 0}, setting{piQKeyViolations, 3})
	m.wantFields("violations that were set", m.portInfo(), setting{piPKeyViolations, 0}, setting{piQKeyViolations, 3})

	// Only what is selected is set, to what the request says.
	m.ask(statusOK, perf(methodSet, attrPortCounters, 1<<6|1<<5, 1<<2))
	short(0, 0xffff, 5, 110, 0, 0, 24)
	data := make([]byte, 30)
	data[0], data[1], data[29] = 0x10, 0x40, 9 // the words sent become 9<<8, and the discards 0
	data[24-perfSelect+2] = 9
	m.ask(statusOK, perf(methodSet, attrPortCounters, data...))
	short(0, 0, 5, 9<<8, 0, 0, 24)
	m.ask(statusOK, perf(methodSet, attrPortCountExt, 0, 1<<4|1<<7))
	long(110, 1<<38+20, 12, 24, 0, 22, 1, 0)
	m.violations(0)
}

// TestPPCNT: the register has the errors of a port.
func TestPPCNT(t *testing.T) {
	m := newManager(t)
	m.d.eng.SetPortCounts(engine.PortCounts{XmitDiscards: 3, VL15Dropped: 4, LinkDowned: 2})
	read := func(group, clear uint64) []byte {
		t.Helper()
		in := m.in(prm.RegisterData + 256)
		prm.RegisterID.Put(in, regPPCNT)
		ppcntGroup.Put(in[prm.RegisterData:], group)
		ppcntClear.Put(in[prm.RegisterData:], clear)
		return m.must(prm.AccessReg, accessRead, in, prm.RegisterData+256)[prm.RegisterData+8:]
	}
	// ib_port_cntrs_grp_data_layout_bits
	for _, clear := range []uint64{0, 1} {
		if r := read(groupInfiniBand, clear); r[3] != 2 || be.Uint16(r[10:]) != 3 || be.Uint16(r[18:]) != 4 {
			t.Errorf("InfiniBand's counters %x", r[:40])
		}
	}
	if r := read(groupInfiniBand, 0); r[3] != 0 || be.Uint16(r[10:]) != 0 || be.Uint16(r[18:]) != 0 {
		t.Errorf("InfiniBand's counters after they were cleared: %x", r[:40])
	}
	const ieee8023 = 0
	if r := read(ieee8023, 0); r[3] != 0 || be.Uint16(r[10:]) != 0 {
		t.Errorf("Ethernet's counters %x", r[:40])
	}
}
