// Package valkey speaks the protocol of Valkey over RDMA (valkey.io/topics/RDMA): a stream of bytes between
// a client and valkey-server, or between valkey-cli or valkey-benchmark and a server in Go. [Dial] and
// [Listen] make connections that are a [net.Conn]. [DialContext] is what go-redis, valkey-go and rueidis
// take as their dialer:
//
//	client := redis.NewClient(&redis.Options{Addr: "10.1.0.1:6379", Dialer: valkey.DialContext})
//
//	l, err := valkey.Listen(ctx, ":6379", valkey.ListenOptions{})
//
// The server must have RDMA: it is built with BUILD_RDMA=yes or BUILD_RDMA=module, and listens with
// "--rdma-bind ADDRESS --rdma-port PORT". Between two Go programs use [cm.Dialer] or [cm.Stream] instead.
//
// # Protocol
//
// Each side announces a buffer, and its peer writes data into it by RDMA WRITE. The immediate value says
// how many bytes there are. When the peer has used all of the buffer, the receiver announces the next one.
// PROTOCOL.md in the folder of this package has the layout. The package is tested with Valkey 8.1 and 9.1.
//
// This side announces the two halves of its buffer in turn. It announces the second while the program still
// reads the first, so the peer can go on.
//
// A connection has a goroutine that handles messages also while the program does not read: a server of
// Valkey sends a command every 3 seconds, and breaks the connection off if many messages wait.
//
// # What is not supported
//
//   - iWARP, whose WRITE has no immediate value: [Dial] fails with an error that matches
//     [errors.ErrUnsupported].
//   - Half-closed connections: the protocol has no message for the end of one direction.
//   - A client whose port has a larger path MTU than the server's: it is refused, since the protocol
//     cannot lower it. See [rdmacm.ID.Accept].
//
// # The end of a connection
//
// The protocol has no message for the end. A peer that closes the connection, and one whose process is
// killed, look the same: Read returns the data that has arrived, and then io.EOF. A value that was cut off
// is therefore an error of the client, such as io.ErrUnexpectedEOF. A host that crashes says nothing; the
// error is then a timeout. A server that is only busy is waited for. Package [cm] says under "The end of a
// connection" what is known after Close.
//
// # Trust
//
// RDMA has no authentication and no encryption. A peer that violates the protocol ends its connection
// with an error that matches EPROTO and says what the peer has done. It can make a connection use no
// more memory than its [Options] say, about 1.3 MiB by default. Package [cm] describes the limits of
// [ListenOptions]. Each connection has a PD of its own, so that no key lets a
// peer write into the buffer of another connection; [Options].Isolation changes that. The keys of a
// connection are sent in the clear.
package valkey
