// Package ring is the device's side of rxe's rings: the queues that a program and the software
// device share (struct rxe_queue_buf of rdma_user_rxe.h).
//
// A ring is memory of the process, in the Go heap unless it is large, with two indices and an array of
// elements. On a work queue the program stores the producer index and the device the consumer index;
// on a completion queue it is the other way round. The device keeps its own index and stores it for
// the program to see.
//
// The program may write anything at any time, so nothing that it wrote is trusted: its index is
// masked, each field of an element is loaded once into the device's memory, and lengths and counts
// are checked there.
//
// Sizes of elements and the values of fields are the same as in rxe of Linux 7.2 (drivers/infiniband/sw/rxe:
// rxe_queue.c, rxe_qp.c, rxe_cq.c, rxe_srq.c). A Ring does no locking: one goroutine at a time may
// use a side of it.
package ring
