// Package kernel issues the commands of an RDMA device. Package uverbs says what a command means
// and turns failures into errors; this package takes a command to what carries it out and returns
// the answer and an errno.
//
// # How a command travels
//
// A [Command] is a method of an object with attributes, as in the ioctl interface of
// rdma/rdma_user_ioctl.h. The caller adds attributes with [Command.Add] and passes the command to
// [Conn.Do]. Answers arrive in the attributes: a new handle in [Attr.Data], other output in
// [Attr.Out].
//
// A legacy command, one of the older write() interface of rdma/ib_user_verbs.h, is a number, the
// core structs of request and response and the driver's part of both. [Conn.Legacy] wraps these in
// method INVOKE_WRITE, which is an ioctl like the others. If the device does not know INVOKE_WRITE,
// Conn passes the same command to the device once more, for write(). [Path] restricts the choice.
//
// Conn passes the command to a [Device] and closes the device only when no command is under way. If
// RDMADEBUG=level=1 is in the environment, Conn traces every command as a line on standard error.
//
// [CharDevice] is the Device for a character device, /dev/infiniband/uverbsN. It encodes header and
// attributes in one heap object. Beside the addresses that the kernel reads, that object holds the
// memory of the attributes as slices, which the garbage collector sees. The memory is therefore on
// the heap as well, and Go does not move heap objects. The addresses in a [syscall.Iovec] rely on
// the same.
//
// A [Repeated] is a legacy command that is built once and issued many times: a doorbell or the
// arming of a CQ. On a CharDevice it is one system call, without an allocation, a lock or an
// interface call. A device in the process may take it as it is: see [Repeater].
//
// A command returns 0 or an errno. [Absent] and [Unsupported] say which errnos mean that a command
// is missing rather than refused. [ErrnoClosed] and [ErrnoWriteDenied] are errnos of this package.
// Package uverbs makes errors of them, in one function.
//
// # Another implementation
//
// A device inside the process, a replay of a recording or a test's fake implements [Device]. It
// needs no file that takes an ioctl or a write(). The example of Device is a small one.
//
//   - Do reads Command.Object, Command.Method and the attributes, and answers in the attributes.
//     For INVOKE_WRITE, [Command.Legacy] returns the number and the four parts. Do returns
//     EPROTONOSUPPORT for an unknown method and ENOSYS or EOPNOTSUPP for an unknown legacy command,
//     as Linux does. It must not keep the command or its memory once it has returned.
//   - Addresses inside core structs and the driver's part, such as the start of a memory region,
//     are addresses of this process.
//   - Several goroutines may call Do at once. After Close there is no further call.
//   - Rings and registers are memory that Map returns for the offsets that Do has answered with:
//     a part of a memfd that the device maps as well, Go memory ([mmio.GoMemory]), whose use by
//     both sides the race detector checks, or memory that the device frees when it is collected
//     ([mmio.Borrow]).
//   - A command that makes an event channel answers with a number that the program passes back in
//     other commands. Events turns it into an [EventFile]. On Linux, if the number is a file descriptor
//     of this process, such as the read end of a pipe, Events is [OpenEvents]. A device that must release
//     something when the program closes the file, such as the write end of the pipe, numbers its
//     channels itself and implements [EventsCloser]. Close releases the channels that are left.
//   - A Repeated calls Do with the INVOKE_WRITE command, and without an allocation. Conn does not
//     trace it.
//
// An implementation that embeds a *CharDevice and overrides Do inherits Map, Events and Close; a
// Repeated is then written to the file of the CharDevice.
package kernel
