package netlinkrdma

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Owner is the process or the kernel module that created an object. It is a plain value.
//
// The kernel records the thread that created the object. In a program with several threads, as
// every Go program is, PID is therefore often not the ID of the process; the line Tgid of
// /proc/PID/status has that. Once the thread has ended, PID is 0, even if the process still runs.
type Owner struct {
	PID    uint32 // PID is the ID of the thread in this PID namespace; 0 for the kernel, for a thread that has ended, and for one that is not visible here.
	Kernel string // Kernel is the kernel module, for example "ib_core"; empty for a process.
}

func decodeOwner(m *message) Owner {
	return Owner{PID: m.u32(abi.RDMA_NLDEV_ATTR_RES_PID), Kernel: m.text(abi.RDMA_NLDEV_ATTR_RES_KERN_NAME)}
}

// QP is a queue pair in the list of the kernel. It is a plain value.
type QP struct {
	Num          uint32          // Num is the QP number (lqpn).
	Port         uint32          // Port is its port, 0 before it belongs to one. Linux 5.10 reports 0 for QP 1 of the kernel.
	Type         ib.QPType       // Type is the transport service.
	Subtype      string          // Subtype is set if Type is ib.DriverQP.
	State        ib.QPState      // State is the current state, read from the driver.
	RemoteNum    uint32          // RemoteNum is the number of the peer's QP (rqpn); for RC and UC.
	RQPSN        uint32          // RQPSN is the sequence number of the next packet to receive; for RC and UC.
	SQPSN        uint32          // SQPSN is the sequence number of the next packet to send.
	PathMigState ib.PathMigState // PathMigState is set for RC, UC and XRC.
	PD           uint32          // PD is the ID of its [PD]; not valid for QPs of the kernel.
	Owner
	Driver []DriverAttr // Driver has further attributes that the driver reports.
}

func decodeQP(m *message) QP {
	m.need(abi.RDMA_NLDEV_ATTR_RES_LQPN, abi.RDMA_NLDEV_ATTR_RES_TYPE, abi.RDMA_NLDEV_ATTR_RES_STATE)
	return QP{
		Num:          m.u32(abi.RDMA_NLDEV_ATTR_RES_LQPN),
		Port:         m.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
		Type:         ib.QPType(m.u8(abi.RDMA_NLDEV_ATTR_RES_TYPE)),
		Subtype:      m.text(abi.RDMA_NLDEV_ATTR_RES_SUBTYPE),
		State:        ib.QPState(m.u8(abi.RDMA_NLDEV_ATTR_RES_STATE)),
		RemoteNum:    m.u32(abi.RDMA_NLDEV_ATTR_RES_RQPN),
		RQPSN:        m.u32(abi.RDMA_NLDEV_ATTR_RES_RQ_PSN),
		SQPSN:        m.u32(abi.RDMA_NLDEV_ATTR_RES_SQ_PSN),
		PathMigState: ib.PathMigState(m.u8(abi.RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE)),
		PD:           m.u32(abi.RDMA_NLDEV_ATTR_RES_PDN),
		Owner:        decodeOwner(m),
		Driver:       decodeDriverAttrs(m),
	}
}

// PollContext is where the kernel polls its own completion queues (enum ib_poll_context in
// rdma/ib_verbs.h).
type PollContext uint8

// The poll contexts.
const (
	PollDirect           PollContext = 0 // the owner polls (IB_POLL_DIRECT)
	PollSoftIRQ          PollContext = 1 // IB_POLL_SOFTIRQ
	PollWorkqueue        PollContext = 2 // IB_POLL_WORKQUEUE
	PollUnboundWorkqueue PollContext = 3 // IB_POLL_UNBOUND_WORKQUEUE
)

// String returns the name that iproute2 uses.
func (p PollContext) String() string {
	names := [...]string{"DIRECT", "SOFTIRQ", "WORKQUEUE", "UNBOUND_WORKQUEUE"}
	return nameOf("PollContext", names[:], int(p))
}

// CQ is a completion queue in the list of the kernel. It is a plain value.
type CQ struct {
	ID                 uint32      // ID is the kernel's number (cqn), not the handle that the owner uses.
	CQE                uint32      // CQE is the capacity, in completions.
	Users              uint64      // Users is the number of work queues that use it.
	PollContext        PollContext // PollContext is valid for CQs of the kernel.
	AdaptiveModeration bool        // AdaptiveModeration means that the kernel adapts the interrupt moderation to the load.
	Context            uint32      // Context is the ID of its [Context]; not valid for CQs of the kernel.
	Owner
	Driver []DriverAttr // Driver has further attributes that the driver reports.
}

