// Package netlinkrdma lists the RDMA devices of a Linux host, shows which processes use them,
// changes their settings, and adds and deletes software devices. It asks the kernel over a
// NETLINK_RDMA socket, as the program rdma of iproute2 does.
//
// # Devices and ports
//
// [Devices] lists the devices that this network namespace can see, and [DeviceByName] finds one:
//
//	dev, err := netlinkrdma.DeviceByName("rxe0")
//	if errors.Is(err, fs.ErrNotExist) {
//		// err names the devices that exist.
//	}
//	fmt.Println(dev.Name, dev.NodeGUID, dev.Protocol, dev.DriverID)
//
// [Ports] returns the state, the link layer and the network interface of each port:
//
//	ports, err := netlinkrdma.Ports(dev)
//	for _, p := range ports {
//		fmt.Println(p.Num, p.State, p.LinkLayer, p.Netdev)
//	}
//
// Functions that take a [Device] need one that Devices or DeviceByName returned, since the kernel
// identifies a device by its index. A Device and a [Port] are snapshots. A device may be removed at
// any time; the next call with it then fails with an error that matches [fs.ErrNotExist]. Most
// calls also fail in this way if the device was renamed.
//
// # Char devices
//
// Commands for a device go to its uverbs character device, management datagrams to the umad
// character device of a port, and commands for the connection manager to rdma_cm. [UverbsDev],
// [UMADDev] and [CMDev] return their names, device numbers and ABI versions, and ask the kernel to
// load the modules.
//
//	uverbs, err := netlinkrdma.UverbsDev(dev)
//	f, err := os.OpenFile(uverbs.Path(), os.O_RDWR, 0)
//
// Compare the device number of the opened file with Major and Minor: a path in /dev may be stale.
//
// # Software devices
//
// [AddLink] creates a RoCE device (rxe) or an iWARP device (siw) on any network interface, and
// [DeleteLink] removes it. Both need CAP_NET_ADMIN.
//
//	err := netlinkrdma.AddLink("rxe0", netlinkrdma.RXE, "eth0")
//
// # Resources
//
// The kernel keeps track of the objects of each device, including those of other processes.
// [Resources] counts them. [QPs], [CQs], [MRs], [PDs], [CMIDs], [Contexts] and [SRQs] list them,
// each with its [Owner]:
//
//	qps, err := netlinkrdma.QPs(dev, netlinkrdma.ListOptions{})
//	for _, q := range qps {
//		fmt.Println(q.Num, q.Type, q.State, q.RemoteNum, q.PID, q.Kernel)
//	}
//
// Objects refer to each other by the kernel's own numbers: the field PD of an MR is the ID of a PD
// in the list of PDs. Only QP numbers are the same as in the programs.
//
// With [ListOptions], [QPs] and [Resources] include what only the driver knows. [Raw] returns what the driver knows
// about an object, in a form of its own. [FRMRPools] lists the pools from which a driver takes memory
// regions; [PinFRMRs] fills one, and [SetFRMRAging] says when unused ones are freed.
//
// # Counters
//
// [PortCounters] reads the counters of a port. Their names and meaning depend on the driver.
// [StandardCounters] reads those that InfiniBand defines. Some drivers, such as mlx5, can also count
// single QPs: bind a counter to a QP with [NewQPCounter] or [SetAutoQPCounters] and read it with
// [QPCounters]. They also have optional counters, which [SetOptionalCounters] enables.
//
// # Settings and events
//
// [SystemSettings], [SetNetNSMode] and [SetPrivilegedQKey] apply to all devices; [RenameDevice],
// [MoveDevice], [MoveDeviceAs] and [SetAdaptiveModeration] apply to one. [AddSubDevice] makes a device for the subnet
// management of a card with several planes, and [DeleteSubDevice] removes it. A [Monitor] reports when
// devices appear, disappear and change:
//
//	m, err := netlinkrdma.OpenMonitor()
//	for {
//		e, err := m.Next(ctx)
//		if errors.Is(err, netlinkrdma.ErrEventsLost) {
//			continue // list the devices again
//		}
//		fmt.Println(e.Type, e.Device, e.Netdev)
//	}
//
// # Network namespaces
//
// A call uses the network namespace of the calling thread and sees what this namespace sees: always
// only its own network interfaces, and after "verbs system set netns exclusive" only its own
// devices. To ask in another namespace, lock the goroutine to its thread and enter the namespace
// first. A [Monitor] stays in the namespace in which it was opened.
//
// CAP_NET_ADMIN must be held in the initial user namespace, so an unprivileged container cannot
// have it. Process IDs belong to the caller's PID namespace.
//
// # Errors
//
// A failed call returns an [*Error], which has the operation, the device and, if it is known, what
// to do about it. It unwraps to the errno. Errors also match:
//
//   - [fs.ErrNotExist]: the device or network interface does not exist, or this kernel has no RDMA.
//   - [fs.ErrExist]: a link with that name or on that interface exists.
//   - [fs.ErrPermission]: CAP_NET_ADMIN is missing, or a policy forbids the request.
//   - [errors.ErrUnsupported]: there is no character device, because its module is not loaded or
//     the driver does not have it; or the error is a [FeatureError], which says since which kernel
//     version the feature exists, or which driver does not support it.
//
// # Without netlink
//
// If a sandbox forbids NETLINK_RDMA sockets, [Devices], [DeviceByName], [UverbsByName], [Ports],
// [PortCounters], [UverbsDev], [UMADDev], [ISSMDev] and [CMDev] read /sys/class instead. Fields that sysfs does not have
// stay zero, and [Device.FromSysfs] is set. If the kernel answers over netlink, even with an error, sysfs
// is not read, except for ISSMDev: Linux 6.1 does not find that device over netlink.
//
// # Concurrency and kernels
//
// All functions may be called concurrently. Each call uses a socket of its own and returns at once,
// except that adding or deleting a link may take as long as the kernel needs to load a module or to
// remove the device. The package needs Linux 5.10 or later.
//
// Package uverbs reads GIDs.
package netlinkrdma
