package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// FRMRKey are the properties that all memory regions of a pool have in common. It is a plain value and
// can be compared.
type FRMRKey struct {
	VendorKey   uint64 // VendorKey has bits that only the driver defines.
	DMABlocks   uint64 // DMABlocks is the number of pages that a region can have; at least 1.
	AccessFlags uint32 // AccessFlags are the access rights (enum ib_access_flags) that cannot be changed later; mlx5 drops the others.
	ATS         bool   // ATS means that the device asks the IOMMU for addresses (address translation service).
}

// String returns the key in the form that "rdma resource show frmr_pools" uses, in hexadecimal:
// VendorKey:DMABlocks:AccessFlags:ATS.
func (k FRMRKey) String() string {
	return fmt.Sprintf("%x:%x:%x:%d", k.VendorKey, k.DMABlocks, k.AccessFlags, boolByte(k.ATS))
}

// ParseFRMRKey returns the key with the given text, which has the form of [FRMRKey.String].
func ParseFRMRKey(text string) (FRMRKey, error) {
	bad := func(what string) (FRMRKey, error) {
		return FRMRKey{}, &Error{Op: "read the key of an FRMR pool", Err: fmt.Errorf("%q: %w", text, fs.ErrInvalid), Hint: what}
	}
	parts := strings.Split(text, ":")
	if len(parts) != 4 {
		return bad("allowed are four hexadecimal numbers VENDOR_KEY:DMA_BLOCKS:ACCESS_FLAGS:ATS, such as 0:100:0:0")
	}
	var n [4]uint64
	for i, f := range []struct {
		name     string
		min, max uint64
	}{
		{"VENDOR_KEY", 0, math.MaxUint64}, {"DMA_BLOCKS", 1, math.MaxUint64}, {"ACCESS_FLAGS", 0, math.MaxUint32}, {"ATS", 0, 1},
	} {
		v, err := strconv.ParseUint(parts[i], 16, 64)
		if err != nil || v < f.min || v > f.max {
			return bad(fmt.Sprintf("%s is %q, allowed are %x to %x in hexadecimal", f.name, parts[i], f.min, f.max))
		}
		n[i] = v
	}
	return FRMRKey{VendorKey: n[0], DMABlocks: n[1], AccessFlags: uint32(n[2]), ATS: n[3] == 1}, nil
}

// FRMRPool is a pool of fast-registered memory regions. A driver takes a memory region from a pool and
// puts it back when the program no longer needs it, which is faster than to make one in the device. It is a
// plain value.
type FRMRPool struct {
	Key       FRMRKey // Key is what the memory regions have in common; it identifies the pool.
	KernelKey uint64  // KernelKey has bits of the key that only the kernel sets; such pools need [ListOptions.Driver].
	Free      uint32  // Free is the number of memory regions in the pool that are not in use.
	InUse     uint64  // InUse is the number of memory regions that programs use.
	MaxInUse  uint64  // MaxInUse is the largest value that InUse has had.
	Pinned    uint32  // Pinned is the number of memory regions that the pool keeps, see [PinFRMRs].
}

// frmrPools is the list of pools of a device, which have no number.
var frmrPools = resource[FRMRPool]{kind{name: "FRMR pools", cmd: abi.RDMA_NLDEV_CMD_FRMR_POOLS_GET, table: abi.RDMA_NLDEV_ATTR_FRMR_POOLS,
	entry: abi.RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY, need: feature{name: "FRMR pools", since: frmrSince}}, decodeFRMRPool}

// frmrSince is the first kernel with FRMR pools.
var frmrSince = Version{7, 1}

func decodeFRMRPool(m *message) FRMRPool {
	m.need(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY, abi.RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES, abi.RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE,
		abi.RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE, abi.RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES)
	p := FRMRPool{
		Free:     m.u32(abi.RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES),
		InUse:    m.u64(abi.RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE),
		MaxInUse: m.u64(abi.RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE),
		Pinned:   m.u32(abi.RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES),
	}
	if m.err != nil {
		return p
	}
	k := parse(m.attrs[abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY])
	k.need(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS, abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS,
		abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY, abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS)
	p.Key = FRMRKey{
		VendorKey:   k.u64(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY),
		DMABlocks:   k.u64(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS),
		AccessFlags: k.u32(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS),
		ATS:         k.flag(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS),
	}
	p.KernelKey = k.u64(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_KERNEL_VENDOR_KEY)
	m.err = k.err
	return p
}

