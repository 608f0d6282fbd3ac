package uverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// File returns another descriptor of the device's file, which a program can pass to another process
// for [ImportDevice] (struct ibv_context's cmd_fd). The caller closes it. The kernel's context and
// all of its objects exist until every descriptor of the file is closed, in every process, and every
// mapping of it removed.
//
// Whoever has the descriptor can use and destroy every object of the device. Pass it only to a
// process that you trust with all of them.
//
// The error is a [FeatureError] for a software device of this process, which has no file.
func (d *Device) File() (*os.File, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	f, err := d.cmd.File()
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil, &FeatureError{Feature: "File of a software device", Driver: d.driver.name(), Err: err}
	case errors.Is(err, os.ErrClosed):
		return nil, d.errClosed()
	case err != nil:
		return nil, fmt.Errorf("uverbs: %s: file: %w", d.Name(), err)
	}
	d.shared.Store(true)
	return f, nil
}

// ImportDevice opens the device of a file that another process has opened and passed to this one,
// for example over a Unix socket with SCM_RIGHTS (ibv_import_device). [Device.File] returns such a
// file. ImportDevice duplicates the descriptor, so the caller closes f when it likes.
//
// Both processes then use the same context of the kernel. An imported Device has everything that an
// opened one has: its own asynchronous events, completion channels, mappings and, with mlx5, doorbell
// registers. Objects that the process creates are its own: it closes them, they report their events to
// it, and the other processes do not see them unless they import them. Objects of the others are
// available by their handles: [Device.ImportPD], [PD.ImportMR] and [Device.ImportDM]. Closing an
// imported object or the imported Device leaves the owner's objects alone.
//
// The kernel destroys what a process has created when the process closes it, or when the last process
// has closed the device. So objects of a process that crashed stay until then. A PD that they use
// cannot be closed; [Device.CloseAll] leaves it to the kernel.
//
// The process needs no permission for the character device, but must be in a network namespace that
// has the device. All commands use ioctl, also the doorbells of rxe and siw, because the kernel
// takes write() only from a process with the credentials under which the file was opened.
//
// rxe and siw do not report their number of completion vectors, so an imported device has 1
// ([DeviceAttr].CompVectors). ImportDevice needs Linux 5.9. The error is an [ArgError] if the file is
// not that of an open RDMA device, or a [DeviceError].
func ImportDevice(f *os.File) (*Device, error) {
	if f == nil {
		return nil, importArg("nil")
	}
	path, err := pathFromEnv()
	if err != nil {
		return nil, err
	}
	if path == pathAuto {
		path = pathIoctl
	}
	major, minor, err := charNumber(f)
	if err != nil {
		return nil, importArg(err)
	}
	infos, err := kernelDevices(devDir)
	if err != nil {
		return nil, &DeviceError{Name: f.Name(), Err: err}
	}
	i := slices.IndexFunc(infos, func(i DeviceInfo) bool {
		return i.char.Name != "" && i.char.Major == major && i.char.Minor == minor
	})
	if i < 0 {
		return nil, importArg(fmt.Sprintf("character device %d:%d", major, minor))
	}
	if err := infos[i].Err; err != nil {
		return nil, &DeviceError{Name: infos[i].Name, Err: err}
	}
	return importFile(infos[i], f, path)
}

// importFile imports a device from the file of its context.
func importFile(info DeviceInfo, f *os.File, path abiPath) (*Device, error) {
	failed := func(err error) (*Device, error) { return nil, &DeviceError{Name: info.Name, Err: err} }
	own, err := kernel.DupFile(f)
	if err != nil {
		return failed(err)
	}
	dev, err := kernel.NewCharDevice(own, info.charOptions())
	if err != nil {
		own.Close()
		return failed(err)
	}
	d := newDevice(info, dev, path)
	if err := d.start(d.importContext); err != nil {
		return failed(err)
	}
	return d, nil
}

// importArg returns the error for a file that is not that of an RDMA device.
func importArg(given any) error {
	return argErr("ImportDevice", "file", given, "the file of an open RDMA device of this network namespace, such as Device.File returns")
}

