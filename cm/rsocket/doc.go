// Package rsocket speaks the protocol of librdmacm's rsockets, rsocket(7): a stream of bytes over RDMA
// between a Go program and a program in C, such as one that runs with librspreload.so and knows nothing
// of RDMA. [Dial] and [Listen] make connections that are a [net.Conn]:
//
//	conn, err := rsocket.Dial(ctx, "10.1.0.1:7471", rsocket.Options{})
//
//	l, err := rsocket.Listen(ctx, ":7471", rsocket.Options{}) // then http.Serve(l, handler)
//
// Between two Go programs use [cm.Dialer] or [cm.Stream] instead.
//
// # Protocol
//
// Each side has a buffer for received data, which consists of two halves, and a table with two
// entries. The sender of data has one buffer of its peer at a time, fills it by RDMA WRITE, and then
// takes the next one from its own table, where the peer has written it.
//
// The private data of the request and of the answer has 40 bytes. It gives the first half of the
// buffer, the table, and credits: the number of messages with data that the peer may send at first.
// After that:
//
//   - Data is an RDMA WRITE with immediate value into the peer's buffer. The value is the number of
//     bytes. A message does not go beyond the end of the buffer, and its data follows that of the last
//     message, around the end of the second half.
//   - When the receiver has read half of its buffer, it writes the address, key and length of that half
//     into the next entry of its peer's table, beginning with entry 1. The immediate value of this
//     WRITE gives credits: it is the number of the message, of 16 bits, that may not be sent yet.
//     Without a new buffer, a WRITE of no bytes gives credits. Control messages need no credits,
//     but there may be only four at a time on each side.
//   - A control message says that its sender sends no more data, or that it does not receive
//     any either. A connection ends with the latter.
//   - To see whether an idle peer is still there, a side writes no bytes without an immediate value,
//     which the peer does not notice.
//
// The upper three bits of the immediate value say what the message is: 0 data, 4 credits, 6 mapped
// memory, 7 control. The entries of a table are in the byte order of the host that reads them.
// iWARP has no immediate values. There, each WRITE is followed by a SEND of four bytes with the value.
//
// # What is not supported
//
// There are no datagrams and no mapped memory (riomap, riowrite): a peer learns that this side has room
// for no mappings.
//
// # Trust
//
// RDMA has no authentication and no encryption. A peer that violates the protocol ends its connection
// with an error that matches EPROTO. All connections of a process on a device share a PD, so a
// peer that guesses the key of another connection's buffer can write into it; the buffers have no other
// remote access. The keys of a connection are sent in the clear.
package rsocket
