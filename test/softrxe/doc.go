// Package softrxe tests the software device (package uverbs/soft) against rxe, the kernel's: each is the
// requester and the responder of all operations over a network, with rdma-core's programs and ours.
//
// Its tests run in the VM that tools/vmrun boots, which has rxe0 on ve0 and rxe1 on ve1, the ends of a
// veth pair. rdma_rxe occupies the UDP port of RoCE v2, so the tests move ve1 into a network namespace of
// its own, where a thread without privileges opens the sockets of the software device.
//
// TestExchanges runs outside of a VM, too: there, it compares what software devices send with what rxe has
// sent in a VM, byte for byte.
package softrxe
