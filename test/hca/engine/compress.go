package engine

import (
	"bytes"
	"time"
)

// Compressed CQEs: a title, which is the first one with its op_own and byte_cnt changed, and behind it arrays of
// small entries with what differs. Together they have as many indices as there are completions. The first array
// is at the index behind the title's, the others at 8, 16 and so on from the title's. Nothing is
// written at the other indices.
//
// None goes around the end of the ring: DPDK's vector code reads the arrays, and fills its ring of as many buffers,
// without a look at the end (rxq_cq_decompress_v), and works on cards.
const (
	cqeMini   = 0xc // the format of a title in op_own
	miniBytes = 8
	miniArray = 64 / miniBytes
	zipWait   = 10 * time.Microsecond // how long the first is held back
)

// MostCompressed is the number of completions in one title.
const MostCompressed = 64

// held holds an entry back if it can be compressed, and reports whether it did.
func (c *cq) held(e *cqe) bool {
	if c.spec.Mini == 0 || e.opcode != cqeRespSend || !e.ethernet || e.solicited {
		return false
	}
	raw := e.bytes(c, c.d.now())
	if n := len(c.zip); n > 0 && (n == MostCompressed || (c.pi+uint32(n))&(1<<c.spec.Log-1) == 0 || !follows(c.zip[n-1], raw)) {
		c.unzip()
	}
	c.d.rep.cqes[e.name()]++
	c.zip = append(c.zip, raw)
	if len(c.zip) == 1 {
		c.zipEnd = c.d.f.after(zipWait, func() { c.zipEnd = nil; c.unzip() })
	}
	return true
}

// follows reports whether a completion differs from the one before it only by what a small entry has, and its index
// is the next one.
func follows(before, raw []byte) bool {
	step := uint16(1)
	if strides := be.Uint16(before[44:]) & 0x7fff; strides != 0 {
		step = strides
	}
	same := func(from, to int) bool { return bytes.Equal(before[from:to], raw[from:to]) }
	return be.Uint16(raw[60:]) == be.Uint16(before[60:])+step && same(0, 12) && same(16, 20) && same(22, 44) && same(56, 60) && raw[63] == before[63]
}

// unzip ends the holding back: it writes the entries.
func (c *cq) unzip() {
	c.d.f.cancel(&c.zipEnd)
	zip := c.zip
	if c.zip = nil; len(zip) == 0 || c.failed || c.gone {
		return
	}
	title := zip[0]
	qpn := be.Uint32(title[56:]) & maxNumber
	if len(zip) > 1 {
		title = bytes.Clone(title)
		for first := 0; first < len(zip); first += miniArray {
			array := make([]byte, 64)
			for i, raw := range zip[first:min(first+miniArray, len(zip))] {
				c.mini(array[miniBytes*i:], raw)
			}
			if !c.putAt((c.pi+uint32(max(first, 1)))&maxNumber, array, qpn) {
				return
			}
		}
		be.PutUint32(title[44:], uint32(len(zip)))
		title[63] |= cqeMini
		c.d.rep.cqes["compressed"]++
	}
	if !c.put(title, qpn) { // last: it makes the arrays valid
		return
	}
	c.pi = (c.pi + uint32(len(zip)) - 1) & maxNumber
	if c.armed == armAny {
		c.due()
	}
}

// mini is the small entry of a completion.
func (c *cq) mini(to, raw []byte) {
	if c.spec.Mini != MiniHash {
		copy(to, raw[20:22])
	} else {
		copy(to, raw[12:16])
	}
	if c.spec.Mini == MiniStride {
		copy(to[2:], raw[60:62])
	}
	copy(to[4:miniBytes], raw[44:48])
}
