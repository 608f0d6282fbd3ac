package subnet

// Attributes of subnet management, and places in SwitchInfo: InfiniBand architecture, chapter 14.
const (
	attrNodeDescription = 0x10
	attrNodeInfo        = 0x11
	attrSwitchInfo      = 0x12
	attrGUIDInfo        = 0x14
	attrPortInfo        = 0x15
	attrPKeyTable       = 0x16
	attrSLtoVL          = 0x17
	attrVLArbitration   = 0x18
	attrLinear          = 0x19
	attrMulticast       = 0x1b
	attrMellanoxPort    = 0xff90 // MLNXExtendedPortInfo, which has the speed FDR10

	siLinearCap         = 0
	siMulticastCap      = 4
	siLinearTop         = 6
	siDefaultPort       = 8
	siDefaultMulticast  = 9
	siDefaultNotPrimary = 10
	siStateChange       = 11 // with LifeTimeValue
	siChanged           = 4
	siEnforceCap        = 14
	siFlags             = 16
	siEnhanced          = 8
	siMulticastTop      = 18
)

var subnetAttributes map[uint16]attribute

func init() { // the functions refer to the table
	subnetAttributes = map[uint16]attribute{
		attrNodeDescription: {fn: nodeDescription},
		attrNodeInfo:        {fn: nodeInfo},
		attrSwitchInfo:      {fn: switchInfo, set: true, sw: true},
		attrGUIDInfo:        {fn: guidInfo, set: true},
		attrPortInfo:        {fn: portInfo, set: true},
		attrPKeyTable:       {fn: pkeyTable, set: true},
		attrSLtoVL:          {fn: slToVL, set: true},
		attrVLArbitration:   {fn: vlArbitration, set: true},
		attrLinear:          {fn: linearTable, set: true, sw: true},
		attrMulticast:       {fn: multicastTable, set: true, sw: true},
		attrMellanoxPort:    {fn: noFDR10, set: true},
	}
}

func nodeDescription(r *request) uint16 {
	copy(r.data, r.at.node.spec.Description)
	return 0
}

func nodeInfo(r *request) uint16 {
	n, b := r.at.node.spec, r.data
	b[0], b[1], b[2], b[3] = 1, 1, byte(n.Type), byte(len(n.Ports)-1)
	be.PutUint64(b[4:], n.SystemGUID)
	be.PutUint64(b[12:], n.GUID)
	be.PutUint64(b[20:], r.in.guid)
	be.PutUint16(b[28:], uint16(len(r.at.pkeys)))
	be.PutUint16(b[30:], n.Device)
	be.PutUint32(b[36:], uint32(r.in.num)<<24|n.Vendor)
	return 0
}

// noFDR10 is all zeros, which is what ports without FDR10 say.
func noFDR10(r *request) uint16 {
	clear(r.data)
	if int(r.mod&0xff) >= len(r.at.node.ports) {
		return statusBadValue
	}
	return 0
}

func switchInfo(r *request) uint16 {
	info := &r.at.node.sw.info
	if r.set {
		top := be.Uint16(r.data[siLinearTop:])
		if top >= linearCap || r.mod != 0 {
			return statusBadValue
		}
		be.PutUint16(info[siLinearTop:], top)
		copy(info[siDefaultPort:siStateChange], r.data[siDefaultPort:siStateChange])
		changed := info[siStateChange] & siChanged &^ r.data[siStateChange] // 1 clears it
		info[siStateChange] = r.data[siStateChange]&0xf8 | changed
		copy(info[siMulticastTop:siMulticastTop+2], r.data[siMulticastTop:])
	}
	copy(r.data, info[:])
	return 0
}

// guidInfo is the attribute GUIDInfo. The first GUID cannot be changed.
func guidInfo(r *request) uint16 {
	guids := r.at.guids
	if guids == nil {
		guids = []uint64{r.at.guid}
	}
	first := int(r.mod) * 8
	if r.mod > 31 || first >= len(guids) {
		return statusBadValue
	}
	for i := range 8 {
		k := first + i
		if k >= len(guids) {
			be.PutUint64(r.data[8*i:], 0)
			continue
		}
		if r.set && k > 0 {
			guids[k] = be.Uint64(r.data[8*i:])
		}
		be.PutUint64(r.data[8*i:], guids[k])
	}
	return 0
}

// portOf returns the port of a switch that a modifier names, or an adapter's own port.
func (r *request) portOf(num uint32) *port {
	if r.at.node.sw == nil {
		return r.at
	}
	if int(num) >= len(r.at.node.ports) {
		return nil
	}
	return r.at.node.ports[num]
}

func pkeyTable(r *request) uint16 {
	p, first := r.portOf(r.mod>>16), int(r.mod&0xffff)*32
	if p == nil || first >= len(p.pkeys) {
		return statusBadValue
	}
	for i := range 32 {
		if r.set {
			p.pkeys[first+i] = be.Uint16(r.data[2*i:])
		}
		be.PutUint16(r.data[2*i:], p.pkeys[first+i])
	}
	return 0
}

func slToVL(r *request) uint16 {
	p, row := r.portOf(r.mod&0xff), int(r.mod>>8&0xff)
	if r.at.node.sw == nil {
		row = 0
	}
	if p == nil || row >= len(p.sl2vl) {
		return statusBadValue
	}
	if r.set {
		copy(p.sl2vl[row][:], r.data)
	}
	clear(r.data)
	copy(r.data, p.sl2vl[row][:])
	return 0
}

// vlArbitration is the attribute VLArbitrationTable. With 8 entries only the lower half of each table exists.
func vlArbitration(r *request) uint16 {
	p, block := r.portOf(r.mod&0xff), r.mod>>16
	if p == nil || block != 1 && block != 3 {
		return statusBadValue
	}
	table := p.vlarb[block-1][:2*arbCap]
	if r.set {
		copy(table, r.data)
	}
	clear(r.data)
	copy(r.data, table)
	return 0
}

func linearTable(r *request) uint16 {
	if r.mod >= linearCap/64 {
		return statusBadValue
	}
	block := r.at.node.sw.linear[r.mod*64:][:64]
	if r.set {
		copy(block, r.data)
	}
	copy(r.data, block)
	return 0
}

// multicastTable is the attribute MulticastForwardingTable: 16 ports of 32 groups.
func multicastTable(r *request) uint16 {
	position, block := int(r.mod>>28), r.mod&0x0fffffff
	if block >= multicastCap/32 || position*16 >= len(r.at.node.ports) {
		return statusBadValue
	}
	groups := r.at.node.sw.groups
	for i := range 32 {
		lid := lidMulticast + uint16(block)*32 + uint16(i)
		if r.set {
			if groups[lid] == nil {
				groups[lid] = new([16]uint16)
			}
			groups[lid][position] = be.Uint16(r.data[2*i:])
			if *groups[lid] == [16]uint16{} {
				delete(groups, lid)
			}
		}
		be.PutUint16(r.data[2*i:], 0)
		if g := groups[lid]; g != nil {
			be.PutUint16(r.data[2*i:], g[position])
		}
	}
	return 0
}
