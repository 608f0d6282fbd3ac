package uverbs

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// driver implements what differs between the kernel's drivers on the control path. The data path is
// in dispatch.go. A driver embeds baseDriver, which has defaults.
type driver interface {
	kind() driverKind
	name() string
	capabilities() capabilities

	// abi returns the supported versions of the driver's private data.
	abi() (lowest, highest uint64)

	// operations returns the operations of a QP type; ok is false if the type is not supported.
	operations(QPType) (ops opcodeSet, ok bool)

	// unsupportedQP, unsupportedSRQ and unsupportedMR name an option that the driver does not support,
	// or return "".
	unsupportedQP(*QPOptions) string
	unsupportedSRQ(*SRQOptions) string
	unsupportedMR(*region) string

	// unsupportedModify returns the error of a Modify to a state that the driver does not support,
	// or nil.
	unsupportedModify(to QPState) error

	// contextUdata returns the driver's part of GET_CONTEXT, which is sent by ioctl or by write. With
	// devx it asks for a context that may give commands to the firmware.
	// openContext reads the kernel's response, and closeContext frees what openContext allocated.
	contextUdata(ioctl, devx bool) udata
	openContext(d *Device, u udata, ioctl bool) error
	closeContext(*Device) error
	// importUdata returns the driver's part of QUERY_CONTEXT, whose response openContext reads for an
	// imported device.
	importUdata() udata

	// pdUdata, mrUdata and ahUdata return the driver's part of these commands; openAH completes
	// a new AH.
	pdUdata() udata
	mrUdata() udata
	ahUdata() udata
	openAH(*AH, udata) error

	// countUdata returns the driver's part of CREATE_FLOW for the first flow that uses counters.
	countUdata(*Device) (udata, error)

	// prepareCQ, prepareQP, prepareSRQ and prepareWQ allocate what the kernel needs to create the
	// object, and return the driver's part of the command. They may change the options that are sent
	// to the kernel. After an error nothing stays allocated.
	prepareCQ(c *CQ, o *CQOptions) (udata, error)
	prepareQP(*QP, *qpSpec) (udata, error)
	prepareSRQ(*SRQ, *SRQOptions) (udata, error)
	prepareWQ(*WQ, *WQOptions) (udata, error)

	// mapCQ, mapQP, mapSRQ and mapWQ complete a new object with the kernel's response.
	mapCQ(*CQ, udata) error
	mapQP(*QP, udata) error
	mapSRQ(*SRQ, udata) error
	mapWQ(*WQ) error

	// freeCQ, freeQP, freeSRQ and freeWQ free the memory of an object that the kernel has destroyed or
	// did not create.
	freeCQ(*CQ) error
	freeQP(*QP) error
	freeSRQ(*SRQ) error
	freeWQ(*WQ) error

	// prepareResize returns the driver's part of RESIZE_CQ. It may change cqe, which is sent to the
	// kernel. ready is false if there is nothing to do.
	prepareResize(c *CQ, cqe *int) (u udata, ready bool, err error)
	// remapCQ replaces the ring with the one in the kernel's response and returns the memory of the
	// old one. If it fails, the CQ is lost.
	remapCQ(c *CQ, cqe int, u udata) (old *mmio.Region, err error)
	// abandonResize frees what prepareResize allocated, after the kernel has refused.
	abandonResize(c *CQ) error

	rateLimits(*Device) (RateLimits, error)

	// devx passes a command to the firmware, about the device or a QP that is not nil. The others do so
	// for one purpose; generic code has checked the arguments of setUDPSourcePort and resetStream.
	devx(d *Device, q *QP, m devxMethod, in, out []byte) error
	setUDPSourcePort(q *QP, port uint16) error
	resetStream(q *QP, stream uint16) error
	setLAGPort(q *QP, port uint8) error
	lagPort(*QP) (LAGPort, error)
	lag(*Device) (LAG, error)

	// prepareDCT is prepareQP for a DCT. dctUdata returns the driver's part of the MODIFY_QP that makes
	// it ready, and dctReady takes its number from that. dciStreams returns the largest values of
	// DCIStreams; 0 means no streams. dciReads returns the maximum number of READs and atomics that a
	// DCI has in flight, or 0 if it is not known.
	prepareDCT(*QP, *qpSpec) (udata, error)
	dctUdata(*QP) udata
	dctReady(*QP, udata) error
	dciStreams(*Device) (concurrent, errored uint8, err error)
	dciReads(*Device) uint8

	// ece and setECE return and set the options for enhanced connection establishment of a QP, if the
	// device has them. modifyUdata returns the driver's part of MODIFY_QP, which passes options that
	// were set, and modifyAnswer reads the kernel's response to it.
	ece(*QP) (ECE, error)
	setECE(*QP, ECE) error
	modifyUdata(*QP) udata
	modifyAnswer(*QP, udata) error

	// qpModified is called when a QP has changed its state.
	qpModified(q *QP, from, to QPState)
	// queriedQP and queriedSRQ correct the kernel's response to QUERY_QP and QUERY_SRQ.
	queriedQP(q *QP, a *QPAttr)
	queriedSRQ(s *SRQ, a *SRQAttr)

	// refusal describes how the device's firmware refused the command that has just failed. It returns
	// "" if the firmware did not refuse it or that is unknown.
	refusal() string

	// modifySRQ calls issue, which sends MODIFY_SRQ, and maps the new ring if it is resized.
	modifySRQ(s *SRQ, resize bool, issue func(udata) error) error

	// modifyWQUdata returns the driver's part of MODIFY_WQ. resetWQ is called after a WQ has entered
	// WQReset.
	modifyWQUdata() udata
	resetWQ(*WQ)

	// allocTD and freeTD do what the driver needs for a thread domain.
	allocTD(*TD) error
	freeTD(*TD) error

	// allocDMAttrs adds the driver's attributes to ALLOC_DM; storeDM and loadDM copy b, which is
	// not empty and within the memory, to it and from it; unmapDM removes the mapping. queryDM fills
	// in the location and the length of an imported DM. locateDM returns the offset at which programs map
	// the memory, and where it begins in that mapping, or false if they cannot.
	allocDMAttrs(*DM, *ioctlCommand)
	queryDM(*DM) error
	storeDM(m *DM, at int, b []byte) error
	loadDM(m *DM, at int, b []byte) error
	unmapDM(*DM) error
	locateDM(*DM) (page, start uint64, err error)

	// dataDirect adds the option DataDirect to REG_DMABUF_MR, or returns false if the driver does not
	// support it.
	dataDirect(*ioctlCommand) bool
	dataDirectPath(*Device) (string, error)

	// readClock reads the device's clock, and clockTime converts a time stamp of it.
	readClock(*Device) (uint64, error)
	clockTime(d *Device, stamp uint64) (time.Time, error)
	// nullKey returns the lkey of the null MR; ok is false if the device has none.
	nullKey(*Device) (key uint32, ok bool)

	// findRequest returns the newest send request of a QP with the given ID, if the ring still has it.
	findRequest(q *QP, id uint64) (sentWR, bool)
	// failedRequest returns the send request that failed and the completion that it would have had, if
	// the device records that in the ring.
	failedRequest(q *QP) (WC, sentWR, bool)
	// queueOf returns the queue of a failed completion. It is called if the QP has one CQ for both
	// queues and the opcode is not that of a receive.
	queueOf(q *QP, wc WC) diag.Queue
	// postedRecvs returns the number of receives posted for a QP, in its SRQ if it has one.
	postedRecvs(*QP) int
	// vendorText explains the device's own error code, or returns "".
	vendorText(code uint32) string
	// injected reports whether the device's own error code says that the error was injected, so that nothing
	// else is wrong.
	injected(code uint32) bool
}

