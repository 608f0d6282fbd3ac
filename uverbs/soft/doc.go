// Package soft is an RDMA device in software, inside the process. It needs no kernel module, no
// rights and no RDMA hardware: a program that uses package uverbs, and tests of such a program, run
// on any machine.
//
//	dev, err := soft.New(soft.Options{})
//	if err != nil {
//		return err
//	}
//	defer dev.Close()
//	ctx, err := uverbs.Open(dev.Name(), uverbs.OpenOptions{})
//
// [New] makes a device, and package uverbs opens it by its name like any other. The device has the verbs,
// limits, errors and events of rxe of Linux 7.2. Where rxe is laxer than the specification,
// the device follows that: RXE.md lists the differences. It
// supports queue pairs of type RC, UC and UD, shared receive queues, memory windows, multicast (after a join),
// atomic operations, ATOMIC WRITE and FLUSH.
//
// A program need not know of this package: the environment variable GOVERBS_SOFT gives every program
// that uses package uverbs one device or several, in the form that [ParseOptions] describes, separated
// by blanks or semicolons:
//
//	GOVERBS_SOFT=auto program
//	GOVERBS_SOFT="127.0.0.2;127.0.0.3,mtu=1024" program
//
// The package is tested on Linux. It is also compiled for macOS, FreeBSD and Windows, where software devices
// are the only ones, but it is not tested on them.
//
// A picture shows what runs where: https://github.com/goverbs/goverbs/blob/main/test/pictures/places.svg
//
// # Addresses
//
// A device has an IP address of this host. Its GID table has three entries: 0 is the link-local
// address that belongs to the GUID of the device, 1 is the address, and 2 is another IPv6 address if
// the address is IPv4. Devices of one process reach each other directly, by all of these addresses. With
// [Options].ViaSocket the packets of the address take UDP sockets also within the process: that is slower, and
// tests the way of packets between processes.
//
// By default, only devices of this process reach a device. With [Options].Addr or [Options].Auto it has
// a UDP socket at its address, port 4791, and speaks RoCE v2 there: devices of other processes reach
// it, as does rxe of other hosts. Network cards speak the same protocol, but the device has been tried with
// a model of a ConnectX card only. Peers that are not in this process use entry 1 of the GID table.
//
// A peer needs a GID of type RoCE v2. RoCE v1 is not supported: its frames carry no UDP header, so
// the device neither sees nor counts them.
//
// On Linux, a device with a socket follows its network interface as rxe does. The port is down while the
// interface is down or has no carrier, and entry 1 of the GID table is not in use while the interface does
// not have the address. The events PORT_ERR, PORT_ACTIVE and GID_CHANGE report these changes. The
// active MTU follows the MTU of the interface, without an event and up to [Options].MTU;
// connections keep the MTU that they have. A device whose interface is removed is closed.
//
// # Ports
//
// A device has one UDP port, to which its peers send, and it sends to the same port of its peers. So the
// address of a peer tells its port: all have port 4791, unless all were given another one, as in
// GOVERBS_SOFT=127.0.0.2:4792.
//
// Any number of processes of one host may have devices at the same time, without special rights. With Auto,
// each gets a loopback address of its own. If the kernel's rdma_rxe or another program has taken
// port 4791 on all addresses, every Auto device uses port 14791, [AutoPort]. Such devices reach
// each other, but not devices that were created while port 4791 was free; verbs doctor reports
// them. With Addr, [New] fails if the port is taken, and the error says by whom.
//
// # Lost packets
//
// A reliable connection repeats packets as rxe and the specification do (go-back-N): it sends again from the
// oldest packet that is not acknowledged, and a READ from the first byte that is missing. A receiver drops the
// packets behind a gap and sends one NAK. So a peer that repeats only the lost packet (selective repeat) has to
// repeat the later ones as well, after its timeout. The connection fails if RetryCount repetitions, 7 at most, bring no
// progress: a process that is stopped for longer than these take loses the connections on which its peers have
// requests under way, as its device stops, too.
//
// # Counters
//
// [uverbs.Device.PortCounters] returns the counters of a device. Those of rxe come first, under rxe's names:
// ack_deferred counts acknowledgements and responses that have come, and send_err packets that the system has
// refused to send. Then follow the packets that the device has received and dropped:
//
//	rx_unknown_qp        no queue pair has the destination QPN
//	rx_wrong_address     the source or destination address is not that of the connection
//	rx_wrong_port        from an address of this host, but not from a device's port
//	rx_wrong_group       the QPN of groups at the address of a device, or another QPN at that of a group
//	rx_not_joined        to a group that the device has not joined
//	rx_wrong_state       the queue pair is of another type, or not in a state to receive
//	rx_bad_pkey          another P_Key than 0xffff or 0x7fff
//	rx_bad_qkey          another Q_Key than that of the queue pair
//	rx_bad_mad           a message to QP 1 of another length or opcode than those of management datagrams
//	rx_out_of_order      a request before it is missing, or has failed (UC)
//	rx_no_receive        UC and UD: there is no receive; RC counts send_rnr_err
//	rx_refused           UC: the message is malformed, or has no right to the memory; UD: it is longer than 4096 bytes, or its receive is malformed
//	rx_stale_response    no request waits for the response
//	rx_odd_response      the response does not fit the request: its kind, its length, or one before it is missing
//	rx_waiting_overflow  more than 1 MiB of requests wait, behind a long response or since faults slow them down
//	rx_too_short         there is no room for the headers that the opcode has
//	rx_bad_length        the length is not a multiple of 4
//	rx_unknown_opcode    no opcode of RC, UC or UD
//	rx_cnp               a congestion notification, which the device does not support
//	rx_bad_tver          another version of the transport header (BTH) than 0
//	rx_zero_qpn          QPN 0
//
// The counters of the UDP socket come last: udp_tx_ count datagrams that were sent or, by reason, refused, and
// udp_rx_ those that have arrived. Of these, udp_rx_short, udp_rx_bad_icrc (damaged, or changed by NAT),
// udp_rx_truncated and udp_rx_overflows (the receive buffer was full) count datagrams that were dropped.
//
// # Memory
//
// A registered memory region is a range of addresses of this process, which the device accesses
// from other goroutines. Unlike hardware, the device pins no memory, so RLIMIT_MEMLOCK does not
// apply. A program that unmaps memory under a region gets a completion with an error, not a crash.
//
// # Faults
//
// [Options].Faults, [Device.SetFaults] and the field faults of the text form make a device lose,
// duplicate, corrupt, reorder, delay and slow down packets, and make queue pairs fail. [Faults] also have a
// text form, which [ParseFaults] reads: groups, separated by semicolons, of fields, separated by commas:
//
//	loss=1%,reorder=1%,seed=7
//	class=mad; peer=127.0.0.2,class=ack|response,loss=5%; rnr=1/4
//
// A packet follows the first group that selects it, so the first group of the second text exempts the
// messages of the connection manager, which are repeated after seconds only. Class nak has the NAKs that end
// a connection: a responder does not repeat them, so a peer that loses one completes with RETRY_EXC_ERR
// instead of the error. These fields select packets;
// without them, a group selects all:
//
//	direction=sent|received|both   as seen from the device
//	peer=10.0.0.2                  address of the peer, or a prefix, such as fd00::/64
//	qpn=17                         destination QPN
//	class=send|write               one or more of send, write, read, atomic, flush, ack, response, mad, nak
//
// These say what happens to them:
//
//	loss=1%          and so duplicate, corrupt and reorder, in steps of 0.0001%
//	behind=3         reordered packets: how many later packets overtake; without it, 1
//	hold=10ms        reordered packets: the longest time that they are held back
//	delay=5ms        or delay=1ms..5ms, evenly distributed, or delay=1ms+2ms, 1 ms and beyond it
//	                 exponentially distributed with a mean of 2 ms
//	delayed=10%      part of the packets that is delayed; without it, all
//	rate=10mbit      bits per second, in bit, kbit, mbit or gbit
//	remove=1000      the device is removed with the 1,000th packet, as by [Device.Close]
//
// The text peer=10.0.0.2,loss=100% separates the device from a peer from the beginning.
//
// Groups with the following fields are about queue pairs, with qpn about the one with this number:
//
//	rnr=1/4                     of each four receives that packets need, the first one is missing
//	slow=5ms                    requests are carried out and answered after 5 ms
//	fail=send:3:retry_exc_err   work request 3 of the send queue, or recv, completes with this error
//
// Work requests count from 0, from when the fault is set or the queue pair was created or reset, whichever
// came last. The error of the completion says that it was injected by the fault fail=send:3.
//
// The field seed may stand in any group. The same seed makes the same decisions, which depend on nothing
// else than the text, the addresses and QPNs, and the order of the packets of each queue pair. With
// [Options].Seed, QPNs are the same in each run, too.
//
// [Device.Partition] stops all packets between a device and a peer, and [Device.Heal] lets them pass
// again. [Device.FaultCounters] counts. Faults concern packets to and from other devices of the process
// as those of sockets. A packet between two devices of the process may suffer the faults of both. One to
// a group is sent twice: once to the devices of this process and once to the network.
//
// [Options].Trace and [Options].Capture record each packet with what has happened to it: in words, and for
// Wireshark. So do the fields trace and capture of the text form:
//
//	GOVERBS_SOFT="auto,faults=(loss=1%,seed=7),capture=/tmp/loss.pcapng" program
//
// If neither faults nor records are enabled, the cost is one comparison per packet.
//
// # Trust
//
// As with all RoCE, packets are neither authenticated nor encrypted. Whoever can send packets with the address of
// a peer, and knows a QPN, a PSN and an rkey, can read and write registered memory. QPNs and rkeys are random,
// unless [Options].Seed is set; PSNs can be tried out. Whoever knows the QPN and the Q_Key of a UD QP breaks it with a
// datagram that is longer than the receive. So give the receives of strangers' datagrams uverbs.GRHSize and 4096 bytes.
//
// A packet from an address of this host counts only if it comes from the port that devices have. Another user of
// the host can take that port at another address and then forge the address of a device, as anybody can where
// source addresses are not checked; only the random numbers protect from that. Choose addresses that only trusted hosts
// and users reach. A device without Addr and Auto has no socket.
//
// # What it is for
//
// The device is for tests, for development without RDMA, and for demonstrations. It is no replacement of hardware.
// [NewT] makes one for a test, and checks that the test leaves nothing open.
//
// # Speed
//
// By processor time of program and kernel (Linux 6.18, amd64, a virtual machine, make benchsoft: one processor
// and GOMAXPROCS=1), SENDs of 4 KiB run at 2.5 GB/s by sockets and at 7.8 GB/s within the process, where TCP of
// package net reaches 1.8 GB/s. A message of 2 bytes takes 6.5 µs one way by sockets when the program polls, and 0.5 µs within the
// process, where a datagram of package net takes 2.1 µs. A message allocates nothing.
//
// One goroutine of a device handles what comes in at its socket, for all queue pairs: a third of the processor
// time of both ends (BenchmarkQPs). With more than two processors, a program that receives much divides its queue
// pairs among several devices.
package soft
