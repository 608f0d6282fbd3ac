// Package efa encodes and decodes the memory that an Elastic Fabric Adapter (EFA) of AWS shares with a
// program: send, receive and completion queues, doorbells, and the driver's part of the kernel's commands
// (rdma/efa-abi.h). It takes and returns plain numbers; package uverbs gives them the meaning of verbs.
//
// The package serves package uverbs and carries no compatibility promise.
//
// # Queues
//
// A [SendQueue] is a ring of requests of 64 or 128 bytes in memory of the device, which is mapped
// write-combining and never read. A request is built in memory and copied as a whole. A [RecvQueue] is a ring
// of descriptors in memory that the kernel allocates, one for each scatter/gather entry of a receive. A
// [CompQueue] is one ring or more, in which the device writes completions; a phase bit in each says whether it
// is new. Requests complete in any order.
//
//	ok := sq.Room(1)                       s := sq.Slot(0)
//	s.Start(id, efa.Send, peer)
//	err = s.AddSGE(addr, length, lkey)     s.Finish()
//	sq.Publish(1)                          // copies the request and rings the doorbell
//
//	c, ok := cq.Ring().Look()
//	id, op, length, ok := sq.Complete(c.ReqID())
//	cq.Ring().Advance()                    cq.Release()
//
// # Request IDs
//
// A request has an ID of 16 bits: the index of a slot, which is used again once the request has completed,
// and above it a generation. A completion is accepted only if its ID belongs to a request that is published,
// in the current generation, and has not completed. So a device cannot complete a request twice, and a
// completion from before a reset is refused. That of a WRITE which takes no receive has no ID, and may be from before.
//
// # Differences
//
// A program that uses package uverbs on efa should know:
//
//   - A place in the send or receive queue is free when as many requests have completed as were posted
//     before, whichever they are.
//   - Every request has a completion. That of a successful one with the flag Quiet is for package uverbs alone, which
//     drops it: a program gets none, as on other devices without SendSignaled. It takes a place in the CQ all the
//     same, so that a CQ must be as large as all queues that use it, and it raises an event.
//   - Whether a request completes that is posted while the QP is in state ERR is not documented: libefa posts
//     none there, and package uverbs does as on other devices, which flush it. Do not wait for it without a limit.
//   - A receive needs a scatter/gather entry. libefa accepts one without, and writes nothing: it never
//     completes. Whether devices accept an entry of 0 bytes without a key is not documented.
//   - An entry of a receive counts for at most 65,535 bytes, as in libefa; no message is as long.
//   - The operation of a completed send comes from the queue's record of the request. libefa takes it from the
//     completion, and reports a READ as a SEND.
//   - An lkey above 24 bits is refused. libefa cuts it.
//   - Processing hints and request IDs of 64 bits are not used. Nor are GIDs of senders without an AH
//     (EFADV_WC_EX_WITH_SGID): uverbs.WC would be longer on all devices, for the first message of a peer, which can
//     have the peer's Endpoint itself.
//
// # Bytes
//
// Everything that the device reads or writes is little-endian, as the host must be. The layouts come from
// efa_io_defs.h in rdma-core and in the kernel. Nothing that the device writes is trusted: an index is compared
// before use, so that garbage in a completion is refused or, at worst, gives a wrong result to the program that
// owns the queue. The package needs the barriers of package mmio; see mmio.Supported.
package efa
