package hca

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// request is a datagram for the agents in a card.
type request struct {
	class, method byte
	attr          uint16
	mod           uint32
	key           uint64
	data          []byte
}

// manager plays a subnet manager that a card's driver passes datagrams on for.
type manager struct {
	*driver
	opmod uint16
}

// newManager makes a card whose port waits for a subnet manager.
func newManager(t *testing.T) *manager {
	t.Helper()
	v := newDriverWith(t, Config{Mode: IB, Managed: true})
	v.bringUp()
	return &manager{driver: v}
}

// in makes the input of MAD_IFC.
func (m *manager) input(r request) []byte {
	in := m.in(prm.MADData + prm.MADSize)
	prm.MADPort.Put(in, 1)
	d := in[prm.MADData:]
	d[madBase], d[madClass], d[madClassVer], d[madMethod] = 1, r.class, 1, r.method
	be.PutUint16(d[madAttr:], r.attr)
	be.PutUint32(d[madModifier:], r.mod)
	be.PutUint64(d[madKey:], r.key)
	copy(d[madData:], r.data)
	return in
}

// ask sends a request, whose answer must have the status, and returns the answer's data.
func (m *manager) ask(want uint16, r request) []byte {
	m.t.Helper()
	n := prm.MADData + prm.MADSize
	a := m.must(prm.MADIFC, m.opmod, m.input(r), n)[prm.MADData:]
	if got := be.Uint16(a[madStatus:]); got != want || a[madMethod] != methodGetResp || a[madClass] != r.class || be.Uint16(a[madAttr:]) != r.attr {
		m.t.Errorf("%+v: status %#x, want %#x; header %x", r, got, want, a[:24])
	}
	return a[madData:]
}

// dropped sends a request that gets no answer.
func (m *manager) dropped(r request) {
	m.t.Helper()
	m.refused(prm.BadPacket, prm.MADIFC, m.opmod, m.input(r), prm.MADData+prm.MADSize)
}

// portInfo returns the port's PortInfo.
func (m *manager) portInfo() []byte {
	m.t.Helper()
	return m.ask(statusOK, request{class: classSubnet, method: methodGet, attr: attrPortInfo, mod: 1})[:subnetBytes]
}

// setPort is Set(PortInfo) of what the port has, with changes.
func (m *manager) setPort(want uint16, key uint64, changes ...setting) []byte {
	m.t.Helper()
	b := slices.Clone(m.ask(statusOK, request{class: classSubnet, method: methodGet, attr: attrPortInfo, key: key}))[:subnetBytes]
	apply(b, []setting{{piState, portNoChange}, {piPhys, physNoChange}, {piMKey, key}})
	if piLID.Get(b) == 0 {
		apply(b, []setting{{piLID, 7}, {piSMLID, 3}})
	}
	apply(b, changes)
	return m.ask(want, request{class: classSubnet, method: methodSet, attr: attrPortInfo, mod: 1 | extendedSpeeds, key: key, data: b})
}

// wantFields compares fields of PortInfo.
func (m *manager) wantFields(what string, b []byte, want ...setting) {
	m.t.Helper()
	for _, w := range want {
		if got := w.f.Get(b); got != w.v {
			m.t.Errorf("%s: the field at bit %d is %#x, want %#x", what, w.f.Off, got, w.v)
		}
	}
}

// TestManagedPort: a port has no LID until a subnet manager gives it one, and then goes from INIT by ARMED to
// ACTIVE.
func TestManagedPort(t *testing.T) {
	m := newManager(t)
	m.wantFields("at first", m.portInfo(), setting{piState, portInit}, setting{piPhys, physLinkUp}, setting{piLID, 0}, setting{piSMLID, 0}, setting{piPrefix, subnetPrefix})
	m.setPort(statusBadValue, 0, setting{piState, portActive})
	b := m.setPort(statusOK, 0, setting{piState, portArmed}, setting{piLID, 0x40}, setting{piLMC, 2}, setting{piSMLID, 9}, setting{piSMSL, 3},
		setting{piMTU, 4}, setting{piPrefix, 0xfec0_0000_0000_0001}, setting{piSubnetTimeout, 11}, setting{piInitReply, 5}, setting{piVLs, 2})
	want := []setting{{piState, portArmed}, {piLID, 0x40}, {piLMC, 2}, {piSMLID, 9}, {piSMSL, 3}, {piMTU, 4}, {piPrefix, 0xfec0_0000_0000_0001}, {piSubnetTimeout, 11}, {piInitReply, 5}, {piVLs, 2}}
	m.wantFields("the answer", b, want...)
	want[0].v = portActive
	m.setPort(statusOK, 0, setting{piState, portActive}, setting{piVLs, 0})
	m.wantFields("at last", m.portInfo(), want...)
	m.setPort(statusOK, 0, setting{piState, portActive}) // as one that is sent again
	m.setPort(statusBadValue, 0, setting{piState, portArmed})

	x := m.must(prm.QueryHCAVPortCtx, 0, m.in(small), prm.HCAVPort+prm.HCAVPortSize)[prm.HCAVPort:]
	for _, w := range []setting{{prm.HVPPortState, portActive}, {prm.HVPVPortState, portActive}, {prm.HVPPhysState, physLinkUp}, {prm.HVPLID, 0x40}, {prm.HVPLMC, 2},
		{prm.HVPSMLID, 9}, {prm.HVPSMSL, 3}, {prm.HVPSubnetTime, 11}, {prm.HVPInitReply, 5}} {
		if got := w.f.Get(x); got != w.v {
			t.Errorf("the virtual port's field at bit %#x is %#x, want %#x", w.f.Off, got, w.v)
		}
	}
	if p := m.d.eng.Port(); be.Uint64(p.GIDs[0].Addr[:]) != 0xfec0_0000_0000_0001 || be.Uint64(p.GIDs[0].Addr[8:]) != m.d.guid() {
		t.Errorf("GID %x", p.GIDs[0].Addr)
	}
	m.d.Reset()
	if p := m.d.eng.Port(); p.State != engine.LinkActive || p.LID != 0x40 {
		t.Errorf("after a reset of the function the port has state %d and LID %#x", p.State, p.LID)
	}
}