// capabilities are the properties of a driver that generic code depends on. The zero value suits most
// drivers.
type capabilities struct {
	// connectionManaged means that only the kernel's connection manager, and no command, moves a QP
	// from Init to a connected state.
	connectionManaged bool
	// inlineLimit means that prepareQP refuses too much inline data. Otherwise the library finds the
	// limit by creating QPs.
	inlineLimit bool
	// threadDomains means that thread domains and parent domains have an effect.
	threadDomains bool
	// mappedDM means that programs can map device memory.
	mappedDM bool
	// devx means that some devices have contexts that may give commands to the firmware.
	devx bool
	// copiesMemory means that the library copies data from or to registered memory, which it finds by
	// the lkey.
	copiesMemory bool
	// reregIOVASince is the first kernel whose driver takes an IOVA in REREG_MR; zero means all.
	reregIOVASince Version

	// briefCommands means that brief commands return without waiting for hardware, so that they need
	// not be announced to Go's scheduler.
	briefCommands bool
	// noRouteStatus means that a send without a route to the peer fails with WCLocQPOpErr.
	noRouteStatus bool
	// memlockForAll names the kernels that apply RLIMIT_MEMLOCK even to a process with CAP_IPC_LOCK,
	// or is "".
	memlockForAll string
}

// baseDriver has the default methods of a driver.
type baseDriver struct{}

