package engine

// Memory is the guest's memory as the device reaches it.
type Memory interface {
	// Bytes gives the memory at a bus address: the longest piece of it that is
	// contiguous for the caller, at least one byte and at most n. An address that no
	// mapping has is an error. The slice is the memory itself, no copy.
	Bytes(addr uint64, n int) ([]byte, error)
}

// LinkLayer is what a port speaks.
type LinkLayer uint8

// The link layers.
const (
	InfiniBand LinkLayer = 0
	Ethernet   LinkLayer = 1
)

// Delivery is where a frame goes.
type Delivery struct {
	RQ  uint32 // RQ is the receive queue.
	Tag uint32 // Tag is the tag that the frame has from the entry of a flow table.
}

// Config is a device to make.
type Config struct {
	Name         string                   // Name stands in reports and traces: "mlx5_0".
	Memory       Memory                   // Memory is the guest's.
	Interrupt    func(vector int)         // Interrupt raises an MSI-X vector. It is called with the fabric's lock held: it must not call back.
	Fabric       *Fabric                  // Fabric joins the device with others. Required.
	LinkLayer    LinkLayer                // LinkLayer of the one port.
	CQEVersion   int                      // CQEVersion is 0 or 1: whether CQEs carry user indexes.
	Trace        func(TraceEvent)         // Trace takes what happens, if not nil. The lock is held: it must not call back.
	Receive      func([]byte) []Delivery  // Receive says which RQs (CREATE_RQ) an Ethernet frame goes to. Nil drops it. The lock is held: it must not call back.
	Count        func(Way, func() []byte) // Count sees each packet of RoCE v2; the function makes a frame of it, nil if the packet has no such form. The lock is held.
	DeviceMemory int                      // DeviceMemory is how many bytes of its own the device has.
	OwnAddress   func() uint64            // OwnAddress says at which bus address that memory begins. Nil: there is no such memory.
	MaxQPs       int                      // MaxQPs limits QPs and SQs; 0 is 16384. Of everything else there may be 16 times as many, or as Traits says.
	Strict       bool                     // Strict: bits that are reserved, and that a card does not read, must be 0.
	Traits       Traits                   // Traits are the choices in which cards differ.
	Link         Link                     // Link is what the port of an InfiniBand device is connected with; nil is the wire that joins all.
}

// Number space. QPNs and SQNs share one, since a doorbell carries either. Each kind of
// object begins elsewhere, so that a number used in place of another is found out.
const (
	firstQPN  = 0x000040
	firstCQN  = 0x000400
	firstMKey = 0x002800
	firstPD   = 0x000010
	firstSRQN = 0x000800
	firstRQN  = 0x010000
	firstXRCD = 0x000020
	firstDCTN = 0x020000
	maxNumber = 0xffffff
)

// Memory keys that always exist (QUERY_SPECIAL_CONTEXTS).
const (
	// TerminateLKey ends a scatter list (MLX5_INVALID_LKEY in mlx5/qp.h).
	TerminateLKey = 0x100
	// NullLKey stands behind an indirect key where nothing is yet: a page fault.
	NullLKey = 0x00001700
	// DumpFillLKey reads as zeros, and swallows what is written.
	DumpFillLKey = 0x00001900
)

// GID is an entry of the GID table.
type GID struct {
	Addr    [16]byte // Addr is the GID.
	MAC     [6]byte  // MAC is the source MAC for it, on Ethernet; all zero is the port's.
	RoCEv2  bool     // RoCEv2: packets are UDP. Otherwise RoCE v1, or InfiniBand.
	VLAN    bool     // VLAN says that VLANID counts.
	VLANID  uint16   // VLANID of packets with this GID.
	Invalid bool     // Invalid: the entry is empty.
}

// PortState is the state of the one port.
type PortState struct {
	State  LinkState // State is the state of the link. Zero is as LinkDown.
	LID    uint16    // LID is the base LID.
	LMC    uint8     // LMC is log2 of how many LIDs the port has.
	SMLID  uint16    // SMLID is the subnet manager's. It is kept for the caller.
	MAC    [6]byte   // MAC of the port, on Ethernet.
	MTU    uint8     // MTU is the active one, 1 to 5; 0 is 4096 bytes.
	GIDs   []GID     // GIDs is the table.
	PKeys  []uint16  // PKeys is the table.
	GUID   uint64    // GUID of the port. It is kept for the caller.
	Subnet uint64    // Subnet is the prefix of GIDs. It is kept for the caller.
}
