package uverbs

import (
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// DeviceAttr are the properties and limits of a device (struct ibv_device_attr_ex). It has no
// fields for segmentation (tso_caps) and PCI atomics (pci_atomic_caps), which the kernel does not
// report.
type DeviceAttr struct {
	FirmwareVersion string        // FirmwareVersion is empty for devices without firmware.
	NodeGUID        ib.GUID       // NodeGUID is the GUID of the device.
	SysImageGUID    ib.GUID       // SysImageGUID is the GUID of the card or system that the device is part of.
	MaxMRSize       uint64        // MaxMRSize is the largest MR, in bytes.
	PageSizeCap     uint64        // PageSizeCap is the sum of the supported page sizes, in bytes.
	VendorID        uint32        // VendorID is the vendor's IEEE number.
	VendorPartID    uint32        // VendorPartID is the part number that the vendor has assigned.
	HWVersion       uint32        // HWVersion is the version of the hardware.
	MaxQP           uint32        // MaxQP is the maximum number of QPs.
	MaxQPWR         uint32        // MaxQPWR is the largest send or receive queue, in work requests.
	CapFlags        uint64        // CapFlags are IB_UVERBS_DEVICE_* bits (ib_user_verbs.h).
	MaxSGE          uint32        // MaxSGE is the maximum number of SGEs of a work request.
	MaxSGERead      uint32        // MaxSGERead is the maximum number of SGEs of an RDMA READ.
	MaxCQ           uint32        // MaxCQ is the maximum number of CQs.
	MaxCQE          uint32        // MaxCQE is the largest CQ, in completions.
	MaxMR           uint32        // MaxMR is the maximum number of MRs.
	MaxPD           uint32        // MaxPD is the maximum number of PDs.
	MaxQPRdAtom     uint32        // MaxQPRdAtom is the maximum number of READs and atomics that a QP serves at a time.
	MaxEERdAtom     uint32        // MaxEERdAtom is MaxQPRdAtom for EE contexts.
	MaxResRdAtom    uint32        // MaxResRdAtom is the maximum number of READs and atomics that the device serves at a time.
	MaxQPInitRdAtom uint32        // MaxQPInitRdAtom is the maximum number of READs and atomics that a QP has in flight.
	MaxEEInitRdAtom uint32        // MaxEEInitRdAtom is MaxQPInitRdAtom for EE contexts.
	AtomicCap       ib.AtomicCap  // AtomicCap says which accesses atomics are atomic with.
	MaxEE           uint32        // MaxEE is the maximum number of EE contexts (RD transport, which no device supports).
	MaxRDD          uint32        // MaxRDD is the maximum number of RD domains.
	MaxMW           uint32        // MaxMW is the maximum number of MWs.
	MaxRawIPv6QP    uint32        // MaxRawIPv6QP is the maximum number of raw IPv6 QPs.
	MaxRawEthyQP    uint32        // MaxRawEthyQP is the maximum number of raw Ethertype QPs.
	MaxMcastGroup   uint32        // MaxMcastGroup is the maximum number of multicast groups.
	MaxMcastQP      uint32        // MaxMcastQP is the maximum number of QPs in a multicast group.
	MaxTotalMcastQP uint32        // MaxTotalMcastQP is the maximum number of QPs in all multicast groups.
	MaxAH           uint32        // MaxAH is the maximum number of AHs.
	MaxFMR          uint32        // MaxFMR is the maximum number of fast MRs.
	MaxMapPerFMR    uint32        // MaxMapPerFMR is the maximum number of times that a fast MR can be mapped.
	MaxSRQ          uint32        // MaxSRQ is the maximum number of SRQs.
	MaxSRQWR        uint32        // MaxSRQWR is the largest SRQ, in work requests.
	MaxSRQSGE       uint32        // MaxSRQSGE is the maximum number of SGEs of a receive of an SRQ.
	MaxPKeys        uint16        // MaxPKeys is the maximum number of partitions.
	LocalCAAckDelay ib.AckTimeout // LocalCAAckDelay is the maximum delay of the device's acknowledgements; 0 is 4.096 µs.
	PhysPortCount   uint8         // PhysPortCount is the number of ports, at most 255; see also [DeviceInfo].Ports (phys_port_cnt_ex).
	ODPGeneralCaps  uint64        // ODPGeneralCaps are on-demand paging bits (IB_UVERBS_ODP_*); 0 if not supported.
	ODPCapsRC       ODPCaps       // ODPCapsRC are the operations of RC QPs on on-demand memory.
	ODPCapsUC       ODPCaps       // ODPCapsUC are the operations of UC QPs.
	ODPCapsUD       ODPCaps       // ODPCapsUD are the operations of UD QPs.
	ODPCapsXRC      ODPCaps       // ODPCapsXRC are the operations of XRC QPs.
	TimestampMask   uint64        // TimestampMask are the valid bits of a completion time stamp; 0 if not supported.
	CoreClockKHz    uint64        // CoreClockKHz is the frequency of the device's clock in kHz, 0 if unknown.
	MaxDMSize       uint64        // MaxDMSize is the size of the device's own memory in bytes, or 0.
	CompVectors     int           // CompVectors is the number of completion vectors.

	RSSQPTypes         QPTypes       // RSSQPTypes are the QP types that can have an RWQIndTable.
	MaxRWQIndTables    uint32        // MaxRWQIndTables is the maximum number of RWQIndTables.
	MaxRWQIndTableSize uint32        // MaxRWQIndTableSize is the maximum number of WQs in an RWQIndTable.
	MaxWQ              uint32        // MaxWQ is the maximum number of WQs (max_wq_type_rq).
	RawPacketCaps      RawPacketCaps // RawPacketCaps are the capabilities for raw packets.
	TagMatching        TMCaps        // TagMatching are the capabilities for tag matching, which the library does not support.

	MaxCQModerationCount  uint16 // MaxCQModerationCount is the maximum number of completions per event, see [CQ.Modify]; 0 if not supported.
	MaxCQModerationPeriod uint16 // MaxCQModerationPeriod is the longest time between events, in microseconds.
}

// ODPCaps are the operations that QPs of a transport support on memory registered with
// [AccessOnDemand] (enum ib_uverbs_odp_transport_cap_bits).
type ODPCaps uint32

// Operations on on-demand memory.
const (
	ODPSend        ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_SEND         // send from it (IBV_ODP_SUPPORT_SEND)
	ODPRecv        ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_RECV         // receive into it (IBV_ODP_SUPPORT_RECV)
	ODPWrite       ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_WRITE        // RDMA WRITE (IBV_ODP_SUPPORT_WRITE)
	ODPRead        ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_READ         // RDMA READ (IBV_ODP_SUPPORT_READ)
	ODPAtomic      ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_ATOMIC       // atomics (IBV_ODP_SUPPORT_ATOMIC)
	ODPSRQRecv     ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_SRQ_RECV     // receive into it with an SRQ (IBV_ODP_SUPPORT_SRQ_RECV)
	ODPFlush       ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_FLUSH        // FLUSH
	ODPAtomicWrite ODPCaps = abi.IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE // ATOMIC_WRITE
)

// RawPacketCaps are a device's capabilities for raw packets (enum ib_uverbs_raw_packet_caps).
type RawPacketCaps uint32

// Capabilities for raw packets.
const (
	RawPacketStripVLAN  RawPacketCaps = abi.IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING // WQStripVLAN (IBV_RAW_PACKET_CAP_CVLAN_STRIPPING)
	RawPacketScatterFCS RawPacketCaps = abi.IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS     // WQScatterFCS (IBV_RAW_PACKET_CAP_SCATTER_FCS)
	RawPacketIPChecksum RawPacketCaps = abi.IB_UVERBS_RAW_PACKET_CAP_IP_CSUM         // check IP, TCP and UDP checksums (IBV_RAW_PACKET_CAP_IP_CSUM)
	RawPacketDelayDrop  RawPacketCaps = abi.IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP      // WQDelayDrop (IBV_RAW_PACKET_CAP_DELAY_DROP)
)

// TMCaps are a device's capabilities for tag matching (struct ibv_tm_caps); all zero if it is not
// supported.
type TMCaps struct {
	MaxRndvHeader uint32 // MaxRndvHeader is the maximum header length of a rendezvous request, in bytes.
	MaxTags       uint32 // MaxTags is the maximum number of tags of an SRQ.
	Flags         uint32 // Flags are IBV_TM_CAP_* bits (infiniband/verbs.h): 1 is RC.
	MaxOps        uint32 // MaxOps is the maximum number of outstanding changes to the tag list.
	MaxSGE        uint32 // MaxSGE is the maximum number of SGEs of a tagged receive.
}

// PortAttr are the attributes of a port (struct ibv_port_attr).
type PortAttr struct {
	State         ib.PortState  // State is the logical state.
	MaxMTU        ib.MTU        // MaxMTU is the largest MTU that the port supports.
	ActiveMTU     ib.MTU        // ActiveMTU is the current MTU.
	GIDTableLen   int           // GIDTableLen is the size of the GID table.
	CapFlags      uint32        // CapFlags are capability bits (IB_PORT_*, rdma/ib_verbs.h).
	MaxMsgSize    uint32        // MaxMsgSize is the longest message, in bytes.
	BadPKeyCount  uint32        // BadPKeyCount is the number of packets received with a wrong P_Key.
	QKeyViolCount uint32        // QKeyViolCount is the number of packets received with a wrong Q_Key.
	PKeyTableLen  int           // PKeyTableLen is the size of the P_Key table.
	LID           uint16        // LID is the local identifier; 0 on Ethernet.
	SMLID         uint16        // SMLID is the subnet manager's LID.
	LMC           uint8         // LMC is the number of low LID bits that select a path.
	MaxVLNum      ib.VLNum      // MaxVLNum is the number of virtual lanes.
	SMSL          uint8         // SMSL is the service level to the subnet manager.
	SubnetTimeout ib.AckTimeout // SubnetTimeout is the delay through the subnet; 0 is 4.096 µs.
	InitTypeReply uint8         // InitTypeReply is the initialization type that the subnet manager has chosen.
	ActiveWidth   ib.LinkWidth  // ActiveWidth is the width of the link.
	ActiveSpeed   ib.LinkSpeed  // ActiveSpeed is the speed of a lane.
	PhysState     ib.PhysState  // PhysState is the physical state.
	LinkLayer     ib.LinkLayer  // LinkLayer is InfiniBand or Ethernet.
	Flags         uint8         // Flags are bits (IBV_QPF_*); see [PortAttr.GRHRequired].
	CapFlags2     uint16        // CapFlags2 are more capability bits; 0 without the ioctl interface.
}

// GRHRequired reports whether the port needs a GRH in every packet (IBV_QPF_GRH_REQUIRED), so that a
// peer's address must include its GID. The kernel says so for all RoCE ports, and for InfiniBand ports of
// virtual functions that share a LID.
func (a PortAttr) GRHRequired() bool { return a.Flags&abi.IB_UVERBS_QPF_GRH_REQUIRED != 0 }

// gidNeeded reports whether the address of a peer must include its GID. A port of a vendor's own protocol has no
// other addresses.
func (a PortAttr) gidNeeded() bool {
	return a.LinkLayer != ib.LinkLayerInfiniBand || a.GRHRequired()
}

// MTUFromBytes returns the MTU for a size in bytes. It fails with an [ArgError] unless the size is
// 256, 512, 1024, 2048 or 4096.
func MTUFromBytes(n int) (ib.MTU, error) {
	for m := ib.MTU256; m <= ib.MTU4096; m++ {
		if m.Bytes() == n {
			return m, nil
		}
	}
	return 0, argErr("MTUFromBytes", "size", n, "256, 512, 1024, 2048, 4096")
}
