// Package netlinkrdma lists the RDMA devices of a Linux host and adds and
// deletes software ones. It asks the kernel over a NETLINK_RDMA socket, the way
// the rdma program of iproute2 does, and needs no library, no daemon and, where
// the kernel answers, no /sys.
//
// # Devices and ports
//
// [Devices] lists what this network namespace can see, [DeviceByName] picks one:
//
//	dev, err := netlinkrdma.DeviceByName("rxe0")
//	if errors.Is(err, fs.ErrNotExist) {
//		// err names the devices that there are.
//	}
//	fmt.Println(dev.Name, dev.NodeGUID, dev.Protocol, dev.DriverID)
//
// [Ports] tells the state, the link layer and the network interface of each
// port of a device:
//
//	ports, err := netlinkrdma.Ports(dev)
//	for _, p := range ports {
//		fmt.Println(p.Num, p.State, p.LinkLayer, p.Netdev)
//	}
//
// The device to hand over is one that Devices or DeviceByName returned: the
// kernel knows it by its index. Both are snapshots. A device may be unplugged at
// any time; the next call with it then fails with an error that matches
// [fs.ErrNotExist]. So does Ports if the device has another name by now.
//
// # Char devices
//
// Commands for a device go to its uverbs char device, those of the connection
// manager to rdma_cm. [UverbsDev] and [CMDev] give the name, the device number
// and the ABI version of these, and ask the kernel to load the modules behind
// them if it can.
//
//	uverbs, err := netlinkrdma.UverbsDev(dev)
//	f, err := os.OpenFile(uverbs.Path(), os.O_RDWR, 0)
//
// Compare the device number of the opened file with Major and Minor: a path in
// /dev may be stale.
//
// # Software devices
//
// [AddLink] makes a RoCE device (rxe) or an iWARP device (siw) out of any network
// interface, [DeleteLink] removes it. Both need CAP_NET_ADMIN.
//
//	err := netlinkrdma.AddLink("rxe0", netlinkrdma.RXE, "eth0")
//
// # Network namespaces
//
// The socket belongs to the network namespace of the calling thread, and the
// answer is that namespace's view: with "rdma system set netns exclusive" only
// its own devices, and in both modes only its own network interfaces. To ask in
// another namespace, lock the goroutine to its thread and enter it first.
//
// # Errors
//
// Failed calls return an [*Error], which names what was asked, the device and,
// where it is known, what to do about it. It unwraps to the errno. Besides:
//   - [fs.ErrNotExist]: no such device, no such network interface, or no trace of
//     RDMA in this kernel.
//   - [fs.ErrExist]: a link of that name or on that interface exists.
//   - [fs.ErrPermission]: CAP_NET_ADMIN is missing, or a policy is in the way.
//   - [errors.ErrUnsupported]: no char device, as its module is not loaded or the
//     driver has none.
//
// # Without netlink
//
// Where a NETLINK_RDMA socket cannot be had at all (a sandbox forbids it), the
// listing functions read /sys/class instead. What sysfs does not tell stays
// zero and [Device.FromSysfs] is set. An answer of the kernel over netlink, good
// or bad, is final and never followed by a look at sysfs.
//
// # What is not here
//
// Resources, counters and events of devices; renaming devices and moving them
// between namespaces. GIDs are the business of the uverbs package.
//
// All functions may be called concurrently; each uses a socket of its own. The
// kernel answers at once, except for links, where it may have to load a module.
// Linux 5.10 or newer.
package netlinkrdma
