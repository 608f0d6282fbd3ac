package soft

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// begin creates the context of the opened device, once.
func (c *context) begin() syscall.Errno {
	switch {
	case c.removed.Load():
		return syscall.EIO
	case c.created.Swap(true):
		return syscall.EINVAL
	}
	return 0
}

// getContext is GET_CONTEXT of the ioctl interface.
func getContext(k *call) syscall.Errno {
	if k.ctx.removed.Load() {
		return syscall.EIO
	}
	k.putUint32(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, uint32(k.ctx.dev.vectors))
	k.putUint64(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, abi.IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS)
	return k.ctx.begin()
}

// legacyGetContext is GET_CONTEXT of the write() interface, which creates the file of asynchronous
// events as well.
func legacyGetContext(k *call, _ *abi.GetContext, resp *abi.GetContextResp) syscall.Errno {
	if errno := k.ctx.begin(); errno != 0 {
		return errno
	}
	*resp = abi.GetContextResp{AsyncFD: k.ctx.files.add(abi.UVERBS_OBJECT_ASYNC_EVENT).number, NumCompVectors: uint32(k.ctx.dev.vectors)}
	return 0
}

// infoHandles is INFO_HANDLES, which lists the handles of a kind of objects, the newest first.
func infoHandles(k *call) syscall.Errno {
	list := k.attr(abi.UVERBS_ATTR_INFO_HANDLES_LIST)
	if list == nil || list.Len%4 != 0 {
		return syscall.EINVAL
	}
	kind := k.uint(abi.UVERBS_ATTR_INFO_OBJECT_ID)
	if kind > 1<<16-1 {
		return syscall.EINVAL
	}
	if !supported(uint16(kind)) && kind != abi.UVERBS_OBJECT_DEVICE {
		return syscall.ENOENT
	}
	all := slices.DeleteFunc(k.ctx.handles.list(), func(o *object) bool { return uint64(o.kind) != kind })
	slices.SortFunc(all, newestFirst)
	all = all[:min(len(all), int(list.Len/4))]
	var b []byte
	for _, o := range all {
		b = binary.LittleEndian.AppendUint32(b, o.handle)
	}
	k.put(abi.UVERBS_ATTR_INFO_HANDLES_LIST, b)
	return k.putUint32(abi.UVERBS_ATTR_INFO_TOTAL_HANDLES, uint32(len(all)))
}

// queryDevice is QUERY_DEVICE.
func queryDevice(k *call, _ *abi.QueryDevice, resp *abi.QueryDeviceResp) syscall.Errno {
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	*resp = k.ctx.dev.attr()
	return 0
}

// exQueryDevice is the extended QUERY_DEVICE.
func exQueryDevice(k *call, req *abi.ExQueryDevice, resp *abi.ExQueryDeviceResp) syscall.Errno {
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	if req.CompMask != 0 || len(k.drvIn) > 0 && !isZero(k.drvIn) {
		return syscall.EINVAL
	}
	*resp = k.ctx.dev.exAttr()
	resp.ResponseLength = responseLength(k, resp)
	return 0
}

// queryPort is QUERY_PORT of the ioctl interface.
func queryPort(k *call) syscall.Errno {
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	port, errno := k.constant(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM, 255)
	if errno != 0 {
		return errno
	}
	if port != 1 {
		return syscall.EINVAL
	}
	attr := k.ctx.dev.portAttr()
	resp := abi.QueryPortRespEx{LegacyResp: attr, ActiveSpeedEx: uint32(attr.ActiveSpeed)}
	return k.putStruct(abi.UVERBS_ATTR_QUERY_PORT_RESP, kernel.Bytes(&resp))
}

// legacyQueryPort is QUERY_PORT of the write() interface.
func legacyQueryPort(k *call, req *abi.QueryPort, resp *abi.QueryPortResp) syscall.Errno {
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	if req.PortNum != 1 {
		return syscall.EINVAL
	}
	*resp = k.ctx.dev.portAttr()
	return 0
}

// queryGIDTable is QUERY_GID_TABLE.
func queryGIDTable(k *call) syscall.Errno {
	if _, errno := k.flags(abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0); errno != 0 {
		return errno
	}
	size := k.uint(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE)
	room := k.attr(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES)
	if size == 0 || uint64(room.Len) < size || uint64(room.Len)%size != 0 {
		return syscall.EINVAL
	}
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	table := k.ctx.dev.gids()
	if uint64(room.Len)/size < uint64(len(table)) {
		return syscall.EINVAL
	}
	for i := range table {
		to := room.Out[i*int(size):][:size]
		entry := table[i].entry()
		clear(to[copy(to, kernel.Bytes(&entry)):])
	}
	return k.putUint64(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, uint64(len(table)))
}

// queryGIDEntry is QUERY_GID_ENTRY.
func queryGIDEntry(k *call) syscall.Errno {
	if _, errno := k.flags(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0); errno != 0 {
		return errno
	}
	port, errno := k.constant(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT, 1<<32-1)
	if errno != 0 {
		return errno
	}
	index, errno := k.constant(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, 1<<32-1)
	if errno != 0 {
		return errno
	}
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	if port != 1 {
		return syscall.EINVAL
	}
	g, errno := k.ctx.dev.gid(index)
	if errno != 0 {
		return errno
	}
	entry := g.entry()
	return k.putStruct(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, kernel.Bytes(&entry))
}