// FRMRPools returns the pools of memory regions of a device, as "rdma resource show frmr_pools" does. A
// driver without pools has an empty list. With [ListOptions.Driver] it includes those whose key has a
// KernelKey. Linux 7.1; on older kernels the error is a [FeatureError].
func FRMRPools(dev Device, o ListOptions) ([]FRMRPool, error) {
	return list(system, dev, frmrPools, o.attrs()...)
}

// PinFRMRs makes the pool with the given key keep n memory regions, those that are in use included, so
// that programs need not wait for the device, as "rdma resource set frmr_pools dev DEV pinned KEY N"
// does. It makes as many as there are too few, and the pool itself if there is none. With 0 the pool
// keeps none: the kernel frees those that nothing has used for the aging period. It needs CAP_NET_ADMIN
// and Linux 7.1. The error is a [FeatureError] if the kernel or the driver has no pools, or does not
// allow the key.
func PinFRMRs(dev Device, key FRMRKey, n uint32) error { return system.pinFRMRs(dev, key, n) }

func (c *client) pinFRMRs(dev Device, key FRMRKey, n uint32) error {
	op := fmt.Sprintf("pin %d memory regions with key %s of", n, key)
	if key.DMABlocks == 0 {
		return &Error{Op: op, Device: dev.Name, Err: fmt.Errorf("DMABlocks is 0: %w", fs.ErrInvalid), Hint: "allowed is 1 and more"}
	}
	nested := nestedAttr(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY)
	for _, a := range []*rtAttr{
		u8Attr(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS, boolByte(key.ATS)),
		u32Attr(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS, key.AccessFlags),
		u64Attr(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY, key.VendorKey),
		u64Attr(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS, key.DMABlocks),
	} {
		nested.AddChild(a)
	}
	return c.setFRMR(op, "FRMR pool with this key", dev, u32Attr(abi.RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES, n), nested)
}

// SetFRMRAging sets after which time without use the kernel frees memory regions of the pools of a
// device, as "rdma resource set frmr_pools dev DEV aging SECONDS" does. The period is a number of whole
// seconds from 1 to 2^32-1; the kernel starts with 60 s, and does not report it. It needs CAP_NET_ADMIN
// and Linux 7.1. The error is a [FeatureError] if the kernel or the driver has no pools.
func SetFRMRAging(dev Device, period time.Duration) error { return system.setFRMRAging(dev, period) }

func (c *client) setFRMRAging(dev Device, period time.Duration) error {
	const op = "set the aging period of FRMR pools of"
	seconds := period / time.Second
	if seconds < 1 || seconds > math.MaxUint32 || period%time.Second != 0 {
		return &Error{Op: op, Device: dev.Name, Err: fmt.Errorf("period is %v: %w", period, fs.ErrInvalid),
			Hint: fmt.Sprintf("allowed are whole seconds from 1 to %d", uint32(math.MaxUint32))}
	}
	return c.setFRMR(op, "FRMR pools", dev, u32Attr(abi.RDMA_NLDEV_ATTR_FRMR_POOLS_AGING_PERIOD, uint32(seconds)))
}

// setFRMR sends RDMA_NLDEV_CMD_FRMR_POOLS_SET. A driver without pools and an old kernel both answer with
// EINVAL; the list, which is empty for such a driver, tells them apart.
func (c *client) setFRMR(op, what string, dev Device, attrs ...*rtAttr) error {
	cmd := command{op: op, dev: dev, need: feature{name: what, since: frmrSince}}
	err := c.run(cmd, func(s *session, index uint32) error {
		return s.set(abi.RDMA_NLDEV_CMD_FRMR_POOLS_SET, append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index))...)
	})
	f, ok := errors.AsType[*FeatureError](err)
	if !ok || !errors.Is(err, syscall.EINVAL) {
		return err
	}
	if _, lerr := list(c, dev, frmrPools); lerr == nil {
		f.Since, f.Driver = Version{}, dev.DriverID.String()
	}
	return err
}
