package engine

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
)

// An addressHandle is a path that datagrams name by its number.
type addressHandle struct {
	pd   memory.PD
	av   AV
	path *path
}

// CreateAH makes an address handle and returns its number.
func (d *Device) CreateAH(pd memory.PD, av AV) (num uint32, errno syscall.Errno) {
	way, errno := d.newPath(&av)
	if errno != 0 {
		return 0, errno
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for range MaxAH {
		n := d.nextAH
		d.nextAH = nextNumber(n, 1, MaxAH+1)
		if d.ahs.Find(n) == nil {
			d.ahs.Add(n, &addressHandle{pd: pd, av: av, path: way})
			return n, 0
		}
	}
	return 0, syscall.ENOMEM
}

// DestroyAH destroys the address handle with a number.
func (d *Device) DestroyAH(num uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.findAH(num) != nil {
		d.ahs.Remove(num)
	}
}

// findAH returns the address handle with a number, or nil.
func (d *Device) findAH(num uint32) *addressHandle {
	if num > MaxAH {
		return nil
	}
	return d.ahs.Find(num)
}
