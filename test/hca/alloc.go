package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// take finds the lowest number from first to last that is free.
func take[T any](used map[uint32]T, v T, first, last uint32, what string) (uint32, error) {
	for n := first; n <= last; n++ {
		if _, ok := used[n]; !ok {
			used[n] = v
			return n, nil
		}
	}
	return 0, refuse(prm.NoResource, what, "all %d are in use", last-first+1)
}

// drop gives a number back.
func drop[T any](used map[uint32]T, n uint32, what string) error {
	if _, ok := used[n]; !ok {
		return refuse(prm.BadResource, what, "%#x does not exist", n)
	}
	delete(used, n)
	return nil
}

// Numbers that this side gives out. Each kind begins elsewhere, so that a number used in
// place of another is found out.
const (
	firstDomain, lastDomain = 0x200, 0x11ff
)

func (d *Device) allocPD(c *call) error {
	n, err := d.eng.AllocPD()
	c.answer(n)
	return err
}

func (d *Device) deallocPD(c *call) error { return d.eng.DeallocPD(c.number()) }

func (d *Device) allocXRCD(c *call) error {
	n, err := d.eng.AllocXRCD()
	c.answer(n)
	return err
}

func (d *Device) deallocXRCD(c *call) error { return d.eng.DeallocXRCD(c.number()) }

func (d *Device) allocUAR(c *call) error {
	n, err := d.takeUAR()
	if err != nil {
		return err
	}
	for k := range d.uarsPerPage() {
		d.eng.NewUAR(n + k)
	}
	c.answer(n)
	return nil
}

// uarsPerPage is how many UAR pages, which have 4 KiB, the host has in one of its pages. They are given out
// together, so that no two programs have registers in one page.
func (d *Device) uarsPerPage() uint32 { return prm.CapUARsPerPage.U32(d.caps[prm.CapGeneral].cur) }

// takeUAR finds UAR pages that are free, and returns the number of the first one.
func (d *Device) takeUAR() (uint32, error) {
	per := d.uarsPerPage()
	first := (max(d.firstUAR(), d.uarsFrom) + per - 1) / per * per
	for n := first; n+per-1 <= d.lastUAR(); n += per {
		free := benchPage/per != n/per
		for k := range per {
			free = free && !d.uars[n+k]
		}
		if free {
			for k := range per {
				d.uars[n+k] = true
			}
			return n, nil
		}
	}
	return 0, refuse(prm.NoResource, "UAR", "all from %#x to %#x are in use", first, d.lastUAR())
}

// UARsFrom has pages of registers given out from a number on, if it is one that there is, and
// returns how many from there on are in use.
func (d *Device) UARsFrom(first uint32) (inUse int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if first < d.firstUAR() || first > d.lastUAR() {
		return 0, refuse(prm.BadParam, "UAR", "%#x: want %#x to %#x", first, d.firstUAR(), d.lastUAR())
	}
	d.uarsFrom = first
	for n := range d.uars {
		if n >= first {
			inUse++
		}
	}
	return inUse, nil
}

func (d *Device) deallocUAR(c *call) error {
	for k := range d.uarsPerPage() {
		if err := drop(d.uars, c.number()+k, "UAR"); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) allocDomain(c *call) error {
	n, err := take(d.domains, true, firstDomain, lastDomain, "transport domain")
	c.answer(n)
	return err
}

func (d *Device) deallocDomain(c *call) error {
	n := c.number()
	if user := d.eth.domainUser(n); user != "" {
		return refuse(prm.ResBusy, "transport domain", "%#x is in use by %s", n, user)
	}
	return drop(d.domains, n, "transport domain")
}

func (d *Device) genEQE(c *call) error {
	data := c.in[prm.GenEQEData:]
	return d.eng.PostEQE(prm.EQNumber.U32(c.in), engine.EventType(data[1]), data[3], data[32:60])
}
