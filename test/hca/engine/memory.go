package engine

import (
	"encoding/binary"
	"fmt"
)

var be = binary.BigEndian

// page is the smallest page that the device knows, and the unit of bus addresses.
const page = 4096

// pieces calls fn with the memory from addr on, piece by piece.
func (d *Device) pieces(addr uint64, n int, fn func(b []byte)) error {
	for n > 0 {
		b, err := d.cfg.Memory.Bytes(addr, n)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return fmt.Errorf("bus address %#x: no memory", addr)
		}
		b = b[:min(len(b), n)]
		fn(b)
		addr, n = addr+uint64(len(b)), n-len(b)
	}
	return nil
}

// read copies memory out.
func (d *Device) read(addr uint64, dst []byte) error {
	return d.pieces(addr, len(dst), func(b []byte) { dst = dst[copy(dst, b):] })
}

// write copies memory in.
func (d *Device) write(addr uint64, src []byte) error {
	return d.pieces(addr, len(src), func(b []byte) { src = src[copy(b, src):] })
}

// load32 reads a big-endian word that the driver may be writing.
func (d *Device) load32(addr uint64) (uint32, error) {
	b, err := d.cfg.Memory.Bytes(addr, 4)
	if err == nil && len(b) >= 4 {
		return loadBE32(b), nil
	}
	var w [4]byte
	if err := d.read(addr, w[:]); err != nil {
		return 0, err
	}
	return be.Uint32(w[:]), nil
}

// check says what is wrong with a buffer that must hold n bytes.
func (b *Buffer) check(d *Device, object string, n uint64) error {
	if b.PageSize < page || b.PageSize&(b.PageSize-1) != 0 || b.PageSize > 1<<43 {
		return refuse(BadParam, object, 0, "log_page_size", "page size %#x", b.PageSize)
	}
	if b.Offset >= b.PageSize || b.Offset%64 != 0 {
		return refuse(BadParam, object, 0, "page_offset", "offset %#x in pages of %#x bytes", b.Offset, b.PageSize)
	}
	need := (b.Offset + n + b.PageSize - 1) / b.PageSize
	if uint64(len(b.Pages)) < need {
		return refuse(BadParam, object, 0, "pas", "%d pages of %#x bytes, and %d are needed for %#x bytes at offset %#x", len(b.Pages), b.PageSize, need, n, b.Offset)
	}
	for i, p := range b.Pages[:need] {
		if p%page != 0 {
			return refuse(BadParam, object, 0, "pas", "page %d at %#x is not aligned", i, p)
		}
		if _, err := d.cfg.Memory.Bytes(p, 1); err != nil {
			return refuse(BadParam, object, 0, "pas", "page %d at %#x: %v", i, p, err)
		}
	}
	return nil
}

// span calls fn for the bus addresses of n bytes of a buffer.
func (b *Buffer) span(off uint64, n int, fn func(addr uint64, n int) error) error {
	off += b.Offset
	for n > 0 {
		i, o := off/b.PageSize, off%b.PageSize
		if i >= uint64(len(b.Pages)) {
			return fmt.Errorf("offset %#x is beyond a queue of %d pages", off, len(b.Pages))
		}
		k := int(min(uint64(n), b.PageSize-o))
		if err := fn(b.Pages[i]+o, k); err != nil {
			return err
		}
		off, n = off+uint64(k), n-k
	}
	return nil
}

// readBuf copies bytes of a buffer out.
func (d *Device) readBuf(b *Buffer, off uint64, dst []byte) error {
	return b.span(off, len(dst), func(addr uint64, n int) error {
		err := d.read(addr, dst[:n])
		dst = dst[n:]
		return err
	})
}

// writeBuf copies bytes into a buffer.
func (d *Device) writeBuf(b *Buffer, off uint64, src []byte) error {
	return b.span(off, len(src), func(addr uint64, n int) error {
		err := d.write(addr, src[:n])
		src = src[n:]
		return err
	})
}

// writeEntry writes a queue entry whose last word tells the driver that it is there: the
// other bytes first, then that word in one store.
func (d *Device) writeEntry(b *Buffer, off uint64, e []byte) error {
	last := len(e) - 4
	if err := d.writeBuf(b, off, e[:last]); err != nil {
		return err
	}
	return b.span(off+uint64(last), 4, func(addr uint64, n int) error {
		m, err := d.cfg.Memory.Bytes(addr, n)
		if err != nil {
			return err
		}
		if n == 4 && len(m) >= 4 {
			storeBE32(m, be.Uint32(e[last:]))
			return nil
		}
		return d.write(addr, e[last:last+n])
	})
}

// checkDBR refuses a doorbell record that isn't where one can be.
func (d *Device) checkDBR(object string, addr uint64) error {
	if addr%8 != 0 {
		return refuse(BadParam, object, 0, "dbr_addr", "%#x is not a multiple of 8", addr)
	}
	if _, err := d.load32(addr); err != nil {
		return refuse(BadParam, object, 0, "dbr_addr", "%#x: %v", addr, err)
	}
	if _, err := d.load32(addr + 4); err != nil {
		return refuse(BadParam, object, 0, "dbr_addr", "%#x: %v", addr+4, err)
	}
	return nil
}
