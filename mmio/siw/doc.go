// Package siw knows the bytes that the kernel's siw driver (software iWARP) shares with a
// program: the elements of the send, receive and completion rings, the word that arms a
// completion queue, and the driver's part of requests and responses (rdma/siw-abi.h). It takes
// and gives plain numbers; what a verb means is package uverbs' business.
//
// # Rings
//
// A ring is a power of two of elements and nothing else; a completion ring has a word behind
// them. There are no indices: each element has a flag that says that it is valid. Who fills an
// element sets it, last of all, and who has taken what is in it clears it; both sides go around
// in order, each by a position of its own. So a ring of 2^n elements holds as many entries. The
// kernel clears the flag of a send as soon as it begins to work on it, before it completes.
//
// A program produces on [SendQueue] and [RecvQueue] and consumes on [CompQueue]:
//
//	ok := sq.Room(1)                  s := sq.Slot(0)
//	s.Start(id, siw.Send, siw.Signaled)
//	err = s.AddSGE(addr, length, lkey)
//	ring := sq.Publish(1)             // then ring the doorbell if it says so: a POST_SEND with no requests
//
//	c, ok := cq.Next()
//	id, status := c.WRID(), c.Status()
//	cq.Release()
//
// The doorbell is needed only if the kernel had nothing more to do in the send ring; one that
// has finds what is new there. The receive ring has no doorbell, and a completion queue is armed
// by a store.
//
// # Trust
//
// The other side is the kernel, but its half of the memory is writable by the whole process, so
// nothing read from it is trusted: positions are the program's own and masked, what is read of a
// completion is copied once and checked, and nothing that was written to a slot is read back.
//
// # Concurrency
//
// A ring is for one goroutine at a time. The rings of a queue pair are separate: one goroutine
// may post sends while another posts receives. All use of a ring must have ended before its
// mapping is closed.
package siw
