package soft

import (
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// method describes a method of the ioctl interface.
type method struct {
	object, method uint16
	attrs          []attrSpec
	udata          bool                      // there is a driver's part
	run            func(*call) syscall.Errno // nil if destroying an object is all
}

type methodKey struct{ object, method uint16 }

// methods are the methods of the device, those of rxe of Linux 7.2. Objects that rxe does not have
// are absent, with all their methods. There are none before the first device.
var methods map[methodKey]*method

// legacyCommands are the legacy commands of the device by number, likewise.
var legacyCommands map[uint32]*legacy

// makeTables calls fillTables once. A program that has no device does not pay for the tables.
var makeTables sync.Once

// fillTables makes methods and legacyCommands.
func fillTables() {
	methods = map[methodKey]*method{}
	for _, list := range [][]method{deviceMethods(), mrMethods(), queueMethods(), destroyMethods()} {
		for i := range list {
			methods[methodKey{list[i].object, list[i].method}] = &list[i]
		}
	}
	legacyCommands = map[uint32]*legacy{}
	table := legacyTable()
	for i := range table {
		legacyCommands[table[i].number] = &table[i]
	}
}

// deviceMethods returns the methods of devices and of event files.
func deviceMethods() []method {
	return []method{
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE, []attrSpec{
			constIn(abi.UVERBS_ATTR_WRITE_CMD),
			optional(inAtLeast(abi.UVERBS_ATTR_CORE_IN, 4)),
			optional(outAtLeast(abi.UVERBS_ATTR_CORE_OUT, 0)),
		}, true, invokeWrite},
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INFO_HANDLES, []attrSpec{
			constIn(abi.UVERBS_ATTR_INFO_OBJECT_ID),
			optional(out(abi.UVERBS_ATTR_INFO_TOTAL_HANDLES, 4)),
			optional(outAtLeast(abi.UVERBS_ATTR_INFO_HANDLES_LIST, 4)),
		}, false, infoHandles},
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT, []attrSpec{
			optional(out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4)),
			optional(out(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, 8)),
			optional(inAtLeast(abi.UVERBS_ATTR_GET_CONTEXT_FD_ARR, 4)),
		}, true, getContext},
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_CONTEXT, []attrSpec{
			optional(out(abi.UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, 4)),
			optional(out(abi.UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, 8)),
		}, false, lacking},
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT, []attrSpec{
			constIn(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM),
			outStruct(abi.UVERBS_ATTR_QUERY_PORT_RESP, uint16(len(kernel.Bytes(new(abi.QueryPortRespEx))))),
		}, false, queryPort},
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT_SPEED, []attrSpec{
			constIn(abi.UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM),
			out(abi.UVERBS_ATTR_QUERY_PORT_SPEED_RESP, 8),
		}, false, lacking},
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_TABLE, []attrSpec{
			constIn(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE),
			optional(flagsIn(abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS)),
			outAtLeast(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, 0),
			out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, 8),
		}, false, queryGIDTable},
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_ENTRY, []attrSpec{
			constIn(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT),
			constIn(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX),
			flagsIn(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS),
			outStruct(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, uint16(len(kernel.Bytes(new(abi.GIDEntry))))),
		}, false, queryGIDEntry},
		{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC, []attrSpec{
			handle(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, newFile, abi.UVERBS_OBJECT_ASYNC_EVENT),
		}, false, asyncEventAlloc},
	}
}

// destroyMethods returns the methods that destroy objects.
func destroyMethods() []method {
	return []method{
		{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY, []attrSpec{handle(abi.UVERBS_ATTR_DESTROY_PD_HANDLE, destroyed, abi.UVERBS_OBJECT_PD)}, false, nil},
		{abi.UVERBS_OBJECT_AH, abi.UVERBS_METHOD_AH_DESTROY, []attrSpec{handle(abi.UVERBS_ATTR_DESTROY_AH_HANDLE, destroyed, abi.UVERBS_OBJECT_AH)}, false, nil},
		{abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY, []attrSpec{handle(abi.UVERBS_ATTR_DESTROY_MW_HANDLE, destroyed, abi.UVERBS_OBJECT_MW)}, false, nil},
		{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY, []attrSpec{handle(abi.UVERBS_ATTR_DESTROY_MR_HANDLE, destroyed, abi.UVERBS_OBJECT_MR)}, false, nil},
		{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY, []attrSpec{
			handle(abi.UVERBS_ATTR_DESTROY_CQ_HANDLE, destroyed, abi.UVERBS_OBJECT_CQ),
			out(abi.UVERBS_ATTR_DESTROY_CQ_RESP, uint16(len(kernel.Bytes(new(abi.DestroyCQResp))))),
		}, false, destroyCQ},
		{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY, []attrSpec{
			handle(abi.UVERBS_ATTR_DESTROY_QP_HANDLE, destroyed, abi.UVERBS_OBJECT_QP),
			out(abi.UVERBS_ATTR_DESTROY_QP_RESP, uint16(len(kernel.Bytes(new(abi.DestroyQPResp))))),
		}, false, destroyQP},
		{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_DESTROY, []attrSpec{
			handle(abi.UVERBS_ATTR_DESTROY_SRQ_HANDLE, destroyed, abi.UVERBS_OBJECT_SRQ),
			out(abi.UVERBS_ATTR_DESTROY_SRQ_RESP, uint16(len(kernel.Bytes(new(abi.DestroySRQResp))))),
		}, false, destroySRQ},
	}
}

