package mmio

import "sync/atomic"

// compilerBarrier is loaded where only the compiler must keep the order of memory accesses. Nothing
// stores it.
var compilerBarrier uint32

// ToDevice orders all earlier stores to memory before all later ones, as a device sees them
// (udma_to_device_barrier). It belongs between a work queue entry and the doorbell that makes the
// device read it.
//
// x86 keeps a store to write-back memory before any later store to write-back or uncached memory.
// So only the compiler must keep the order, and it does not move memory accesses across an atomic
// load. Write-combining memory needs [StartWC]. rdma-core's udma_to_device_barrier is empty too.
func ToDevice() { atomic.LoadUint32(&compilerBarrier) }

// FromDevice orders all earlier loads of memory that a device writes before all later ones
// (udma_from_device_barrier). It belongs between the bit that marks an entry as valid and the rest
// of the entry. One barrier for a batch of entries is enough.
//
// x86 does not reorder loads of write-back memory, which rings are in (Intel's Software Developer's
// Manual, volume 3, "Memory Ordering": reads are not reordered with other reads). So only the
// compiler must keep the order. The kernel does the same: its dma_rmb is no instruction on x86
// either, and mlx5's Ethernet driver has it between the owner bit of a completion and the rest.
// rdma-core's udma_from_device_barrier is an LFENCE, which waits for all earlier loads and costs
// several nanoseconds.
func FromDevice() { atomic.LoadUint32(&compilerBarrier) }
