package uverbs

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Access says what a memory region may be used for, and what a QP lets its peer do
// (enum ib_uverbs_access_flags, rdma/ib_user_ioctl_verbs.h).
type Access uint32

// Access rights. Local reading is always allowed.
const (
	AccessLocalWrite   Access = abi.IB_UVERBS_ACCESS_LOCAL_WRITE   // the device may write to it: receives, RDMA READ (IBV_ACCESS_LOCAL_WRITE)
	AccessRemoteWrite  Access = abi.IB_UVERBS_ACCESS_REMOTE_WRITE  // the peer may RDMA WRITE; needs AccessLocalWrite (IBV_ACCESS_REMOTE_WRITE)
	AccessRemoteRead   Access = abi.IB_UVERBS_ACCESS_REMOTE_READ   // the peer may RDMA READ; on siw it may in any case (IBV_ACCESS_REMOTE_READ)
	AccessRemoteAtomic Access = abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC // the peer may use atomics; needs AccessLocalWrite (IBV_ACCESS_REMOTE_ATOMIC)
)

// Rights and properties that only an MR has.
const (
	// AccessMWBind lets memory windows be bound to the region (IBV_ACCESS_MW_BIND).
	AccessMWBind Access = abi.IB_UVERBS_ACCESS_MW_BIND
	// AccessZeroBased has the region's addresses count from 0 instead of from the
	// memory's address (IBV_ACCESS_ZERO_BASED). A driver that does not know the flag
	// may still register at [IOVAAt](0), which comes to the same.
	AccessZeroBased Access = abi.IB_UVERBS_ACCESS_ZERO_BASED
	// AccessOnDemand has the device take pages when it needs them instead of pinning
	// all of them (IBV_ACCESS_ON_DEMAND). The device must have it. That of rxe is not to be
	// relied on: in Linux 7.2 it puts every packet at the start of a page.
	AccessOnDemand Access = abi.IB_UVERBS_ACCESS_ON_DEMAND
	// AccessHugeTLB tells the driver that the memory is of huge pages
	// (IBV_ACCESS_HUGETLB). Drivers find out by themselves, so it is seldom of use.
	AccessHugeTLB Access = abi.IB_UVERBS_ACCESS_HUGETLB
	// AccessFlushGlobal lets the peer flush what it wrote, so that everybody sees it;
	// Linux 6.2 (IBV_ACCESS_FLUSH_GLOBAL).
	AccessFlushGlobal Access = abi.IB_UVERBS_ACCESS_FLUSH_GLOBAL
	// AccessFlushPersistent lets the peer flush what it wrote to persistent memory,
	// of which the region must be; Linux 6.2 (IBV_ACCESS_FLUSH_PERSISTENT).
	AccessFlushPersistent Access = abi.IB_UVERBS_ACCESS_FLUSH_PERSISTENT
	// AccessRelaxedOrdering lets writes to the region overtake each other. It is a wish,
	// like all of 0x3ff00000: a kernel, driver or device that does not know it ignores
	// it (IBV_ACCESS_RELAXED_ORDERING).
	AccessRelaxedOrdering Access = abi.IB_UVERBS_ACCESS_RELAXED_ORDERING
)

// accessPeer are the rights that every device has, accessQP those that a QP takes,
// accessMR those that an MR does and accessDMABuf those that an MR of a dma-buf does.
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

// checkAccess looks for rights that cannot be had together, or not of this device.
func (d *Device) checkAccess(op string, access, allowed Access) error {
	if access&^allowed != 0 {
		return argErr(op, "access", access, "%s", allowed)
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return argErr(op, "access", access, "LOCAL_WRITE, too, if REMOTE_WRITE or REMOTE_ATOMIC is set")
	}
	attr := &d.attr
	for _, f := range []struct {
		bit   Access
		has   bool
		name  string
		since Version
	}{
		{AccessOnDemand, attr.ODPGeneralCaps&abi.IB_UVERBS_ODP_SUPPORT != 0, "on-demand paging", Version{}},
		{AccessFlushGlobal, attr.CapFlags&abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL != 0, "access FLUSH_GLOBAL", Version{6, 2}},
		{AccessFlushPersistent, attr.CapFlags&abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT != 0, "access FLUSH_PERSISTENT", Version{6, 2}},
	} {
		if access&f.bit != 0 && !f.has {
			return &FeatureError{Feature: f.name, Since: f.since, Driver: d.driver.name()}
		}
	}
	return nil
}

// accessWriting are the rights for which the kernel wants memory that can be written
// (ib_access_writable, include/rdma/ib_verbs.h).
const accessWriting = AccessLocalWrite | AccessRemoteWrite | AccessRemoteAtomic | AccessMWBind