// portInfoValues are values of PortInfo with the status of a Set, for a port in state INIT with LID 7. The subnet's
// adapters have the same.
var portInfoValues = []struct {
	status uint16
	v      []setting
}{
	{statusBadValue, []setting{{piLID, 0}}}, {statusBadValue, []setting{{piLID, 0xc000}}}, {statusOK, []setting{{piLID, 0xbfff}}},
	{statusBadValue, []setting{{piSMLID, 0}}}, {statusBadValue, []setting{{piSMLID, 0xffff}}}, {statusOK, []setting{{piSMLID, 0xbfff}}},
	{statusBadValue, []setting{{piLMC, 1}}}, {statusBadValue, []setting{{piLID, 12}, {piLMC, 3}}}, {statusOK, []setting{{piLID, 12}, {piLMC, 2}}},
	{statusBadValue, []setting{{piMTU, 0}}}, {statusBadValue, []setting{{piMTU, 6}}}, {statusOK, []setting{{piMTU, 5}}},
	{statusBadValue, []setting{{piState, portInit}}}, {statusBadValue, []setting{{piState, 5}}}, {statusBadValue, []setting{{piState, portActive}}},
	{statusOK, []setting{{piState, portArmed}}}, {statusBadValue, []setting{{piState, portArmed}, {piPhys, physPolling}}},
	{statusBadValue, []setting{{piPhys, 4}}}, {statusOK, []setting{{piPhys, physOff}}}, {statusBadValue, []setting{{piDownDefault, 3}}},
	{statusBadValue, []setting{{piWidthEnabled, 4}}}, {statusOK, []setting{{piWidthEnabled, widthAll}}},
	{statusBadValue, []setting{{piSpeedEnabled, 8}}}, {statusOK, []setting{{piSpeedEnabled, speedAll}}},
	{statusBadValue, []setting{{piExtEnabled, 4}}}, {statusBadValue, []setting{{piExtEnabled, 29}}}, {statusOK, []setting{{piExtEnabled, extOff}}},
	{statusBadValue, []setting{{piVLs, 5}}}, {statusOK, []setting{{piVLs, vls0To3}}},
}

// TestSetPortInfo: what cannot be set changes nothing else.
func TestSetPortInfo(t *testing.T) {
	m := newManager(t)
	m.setPort(statusOK, 0)
	refused := [][]setting{{{piVLs, 4}}} // by the card alone
	for _, c := range portInfoValues {
		if c.status != statusOK {
			refused = append(refused, c.v)
		}
	}
	for _, bad := range refused {
		before := m.portInfo()
		m.setPort(statusBadValue, 0, append([]setting{{piSMSL, 1}}, bad...)...)
		if after := m.portInfo(); !bytes.Equal(before, after) {
			t.Errorf("field at bit %d set to %d: %x, was %x", bad[0].f.Off, bad[0].v, after, before)
		}
	}
	port := request{class: classSubnet, method: methodSet, attr: attrPortInfo, mod: 2, data: m.portInfo()}
	m.ask(statusBadValue, port)
	port.method = methodGet
	m.ask(statusBadValue, port)
}

