package subnet

// Attributes of performance management: InfiniBand architecture, chapter 16.
const (
	attrClassPortInfo = 0x01
	attrPortCounters  = 0x12
	attrPortCountExt  = 0x1d

	allPorts = 255

	perfAllPorts, perfExtended, perfXmitWait = 1 << 8, 1 << 9, 1 << 12
)

// Counter is a counter of a port, by its bit of PortCounters.CounterSelect.
type Counter int

// The counters of PortCounters.
const (
	SymbolErrors Counter = iota
	LinkErrorRecoveries
	LinkDowned
	RcvErrors
	RcvRemotePhysicalErrors
	RcvSwitchRelayErrors
	XmitDiscards
	XmitConstraintErrors
	RcvConstraintErrors
	LocalLinkIntegrityErrors
	ExcessiveBufferOverrunErrors
	VL15Dropped
	XmitData // in units of 4 bytes
	RcvData  // in units of 4 bytes
	XmitPkts
	RcvPkts
	XmitWait
	counterCount

	linkDowned   = LinkDowned
	rcvErrors    = RcvErrors
	relayErrors  = RcvSwitchRelayErrors
	xmitDiscards = XmitDiscards
	xmitData     = XmitData
	rcvData      = RcvData
)

// counterPlaces are the places of the counters in PortCounters, in bits.
var counterPlaces = [counterCount]struct{ at, width int }{
	{4 * 8, 16}, {6 * 8, 8}, {7 * 8, 8}, {8 * 8, 16}, {10 * 8, 16}, {12 * 8, 16}, {14 * 8, 16}, {16 * 8, 8}, {17 * 8, 8},
	{19 * 8, 4}, {19*8 + 4, 4}, {22 * 8, 16}, {24 * 8, 32}, {28 * 8, 32}, {32 * 8, 32}, {36 * 8, 32}, {40 * 8, 32},
}

// counters are the counters of a port. The extended ones are in the order of their bits of
// CounterSelect.
type counters struct {
	basic    [counterCount]uint32 // stop at their maximum
	extended [8]uint64
}

// add counts, up to the maximum of the counter.
func (c *counters) add(i Counter, n uint64) {
	limit := uint64(1)<<counterPlaces[i].width - 1
	c.basic[i] = uint32(min(limit, uint64(c.basic[i])+n))
}

// count counts a packet that is sent (xmitData) or received (rcvData).
func (c *counters) count(p *Packet, dir Counter) {
	size := p.Size
	if size == 0 {
		size = 288
	}
	words, k := uint64(size+3)/4, int(dir-XmitData)
	c.add(dir, words)
	c.add(dir+2, 1)
	c.extended[k] += words
	c.extended[k+2]++
	if p.DLID >= lidMulticast && p.DLID != LIDPermissive {
		c.extended[k+6]++
	} else {
		c.extended[k+4]++
	}
}

var perfAttributes = map[uint16]attribute{
	attrClassPortInfo: {fn: perfClassPortInfo},
	attrPortCounters:  {fn: portCounters, set: true},
	attrPortCountExt:  {fn: portCountersExtended, set: true},
}

func perfClassPortInfo(r *request) uint16 {
	clear(r.data)
	r.data[0], r.data[1] = 1, 1
	caps := uint16(perfExtended | perfXmitWait)
	if r.at.node.sw != nil {
		caps |= perfAllPorts
	}
	be.PutUint16(r.data[2:], caps)
	r.data[7] = 16
	return 0
}

// selected returns the ports that PortSelect names, none if the value is not valid.
func (r *request) selected() []*port {
	num, ports := int(r.data[1]), r.at.node.ports
	switch {
	case r.at.node.sw == nil && num == 0, num >= len(ports) && (num != allPorts || r.at.node.sw == nil):
		return nil
	case num == allPorts:
		return ports
	}
	return ports[num : num+1]
}

func portCounters(r *request) uint16 {
	ports := r.selected()
	if ports == nil {
		return statusBadValue
	}
	selected := uint32(be.Uint16(r.data[2:])) | uint32(r.data[18]&1)<<16
	var sum counters
	for _, p := range ports {
		for i := range counterCount {
			if r.set && selected>>i&1 == 1 {
				p.counters.basic[i] = uint32(getBits(r.data, counterPlaces[i].at, counterPlaces[i].width))
			}
			sum.add(i, uint64(p.counters.basic[i]))
		}
	}
	clear(r.data[4:])
	for i, place := range counterPlaces {
		putBits(r.data, place.at, place.width, uint64(sum.basic[i]))
	}
	return 0
}

func portCountersExtended(r *request) uint16 {
	ports := r.selected()
	if ports == nil {
		return statusBadValue
	}
	selected := be.Uint16(r.data[2:])
	var sum [8]uint64
	for _, p := range ports {
		for i := range p.counters.extended {
			if r.set && selected>>i&1 == 1 {
				p.counters.extended[i] = be.Uint64(r.data[8+8*i:])
			}
			sum[i] += p.counters.extended[i]
		}
	}
	clear(r.data[4:])
	for i, n := range sum {
		be.PutUint64(r.data[8+8*i:], n)
	}
	return 0
}

// getBits returns a number of 4 to 32 bits, which begins at a bit; bit 0 is the uppermost one of b[0].
func getBits(b []byte, at, width int) (v uint64) {
	for i := at; i < at+width; i += 4 {
		v = v<<4 | uint64(b[i/8]>>(4-i%8)&15)
	}
	return v
}

// putBits stores a number as getBits reads it.
func putBits(b []byte, at, width int, v uint64) {
	for i := at + width - 4; i >= at; i -= 4 {
		shift := 4 - i%8
		b[i/8] = b[i/8]&^(15<<shift) | byte(v&15)<<shift
		v >>= 4
	}
}
