package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// counter shows something that is counted without end: what came since the counter was set.
type counter struct{ base uint64 }

// of is the counter's value, which stays at the most that fits into its bits.
func (c *counter) of(total uint64, width int) uint64 {
	n := total - c.base
	if width < 64 {
		n = min(n, 1<<width-1)
	}
	return n
}

// set gives the counter a value.
func (c *counter) set(total, value uint64) { c.base = total - value }

// portCounter is a counter of a port in an attribute, an answer or a register: where it is, which bit of
// CounterSelect it has, and what it counts.
type portCounter struct {
	f     prm.Field
	sel   uint
	total func(c *engine.PortCounts) uint64
}

// words are the data of packets in units of 4 bytes.
func words(f *engine.Flow) uint64 { return (f.Unicast.Octets + f.Multicast.Octets) / 4 }

func packets(f *engine.Flow) uint64 { return f.Unicast.Packets + f.Multicast.Packets }

// pmaCounters are the counters of PortCounters that count. The first pmaErrors of them count
// errors.
var pmaCounters = []portCounter{
	{prm.Field{Off: 56, Width: 8}, 2, func(c *engine.PortCounts) uint64 { return c.LinkDowned }},
	{prm.Field{Off: 112, Width: 16}, 6, func(c *engine.PortCounts) uint64 { return c.XmitDiscards }},
	{prm.Field{Off: 176, Width: 16}, 11, func(c *engine.PortCounts) uint64 { return c.VL15Dropped }},
	{prm.Field{Off: 192, Width: 32}, 12, func(c *engine.PortCounts) uint64 { return words(&c.Xmit) }},
	{prm.Field{Off: 224, Width: 32}, 13, func(c *engine.PortCounts) uint64 { return words(&c.Recv) }},
	{prm.Field{Off: 256, Width: 32}, 14, func(c *engine.PortCounts) uint64 { return packets(&c.Xmit) }},
	{prm.Field{Off: 288, Width: 32}, 15, func(c *engine.PortCounts) uint64 { return packets(&c.Recv) }},
}

const pmaErrors = 3

// extCounters are the counters of PortCountersExtended.
var extCounters = []portCounter{
	{prm.Field{Off: 64, Width: 64}, 0, func(c *engine.PortCounts) uint64 { return words(&c.Xmit) }},
	{prm.Field{Off: 128, Width: 64}, 1, func(c *engine.PortCounts) uint64 { return words(&c.Recv) }},
	{prm.Field{Off: 192, Width: 64}, 2, func(c *engine.PortCounts) uint64 { return packets(&c.Xmit) }},
	{prm.Field{Off: 256, Width: 64}, 3, func(c *engine.PortCounts) uint64 { return packets(&c.Recv) }},
	{prm.Field{Off: 320, Width: 64}, 4, func(c *engine.PortCounts) uint64 { return c.Xmit.Unicast.Packets }},
	{prm.Field{Off: 384, Width: 64}, 5, func(c *engine.PortCounts) uint64 { return c.Recv.Unicast.Packets }},
	{prm.Field{Off: 448, Width: 64}, 6, func(c *engine.PortCounts) uint64 { return c.Xmit.Multicast.Packets }},
	{prm.Field{Off: 512, Width: 64}, 7, func(c *engine.PortCounts) uint64 { return c.Recv.Multicast.Packets }},
}

