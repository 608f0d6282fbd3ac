// Package mlx5 is the memory that a ConnectX adapter shares with a program: send, receive
// and completion queues, doorbell records, the registers of a user access region (UAR), and
// the driver's part of the kernel's commands. It knows the bytes; what a verb means is for
// package uverbs, which is its user.
//
// # Queues
//
// All queues are memory of the program (see mmio.MapAnonymous) that the kernel pins and the
// device reads and writes. A [SendQueue] is a ring of 64-byte blocks; a work queue entry
// (WQE) has one or more of them and may go on at the ring's start. A [RecvQueue] is a ring
// of entries of one size, a [SharedRecvQueue] a linked list of them. A [CompQueue] is a ring
// in which the device writes completions (CQEs), with a bit that says whose turn it is.
//
// # Who tells whom
//
// A program tells the device of new entries by a doorbell record, a big-endian counter in
// memory (see [Record]), and of new sends by a register as well (see [Register]). The order
// of these stores is the whole point; each kind of doorbell is one function with numbered
// steps, in doorbell.go.
//
// # Performance
//
//   - One barrier orders all completions of a batch: [CompQueue.Avail] looks at the bits of whose turn
//     it is first, and the rest is read behind it. The record is stored once for a batch, too.
//   - A list of sends has one doorbell: a record and 8 bytes to a register. A single WQE of more than 16
//     bytes goes along with it (BlueFlame), which saves the device a read.
//   - Each doorbell record has a cache line of its own, so that queues of different threads do not
//     take it from one another.
//   - How much room there is in a send queue is a copy of the poller's count, fetched anew only when
//     it does not suffice; counters between who posts and who completes are stored without a
//     locked instruction.
//   - What messages about failures need of a work request is stored in words that are whole, so
//     that nobody who posts takes a lock for it.
//
// # Bytes
//
// Everything that the device reads or writes is big-endian. The offsets and values are those
// of the kernel's include/linux/mlx5/{qp,cq,device,mlx5_ifc}.h and of struct mlx5_wqe_* in
// rdma-core's mlx5dv.h, and are named in layout.go. Nothing that the device writes is
// believed: an index is masked or compared before it is used, so that garbage in a CQE
// makes an error, and at worst a wrong result for the program that owns the queue.
//
// # What is not supported
//
// CQE compression, signatures of WQEs, striding receive queues and enhanced multi-packet
// WQEs are never asked for. Hosts are 64-bit and little-endian, and have the barriers of
// package mmio; see mmio.Supported.
package mlx5
