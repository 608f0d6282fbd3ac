package uverbs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// driverKind selects a driver on the data path, by a switch: an interface there would
// make every caller's work request escape to the heap.
type driverKind uint8

const (
	kindRxe driverKind = 1 + iota
	kindMlx5
	kindSiw
)

// driver is what a device's driver does beside the kernel's common commands. It is
// used on the control path only.
type driver interface {
	kind() driverKind
	name() string
	failureDriver

	// abi returns the versions of the driver's private data that the library speaks.
	abi() (lowest, highest uint64)

	// operations returns what a type of QP can do; ok is false if there is no such type.
	operations(QPType) (ops opcodeSet, ok bool)

	// unsupportedQP, unsupportedSRQ and unsupportedMR name an option that the driver does not support,
	// or return "".
	unsupportedQP(*QPOptions) string
	unsupportedSRQ(*SRQOptions) string
	unsupportedMR(*region) string

	// unsupportedModify returns the error of a Modify to a state that the driver does not support, or nil.
	unsupportedModify(to QPState) error

	// contextUdata returns the driver's part of GET_CONTEXT, which is given by ioctl or by
	// write; openContext takes what the kernel answered, and closeContext frees what it made.
	contextUdata(ioctl bool) udata
	openContext(d *Device, u udata, ioctl bool) error
	closeContext(*Device) error

	// pdUdata, mrUdata and ahUdata return the driver's part of these commands; openAH completes
	// a new AH.
	pdUdata() udata
	mrUdata() udata
	ahUdata() udata
	openAH(*AH, udata) error

	// prepareCQ, prepareQP and prepareSRQ make what must be there before the kernel makes
	// the object, and return the driver's part of the command. What they change in options
	// is what the kernel is told. An error means that nothing was made.
	prepareCQ(c *CQ, cqe *int, o *CQOptions) (udata, error)
	prepareQP(*QP, *qpSpec) (udata, error)
	prepareSRQ(*SRQ, *SRQOptions) (udata, error)

	// mapCQ, mapQP and mapSRQ complete a new object by what the kernel answered.
	mapCQ(*CQ, udata) error
	mapQP(*QP, udata) error
	mapSRQ(*SRQ, udata) error

	// freeCQ, freeQP and freeSRQ free what belongs to an object that the kernel has
	// destroyed or did not make.
	freeCQ(*CQ) error
	freeQP(*QP) error
	freeSRQ(*SRQ) error

	// checkCQE refuses a size of completions that the driver does not have.
	checkCQE(size int) error

	// knowsInline says that prepareQP refuses too much inline data; otherwise it is found
	// by trying what the kernel takes.
	knowsInline() bool

	// qpModified is called when a QP has changed its state.
	qpModified(q *QP, from, to QPState)

	// queriedQP puts right what the kernel has answered to QUERY_QP.
	queriedQP(q *QP, a *QPAttr)

	// movesQP reports whether the connection manager in the kernel moves the driver's QPs.
	movesQP() bool

	// queriedSRQ puts right what the kernel has answered to QUERY_SRQ.
	queriedSRQ(s *SRQ, a *SRQAttr)

	// briefCommands reports whether the kernel carries out the driver's commands at once, as a
	// device in software can, so that Go's scheduler need not be told of brief ones.
	briefCommands() bool

	// refusal says how the device's firmware refused the command that has just failed, or returns
	// "" if it did not or that is unknown.
	refusal() string

	// modifySRQ has issue give MODIFY_SRQ, and maps the new ring if it is resized.
	modifySRQ(s *SRQ, resize bool, issue func(udata) error) error
}

// software is what the drivers of devices in software have in common.
type software struct{}

func (software) unsupportedQP(o *QPOptions) string {
	switch {
	case o.Flags != 0:
		return "Flags"
	case o.InlineRecv:
		return "InlineRecv"
	case o.IndTable != nil:
		return "IndTable"
	}
	return ""
}

func (software) refusal() string { return "" }

func (software) queriedSRQ(*SRQ, *SRQAttr) {}

func (software) unsupportedSRQ(o *SRQOptions) string {
	if o.XRCD != nil {
		return "XRCD"
	}
	return ""
}

// drivers are the drivers that the library has, by the kernel's number.
var drivers = [...]struct {
	id netlinkrdma.DriverID
	driver
}{
	{rxeDriverID, rxeDriver{}},
	{mlx5DriverID, mlx5Driver{}},
	{siwDriverID, siwDriver{}},
}

// driverOf returns the driver of a number, nil if the library has it not.
func driverOf(id netlinkrdma.DriverID) driver {
	for _, d := range drivers {
		if d.id == id {
			return d.driver
		}
	}
	return nil
}

// driverNames lists them.
func driverNames() string {
	var names []string
	for _, d := range drivers {
		names = append(names, d.name())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// checkABI compares the kernel's version of a driver's data with the library's.
func checkABI(d driver, version uint64) error {
	if lo, hi := d.abi(); version < lo || version > hi {
		return fmt.Errorf("driver %s of this kernel has ABI version %d, the library speaks %d to %d: %w", d.name(), version, lo, hi, errABI)
	}
	return nil
}
