package hca

import "github.com/goverbs/goverbs/test/hca/prm"

// The card's own memory, at the end of BAR 0, which the driver gives out by pages.
const (
	dmSize     = 256 << 10
	dmMost     = 128 << 10 // of one allocation
	dmUnit     = 64        // a multiple of which are sizes and places
	dmMaxAlign = 6         // log2, in such units
)

// dmStart is where it begins in BAR 0.
func (p *Personality) dmStart() uint64 { return p.BARBytes() - dmSize }

func (d *Device) dmStart() uint64 { return d.cfg.Personality.dmStart() }

// deviceMemory are the capabilities of it.
func deviceMemory(p *Personality) []setting {
	return []setting{
		{prm.CapMEMIC, 1}, {prm.CapMEMICMinLog, 6}, {prm.CapMEMICMaxAlign, dmMaxAlign}, {prm.CapMEMICStart, p.dmStart()},
		{prm.CapMEMICSize, dmSize}, {prm.CapMEMICMost, dmMost},
	}
}

// allocMEMIC gives out memory at the beginning of the pages that the driver has chosen.
func (d *Device) allocMEMIC(c *call) error {
	from, room, size := prm.MEMICRangeStart.Get(c.in), prm.MEMICRangeSize.Get(c.in), prm.MEMICAllocSize.Get(c.in)
	if from < d.dmStart() || from%uarPage != 0 || room%uarPage != 0 || room > dmSize || from-d.dmStart() > dmSize-room {
		return refuse(prm.BadParam, "MEMIC range", "%#x bytes at %#x", room, from)
	}
	if size == 0 || size%dmUnit != 0 || size > min(room, dmMost) {
		return refuse(prm.BadParam, "memic_size", "%d in a range of %d", size, room)
	}
	if log := prm.MEMICAlign.Get(c.in); log > dmMaxAlign {
		return refuse(prm.BadParam, "log_memic_addr_alignment", "%d", log)
	}
	for at, n := range d.dm {
		if from < at+n && at < from+size {
			return refuse(prm.NoResource, "MEMIC range", "%#x bytes at %#x are in use", n, at)
		}
	}
	d.dm[from] = size
	prm.MEMICAllocated.Put(c.out, from)
	return nil
}

func (d *Device) deallocMEMIC(c *call) error {
	at, size := prm.MEMICFreeStart.Get(c.in), prm.MEMICFreeSize.Get(c.in)
	if n, ok := d.dm[at]; !ok || n != size {
		return refuse(prm.BadResource, "memic_start_addr", "%d bytes at %#x were not given out", size, at)
	}
	if d.eng.OwnMemoryUsed(at-d.dmStart(), size) {
		return refuse(prm.ResBusy, "memic_start_addr", "a memory key leads to %#x", at)
	}
	delete(d.dm, at)
	return nil
}

// checkDM checks a load or a store of the host's. Hardware takes whole words, of 4 bytes, and what
// was not allocated has no owner.
func (d *Device) checkDM(what string, off uint64, n int) {
	const word = 4
	if off%word != 0 || n%word != 0 {
		d.eng.Violate("device-memory-width", "a %s of %d bytes at %#x of the card's memory, which has words of %d", what, n, off, word)
	}
	d.mu.Lock()
	in := d.inDM(off, uint64(n))
	d.mu.Unlock()
	if !in {
		d.eng.Violate("device-memory-range", "a %s of %d bytes at %#x of the card's memory, where nothing was given out", what, n, off)
	}
}

// inDM says whether memory that was given out has all of a key's.
func (d *Device) inDM(start, length uint64) bool {
	for at, n := range d.dm {
		if start >= at && start-at <= n && length <= n-(start-at) {
			return true
		}
	}
	return false
}
