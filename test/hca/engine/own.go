package engine

// The device has memory of its own, which memory keys lead to and the host reaches by its bus.

// OwnMemoryUsed says whether a memory key leads to any of n bytes from a place on.
func (d *Device) OwnMemoryUsed(at, n uint64) bool {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	for _, m := range d.mkeys {
		if s := &m.spec; s.Mode == ModeOwn && at < s.Start+s.Length && s.Start < at+n {
			return true
		}
	}
	return false
}

// ReadOwnMemory is a load of the host's. What is beyond the end is zeros.
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
