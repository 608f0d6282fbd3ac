// Package umad sends and receives InfiniBand management datagrams (MADs) through
// /dev/infiniband/umadN, without libibumad. Package mad encodes and decodes them.
//
// # Ports and agents
//
// [Open] opens a port of an RDMA device. [Port.Register] makes an [Agent], which sends the requests of
// one management class and gets the answers to them, or serves the requests of others:
//
//	port, err := umad.Open("mlx5_0", 1)
//	agent, err := port.Register(umad.AgentOptions{Class: mad.ClassSubnLID})
//	var info mad.PortInfo
//	err = agent.Query(ctx, umad.Addr{LID: 2}, mad.NewSMP(mad.MethodGet, mad.AttrPortInfo, 0), &info)
//
// Subnet management (classes 0x01 and 0x81) uses QP0, which only InfiniBand ports with a subnet
// management interface (SMI) have. RoCE ports have QP1 only. So do most virtual functions, but there the
// driver mlx5 fails only when something is sent. With RoCE an [Addr] needs a GID instead of a LID, an IPv6
// one: the kernel does not match answers that come over IPv4.
//
// A card with several planes has a device of its own for subnet management, which "verbs dev add" makes and
// whose type is SMI. Open then opens both devices, whichever of them is named.
//
// The file has mode 0600 by default, so a program needs root or a udev rule. A port that is not active
// yet can be opened too; that is how a subnet manager configures it.
//
// # Requests
//
// [Agent.Do] sends a request and returns its answer. Any number of goroutines can call it at once; up to
// [AgentOptions].Window calls wait for an answer, since switches drop requests that arrive faster than they
// can process them. A request that is not answered is sent again, see [AgentOptions]. A call whose context
// ends stops waiting within 10 ms; the kernel keeps its request until the time-out.
//
// One goroutine receives for all agents of a port, and keeps a thread while it waits: that of an agent that
// serves requests, and otherwise one of the calls that wait.
//
// Answers of the subnet administrator of any length arrive whole: the kernel assembles them (RMPP). The
// time limit of a request covers all packets of its answer. The kernel does not report that the peer
// aborted such an answer; the request then times out.
//
// Package [github.com/goverbs/goverbs/uverbs/umad/sa] finds the subnet administrator and asks it for records.
// Package [github.com/goverbs/goverbs/uverbs/umad/fabric] walks a subnet, and finds what is wrong with it.
//
// # Errors
//
//   - [*Error] reports a failed call, with a hint. It unwraps to its cause.
//   - [ErrNoQP0]: the port has no QP0. The error also matches [errors.ErrUnsupported].
//   - [ErrDeviceRemoved]: the device was removed; only Close still works.
//   - [*TimeoutError]: a request was not answered. It matches [os.ErrDeadlineExceeded].
//   - [*mad.StatusError] and [*mad.RMPPError]: the answer reports an error.
//   - [io/fs.ErrNotExist]: there is no such device or port. [io/fs.ErrPermission]: the file may not be
//     opened. [errors.ErrUnsupported]: module ib_umad is not loaded, or the port has no MADs at all.
//   - [os.ErrClosed]: the agent or port was closed.
//
// # Subnets
//
// Package fabric, below this one, walks a whole subnet: nodes, links and their speeds, the way of packets.
//
// # Not supported
//
// Sending messages of several packets, following a redirection that names only a GID, the P_Key of a
// redirection (requests keep the PKeyIndex of the first address), and ports of several planes whose QP0
// belongs to another device.
package umad