func decodeCQ(m *message) CQ {
	m.need(abi.RDMA_NLDEV_ATTR_RES_CQN, abi.RDMA_NLDEV_ATTR_RES_CQE, abi.RDMA_NLDEV_ATTR_RES_USECNT)
	return CQ{
		ID:                 m.u32(abi.RDMA_NLDEV_ATTR_RES_CQN),
		CQE:                m.u32(abi.RDMA_NLDEV_ATTR_RES_CQE),
		Users:              m.u64(abi.RDMA_NLDEV_ATTR_RES_USECNT),
		PollContext:        PollContext(m.u8(abi.RDMA_NLDEV_ATTR_RES_POLL_CTX)),
		AdaptiveModeration: m.flag(abi.RDMA_NLDEV_ATTR_DEV_DIM),
		Context:            m.u32(abi.RDMA_NLDEV_ATTR_RES_CTXN),
		Owner:              decodeOwner(m),
		Driver:             decodeDriverAttrs(m),
	}
}

// MR is a memory region in the list of the kernel. It is a plain value.
type MR struct {
	ID     uint32 // ID is the kernel's number (mrn), not the handle that the owner uses.
	Keys   bool   // Keys means that RKey and LKey are valid, which needs CAP_NET_ADMIN.
	RKey   uint32 // RKey is the key that peers use.
	LKey   uint32 // LKey is the key that the owner uses.
	Length uint64 // Length is the size in bytes.
	PD     uint32 // PD is the ID of its [PD]; not valid for MRs of the kernel.
	Owner
	Driver []DriverAttr // Driver has further attributes that the driver reports.
}

func decodeMR(m *message) MR {
	m.need(abi.RDMA_NLDEV_ATTR_RES_MRN, abi.RDMA_NLDEV_ATTR_RES_MRLEN)
	return MR{
		ID:     m.u32(abi.RDMA_NLDEV_ATTR_RES_MRN),
		Keys:   m.has(abi.RDMA_NLDEV_ATTR_RES_RKEY) && m.has(abi.RDMA_NLDEV_ATTR_RES_LKEY),
		RKey:   m.u32(abi.RDMA_NLDEV_ATTR_RES_RKEY),
		LKey:   m.u32(abi.RDMA_NLDEV_ATTR_RES_LKEY),
		Length: m.u64(abi.RDMA_NLDEV_ATTR_RES_MRLEN),
		PD:     m.u32(abi.RDMA_NLDEV_ATTR_RES_PDN),
		Owner:  decodeOwner(m),
		Driver: decodeDriverAttrs(m),
	}
}

// PD is a protection domain in the list of the kernel. It is a plain value.
type PD struct {
	ID               uint32 // ID is the kernel's number (pdn), not the handle that the owner uses.
	Keys             bool   // Keys means that the keys are valid, which needs CAP_NET_ADMIN.
	LocalDMALKey     uint32 // LocalDMALKey is a key for all memory; only for PDs of the kernel.
	UnsafeGlobalRKey uint32 // UnsafeGlobalRKey gives peers access to all memory; 0 unless the kernel requested it.
	Users            uint64 // Users is the number of objects in it.
	Context          uint32 // Context is the ID of its [Context]; not valid for PDs of the kernel.
	Owner
}

func decodePD(m *message) PD {
	m.need(abi.RDMA_NLDEV_ATTR_RES_PDN, abi.RDMA_NLDEV_ATTR_RES_USECNT)
	return PD{
		ID:               m.u32(abi.RDMA_NLDEV_ATTR_RES_PDN),
		Keys:             m.has(abi.RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY),
		LocalDMALKey:     m.u32(abi.RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY),
		UnsafeGlobalRKey: m.u32(abi.RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY),
		Users:            m.u64(abi.RDMA_NLDEV_ATTR_RES_USECNT),
		Context:          m.u32(abi.RDMA_NLDEV_ATTR_RES_CTXN),
		Owner:            decodeOwner(m),
	}
}

// CMState is the state of an identifier of the connection manager (enum
// rdma_cm_state in the kernel's cma_priv.h).
type CMState uint8