func (baseDriver) unsupportedSRQ(*SRQOptions) string        { return "" }
func (baseDriver) unsupportedMR(*region) string             { return "" }
func (baseDriver) unsupportedModify(QPState) error          { return nil }
func (baseDriver) contextUdata(bool, bool) udata            { return udata{} }
func (baseDriver) openContext(*Device, udata, bool) error   { return nil }
func (baseDriver) closeContext(*Device) error               { return nil }
func (baseDriver) importUdata() udata                       { return udata{} }
func (baseDriver) pdUdata() udata                           { return udata{} }
func (baseDriver) mrUdata() udata                           { return udata{} }
func (baseDriver) ahUdata() udata                           { return udata{} }
func (baseDriver) countUdata(*Device) (udata, error)        { return udata{}, nil }
func (baseDriver) prepareDCT(*QP, *qpSpec) (udata, error)   { return udata{}, errKind }
func (baseDriver) dctUdata(*QP) udata                       { return udata{} }
func (baseDriver) dctReady(*QP, udata) error                { return errKind }
func (baseDriver) rateLimits(*Device) (RateLimits, error)   { return RateLimits{}, nil }
func (baseDriver) dciStreams(*Device) (uint8, uint8, error) { return 0, 0, nil }
func (baseDriver) dciReads(*Device) uint8                   { return 0 }
func (baseDriver) modifyUdata(*QP) udata                    { return udata{} }
func (baseDriver) modifyAnswer(*QP, udata) error            { return nil }
func (baseDriver) setUDPSourcePort(q *QP, _ uint16) error {
	return noFeature(q.dev, "UDP source port of a QP")
}
func (baseDriver) resetStream(q *QP, _ uint16) error {
	return noFeature(q.dev, "reset of a stream")
}
func (baseDriver) setLAGPort(q *QP, _ uint8) error  { return noFeature(q.dev, "LAG") }
func (baseDriver) lagPort(q *QP) (LAGPort, error)   { return LAGPort{}, noFeature(q.dev, "LAG") }
func (baseDriver) lag(d *Device) (LAG, error)       { return LAG{}, noFeature(d, "LAG") }
func (baseDriver) ece(q *QP) (ECE, error)           { return ECE{}, noECE(q, nil) }
func (baseDriver) setECE(q *QP, _ ECE) error        { return noECE(q, nil) }
func (baseDriver) qpModified(*QP, QPState, QPState) {}
func (baseDriver) queriedQP(*QP, *QPAttr)           {}
func (baseDriver) queriedSRQ(*SRQ, *SRQAttr)        {}
func (baseDriver) allocTD(*TD) error                { return nil }
func (baseDriver) freeTD(*TD) error                 { return nil }
func (baseDriver) allocDMAttrs(*DM, *ioctlCommand)  {}
func (baseDriver) storeDM(*DM, int, []byte) error   { return nil }
func (baseDriver) loadDM(*DM, int, []byte) error    { return nil }
func (baseDriver) unmapDM(*DM) error                { return nil }
func (baseDriver) dataDirect(*ioctlCommand) bool    { return false }
func (baseDriver) dataDirectPath(d *Device) (string, error) {
	return "", noFeature(d, "GET_DATA_DIRECT_SYSFS_PATH")
}
func (baseDriver) nullKey(*Device) (uint32, bool)           { return 0, false }
func (baseDriver) refusal() string                          { return "" }
func (baseDriver) vendorText(uint32) string                 { return "" }
func (baseDriver) injected(uint32) bool                     { return false }
func (baseDriver) findRequest(*QP, uint64) (sentWR, bool)   { return sentWR{}, false }
func (baseDriver) postedRecvs(*QP) int                      { return 0 }
func (baseDriver) failedRequest(*QP) (WC, sentWR, bool)     { return WC{}, sentWR{}, false }
func (baseDriver) queueOf(*QP, WC) diag.Queue               { return diag.SendQueue }
func (baseDriver) prepareWQ(*WQ, *WQOptions) (udata, error) { return udata{}, nil }
func (baseDriver) mapWQ(*WQ) error                          { return nil }
func (baseDriver) freeWQ(*WQ) error                         { return nil }
func (baseDriver) modifyWQUdata() udata                     { return udata{} }
func (baseDriver) resetWQ(*WQ)                              {}
func (baseDriver) abandonResize(*CQ) error                  { return nil }

