package uverbs

import (
	"encoding/binary"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// answer answers a command.
func (k *fakeKernel) answer(c *fakeCall) syscall.Errno {
	if errno := k.refuse[c.verb]; errno != 0 {
		return errno
	}
	if c.path == "ioctl" {
		return k.method(c)
	}
	return k.legacy(c)
}

// put copies to the caller's memory.
func (k *fakeKernel) put(to, b []byte) {
	if len(to) < len(b) {
		k.t.Errorf("there is room for %d bytes, the kernel has %d", len(to), len(b))
		return
	}
	copy(to, b)
}

// u32 and u64 are what outputs mostly are.
func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// method answers an ioctl.
func (k *fakeKernel) method(c *fakeCall) syscall.Errno {
	out := func(id uint16, b []byte) { k.put(c.attr(id).Out, b) }
	switch c.verb {
	case "GET_CONTEXT":
		if k.context != nil {
			out(abi.UVERBS_ATTR_UHW_OUT, k.context)
		}
		out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, u32(2))
		out(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, u64(0))
	case "ALLOC_UAR":
		k.allocUAR(c)
	case "FREE_UAR":
		return k.freeUAR(c)
	case "ASYNC_EVENT_ALLOC":
		r, w := k.pipe()
		k.async = w
		c.attr(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE).Data = uint64(r)
	case "QUERY_PORT":
		resp := abi.QueryPortRespEx{LegacyResp: k.portResp(uint8(c.attr(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM).Data)), PortCapFlags2: 9, ActiveSpeedEx: 256}
		out(abi.UVERBS_ATTR_QUERY_PORT_RESP, bytesOf(&resp))
	case "QUERY_PORT_SPEED":
		if port := c.attr(abi.UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM); port.Data != 1 || port.Len != 8 {
			k.t.Errorf("the port is %d, in %d bytes", port.Data, port.Len)
		}
		out(abi.UVERBS_ATTR_QUERY_PORT_SPEED_RESP, u64(4025))
	case "QUERY_GID_TABLE":
		if size := c.attr(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE).Data; size != 32 {
			k.t.Errorf("the size of a GID entry is said to be %d, want 32", size)
		}
		if len(sliceBytes(k.gids)) > int(c.attr(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES).Len) {
			return syscall.EINVAL
		}
		out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, sliceBytes(k.gids))
		out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, u64(uint64(len(k.gids))))
	case "QUERY_GID_ENTRY":
		port, index := c.attr(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT).Data, c.attr(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX).Data
		i := slices.IndexFunc(k.gids, func(e abi.GIDEntry) bool { return uint64(e.PortNum) == port && uint64(e.GIDIndex) == index })
		if i < 0 {
			return syscall.ENODATA
		}
		out(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, bytesOf(&k.gids[i]))
	case "QUERY_MR":
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, u32(0x1112))
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, u32(0x2223))
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, u64(0x3334))
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, u64(0x4445))
	case "GET_DATA_DIRECT_SYSFS_PATH":
		out(mlx5.AttrDataDirectPath, []byte("/devices/pci0000:00/0000:00:05.0\x00"))
	case "REG_DMABUF_MR":
		c.attr(abi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE).Data = uint64(k.handle())
		out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, u32(0x5556))
		out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, u32(0x6667))
	case "CREATE_CQ":
		cqe := uint32(c.attr(abi.UVERBS_ATTR_CREATE_CQ_CQE).Data)
		handle := k.createCQ(c, cqe)
		c.attr(abi.UVERBS_ATTR_CREATE_CQ_HANDLE).Data = uint64(handle)
		out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, u32(k.rings[handle][0].mask))
	case "CREATE_SRQ":
		maxWR, maxSGE := uint32(c.attr(abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR).Data), uint32(c.attr(abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE).Data)
		c.attr(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE).Data = uint64(k.createSRQ(c, maxWR, maxSGE))
		out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, u32(maxWR))
		out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, u32(maxSGE))
	case "CREATE_QP":
		var cap abi.QPCap
		copy(bytesOf(&cap), c.attr(abi.UVERBS_ATTR_CREATE_QP_CAP).In)
		resp, errno := k.createQP(c, &abi.CreateQP{MaxSendWR: cap.MaxSendWR, MaxRecvWR: cap.MaxRecvWR, MaxSendSGE: cap.MaxSendSGE,
			MaxRecvSGE: cap.MaxRecvSGE, MaxInlineData: cap.MaxInlineData})
		if errno != 0 {
			return errno
		}
		c.attr(abi.UVERBS_ATTR_CREATE_QP_HANDLE).Data = uint64(resp.QPHandle)
		out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, u32(resp.QPN))
		out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, bytesOf(&abi.QPCap{MaxSendWR: resp.MaxSendWR, MaxRecvWR: resp.MaxRecvWR,
			MaxSendSGE: resp.MaxSendSGE, MaxRecvSGE: resp.MaxRecvSGE, MaxInlineData: resp.MaxInlineData}))
	}
	return 0
}

