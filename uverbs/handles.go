package uverbs

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// ObjectKind is a kind of objects that the kernel has handles for (enum uverbs_default_objects).
type ObjectKind uint16

// The kinds of objects.
const (
	ObjectPD          ObjectKind = abi.UVERBS_OBJECT_PD          // Protection domains, [PD].
	ObjectCQ          ObjectKind = abi.UVERBS_OBJECT_CQ          // Completion queues, [CQ].
	ObjectQP          ObjectKind = abi.UVERBS_OBJECT_QP          // Queue pairs, [QP].
	ObjectSRQ         ObjectKind = abi.UVERBS_OBJECT_SRQ         // Shared receive queues, [SRQ].
	ObjectAH          ObjectKind = abi.UVERBS_OBJECT_AH          // Address handles, [AH].
	ObjectMR          ObjectKind = abi.UVERBS_OBJECT_MR          // Memory regions, [MR].
	ObjectMW          ObjectKind = abi.UVERBS_OBJECT_MW          // Memory windows, [MW].
	ObjectFlow        ObjectKind = abi.UVERBS_OBJECT_FLOW        // Flows, [Flow].
	ObjectXRCD        ObjectKind = abi.UVERBS_OBJECT_XRCD        // XRC domains, [XRCD].
	ObjectRWQIndTable ObjectKind = abi.UVERBS_OBJECT_RWQ_IND_TBL // Tables of receive queues, [RWQIndTable].
	ObjectWQ          ObjectKind = abi.UVERBS_OBJECT_WQ          // Receive queues of such tables, [WQ].
	ObjectDM          ObjectKind = abi.UVERBS_OBJECT_DM          // Device memory, [DM].
	ObjectCounters    ObjectKind = abi.UVERBS_OBJECT_COUNTERS    // Counters of flows, [Counters].
	ObjectDMAH        ObjectKind = abi.UVERBS_OBJECT_DMAH        // DMA handles, [DMAH].
)

// objectNames are the names of the kinds.
var objectNames = map[ObjectKind]string{
	ObjectPD: "PD", ObjectCQ: "CQ", ObjectQP: "QP", ObjectSRQ: "SRQ", ObjectAH: "AH", ObjectMR: "MR", ObjectMW: "MW",
	ObjectFlow: "Flow", ObjectXRCD: "XRCD", ObjectRWQIndTable: "RWQIndTable", ObjectWQ: "WQ", ObjectDM: "DM",
	ObjectCounters: "Counters", ObjectDMAH: "DMAH",
}

// String returns the name of the type of such objects, for example "PD".
func (k ObjectKind) String() string {
	if name, ok := objectNames[k]; ok {
		return name
	}
	return fmt.Sprintf("object kind %d", uint16(k))
}

// Numbers of handles in the first request, and at most, which is the limit of an attribute.
const (
	someHandles = 256
	maxHandles  = (1<<16 - 1) / 4
)

// Handles returns the kernel's handles of the objects of a kind, in no particular order
// (UVERBS_METHOD_INFO_HANDLES). They are all objects of the context: also those that the library has
// created for itself, and those of the other processes that share the device, see [ImportDevice]. Such
// a process can find what to import with [Device.ImportPD], [PD.ImportMR] and [Device.ImportDM]. The
// handles of other kinds tell which objects are still open, for example in a test for leaks.
//
// The list is empty if there are no such objects, or the driver does not support them. It has at most
// 16,383 handles. The error is a [FeatureError] without the kernel's ioctl interface.
func (d *Device) Handles(kind ObjectKind) ([]uint32, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if _, ok := objectNames[kind]; !ok {
		return nil, argErr("Handles", "kind", uint16(kind), "one of the constants, from ObjectPD to ObjectDMAH")
	}
	for n := someHandles; ; n = maxHandles {
		list := make([]uint32, n)
		var total [4]byte
		cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INFO_HANDLES)
		cmd.u64(abi.UVERBS_ATTR_INFO_OBJECT_ID, uint64(kind))
		cmd.out(abi.UVERBS_ATTR_INFO_HANDLES_LIST, sliceBytes(list))
		cmd.out(abi.UVERBS_ATTR_INFO_TOTAL_HANDLES, total[:])
		errno := d.cmd.ioctl(cmd)
		cmd.done()
		if errno == syscall.ENOENT { // the driver has no such objects (uapi_get_object)
			return nil, nil
		}
		if errno != 0 {
			return nil, d.cmd.fail("INFO_HANDLES", errno, "")
		}
		if got := int(le32(total[:])); got < n || n == maxHandles {
			return list[:min(got, n)], nil
		}
	}
}
