package hca

import "github.com/goverbs/goverbs/test/hca/prm"

// A management datagram's header and the places of data: InfiniBand architecture, chapters
// 13, 14 and 16; rdma/ib_mad.h.
const (
	madBase     = 0
	madClass    = 1
	madClassVer = 2
	madMethod   = 3
	madStatus   = 4
	madAttr     = 16
	madModifier = 20
	madData     = 64 // of subnet management and performance datagrams

	classSubnet   = 0x01
	classDirected = 0x81
	classPerf     = 0x04

	methodGet     = 0x01
	methodSet     = 0x02
	methodGetResp = 0x81

	statusBadVersion = 1 << 2
	statusBadMethod  = 2 << 2
	statusBadAttr    = 3 << 2
	statusDirected   = 0x8000 // the D bit: the datagram is on its way back

	madWidth4X = 2

	attrClassPortInfo = 0x01
	attrNodeDesc      = 0x10
	attrNodeInfo      = 0x11
	attrGUIDInfo      = 0x14
	attrPortInfo      = 0x15
	attrPKeyTable     = 0x16
	attrPortCounters  = 0x12
	attrPortCountExt  = 0x1d
)

// madIFC hands a datagram to the agents in the card, which answer it. It is how mlx5_ib asks
// for port counters and passes on what a subnet manager on this machine asks.
func (d *Device) madIFC(c *call) error {
	if port := prm.MADPort.Get(c.in); port > 1 {
		return refuse(prm.BadParam, "MAD port", "%d", port)
	}
	in, out := c.in[prm.MADData:], c.out[prm.MADData:]
	copy(out[:prm.MADSize], in[:prm.MADSize])
	class, method := in[madClass], in[madMethod]
	if class != classSubnet && class != classDirected && class != classPerf {
		return refuse(prm.BadPacket, "MAD class", "%#x is not answered by the card", class)
	}
	if class == classPerf && method != methodGet && method != methodSet || class != classPerf && method != methodGet {
		d.answerMAD(out, class, statusBadMethod)
		return nil
	}
	if in[madBase] != 1 || in[madClassVer] != 1 {
		d.answerMAD(out, class, statusBadVersion)
		return nil
	}
	attr, mod := be.Uint16(in[madAttr:]), be.Uint32(in[madModifier:])
	body := out[madData : madData+64]
	clear(body)
	var known bool
	if class == classPerf {
		known = perfAttr(attr, body)
	} else {
		known = d.subnetAttr(attr, mod, body)
	}
	status := uint16(0)
	if !known {
		status = statusBadAttr
	}
	d.answerMAD(out, class, status)
	return nil
}

func (d *Device) answerMAD(out []byte, class byte, status uint16) {
	out[madMethod] = methodGetResp
	if class == classDirected {
		status |= statusDirected
	}
	be.PutUint16(out[madStatus:], status)
}

// subnetAttr fills an attribute of subnet management in.
func (d *Device) subnetAttr(attr uint16, mod uint32, b []byte) bool {
	p := d.eng.Port()
	switch attr {
	case attrNodeDesc:
		var r [64]byte
		d.readRegister(regNodeDesc, r[:])
		copy(b, r[:])
	case attrNodeInfo:
		b[0], b[1], b[2], b[3] = 1, 1, 1, 1 // versions, a channel adapter with one port
		be.PutUint64(b[4:], d.hvp.systemGUID)
		be.PutUint64(b[12:], d.hvp.nodeGUID)
		be.PutUint64(b[20:], d.hvp.portGUID)
		be.PutUint16(b[28:], uint16(len(p.PKeys)))
		be.PutUint16(b[30:], ID.Device)
		be.PutUint32(b[36:], 1<<24|uint32(ID.Vendor)) // port 1
	case attrGUIDInfo:
		for i := range 8 {
			if k := int(mod)*8 + i; k < len(p.GIDs) && !p.GIDs[k].Invalid {
				copy(b[8*i:], p.GIDs[k].Addr[8:])
			}
		}
	case attrPKeyTable:
		for i := range 32 {
			if k := int(mod&0xffff)*32 + i; k < len(p.PKeys) {
				be.PutUint16(b[2*i:], p.PKeys[k])
			}
		}
	case attrPortInfo:
		be.PutUint64(b[8:], p.Subnet)
		be.PutUint16(b[16:], p.LID)
		be.PutUint16(b[18:], p.SMLID)
		be.PutUint32(b[20:], d.hvp.capMask)
		state, phys := byte(portDown), byte(physDisabled)
		if p.Up {
			state, phys = portActive, physLinkUp
		}
		b[28] = 1 // local port
		b[29], b[30], b[31] = madWidth4X, madWidth4X, madWidth4X
		b[32] = 4<<4 | state
		b[33] = phys<<4 | 2
		b[34] = p.LMC
		b[35] = 4<<4 | 4 // speed QDR, the fastest that fits here
		b[36] = p.MTU << 4
		b[37] = vl0To3 << 4
		b[41] = p.MTU
		b[43] = vl0To3 << 4
		b[50] = gidCount - 1
		b[51] = subnetTimeout
	default:
		return false
	}
	return true
}

// perfAttr fills an attribute of performance management in. The port counts nothing.
func perfAttr(attr uint16, b []byte) bool {
	switch attr {
	case attrClassPortInfo:
		b[0], b[1] = 1, 1
		be.PutUint16(b[2:], 1<<9) // extended counters
	case attrPortCounters, attrPortCountExt:
		b[1] = 1 // the port
	default:
		return false
	}
	return true
}
