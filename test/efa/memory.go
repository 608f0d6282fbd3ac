package efa

import "fmt"

// Memory is the guest's memory by bus address: the longest contiguous piece, of 1 to n bytes.
type Memory interface {
	Bytes(addr uint64, n int) ([]byte, error)
}

// place finds the memory of a structure, which has to be in one piece.
func (d *Device) place(addr uint64, n int) ([]byte, error) {
	if addr>>capsWidth != 0 {
		return nil, fmt.Errorf("bus address %#x has more than %d bits", addr, capsWidth)
	}
	b, err := d.cfg.Memory.Bytes(addr, n)
	if err != nil {
		return nil, err
	}
	if len(b) < n {
		return nil, fmt.Errorf("bus address %#x: %d bytes of memory, and %d are needed", addr, len(b), n)
	}
	return b, nil
}

// read copies memory out, which may be in several pieces.
func (d *Device) read(addr uint64, dst []byte) error {
	for len(dst) > 0 {
		if addr>>capsWidth != 0 {
			return fmt.Errorf("bus address %#x has more than %d bits", addr, capsWidth)
		}
		b, err := d.cfg.Memory.Bytes(addr, len(dst))
		if err != nil {
			return err
		}
		n := copy(dst, b)
		addr, dst = addr+uint64(n), dst[n:]
	}
	return nil
}

// join puts two registers together.
func join(lo, hi uint32) uint64 { return uint64(hi)<<32 | uint64(lo) }
