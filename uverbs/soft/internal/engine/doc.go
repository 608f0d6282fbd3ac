// Package engine is the data path of the software device: completion queues, shared receive queues,
// queue pairs, address handles and multicast groups, with the requester, the completer and the
// responder that move messages between them. It behaves like rxe of Linux 7.2, but for what RXE.md of package soft lists.
//
// A program's requests and completions are in rings ([ring.Ring]) and its data is in registered
// memory ([memory.Table]). Packets have the wire format of RoCE v2 (package wire) between devices
// of one process too, so there is one responder for all of them.
//
// # Goroutines and locks
//
// Each QP has one lock. At most one goroutine at a time runs the requester of a QP: it takes the
// lock, generates packets until it is blocked or its buffer is full, releases the lock and delivers
// the packets. A packet to an address of a device on the same [Host] goes directly to that device,
// in the same goroutine, and the responses that it causes are delivered before the next packets
// are generated. Never are two QPs locked at once. The other packets go to the [Network]. So a
// doorbell on one host is complete when it returns, unless it has reached its budget: then a new
// goroutine does the rest.
//
// The order of locks is QP, SRQ, CQ. Callbacks ([Config], [QPInit], [SRQInit] and those of a CQ) are
// called with locks held: they must not call the engine.
package engine
