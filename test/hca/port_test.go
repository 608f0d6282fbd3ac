package hca

import (
	"bytes"
	"testing"

	"github.com/goverbs/goverbs/test/hca/prm"
)

func TestHCAVPort(t *testing.T) {
	v := newRunning(t, IB)
	n := prm.HCAVPort + prm.HCAVPortSize
	x := v.must(prm.QueryHCAVPortCtx, 0, v.in(small), n)[prm.HCAVPort:]
	if prm.HVPPortState.Get(x) != portActive || prm.HVPLID.Get(x) != 8 || prm.HVPPortGUID.Get(x) != 0x506b4b0300c0ff07 {
		t.Errorf("%x", x[:0x70])
	}
	v.d.SetLink(false)
	if x = v.must(prm.QueryHCAVPortCtx, 0, v.in(small), n)[prm.HCAVPort:]; prm.HVPPortState.Get(x) != portDown {
		t.Errorf("a port that is down: %x", x[:0x70])
	}
	if out := v.must(prm.QueryVPortState, 0, v.in(small), small); prm.VPortStateOper.Get(out) != 0 {
		t.Error("a virtual port that is up on a port that is down")
	}
	other := v.in(small)
	prm.OtherVPort.Put(other, 1)
	v.refused(prm.BadParam, prm.QueryHCAVPortCtx, 0, other, n)

	in := v.in(n)
	prm.HVPCapMask1Sel.Put(in[prm.HCAVPort:], capCM)
	v.must(prm.ModifyHCAVPortCtx, 0, in, small)
	if x = v.must(prm.QueryHCAVPortCtx, 0, v.in(small), n)[prm.HCAVPort:]; prm.HVPCapMask1.U32(x) != capMask1&^uint32(capCM) {
		t.Errorf("capability mask %#x", prm.HVPCapMask1.Get(x))
	}
	prm.HVPCapMask1Sel.Put(in[prm.HCAVPort:], 1)
	v.refused(prm.BadParam, prm.ModifyHCAVPortCtx, 0, in, small)
}

func TestTables(t *testing.T) {
	v := newRunning(t, IB)
	at := func(i int) []byte {
		in := v.in(small)
		prm.QueryIndex.Put(in, uint64(i))
		return in
	}
	gid := []byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x6b, 0x4b, 0x03, 0, 0xc0, 0xff, 0x07}
	out := v.must(prm.QueryHCAVPortGID, 0, at(0), prm.GIDTable+16)
	if !bytes.Equal(out[prm.GIDTable:], gid) || prm.GIDsNum.Get(out) != 1 {
		t.Errorf("GID 0: %x", out)
	}
	out = v.must(prm.QueryHCAVPortGID, 0, at(0xffff), prm.GIDTable+16*gidCount)
	if !bytes.Equal(out[prm.GIDTable:][:16], gid) || prm.GIDsNum.Get(out) != gidCount || !bytes.Equal(out[prm.GIDTable+16:], make([]byte, 16*(gidCount-1))) {
		t.Errorf("all GIDs: %x", out)
	}
	v.refused(prm.BadIndex, prm.QueryHCAVPortGID, 0, at(gidCount), prm.GIDTable+16)
	v.refused(prm.BadOutLen, prm.QueryHCAVPortGID, 0, at(0), prm.GIDTable+8)
	out = v.must(prm.QueryHCAVPortPKey, 0, at(0), prm.PKeyTable+4)
	if be.Uint32(out[prm.PKeyTable:]) != 0xffff {
		t.Errorf("P_Key 0: %x", out)
	}
	v.refused(prm.BadIndex, prm.QueryHCAVPortPKey, 0, at(pkeyCount), prm.PKeyTable+4)
}

