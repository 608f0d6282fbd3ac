// Package cm connects programs over RDMA by IP address. It talks to the connection manager of the
// Linux kernel through /dev/infiniband/rdma_cm, without librdmacm.
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
// arrive whole and in order. [Conn.Send] copies the message and returns; it waits while the
// receiver has no room. [Conn.Recv] returns a slice that is valid until the next Recv:
//
//	err = conn.Send(ctx, []byte("hello"))
//	msg, err := conn.Recv(ctx) // io.EOF after the peer's last message
//
// [Conn.Close] delivers everything that was sent before. If a connection breaks, its methods fail
// with an error that matches ECONNRESET if the peer is gone, or ETIMEDOUT if it no longer answers.
//
// [Conn.RecvInto] copies the message into memory of the program instead. [Conn.SendSGE] sends
// registered memory without a copy.
//
// All methods of a Conn are safe for concurrent use, except that Recv is for one goroutine at a
// time; package [uverbs] has the table for the whole library, under Concurrency. A goroutine that waits in
// one of its methods also handles the completions of the others. A
// Conn has a goroutine of its own only while none of the program waits, until it has all of its
// memory. [WaitMode] says whether a goroutine that waits polls for a while before it sleeps, polls
// all the time, or sleeps at once. It sleeps in [uverbs.CompChannel.Next], with the default of
// SetBusyWait.
//
// Both sides must use this package, since a Conn puts its own header into the private data and into
// each message. PROTOCOL.md describes the protocol, with a picture of a connection from Dial to Close:
// https://github.com/goverbs/goverbs/blob/main/cm/PROTOCOL.md
//
// # Streams
//
// [DialStream] and [Conn.Stream] make a [Stream], which is a net.Conn with deadlines and
// half-close. A server gets streams from [Listener.Streams]. net/http, gRPC and crypto/tls work
// over them.
//
// A [Dialer] connects by RDMA where that is possible, and otherwise by TCP. A [ListenConfig] accepts
// both on the same port. They take the place of [net.Dialer] and [net.ListenConfig]:
//
//	l, err := new(cm.ListenConfig).Listen(ctx, "tcp", ":8080") // then http.Serve(l, handler)
//
//	var d cm.Dialer
//	transport := &http.Transport{DialContext: d.DialContext}
//
// Package [github.com/goverbs/goverbs/cm/rsocket] has streams for peers that use librdmacm's rsockets.
//
// # Memory of the peer
//
// A Conn also reads and writes memory of the peer without involving the peer's program:
// [Conn.RDMAWrite], [Conn.RDMARead], [Conn.FetchAdd] and [Conn.CompareSwap]. The owner registers
// memory with [Conn.PD] and sends its address and key, a [Remote], to the peer:
//
//	mr, err := conn.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite})
//	b, err := cm.RemoteOf(mr).MarshalBinary() // then conn.Send(ctx, b)
//
//	err = remote.UnmarshalBinary(msg)
//	err = conn.RDMAWrite(ctx, localMR.SGE(0, n), remote)
//
// These methods wait. To have many operations in flight without a goroutine for each, start them
// with [Conn.StartRead] and the like, or several with one doorbell by a [Batch]. They complete in
// order, so waiting for the last [Op] is enough:
//
//	for i := range n {
//		if op, err = conn.StartRead(ctx, mr.SGE(i*size, size), remote.At(uint32(i*size))); err != nil {
//			return err
//		}
//	}
//	err = op.Wait(ctx)
//
// To send a Remote as private data of the request or the answer, register the memory before there
// is a connection: in [DialOptions].Prepare on the side that dials. The side that listens does it in
// [ListenOptions].Prepare for memory that all peers use, and with [Request.PD] in [ListenOptions].Check
// for memory of one peer.
//
// # Datagrams and multicast
//
// [ListenPacket] and [DialPacket] make a [PacketConn], which is a [net.PacketConn]. [PacketConn.Join]
// joins a multicast group.
//
// # Other peers
//
// To connect to a program that does not use Conn, such as one with librdmacm, use package
// [github.com/goverbs/goverbs/cm/rdmacm], which has the steps of librdmacm.
//
// # InfiniBand and iWARP
//
// The kernel finds the device of an IP address by the network interface. On InfiniBand that is an
// IP over InfiniBand interface, which has no carrier without a subnet administrator. Dial and Listen
// take IP addresses only.
//
// On iWARP the kernel connects by TCP and moves the QP itself. The side that connects must send
// first. A Conn does so by itself, and the first Send of the listening side waits for it. There are
// no datagrams or multicast groups.
//
// # Software devices
//
// A process can have RDMA software devices (package soft), which need no driver. For these the
// package carries out the connection manager itself, in the process. On the wire it behaves as the
// kernel's does for RoCE v2, so peers may have any other device.
//
// Dial, Listen, DialPacket and ListenPacket use a software device if it has the local address, or
// without one, the remote address or the address from which packets to it are sent. If the kernel has
// no RDMA device they always do.
//
// Differences from the kernel: loopback addresses are ordinary addresses if a software device has
// one. Addresses are not looked up on the network, so the attempt to connect to a host that is down
// ends only when nobody answers; it is repeated each second instead of every 4. A device that is
// made without an address has no socket, and connects within the process only. Ports below 1024
// need no rights. When a process is killed, nothing tells its peers; they notice it when a message
// or a keep-alive fails.
//
// # Device removal and changed credentials
//
// When a device is removed, everything on it ends with an error that matches ENODEV: connections,
// datagrams, Dial, and listeners on its address. A listener on all addresses continues on the other
// devices. The kernel waits for the program to close every object of the device.
//
// The kernel accepts commands on a channel only with the credentials with which the channel was
// opened. When the process changes its user or group, listeners and datagrams end with EACCES at
// their next event. The kernel considers the port taken until the listener's connections are closed
// too. Existing connections continue, but get no more events; they notice a lost peer only when a
// message or a keep-alive fails. New connections and listeners work if the new user may open the
// devices. The commands of a channel then go through one thread, and all calls of [Dial] share a
// channel: a device that hangs holds up the others.
//
// # Trust
//
// RDMA has no authentication and no encryption. Any host that reaches the port can connect, and
// anyone who sees the packets can read them. A [Conn] checks that its peer follows the protocol. If
// the peer violates it, the connection ends with EPROTO; other connections are not affected.
//
// A [Remote] is a bearer token: it works for every peer on the same PD that knows it. By default
// all connections of a process on a device share a PD; [ConnOptions].Isolation gives a listener or
// each connection a PD of its own. The memory for messages has no remote access rights. Soft iWARP
// lets a peer read any memory of the PD whose key it knows, whatever the rights of the memory.
//
// A [PacketConn] takes datagrams of any host. None of them ends it: on some devices a datagram that is
// longer than its receive breaks the queue pair, which Recv then makes ready again. Datagrams that are
// in the queues at that time are lost.
//
// [ListenOptions].Check can reject a request before it gets any memory. On networks that are not
// trusted, use crypto/tls over a [Stream]: it authenticates the peer and encrypts the stream, but not
// RDMA operations. SECURITY.md says more.
//
// # Limits of listeners
//
// The listeners of this package, rsocket and valkey have these options. A negative value of the last
// three is no limit.
//
//	option     limits                                                zero is
//	Backlog    connections that wait for Accept, including requests  1024, at most 1048576
//	HalfOpen   requests whose peer has not completed the connection  half of Backlog
//	MaxConns   connections, including requests                       16384
//	MaxMemory  bytes that the connections may need                   half of the machine's or container's
//	AddrShare  what one address may hold of the limits, in percent   75
//
// Each connection counts with the result of MemoryPerConn for MaxMemory. An IPv6 address counts as its
// network of 64 bits; on devices of the kernel it is what a request says. At a limit, a new request
// replaces a half-open one that is at least half a second old, of the address with the most, if that
// has more; otherwise one that is at least three seconds old. If there is none, it is refused, and Dial tries
// again until its time is over. An address that holds its share replaces only its own. A peer has 30 seconds
// to complete a connection. Until then the connection has a few KiB and its queues. The option Refused, if
// set, is told of each refusal.
//
// # The end of a connection
//
// If Close returns nil, and no other call has failed, the peer reads everything that was sent and then io.EOF.
// This holds for Conn, Stream, rsocket and valkey, unless the peer has ended the connection itself, by Close or
// because its side has failed or its process has died. The protocols that others speak, too, have exceptions:
//
//   - valkey has no message for the end, which is the disconnect of the connection manager. Close waits until the
//     peer's program has answered it, up to Linger, and returns an error if it has not, though all data has
//     arrived. Other programs for Valkey do not wait: if their disconnect is lost, it is not repeated, and
//     Read returns ETIMEDOUT behind the last byte. The kernel disconnects for a process that is killed, which looks
//     like a Close.
//   - rsocket on iWARP cannot see what the peer has. There Close returns nil when TCP has taken everything and the
//     peer has given all credits for it, or both sides have ended their direction. The peer or the network may still
//     fail then, and a peer that sends after a Close may lose the end of what it has to read, as with TCP.
//
// # How long a method waits
//
// Each wait ends when the context, deadline or option of its call says so, when the object is closed, and
// within these times when the peer's process, its host or the link dies. A process that is killed on a
// kernel device is reported at once.
//
//	method                             ends after
//	Dial, DialPacket                   Timeout for each address of the host: 10 s, also of rsocket and valkey
//	Accept                             does not wait for a peer: a half-open request ends after 30 s
//	Conn, Stream: sending, RDMA        T = 3 * (RetryCount+1) * AckTimeout, and 1 s per MB outstanding: 6.5 s
//	Conn, Stream: receiving            T + 2 * KeepAlive if idle: 37 s
//	Conn.Close, Stream.Close           Linger + 1 s: 6 s
//	rsocket, valkey: Write             7 attempts of the device: 4 s, and on cards up to 15 s
//	rsocket, valkey: Read              17 s + 2 * KeepAlive if idle: 47 s
//	rsocket, valkey: Close             Linger + 1 s: 6 s
//	PacketConn: Send, Leave, Close     at once; Recv does not wait for a certain peer
//	PacketConn.Join                    2 min
//
// The times apply to the default options. A deadline of the context takes the place of Timeout and the 2 min. A
// peer that lives but does not read may be waited for without limit, as with TCP. With a negative
// KeepAlive an idle connection does not notice a dead peer. On iWARP, rsocket depends on TCP, which
// gives up after about 15 minutes. There a listener may send nothing before the first message of its peer,
// so that it does not notice a peer whose host dies before that.
//
// A peer lives as long as its device answers. Devices of the kernel answer while the process is stopped, as by
// SIGSTOP or a debugger. A software device is part of the process and stops with it. Nothing that arrives tells
// such a peer from one whose host is down, so the connection ends within the times above.
//
// # Errors
//
// Error types are pointers, such as [*Error]: use [errors.As] or [errors.AsType] to get their
// fields. Use [errors.Is] to compare with an errno or another error value.
//
// Besides those of package uverbs there are the following. The first sentence says when an error comes, and
// the others what to do:
//
//   - [ArgError]: an argument is not valid, and the kernel was not asked; it matches EINVAL. Correct the
//     argument: the error has the field, the value given and the values allowed.
//   - [uverbs.FeatureError]: the kernel, the driver or a sandbox does not support the feature; it matches
//     [errors.ErrUnsupported]. Do without it, or connect by TCP, as a [Dialer] does by itself.
//   - [Error]: a command failed at once; it matches the errno. Report it: Hint has the usual cause and
//     what to do about it, if they are known.
//   - [EventError]: an operation of the connection manager failed later; it matches the errno, such as
//     ECONNREFUSED. Check the address and the listener there, or try again later.
//   - [RefusedError]: the listener rejected the connection and said why; it matches ECONNREFUSED. Report
//     Why, or try again later if the listener is full.
//   - [io.EOF]: the peer has called Close or CloseWrite, and all its messages were received. Send the rest,
//     if there is any, and close the connection.
//   - EPIPE: this side has called CloseWrite, or the peer has closed the connection. Receive the rest, and
//     close it.
//   - ECONNRESET: the peer is gone without closing the connection, or the device has ended it, most likely
//     because an RDMA operation of the peer was refused. Close it, and dial again; the peer may not have
//     received the last messages.
//   - ETIMEDOUT: the peer no longer answers. Do the same as for ECONNRESET.
//   - EPROTO: the peer violated the protocol. Check which program listens there.
//   - ENODEV: the device is being removed. Close everything on it.
//   - [os.ErrClosed]: this side has closed the object. End the goroutine that uses it.
package cm
