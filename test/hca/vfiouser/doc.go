// Package vfiouser serves one PCI device to a virtual machine monitor over the vfio-user
// protocol: a stream socket of the unix domain, on which the client (QEMU's vfio-user-pci)
// asks for the device's regions and interrupts, hands over the guest's memory as file
// descriptors, and forwards what the guest does to the device's registers.
//
// # What the device gives, what it gets
//
// A [Device] answers accesses to its BARs and is told of a reset. From the [Server] it gets
// the guest's memory by bus address ([Server.Bytes]) and sends message-signalled interrupts
// ([Server.Interrupt]). The package does not depend on the kind of device.
//
// # What the client may do
//
// Anything: what it sends is checked, and what is wrong is answered with an errno. Bytes that
// cannot be a message end the connection, as what follows them could be anything. Memory is
// handed out only where the client mapped it for reading and writing, and only while it is
// mapped.
//
// # What is not there
//
// Migration, dirty page tracking, mmap of BARs (the server sees every access), legacy interrupts
// and MSI, memory that the client has no descriptor for (DMA by messages). Asking for one of them
// gives EINVAL or ENOTSUP, and memory without a descriptor is not accessible.
package vfiouser
