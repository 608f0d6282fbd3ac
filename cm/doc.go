// Package cm connects programs over RDMA, by IP address. It is RDMA's connection manager in Go on
// nothing but the Linux kernel's /dev/infiniband/rdma_cm: no librdmacm.
//
// # Messages
//
// A server listens and accepts, a client dials, and both get a [Conn]:
//
//	l, err := cm.Listen(ctx, ":7471", cm.ListenOptions{})
//	conn, err := l.Accept(ctx)
//
//	conn, err := cm.Dial(ctx, "10.1.0.1:7471", cm.DialOptions{})
//
// The address is the IP address of the network interface that belongs to the RDMA device. Messages
// arrive whole and in order. [Conn.Send] returns when the message is copied and on its way; it
// waits while the receiver has no room. [Conn.Recv] returns a message in memory of the connection,
// which is valid until the next Recv:
//
//	err = conn.Send(ctx, []byte("hello"))
//	msg, err := conn.Recv(ctx) // io.EOF after the peer's last message
//
// Close delivers everything that was sent before. A connection that ends in another way is an error
// that matches ECONNRESET if the peer is gone, or ETIMEDOUT if it no longer answers.
//
// All methods of a Conn are safe for concurrent use. A Conn has no goroutine: the goroutines that
// wait in its methods poll for all of them. [WaitMode] says whether they poll for a while before
// they park, always, or not at all.
//
// Both sides must use this package, since a Conn puts its own header into the private data and into
// each message. PROTOCOL.md describes it. For other peers use an [ID].
//
// # Streams
//
// [DialStream] and [Conn.Stream] make a [Stream], which is a net.Conn: deadlines, half-close and
// all. A server gets streams from [Listener.Streams]. net/http, gRPC and crypto/tls work over them.
//
// # Memory of the peer
//
// A Conn also reads and writes the peer's memory, without the peer's program: [Conn.RDMAWrite],
// [Conn.RDMARead], [Conn.FetchAdd] and [Conn.CompareSwap]. The owner registers memory with [Conn.PD]
// and sends its address and key, a [Remote], to the other side:
//
//	mr, err := conn.PD().RegMR(buf, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite)
//	b, err := cm.RemoteOf(mr).MarshalBinary() // then conn.Send(ctx, b)
//
//	err = remote.UnmarshalBinary(msg)
//	err = conn.Write(ctx, localMR.SGE(0, n), remote)
//
// To send a Remote as private data of the request or the answer, register the memory before there
// is a connection: with [DialOptions].Prepare on the side that dials, and with [Request.PD] in
// [ListenOptions].Check on the side that listens.
//
// # Datagrams and multicast
//
// [ListenPacket] and [DialPacket] make a [PacketConn]. [PacketConn.Join] joins a multicast group.
//
// # Step by step
//
// To connect to a program that does not use Conn, such as one with librdmacm, use an [ID]. It is
// one end of a connection, or a listener, as a socket is for TCP. Its port space is [TCP] for
// reliable connections or [UDP] for datagrams.
//
// A step such as [ID.Connect] only begins something, and its result is an [Event] on the [Channel]
// that the ID belongs to. A step whose name ends in Wait, such as [ID.ConnectWait], begins the same
// thing and waits for the result. [ID.ResolveWait] does so for [ID.ResolveAddr] and
// [ID.ResolveRoute]. There are two ways to handle events:
//
//   - One goroutine calls [Channel.Next] for all IDs of a channel.
//   - Each goroutine handles one ID with [ID.Wait] and with the steps that wait.
//
// Both park in Go's netpoller and end with a context.
//
// A QP made with [ID.CreateQP] follows the ID: each step brings it to the state that is needed, and
// closing the ID closes it.
//
// [ID.ResolveRoute] makes the kernel find the route. [ID.Paths] returns its path records, and
// [ID.SetPath] sets one instead. [ID.Join] makes an ID of datagrams a member of a multicast group.
// On Linux 6.18 and later, [ID.WriteEvent] sends an event of the program's own to the reader of a
// channel, and [ID.ResolveService] looks up services with InfiniBand's subnet administrator.
//
// # InfiniBand and iWARP
//
// The kernel finds the device of an IP address by the network interface. On InfiniBand that is the
// interface of IP over InfiniBand, which has no carrier without a subnet administrator. An ID can
// use the GID of an InfiniBand port as its address instead: see [GIDAddr]. With [ID.SetPath] no
// administrator is needed then. Dial and Listen take IP addresses only. Port space [IB] is for
// addresses of both kinds, with ports of its own.
//
// On iWARP the kernel connects by TCP and moves the QP itself. The side that connects sends first:
// a Conn does so by itself, and what the other side sends waits for it. There are no datagrams,
// groups or path records, a rejection has no reason, and ID.Connect takes as long as TCP does,
// whatever the context says.
//
// # When a device or a privilege goes away
//
// When a device is removed, everything on it ends with an error that matches ENODEV: connections,
// datagrams, Dial, and listeners on its address. A listener on all addresses goes on with the other
// devices. An ID gets the event [EventDeviceRemoval], unless it belongs to a request that was not
// answered yet. Close the ID and every other object of the device: the kernel waits for them before
// it removes the device.
//
// The kernel accepts commands on a channel only with the credentials with which the channel was
// opened. When the process changes its user or group, listeners and datagrams end with EACCES at
// their next event. The kernel considers the port taken until the listener's connections are closed
// too. Connections stay, but only their own messages tell them whether the peer is still there. New
// connections and listeners work, if the new user may open the devices.
//
// # Trust
//
// RDMA has no authentication and no encryption. Any host that reaches the port can connect, and
// anyone who sees the packets can read them. A [Conn] checks that its peer follows the protocol. A
// peer that does not loses its own connection, with EPROTO, and affects no other.
//
// A [Remote] is a bearer token: it works for every peer on the same PD that knows it. By default
// all connections of a process on a device share a PD; [ConnOptions].Isolation gives a listener or
// each connection a PD of its own. The memory for messages has no remote rights. Soft iWARP lets a
// peer read all memory of the PD whose key it knows, whatever its rights.
//
// [ListenOptions].Check decides about strangers before they get any memory, and Backlog, HalfOpen,
// MaxConns and MaxMemory limit them. On networks that are not trusted, use crypto/tls over a
// [Stream]: it authenticates the peer and encrypts the stream, but not RDMA operations. SECURITY.md
// says more.
//
// # Errors
//
// Errors with fields are pointers, such as [*Error]: find them with [errors.As] or [errors.AsType].
// Compare with single errors, such as errnos, by [errors.Is].
//
//   - [ArgError]: the package refused an argument without asking the kernel. It matches EINVAL.
//   - [uverbs.FeatureError]: the kernel or the driver does not support the feature. It matches
//     [errors.ErrUnsupported].
//   - [Error]: a command failed at once. It matches the errno.
//   - [EventError]: a step failed later. [Event.Err] says in words what the status of an event
//     means: an errno, or the reason why the peer rejected the connection.
//   - [RefusedError]: the listener rejected the connection and said why. It matches ECONNREFUSED.
//   - [os.ErrClosed]: the object was closed.
//   - Other errors of package uverbs, such as [uverbs.Error], if a verb failed.
package cm
