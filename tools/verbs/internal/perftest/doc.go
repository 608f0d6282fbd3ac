// Package perftest speaks with the programs of perftest, ib_send_lat and its like, in both
// roles: their handshake over a TCP connection or, with -R, over rdma_cm, the barriers between
// the steps of a test, and the exchange of what was measured.
//
// A [Session] begins with [NewSession] on a TCP connection, [DialCM] or [AcceptCM];
// [Session.Hello] exchanges versions, and [Session.Play] plays a [Test] whose traffic an
// [Engine] does. This description was taken from the wire between Debian 12's programs, whose
// handshake has version 6.06, and from perftest's source (perftest_communication.c,
// perftest_resources.c, and a file for each test). It was also tried with 6.24 and 6.29.
//
// # Messages
//
// The client speaks first, and each side sends as much as it gets: the version, 16 bytes; the page
// size and the cache line size, 4 bytes in network order each; the path MTU as a digit and a
// NUL. Both take the larger sizes and the smaller MTU. Then come records of queue pairs: text
// on TCP, of 59 bytes or with a GID 108 (76 and 125 if data is validated), and with -R a struct
// of 56 bytes in network order, 64 since 6.29, whose second address is 0 unless data is validated. Only
// queue pairs of XRC and DC have the number of an SRQ. A barrier is a record of the first queue pair,
// sent once more.
//
// A test goes so; "all" is a record of each queue pair, in turn:
//
//   - with -R a barrier with an empty record, the connections of the queue pairs by further
//     connection requests to the same port, and such a barrier once more;
//   - a barrier, if the test is write_lat, read_lat or atomic_lat; all; the queue pairs are
//     connected; a barrier if it is a send test; all; a barrier if it is not;
//   - the run;
//   - except in write_lat, a last barrier, and on TCP the word "done" and a NUL.
//
// With -g, in send_bw, the server's record has the GID of the multicast group, and the QP number 0xffffff.
//
// With -c DC one side has initiators and the other targets, but in latency tests and with -b both have both:
// then there are twice as many records, first those of the initiators. Targets, which take receives from an
// SRQ, get their numbers when they are made ready, after the first "all". Their access key is 0xffeeddcc.
//
// With -c XRC, queue pairs that send and that receive are distributed as those of DC. They are connected to each
// other in their order, and all that receive have one SRQ. Requests of all kinds name the peer's. The option -R is
// refused.
//
// With -c SRD, records have GIDs only if -x is given, which EFA needs. A message goes to the number and the GID in the
// record, with the Q_Key of datagrams, and each one has a completion. For READs and WRITEs both sides make address
// handles. The option -R is refused.
//
// The programs do not exchange their options. If size, iterations, type, direction or number of
// queue pairs differ, one side hangs.
//
// # Runs
//
// With n iterations of each queue pair, and -a the sizes 2, 4, 8 up to 2^23, or to the MTU of
// datagrams:
//
//   - send_lat: each side posts min(512, n) receives, for UC and UD n, before a barrier that each
//     size begins with, and one more for each message while fewer than n are posted. The client
//     sends first. Each side waits for the completion of its message and then for the peer's,
//     n times.
//   - write_lat: the server writes first. The k-th message of a size has the low byte of k as its
//     last byte; the peer polls the address of that byte in its memory, which was zero before
//     anybody knew its address. Between sizes there is no barrier, and at the end none either: each
//     side goes when it has n messages and n completions.
//   - read_lat, atomic_lat: the client has one operation under way, n times; the server waits at
//     the last barrier. An atomic adds 1 to the first 8 bytes; there is one size.
//   - send_bw: the server posts receives as in send_lat, of each queue pair; a barrier; the client
//     sends, and the server is done when n messages of each queue pair have come. With -a
//     another barrier ends each size. With -b both post receives and send, the server not
//     before its first message has come, and reports are exchanged after each size, before
//     that barrier.
//   - write_bw, read_bw, atomic_bw: the client runs, all sizes without a barrier between them; then
//     a barrier, and an exchange of reports, that of the last size. The server does nothing
//     but that. With -b both do the same: a barrier, the run, with -a and except for atomics a
//     barrier, and reports, for each size. Messages of up to half the page size go through
//     memory of the page size one after the other, at multiples of the cache line, both at
//     this side and at the peer's.
//
// With --write_with_imm, write_lat has the loop of send_lat, but the server begins, and each size begins with a
// barrier. write_bw goes as send_bw: a barrier, the run, with -a another barrier, and with -b reports; nothing is
// reported otherwise. With --run_infinitely a server of messages receives until it is ended, and any other waits for
// the last barrier.
//
// A report is five numbers of 8 bytes in network order, each of them exchanged for itself: size,
// iterations, and as double peak, average bandwidth and message rate.
//
// An RC queue pair has as many READs and atomics under way as the peer's record says, and
// serves as many as its own does. The Q_Key of datagrams is 0x11111111, and with -R the
// connection manager's. There, in a latency test of datagrams, the client sends one to the server
// before the barrier, with its queue pair's number as immediate value.
//
// # Versions
//
// 6.28 has one more exchange after that of the MTU: a struct of all settings and of what the device
// is, whose size depends on how it was built (312 bytes, or 320 with mlx5dv). It is left out for
// a peer which says that it is older, as this side does; except by the first programs of 6.28,
// which insist. With those no test is possible, and the error says so.
package perftest
