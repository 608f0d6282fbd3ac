package uverbs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// driver implements what differs between the kernel's drivers on the control path. The data path is
// in dispatch.go. A driver embeds baseDriver, which has defaults. The objects and verbs that only mlx5 has
// are not in the interface: their files call its code if the device is one of mlx5.
type driver interface {
	kind() driverKind
	name() string
	capabilities() capabilities

	// abi returns the supported versions of the driver's private data.
	abi() (lowest, highest uint64)

	// operations returns the operations of a QP type; ok is false if the type is not supported.
	operations(ib.QPType) (ops opcodeSet, ok bool)

	// unsupportedQP, unsupportedSRQ and unsupportedMR name an option that the driver does not support,
	// or return "".
	unsupportedQP(*QPOptions) string
	unsupportedSRQ(*SRQOptions) string
	unsupportedMR(*Device, *region) string

	// unsupportedModify returns the error of a Modify to a state, or of attributes, that the driver or the
	// device does not support, or nil.
	unsupportedModify(d *Device, to ib.QPState, mask QPAttrMask) error

	// contextUdata returns the driver's part of a command that creates or queries the context. With
	// devx it asks for a context that may give commands to the firmware. openContext reads the kernel's
	// response.
	contextUdata(c contextCommand, devx bool) udata
	openContext(*Device, udata) error

	// pdUdata, mrUdata and ahUdata return the driver's part of these commands; openAH completes
	// a new AH.
	pdUdata() udata
	mrUdata() udata
	ahUdata() udata
	openAH(*AH, udata) error

	// prepareCQ, prepareQP and prepareSRQ allocate what the kernel needs to create the object, and
	// return the driver's part of the command. They may change the options that are sent to the kernel.
	// After an error nothing stays allocated.
	prepareCQ(c *CQ, o *CQOptions) (udata, error)
	prepareQP(*QP, *qpSpec) (udata, error)
	prepareSRQ(*SRQ, *SRQOptions) (udata, error)

	// mapCQ, mapQP and mapSRQ complete a new object with the kernel's response.
	mapCQ(*CQ, udata) error
	mapQP(*QP, udata) error
	mapSRQ(*SRQ, udata) error

	// freeCQ, freeQP and freeSRQ free the memory of an object that the kernel has destroyed or did not
	// create.
	freeCQ(*CQ) error
	freeQP(*QP) error
	freeSRQ(*SRQ) error

	// prepareResize returns the driver's part of RESIZE_CQ. It may change cqe, which is sent to the
	// kernel. ready is false if there is nothing to do.
	prepareResize(c *CQ, cqe *int) (u udata, ready bool, err error)
	// remapCQ replaces the ring with the one in the kernel's response and returns the memory of the
	// old one. If it fails, the CQ is lost.
	remapCQ(c *CQ, cqe int, u udata) (old *mmio.Region, err error)

	// modifySRQ calls issue, which sends MODIFY_SRQ, and maps the new ring if it is resized.
	modifySRQ(s *SRQ, resize bool, issue func(udata) error) error

	// qpModified is called when a QP has changed its state, and queriedQP corrects the kernel's response
	// to QUERY_QP.
	qpModified(q *QP, from, to ib.QPState)
	queriedQP(q *QP, a *QPAttr)

	// refusal describes how the device's firmware refused the command that has just failed. It returns
	// "" if the firmware did not refuse it or that is unknown.
	refusal() string

	// findRequest returns the newest send request of a QP with the given ID, if the ring still has it.
	findRequest(q *QP, id uint64) (sentWR, bool)
	// findReceive returns the memory of a receive of a QP that has the given ID, if the ring still has it.
	findReceive(q *QP, id uint64) ([]SGE, bool)
	// failedRequest returns the send request that failed and the completion that it would have had, if
	// the device records that in the ring.
	failedRequest(q *QP) (WC, sentWR, bool)
	// queueOf returns the queue of a failed completion. It is called if the QP has one CQ for both
	// queues and the opcode is not that of a receive.
	queueOf(q *QP, wc WC) diag.Queue
	// postedRecvs returns the number of receives posted for a QP, in its SRQ if it has one.
	postedRecvs(*QP) int
	// vendorText explains the device's own error code, or returns "". sure means that nothing else is wrong,
	// as when the code says that the error was injected.
	vendorText(code uint32) (text string, sure bool)
}

// driverKind selects a driver on the data path.
type driverKind uint8

// contextCommand is a command about a context that has a part of the driver.
type contextCommand uint8

const (
	ioctlContext contextCommand = iota // GET_CONTEXT by ioctl
	writeContext                       // GET_CONTEXT by write
	queryContext                       // QUERY_CONTEXT, whose response openContext reads for an imported device
)

