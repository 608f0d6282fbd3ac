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

// What an object has for its driver is one struct per driver. In a QP those of the data path come
// first, next to the locks: a message touches few cache lines.
type (
	deviceDrivers struct{ mlx5 *mlx5Context }
	qpDrivers     struct {
		rxe  rxeQP
		siw  siwQP
		mlx5 mlx5QP
	}
	cqDrivers struct {
		rxe  rxeCQ
		mlx5 *mlx5CQ
		siw  *siwCQ
	}
	srqDrivers struct {
		rxe  rxeSRQ
		mlx5 *mlx5SRQ
		siw  siwSRQ
	}
	ahDrivers struct {
		rxe  rxeAH
		mlx5 mlx5AH
	}
	wqDrivers struct{ mlx5 *mlx5WQ }
	dmDrivers struct{ mlx5 *mlx5DM }
	tdDrivers struct{ mlx5 *mlx5Register }
)

// raised notes that the CQ has raised an event. It does not look at kind, which a Resize that loses
// the CQ may change meanwhile.
func (c *CQ) raised() {
	c.armed.Store(false)
	if c.mlx5 != nil {
		c.eventMlx5()
	}
}
