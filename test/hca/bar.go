package hca

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/test/hca/engine"
)

var be = binary.BigEndian

// The initialization segment, at the beginning of BAR 0: struct mlx5_init_seg (mlx5/device.h).
const (
	segFWRev        = 0x0000
	segCmdIfRev     = 0x0004
	segCmdQHigh     = 0x0010
	segCmdQLow      = 0x0014
	segCmdDoorbell  = 0x0018
	segInitializing = 0x01fc
	segHealth       = 0x0200
	segHealthEnd    = 0x0240
	segTimerHigh    = 0x1000
	segTimerLow     = 0x1004
	segHealthCount  = 0x1010
	segEnd          = 0x4000

	fwMajor, fwMinor, fwSub = 16, 35, 2000
	cmdIfRev                = 5
	logCmdSlots             = 5 // 32 commands at a time
	logCmdStride            = 6

	healthSeverity = 0x38 // rfr_severity, whose top bit asks for a reset of the card
	healthSyndrome = 0x3c // irisc_index, synd, ext_synd
)

// UAR pages follow one another in BAR 0, up to the card's own memory. The first ones overlap the
// segment and are not given out. In the smallest BAR that is not so many, but one page overlaps the
// test bench.
const (
	uarPage       = 4096
	firstUAR      = 0x100
	firstUARSmall = 0x10
	benchPage     = benchOffset / uarPage
)

// firstUAR is the number of the first UAR page that is given out.
func (d *Device) firstUAR() uint32 {
	if d.cfg.Personality.BARBytes() <= firstUAR*uarPage {
		return firstUARSmall
	}
	return firstUAR
}

// lastUAR is the number of the last one.
func (d *Device) lastUAR() uint32 { return uint32(d.dmStart()/uarPage) - 1 }

// inBench reports whether n bytes of BAR 0 are the test bench's.
func inBench(off uint64, n int) bool {
	at := off - benchOffset
	return at < benchSize && uint64(n) <= benchSize-at
}

// ReadBAR answers a load.
func (d *Device) ReadBAR(_ int, off uint64, p []byte) {
	switch start := d.dmStart(); {
	case off >= start:
		d.checkDM("load", off, len(p))
		d.eng.ReadOwnMemory(off-start, p)
		return
	case inBench(off, len(p)):
		d.readBench(off-benchOffset, p)
		return
	case off/uarPage >= uint64(d.firstUAR()):
		d.eng.UARRead(uint32(off/uarPage), uint32(off%uarPage), len(p))
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now() // one load sees one time, however many bytes it has
	for i := range p {
		at := off + uint64(i)
		p[i] = byte(d.register(at&^3, now) >> (24 - at%4*8))
	}
}

// register reads a register of the segment at a time of the free running timer.
func (d *Device) register(off, now uint64) uint32 {
	switch off {
	case segFWRev:
		return fwMinor<<16 | fwMajor
	case segCmdIfRev:
		return cmdIfRev<<16 | fwSub
	case segCmdQHigh:
		return uint32(d.slots >> 32)
	case segCmdQLow:
		low := uint32(d.slots)&^0xfff | logCmdSlots<<4 | logCmdStride
		if d.fatal {
			low |= interfaceOff << 8
		}
		return low
	case segTimerHigh:
		return uint32(now >> 32)
	case segTimerLow:
		return uint32(now)
	case segHealthCount:
		if d.fatal {
			return 1 // a dead card's counter stands still
		}
		return uint32(now/1e7) &^ (1 << 31)
	case segHealth + healthSeverity:
		if d.fatal {
			return 1 << 31
		}
	case segHealth + healthSyndrome:
		if d.fatal {
			return healthFatal << 16
		}
	}
	return 0
}

// The kinds of interface of a card, in the low word of the command queue's address: MLX5_NIC_IFC_*
// (mlx5/driver.h). The full one is 0.
const interfaceOff = 1

// healthFatal is the syndrome in the health buffer of a card that has failed:
// MLX5_INITIAL_SEG_HEALTH_SYNDROME_FW_INTERNAL_ERR (mlx5_ifc.h).
const healthFatal = 0x01

// WriteBAR takes a store.
func (d *Device) WriteBAR(_ int, off uint64, p []byte) {
	switch start := d.dmStart(); {
	case off >= start:
		d.checkDM("store", off, len(p))
		d.eng.WriteOwnMemory(off-start, p)
		return
	case inBench(off, len(p)):
		d.writeBench(off-benchOffset, p)
		return
	case off/uarPage >= uint64(d.firstUAR()):
		if !d.deaf.Load() {
			d.eng.UARWrite(uint32(off/uarPage), uint32(off%uarPage), p)
		}
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(p) != 4 || off%4 != 0 {
		d.violation("a store of %d bytes at %#x of the initialization segment, whose registers have 4", len(p), off)
		return
	}
	v := be.Uint32(p)
	switch off {
	case segCmdQHigh:
		d.slots = uint64(v)<<32 | d.slots&0xffffffff
	case segCmdQLow:
		d.slots = d.slots&^0xffffffff | uint64(v&^0xfff)
		if kind := v >> 8 & 7; kind != 0 {
			d.violation("interface type %d is not modelled", kind)
		}
	case segCmdDoorbell:
		for slot := range 1 << logCmdSlots {
			if v>>slot&1 == 1 {
				d.command(slot)
			}
		}
	default:
		d.violation("a store at %#x of the initialization segment, where nothing can be written", off)
	}
}

// Fail is a fatal error of the card: no command is executed any more, the health counter
// stands still, and the driver is told by an event.
func (d *Device) Fail() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fatal = true
	d.deaf.Store(true)
	d.eng.PostEvent(engine.EventInternalError, 0, nil)
	d.eng.Fatal()
}
