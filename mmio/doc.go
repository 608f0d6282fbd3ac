// Package mmio maps memory that a program shares with a device or with the kernel, reads and writes
// ring indices, and orders stores and loads so that the other side sees them in the right order. It
// serves package uverbs and the packages below it, one for each driver, and carries no
// compatibility promise.
//
// # Mappings
//
// A [Region] is one mmap: of a character device ([Map]), or of fresh memory outside the Go heap
// ([MapAnonymous], [MapHeap]). The garbage collector neither moves nor frees it while a device still writes to
// it. A device in the same process may have its rings in Go memory instead ([GoMemory]), or in memory
// that neither side unmaps ([Borrow]).
//
// # Two kinds of sharing
//
// The rings of a software device are ordinary memory that the kernel reads and writes on another
// processor. Their indices are [Index] values, which go through sync/atomic.
//
// The registers and queues of a real device are different. A register must see exactly the stores
// that the program makes, so sync/atomic cannot be used: its store is a locked read-modify-write on
// amd64. Ordering ordinary memory and registers needs barriers that Go does not have. This package
// has them, in assembly for amd64 and arm64:
//
//   - the barriers [ToDevice], [FromDevice], [StartWC] and [FlushWC];
//   - the stores [Store64] and [Copy64], and [StoreWC] and [CopyWC], which are a store between
//     StartWC and FlushWC, and [CopyAndRing], which stores to a doorbell behind that;
//   - [StoreWords] and [LoadWords], for memory of the device itself.
//
// On other architectures the package compiles, but [Supported] is false, and a driver for real
// hardware must refuse to open its device.
//
// [Lock], [Word] and Index are also for state next to a ring that goroutines of the program share.
// They cost an instruction or two, and the race detector understands them.
//
// # Memory order
//
// Each line shows the steps of one side. After the arrow is what that side can rely on.
//
//	kernel ring, producing:  write entry;  index.Release(p)
//	kernel ring, kernel:     p = smp_load_acquire(index);  read entry  => sees all of the entry
//
//	kernel ring, consuming:  p = index.Acquire();  read entry
//	kernel ring, kernel:     write entry;  smp_store_release(index, p) => sees all of the entry
//
//	device queue, posting:   write WQE;  ToDevice;  write doorbell record;  StartWC;  Store64(register)
//	device queue, device:    sees the register write, reads record, reads WQE => both are complete
//
//	device queue, polling:   read owner bit;  FromDevice;  read the rest of the CQE
//	device queue, device:    writes the CQE, its owner bit last          => sees all of the CQE
//
//	write combining:         Copy64(register);  FlushWC;  Copy64(register)
//	write combining, device: => two writes of 64 bytes, the first one soon
//
// # Performance
//
//   - On amd64 an index is released with a plain store after an atomic load, which the compiler
//     inlines. An atomic store is an XCHG, which waits until all earlier stores have left the
//     processor.
//   - Where only the compiler must keep the order, a barrier is an inlined atomic load and not a
//     call. [FromDevice] is such a barrier on amd64, since x86 keeps loads of ordinary memory in
//     order.
//   - A [Lock] takes one atomic instruction and is released with a store. A sync.Mutex takes two
//     atomic instructions, and every call that posts or polls would pay for them.
//   - The tests have benchmarks of barriers, stores, locks and indices. "make hotpaths" measures
//     posting and polling on the rings of each driver.
//
// The package is for Linux on 64-bit hosts.
package mmio