// The states.
const (
	CMIdle          CMState = 0  // RDMA_CM_IDLE
	CMAddrQuery     CMState = 1  // RDMA_CM_ADDR_QUERY
	CMAddrResolved  CMState = 2  // RDMA_CM_ADDR_RESOLVED
	CMRouteQuery    CMState = 3  // RDMA_CM_ROUTE_QUERY
	CMRouteResolved CMState = 4  // RDMA_CM_ROUTE_RESOLVED
	CMConnect       CMState = 5  // connecting or connected (RDMA_CM_CONNECT)
	CMDisconnect    CMState = 6  // RDMA_CM_DISCONNECT
	CMAddrBound     CMState = 7  // RDMA_CM_ADDR_BOUND
	CMListen        CMState = 8  // RDMA_CM_LISTEN
	CMDeviceRemoval CMState = 9  // RDMA_CM_DEVICE_REMOVAL
	CMDestroying    CMState = 10 // RDMA_CM_DESTROYING
)

// String returns the name that iproute2 uses.
func (s CMState) String() string {
	names := [...]string{"IDLE", "ADDR_QUERY", "ADDR_RESOLVED", "ROUTE_QUERY", "ROUTE_RESOLVED", "CONNECT",
		"DISCONNECT", "ADDR_BOUND", "LISTEN", "DEVICE_REMOVAL", "DESTROYING"}
	return nameOf("CMState", names[:], int(s))
}

// PortSpace is a name space of the connection manager's ports (enum rdma_ucm_port_space in
// rdma/rdma_user_cm.h).
type PortSpace uint32

// The port spaces.
const (
	PortSpaceIPoIB PortSpace = 0x0002 // RDMA_PS_IPOIB
	PortSpaceTCP   PortSpace = 0x0106 // RDMA_PS_TCP
	PortSpaceUDP   PortSpace = 0x0111 // RDMA_PS_UDP
	PortSpaceIB    PortSpace = 0x013f // RDMA_PS_IB
)

// String returns the usual name.
func (p PortSpace) String() string {
	switch p {
	case PortSpaceIPoIB:
		return "IPoIB"
	case PortSpaceTCP:
		return "TCP"
	case PortSpaceUDP:
		return "UDP"
	case PortSpaceIB:
		return "IB"
	}
	return "PortSpace(" + strconv.FormatUint(uint64(p), 10) + ")"
}

// CMID is an identifier of the connection manager, the counterpart of a socket. It is a plain
// value.
type CMID struct {
	ID        uint32         // ID is the kernel's number (cm-idn), not the handle that the owner uses.
	Port      uint32         // Port is the port of the device, 0 if none is chosen yet.
	QPNum     uint32         // QPNum is the number of the QP, 0 if there is none.
	QPType    ib.QPType      // QPType is valid if there is a QP.
	PortSpace PortSpace      // PortSpace is the space of the ports in Src and Dst.
	State     CMState        // State is CMListen for a listener.
	Src       netip.AddrPort // Src is the local address, or a GID for InfiniBand addresses; invalid if there is none.
	Dst       netip.AddrPort // Dst is the address of the peer, in the same form.
	Owner
	Driver []DriverAttr // Driver has further attributes that the driver reports.
}

func decodeCMID(m *message) CMID {
	m.need(abi.RDMA_NLDEV_ATTR_RES_CM_IDN, abi.RDMA_NLDEV_ATTR_RES_STATE, abi.RDMA_NLDEV_ATTR_RES_PS)
	return CMID{
		ID:        m.u32(abi.RDMA_NLDEV_ATTR_RES_CM_IDN),
		Port:      m.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
		QPNum:     m.u32(abi.RDMA_NLDEV_ATTR_RES_LQPN),
		QPType:    ib.QPType(m.u8(abi.RDMA_NLDEV_ATTR_RES_TYPE)),
		PortSpace: PortSpace(m.u32(abi.RDMA_NLDEV_ATTR_RES_PS)),
		State:     CMState(m.u8(abi.RDMA_NLDEV_ATTR_RES_STATE)),
		Src:       m.sockaddr(abi.RDMA_NLDEV_ATTR_RES_SRC_ADDR),
		Dst:       m.sockaddr(abi.RDMA_NLDEV_ATTR_RES_DST_ADDR),
		Owner:     decodeOwner(m),
		Driver:    decodeDriverAttrs(m),
	}
}

