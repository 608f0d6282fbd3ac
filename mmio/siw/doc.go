// Package siw encodes and decodes the memory that the kernel's siw driver (software iWARP) shares
// with a program: the elements of the send, receive and completion rings, the word that arms a
// completion queue, and the driver's part of requests and responses (rdma/siw-abi.h). It takes and
// returns plain numbers; package uverbs gives them the meaning of verbs.
//
// The package serves package uverbs and carries no compatibility promise. README.md says how to use
// soft iWARP.
//
// # Rings
//
// A ring is a power of two of elements; a completion ring is followed by one word. There are no
// indices: each element has a flag that says whether it is valid. The producer fills an element and
// sets the flag last, and the consumer clears it when it has taken the contents. Both sides go
// around in order, each with a position of its own, so a ring of 2^n elements holds 2^n entries.
// The kernel clears the flag of a send as soon as it begins to work on it, before the send
// completes.
//
// A program produces on [SendQueue] and [RecvQueue] and consumes on [CompQueue]:
//
//	ok := sq.Room(1)                  s := sq.Slot(0)
//	s.Start(id, siw.Send, siw.Signaled)
//	err = s.AddSGE(addr, length, lkey)
//	ring := sq.Publish(1)             // if true, ring the doorbell: a POST_SEND with no requests
//
//	c, ok := cq.Next()
//	id, status := c.WRID(), c.Status()
//	cq.Release()
//
// The doorbell is needed only if the kernel had no work left in the send ring; otherwise the kernel
// finds new entries there. The receive ring has no doorbell, and a store arms a completion queue.
//
// # Differences
//
// siw supports RC queue pairs and SRQs. A program that uses package uverbs on siw should know:
//
// Connections:
//
//   - The kernel's connection manager moves a QP from state to state, so uverbs.QP.Connect cannot:
//     use package cm. A program that creates the QP by itself calls QP.SetKernelState. A QP in error stays
//     in error.
//   - The side that connects sends first. The peer gets ErrState until it has received a message.
//   - A process that makes a TCP connection to a listener's port and breaks it off may end the
//     listener, or crash the kernel (6.1).
//
// Completion:
//
//   - A SEND or RDMA WRITE completes as soon as TCP has it. If the peer refuses it, the connection
//     ends: all posted requests are flushed, without a reason. Only the completion of an RDMA READ,
//     which has one SGE, shows that everything before it has arrived.
//   - A SEND or RDMA WRITE of a page or more without the flag Signaled lends its memory to TCP,
//     which may send the contents after a later request has completed. Use the memory again only
//     when a later READ has completed or the peer has answered, or ask for a completion.
//   - A READ completes when its data has arrived, possibly after requests that were posted later.
//     The flag Fence makes a request wait for the READs before it.
//   - The library itself completes as flushed what is posted to a QP in error, and requests that
//     the kernel had not looked at. No event reports these completions.
//   - A place in the send queue is free as soon as the kernel has begun with the request.
//
// Messages and keys:
//
//   - A message without a receive ends the connection.
//   - Read access is not enforced: a peer that has the key can read the memory without
//     AccessRemoteRead (Linux 6.1 to 7.2). Write access is enforced.
//   - WRRDMAReadWithInv reads and leaves the key valid, since siw invalidates only for QPs of the
//     kernel. WRLocalInv and WRSendWithInv invalidate.
//   - SENDs and RDMA WRITEs of 1 to 32 bytes in a list are posted inline, since the kernel now and
//     then breaks the connection over a list of them. Their data is read when they are posted, and
//     no one checks whether the key of their memory was invalidated. The library posts requests one
//     by one instead if they have the flag Fence or an invalidation, or if no MR of the PD holds
//     their memory.
//   - On an imported device (uverbs.ImportDevice), SENDs and RDMA WRITEs of 1 to 32 bytes get an empty
//     second SGE, since the kernel would otherwise look for their data in the process that posts them
//     and not in the one that has registered it. The kernel has the same fault where nothing can be
//     done: a peer's RDMA READ of 1 to 32 bytes of an imported region, which it answers while the
//     process posts a request to the same QP, may break the connection or read other memory of this
//     process.
//   - An RDMA READ of 0 bytes may break the connection, since siw answers with what it had to send
//     before.
//
// Limits:
//
//   - RLIMIT_MEMLOCK also limits root on Linux 6.1, but not on 6.12 and 7.2.
//
// # Trust
//
// The other side is the kernel, but the whole process can write to the kernel's half of the memory,
// so nothing read from it is trusted. Positions are the program's own and masked. Completions are
// copied once and checked. Nothing that was written to a slot is read back.
//
// # Concurrency
//
// One goroutine at a time may use a ring. The rings of a queue pair are separate: one goroutine may
// post sends while another posts receives. All use of a ring must end before its mapping is closed.
package siw