// importContext is getContext for a context that exists.
func (d *Device) importContext() error {
	d.imported = true
	d.shared.Store(true)
	// Numbers of objects in events. One that another process has created is unlikely to have the number
	// of one of this process.
	d.targets.last = rand.Uint64() >> 1
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_CONTEXT)
	defer cmd.done()
	var vectors [4]byte
	cmd.out(abi.UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, vectors[:])
	u := d.driver.contextUdata(queryContext, false)
	if u.addAttrs != nil {
		u.addAttrs(cmd)
	}
	switch errno := d.cmd.ioctl(cmd); errno {
	case 0:
		d.vectors = int(le32(vectors[:]))
	case syscall.EOPNOTSUPP: // there is a context, but its driver does not describe it
		if u.out != nil {
			return d.cmd.fail("QUERY_CONTEXT", errno, "")
		}
		d.vectors = 1
	default:
		hint := ""
		if errno == syscall.EINVAL {
			hint = "the file may have no context; use the file of Device.File"
		}
		return d.cmd.failSince("QUERY_CONTEXT", errno, hint, Version{5, 9})
	}
	if err := d.openEvents(); err != nil {
		return err
	}
	return d.driver.openContext(d, u)
}

// ImportPD imports a PD that another process has allocated on the same device, by its handle
// ([PD.Handle], ibv_import_pd). The imported PD can be used like an allocated one, but its Close
// leaves the kernel's PD to the process that has allocated it. That process cannot free the PD while
// an object uses it. Once it has, the imported PD is invalid, and the kernel may give its handle to
// another object.
func (d *Device) ImportPD(handle uint32) (*PD, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	all, err := d.Handles(ObjectPD)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(all, handle) {
		return nil, argErr("ImportPD", "handle", handle, "a handle of PD.Handle of this device: %s", listHandles(all))
	}
	pd := &PD{handle: handle}
	pd.imported = true
	if err := pd.addParents(d, "PD", "DEALLOC_PD", &d.object); err != nil {
		return nil, err
	}
	return pd, pd.markCreated(pd)
}

// listHandles lists handles for a message, but not very many.
func listHandles(all []uint32) string {
	if len(all) == 0 {
		return "there is none"
	}
	const most = 10
	var b strings.Builder
	for i, h := range all {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(all)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, h)
	}
	return b.String()
}

// ImportMROptions are the options of [PD.ImportMR]. The zero value imports the keys alone.
type ImportMROptions struct {
	// Access are the access rights with which the region was registered, which the kernel does not
	// report. Zero means unknown. They do not change the region's rights; explanations of failed
	// requests use them.
	Access Access

	// Memory is the region's memory as this process has mapped it, for example from a memfd that both
	// processes have mapped. [MR.Bytes] returns it. It must have the region's length and stay mapped
	// until the MR is closed. Without it this process can use the region, but not read or write it.
	Memory []byte
}

// ImportMR imports a region that another process has registered on the same device, by its handle
// ([MR.Handle], ibv_import_mr). Its keys, address and length come from the kernel. p must be the PD of
// the region, such as one of [Device.ImportPD]: the kernel does not check it, but requests with another
// PD fail.
//
// Close of the imported MR leaves the region registered. Once the process that has registered the
// region has closed it, requests with the keys fail, and the kernel may give the handle to another
// object.
func (p *PD) ImportMR(handle uint32, o ImportMROptions) (*MR, error) {
	const op = "ImportMR"
	if err := p.usable(); err != nil {
		return nil, err
	}
	if o.Access&^accessMR != 0 {
		return nil, argErr(op, "Access", o.Access, "%s", accessMR)
	}
	m := &MR{handle: handle}
	m.imported = true
	s := &region{access: o.Access, slice: o.Memory}
	if err := m.use(p, nil); err != nil {
		return nil, err
	}
	a, errno := p.dev.queryMR(handle)
	err := p.dev.importErr("QUERY_MR", "MR", handle, errno, Version{5, 9})
	if err == nil && o.Memory != nil && uint64(len(o.Memory)) != a.Length {
		err = argErr(op, "length of Memory", len(o.Memory), "%d bytes, the length of the region", a.Length)
	}
	if err != nil {
		m.removeParents()
		return nil, err
	}
	s.iova, s.length = a.IOVA, a.Length
	m.setRegion(s, a.LKey, a.RKey)
	return m, m.markCreated(m)
}

// importErr returns the error of a command that queries an object to import.
func (d *Device) importErr(verb, kind string, handle uint32, errno syscall.Errno, since Version) error {
	hint := ""
	if errno == syscall.ENOENT || errno == syscall.EINVAL {
		hint = fmt.Sprintf("this device has no %s with the handle %d; use %s.Handle of the process that has created it, while it is open", kind, handle, kind)
	}
	return about(d.cmd.failSince(verb, errno, hint, since), fmt.Sprintf("%s with handle %d", kind, handle), "")
}

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
