// Package perf measures the latency and bandwidth of RDMA between two ends.
//
// A [Config] describes a test. An [End] is one side of it: a device, memory and queue pairs. The
// two sides exchange a [Peer] for each queue pair, and [End.Connect] connects them. [End.Prepare]
// and [End.Run] then do the traffic of one message size. [Client] and [Server] exchange the peers
// by a protocol of this package, in which the client chooses the config; see proto.go. Package
// perftest does the same by the protocol of perftest's programs.
//
// # Tests
//
// Each test has the traffic of perftest's program of the same name:
//
//   - send-lat: the client sends, and the server answers each message with one.
//   - write-lat: the same with RDMA WRITE. Each side polls the last byte of its buffer, where the
//     peer writes the number of the message.
//   - read-lat, atomic-lat: the client has one operation in flight. The server does nothing.
//   - send-bw: the client keeps its send queue full, the server its receive queue. With both
//     directions each side does both, and the server begins when the first message has arrived.
//   - write-lat and write-bw with immediate data: a WRITE takes a receive, so they use the loops of send.
//     In write-lat the server begins.
//   - write-bw, read-bw, atomic-bw: the client keeps its send queue full. The server does nothing;
//     with both directions it does the same as the client.
//
// # The processor
//
// On a device of the kernel, a run changes the Go runtime of the process while it lasts:
//
//   - GOMAXPROCS is the number of runs in progress, up to the value that it had before.
//   - The garbage collector is off.
//   - SIGURG, by which the scheduler preempts goroutines that run for more than 10 ms, is ignored,
//     also after the run. Otherwise the signal arrives during each long system call, such as the
//     doorbell of a message of 1 MiB on rxe. Latency of 64 KiB and 1 MiB was 1.006 times perftest's
//     with the signal and 1.002 times without (Linux 6.1, means of the medians of six rows in two
//     runs).
//   - The thread of the runtime's monitor, which wakes a hundred times a second, has the scheduling
//     policy SCHED_IDLE. Such wakeups are not free: perftest lost 5 % of its bandwidth with
//     messages of 64 KiB and 10 % with 64 bytes beside two processes that only slept 10 ms again
//     and again (an emulated machine with two busy processors, medians of 18 runs).
//
// The loops yield by themselves instead: they call runtime.Gosched about every 5 ms, or after each
// message that takes longer. They report progress and check for the end of the run at the same
// time.
//
// # The loops
//
// Latency tests post the next message first and do everything else while it is in flight. For
// example, a side of send-lat answers a message before it reposts the receive that the message
// used. Timestamps are counts of the processor's cycle counter if Linux keeps its own time by it.
// They are converted by the time that the run took by Go's clock.
//
// Bandwidth tests fill the send queue with as few doorbells as possible. On rxe this moves 1.3
// times as many small SENDs (Linux 6.1), and 1.9 times as many READs. After 256 polls in a row
// without a completion they call sched_yield. On Linux 7.2, where kernel threads do the work of
// rxe, this doubles the rate of SENDs of 2 bytes between two ends that share two processors.
package perf
