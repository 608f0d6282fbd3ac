// Vmrun boots a Linux kernel in QEMU and runs a static binary as a process in
// it; it also serves as go test's -exec program:
//
//	go test -exec "vmrun -kernel 6.1" ./...
//
// See vmrun --help for the flags, examples and exit statuses.
//
// # How it works
//
// Kernels are Debian's, fetched with the system's apt from the mirror that its
// sources name, but into state directories of vmrun's own (package apt), and
// kept unpacked in the user's cache directory (package cache). The initramfs has
// the modules that are needed, in load order (packages kernel and initramfs),
// the program, and vmrun itself as init (package guest). Host and guest talk
// over a virtio-serial port (package frame), so the program's bytes and the
// kernel's console never mix. Init sends the kernel's log over the same port,
// and what in it is a failure is for package klog to say.
//
// With -hosts N there are several guests with the same initramfs, and the kernel's
// command line tells each which it is. A pair of datagram sockets is the cable
// between the network cards of two (package qemu); with more, the first host's QEMU
// is the hub to which each of the others has such a cable. All wait for each other over
// their ports, before their programs and after them, see group. Under the name vmlink, init is a
// program that makes the link bad while others run.
//
// With -device siw or efa the driver is a module that no kernel of Debian's has: package kmod builds it
// of Debian's own source and headers, and the cache keeps it.
//
// With -device mlx5 or efa the guests' cards are played by another process, the command cmd/hca of the
// module test/hca, or cmd/efa of test/efa, to which QEMU speaks vfio-user over sockets that vmrun makes. Its
// report comes when QEMU is gone, and so does its say in the exit status.
//
// # What counts as a failure of the kernel
//
// Oopses, BUG and WARNING, hung tasks (60 s), RCU stalls and lockups (120 s, as
// an emulated machine on a busy host does stand still for seconds), lockdep,
// KASAN and the like; not messages that merely have a high priority, such as
// rxe's "non-flush error status" or "hrtimer: interrupt took". The file internal/klog/known.txt
// lists known messages that others cause.
package main

import (
	"os"

	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
)

func main() {
	if guest.IsInit() {
		guest.Main()
	}
	if guest.IsLink() {
		os.Exit(guest.LinkMain(os.Args[1:]))
	}
	os.Exit(execute(os.Args[1:]))
}
