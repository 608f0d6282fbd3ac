// Package fabric walks an InfiniBand subnet by its management datagrams: which nodes there are, how they
// are linked, what the links could do, which way packets go, and what is wrong. It needs no subnet
// manager for that, unless a packet is to have a way.
//
//	port, err := umad.Open("mlx5_0", 1)
//	f, err := fabric.Discover(ctx, port, fabric.Options{})
//	for a, b := range f.Links() {
//		fmt.Println(a, "-", b, a.Lanes(), "lanes", a.Speed())
//	}
//
// # Walk
//
// [Discover] asks every node for NodeInfo, NodeDescription, SwitchInfo and the PortInfo of its ports, and then the neighbors
// of its ports, as libibnetdisc of rdma-core does, but with up to [Options].Parallel requests at once. Switches drop
// requests that come faster than their agents can answer; they are sent again, and a smaller Parallel helps.
// Memory grows with the number of ports (about 400 bytes each) and does not depend on how often the
// program walks.
//
// A node is identified by its node GUID, and a port by the node and the number of the port, as all ports
// of a switch have the same port GUID. Nodes that do not answer, links that change meanwhile, and GUIDs
// that are not unique end up in [Fabric].Problems, and so does [Options].MaxNodes if there are more nodes. So the walk ends in
// any case: routes have at most 63 ports, and MaxNodes limits the nodes.
//
// # Errors
//
//   - [syscall.EINVAL]: an option or an argument is out of range; the error has its name, its value and the range.
//   - [umad.ErrNoQP0]: the port is one of RoCE, or of a virtual function without subnet management.
//   - [umad.TimeoutError]: the own node does not answer. Other nodes cause a [Problem].
//   - [Conflict]: the own node answers with the number of a port that it does not have.
//   - [umad.ErrDeviceRemoved], [os.ErrClosed], and the error of the context.
//
// All functions can be called concurrently, also with the same port.
package fabric
