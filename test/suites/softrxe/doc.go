// Package softrxe tests the software device (package uverbs/soft) against rxe, the kernel's: each is the
// requester and the responder of all operations over a network, with rdma-core's programs and ours.
//
// Its tests run in the VM that tools/vmrun boots, which has rxe0 on ve0 and rxe1 on ve1, the ends of a
// veth pair. rdma_rxe occupies the UDP port of RoCE v2, so the tests move ve1 into a network namespace of
// its own, where a thread without privileges opens the sockets of the software device.
//
// Instead of rxe, the kernel's device can be a modelled ConnectX card of package hca (vmrun -device mlx5). The
// software device is then on the network interface of a second card, from which the tests take the RDMA driver,
// so that it gets the packets of RoCE v2.
//
// TestExchanges runs outside of a VM, too: there, it compares what software devices send with what rxe has
// sent in a VM, byte for byte. TestWalkSockets needs no VM: it is a random walk of software devices with each
// other, which also lose packets.
//
// # Faults of rxe
//
// rxe has these faults whatever the peer is. The tests do not provoke them. The functions are in
// the kernel's source, in drivers/infiniband/sw/rxe.
//
// The random walk tolerates a round in which rxe alone stalls, without a software device: it counts the round,
// compares the other pairings with each other, and goes on with new QPs. At the end it says how many rounds
// there were, and fails if they were more than one and one in 1,000. A stall in which a software device takes
// part always ends the walk.
//
//   - A fence may stop the send queue for ever, on Linux 6.1 and 7.2. When rxe repeats requests,
//     req_retry goes back to the oldest one. rxe_wqe_is_fenced then counts all READs and atomics under way,
//     also the request with the fence and those behind it. No packet need be lost: rxe does not restart the
//     timer when it gets an acknowledgement. With a timeout of one jiffy on Linux 6.1, rxe never repeated the
//     request in one of 1,725 pairs of a READ and a READ with a fence.
//   - On Linux 6.1 a fence may also miss the completion that it waits for: do_complete looks at wait_fence
//     while rxe_requester, on another processor, is between rxe_wqe_is_fenced and setting wait_fence. On
//     Linux 7.2 one task runs both (rxe_sender).
//   - A QP of type UC may stop for ever when it has 65 packets under way, on Linux 6.1 and 7.2. rxe_requester
//     then sets need_req_skb and ends, and rxe_skb_tx_dtor runs it again when a packet has been freed. Between
//     the comparison and the setting the last packet may be freed. On Linux 7.2, one of 36,022 rounds of the
//     walk, with 78 packets, stopped between two QPs of rxe.
//   - On Linux 7.2 a repeated READ may get no response, or a NAK, if the newest message has no bytes and
//     the READ has some, or the other way round: read_reply looks at the length of the newest message
//     (qp->resp.length) to decide whether the READ needs a memory region. The kernel logs a warning.
//   - On Linux 7.2 a repeated ATOMIC WRITE has address 0: req_retry knows the addresses of READs, WRITEs and the
//     other atomics only. The peer answers with a NAK.
//   - On Linux 7.2 a QP may stop for ever when READs or atomics are behind a request for which the peer has no
//     receive. The cause is not known.
//   - On Linux 7.2 an rkey of a memory window permits access to all of the region: check_rkey compares the
//     addresses with those of the region, and nothing compares them with those of the window.
//   - On Linux 7.2 LOCAL_INV and a SEND with invalidate unbind any window of type 2 of the device: rxe_invalidate_mw
//     looks at neither PD nor QP. The software device wants the QP that bound the window.
//   - A QP that bound a window waits for it when it is destroyed: rxe_do_bind_mw takes a reference that only
//     the invalidation or the end of the window drops. After 50 s __rxe_cleanup logs a warning.
//   - On Linux 5.10, the requester may hang after an RNR NAK, so it never finds a receive that is posted late.
//   - On Linux 5.10, the responder does not tell its peer that a request has failed which takes no receive:
//     without one, do_complete skips the acknowledgement. The peer completes with RETRY_EXC_ERR.
//   - On Linux 5.10, the responder cannot send the answer to an atomic over IPv4 to another host: each increases
//     the counter send_err. send_atomic_ack writes into the control block of the socket buffer, which IPv4 uses.
package softrxe
