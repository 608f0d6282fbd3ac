// Package rxe encodes and decodes the memory that the kernel's rxe driver (Soft-RoCE) shares with a
// program: the send, receive and completion rings, their entries, and the driver's part of command
// responses (rdma_user_rxe.h). It takes and returns plain numbers; package uverbs gives them the
// meaning of verbs.
//
// The package serves package uverbs and carries no compatibility promise.
//
// # Rings
//
// A ring is a header and a power of two of elements in one mapping. The producer stores one index
// and the consumer the other, both already masked, so a ring of 2^n elements holds 2^n-1 entries:
// it is empty when the indices are equal, and full when the producer is one behind the consumer.
// All kernels agree on this. Newer ones keep a private copy of their own index; older ones trust
// the shared one.
//
// A program produces on [SendQueue] and [RecvQueue] and consumes on [CompQueue]:
//
//	ok, err := sq.Room(1)             s := sq.Slot(0)
//	s.Start(id, rxe.Send, rxe.Signaled)
//	err = s.AddSGE(addr, length, lkey)
//	sq.Publish(1)                     // then ring the doorbell: a POST_SEND with no requests
//
//	n, err := cq.Avail()              c := cq.Entry(0)
//	id, status := c.WRID(), c.Status()
//	cq.Release(n)
//
// The receive ring has no doorbell.
//
// # Differences
//
// rxe supports RC, UC and UD queue pairs with SEND, RDMA WRITE (both also with immediate data),
// RDMA READ, atomics and SEND with invalidate; SRQs, multicast and asynchronous events; memory
// windows since Linux 5.14, FLUSH and ATOMIC_WRITE since 6.2, on-demand paging since 6.15. A
// program that uses package uverbs on rxe should know:
//
//   - A receive that is posted in state Err is not flushed, since rxe has no doorbell for receives.
//     Receives that were posted before are flushed.
//   - A CQ that is too small loses completions. uverbs.Device.WaitEvent reports it, CQ.Poll does
//     not.
//   - A request with a fault in its local memory completes with a status that depends on the
//     kernel; on newer kernels it is flushed. uverbs.QP.Err finds out which request it was and what
//     is wrong with it.
//   - The bounds of a memory window are the bounds of its MR. Close a window of type 2 before the
//     QP that it is bound to, since the kernel keeps a pointer to the QP.
//   - With on-demand paging, data goes to the beginning of a page, whatever the address (Linux
//     7.2).
//   - Linux 5.10 does not answer requests that it refuses. They complete with WCRetryExcErr.
//   - A device that is deleted while it is open disappears from all lists, keeps working, and is
//     deleted with the last Close.
//
// # Trust
//
// The other side is the kernel, but the whole process can write to the kernel's half of the memory,
// so nothing read from it is trusted. The header is read and checked once, when the ring is
// created. Indices are loaded once per use and checked. Nothing that was written to a slot is read
// back. A value that does not fit is [ErrCorrupt] and never an access outside the mapping.
//
// # Performance
//
// A list of work requests costs one load of the kernel's index, one store and one doorbell, however
// long it is. The same is true of polling a batch. On rxe the doorbell is a system call in which
// the kernel may send the packets itself, and it costs more than everything else, so posting lists
// makes small messages faster. [Completion.CopyTo] copies a completion as a whole, in three loads
// instead of one for each field. The place of an element is computed by a multiplication, since the
// compiler would guard a shift.
//
// # Concurrency
//
// One goroutine at a time may use a ring. The rings of a queue pair are separate: one goroutine may
// post sends while another posts receives. All use of a ring must end before its mapping is closed.
package rxe
