// Package soft is an RDMA device in software, inside the process. It needs no kernel module, no
// rights and no RDMA hardware: a program that uses package uverbs, and tests of such a program, run
// on any machine.
//
//	dev, err := soft.New(soft.Options{})
//	if err != nil {
//		return err
//	}
//	defer dev.Close()
//	ctx, err := uverbs.Open(dev.Name())
//
// [New] makes a device, and package uverbs opens it by its name like any other. The device behaves
// like rxe, the software device of Linux, in version 7.2 of the kernel: the same verbs, limits,
// errors and events. It supports queue pairs of type RC, UC and UD, shared receive queues, memory
// windows, multicast, atomic operations, ATOMIC WRITE and FLUSH.
//
// A program need not know of this package: the environment variable GOVERBS_SOFT gives every program
// that uses package uverbs one device or several, in the form that [ParseOptions] describes, separated
// by blanks or semicolons:
//
//	GOVERBS_SOFT=auto program
//	GOVERBS_SOFT="127.0.0.2;127.0.0.3,mtu=1024" program
//
// The package is tested on Linux. It is also compiled for macOS, FreeBSD and Windows, where software devices
// are the only ones, but it is not tested on them.
//
// # Addresses
//
// A device has an IP address of this host. Its GID table has three entries: 0 is the link-local
// address that belongs to the GUID of the device, 1 is the address, and 2 is another IPv6 address if
// the address is IPv4. Devices of one process reach each other directly, by all of these addresses.
//
// By default, only devices of this process reach a device. With [Options].Addr or [Options].Auto it has
// a UDP socket at its address, port 4791, and speaks RoCE v2 there: devices of other processes reach
// it, as do rxe and network cards of other hosts. Peers that are not in this process use entry 1 of the
// GID table.
//
// # Memory
//
// A registered memory region is a range of addresses of this process, which the device accesses
// from other goroutines. Unlike hardware, the device pins no memory, so RLIMIT_MEMLOCK does not
// apply. A program that unmaps memory under a region gets a completion with an error, not a crash.
//
// # What it is for
//
// The device is for tests, for development on machines without RDMA, and for demonstrations. A
// message costs a copy and some instructions in the goroutine that posts it; it is no replacement
// of hardware.
package soft