// mrMethods returns the methods of memory regions.
func mrMethods() []method {
	return []method{
		{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_ADVISE_MR, []attrSpec{
			handle(abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE, used, abi.UVERBS_OBJECT_PD),
			constIn(abi.UVERBS_ATTR_ADVISE_MR_ADVICE),
			flagsIn(abi.UVERBS_ATTR_ADVISE_MR_FLAGS),
			inAtLeast(abi.UVERBS_ATTR_ADVISE_MR_SGE_LIST, uint16(len(kernel.Bytes(new(abi.SGE))))),
		}, false, adviseMR},
		{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_QUERY_MR, []attrSpec{
			handle(abi.UVERBS_ATTR_QUERY_MR_HANDLE, used, abi.UVERBS_OBJECT_MR),
			out(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, 4),
			out(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, 4),
			out(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, 8),
			optional(out(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, 8)),
		}, false, queryMR},
		{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_DMABUF_MR, []attrSpec{
			handle(abi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE, created, abi.UVERBS_OBJECT_MR),
			handle(abi.UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, used, abi.UVERBS_OBJECT_PD),
			in(abi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET, 8),
			in(abi.UVERBS_ATTR_REG_DMABUF_MR_LENGTH, 8),
			in(abi.UVERBS_ATTR_REG_DMABUF_MR_IOVA, 8),
			in(abi.UVERBS_ATTR_REG_DMABUF_MR_FD, 4),
			optional(flagsIn(abi.UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS)),
			out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, 4),
			out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, 4),
		}, false, lacking},
		{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_MR, []attrSpec{
			handle(abi.UVERBS_ATTR_REG_MR_HANDLE, created, abi.UVERBS_OBJECT_MR),
			handle(abi.UVERBS_ATTR_REG_MR_PD_HANDLE, used, abi.UVERBS_OBJECT_PD),
			optional(handle(abi.UVERBS_ATTR_REG_MR_DMA_HANDLE, used, abi.UVERBS_OBJECT_DMAH)),
			in(abi.UVERBS_ATTR_REG_MR_IOVA, 8),
			in(abi.UVERBS_ATTR_REG_MR_LENGTH, 8),
			flagsIn(abi.UVERBS_ATTR_REG_MR_ACCESS_FLAGS),
			optional(in(abi.UVERBS_ATTR_REG_MR_ADDR, 8)),
			optional(in(abi.UVERBS_ATTR_REG_MR_FD_OFFSET, 8)),
			optional(handle(abi.UVERBS_ATTR_REG_MR_FD, rawFD, 0)),
			out(abi.UVERBS_ATTR_REG_MR_RESP_LKEY, 4),
			out(abi.UVERBS_ATTR_REG_MR_RESP_RKEY, 4),
		}, true, regMRMethod},
	}
}