// allocUAR allocates a UAR page of mlx5 in the command file.
func (k *fakeKernel) allocUAR(c *fakeCall) {
	page := make([]byte, orDefault(k.uarPage, os.Getpagesize()))
	if _, err := k.file.WriteAt(page, k.space); err != nil {
		k.t.Fatal(err)
	}
	handle, offset := k.handle(), uint64(k.space)
	k.uars = append(k.uars, handle)
	if k.uarOdd {
		offset = 1 << 63 // mmap fails
	}
	c.attr(mlx5.AttrUARHandle).Data = uint64(handle)
	k.put(c.attr(mlx5.AttrUARMapOffset).Out, u64(offset))
	k.put(c.attr(mlx5.AttrUARMapLength).Out, u32(uint32(len(page))))
	k.put(c.attr(mlx5.AttrUARPageID).Out, u32(7+16*uint32(k.space/int64(len(page)))))
	k.space += int64(len(page))
}

// freeUAR frees a UAR page.
func (k *fakeKernel) freeUAR(c *fakeCall) syscall.Errno {
	handle := uint32(c.attr(mlx5.AttrUARDestroy).Data)
	i := slices.Index(k.uars, handle)
	if i < 0 {
		k.t.Errorf("UAR %d is freed but not allocated; the allocated ones are %v", handle, k.uars)
		return syscall.ENOENT
	}
	k.uars = slices.Delete(k.uars, i, i+1)
	return 0
}

// legacy answers a command of the write() interface.
func (k *fakeKernel) legacy(c *fakeCall) syscall.Errno {
	switch c.verb {
	case "GET_CONTEXT":
		r, w := k.pipe()
		k.async = w
		k.put(c.core, bytesOf(&abi.GetContextResp{AsyncFD: r, NumCompVectors: 2}))
	case "QUERY_DEVICE":
		resp := k.device()
		k.put(c.core, bytesOf(&resp.Base))
	case "EX_QUERY_DEVICE":
		k.put(c.core, bytesOf(k.device()))
	case "QUERY_PORT":
		var req abi.QueryPort
		copy(bytesOf(&req), c.in)
		resp := k.portResp(req.PortNum)
		k.put(c.core, bytesOf(&resp))
	case "ALLOC_PD":
		k.put(c.core, u32(k.handle()))
	case "REG_MR":
		k.put(c.core, bytesOf(&abi.RegMRResp{MRHandle: k.handle(), LKey: 0x1111, RKey: 0x2222}))
	case "REREG_MR":
		k.put(c.core, bytesOf(&abi.ReregMRResp{LKey: 0x3333, RKey: 0x4444}))
	case "ALLOC_MW":
		k.put(c.core, bytesOf(&abi.AllocMWResp{MWHandle: k.handle(), RKey: 0x77ff}))
	case "CREATE_COMP_CHANNEL":
		r, w := k.pipe()
		k.events = w
		k.put(c.core, u32(r))
	case "CREATE_CQ":
		var req abi.CreateCQ
		copy(bytesOf(&req), c.in)
		handle := k.createCQ(c, req.CQE)
		k.put(c.core, bytesOf(&abi.CreateCQResp{CQHandle: handle, CQE: k.rings[handle][0].mask}))
	case "EX_CREATE_CQ":
		var req abi.ExCreateCQ
		copy(bytesOf(&req), c.in)
		handle := k.createCQ(c, req.CQE)
		k.put(c.core, bytesOf(&abi.ExCreateCQResp{Base: abi.CreateCQResp{CQHandle: handle, CQE: k.rings[handle][0].mask}, ResponseLength: 16}))
	case "RESIZE_CQ":
		var req abi.ResizeCQ
		copy(bytesOf(&req), c.in)
		errno := k.resizeCQ(c, req.CQHandle, req.CQE)
		if errno != 0 {
			return errno
		}
		k.put(c.core, bytesOf(&abi.ResizeCQResp{CQE: k.rings[req.CQHandle][0].mask}))
	case "CREATE_QP":
		var req abi.CreateQP
		copy(bytesOf(&req), c.in)
		resp, errno := k.createQP(c, &req)
		if errno != 0 {
			return errno
		}
		k.put(c.core, bytesOf(resp))
	case "QUERY_QP":
		k.put(c.core, bytesOf(&k.query))
	case "CREATE_SRQ":
		var req abi.CreateSRQ
		copy(bytesOf(&req), c.in)
		k.put(c.core, bytesOf(&abi.CreateSRQResp{SRQHandle: k.createSRQ(c, req.MaxWR, req.MaxSGE), MaxWR: req.MaxWR, MaxSGE: req.MaxSGE}))
	case "QUERY_SRQ":
		k.put(c.core, bytesOf(&abi.QuerySRQResp{MaxWR: 31, MaxSGE: 2, SRQLimit: 5}))
	case "CREATE_AH":
		k.put(c.core, u32(k.handle()))
		k.put(c.drv, u32(k.ahNum))
	}
	return 0
}

