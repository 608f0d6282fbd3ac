// Package cm is RDMA's connection manager in Go, with nothing underneath but the Linux
// kernel's /dev/infiniband/rdma_cm: no librdmacm.
//
// # Connections
//
// [Dial], [Listen] and [Listener.Accept] make a [Conn], which sends and receives messages from
// memory that is registered already, keeps a fast sender from overrunning a slow receiver,
// reads and writes the peer's memory, and delivers what was sent when it is closed. Both sides
// use this package: the first bytes of the private data, and of each message, are its own. A
// Conn has no goroutine; those that wait in its methods poll for all of them, for a while or
// always or not at all before they park ([WaitMode]).
//
// Memory that the peer is to write to or read can be told of by private data: [Options].Prepare and
// [Request] have the PD to register it with before there is a connection.
//
// [ListenPacket] and [DialPacket] make a [PacketConn], for datagrams and multicast.
//
// To speak to a program that does not use Conn, take the steps below.
//
// # Identifiers and events
//
// An [ID] is an end of a connection, or a listener, as a socket is for TCP. It has a port
// space, [TCP] for reliable connections and [UDP] for datagrams. Steps such as
// [ID.ResolveAddr] and [ID.Connect] only begin something; how it ended is an [Event] on the
// [Channel] that the ID belongs to. A channel has any number of IDs. Either a program reads
// all of its events, with [Channel.Next], or goroutines deal with an ID each and wait for what
// happens to that alone: [ID.Wait], and the steps that wait, such as [ID.Resolve] and
// [ID.ConnectWait]. Both park in Go's netpoller, and end with a context.
//
// A QP that was made with [ID.CreateQP] follows the ID: it is brought to the state that each
// step needs, and closed with the ID.
//
// # iWARP
//
// On iWARP the kernel connects by TCP and moves the QP itself. The side that connects has to send
// first, which a Conn does by itself: what the other sends waits for that. There are no
// datagrams, groups and path records, a rejection has no reason, and the ID's Connect takes as
// long as TCP does, whatever the context says.
//
// # Paths, groups and services
//
// [ID.ResolveRoute] has the kernel find the route, whose path records [ID.Paths] tells;
// [ID.SetPath] gives one instead. [ID.Join] makes an ID of datagrams a member of a multicast
// group. [ID.WriteEvent] sends a program's own event to who waits on a channel, and
// [ID.ResolveService] looks services up with InfiniBand's subnet administrator; both are of
// Linux 6.18.
//
// # InfiniBand
//
// From an IP address the kernel finds the device by the network interface: on RoCE that of the
// device, on InfiniBand that of IP over InfiniBand, which has no carrier without a subnet administrator.
// The address of an InfiniBand port may also be its GID: [GIDAddr], [ID.BindTo] and [ID.ResolveTo]; with
// [ID.SetPath] no administrator is needed then. Dial and Listen take IP addresses alone. Port space
// [IB] is for addresses of both kinds, with ports of its own.
//
// # The end of devices, and of rights
//
// When a device is removed all that is on it ends with an error that matches ENODEV: connections,
// datagrams, Dial and the listeners on its address, while one on all addresses goes on with the other
// devices. An ID gets [DeviceRemoval], unless it is one of a request that was not answered yet. It is to
// be closed, as all that the program has of the device: the kernel waits for it.
//
// The kernel takes commands under the credentials with which a channel was opened, and no others.
// When the process changes user or group listeners and datagrams end, with EACCES, at the next event
// for one of them; to the kernel the port is taken until a listener's connections are closed too.
// Connections stay, but hear only by their own messages whether the peer is there. What is opened
// afterwards works, if the new user may open the devices.
//
// # Trust
//
// RDMA has no authentication and no encryption. Any host that reaches the port can connect, and anyone
// who sees the packets can read them. What a [Conn] checks is that its peer keeps to the protocol, which
// PROTOCOL.md describes: a peer that does not loses its own connection, with EPROTO, and affects no other.
//
// A [Remote] is a bearer token: it works for every peer on the same PD that knows it, whoever it was meant
// for. By default all connections of a process on a device share a PD; [Options].Isolation gives a listener
// or each connection one of its own. The memory for messages has no remote rights. Soft iWARP lets a peer
// read all memory of the PD whose key it knows, whatever its rights.
//
// Decide about strangers in [Options].Check, which runs before they get any memory, and bound them by Backlog,
// HalfOpen, MaxConns and MaxMemory. Use crypto/tls over a [Stream] on networks that are not trusted: it
// authenticates the peer and encrypts the stream, though not RDMA operations. SECURITY.md says more.
//
// # Errors
//
// What is not possible is refused before the kernel is asked, by an [ArgError]. What the
// kernel refuses at once is an [Error]. What fails later is an event with a status, and
// [Event.Err] says in words what it means: an errno, or the reason for which the peer has
// rejected the connection. What kernel or device lack is an [uverbs.FeatureError], which
// matches [errors.ErrUnsupported].
package cm
