package memory

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// A PD is the number of a protection domain on the device. 0 is none.
type PD uint32

// A QPRef names a QP and its PD.
type QPRef struct {
	PD  PD
	QPN uint32
}

// Access is a set of rights (enum ib_uverbs_access_flags).
type Access uint32

// The rights that mean something to a software device.
const (
	LocalWrite      Access = abi.IB_UVERBS_ACCESS_LOCAL_WRITE
	RemoteWrite     Access = abi.IB_UVERBS_ACCESS_REMOTE_WRITE
	RemoteRead      Access = abi.IB_UVERBS_ACCESS_REMOTE_READ
	RemoteAtomic    Access = abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC
	MWBind          Access = abi.IB_UVERBS_ACCESS_MW_BIND
	ZeroBased       Access = abi.IB_UVERBS_ACCESS_ZERO_BASED
	OnDemand        Access = abi.IB_UVERBS_ACCESS_ON_DEMAND
	HugeTLB         Access = abi.IB_UVERBS_ACCESS_HUGETLB
	FlushGlobal     Access = abi.IB_UVERBS_ACCESS_FLUSH_GLOBAL
	FlushPersistent Access = abi.IB_UVERBS_ACCESS_FLUSH_PERSISTENT
	optional        Access = abi.IB_UVERBS_ACCESS_OPTIONAL_RANGE
)

// Rights that the kernel and rxe know.
const (
	// IB_ACCESS_SUPPORTED of include/rdma/ib_verbs.h.
	coreSupported = FlushPersistent<<1 - 1 | optional
	// RXE_ACCESS_SUPPORTED_MR and RXE_ACCESS_SUPPORTED_MW of rxe_verbs.h.
	mrSupported = RemoteRead | RemoteWrite | RemoteAtomic | LocalWrite | MWBind | OnDemand | FlushGlobal | FlushPersistent | optional
	mwSupported = mrSupported | ZeroBased
)

// check returns what the kernel answers to the rights of an MR before it asks the driver
// (ib_check_mr_access). The device has on-demand paging and flushes.
func (a Access) check() syscall.Errno {
	if a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0 || a&^coreSupported != 0 {
		return syscall.EINVAL
	}
	return 0
}

// writable reports whether an MR with these rights needs memory that can be written
// (ib_access_writable).
func (a Access) writable() bool {
	return a&(LocalWrite|RemoteWrite|RemoteAtomic|MWBind) != 0
}

// A Fault says why memory was not accessed. The zero value is success.
type Fault uint8

// The faults. Where rxe answers all but MemoryGone and Misaligned alike, they still tell what was wrong.
const (
	OK         Fault = iota
	BadKey           // no MR and no window has the key, or it belongs to another PD or QP
	NoAccess         // the MR or the window does not have the right
	OutOfRange       // the MR or the window does not have all of the addresses
	Misaligned       // an atomic operation on an address that is not a multiple of 8
	MemoryGone       // the memory cannot be accessed: the program unmapped or protected it
)

// String returns the name of the fault.
func (f Fault) String() string {
	switch f {
	case OK:
		return "OK"
	case BadKey:
		return "BadKey"
	case NoAccess:
		return "NoAccess"
	case OutOfRange:
		return "OutOfRange"
	case Misaligned:
		return "Misaligned"
	}
	return "MemoryGone"
}