// device is what the device can do.
func (k *fakeKernel) device() *abi.ExQueryDeviceResp {
	resp := &abi.ExQueryDeviceResp{Base: abi.QueryDeviceResp{
		FWVer: 1<<32 | 2<<16 | 3, MaxSRQ: 9, MaxSRQWR: 1000, MaxSRQSGE: 3, MaxMRSize: 1 << 30, MaxQPWR: 1000, MaxSGE: 4, MaxCQE: 1000, MaxQPRDAtom: 16, MaxQPInitRDAtom: 8,
		AtomicCap: uint32(ib.AtomicHCA), PhysPortCnt: 2, DeviceCapFlags: 5,
	}, TimestampMask: 7, HCACoreClock: 1000, DeviceCapFlagsEx: 1 << 40, MaxDMSize: 99, MaxWQTypeRQ: 20, RawPacketCaps: 5, XRCODPCaps: 8,
		// No bit of general ODP, so that nothing is done on demand.
		ODPCaps:          abi.ODPCaps{PerTransportCaps: abi.ODPCapsPerTransportCaps{RCODPCaps: 9, UCODPCaps: 10, UDODPCaps: 11}},
		RSSCaps:          abi.RSSCaps{SupportedQPTs: 1 << 8, MaxRWQIndirectionTables: 21, MaxRWQIndirectionTableSize: 22},
		TMCaps:           abi.TMCaps{MaxRndvHdrSize: 31, MaxNumTags: 32, Flags: 1, MaxOps: 34, MaxSGE: 35},
		CQModerationCaps: abi.CQModerationCaps{MaxCQModerationCount: 41, MaxCQModerationPeriod: 42},
	}
	resp.Base.NodeGUID.Put(0x0102030405060708)
	return resp
}

// portResp describes a port.
func (k *fakeKernel) portResp(port uint8) abi.QueryPortResp {
	if port == 1 {
		return k.port
	}
	return abi.QueryPortResp{State: uint8(ib.PortDown), PhysState: 3, GIDTblLen: 4, LinkLayer: uint8(ib.LinkLayerEthernet)}
}

// handle makes a handle.
func (k *fakeKernel) handle() uint32 {
	k.next++
	return k.next
}

// pipe returns the descriptor of the read end, which the library owns, and the write end.
func (k *fakeKernel) pipe() (uint32, *os.File) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		k.t.Fatal(err)
	}
	return uint32(p[0]), os.NewFile(uintptr(p[1]), "events")
}