// Numbers of Linux. Other systems have different ones.
const (
	afInet              = 2  // AF_INET
	afInet6             = 10 // AF_INET6
	afIB                = 27 // AF_IB
	sizeofSockaddrInet6 = 28 // sizeof(struct sockaddr_in6)
)

// sockaddr decodes a struct sockaddr_storage. It returns the zero value for unknown address
// families.
func (m *message) sockaddr(typ int) netip.AddrPort {
	b, ok := m.attrs[typ]
	if !ok {
		return netip.AddrPort{}
	}
	if len(b) < sizeofSockaddrInet6 {
		m.fail(typ, "%d bytes, want %d at least", len(b), sizeofSockaddrInet6)
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case afInet: // struct sockaddr_in
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port)
	case afInet6: // struct sockaddr_in6
		addr := netip.AddrFrom16([16]byte(b[8:]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 && addr.Is6() && !addr.Is4In6() {
			addr = addr.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(addr, port)
	case afIB: // struct sockaddr_ib, which has a P_Key where others have the port
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), 0)
	}
	return netip.AddrPort{}
}

// Context is one opening of a device by a process. It is a plain value.
type Context struct {
	ID uint32 // ID is the kernel's number (ctxn).
	Owner
}

func decodeContext(m *message) Context {
	m.need(abi.RDMA_NLDEV_ATTR_RES_CTXN)
	return Context{ID: m.u32(abi.RDMA_NLDEV_ATTR_RES_CTXN), Owner: decodeOwner(m)}
}

// SRQType is the type of a shared receive queue (enum ib_srq_type in rdma/ib_user_verbs.h).
type SRQType uint8

// The types.
const (
	SRQBasic SRQType = 0 // IB_SRQT_BASIC
	SRQXRC   SRQType = 1 // for XRC (IB_SRQT_XRC)
	SRQTM    SRQType = 2 // with tag matching (IB_SRQT_TM)
)

// String returns the name that iproute2 uses.
func (t SRQType) String() string {
	names := [...]string{"BASIC", "XRC", "TM"}
	return nameOf("SRQType", names[:], int(t))
}

// QPRange is a range of QP numbers. It is a plain value.
type QPRange struct {
	First uint32 // First is the lowest number.
	Last  uint32 // Last is the highest number, inclusive.
}

// SRQ is a shared receive queue in the list of the kernel. It is a plain value.
type SRQ struct {
	ID   uint32    // ID is the kernel's number (srqn), not the handle that the owner uses.
	Type SRQType   // Type is basic, XRC or with tag matching.
	PD   uint32    // PD is the ID of its [PD].
	CQ   uint32    // CQ is the ID of its [CQ]; for the types XRC and TM.
	QPs  []QPRange // QPs are the numbers of the QPs that receive from it, in ascending order.
	Owner
	Driver []DriverAttr // Driver has further attributes that the driver reports.
}

func decodeSRQ(m *message) SRQ {
	m.need(abi.RDMA_NLDEV_ATTR_RES_SRQN)
	s := SRQ{
		ID:     m.u32(abi.RDMA_NLDEV_ATTR_RES_SRQN),
		Type:   SRQType(m.u8(abi.RDMA_NLDEV_ATTR_RES_TYPE)),
		PD:     m.u32(abi.RDMA_NLDEV_ATTR_RES_PDN),
		CQ:     m.u32(abi.RDMA_NLDEV_ATTR_RES_CQN),
		Owner:  decodeOwner(m),
		Driver: decodeDriverAttrs(m),
	}
	for e := range m.entries(abi.RDMA_NLDEV_ATTR_RES_QP, abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY) {
		if e.has(abi.RDMA_NLDEV_ATTR_RES_LQPN) {
			qpn := e.u32(abi.RDMA_NLDEV_ATTR_RES_LQPN)
			s.QPs = append(s.QPs, QPRange{qpn, qpn})
			continue
		}
		e.need(abi.RDMA_NLDEV_ATTR_MIN_RANGE, abi.RDMA_NLDEV_ATTR_MAX_RANGE)
		s.QPs = append(s.QPs, QPRange{e.u32(abi.RDMA_NLDEV_ATTR_MIN_RANGE), e.u32(abi.RDMA_NLDEV_ATTR_MAX_RANGE)})
	}
	return s
}
