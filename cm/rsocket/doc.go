// Package rsocket speaks the protocol of librdmacm's rsockets, rsocket(7): a stream of bytes over RDMA
// between a Go program and a program in C, such as one without support for RDMA that runs with
// librspreload.so. [Dial] and [Listen] make connections that are a [net.Conn]:
//
//	conn, err := rsocket.Dial(ctx, "10.1.0.1:7471", rsocket.Options{})
//
//	l, err := rsocket.Listen(ctx, ":7471", rsocket.ListenOptions{}) // then http.Serve(l, handler)
//
// Between two Go programs use [cm.Dialer] or [cm.Stream] instead.
//
// # Protocol
//
// Each side writes its data into a buffer of its peer by RDMA WRITE. The immediate value says how many
// bytes there are; on iWARP, where a WRITE has no immediate value, a SEND of four bytes follows.
// The receiver announces the halves of its buffer in turn as its program reads, and gives credits.
// PROTOCOL.md in the folder of this package has the layout. It is the same in all releases of
// rdma-core since 28.
//
// A connection has no goroutine that reads ahead, except on iWARP. The peer's messages are handled while a goroutine is
// in a method of the connection, as in librdmacm.
//
// # Mapped memory
//
// A side can also give its peer memory to write at any time (riomap): see [Conn.Map] and [Conn.WriteAt].
//
// # What is not supported
//
//   - Datagram sockets (SOCK_DGRAM of rsockets, which udpong uses). librdmacm sends datagrams without
//     a GRH, so they work on InfiniBand only; with RoCE, rxe and iWARP udpong does not reach even
//     itself. Use [cm.PacketConn] between two Go programs.
//   - Out-of-band data, ancillary data, and addresses of the family AF_IB.
//   - A client whose port has a larger path MTU than the listener's: it is refused, since the protocol
//     cannot lower it. See [rdmacm.ID.Accept].
//
// # Trust
//
// RDMA has no authentication and no encryption. A peer that violates the protocol ends its connection
// with an error that matches EPROTO and says what the peer has done. It can make a connection use no
// more memory than its [Options] say, about 260 KiB by default. Package [cm] describes the limits of
// [ListenOptions] and how long each method waits for a dead peer. Each connection has a PD of its own, so
// that no key lets a peer write into the buffers of another connection; [Options].Isolation changes
// that. The keys of a connection are sent in the clear.
package rsocket
