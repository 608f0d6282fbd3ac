// Package perf measures latency and bandwidth of RDMA between two ends.
//
// A [Config] says what is measured. An [End] is one side: a device, memory and queue pairs.
// However the two sides tell each other what they must know, a handshake ends with
// [End.Connect], and from there on [End.Prepare] and [End.Run] do the traffic of one message
// size; what goes over the wire in each test is what perftest's program of that name does:
//
//   - send-lat: the client sends, the server answers each message with one.
//   - write-lat: the same with RDMA WRITE; each side looks at the last byte of its buffer,
//     where the other puts the number of the message.
//   - read-lat, atomic-lat: the client has one operation under way, the server does nothing.
//   - send-bw: the client keeps its queue full, the server its receive queue. With both
//     directions each does both, and the server begins when the first message has come.
//   - write-bw, read-bw, atomic-bw: the client keeps its queue full, the server does nothing;
//     with both directions it does the same.
//
// A run keeps Go's scheduler out of its way: there is one processor of Go's for each run and no
// garbage collection meanwhile, and a goroutine that is always busy yields every 5 ms, or after each
// message that takes longer, while the message is under way. So the scheduler's signal for one that does not
// yield for 10 ms is ignored: a doorbell for 1 MiB takes more than that, and the signal comes when it has
// rung (latency of 64 KiB and 1 MiB beside perftest's, on Linux 6.1: 1.006 with the signal, 1.002 without, the
// mean of the medians of six rows in two runs each). What else does not belong to a message, such as telling
// how many there were, is done with the yield. The scheduler's monitor, a thread that wakes a hundred
// times a second, has the lowest priority meanwhile. In an emulated machine with two processors, of which both are
// busy, that is worth several percent of bandwidth: perftest beside two processes that
// do nothing but sleep 10 ms again and again lost 5 % of it with messages of 64 KiB, and 10 % with
// 64 bytes (medians of 18 runs).
//
// What need not come before the next message comes when that is posted: a side of a latency test answers
// before it posts the receive again that it has used, so
// that the peer, or the kernel, works meanwhile. The clock that it reads before each doorbell is the processor's counter, where Linux keeps its
// own time by it; Go's clock, at both ends of the run, says what its counts are worth. A queue that is
// kept full is filled by as few doorbells as will do: rxe moves 1.3 times as many small SENDs for it on
// Linux 6.1 and 1.9 times as many READs. And whoever finds nothing for a while offers the processor to others: on Linux
// 7.2, where threads of the kernel do the work of rxe, SENDs of 2 bytes go twice as fast between two ends that
// have two processors in all.
//
// [Client] and [Server] are a handshake of this package's own, in which the client dictates
// everything; see proto.go.
package perf
