package uverbs

import "github.com/goverbs/goverbs/netlinkrdma"

// The code that depends on which driver a device has is in the files driver_*.go; this file is
// the only one that chooses among them. On the data path that is a switch: an interface there
// would make every caller's work request escape to the heap.

// driverKind selects a driver on the data path.
type driverKind uint8

const (
	kindInvalid driverKind = iota // of a zero value, or a CQ whose ring the kernel does not use any more
	kindRxe
	kindMlx5
	kindSiw
)

// drivers are the supported drivers by the kernel's driver ID. Tests add their own.
var drivers = []struct {
	id netlinkrdma.DriverID
	driver
}{
	{rxeDriverID, rxeDriver{}},
	{mlx5DriverID, mlx5Driver{}},
	{siwDriverID, siwDriver{}},
}

// raised notes that the CQ has raised an event. It does not look at kind, which a Resize that loses
// the CQ may change meanwhile.
func (c *CQ) raised() {
	c.armed.Store(false)
	if c.mlx5 != nil {
		c.eventMlx5()
	}
}
