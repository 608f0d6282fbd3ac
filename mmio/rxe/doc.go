// Package rxe knows the bytes that the kernel's rxe driver (Soft-RoCE) shares
// with a program: the send, receive and completion rings, the entries in them,
// and the driver's part of the command responses (rdma_user_rxe.h). It takes and
// gives plain numbers; what a verb means is package uverbs' business.
//
// # Rings
//
// A ring is a header and a power of two of elements in one mapping. The producer
// index and the consumer index are each stored by one side, already masked, so a
// ring of 2^n elements holds 2^n-1 entries: it is empty when the indices are
// equal and full when the producer is one behind the consumer. All kernels do it
// so, whether they keep a private copy of their own index (the newer ones) or
// trust the shared one.
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
// # Trust
//
// The other side is the kernel, but its half of the memory is writable by the
// whole process, so nothing read from it is trusted. The header is read and
// checked once, when the ring is made, and never again; indices are loaded once
// per use and checked; nothing that was written to a slot is read back. What does
// not fit is [ErrCorrupt], never an access outside the mapping.
//
// # Performance
//
// A list of work requests has one look at the kernel's index, one store of its own and one doorbell,
// whatever its length; polling has one of each for a batch. The kernel's index of a ring is loaded
// once per call and never in the loop over slots. A completion can be copied whole (see
// [Completion.CopyTo]), in three loads instead of one for each field, and an element's place is a
// product instead of a shift, which the compiler would guard. On rxe the doorbell is a call of the
// kernel, in which the kernel may send the packets itself: it costs more than all the rest. So posting
// by lists is what makes small messages quicker.
//
// # Concurrency
//
// A ring is for one goroutine at a time. The rings of a queue pair are separate:
// one goroutine may post sends while another posts receives. All use of a ring
// must have ended before its mapping is closed.
package rxe
