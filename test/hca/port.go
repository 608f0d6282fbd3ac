package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// hcaVPort is what an InfiniBand card's virtual port has besides the port's state.
type hcaVPort struct {
	systemGUID, portGUID, nodeGUID uint64
	capMask                        uint32
	policy                         uint8
}

// nicVPort is an Ethernet card's.
type nicVPort struct {
	ctx   []byte            // nic_vport_context, without the list
	lists map[uint64][]byte // address lists by type, 8 bytes an entry
}

const (
	gidCount  = 64
	pkeyCount = 128

	sharedLID = 0x21

	subnetPrefix  = 0xfe80000000000000
	subnetTimeout = 18

	// IB_PORT_*_SUP of rdma/ib_verbs.h.
	capIsSM             = 1 << 1
	capAutoMigration    = 1 << 5
	capSLMap            = 1 << 6
	capSystemImageGUID  = 1 << 11
	capExtendedSpeeds   = 1 << 14
	capCM               = 1 << 16
	capClientReregister = 1 << 25
	capMask1            = capAutoMigration | capSLMap | capSystemImageGUID | capExtendedSpeeds | capCM | capClientReregister

	policyDown, policyUp, policyFollow = 0, 1, 2
)

// powerPort brings the port into the state after power-on. A managed port outlives resets of the function: what a
// subnet manager has set stays. Another one is powered on again by them.
func (d *Device) powerPort() {
	d.powered = true
	d.subnet, d.counters = newSubnetAgent(d.cfg.Managed), newPortCounters()
	_, _, guid := d.guids()
	p := engine.PortState{
		State: engine.LinkActive, MAC: d.mac(), MTU: mtu4096, GUID: guid, Subnet: subnetPrefix,
		PKeys: d.cfg.Personality.pkeys(d.cfg.Mode), GIDs: make([]engine.GID, gidCount),
	}
	for i := range p.GIDs {
		p.GIDs[i].Invalid = true
	}
	switch {
	case d.cfg.Mode != IB:
	case d.cfg.Managed:
		p.State, p.GIDs[0] = engine.LinkInit, gidOf(subnetPrefix, guid)
	default:
		p.LID, p.SMLID, p.GIDs[0] = uint16(d.cfg.Index)+1, 1, gidOf(subnetPrefix, guid)
		if d.cfg.Personality.SharedLID {
			p.LID = sharedLID
		}
	}
	d.eng.SetPort(p)
	d.eng.SetPortCounts(engine.PortCounts{})
	d.enable()
	d.train()
}

// clearPort brings the function's part of the port into the state after power-on.
func (d *Device) clearPort() {
	guid := d.guid()
	system, node, port := d.guids()
	d.hvp = hcaVPort{systemGUID: system, portGUID: port, nodeGUID: node, capMask: capMask1, policy: policyFollow}
	if !d.cfg.Managed || !d.powered {
		d.powerPort()
	}
	d.nic = nicVPort{ctx: make([]byte, prm.NICVPortHead), lists: map[uint64][]byte{}}
	mac := d.mac()
	prm.NVPMTU.Put(d.nic.ctx, ethMTU)
	prm.NVPSystemGUID.Put(d.nic.ctx, guid)
	prm.NVPPortGUID.Put(d.nic.ctx, guid)
	prm.NVPNodeGUID.Put(d.nic.ctx, guid)
	prm.NVPMACHigh.Put(d.nic.ctx, uint64(be.Uint16(mac[:])))
	prm.NVPMACLow.Put(d.nic.ctx, uint64(be.Uint32(mac[2:])))
}

// own checks that a command is about the card's own virtual port.
func own(c *call) error {
	if prm.OtherVPort.Bool(c.in) || prm.VPortNumber.Get(c.in) != 0 {
		return refuse(prm.BadParam, "vport", "another function's port %d", prm.VPortNumber.Get(c.in))
	}
	return nil
}

// capMaskSettable is what the driver may set: that there is a connection manager, and a subnet manager.
func (d *Device) capMaskSettable() uint32 {
	if d.cfg.Personality.NoSMI {
		return capCM
	}
	return capIsSM | capCM
}