// queueMethods returns the methods of queues, those that destroy excepted.
func queueMethods() []method {
	return []method{
		{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE, []attrSpec{
			handle(abi.UVERBS_ATTR_CREATE_CQ_HANDLE, created, abi.UVERBS_OBJECT_CQ),
			in(abi.UVERBS_ATTR_CREATE_CQ_CQE, 4),
			in(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE, 8),
			optional(handle(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, channel, abi.UVERBS_OBJECT_COMP_CHANNEL)),
			in(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, 4),
			optional(flagsIn(abi.UVERBS_ATTR_CREATE_CQ_FLAGS)),
			out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, 4),
			optional(handle(abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD, channel, abi.UVERBS_OBJECT_ASYNC_EVENT)),
			optional(in(abi.UVERBS_ATTR_CREATE_CQ_BUFFER_VA, 8)),
			optional(in(abi.UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH, 8)),
			optional(handle(abi.UVERBS_ATTR_CREATE_CQ_BUFFER_FD, rawFD, 0)),
			optional(in(abi.UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET, 8)),
			optional(in(abi.UVERBS_ATTR_CREATE_CQ_BUF_UMEM, uint16(len(kernel.Bytes(new(abi.BufferDesc)))))),
		}, true, createCQMethod},
		{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE, []attrSpec{
			handle(abi.UVERBS_ATTR_CREATE_QP_HANDLE, created, abi.UVERBS_OBJECT_QP),
			optional(handle(abi.UVERBS_ATTR_CREATE_QP_XRCD_HANDLE, used, abi.UVERBS_OBJECT_XRCD)),
			optional(handle(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, used, abi.UVERBS_OBJECT_PD)),
			optional(handle(abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, used, abi.UVERBS_OBJECT_SRQ)),
			optional(handle(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, used, abi.UVERBS_OBJECT_CQ)),
			optional(handle(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, used, abi.UVERBS_OBJECT_CQ)),
			optional(handle(abi.UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, used, abi.UVERBS_OBJECT_RWQ_IND_TBL)),
			in(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, 8),
			inStruct(abi.UVERBS_ATTR_CREATE_QP_CAP, uint16(len(kernel.Bytes(new(abi.QPCap))))),
			constIn(abi.UVERBS_ATTR_CREATE_QP_TYPE),
			optional(flagsIn(abi.UVERBS_ATTR_CREATE_QP_FLAGS)),
			optional(in(abi.UVERBS_ATTR_CREATE_QP_SOURCE_QPN, 4)),
			optional(handle(abi.UVERBS_ATTR_CREATE_QP_EVENT_FD, channel, abi.UVERBS_OBJECT_ASYNC_EVENT)),
			outStruct(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, uint16(len(kernel.Bytes(new(abi.QPCap))))),
			out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, 4),
			optional(in(abi.UVERBS_ATTR_CREATE_QP_BUF_UMEM, uint16(len(kernel.Bytes(new(abi.BufferDesc)))))),
			optional(in(abi.UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM, uint16(len(kernel.Bytes(new(abi.BufferDesc)))))),
			optional(in(abi.UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM, uint16(len(kernel.Bytes(new(abi.BufferDesc)))))),
		}, true, createQPMethod},
		{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE, []attrSpec{
			handle(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE, created, abi.UVERBS_OBJECT_SRQ),
			handle(abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, used, abi.UVERBS_OBJECT_PD),
			constIn(abi.UVERBS_ATTR_CREATE_SRQ_TYPE),
			in(abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, 8),
			in(abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR, 4),
			in(abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE, 4),
			in(abi.UVERBS_ATTR_CREATE_SRQ_LIMIT, 4),
			optional(handle(abi.UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, used, abi.UVERBS_OBJECT_XRCD)),
			optional(handle(abi.UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, used, abi.UVERBS_OBJECT_CQ)),
			optional(in(abi.UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, 4)),
			optional(handle(abi.UVERBS_ATTR_CREATE_SRQ_EVENT_FD, channel, abi.UVERBS_OBJECT_ASYNC_EVENT)),
			out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, 4),
			out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, 4),
			optional(out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, 4)),
		}, true, createSRQMethod},
	}
}

// write describes a legacy command without an answer, reply one with an answer.
func write[Req any](number uint32, run func(*call, *Req) syscall.Errno) legacy {
	return legacy{number: number, req: len(kernel.Bytes(new(Req))), run: func(k *call) syscall.Errno {
		req := new(Req)
		if errno := k.request(kernel.Bytes(req)); errno != 0 {
			return errno
		}
		return run(k, req)
	}}
}

func reply[Req, Resp any](number uint32, run func(*call, *Req, *Resp) syscall.Errno) legacy {
	return legacy{number: number, req: len(kernel.Bytes(new(Req))), resp: len(kernel.Bytes(new(Resp))), run: func(k *call) syscall.Errno {
		req, resp := new(Req), new(Resp)
		if errno := k.request(kernel.Bytes(req)); errno != 0 {
			return errno
		}
		if errno := run(k, req, resp); errno != 0 {
			return errno
		}
		return k.respond(kernel.Bytes(resp))
	}}
}

