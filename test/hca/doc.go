// Package hca is a model of a network card that speaks RDMA: a ConnectX-5's virtual function,
// to which the kernel's own drivers (mlx5_core, mlx5_ib, mlx5e) and rdma-core's libmlx5 bind
// as they are, on InfiniBand and on Ethernet (RoCE v1 and v2). It is the referee of this
// module's mlx5 driver, and shares no code with it.
//
// # Parts
//
// A [Device] is one card: registers, command queue, capabilities, ports, tables for steering,
// and the commands, which it decodes and checks. Package engine is its data path: queues,
// memory keys, packets, and a fabric that joins cards. Package prm has the numbers of the
// command interface, and package vfiouser makes the card a PCI device of a virtual machine.
// The program cmd/hca serves cards to QEMU, and vmrun -device mlx5 starts both:
//
//	vmrun -device mlx5,mode=roce -with ibverbs-utils,ibverbs-providers ibv_devinfo -v
//	vmrun -hosts 2 -device mlx5 ./server +++ ./client 10.2.0.1
//
// Two cards in a guest, or one in each of two, are on the same fabric. Lost and late packets
// are vmrun's -loss and -delay.
//
// On Ethernet the fabric has two forms of a RoCE v2 packet: between cards it stays what the engine made, and
// where no card uses RDMA it is a frame with all headers and the ICRC, which the Ethernet driver gets. Frames
// that arrive at an address of RoCE v2 go to the queue pairs. So a program that speaks RoCE v2 over UDP
// reaches a card from the network interface of another one, without its RDMA driver.
//
// # Ports of InfiniBand
//
// The ports of InfiniBand cards are active from the start, with fixed LIDs. Managed ports (hca -managed, vmrun
// -device mlx5,mode=ipoib) have no LID and are in the state INIT, in which only packets of subnet management
// pass, until a subnet manager sets them up. The agents in a card answer requests for PortInfo, P_Keys, GUIDs,
// the tables of service levels and virtual lanes, and the counters of the port, and let a subnet manager set
// them, also of ports that are not managed, which are from then on until the function is reset. The M_Key
// protects as its protection level and lease say. A card tells its driver by events what changed, if the driver
// asks for them. As on a card, there is no event for another subnet manager: for that it sets ClientReregister.
//
// # Switches
//
// Cards can be connected by switches (hca -topology FILE, vmrun -device mlx5,mode=ipoib,topology=FILE). Package
// subnet models them, with agents that a subnet manager rules, and adapters without guests, hundreds if need be.
// The file is what ibnetdiscover writes of a subnet:
//
//	vmrun -device mlx5,mode=ipoib,topology=lab.txt -with infiniband-diags iblinkinfo
//	vmrun -device mlx5,mode=ipoib,topology=fattree:324 -with infiniband-diags ibnetdiscover
//
// Packets between cards take the way that the forwarding tables of the switches say, and those to groups reach the
// members. A test in the guest cuts and impairs links, and silences nodes, through the test bench. A link has the
// width and speed that its ends, the topology and the cable allow, and both ends say so.
//
// # Personalities
//
// Real cards differ, and a driver must work with all of them. A [Personality] is a set of
// independent choices:
//
//   - registers: a small BAR, where ALLOC_UAR is soon refused, no BlueFlame, short doorbell registers
//   - capabilities: CQEs without user indexes, short send WQEs, no atomic operations, no resize of
//     CQs, no data in CQEs, few objects and short queues; enhanced connection establishment (ECE), no DC,
//     no change of the counter set of a connected QP, fewer READs under way for DC, user contexts (DEVX), two ports
//     in link aggregation (LAG)
//   - the port: a GRH is required, several cards have one LID, the default P_Key is not the first,
//     256 GIDs, no subnet management interface (SMI)
//   - behavior: random bytes in every field of a CQE that has no meaning, RESIZE_CQ that takes some
//     time, page faults that complete the receives of an SRQ with an error, receives and packets of
//     an RDMA WRITE that are out of order
//
// A card uses receives in another order, and places packets so, for a QP or DCT whose driver asks for it
// (dp_ordering_1), as mlx5_ib does since Linux 6.13 with MLX5_IB_MODIFY_QP_OOO_DP; with out-of-order-rc for
// RC only.
//
// There are fixed personalities: plain is the card without any of this, devx has user contexts, small has
// the registers and capabilities, vf is a virtual function on InfiniBand, late takes its time, unordered
// uses receives out of order, which programs see, and no-smi has a port without subnet management. A number
// is the seed of a personality that is drawn from it, and random draws the seed as well:
//
//	vmrun -device mlx5,mode=ib,personality=vf ...
//	vmrun -device mlx5,mode=roce,personality=random ...
//	hca: personality 1234 bar=32MiB grh-required shared-lid slow-resize srq-faults devx out-of-order-rc few-dc-reads
//
// The line at the start names the seed and every difference from plain. The same seed gives the same
// personality again. In the guest, VMRUN_PERSONALITY has the same words. Tests of the library need
// not know them: the library's errors name the missing features, and the list of what tests may
// skip has lines for cards with a word (package testenv).
//
// rdma-core's programs run on the fixed personalities without a violation (go run ./test/run -suite personalities).
//
// # What is checked
//
// Commands: their delivery (descriptor, mailboxes, tokens), lengths, the order in which a card
// is brought up and down, every number that names an object, what is still in use, lists of
// pages, states, and that fields which are not modelled are not set. Wrong commands are answered as
// firmware would, with a status and a syndrome (the syndromes are this model's own), and are in the
// report in words. Forbidden actions of a driver (a doorbell for a command that is not there,
// stores of the wrong width, pages that are not taken back) are violations, as are the many things
// that package engine watches in queues, doorbells and records. vmrun's exit status is then not 0.
//
// Bits that are reserved and that a card does not read are checked only by strict cards (hca -strict, vmrun -device
// mlx5,strict), as in the tests of goverbs' own programs. UCX keeps data of its own in them.
//
// # What is not modelled
//
// An opcode that is not in the table is refused and counted. Commands that have noEffect in table.go are answered,
// but do less than on a card: priorities, hashes and the ports of a LAG are not used, and flow tables for
// packets of RDMA count, but lead nowhere: those of RC, UC and UD over RoCE v2. Not there, by the capabilities:
// the physical function with all that only it has, page requests, the newer scheme of on-demand paging,
// on-demand paging with DC but for what a DCI sends, memory that programs register for queues of DEVX
// (CREATE_UMEM; UCX takes it for granted on a card with user contexts, so the usual card does not have
// user contexts), signatures, tag matching, flow counters in bulk and header
// rewriting. The register RESOURCE_DUMP has the answers of QUERY_QP, QUERY_CQ and QUERY_MKEY, and
// no other segments. Ports count packets of RDMA, those that are dropped or not sent, and how often
// the link went down. There are no errors of the link, no traps of cards, no congestion control,
// and the tables of service levels and virtual lanes have no effect. Between two cards without a
// topology, each end has a width and speed of its own, and goes down alone.
//
// # Where it was tried
//
// The module's conformance tests (go run ./test/run -suite mlx5) ran under the drivers of Linux 5.10,
// 6.1, 6.12 and 7.2 on amd64 and of 6.12 on arm64, with RoCE and with InfiniBand. rdma-core's programs
// (suite control) ran on Linux 6.1, 6.12 and 7.2 on amd64 without a violation, and so did DPDK's driver
// mlx5 on Linux 6.1 and 7.2 (control/dpdk), and UCX on Linux 6.1 (control/ucx, control/ucx-ib).
//
// # What it can't prove
//
// It is written from what drivers do and headers say, and agrees with real firmware where a
// driver would notice. It can't show that stores reach a device in the wrong order: under
// emulation every store arrives, one by one, so a missing write barrier or a flush that came too
// late is invisible, on amd64 as on arm64. Limits, time, the vendor's syndromes and whatever
// else firmware adds are not those of a card. That rdma-core and DPDK pass on it without a violation
// (test/suites/control) says that it is not stricter than a card in what those programs do; it does
// not say that it is as strict.
package hca
