package engine

// The device has memory of its own, which memory keys lead to and the host reaches by its bus.

// ownPlace says at which place of the device's memory a bus address is.
func (d *Device) ownPlace(addr uint64) (at uint64, ok bool) {
	if d.cfg.OwnAddress == nil {
		return 0, false
	}
	at = addr - d.cfg.OwnAddress()
	return at, at < uint64(len(d.own))
}

// checkPage refuses a page that is neither the guest's memory nor the device's.
func (d *Device) checkPage(addr uint64) error {
	if _, ok := d.ownPlace(addr); ok {
		return nil
	}
	_, err := d.cfg.Memory.Bytes(addr, 1)
	return err
}

// toOwn makes extents of pages that are the device's memory lead there.
func (d *Device) toOwn(all []extent) []extent {
	for i := range all {
		e := &all[i]
		if e.own || e.null || e.absent {
			continue
		}
		if at, ok := d.ownPlace(e.addr); ok && uint64(e.n) <= uint64(len(d.own))-at {
			e.addr, e.own = at, true
		}
	}
	return all
}

// OwnMemoryUsed says whether a memory key leads to any of n bytes from a place on.
func (d *Device) OwnMemoryUsed(at, n uint64) bool {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	for _, m := range d.mkeys {
		switch s := &m.spec; s.Mode {
		case ModeOwn:
			if at < s.Start+s.Length && s.Start < at+n {
				return true
			}
		case ModeMTT:
			for _, p := range s.Pages {
				if own, ok := d.ownPlace(p &^ 0xfff); ok && at < own+1<<s.LogPageSize && own < at+n {
					return true
				}
			}
		}
	}
	return false
}

// ReadOwnMemory is a load of the host's. Bytes beyond the end are zeros.
func (d *Device) ReadOwnMemory(at uint64, p []byte) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	clear(p)
	copy(p, d.own[min(at, uint64(len(d.own))):])
}

// WriteOwnMemory is a store of the host's.
func (d *Device) WriteOwnMemory(at uint64, p []byte) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	copy(d.own[min(at, uint64(len(d.own))):], p)
}
