package efa

import (
	"bytes"
	"net/netip"
)

// hostInfoSize is the size of the buffer of HOST_INFO.
const hostInfoSize = 180

// features are the bits of those that the card has.
func (p *Personality) features() uint64 {
	bits := uint64(1<<featDevice | 1<<featAENQ | 1<<featNetwork | 1<<featQueues | 1<<featHints | 1<<featHost)
	if !p.NoEQs {
		bits |= 1 << featEQs
	}
	if p.WideData {
		bits |= 1 << featQueuesToo
	}
	return bits
}

func (d *Device) getFeature(c *command) *failure {
	p := &d.cfg.Personality
	id := c.u8(17)
	if id > 63 || p.features()>>id&1 == 0 || id == featHost {
		return refuse(statusUnsupported, "feature %d", id)
	}
	const at = 8
	switch id {
	case featDevice:
		c.put64(at, p.features())
		c.put64(at+8, pageSizes)
		c.put32(at+16, 1) // firmware
		c.put32(at+20, 1) // interface
		c.put32(at+24, 1) // device
		c.put16(at+28, barDoorbells)
		c.answer[at+30], c.answer[at+31] = capsWidth, 64
		c.put32(at+32, p.Caps)
		if p.has(capRead | capWrite) {
			c.put32(at+36, maxRDMA)
		}
		c.put64(at+40, le.Uint64(d.gid[8:]))
		c.put16(at+48, linkGbits)
	case featQueues:
		for i, v := range []uint32{maxQPs, maxSQDepth, inlineData, maxRQDepth, maxCQs, maxCQDepth} {
			c.put32(at+4*i, v)
		}
		for i, v := range []uint16{p.SubCQs, p.MinSQ, sendSGEs, recvSGEs} {
			c.put16(at+24+2*i, v)
		}
		for i, v := range []uint32{maxMRs, maxMRPages, maxPDs, maxAHs, maxLLQ} {
			c.put32(at+32+4*i, v)
		}
		c.put16(at+52, 1) // SGEs of RDMA
		c.put16(at+54, p.Batch)
	case featQueuesToo:
		c.put16(at, inlineWide)
		if p.has(capCounters) {
			c.put32(at+8, allEvents)
			c.put32(at+12, maxCounters)
			c.put64(at+16, maxCounterValue)
		}
	case featNetwork:
		copy(c.answer[at:], d.gid[:])
		c.put32(at+16, mtu)
	case featEQs:
		c.put32(at, maxEQs)
		c.put32(at+4, eqDepth)
		c.put32(at+8, 1)
	case featAENQ:
		c.put32(at, allGroups)
		c.put32(at+4, d.aenq.enabled)
	case featHints: // no hints: the driver knows what to do
	}
	return nil
}

func (d *Device) setFeature(c *command) *failure {
	switch id := c.u8(17); id {
	case featAENQ:
		groups := c.u32(24)
		if groups&^uint32(allGroups) != 0 || c.u8(3)&2 != 0 {
			return illegal("event groups %#x, of which the card has %#x", groups, allGroups)
		}
		d.aenq.enabled = groups
		d.keepAlive()
	case featHost:
		if c.u8(3)&2 == 0 || c.u32(4) != hostInfoSize {
			return illegal("HOST_INFO in a buffer of %d bytes, flags %#x", c.u32(4), c.u8(3))
		}
		var b [hostInfoSize]byte
		if err := d.read(join(c.u32(8), c.u32(12)), b[:]); err != nil {
			return illegal("HOST_INFO: %v", err)
		}
		release, _, ended := bytes.Cut(b[:128], []byte{0})
		kind, spec := le.Uint32(b[128:]), le.Uint16(b[174:])
		if !ended || kind != 0 || spec != 2<<8 {
			return illegal("HOST_INFO %q of system %d, specification %#x", release, kind, spec)
		}
		d.rep.Host = string(release)
	default:
		return refuse(statusUnsupported, "feature %d", id)
	}
	return nil
}

// statistics are what GET_STATS answers.
type statistics struct {
	txBytes, txPackets, rxBytes, rxPackets, rxDrops, qkeyErrors uint64
	sendBytes, sends, recvBytes, recvs                          uint64
	reads, readBytes, readErrors, readAnswered                  uint64
	writes, writeBytes, writeErrors, writeReceived              uint64
}

func (d *Device) getStats(c *command) *failure {
	s := &d.stats
	if c.u8(17) != 0 || c.u16(18) != 0 {
		return illegal("scope %d, modifier %d", c.u8(17), c.u16(18))
	}
	groups := [][]uint64{
		{s.txBytes, s.txPackets, s.rxBytes, s.rxPackets, s.rxDrops, s.qkeyErrors},
		{s.sendBytes, s.sends, s.recvBytes, s.recvs},
		{s.reads, s.readBytes, s.readErrors, s.readAnswered},
		{s.writes, s.writeBytes, s.writeErrors, s.writeReceived},
		make([]uint64, 5), // nothing is lost on the fabric
	}
	kind := int(c.u8(16))
	if kind >= len(groups) || kind == 3 && !d.cfg.Personality.has(capWrite) {
		return illegal("statistics of type %d", kind)
	}
	for i, v := range groups[kind] {
		c.put64(8+8*i, v)
	}
	return nil
}

// String writes a GID as an IPv6 address.
func (g GID) String() string { return netip.AddrFrom16(g).String() }
