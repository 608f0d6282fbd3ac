package ucm

import (
	"net/netip"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Values of a made-up path.
const (
	defaultPKey    = 0xffff
	selectExactly  = 2  // IB_SA_EQ
	packetLifetime = 16 // CMA_IBOE_PACKET_LIFETIME
	flowLabelMask  = 1<<20 - 1
)

// makePath returns the path to the resolved address.
func (x *id) makePath() *mad.PathRecord {
	p := &mad.PathRecord{
		SGID:         x.src.gid(),
		DGID:         x.dst.gid(),
		HopLimit:     x.hopLimit,
		Reversible:   true,
		PKey:         defaultPKey,
		MTUSelector:  selectExactly,
		TClass:       x.tos,
		MTU:          ib.MTU(x.dev.MTU()),
		RateSelector: selectExactly, // rate 0: that of the port

		PacketLifeTimeSelector: selectExactly,
		PacketLifeTime:         packetLifetime,
		FlowLabel:              x.flowLabel(),
	}
	if x.timeoutSet && x.timeout != 0 {
		p.PacketLifeTime = x.timeout - 1
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
func pathFromREQ(p ibcm.Path, service uint64) *mad.PathRecord {
	return &mad.PathRecord{
		ServiceID:              service,
		DGID:                   p.Dst.As16(),
		SGID:                   p.Src.As16(),
		FlowLabel:              p.FlowLabel,
		HopLimit:               p.HopLimit,
		TClass:                 p.TrafficClass,
		Reversible:             true,
		PKey:                   p.PKey,
		SL:                     p.SL,
		MTUSelector:            selectExactly,
		MTU:                    ib.MTU(p.MTU),
		RateSelector:           selectExactly,
		Rate:                   p.Rate,
		PacketLifeTimeSelector: selectExactly,
		PacketLifeTime:         p.Lifetime,
	}
}

// cmPath returns a path for the protocol.
func cmPath(p *mad.PathRecord) ibcm.Path {
	return ibcm.Path{
		Src:          netip.AddrFrom16(p.SGID).Unmap(),
		Dst:          netip.AddrFrom16(p.DGID).Unmap(),
		FlowLabel:    p.FlowLabel,
		TrafficClass: p.TClass,
		HopLimit:     p.HopLimit,
		SL:           p.SL,
		Rate:         p.Rate,
		MTU:          uint8(p.MTU),
		Lifetime:     p.PacketLifeTime,
		PKey:         p.PKey,
	}
}

// pathRecordSize is the size of a path record in management datagrams.
const pathRecordSize = 64

// putPath encodes a path record as it is in management datagrams.
func putPath(b []byte, p mad.PathRecord) {
	p.PacketLifeTime &= 1<<6 - 1 // that of an ACK timeout may have more bits
	record, err := mad.Marshal(&p)
	if err != nil {
		panic(err) // the others come from fields of the same size
	}
	copy(b, record)
}

// parsePath decodes a path record of a management datagram of pathRecordSize.
func parsePath(b []byte) *mad.PathRecord {
	p := new(mad.PathRecord)
	if err := mad.Unmarshal(b, p); err != nil {
		panic(err)
	}
	return p
}

// userPath returns a path record in the layout of QUERY_ROUTE.
func userPath(p *mad.PathRecord) (r abi.IbUserPathRec) {
	r.DGID, r.SGID = p.DGID, p.SGID
	r.RawTraffic, r.Reversible = number(p.RawTraffic), number(p.Reversible)
	r.FlowLabel.Put(p.FlowLabel)
	r.MTU = uint32(p.MTU)
	r.PKey.Put(p.PKey)
	r.HopLimit, r.TrafficClass = p.HopLimit, p.TClass
	r.NumbPath, r.SL = p.NumbPath, p.SL
	r.MTUSelector, r.RateSelector, r.Rate = p.MTUSelector, p.RateSelector, p.Rate
	r.PacketLifeTimeSelector, r.PacketLifeTime, r.Preference = p.PacketLifeTimeSelector, p.PacketLifeTime, p.Preference
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
