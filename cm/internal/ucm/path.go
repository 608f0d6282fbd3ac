package ucm

import (
	"encoding/binary"
	"net/netip"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
)

// pathRecord is a path record (struct sa_path_rec). For RoCE it is made up. LIDs are 0.
type pathRecord struct {
	service          uint64
	dgid             [16]byte
	sgid             [16]byte
	raw              bool
	flowLabel        uint32 // 20 bits
	hopLimit         uint8
	trafficClass     uint8
	reversible       bool
	count            uint8 // 7 bits
	pkey             uint16
	qosClass         uint16 // 12 bits
	sl               uint8  // 4 bits
	mtuSelector      uint8  // 2 bits, as all selectors
	mtu              uint8  // 6 bits, as rate and lifetime
	rateSelector     uint8
	rate             uint8
	lifetimeSelector uint8
	lifetime         uint8
	preference       uint8
}

// Values of a made-up path.
const (
	defaultPKey    = 0xffff
	selectExactly  = 2  // IB_SA_EQ
	packetLifetime = 16 // CMA_IBOE_PACKET_LIFETIME
	flowLabelMask  = 1<<20 - 1
)

// makePath returns the path to the resolved address.
func (x *id) makePath() *pathRecord {
	p := &pathRecord{
		sgid:         x.src.gid(),
		dgid:         x.dst.gid(),
		hopLimit:     x.hopLimit,
		reversible:   true,
		pkey:         defaultPKey,
		mtuSelector:  selectExactly,
		trafficClass: x.tos,
		mtu:          x.dev.MTU(),
		rateSelector: selectExactly, // rate 0: that of the port

		lifetimeSelector: selectExactly,
		lifetime:         packetLifetime,
		flowLabel:        x.flowLabel(),
	}
	if x.timeoutSet && x.timeout != 0 {
		p.lifetime = x.timeout - 1
	}
	return p
}

// flowLabel returns the flow label of the local address, or else a hash of the ports.
func (x *id) flowLabel() uint32 {
	if label := x.src.flowinfo & flowLabelMask; x.src.family == afINET6 && label != 0 {
		return label
	}
	return (uint32(x.src.port)*31 + uint32(x.dst.port)) & flowLabelMask
}

// pathFromREQ returns the path to the sender of a request.
func pathFromREQ(p ibcm.Path, service uint64) *pathRecord {
	return &pathRecord{
		service:          service,
		dgid:             p.Dst.As16(),
		sgid:             p.Src.As16(),
		flowLabel:        p.FlowLabel,
		hopLimit:         p.HopLimit,
		trafficClass:     p.TrafficClass,
		reversible:       true,
		pkey:             p.PKey,
		sl:               p.SL,
		mtuSelector:      selectExactly,
		mtu:              p.MTU,
		rateSelector:     selectExactly,
		rate:             p.Rate,
		lifetimeSelector: selectExactly,
		lifetime:         p.Lifetime,
	}
}

// cmPath returns the path for the protocol.
func (p *pathRecord) cmPath() ibcm.Path {
	return ibcm.Path{
		Src:          netip.AddrFrom16(p.sgid).Unmap(),
		Dst:          netip.AddrFrom16(p.dgid).Unmap(),
		FlowLabel:    p.flowLabel,
		TrafficClass: p.trafficClass,
		HopLimit:     p.hopLimit,
		SL:           p.sl,
		Rate:         p.rate,
		MTU:          p.mtu,
		Lifetime:     p.lifetime,
		PKey:         p.pkey,
	}
}

// pathRecordSize is the size of a path record in management datagrams.
const pathRecordSize = 64

// put encodes the record as it is in management datagrams (IBTA 15.2.5.16).
func (p *pathRecord) put(b []byte) {
	binary.BigEndian.PutUint64(b, p.service)
	copy(b[8:], p.dgid[:])
	copy(b[24:], p.sgid[:])
	flow := p.flowLabel<<8 | uint32(p.hopLimit)
	if p.raw {
		flow |= 1 << 31
	}
	binary.BigEndian.PutUint32(b[44:], flow)
	b[48] = p.trafficClass
	b[49] = p.count
	if p.reversible {
		b[49] |= 0x80
	}
	binary.BigEndian.PutUint16(b[50:], p.pkey)
	binary.BigEndian.PutUint16(b[52:], p.qosClass<<4|uint16(p.sl))
	b[54] = p.mtuSelector<<6 | p.mtu
	b[55] = p.rateSelector<<6 | p.rate
	b[56] = p.lifetimeSelector<<6 | p.lifetime
	b[57] = p.preference
}

// parsePath decodes a path record of a management datagram.
func parsePath(b []byte) *pathRecord {
	flow, qos := binary.BigEndian.Uint32(b[44:]), binary.BigEndian.Uint16(b[52:])
	return &pathRecord{
		service:          binary.BigEndian.Uint64(b),
		dgid:             [16]byte(b[8:]),
		sgid:             [16]byte(b[24:]),
		raw:              flow>>31 != 0,
		flowLabel:        flow >> 8 & flowLabelMask,
		hopLimit:         uint8(flow),
		trafficClass:     b[48],
		reversible:       b[49]&0x80 != 0,
		count:            b[49] & 0x7f,
		pkey:             binary.BigEndian.Uint16(b[50:]),
		qosClass:         qos >> 4,
		sl:               uint8(qos) & 0xf,
		mtuSelector:      b[54] >> 6,
		mtu:              b[54] & 0x3f,
		rateSelector:     b[55] >> 6,
		rate:             b[55] & 0x3f,
		lifetimeSelector: b[56] >> 6,
		lifetime:         b[56] & 0x3f,
		preference:       b[57],
	}
}

// user returns the record in the layout of QUERY_ROUTE.
func (p *pathRecord) user() (r abi.IbUserPathRec) {
	r.DGID, r.SGID = p.dgid, p.sgid
	r.RawTraffic, r.Reversible = number(p.raw), number(p.reversible)
	r.FlowLabel.Put(p.flowLabel)
	r.MTU = uint32(p.mtu)
	r.PKey.Put(p.pkey)
	r.HopLimit, r.TrafficClass = p.hopLimit, p.trafficClass
	r.NumbPath, r.SL = p.count, p.sl
	r.MTUSelector, r.RateSelector, r.Rate = p.mtuSelector, p.rateSelector, p.rate
	r.PacketLifeTimeSelector, r.PacketLifeTime, r.Preference = p.lifetimeSelector, p.lifetime, p.preference
	return r
}

// number returns 1 for true and 0 for false.
func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// ahAttr returns the attributes of an address handle for a path.
func (x *id) ahAttr(p ibcm.Path) (a abi.IbUverbsAHAttr) {
	a.GRH = abi.IbUverbsGlobalRoute{
		DGID: p.Dst.As16(), FlowLabel: p.FlowLabel, SGIDIndex: x.gid.Index, HopLimit: p.HopLimit, TrafficClass: p.TrafficClass,
	}
	a.SL, a.StaticRate, a.IsGlobal, a.PortNum = p.SL, p.Rate, 1, portNum
	return a
}

// portNum is the number of the only port of a device.
const portNum = 1

// loopbackOf returns the loopback address of a family.
func loopbackOf(family uint16) netip.Addr {
	if family == afINET {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}