func (d *Device) queryHCAVPort(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	p, counts := d.eng.Port(), d.eng.PortCounts()
	info := d.subnet.info[:]
	x := c.out[prm.HCAVPort:]
	prm.HVPHasSMI.PutBool(x, !d.cfg.Personality.NoSMI)
	prm.HVPGRHRequired.PutBool(x, d.cfg.Personality.GRHRequired)
	prm.HVPPhysState.Put(x, piPhys.Get(info))
	prm.HVPPolicy.Put(x, uint64(d.hvp.policy))
	prm.HVPPortState.Put(x, uint64(p.State))
	prm.HVPVPortState.Put(x, uint64(p.State))
	prm.HVPSystemGUID.Put(x, d.hvp.systemGUID)
	prm.HVPPortGUID.Put(x, d.hvp.portGUID)
	prm.HVPNodeGUID.Put(x, d.hvp.nodeGUID)
	prm.HVPCapMask1.Put(x, uint64(d.hvp.capMask))
	prm.HVPCapMask1Sel.Put(x, uint64(d.capMaskSettable()))
	prm.HVPLID.Put(x, uint64(p.LID))
	prm.HVPLMC.Put(x, uint64(p.LMC))
	prm.HVPSubnetTime.Put(x, piSubnetTimeout.Get(info))
	prm.HVPInitReply.Put(x, piInitReply.Get(info))
	prm.HVPSMLID.Put(x, uint64(p.SMLID))
	prm.HVPSMSL.Put(x, piSMSL.Get(info))
	prm.HVPPKeyViol.Put(x, d.subnet.pkeyViolations.of(counts.PKeyViolations, 16))
	prm.HVPQKeyViol.Put(x, d.subnet.qkeyViolations.of(counts.QKeyViolations, 16))
	return nil
}

// modifyHCAVPort is MODIFY_HCA_VPORT_CONTEXT. The capability mask is all that mlx5_ib sets.
func (d *Device) modifyHCAVPort(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	x := c.in[prm.HCAVPort:]
	if sel := prm.HVPFieldSelect.Get(x); sel != 0 {
		return refuse(prm.BadParam, "field_select", "%#x: only the capability mask can be changed", sel)
	}
	sel := prm.HVPCapMask1Sel.U32(x)
	if settable := d.capMaskSettable(); sel&^settable != 0 {
		return refuse(prm.BadParam, "cap_mask1_field_select", "%#x, of which %#x can be changed", sel, settable)
	}
	d.hvp.capMask = d.hvp.capMask&^sel | prm.HVPCapMask1.U32(x)&sel
	return nil
}

// queryGID gives one GID or, with index 0xffff, as many as there is room for.
func (d *Device) queryGID(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	p := d.eng.Port()
	table := c.out[prm.GIDTable:]
	first, n, err := span(c, len(p.GIDs), len(table)/16, "gid_index")
	if err != nil {
		return err
	}
	prm.GIDsNum.Put(c.out, uint64(n))
	for i := range n {
		if g := p.GIDs[first+i]; !g.Invalid {
			copy(table[16*i:], g.Addr[:])
		}
	}
	return nil
}

func (d *Device) queryPKey(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	p := d.eng.Port()
	table := c.out[prm.PKeyTable:]
	first, n, err := span(c, len(p.PKeys), len(table)/4, "pkey_index")
	if err != nil {
		return err
	}
	for i := range n {
		be.PutUint32(table[4*i:], uint32(p.PKeys[first+i]))
	}
	return nil
}

// span returns the requested part of a table: one entry, or with index 0xffff all.
func span(c *call, size, room int, what string) (first, n int, err error) {
	index := prm.QueryIndex.Int(c.in)
	if index == 0xffff {
		return 0, min(size, room), nil
	}
	if index >= size {
		return 0, 0, refuse(prm.BadIndex, what, "%d of %d", index, size)
	}
	if room < 1 {
		return 0, 0, refuse(prm.BadOutLen, what, "no room for an entry")
	}
	return index, 1, nil
}

func (d *Device) queryVPortState(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	oper := uint64(0)
	if d.eng.Port().State == engine.LinkActive {
		oper = 1
	}
	prm.VPortStateAdmin.Put(c.out, uint64(d.hvp.policy))
	prm.VPortStateOper.Put(c.out, oper)
	return nil
}

func (d *Device) modifyVPortState(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	admin := prm.VPortStateAdmin.Get(c.in)
	if admin > policyFollow {
		return refuse(prm.BadParam, "admin_state", "%d", admin)
	}
	d.hvp.policy = uint8(admin)
	return nil
}

func (d *Device) queryNICVPort(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	x := c.out[prm.NICVPortOut:]
	n := copy(x, d.nic.ctx)
	kind := prm.NICListType.Get(c.in)
	if kind > prm.NVPListVLAN {
		return refuse(prm.BadParam, "allowed_list_type", "%d", kind)
	}
	prm.NVPListType.Put(x, kind)
	k := copy(x[n:], d.nic.lists[kind])
	prm.NVPListSize.Put(x, uint64(k/8))
	return nil
}

