// Package mlx5 encodes and decodes the memory that a ConnectX adapter shares with a program: send,
// receive and completion queues, doorbell records, the registers of a user access region (UAR), and
// the driver's part of the kernel's commands. It takes and returns plain numbers; package uverbs
// gives them the meaning of verbs.
//
// The package serves package uverbs and carries no compatibility promise.
//
// # Queues
//
// All queues are memory of the program (see mmio.MapAnonymous) that the kernel pins and the device
// reads and writes. A [SendQueue] is a ring of 64-byte blocks; a work queue entry (WQE) takes one
// or more of them and may wrap around the end of the ring. A [RecvQueue] is a ring of entries of
// one size, and a [SharedRecvQueue] is a linked list of them. A [CompQueue] is a ring in which the
// device writes completions (CQEs). An owner bit in each CQE says whether it is new.
//
// # Doorbells
//
// A program tells the device about new entries with a doorbell record, a big-endian counter in
// memory (see [Record]). For new sends it also writes to a register (see [Register]). The order of
// these stores is critical. Each kind of doorbell is one function with numbered steps, in
// doorbell.go.
//
// # Differences
//
// mlx5 is for ConnectX-4 and later and BlueField adapters, on InfiniBand and RoCE. A program that
// uses package uverbs on mlx5 should know:
//
//   - A place in the send queue is free when the completion of its request, or of a later one, has
//     been polled. So at least one request in each queue's length must have the flag Signaled.
//   - With uverbs.QPOptions.OutOfOrder the receive queue has twice the entries. An entry is used again when
//     all entries before it have completed, so a receive that stays for long can fill the queue early.
//   - Closing or resetting a QP removes its completions from its CQs. No goroutine may post to a QP
//     while it is reset.
//   - A CQ that is full when another completion arrives is lost, together with its QPs;
//     uverbs.Device.WaitEvent reports it.
//   - CQ.Notify raises an event at once if there is a completion that was not polled, and no event
//     until CompChannel.Wait has read the event before.
//   - An SRQ cannot be resized, and a QP never enters the state SQD.
//   - The first 4 QPs of an open device have a register each, and the following ones share 12. A
//     thread domain (uverbs.TD) has a register for its QPs alone, if one is left.
//   - An address handle costs one command of the kernel and no query, on InfiniBand and on RoCE.
//     libmlx5 reads the type of the GID from sysfs in addition on RoCE, and needs no command on InfiniBand;
//     there the kernel's command checks the attributes and reports what is wrong with them.
//   - Device memory (uverbs.DM) is mapped when the processor first reads or writes it, in words of
//     4 bytes.
//   - RDMAABI=write cannot allocate registers. The kernel then chooses from a few that exist from
//     the start.
//
// An adapter with registers or completions of an unknown kind is not opened; the FeatureError names
// the kind. The library was tested on a model of a card: test/hca/README.md says what that cannot
// prove.
//
// # Performance
//
//   - One barrier orders all completions of a batch: [CompQueue.Avail] looks at the owner bits
//     first, and everything else is read after the barrier. The doorbell record is stored once for
//     a batch, too.
//   - A list of sends has one doorbell: a record and 8 bytes to a register. A single WQE of more
//     than 16 bytes is written to the register itself (BlueFlame), which saves the device a read.
//   - Each doorbell record has a cache line of its own, so that queues of different threads do not
//     contend for it.
//   - A send queue knows how much room it has from a copy of the poller's count, which it reads
//     again only when the copy is not enough. The counters that the poster and the poller share are
//     stored without a locked instruction.
//   - Messages about failures need some words of each work request. They are stored as whole words,
//     so that posting takes no lock for them.
//
// # Bytes
//
// Everything that the device reads or writes is big-endian. The offsets and values come from the
// kernel's include/linux/mlx5/{qp,cq,device,mlx5_ifc}.h and struct mlx5_wqe_* in rdma-core's
// mlx5dv.h, and layout.go names them. Nothing that the device writes is trusted: an index is masked
// or compared before use, so that garbage in a CQE causes an error or, at worst, a wrong result for
// the program that owns the queue.
//
// # What is not supported
//
// CQE compression, WQE signatures, striding receive queues and enhanced multi-packet WQEs are never
// requested. The host must be 64-bit and little-endian and have the barriers of package mmio; see
// mmio.Supported.
package mlx5
