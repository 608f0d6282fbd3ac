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
	madKey      = 24 // the M_Key of subnet management
	madData     = 64 // of subnet management and performance datagrams

	classSubnet   = 0x01
	classDirected = 0x81
	classPerf     = 0x04

	methodGet         = 0x01
	methodSet         = 0x02
	methodTrapRepress = 0x07
	methodGetResp     = 0x81

	statusOK         = 0
	statusBadVersion = 1 << 2
	statusBadMethod  = 2 << 2
	statusBadAttr    = 3 << 2
	statusBadValue   = 7 << 2
	statusDirected   = 0x8000 // the D bit: the datagram is on its way back

	attrClassPortInfo = 0x01
	attrNodeDesc      = 0x10
	attrNodeInfo      = 0x11
	attrGUIDInfo      = 0x14
	attrPortInfo      = 0x15
	attrPKeyTable     = 0x16
	attrSLToVL        = 0x17
	attrVLArb         = 0x18
	attrMellanoxPort  = 0xff90 // MLNXExtendedPortInfo, which has the speed FDR10
	attrPortCounters  = 0x12
	attrPortCountExt  = 0x1d

	subnetBytes  = 64 // of data
	perfBytes    = 192
	agentVersion = 1 // of the classes of all agents here, and of datagrams

	// Bits of the modifier of MAD_IFC. Only classes that have no agent here have a B_Key.
	ignoreMKey, ignoreBKey = 1 << 0, 1 << 1
)

// madIFC hands a datagram to the agents in the card, which answer it. It is how mlx5_ib asks
// for port counters and passes on what a subnet manager asks.
func (d *Device) madIFC(c *call) error {
	if port := prm.MADPort.Get(c.in); port > 1 {
		return refuse(prm.BadParam, "MAD port", "%d", port)
	}
	if c.opmod&^(ignoreMKey|ignoreBKey) != 0 {
		return refuse(prm.BadParam, "modifier", "%#x", c.opmod)
	}
	in, out := c.in[prm.MADData:][:prm.MADSize], c.out[prm.MADData:][:prm.MADSize]
	copy(out, in)
	out[madMethod] = methodGetResp
	class := in[madClass]
	status := uint16(statusBadAttr) // of classes that no agent here has
	switch class {
	case classSubnet, classDirected:
		if d.cfg.Personality.NoSMI {
			return refuse(prm.BadParam, "MAD class", "%#x, and the port has no subnet management interface", class)
		}
		if method := in[madMethod]; d.cfg.Mode != IB && method != methodGet {
			return refuse(prm.BadParam, "MAD method", "%#x, and a port of Ethernet has no subnet manager", method)
		}
		hidden, err := d.checkMKey(in, c.opmod&ignoreMKey != 0)
		if err != nil {
			return err
		}
		status = answerMAD(in, out[madData:][:subnetBytes], d.subnetAttrs(hidden))
	case classPerf:
		status = answerMAD(in, out[madData:][:perfBytes], d.perfAttrs(in[madData:]))
	}
	if class == classDirected {
		status |= statusDirected
	}
	be.PutUint16(out[madStatus:], status)
	return nil
}

// attribute is how an agent answers requests for one. get fills in the data, which is all zeros. set takes the
// data of the request, and returns a status and what the answer has in addition to what get fills in then.
type attribute struct {
	get   func(mod uint32, b []byte)
	set   func(mod uint32, b []byte) (status uint16, more func(b []byte)) // nil if it can only be read
	valid func(mod uint32) bool                                           // nil if the modifier has no meaning
}

// answerMAD has an agent answer a datagram. It leaves the attribute's value in b, which has that of the request.
func answerMAD(in, b []byte, attrs map[uint16]attribute) uint16 {
	method, mod := in[madMethod], be.Uint32(in[madModifier:])
	if in[madBase] != agentVersion || in[madClassVer] != agentVersion {
		return statusBadVersion
	}
	if method == methodTrapRepress && in[madClass] != classPerf {
		return statusOK // no agent here repeats traps
	}
	if method != methodGet && method != methodSet {
		return statusBadMethod
	}
	a, known := attrs[be.Uint16(in[madAttr:])]
	if !known || method == methodSet && a.set == nil {
		return statusBadAttr
	}
	if a.valid != nil && !a.valid(mod) {
		return statusBadValue
	}
	status, more := uint16(statusOK), func([]byte) {}
	if method == methodSet {
		status, more = a.set(mod, in[madData:][:len(b)])
	}
	clear(b)
	a.get(mod, b)
	if status == statusOK && more != nil {
		more(b)
	}
	return status
}