// driven adds the driver's part to a command.
func driven(l legacy) legacy {
	l.udata = true
	return l
}

// legacyTable returns the legacy commands.
func legacyTable() []legacy {
	return []legacy{
		driven(reply(abi.IB_USER_VERBS_CMD_GET_CONTEXT, legacyGetContext)),
		reply(abi.IB_USER_VERBS_CMD_QUERY_DEVICE, queryDevice),
		reply(extended|abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE, exQueryDevice),
		reply(abi.IB_USER_VERBS_CMD_QUERY_PORT, legacyQueryPort),
		driven(reply(abi.IB_USER_VERBS_CMD_ALLOC_PD, allocPD)),
		write(abi.IB_USER_VERBS_CMD_DEALLOC_PD, func(k *call, r *abi.DeallocPD) syscall.Errno {
			return k.destroyOnly(abi.UVERBS_OBJECT_PD, r.PDHandle)
		}),
		driven(reply(abi.IB_USER_VERBS_CMD_CREATE_AH, createAH)),
		write(abi.IB_USER_VERBS_CMD_DESTROY_AH, func(k *call, r *abi.DestroyAH) syscall.Errno {
			return k.destroyOnly(abi.UVERBS_OBJECT_AH, r.AHHandle)
		}),
		driven(reply(abi.IB_USER_VERBS_CMD_REG_MR, regMR)),
		driven(reply(abi.IB_USER_VERBS_CMD_REREG_MR, reregMR)),
		write(abi.IB_USER_VERBS_CMD_DEREG_MR, func(k *call, r *abi.DeregMR) syscall.Errno {
			return k.destroyOnly(abi.UVERBS_OBJECT_MR, r.MRHandle)
		}),
		driven(reply(abi.IB_USER_VERBS_CMD_ALLOC_MW, allocMW)),
		write(abi.IB_USER_VERBS_CMD_DEALLOC_MW, func(k *call, r *abi.DeallocMW) syscall.Errno {
			return k.destroyOnly(abi.UVERBS_OBJECT_MW, r.MWHandle)
		}),
		reply(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, createCompChannel),
		driven(reply(abi.IB_USER_VERBS_CMD_CREATE_CQ, createCQ)),
		driven(reply(extended|abi.IB_USER_VERBS_EX_CMD_CREATE_CQ, exCreateCQ)),
		driven(reply(abi.IB_USER_VERBS_CMD_RESIZE_CQ, resizeCQ)),
		reply(abi.IB_USER_VERBS_CMD_DESTROY_CQ, legacyDestroyCQ),
		write(abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, reqNotifyCQ),
		driven(reply(abi.IB_USER_VERBS_CMD_CREATE_QP, createQP)),
		driven(reply(extended|abi.IB_USER_VERBS_EX_CMD_CREATE_QP, exCreateQP)),
		reply(abi.IB_USER_VERBS_CMD_QUERY_QP, queryQP),
		write(abi.IB_USER_VERBS_CMD_MODIFY_QP, modifyQP),
		reply(extended|abi.IB_USER_VERBS_EX_CMD_MODIFY_QP, exModifyQP),
		reply(abi.IB_USER_VERBS_CMD_DESTROY_QP, legacyDestroyQP),
		{number: abi.IB_USER_VERBS_CMD_POST_SEND, req: len(kernel.Bytes(new(abi.PostSend))), resp: len(kernel.Bytes(new(abi.PostSendResp))), run: postSend},
		write(abi.IB_USER_VERBS_CMD_ATTACH_MCAST, attachMcast),
		write(abi.IB_USER_VERBS_CMD_DETACH_MCAST, detachMcast),
		driven(reply(abi.IB_USER_VERBS_CMD_CREATE_SRQ, createSRQ)),
		driven(reply(abi.IB_USER_VERBS_CMD_CREATE_XSRQ, createXSRQ)),
		driven(write(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, modifySRQ)),
		reply(abi.IB_USER_VERBS_CMD_QUERY_SRQ, querySRQ),
		reply(abi.IB_USER_VERBS_CMD_DESTROY_SRQ, legacyDestroySRQ),
	}
}

// destroyOnly destroys an object by a command without an answer.
func (k *call) destroyOnly(kind uint16, handle uint32) syscall.Errno {
	_, errno := k.destroyHandle(kind, handle)
	return errno
}

// lacking is a method that the kernel has and rxe does not.
func lacking(k *call) syscall.Errno {
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	return syscall.EOPNOTSUPP
}
