// Package netlinkrdma lists the RDMA devices of a Linux host, tells who uses them
// for what, changes their settings, and adds and deletes software ones. It asks the kernel over a NETLINK_RDMA socket, the way
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
// # Resources
//
// The kernel keeps track of the objects of each device, also of those of other
// processes. [Resources] counts them; [QPs], [CQs], [MRs], [PDs], [CMIDs], [Contexts]
// and [SRQs] list them, each with its [Owner]:
//
//	qps, err := netlinkrdma.QPs(dev)
//	for _, q := range qps {
//		fmt.Println(q.Num, q.Type, q.State, q.RemoteNum, q.PID, q.Kernel)
//	}
//
// Objects refer to each other by numbers of the kernel's own: the field PD of an MR
// is the ID of a PD in the list of PDs. Only QP numbers are those that programs see.
//
// # Counters
//
// [PortCounters] reads what a device counts; names and meaning are the driver's.
// Some drivers (mlx5) can also count for single QPs, [QPCounters], once a counter has
// been bound to them, [NewQPCounter] or [SetAutoQPCounters], and have counters that
// must be enabled first, [SetOptionalCounters].
//
// # Settings and events
//
// [SystemSettings], [SetNetNSMode] and [SetPrivilegedQKey] concern all devices,
// [RenameDevice], [MoveDevice] and [SetAdaptiveModeration] one. A [Monitor] tells when
// devices come, go and change:
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
// The socket belongs to the network namespace of the calling thread, and the
// answer is that namespace's view: with "rdma system set netns exclusive" only
// its own devices, and in both modes only its own network interfaces. To ask in
// another namespace, lock the goroutine to its thread and enter it first. A [Monitor]
// stays in the namespace that it was opened in, whoever calls Next. CAP_NET_ADMIN
// means that of the first user namespace, so that it cannot be had in a container
// that is not privileged; and the numbers of processes are those of the PID
// namespace of the asker.
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
//     driver has none; or a [FeatureError], which says from which kernel on there is
//     what was asked for, or which driver lacks it.
//
// # Without netlink
//
// Where a NETLINK_RDMA socket cannot be had at all (a sandbox forbids it), [Devices],
// [DeviceByName], [UverbsByName], [Ports], [UverbsDev] and [CMDev] read /sys/class instead. What sysfs does not tell stays
// zero and [Device.FromSysfs] is set. An answer of the kernel over netlink, good
// or bad, is final and never followed by a look at sysfs.
//
// # What is not here
//
// The raw dumps of drivers (RDMA_NLDEV_CMD_RES_QP_GET_RAW and its like), parts of
// devices (NEWDEV) and pools of memory regions (FRMR_POOLS). GIDs are the business of
// the uverbs package.
//
// All functions may be called concurrently; each call uses a socket of its own. The
// kernel answers at once, except for links, where it may have to load a module.
// Linux 5.10 or newer.
package netlinkrdma
