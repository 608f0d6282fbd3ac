// Package fault injects faults into a software device: it loses, duplicates, reorders, delays, limits
// and corrupts packets between the device and its network, and it tells the engine when to treat
// receives as missing, to answer late, or to complete a work request with an error.
//
// # Packets
//
// An [Injector] belongs to a device. For each local address of the device, a [Path] stands between the
// engine and the socket: [Path.Send] has the place of the socket's Send, and [Path.Handler] wraps the
// handlers of received packets. Between two devices in one process, a Path can stand in the same way in front
// of the function that delivers a batch. Then Batch.Flipped says which packets that function must
// drop, because there is no ICRC to find the damage.
//
// A [Rule] selects packets by direction, peer, destination QPN and class, and says with which chances
// they suffer what. A packet follows the first rule that selects it. Rules come from a [Config], which
// [Injector.SetConfig] replaces at run time, and which has a text form for environment variables and
// command lines, see [Parse]. For example, this text loses and reorders one packet in a hundred, but
// no messages of the connection manager, which takes seconds to repeat them:
//
//	class=mad;loss=1%,reorder=1%,behind=3,seed=7
//
// [Injector.Partition] stops all packets between two addresses and [Injector.Heal] lets them pass
// again.
//
// A packet that no rule selects is neither copied nor delayed and costs no allocation. Without rules,
// partitions and trace, a batch that is sent or a packet that is received costs one
// atomic load more than without the Path.
//
// # The same seed makes the same decisions
//
// A decision depends on the seed, the rules, the stream of the packet and the number of the packet in
// its stream, and on nothing else: not on the time, nor on the order in which goroutines run. All
// packets of a stream agree in these:
//
//   - the index of the rule that selects them,
//   - the direction, sent or received,
//   - the address and port of the peer,
//   - the destination QPN, and in datagrams also the source QPN,
//   - whether they are requests, or else acknowledgements and responses.
//
// So one side of one queue pair makes them, in an order that it decides. Packets are counted from 0
// since [New] or the last SetConfig. A retransmitted or duplicate packet that the engine sends is a
// further packet of its stream; a copy that the injector makes is not counted. Packets that a
// partition stops are counted.
//
// To repeat a run, give the device random numbers that repeat too, because QPNs count, and use the same
// addresses. Ports may differ. Anything that depends on time is not repeated exactly: when delayed
// packets are delivered, whether Rule.Hold ends before enough packets have followed, the order that
// rate limits lead to, and how often an engine retransmits.
//
// The injector keeps state of up to 65,536 streams. Beyond that number, all streams begin again with
// packet 0.
//
// # Other faults
//
// A [Plan] is data without state. The engine reads it with [Injector.Plan], counts events for each
// queue pair and asks the plan about their numbers.
//
// # Trace
//
// [Options] has a writer for lines in words and one for a capture, with each packet and what was
// decided about it. Without them, the trace costs the comparison of a pointer with nil. With them,
// every packet is copied, and all packets of the device wait for the writers.
package fault