func TestNICVPort(t *testing.T) {
	v := newRunning(t, RoCE)
	query := func(kind uint64, n int) []byte {
		t.Helper()
		in := v.in(small)
		prm.NICListType.Put(in, kind)
		return v.must(prm.QueryNICVPortCtx, 0, in, prm.NICVPortOut+prm.NICVPortHead+n)[prm.NICVPortOut:]
	}
	x := query(0, 0)
	if prm.NVPMACHigh.Get(x) != 0x506b || prm.NVPMACLow.Get(x) != 0x4bc0ff07 || prm.NVPMTU.Get(x) != ethMTU || prm.NVPRoCEEn.Get(x) != 0 {
		t.Errorf("%x", x)
	}
	in := v.in(prm.NICVPortIn + prm.NICVPortHead + 16)
	c := in[prm.NICVPortIn:]
	prm.NVPRoCEEn.Put(c, 1)
	prm.NVPMTU.Put(c, 1234)
	prm.NVPMACLow.Put(c, 0x01020304)
	prm.NICSelRoCE.Put(in, 1)
	v.must(prm.ModifyNICVPortCtx, 0, in, small)
	if x = query(0, 0); prm.NVPRoCEEn.Get(x) != 1 || prm.NVPMTU.Get(x) != ethMTU || prm.NVPMACLow.Get(x) != 0x4bc0ff07 {
		t.Errorf("what was not selected has changed: %x", x)
	}
	prm.NICSelAddress.Put(in, 1)
	prm.NICSelAddrList.Put(in, 1)
	prm.NVPListType.Put(c, prm.NVPListMulticat)
	prm.NVPListSize.Put(c, 2)
	copy(c[prm.NVPList:], "\x00\x00\x33\x33\x00\x00\x00\x01\x00\x00\x33\x33\x00\x00\x00\x02")
	v.must(prm.ModifyNICVPortCtx, 0, in, small)
	if x = query(prm.NVPListMulticat, 16); prm.NVPListSize.Get(x) != 2 || x[prm.NVPList+15] != 2 {
		t.Errorf("%x", x)
	}
	if mac := v.d.eng.Port().MAC; mac != [6]byte{0, 0, 1, 2, 3, 4} {
		t.Errorf("MAC %x", mac)
	}
	prm.NVPListSize.Put(c, 3)
	v.refused(prm.BadParam, prm.ModifyNICVPortCtx, 0, in, small)
	prm.NVPListSize.Put(c, 0)
	prm.Field{Off: 0x72, Width: 1}.Put(in, 1) // affiliation
	v.refused(prm.BadParam, prm.ModifyNICVPortCtx, 0, in, small)
}

func TestRoCEAddress(t *testing.T) {
	v := newRunning(t, RoCE)
	set := func(i int, version uint64, gid string) []byte {
		in := v.in(0x180 / 8)
		prm.RoCEIndex.Put(in, uint64(i))
		x := in[prm.RoCEAddr:]
		copy(x, gid)
		prm.RoCEVersion.Put(x, version)
		prm.RoCEMACHigh.Put(x, 0x0102)
		prm.RoCEMACLow.Put(x, 0x03040506)
		return in
	}
	const gid = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x01\x00\x01"
	v.must(prm.SetRoCEAddress, 0, set(5, roceVersion2, gid), small)
	g := v.d.eng.Port().GIDs[5]
	if string(g.Addr[:]) != gid || !g.RoCEv2 || g.Invalid || g.MAC != [6]byte{1, 2, 3, 4, 5, 6} {
		t.Errorf("%+v", g)
	}
	query := v.in(small)
	prm.RoCEIndex.Put(query, 5)
	if out := v.must(prm.QueryRoCEAddress, 0, query, 0x180/8); string(out[prm.RoCEAddr:][:16]) != gid {
		t.Errorf("%x", out)
	}
	v.must(prm.SetRoCEAddress, 0, set(5, roceVersion1, ""), small)
	if g = v.d.eng.Port().GIDs[5]; !g.Invalid {
		t.Errorf("an entry that was cleared: %+v", g)
	}
	v.refused(prm.BadParam, prm.SetRoCEAddress, 0, set(5, 1, gid), small)
	v.refused(prm.BadIndex, prm.SetRoCEAddress, 0, set(roceAddresses, roceVersion2, gid), small)
}

func TestMAD(t *testing.T) {
	v := newRunning(t, IB)
	n := prm.MADData + prm.MADSize
	ask := func(class, method byte, attr uint16, mod uint32) []byte {
		t.Helper()
		in := v.in(n)
		prm.MADPort.Put(in, 1)
		m := in[prm.MADData:]
		m[madBase], m[madClass], m[madClassVer], m[madMethod] = 1, class, 1, method
		be.PutUint16(m[madAttr:], attr)
		be.PutUint32(m[madModifier:], mod)
		return v.must(prm.MADIFC, 0, in, n)[prm.MADData:]
	}
	m := ask(classSubnet, methodGet, attrNodeInfo, 0)
	if m[madMethod] != methodGetResp || be.Uint16(m[madStatus:]) != 0 || be.Uint64(m[madData+12:]) != v.d.guid() || m[madData+2] != 1 {
		t.Errorf("NodeInfo: %x", m[:128])
	}
	m = ask(classDirected, methodGet, attrPortInfo, 1)
	if be.Uint16(m[madStatus:]) != statusDirected || be.Uint16(m[madData+16:]) != 8 || m[madData+32]&15 != portActive || m[madData+34]&7 != 0 {
		t.Errorf("PortInfo: %x", m[:128])
	}
	if m = ask(classSubnet, methodGet, attrPKeyTable, 0); be.Uint16(m[madData:]) != 0xffff || be.Uint16(m[madData+2:]) != 0 {
		t.Errorf("P_KeyTable: %x", m[:128])
	}
	if m = ask(classSubnet, methodGet, attrGUIDInfo, 0); be.Uint64(m[madData:]) != v.d.guid() {
		t.Errorf("GUIDInfo: %x", m[:128])
	}
	if m = ask(classSubnet, methodGet, attrNodeDesc, 0); !bytes.HasPrefix(m[madData:], []byte("goverbs")) {
		t.Errorf("NodeDescription: %q", m[madData:128])
	}
}

