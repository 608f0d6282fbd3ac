package uverbs

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Access says what a memory region may be used for, or what a QP permits its peer (enum
// ib_uverbs_access_flags, rdma/ib_user_ioctl_verbs.h).
type Access uint32

// Access rights. Local reading is always permitted.
const (
	AccessLocalWrite   Access = abi.IB_UVERBS_ACCESS_LOCAL_WRITE   // the device may write for this side: receives, RDMA READ (IBV_ACCESS_LOCAL_WRITE)
	AccessRemoteWrite  Access = abi.IB_UVERBS_ACCESS_REMOTE_WRITE  // the peer may RDMA WRITE; needs AccessLocalWrite (IBV_ACCESS_REMOTE_WRITE)
	AccessRemoteRead   Access = abi.IB_UVERBS_ACCESS_REMOTE_READ   // the peer may RDMA READ; siw permits it always (IBV_ACCESS_REMOTE_READ)
	AccessRemoteAtomic Access = abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC // the peer may use atomics; needs AccessLocalWrite (IBV_ACCESS_REMOTE_ATOMIC)
)

// Rights and properties that only an MR has.
const (
	// AccessMWBind permits binding memory windows to the region (IBV_ACCESS_MW_BIND).
	AccessMWBind Access = abi.IB_UVERBS_ACCESS_MW_BIND
	// AccessZeroBased makes the addresses in the region begin at 0 (IBV_ACCESS_ZERO_BASED). If the
	// driver does not support the flag, registering at address 0 may have the same effect.
	AccessZeroBased Access = abi.IB_UVERBS_ACCESS_ZERO_BASED
	// AccessOnDemand makes the device page memory in on demand instead of pinning it
	// (IBV_ACCESS_ON_DEMAND). The device must support it. Do not use it with rxe: in Linux 7.2 rxe
	// places every packet at the start of a page, and with an IOVA other than the memory's address
	// it crashes the kernel.
	AccessOnDemand Access = abi.IB_UVERBS_ACCESS_ON_DEMAND
	// AccessHugeTLB tells the driver that the memory consists of huge pages (IBV_ACCESS_HUGETLB).
	// It is rarely needed, because drivers detect them. It excludes AccessOnDemand, which works
	// with huge pages alone: with both, mlx5 of Linux 7.2 gives the device wrong addresses behind
	// the first huge page. There ib_umem_odp_map_dma_and_lock stores an entry for each small
	// page, and populate_mtt (drivers/infiniband/hw/mlx5/odp.c) reads one for each huge page. Linux
	// 6.1 is right, but distributions backport the driver, so the version of a kernel says nothing.
	AccessHugeTLB Access = abi.IB_UVERBS_ACCESS_HUGETLB
	// AccessFlushGlobal permits the peer to flush its writes so that they are visible to all
	// processors; Linux 6.2 (IBV_ACCESS_FLUSH_GLOBAL).
	AccessFlushGlobal Access = abi.IB_UVERBS_ACCESS_FLUSH_GLOBAL
	// AccessFlushPersistent permits the peer to flush its writes to persistent memory, which the
	// region must consist of; Linux 6.2 (IBV_ACCESS_FLUSH_PERSISTENT).
	AccessFlushPersistent Access = abi.IB_UVERBS_ACCESS_FLUSH_PERSISTENT
	// AccessRelaxedOrdering permits the device to reorder writes to the region
	// (IBV_ACCESS_RELAXED_ORDERING). Like all bits in 0x3ff00000 it is optional: a kernel, driver
	// or device that does not support it ignores it.
	AccessRelaxedOrdering Access = abi.IB_UVERBS_ACCESS_RELAXED_ORDERING
)

// accessPeer are the rights that every device supports. The others are the rights that a QP, an MR
// and an MR of a dma-buf accept, and the optional bits.
const (
	accessQP     = accessPeer | AccessMWBind | AccessFlushGlobal | AccessFlushPersistent
	accessPeer   = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
	accessMR     = accessPeer | AccessMWBind | AccessZeroBased | AccessOnDemand | AccessHugeTLB | AccessFlushGlobal | AccessFlushPersistent | accessWishes
	accessDMABuf = accessPeer | AccessRelaxedOrdering
	accessWishes = Access(abi.IB_UVERBS_ACCESS_OPTIONAL_RANGE)
)

// accessNames are the names of the bits.
var accessNames = []struct {
	bit  Access
	name string
}{
	{AccessLocalWrite, "LOCAL_WRITE"},
	{AccessRemoteWrite, "REMOTE_WRITE"},
	{AccessRemoteRead, "REMOTE_READ"},
	{AccessRemoteAtomic, "REMOTE_ATOMIC"},
	{AccessMWBind, "MW_BIND"},
	{AccessZeroBased, "ZERO_BASED"},
	{AccessOnDemand, "ON_DEMAND"},
	{AccessHugeTLB, "HUGETLB"},
	{AccessFlushGlobal, "FLUSH_GLOBAL"},
	{AccessFlushPersistent, "FLUSH_PERSISTENT"},
	{AccessRelaxedOrdering, "RELAXED_ORDERING"},
}

// String returns the names of the rights, such as "LOCAL_WRITE|REMOTE_READ".
func (a Access) String() string {
	if a == 0 {
		return "local reading only"
	}
	var names []string
	for _, n := range accessNames {
		if a&n.bit != 0 {
			names = append(names, n.name)
			a &^= n.bit
		}
	}
	if a != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(a)))
	}
	return strings.Join(names, "|")
}

// accessWriting are the rights that need writable memory (ib_access_writable,
// include/rdma/ib_verbs.h).
const accessWriting = AccessLocalWrite | AccessRemoteWrite | AccessRemoteAtomic | AccessMWBind