// TestLinkSpeed: speed and width that are enabled are in force when the link comes up again.
func TestLinkSpeed(t *testing.T) {
	m := newManager(t)
	pTYS := func() (width, speed uint64) {
		t.Helper()
		in := m.in(prm.RegisterData + 64)
		prm.RegisterID.Put(in, regPTYS)
		r := m.must(prm.AccessReg, accessRead, in, prm.RegisterData+64)[prm.RegisterData:]
		return ptysIBWidthOper.Get(r), ptysIBProtoOper.Get(r)
	}
	retrain := []setting{{piState, portDown}}
	for _, c := range []struct {
		set         []setting
		want        []setting
		width, rate uint64
	}{
		{nil, []setting{{piWidthActive, width4X}, {piSpeedActive, speedQDR}, {piExtActive, extEDR}}, ptysWidth4X, ptysEDR},
		{[]setting{{piExtEnabled, extFDR}, {piWidthEnabled, width1X}}, []setting{{piWidthActive, width1X}, {piExtActive, extFDR}}, ptysWidth1X, ptysFDR},
		{[]setting{{piExtEnabled, extOff}, {piSpeedEnabled, speedSDR | speedDDR}}, []setting{{piSpeedActive, speedDDR}, {piExtActive, 0}}, ptysWidth1X, ptysDDR},
		{[]setting{{piExtEnabled, extAll}, {piSpeedEnabled, speedAll}, {piWidthEnabled, widthAll}},
			[]setting{{piExtEnabled, extSupported}, {piSpeedEnabled, speedsSupported}, {piWidthEnabled, widthsSupported}, {piExtActive, extEDR}, {piWidthActive, width4X}}, ptysWidth4X, ptysEDR},
	} {
		before := m.portInfo()
		m.setPort(statusOK, 0, c.set...)
		m.wantFields("before it comes up again", m.portInfo(), setting{piWidthActive, piWidthActive.Get(before)}, setting{piExtActive, piExtActive.Get(before)})
		m.wantFields("after it has", m.setPort(statusOK, 0, retrain...), append(c.want, setting{piState, portInit}, setting{piPhys, physLinkUp})...)
		if w, s := pTYS(); w != c.width || s != c.rate {
			t.Errorf("%+v: PTYS has width %#x and speed %#x, want %#x and %#x", c.set, w, s, c.width, c.rate)
		}
	}
}

// TestLinkDown: a port goes down by command, and by the other end of its link.
func TestLinkDown(t *testing.T) {
	m := newManager(t)
	m.setPort(statusOK, 0, setting{piState, portArmed})
	m.setPort(statusOK, 0, setting{piState, portActive})
	m.d.SetLink(false)
	m.wantFields("unplugged", m.portInfo(), setting{piState, portDown}, setting{piPhys, physPolling}, setting{piLID, 7})
	m.d.SetLink(true)
	m.wantFields("plugged in", m.portInfo(), setting{piState, portInit}, setting{piPhys, physLinkUp})
	m.wantFields("disabled", m.setPort(statusOK, 0, setting{piPhys, physOff}), setting{piState, portDown}, setting{piPhys, physOff})
	m.setPort(statusBadValue, 0, setting{piState, portArmed})
	m.d.SetLink(false)
	m.d.SetLink(true)
	m.wantFields("still disabled", m.portInfo(), setting{piState, portDown}, setting{piPhys, physOff})
	m.wantFields("polling", m.setPort(statusOK, 0, setting{piPhys, physPolling}), setting{piState, portInit}, setting{piPhys, physLinkUp})
	if n := m.d.eng.PortCounts().LinkDowned; n != 2 {
		t.Errorf("the link went down %d times, want 2", n)
	}
}

// TestMKey: who does not know the M_Key can change nothing, and read as much as the protection level says.
func TestMKey(t *testing.T) {
	const key = 0x1122334455667788
	get := request{class: classDirected, method: methodGet, attr: attrNodeInfo}
	port := request{class: classSubnet, method: methodGet, attr: attrPortInfo, mod: 1}
	m := newManager(t)
	m.setPort(statusOK, 0, setting{piMKey, key}, setting{piLease, 10})
	m.wantFields("level 0", m.ask(statusOK, port), setting{piMKey, key})
	set := request{class: classSubnet, method: methodSet, attr: attrPKeyTable, key: key + 1}
	m.dropped(set)
	m.opmod = ignoreMKey
	m.ask(statusOK, set)
	m.opmod = 0
	m.setPort(statusOK, key, setting{piProtect, 1})
	m.ask(statusDirected, get)
	m.wantFields("level 1", m.ask(statusOK, port), setting{piMKey, 0}, setting{piMKeyViolations, 1})
	m.setPort(statusOK, key, setting{piProtect, 2})
	m.dropped(get)
	m.dropped(port)
	port.key = key
	m.wantFields("level 2", m.ask(statusOK, port), setting{piMKey, key}, setting{piMKeyViolations, 3})

	// The answer has ended the lease. A new one begins with the next violation.
	m.fabric.RunFor(20 * time.Second)
	m.dropped(get)
	m.fabric.RunFor(9 * time.Second)
	m.dropped(get)
	m.fabric.RunFor(2 * time.Second)
	m.ask(statusDirected, get)
	m.wantFields("after the lease", m.ask(statusOK, port), setting{piProtect, 0}, setting{piMKey, key}, setting{piMKeyViolations, 5})
	m.dropped(request{class: classSubnet, method: methodTrapRepress, attr: 2})
	m.setPort(statusOK, key, setting{piMKeyViolations, 0xffff})
	m.dropped(set)
	m.wantFields("at most", m.portInfo(), setting{piMKeyViolations, 0xffff})
	m.violations(0)
}