// nicFields are what MODIFY_NIC_VPORT_CONTEXT can change: a bit of field_select, and what goes
// over with it.
var nicFields = []struct {
	sel    prm.Field
	fields []prm.Field
}{
	{prm.NICSelInline, []prm.Field{prm.NVPInlineMode}},
	{prm.NICSelLBUC, []prm.Field{prm.NVPDisableLBUC}},
	{prm.NICSelLBMC, []prm.Field{prm.NVPDisableLBMC}},
	{prm.NICSelNodeGUID, []prm.Field{prm.NVPNodeGUID}},
	{prm.NICSelPortGUID, []prm.Field{prm.NVPPortGUID}},
	{prm.NICSelMTU, []prm.Field{prm.NVPMTU}},
	{prm.NICSelEvent, []prm.Field{prm.NVPEventWord}},
	{prm.NICSelPromisc, []prm.Field{prm.NVPPromiscBits}},
	{prm.NICSelAddress, []prm.Field{prm.NVPMACHigh, prm.NVPMACLow}},
	{prm.NICSelRoCE, []prm.Field{prm.NVPRoCEEn}},
}

func (d *Device) modifyNICVPort(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	left := prm.NICSelectWord.U32(c.in)
	x := c.in[prm.NICVPortIn:]
	for _, f := range nicFields {
		if !f.sel.Bool(c.in) {
			continue
		}
		left &^= 1 << (31 - f.sel.Off%32)
		for _, field := range f.fields {
			field.Put(d.nic.ctx, field.Get(x))
		}
	}
	if prm.NICSelAddrList.Bool(c.in) {
		left &^= 1 << (31 - prm.NICSelAddrList.Off%32)
		kind, n := prm.NVPListType.Get(x), prm.NVPListSize.Int(x)
		list := prm.Record(x, prm.NVPList, 8*n)
		if kind > prm.NVPListVLAN || len(list) < 8*n {
			return refuse(prm.BadParam, "address list", "type %d with %d entries in %d bytes", kind, n, len(list))
		}
		d.nic.lists[kind] = append([]byte(nil), list...)
	}
	if left != 0 {
		return refuse(prm.BadParam, "field_select", "%#x is not modelled", left)
	}
	var mac [8]byte
	be.PutUint16(mac[2:], uint16(prm.NVPMACHigh.Get(d.nic.ctx)))
	be.PutUint32(mac[4:], prm.NVPMACLow.U32(d.nic.ctx))
	p := d.eng.Port()
	if [6]byte(mac[2:]) != p.MAC {
		p.MAC = [6]byte(mac[2:])
		d.eng.SetPort(p)
	}
	return nil
}

// setRoCEAddress is SET_ROCE_ADDRESS: an entry of the GID table. All zeros clear it.
func (d *Device) setRoCEAddress(c *call) error {
	index := prm.RoCEIndex.Int(c.in)
	if index >= len(d.roce) {
		return refuse(prm.BadIndex, "roce_address_index", "%d of %d", index, len(d.roce))
	}
	x := prm.Record(c.in, prm.RoCEAddr, prm.RoCESize)
	g := engine.GID{Addr: [16]byte(x[:16]), VLAN: prm.RoCEVLAN.Bool(x), VLANID: uint16(prm.RoCEVLANID.Get(x))}
	be.PutUint16(g.MAC[:], uint16(prm.RoCEMACHigh.Get(x)))
	be.PutUint32(g.MAC[2:], prm.RoCEMACLow.U32(x))
	g.Invalid = g.Addr == [16]byte{}
	switch v := prm.RoCEVersion.Get(x); {
	case v == roceVersion2:
		g.RoCEv2 = true
	case v != roceVersion1:
		return refuse(prm.BadParam, "roce_version", "%d", v)
	}
	if l3 := prm.RoCEL3Type.Get(x); l3 > 1 {
		return refuse(prm.BadParam, "roce_l3_type", "%d", l3)
	}
	if err := d.eng.SetGID(index, g); err != nil {
		return err
	}
	d.roce[index] = append([]byte(nil), x...)
	return nil
}

// Values of roce_version: MLX5_ROCE_VERSION_* (mlx5/driver.h).
const (
	roceVersion1 = 0
	roceVersion2 = 2
)

func (d *Device) queryRoCEAddress(c *call) error {
	index := prm.RoCEIndex.Int(c.in)
	if index >= len(d.roce) {
		return refuse(prm.BadIndex, "roce_address_index", "%d of %d", index, len(d.roce))
	}
	copy(prm.Record(c.out, prm.RoCEAddr, prm.RoCESize), d.roce[index])
	return nil
}