// capabilities are the properties of a driver that generic code depends on. The zero value suits most
// drivers.
type capabilities struct {
	// connectionManaged means that only the kernel's connection manager, and no command, moves a QP
	// from Init to a connected state.
	connectionManaged bool
	// inlineLimit means that prepareQP refuses too much inline data. Otherwise the library finds the
	// limit by creating QPs.
	inlineLimit bool
	// devx means that some devices have contexts that may give commands to the firmware.
	devx bool
	// failsAlone means that a failed request leaves its QP as it is: no other request is flushed for it.
	failsAlone bool
	// queries are the attributes that QUERY_QP has; 0 means all.
	queries QPAttrMask
	// copiesMemory means that the library copies data from or to registered memory, which it finds by
	// the lkey.
	copiesMemory bool
	// reregIOVASince is the first kernel whose driver takes an IOVA in REREG_MR; zero means all.
	reregIOVASince Version

	// briefCommands means that brief commands return without waiting for hardware, so that they need
	// not be announced to Go's scheduler.
	briefCommands bool
	// hostRoutes means that the kernel's routing table decides where packets go, that of the network namespace
	// of the device's interface. A send without a route to the peer fails with WCLocQPOpErr or WCLocProtErr.
	hostRoutes bool
	// noDMABuf says why an adapter of the driver may refuse any dma-buf.
	noDMABuf string

	// pinsRings means that rings are memory of the program, which counts against RLIMIT_MEMLOCK.
	pinsRings bool
	// memlockForAll names the kernels that apply RLIMIT_MEMLOCK even to a process with CAP_IPC_LOCK,
	// or is "".
	memlockForAll string
}

// baseDriver has the default methods of a driver.
type baseDriver struct{}

func (baseDriver) unsupportedSRQ(*SRQOptions) string       { return "" }
func (baseDriver) unsupportedMR(*Device, *region) string   { return "" }
func (baseDriver) contextUdata(contextCommand, bool) udata { return udata{} }
func (baseDriver) openContext(*Device, udata) error        { return nil }
func (baseDriver) pdUdata() udata                          { return udata{} }
func (baseDriver) mrUdata() udata                          { return udata{} }
func (baseDriver) ahUdata() udata                          { return udata{} }
func (baseDriver) qpModified(*QP, ib.QPState, ib.QPState)  {}
func (baseDriver) queriedQP(*QP, *QPAttr)                  {}
func (baseDriver) refusal() string                         { return "" }
func (baseDriver) vendorText(uint32) (string, bool)        { return "", false }
func (baseDriver) findRequest(*QP, uint64) (sentWR, bool)  { return sentWR{}, false }
func (baseDriver) findReceive(*QP, uint64) ([]SGE, bool)   { return nil, false }
func (baseDriver) postedRecvs(*QP) int                     { return 0 }
func (baseDriver) failedRequest(*QP) (WC, sentWR, bool)    { return WC{}, sentWR{}, false }
func (baseDriver) queueOf(*QP, WC) diag.Queue              { return diag.SendQueue }

func (baseDriver) unsupportedModify(*Device, ib.QPState, QPAttrMask) error { return nil }

func (baseDriver) prepareResize(c *CQ, _ *int) (udata, bool, error) {
	return udata{}, false, noFeature(c.dev, "RESIZE_CQ")
}

func (baseDriver) remapCQ(*CQ, int, udata) (*mmio.Region, error) { return nil, errKind }

// noOptions has the methods of drivers without options of their own.
type noOptions struct{ baseDriver }

func (noOptions) unsupportedQP(o *QPOptions) string {
	switch {
	case o.Flags != 0:
		return "Flags"
	case o.InlineRecv:
		return "InlineRecv"
	case o.OutOfOrder:
		return "OutOfOrder"
	case o.IndTable != nil:
		return "IndTable"
	}
	return ""
}

func (noOptions) unsupportedSRQ(o *SRQOptions) string {
	if o.XRCD != nil {
		return "XRCD"
	}
	return ""
}

// oneCQESize refuses what changes the format of completions, because the device has one.
func (noOptions) oneCQESize(c *CQ, o *CQOptions) error {
	if o.CQESize != 0 {
		return noFeature(c.dev, "CREATE_CQ with CQESize")
	}
	if o.Flags&CQCompressed != 0 {
		return noFeature(c.dev, "CREATE_CQ with "+o.Flags.String())
	}
	return nil
}

// driverOf returns the driver with the given kernel driver ID, or nil if it is not supported.
func driverOf(id netlinkrdma.DriverID) driver {
	for _, d := range drivers {
		if d.id == id {
			return d.driver
		}
	}
	return nil
}

// noFeature is the error of a driver without a feature.
func noFeature(d *Device, name string) error {
	return &FeatureError{Feature: name, Driver: d.driver.name()}
}

// driverNames lists the names of the supported drivers.
func driverNames() string {
	var names []string
	for _, d := range drivers {
		names = append(names, d.name())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// checkABI returns an error if the library does not support the kernel's version of a driver's
// data.
func checkABI(d driver, version uint64) error {
	if lo, hi := d.abi(); version < lo || version > hi {
		return fmt.Errorf("driver %s of this kernel has ABI version %d, the library supports %d to %d: %w", d.name(), version, lo, hi, errABI)
	}
	return nil
}

// sentWR is a work request as the send ring holds it.
type sentWR struct {
	op     WROpcode
	length uint32 // bytes of data
	sges   []SGE
	qpn    uint32 // destination QP of a datagram, otherwise 0
	qkey   uint32 // of SRD, as the number of the AH
	ah     uint16
	raddr  uint64 // of the peer's memory
	rkey   uint32 // of the peer's memory, or the new key of a bound window
	mwRKey uint32 // the old key of that window

	bind       *binding // the memory of a bind, nil if the ring does not have it
	invalid    *uint32  // the key to invalidate, nil if there is none or it is unknown
	windowOnly bool     // only the key of a local memory window can be invalidated
}

// binding is the memory and the rights of a window bind.
type binding struct {
	addr, length uint64
	lkey         uint32
	access       Access
}
