package efa

// pd is a protection domain.
type pd struct {
	number uint16
	users  int
}

// uar is a page of doorbells, which belongs to one context.
type uar struct{ users int }

// ah is an address: one for each domain and peer, with a count of the commands that made it.
type ah struct {
	number uint16
	pd     *pd
	gid    GID
	count  int
}

// firstAH tells numbers of AHs apart from others.
const firstAH = 0x400

// unused gives the lowest number from first on that a table does not have.
func unused[T any](m map[uint16]T, first, n uint16) (uint16, bool) {
	for i := range n {
		if _, used := m[first+i]; !used {
			return first + i, true
		}
	}
	return 0, false
}

func (d *Device) allocPD(c *command) *failure {
	n, ok := unused(d.pds, 1, maxPDs)
	if !ok {
		return refuse(statusNoResources, "there are %d PDs", maxPDs)
	}
	d.pds[n] = &pd{number: n}
	c.put16(8, n)
	return nil
}

func (d *Device) deallocPD(c *command) *failure {
	n := c.u16(4)
	switch p := d.pds[n]; {
	case p == nil:
		return illegal("PD %d does not exist", n)
	case p.users > 0:
		return refuse(statusBusy, "PD %d has %d objects", n, p.users)
	}
	delete(d.pds, n)
	return nil
}

func (d *Device) allocUAR(c *command) *failure {
	n, ok := unused(d.uars, 0, maxUARs)
	if !ok {
		return refuse(statusNoResources, "there are %d UARs", maxUARs)
	}
	d.uars[n] = &uar{}
	c.put16(8, n)
	return nil
}

func (d *Device) deallocUAR(c *command) *failure {
	n := c.u16(4)
	switch u := d.uars[n]; {
	case u == nil:
		return illegal("UAR %d does not exist", n)
	case u.users > 0:
		return refuse(statusBusy, "UAR %d has %d queues", n, u.users)
	}
	delete(d.uars, n)
	return nil
}

func (d *Device) createAH(c *command) *failure {
	gid := GID(c.in[4:20])
	p := d.pds[c.u16(20)]
	if p == nil {
		return illegal("PD %d does not exist", c.u16(20))
	}
	if d.f.ports[gid] == nil {
		return illegal("no card has the address %v", gid)
	}
	if a := d.ahOf(p, gid); a != nil && !d.cfg.Personality.NewAHs {
		a.count++
		c.put16(8, a.number)
		return nil
	}
	// The number that was used last comes last, so that one that is no longer valid is noticed.
	for i := range uint32(maxAHs) {
		n := uint16(firstAH + (d.last.ah+i)%maxAHs)
		if d.ahs[n] != nil {
			continue
		}
		d.last.ah += i + 1
		d.ahs[n] = &ah{number: n, pd: p, gid: gid, count: 1}
		p.users++
		c.put16(8, n)
		return nil
	}
	return refuse(statusNoResources, "there are %d AHs", maxAHs)
}

// ahOf finds the address of a card in a domain. Of several it takes the one with the lowest number.
func (d *Device) ahOf(p *pd, gid GID) *ah {
	var found *ah
	for _, a := range d.ahs {
		if a.pd == p && a.gid == gid && (found == nil || a.number < found.number) {
			found = a
		}
	}
	return found
}

func (d *Device) destroyAH(c *command) *failure {
	n, p := c.u16(4), c.u16(6)
	a := d.ahs[n]
	if a == nil || a.pd.number != p {
		return illegal("PD %d has no AH %d", p, n)
	}
	if a.count--; a.count == 0 {
		a.pd.users--
		delete(d.ahs, n)
	}
	return nil
}
