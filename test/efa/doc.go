// Package efa is a model of AWS's Elastic Fabric Adapter (EFA): the kernel's own driver, efa, and rdma-core's libefa
// bind to it as they are. It shares no code with this project's library. The PCI server is package vfiouser of
// test/hca.
//
// # Parts
//
// A [Device] is one card: registers, queues for commands and their answers, and the queues of programs. A [Fabric]
// joins cards. The program cmd/efa serves cards to QEMU, and vmrun -device efa starts both:
//
//	vmrun -device efa -with ibverbs-utils,ibverbs-providers ibv_devinfo -v
//	vmrun -hosts 2 -device efa ./server +++ ./client 10.2.0.1
//
// A guest that is alone has the devices efa_0 and efa_1, each of two guests has efa_0.
//
// # What is modelled
//
//   - The registers, which a driver has written to memory and never loads; reset; interrupts.
//   - All commands that Linux 6.1 to 7.3 gives: features, PDs, UARs, EQs, CQs, QPs, AHs, MRs with lists of pages in the
//     command, in a buffer and in chains of chunks, event counters, and statistics. Answers have the checksum that Linux 7.2 looks at.
//   - Send queues in BAR 2, with requests of 64 and 128 bytes; receive queues and CQs in memory; doorbells, one page of
//     BAR 4 for each UAR; completion events.
//   - Queue pairs of type UD and SRD. SRD is reliable and has no order: messages and their completions come in an order
//     that a seed decides. SEND, RDMA READ and WRITE, immediate and inline data, receives that a WRITE does not need,
//     retries while the receiver is not ready (RNR).
//
// # What is checked
//
// Commands: what must be zero, numbers of objects, what is in use, states. A command that is wrong is answered with a
// status, and is in the report in words; one that no driver may give is a violation as well. So are wrong widths and
// places of stores, loads, counters beyond a ring, requests with reserved bits, stale phases or request IDs in use,
// doorbells in another program's page, too many requests for one doorbell, receives that are cut off, and CQs that run
// over. The exit status of vmrun is then not 0.
//
// # Personalities
//
// A driver must go by what a card says of itself, so there are several: plain has everything; first has CQs of two
// rings and no RDMA, as the first generation; read has RDMA READ alone and no event queues; batch limits the requests
// before a doorbell and gives every AH a number of its own.
//
// # Decisions
//
// No card was available, and not everything is in the source of the driver and of libefa. The model decides:
//
//   - A command with the same PD and address gives the same AH again, and it takes as many to destroy it.
//   - A wrong Q_Key is for the sender of SRD as a QP that does not exist. Datagrams are dropped.
//   - A message for which a receive is too short does not use it up.
//   - Without a receive a message waits for ever, unless MODIFY_QP limits the retries to less than 7 (libfabric says so).
//   - A CQ that is armed while it has entries that were not read writes its event at once.
//   - The 40 bytes before the data of a datagram are a GRH.
//   - After a reset of a QP the phase of its requests is not checked, as libefa goes on with the one that it had.
//   - A WRITE with immediate data fails with the status "feature mismatch" if only one of the two QPs takes such without
//     a receive: libfabric says that both must do so.
//   - Stores to two cards arrive in any order, and PCI Express promises none either. So a datagram can overtake a receive
//     that was posted before it on the other card, and is lost.
//   - Event counters count at the same time as the completion is written, also of a request that is flushed. A counter
//     that nobody has set begins with 0, and is written first when it changes. An event of a QP has one counter.
//   - A WRITE with immediate data that needs no receive is an event of the peer's WRITE alone.
//   - A doorbell of a receive queue for no receives is harmless: libefa rings it if it refuses a request.
//
// # What is not modelled
//
// A queue in registered memory, 64-bit request IDs, processing hints, service levels (they are taken and
// have no effect), interconnect IDs. Nothing is lost on the fabric. The card sends keep-alive events and no others.
//
// # Where it was tried
//
// The driver of Linux 6.1, 6.12, 7.2 and 7.3~rc7 on amd64. On 6.1 and 7.2 rdma-core's tests of EFA in Python and perftest pass
// without a violation (suite efa of test/run), with Debian 12's libefa and that of sid, and so does fi_pingpong of
// libfabric on 7.2.
//
// # What it can't prove
//
// Limits, time and numbers of a real card; that stores reach it in the right order: under emulation every store
// arrives, one by one, so a missing barrier is invisible.
package efa
