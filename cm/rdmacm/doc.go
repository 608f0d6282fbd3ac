// Package rdmacm has the connection manager of the Linux kernel step by step, as librdmacm does. It
// talks to the kernel through /dev/infiniband/rdma_cm, without librdmacm, and its peers may use
// librdmacm.
//
// Package [github.com/goverbs/goverbs/cm] is simpler: its connections exchange messages, and both
// sides use it.
//
// # IDs and events
//
// An [ID] is one end of a connection, or a listener, as a socket is for TCP. Its port space is
// [TCP] for reliable connections or [UDP] for datagrams.
//
// A method such as [ID.Connect] only starts an operation. The result is an [Event] on the [Channel]
// of the ID. A method whose name ends in Wait, such as [ID.ConnectWait], also waits for the result.
// [ID.ResolveWait] combines [ID.ResolveAddr] and [ID.ResolveRoute]. There are two ways to handle
// events:
//
//   - One goroutine calls [Channel.Next] for all IDs of a channel.
//   - Each goroutine handles one ID with [ID.Next] and the other methods that wait.
//
// Both park in Go's netpoller and end with a context. [ID.ShareEvents] goes from the second way to
// the first. The exchange of messages needs no events.
//
// A QP that [ID.CreateQP] creates follows the ID: the methods of the ID move it to the state that
// it needs, and closing the ID closes it.
//
// With [ID.SetECE] the two sides agree on options for enhanced connections, as librdmacm does: see
// [ECEMode].
//
// [ID.ResolveRoute] makes the kernel find the route. [ID.Paths] returns its path records, and
// [ID.SetPath] sets a path record instead. [ID.Join] adds an ID for datagrams to a multicast group.
// On Linux 6.18 and later, [ID.WriteEvent] sends an event of the program's own to the reader of a
// channel, and [ID.ResolveService] looks up services with InfiniBand's subnet administrator.
//
// # InfiniBand and iWARP
//
// An ID can use the GID of an InfiniBand port as its address: see [GIDAddr]. With [ID.SetPath] it
// then needs no subnet administrator. Port space [IB] is for addresses of both kinds and has its
// own ports.
//
// On iWARP there are no path records, and a rejection has no reason. [ID.Connect] takes as long as
// TCP does and does not end early with a context.
//
// # Software devices
//
// [OpenChannel] says when a channel is for the devices in software of this
// process (package soft).
//
// # Device removal and changed credentials
//
// When a device is removed, an ID on it gets the event [EventDeviceRemoval], unless it belongs to a
// request that was not answered yet. Close the ID and every other object of the device: the kernel
// waits for them before it removes the device.
//
// The kernel accepts commands on a channel only with the credentials with which it was opened.
// After the process has changed its user or group, open another channel.
//
// # How long a method waits
//
// Each wait ends when the context of its call says so, when the object is closed, and within these
// times when the peer's process, its host or the link dies. A deadline of the context takes the
// place of the 2 min.
//
//	ID.ResolveWait                              1 min
//	ID.ConnectWait                              74 s; 2 min if only the peer's program is silent
//	ID.AcceptWait, ID.DisconnectWait, JoinWait  2 min
//	other events                                a lost peer causes none; a work request fails as the QP's retries say
//
// # Errors
//
// Error types are pointers, such as [*Error]: use [errors.As] or [errors.AsType] to get their
// fields.
//
// The first sentence says when an error comes, and the others what to do:
//
//   - [ArgError]: an argument is not valid, and the kernel was not asked; it matches EINVAL. Correct the
//     argument: the error has the field, the value given and the values allowed.
//   - [Error]: a command failed at once; it matches the errno. Report it: Hint has the usual cause and
//     what to do about it, if they are known.
//   - [EventError]: an operation failed later, or another event came than the expected one; it matches the
//     errno. Close the ID, and try again with another one if the peer may accept later. [Event.Err] returns it
//     for an event.
//   - [ErrNoECE]: a side requires options for enhanced connections, and the sides have none in common. Connect
//     with [ECEOptional] or [ECEOff].
//   - [uverbs.FeatureError]: the kernel or the driver does not support the feature; it matches
//     [errors.ErrUnsupported]. Do without it.
//   - [os.ErrClosed]: the object was closed. End the goroutine that uses it.
package rdmacm
