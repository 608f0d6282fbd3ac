// Package netlinkrdma lists the RDMA devices of a Linux host, shows which processes use them,
// changes their settings, and adds and deletes software devices. It asks the kernel over a
// NETLINK_RDMA socket, as the program rdma of iproute2 does. It needs no library, no daemon and, if
// the kernel answers, no /sys.
//
// # Devices and ports
//
// [Devices] lists the devices that this network namespace can see, [DeviceByName] finds one:
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
// Pass a device that Devices or DeviceByName returned, since the kernel identifies it by its index.
// Both return snapshots. A device may be unplugged at any time; the next call with it then fails
// with an error that matches [fs.ErrNotExist]. Ports fails in the same way if the device was
// renamed.
//
// # Char devices
//
// Commands for a device go to its uverbs char device, and commands for the connection manager to
// rdma_cm. [UverbsDev] and [CMDev] return their names, device numbers and ABI versions, and ask the
// kernel to load the modules if it can.
//
//	uverbs, err := netlinkrdma.UverbsDev(dev)
//	f, err := os.OpenFile(uverbs.Path(), os.O_RDWR, 0)
//
// Compare the device number of the opened file with Major and Minor: a path in /dev may be stale.
//
// # Software devices
//
// [AddLink] makes a RoCE device (rxe) or an iWARP device (siw) of any network interface, and
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
//	qps, err := netlinkrdma.QPs(dev)
//	for _, q := range qps {
//		fmt.Println(q.Num, q.Type, q.State, q.RemoteNum, q.PID, q.Kernel)
//	}
//
// Objects refer to each other by the kernel's own numbers: the field PD of an MR is the ID of a PD
// in the list of PDs. Only QP numbers are the ones that programs see.
//
// # Counters
//
// [PortCounters] reads the counters of a port; their names and meaning depend on the driver. Some
// drivers (mlx5) can also count single QPs, [QPCounters], once a counter has been bound to them
// with [NewQPCounter] or [SetAutoQPCounters]. They also have counters that must be enabled first,
// with [SetOptionalCounters].
//
// # Settings and events
//
// [SystemSettings], [SetNetNSMode] and [SetPrivilegedQKey] concern all devices; [RenameDevice],
// [MoveDevice] and [SetAdaptiveModeration] concern one. A [Monitor] reports when devices appear,
// disappear and change:
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
// The socket belongs to the network namespace of the calling thread, and the answer is the view of
// that namespace. With "rdma system set netns exclusive" it has only its own devices, and in both
// modes only its own network interfaces. To ask in another namespace, lock the goroutine to its
// thread and enter the namespace first. A [Monitor] stays in the namespace in which it was opened.
//
// CAP_NET_ADMIN means the capability in the first user namespace, so an unprivileged container
// cannot have it. Process IDs are those of the caller's PID namespace.
//
// # Errors
//
// Failed calls return an [*Error], which has the request, the device and, if it is known, what to
// do about it. It unwraps to the errno. Errors also match:
//   - [fs.ErrNotExist]: no such device or network interface, or this kernel has no RDMA.
//   - [fs.ErrExist]: a link with that name or on that interface exists.
//   - [fs.ErrPermission]: CAP_NET_ADMIN is missing, or a policy forbids the request.
//   - [errors.ErrUnsupported]: there is no char device, because its module is not loaded or the
//     driver has none; or a [FeatureError], which says since which kernel the feature exists, or
//     which driver does not support it.
//
// # Without netlink
//
// If a sandbox forbids NETLINK_RDMA sockets, [Devices], [DeviceByName], [UverbsByName], [Ports],
// [UverbsDev] and [CMDev] read /sys/class instead. Fields that sysfs does not have stay zero, and
// [Device.FromSysfs] is set. An answer of the kernel over netlink, good or bad, is final; sysfs is
// not read after it.
//
// # What is not supported
//
// The raw dumps of drivers (RDMA_NLDEV_CMD_RES_QP_GET_RAW and similar), parts of devices (NEWDEV),
// and pools of memory regions (FRMR_POOLS). Package uverbs reads GIDs.
//
// All functions may be called concurrently; each call uses a socket of its own. The kernel answers
// at once, except for links, where it may have to load a module. Linux 5.10 or later.
package netlinkrdma