// vportCounters are the counters of QUERY_VPORT_COUNTER.
var vportCounters = []portCounter{
	{prm.VPCXmitErrors, 0, func(c *engine.PortCounts) uint64 { return c.XmitDiscards }},
	{prm.VPCRecvUnicast, 0, func(c *engine.PortCounts) uint64 { return c.Recv.Unicast.Packets }},
	{prm.VPCRecvUnicastOctets, 0, func(c *engine.PortCounts) uint64 { return c.Recv.Unicast.Octets }},
	{prm.VPCXmitUnicast, 0, func(c *engine.PortCounts) uint64 { return c.Xmit.Unicast.Packets }},
	{prm.VPCXmitUnicastOctets, 0, func(c *engine.PortCounts) uint64 { return c.Xmit.Unicast.Octets }},
	{prm.VPCRecvMulticast, 0, func(c *engine.PortCounts) uint64 { return c.Recv.Multicast.Packets }},
	{prm.VPCRecvMulticastOctets, 0, func(c *engine.PortCounts) uint64 { return c.Recv.Multicast.Octets }},
	{prm.VPCXmitMulticast, 0, func(c *engine.PortCounts) uint64 { return c.Xmit.Multicast.Packets }},
	{prm.VPCXmitMulticastOctets, 0, func(c *engine.PortCounts) uint64 { return c.Xmit.Multicast.Octets }},
}

// counterGroup are counters that are shown together, and set on their own.
type counterGroup struct {
	table []portCounter
	state []counter
}

func newCounterGroup(table []portCounter) counterGroup {
	return counterGroup{table, make([]counter, len(table))}
}

// portCounters are the ways in which a card shows the counters of its port.
type portCounters struct{ pma, ext, vport, ppcnt counterGroup }

func newPortCounters() portCounters {
	return portCounters{
		pma: newCounterGroup(pmaCounters), ext: newCounterGroup(extCounters),
		vport: newCounterGroup(vportCounters), ppcnt: newCounterGroup(pmaCounters[:pmaErrors]),
	}
}

// fill puts the counters in.
func (g *counterGroup) fill(b []byte, c engine.PortCounts) {
	for i, p := range g.table {
		p.f.Put(b, g.state[i].of(p.total(&c), p.f.Width))
	}
}

// set gives the counters that are selected the values in b.
func (g *counterGroup) set(b []byte, c engine.PortCounts, sel uint64) {
	for i, p := range g.table {
		if sel>>p.sel&1 == 1 {
			g.state[i].set(p.total(&c), p.f.Get(b))
		}
	}
}

// clear sets all counters to 0.
func (g *counterGroup) clear(c engine.PortCounts) {
	for i, p := range g.table {
		g.state[i].set(p.total(&c), 0)
	}
}

const (
	perfPort     = 1 // byte with the port of an attribute
	perfSelect   = 2 // 16 bits with the counters that Set changes
	perfAllPorts = 0xff

	// Of PMA's CapabilityMask.
	capAllPortSelect = 1 << 8
	capExtWidth      = 1 << 9
)

// perfAttrs are the attributes of performance management, for a request with the given data.
func (d *Device) perfAttrs(request []byte) map[uint16]attribute {
	port := request[perfPort]
	group := func(g *counterGroup) attribute {
		return attribute{
			valid: func(uint32) bool { return port == 1 || port == perfAllPorts },
			get: func(_ uint32, b []byte) {
				b[perfPort] = port
				g.fill(b, d.eng.PortCounts())
			},
			set: func(_ uint32, b []byte) (uint16, func([]byte)) {
				g.set(b, d.eng.PortCounts(), uint64(be.Uint16(b[perfSelect:])))
				return statusOK, nil
			},
		}
	}
	return map[uint16]attribute{
		attrClassPortInfo: {get: func(_ uint32, b []byte) {
			b[0], b[1] = 1, 1 // versions
			be.PutUint16(b[2:], capAllPortSelect|capExtWidth)
		}},
		attrPortCounters: group(&d.counters.pma),
		attrPortCountExt: group(&d.counters.ext),
	}
}

// queryVPortCounter is QUERY_VPORT_COUNTER.
func (d *Device) queryVPortCounter(c *call) error {
	if err := own(c); err != nil {
		return err
	}
	counts := d.eng.PortCounts()
	d.counters.vport.fill(c.out, counts)
	if prm.QueryClear.Bool(c.in) {
		d.counters.vport.clear(counts)
	}
	return nil
}
