package efa

import "math/bits"

// Permissions of an MR.
const (
	permLocalWrite  = 1 << 0
	permRemoteWrite = 1 << 1
	permRemoteRead  = 1 << 2
)

// Page lists.
const (
	inlinePages = 4
	chunkSlots  = 510 // pages of the list that a chunk names
	chunkNext   = 8 * chunkSlots
	chunkUsed   = chunkNext + 12
)

// mr is a memory region.
type mr struct {
	lkey, rkey   uint32
	pd           *pd
	iova, length uint64
	shift        uint
	perms        uint8
	pages        []uint64
}

func (d *Device) regMR(c *command) *failure {
	p, length, iova, shift, perms := d.pds[c.u16(4)], c.u64(40), c.u64(56), uint(c.u8(48)&31), c.u8(49)
	allowed := uint8(permLocalWrite)
	if d.cfg.Personality.has(capWrite) {
		allowed |= permRemoteWrite
	}
	if d.cfg.Personality.has(capRead) {
		allowed |= permRemoteRead
	}
	switch {
	case c.u8(48)&^31 != 0 || c.u32(52) != 0:
		return illegal("flags %#x, %d pages: the card has page lists of virtual memory, and counts the pages itself", c.u8(48), c.u32(52))
	case p == nil:
		return illegal("PD %d does not exist", c.u16(4))
	case uint64(pageSizes)>>shift&1 == 0:
		return illegal("pages of 1<<%d bytes", shift)
	case perms&^allowed != 0:
		return illegal("permissions %#x, and the card has %#x", perms, allowed)
	case length == 0 || iova+length-1 < iova:
		return illegal("%#x bytes at %#x", length, iova)
	case len(d.mrs) >= maxMRs:
		return refuse(statusNoResources, "there are %d MRs", maxMRs)
	}
	first, last := iova>>shift, (iova+length-1)>>shift
	if last-first >= maxMRPages {
		return illegal("%d pages, and there may be %d", last-first+1, maxMRPages)
	}
	if n := int(last - first + 1); n > maxPages-d.pages {
		return refuse(statusNoResources, "%d pages, and %d of %d are used", n, d.pages, maxPages)
	}
	m := &mr{pd: p, iova: iova, length: length, shift: shift, perms: perms, pages: make([]uint64, last-first+1)}
	if f := d.readPages(c, m.pages); f != nil {
		return f
	}
	for i, at := range m.pages {
		if at&(1<<shift-1) != 0 || at>>capsWidth != 0 {
			return illegal("page %d of 1<<%d bytes is at %#x", i, shift, at)
		}
		if _, err := d.cfg.Memory.Bytes(at, 1); err != nil {
			return illegal("page %d: %v", i, err)
		}
	}
	// Keys have 24 bits, of which the low ones change each time, so that an old key is noticed. Remote keys look
	// different.
	for m.lkey = 0; m.lkey == 0 || d.mrs[m.lkey] != nil; {
		d.last.mr++
		m.lkey = d.last.mr & 0xffffff
	}
	m.rkey = bits.Reverse32(m.lkey) | 1
	p.users++
	d.pages += len(m.pages)
	d.mrs[m.lkey], d.rkeys[m.rkey] = m, m
	c.put32(8, m.lkey)
	c.put32(12, m.rkey)
	return nil
}

// readPages reads the list of pages: from the command, from one buffer, or from the pages of a buffer, which stand in
// a chain of chunks.
func (d *Device) readPages(c *command, pages []uint64) *failure {
	list := make([]byte, 8*len(pages))
	length, at := c.u32(8), join(c.u32(12), c.u32(16))
	switch flags := c.u8(3) & 6; {
	case flags == 0 && len(pages) > inlinePages:
		return illegal("%d pages stand in the command, which has room for %d", len(pages), inlinePages)
	case flags == 0:
		copy(list, c.in[8:])
	case flags&2 == 0:
		return illegal("flags %#x: an indirect list that is no list", c.u8(3))
	case flags&4 == 0:
		if length != uint32(len(list)) {
			return illegal("a list of %d bytes for %d pages", length, len(pages))
		}
		if err := d.read(at, list); err != nil {
			return illegal("page list: %v", err)
		}
	default:
		if f := d.readChunks(length, at, list); f != nil {
			return f
		}
	}
	for i := range pages {
		pages[i] = le.Uint64(list[8*i:])
	}
	return nil
}

// readChunks reads a list by the chain of chunks that name its pages.
func (d *Device) readChunks(length uint32, at uint64, list []byte) *failure {
	for len(list) > 0 {
		slots := min((len(list)+pageSize-1)/pageSize, chunkSlots)
		last := slots*pageSize >= len(list)
		want := uint32(chunkUsed)
		if last {
			// Linux says 12 for a last chunk that is full.
			want = uint32(8*(slots%chunkSlots) + chunkUsed - chunkNext)
		}
		if length != want {
			return illegal("a chunk of %d bytes for %d pages of the list, want %d", length, slots, want)
		}
		var chunk [chunkUsed]byte
		n := 8 * slots
		if !last {
			n = chunkUsed
		}
		if err := d.read(at, chunk[:n]); err != nil {
			return illegal("chunk of the page list: %v", err)
		}
		for i := range slots {
			n := min(len(list), pageSize)
			if err := d.read(le.Uint64(chunk[8*i:]), list[:n]); err != nil {
				return illegal("page list: %v", err)
			}
			list = list[n:]
		}
		length, at = le.Uint32(chunk[chunkNext:]), join(le.Uint32(chunk[chunkNext+4:]), le.Uint32(chunk[chunkNext+8:]))
	}
	return nil
}

func (d *Device) deregMR(c *command) *failure {
	m := d.mrs[c.u32(4)]
	if m == nil {
		return illegal("no MR has the lkey %#x", c.u32(4))
	}
	m.pd.users--
	d.pages -= len(m.pages)
	delete(d.mrs, m.lkey)
	delete(d.rkeys, m.rkey)
	return nil
}

// holds reports whether the MR has n bytes at an address, in a domain and with permissions.
func (m *mr) holds(p *pd, addr, n uint64, perms uint8) bool {
	return m != nil && m.pd == p && m.perms&perms == perms && addr >= m.iova && n <= m.length && addr-m.iova <= m.length-n
}

// memory appends the pieces of memory behind n bytes of an MR.
func (d *Device) memory(m *mr, addr, n uint64, pieces [][]byte) ([][]byte, bool) {
	for n > 0 {
		off := addr - m.iova>>m.shift<<m.shift
		in := off & (1<<m.shift - 1)
		b, err := d.cfg.Memory.Bytes(m.pages[off>>m.shift]+in, int(min(n, 1<<m.shift-in)))
		if err != nil {
			return nil, false
		}
		pieces = append(pieces, b)
		addr, n = addr+uint64(len(b)), n-uint64(len(b))
	}
	return pieces, true
}