func (baseDriver) devx(d *Device, _ *QP, _ devxMethod, _, _ []byte) error {
	return noFeature(d, "DEVX")
}

func (baseDriver) prepareResize(c *CQ, _ *int) (udata, bool, error) {
	return udata{}, false, &FeatureError{Feature: "RESIZE_CQ", Driver: c.dev.driver.name()}
}

func (baseDriver) remapCQ(*CQ, int, udata) (*mmio.Region, error) { return nil, errKind }

func (baseDriver) readClock(d *Device) (uint64, error) {
	return 0, &FeatureError{Feature: "QUERY_RT_VALUES", Driver: d.driver.name()}
}

func (baseDriver) clockTime(d *Device, _ uint64) (time.Time, error) {
	return time.Time{}, &FeatureError{Feature: "time of a time stamp", Driver: d.driver.name()}
}

func (baseDriver) queryDM(m *DM) error {
	return &FeatureError{Feature: "ImportDM", Driver: m.dev.driver.name()}
}

func (baseDriver) locateDM(m *DM) (page, start uint64, err error) {
	return 0, 0, noFeature(m.dev, "EXPORT_DMABUF")
}

// software has the methods that the drivers of software devices share.
type software struct{ baseDriver }

func (software) unsupportedQP(o *QPOptions) string {
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

func (software) unsupportedSRQ(o *SRQOptions) string {
	if o.XRCD != nil {
		return "XRCD"
	}
	return ""
}

// oneCQESize refuses CQESize, because the device has a fixed size of completions.
func (software) oneCQESize(c *CQ, o *CQOptions) error {
	if o.CQESize != 0 {
		return &FeatureError{Feature: "CREATE_CQ with CQESize", Driver: c.dev.driver.name()}
	}
	return nil
}

// closeRegions unmaps the regions that are not nil. A goroutine that has not yet seen that the
// object is closed may still access them.
func closeRegions(regions ...*mmio.Region) error { return mmio.RetireAll(regions...) }

// driverOf returns the driver with the given kernel driver ID, or nil if it is not supported.
func driverOf(id netlinkrdma.DriverID) driver {
	for _, d := range drivers {
		if d.id == id {
			return d.driver
		}
	}
	return nil
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