func TestRegisters(t *testing.T) {
	v := newRunning(t, RoCE)
	access := func(id uint16, n int) []byte {
		in := v.in(prm.RegisterData + n)
		prm.RegisterID.Put(in, uint64(id))
		return in
	}
	read := func(id uint16, n int) []byte {
		t.Helper()
		return v.must(prm.AccessReg, accessRead, access(id, n), prm.RegisterData+n)[prm.RegisterData:]
	}
	if r := read(regPTYS, 64); ptysEthOper.Get(r) != eth100GCR4 {
		t.Errorf("PTYS %x", r)
	}
	mtu := access(regPMTU, 16)
	pmtuAdmin.Put(mtu[prm.RegisterData:], 1522)
	v.must(prm.AccessReg, accessWrite, mtu, prm.RegisterData+16)
	if r := read(regPMTU, 16); pmtuOper.Get(r) != 1522 || pmtuMax.Get(r) != ethMTU {
		t.Errorf("PMTU %x", r)
	}
	v.d.SetLink(false)
	if r := read(regPAOS, 16); paosOper.Get(r) != adminDown || paosAdmin.Get(r) != adminUp {
		t.Errorf("PAOS %x", r)
	}
	v.refused(prm.BadParam, prm.AccessReg, accessWrite, access(regPTYS, 64), prm.RegisterData+64)
	v.refused(prm.BadParam, prm.AccessReg, accessRead, access(0x1234, 64), prm.RegisterData+64)
	v.refused(prm.BadInLen, prm.AccessReg, accessRead, access(regPTYS, 8), prm.RegisterData+64)
	v.refused(prm.BadOutLen, prm.AccessReg, accessRead, access(regPTYS, 64), prm.RegisterData+8)
	if n := v.d.Report().Unknown["register 0x1234"]; n != 1 {
		t.Errorf("the register that is not there was counted %d times", n)
	}
}

func TestCaps(t *testing.T) {
	v := newDriver(t, RoCE)
	v.must(prm.EnableHCA, 0, v.in(small), small)
	n := prm.CapsData + prm.CapsSize
	query := func(kind, cur uint16) []byte {
		t.Helper()
		return v.must(prm.QueryHCACap, kind<<1|cur, v.in(small), n)[prm.CapsData:]
	}
	g := query(prm.CapGeneral, 0)
	if prm.CapPortType.Get(g) != prm.CapPortTypeEthernet || prm.CapVHCAID.Get(g) != 8 || prm.CapCQEVersion.Get(g) != 1 || prm.CapIBVirt.Get(g) != 0 {
		t.Errorf("general capabilities %x", g[:0xa0])
	}
	set := func(want prm.Status, kind uint16, f prm.Field, value uint64) {
		t.Helper()
		in := append(v.in(prm.CapsData), query(kind, 1)...)
		f.Put(in[prm.CapsData:], value)
		v.refused(want, prm.SetHCACap, kind<<1, in, small)
	}
	set(prm.OK, prm.CapGeneral, prm.CapLogMaxQP, 10)
	if prm.CapLogMaxQP.Get(query(prm.CapGeneral, 1)) != 10 || prm.CapLogMaxQP.Get(query(prm.CapGeneral, 0)) != 12 {
		t.Error("what was set is not what is in force, or is what is possible")
	}
	set(prm.BadParam, prm.CapGeneral, prm.CapLogMaxQP, 13)
	set(prm.BadParam, prm.CapGeneral, prm.CapCQEVersion, 0)
	set(prm.BadParam, prm.CapGeneral, prm.CapLogUARPage, 2) // UAR pages of 16 KiB
	set(prm.OK, prm.CapGeneral, prm.CapUAR4K, 1)
	set(prm.OK, prm.CapGeneral, prm.CapLogUARPage, 2)
	set(prm.BadParam, prm.CapGeneral, prm.CapLogUARPage, 5)
	if n := prm.CapUARsPerPage.Get(query(prm.CapGeneral, 1)); n != 4 {
		t.Errorf("%d UAR pages in a page of 16 KiB", n)
	}
	set(prm.BadParam, prm.CapRoCE, prm.CapRoCEVersion, 1)
	set(prm.OK, prm.CapAtomic, prm.CapAtomicMode, 1)
	set(prm.OK, prm.CapODP, prm.CapODPXRC, prm.CapODPXRC.Get(query(prm.CapODP, 0)))
	set(prm.BadParam, prm.CapODP, prm.CapODPUD, prm.ODPSend|prm.ODPReceive)
	const unknown = 0x7f
	v.refused(prm.BadParam, prm.QueryHCACap, unknown<<1, v.in(small), n)
	if ft := query(prm.CapFlowTable, 0); prm.CapFTSupport.Get(ft[prm.CapFTReceive:]) != 1 || prm.CapFTSupport.Get(ft[prm.CapFTTransmit:]) != 1 {
		t.Error("no flow tables")
	}
}
