// Package mmio is memory that a program shares with a device or with the
// kernel: how it is mapped, how ring indices are read and written, and in which
// order the other side sees what was stored. It knows no verbs; its users are
// the packages below it, one per driver, and package uverbs.
//
// # Mappings
//
// A [Region] is one mmap: of a device file ([Map]), or of fresh memory outside
// the Go heap ([MapAnonymous]), which the garbage collector neither moves nor
// frees while a device still writes to it.
//
// # Two kinds of sharing
//
// What the kernel shares (the rings of a software device) is ordinary memory of
// another thread of execution. Its indices are [Index] values, which go through
// sync/atomic.
//
// What a device shares needs more and less than that: device registers must see
// exactly the stores that were asked for, so sync/atomic is out (its store is a
// locked read-modify-write on amd64), and the order between ordinary memory and
// registers is a matter of barriers that Go does not have. Those are [ToDevice],
// [FromDevice], [StartWC] and [FlushWC], with the stores [Store64] and [Copy64], and
// [StoreWC] and [CopyWC], which are a store between those two, and [StoreWords] and [LoadWords]
// for memory that a device has of its own, in assembly for amd64 and
// arm64, except for those that are no instruction. Elsewhere [Supported] is false, the package
// compiles, and a driver for real hardware must refuse to open its device.
//
// What goroutines of the program share beside a ring is for [Lock], [Word] and Index: they
// cost an instruction or two, and the race detector understands them.
//
// # The orders that are relied on
//
// Each line is one side; the promise is on the right.
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
// What was found by profiling, and is why things are as they are:
//
//   - On amd64 an index is released by a plain store behind an atomic load, which is inlined. An
//     atomic store is an XCHG there, which waits until all earlier stores have left the processor.
//   - Barriers that are no instruction are no call either: an atomic load stops the compiler just as
//     well. [FromDevice] is one of them on amd64, as x86 keeps loads of ordinary memory in order.
//   - A [Lock] is taken by one atomic instruction and given back by a store; a sync.Mutex has two atomic
//     ones, and it is taken by every call that posts or polls.
//   - Benchmarks of barriers, stores, locks and indices are in the tests; "make hotpaths" times
//     posting and polling on the rings of each driver.
//
// Package mmio is for Linux on 64-bit hosts.
package mmio
