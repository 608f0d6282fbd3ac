package soft

import (
	"math/bits"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Properties of a device that are constant, those of rxe (rxe_param.h).
const (
	maxMRSize       = 1<<64 - 1
	pageSizeCap     = 0xfffff000
	vendorID        = 0xffffff
	maxWR           = 1 << 20
	maxSGE          = 32
	maxCQE          = 1<<15 - 1
	maxRdAtomic     = 128
	maxResRdAtomic  = 0x3f000
	maxMcastGroups  = 8192
	maxMcastQPs     = 56
	maxMcastTotal   = 0x70000
	maxSRQWR        = 1 << 20
	maxSRQSGE       = 27
	maxPKeys        = 64
	localCAAckDelay = 15
	atomicHCA       = 1 // IB_ATOMIC_HCA: atomic among operations of the device

	capFlags = abi.IB_UVERBS_DEVICE_BAD_PKEY_CNTR | abi.IB_UVERBS_DEVICE_BAD_QKEY_CNTR | abi.IB_UVERBS_DEVICE_AUTO_PATH_MIG |
		abi.IB_UVERBS_DEVICE_CHANGE_PHY_PORT | abi.IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE | abi.IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT |
		abi.IB_UVERBS_DEVICE_SYS_IMAGE_GUID | abi.IB_UVERBS_DEVICE_RC_RNR_NAK_GEN | abi.IB_UVERBS_DEVICE_SRQ_RESIZE |
		abi.IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS | abi.IB_UVERBS_DEVICE_MEM_WINDOW | abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL |
		abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT | abi.IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B | abi.IB_UVERBS_DEVICE_ATOMIC_WRITE

	odpUD = abi.IB_UVERBS_ODP_SUPPORT_SEND | abi.IB_UVERBS_ODP_SUPPORT_RECV | abi.IB_UVERBS_ODP_SUPPORT_SRQ_RECV
	odpRC = odpUD | abi.IB_UVERBS_ODP_SUPPORT_WRITE | abi.IB_UVERBS_ODP_SUPPORT_READ | abi.IB_UVERBS_ODP_SUPPORT_ATOMIC |
		abi.IB_UVERBS_ODP_SUPPORT_FLUSH | abi.IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE
)

// attr returns the attributes of the device.
func (d *Device) attr() abi.QueryDeviceResp {
	r := abi.QueryDeviceResp{
		MaxMRSize: maxMRSize, PageSizeCap: pageSizeCap, VendorID: vendorID,
		MaxQP: uint32(d.limits.QPs), MaxQPWR: maxWR, DeviceCapFlags: capFlags & (1<<32 - 1),
		MaxSGE: maxSGE, MaxSGERD: maxSGE, MaxCQ: uint32(d.limits.CQs), MaxCQE: maxCQE, MaxMR: uint32(d.limits.MRs), MaxPD: uint32(d.limits.PDs),
		MaxQPRDAtom: maxRdAtomic, MaxResRDAtom: maxResRdAtomic, MaxQPInitRDAtom: maxRdAtomic, AtomicCap: atomicHCA,
		MaxMW: uint32(d.limits.MWs), MaxMcastGrp: maxMcastGroups, MaxMcastQPAttach: maxMcastQPs, MaxTotalMcastQPAttach: maxMcastTotal,
		MaxAH: uint32(d.limits.AHs), MaxSRQ: uint32(d.limits.SRQs), MaxSRQWR: maxSRQWR, MaxSRQSGE: maxSRQSGE,
		MaxPKeys: maxPKeys, LocalCAAckDelay: localCAAckDelay, PhysPortCnt: 1,
	}
	r.NodeGUID.Put(d.guid)
	r.SysImageGUID.Put(d.guid)
	return r
}

// exAttr returns the attributes of the extended command.
func (d *Device) exAttr() abi.ExQueryDeviceResp {
	return abi.ExQueryDeviceResp{
		Base: d.attr(),
		ODPCaps: abi.ODPCaps{
			GeneralCaps:      abi.IB_UVERBS_ODP_SUPPORT,
			PerTransportCaps: abi.ODPCapsPerTransportCaps{RCODPCaps: odpRC, UDODPCaps: odpUD},
		},
		DeviceCapFlagsEx: capFlags,
	}
}

// Properties of a port (enum ib_port_state and others).
const (
	portDown     = 1
	portActive   = 4
	physPolling  = 2
	physDisabled = 3
	physLinkUp   = 5
	width1X      = 1
	speedSDR     = 1
	linkEthernet = 2
	maxMessage   = 1 << 31
	maxVLs       = 1
	mtu4096      = 5 // enum ib_mtu
)

// mtuEnum returns the value of enum ib_mtu for a number of bytes: 1 for 256, 5 for 4096.
func mtuEnum(mtu int) uint8 { return uint8(bits.Len(uint(mtu) >> 8)) }

// portAttr returns the attributes of the port. Its speed is what the kernel reports for a network
// interface of unknown speed.
func (d *Device) portAttr() abi.QueryPortResp {
	state, phys := d.state.Load().port()
	return abi.QueryPortResp{
		PortCapFlags: abi.IB_UVERBS_PCF_CM_SUP, MaxMsgSz: maxMessage, GIDTblLen: gidTableLen, PKeyTblLen: 1,
		State: state, MaxMTU: mtu4096, ActiveMTU: mtuEnum(d.engine.MTU()), MaxVLNum: maxVLs,
		ActiveWidth: width1X, ActiveSpeed: speedSDR, PhysState: phys, LinkLayer: linkEthernet,
		Flags: abi.IB_UVERBS_QPF_GRH_REQUIRED,
	}
}
