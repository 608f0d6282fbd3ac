package mmio

import "sync/atomic"

// still is loaded where only the compiler has to be stopped; nobody stores it.
var still uint32

// ToDevice orders all earlier stores to memory before all later ones, as a
// device sees them: it stands between a work queue entry and the doorbell that
// makes the device read it (udma_to_device_barrier).
//
// x86 keeps a store to write-back memory before any later store to write-back or uncached
// memory, so only the compiler has to be stopped, and it moves no access of memory across an
// atomic load. Write-combining memory is what StartWC is for. rdma-core's
// udma_to_device_barrier is empty too.
func ToDevice() { atomic.LoadUint32(&still) }

// FromDevice orders all earlier loads of memory that a device writes before
// all later ones: it stands between the bit that says an entry is there and the
// entry (udma_from_device_barrier). One for a batch of entries is enough.
//
// x86 keeps loads of write-back memory in their order, which rings are in (Intel's Software
// Developer's Manual, volume 3, "Memory Ordering": reads are not reordered with other reads).
// So only the compiler has to be stopped, as in the kernel, whose dma_rmb is no instruction
// on x86 either and is what mlx5's Ethernet driver has between the owner bit of a completion
// and the rest. rdma-core's udma_from_device_barrier is an LFENCE, which has the CPU wait for all
// earlier loads; it costs several nanoseconds each time.
func FromDevice() { atomic.LoadUint32(&still) }
