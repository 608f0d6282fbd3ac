// Package replay makes a record of "verbs trace -o" the kernel of an RDMA device in this process. A
// program that gives the recorded commands gets the recorded answers, without a device, without a VM and
// without rights, as in a test:
//
//	verbs trace -o testdata/setup.record -- ./myprogram    # once, where there is a device
//
//	d, err := replay.New(file, replay.Options{Name: "mlx5_0"})   // in the test
//	... run what opens mlx5_0 with package uverbs ...
//	if err := d.Err(); err != nil { t.Error(err) }          // the first command that differs, and the field
//
// # What is replayed
//
// The commands for one open character device: by ioctl, by write, and mmap. A command gets the
// answer to the first recorded command of its kind that is still unused; the order of different
// kinds is free, and so is the way: what was recorded by write() is found by ioctl, too. Commands
// that come with each message, such as the doorbells of rxe, and those that ask about the device
// and its ports may come any number of times.
//
// Every field of a command and of the driver's part must be as in the record. Exceptions are those that
// differ from run to run: addresses in the program, file descriptors, the number by which the program knows
// an object in events, and the part of a key of siw that the program draws. [Options].MayDiffer has more.
//
// # What is not
//
// Nothing moves data. The memory that is mapped begins as it was recorded and is the program's from then
// on, no completion and no event arrives, and the answers to commands that destroy an object report
// no events. A record has no answers of netlink, sysfs and the connection manager.
package replay
