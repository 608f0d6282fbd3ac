// Package uverbs is RDMA verbs in Go with nothing underneath but the Linux kernel: no
// cgo, no libibverbs, no provider libraries. A program that uses it is one static binary.
//
// # Objects
//
// [Open] or [OpenFirst] opens a device; [Devices] lists them all, with the reason for
// which one cannot be used. A device has protection domains ([PD]), which hold memory
// regions ([MR]) and queue pairs ([QP]), completion queues ([CQ]) and completion channels
// ([CompChannel]). Every object has a Close method that may be called twice; afterwards
// its methods return an error that matches [os.ErrClosed]. An object that is still used
// by another refuses to close, says by how many, and goes on working.
//
// # Memory
//
// A device reads and writes memory behind the program's back, so memory is registered
// first. [AllocBuffer] returns memory off the Go heap, page aligned, and [PD.RegMR]
// registers it; that is the way to do it. [PD.RegSlice] registers a slice of the heap and
// pins it. [MR.SGE] names a part of a region in a work request. A [BufferPool] cuts one
// region into slots for many small messages. A memory window ([MW]) is a key to a part of
// a region that a work request gives to the peer and takes away again.
//
// # Connecting
//
// An RC queue pair talks to one peer. Each side learns the other's [Endpoint] by some
// other way, such as TCP, and calls [QP.Connect], which chooses what can be chosen: the
// first active port, a routable RoCE v2 GID, the port's MTU, usual timeouts.
// [PathOptions] overrides any of it, and [QP.Modify] does each step by hand. [QP.Init]
// alone makes it possible to post receives before the peer can send. UC is connected the
// same way; what it loses stays lost.
//
// A UD queue pair talks to many: [QP.Activate] makes it ready, an address handle ([AH])
// is the way to a peer, and [PD.CreateAHFor] makes one for who has sent a datagram. What
// it receives begins with [GRHSize] bytes of header, see [ParseGRH].
// [QP.AttachMulticast] has it receive what is sent to a group.
//
// # Work and completion
//
// [QP.PostSend] and [QP.PostRecv] put work requests into a ring that the program shares
// with the device; a list has one doorbell, and is posted whole or not at all.
// [QP.BeginSend] builds the same in place, without structs. With an [SRQ] several queue
// pairs take their receives from one queue.
// [CQ.Poll] takes completions from another ring. To sleep instead of polling: [CQ.Notify],
// then Poll until it is empty, then [CompChannel.Wait], which parks the goroutine in Go's
// netpoller. A failed work request is a [WC] with a [WCStatus]; [QP.Err] says what it
// means and which peer it was.
//
// [Device.WaitEvent] tells what no completion does: a port that goes down or comes up,
// a new address, a CQ that has lost a completion.
//
// None of these allocates. One goroutine at a time may use a QP's send side, one its
// receive side, one a CQ, one may wait on a channel; several queue pairs need no lock
// between them.
//
// # Trust
//
// RDMA has no authentication and no encryption. A remote key is a bearer token: every peer whose QP is on
// the PD of the memory can use the key, whoever it was meant for, if it knows or guesses it. So register
// memory with remote rights only for peers that may reach all of it, keep peers apart by PDs of their own,
// and close the MR, or invalidate the key, when a peer is done. A peer can change memory that it may write
// to at any time: copy what you check, and use the copy. siw lets a peer read all memory whose key it knows,
// whatever the access rights.
//
// Data from the kernel, the device and peers is checked before it is used. A device can write to all memory
// that is registered with it; an MR is closed before its memory is used for something else. SECURITY.md has
// more, and how to report a defect.
//
// # Performance
//
// What profiling has shown, and what follows from it:
//
//   - Post lists, and poll for as many completions as there is room for: a call has a lock, a look at
//     the state and the indices and a doorbell, whatever the length. On rxe and siw the doorbell is a
//     call of the kernel, which costs more than all the rest.
//   - Telling Go's scheduler of such a short call costs more than the call, and wakes its monitor
//     thread some thousand times a second. The arming of a CQ and doorbells of up to 1 MiB of data
//     therefore do without. On the other hand the garbage collector waits for a call that it is not told of.
//   - Who waits for an event in Go's netpoller is woken by another thread. [CompChannel.SetHold] has it
//     sleep in the kernel with its processor instead, and be woken itself, and three times
//     in the time that it is given by the clock that ends it: a short one takes processor time. A
//     channel of one CQ then saves a system call between message and answer: whose event it is is
//     known without reading it, and it is read when the program waits again.
//   - A goroutine that polls for long without a pause is interrupted by a signal after 10 ms: one that
//     calls runtime.Gosched now and then is not.
//   - SENDs, WRITEs and READs of a connected QP are written to the ring straight from the work request,
//     and most completions are decoded in place; whatever is rarer takes the longer way of
//     [SendBuilder], over the whole list.
//   - A [WC] begins as rxe's record of a completion does, which is therefore copied whole.
//   - Rings, doorbell and its bytes are part of the QP's own memory, so that a message on one of many
//     QPs touches few places.
//
// # Errors
//
// What the device cannot do is refused before the kernel is asked, by an [ArgError] that
// names the field, what was given and what is allowed. What the kernel refuses is an
// [Error] with the verb, the device, the errno and, where one is known, the usual cause
// and its cure. What kernel or driver lack is a [FeatureError], which matches
// [errors.ErrUnsupported]. On the data path errors are values to compare with, such as
// [ErrQueueFull]. [QP.Err] explains a completion that failed. Of one that was flushed it says what moved
// the QP to state [Err]: the work request that failed first, this program, an asynchronous event,
// or what a connection manager has told by [QP.SetErrCause], such as that the peer disconnected.
//
// # Kernel interface
//
// Commands go by ioctl, those without an ioctl method inside INVOKE_WRITE, and by write()
// where the kernel has no ioctl. The environment variable RDMAABI=ioctl or RDMAABI=write
// forces one way; ioctl alone is what works in sandboxes that pass on nothing else. By
// write() alone the GID table comes from sysfs. Doorbells and the arming of a CQ go by
// write(), which costs less, except with RDMAABI=ioctl or where write() is refused, as it
// is to a process that has changed its user since it opened the device.
//
// RDMADEBUG=level=1 traces commands on standard error.
//
// # What is supported
//
// 64-bit little-endian machines, Linux 5.10 and later, and the driver rxe (Soft-RoCE) with all
// that it has: RC, UC and UD; SEND, RDMA WRITE, both with immediate, RDMA READ,
// atomics, SEND with invalidate; MRs, which can be changed, and on demand (Linux 6.15);
// memory windows (5.14), FLUSH and ATOMIC_WRITE (6.2); SRQ, multicast, asynchronous
// events. XRC, raw packets, flows, thread domains and time stamps are there for drivers that
// have them, as mlx5 (ConnectX, below) does; on rxe they answer with a [FeatureError]. siw
// (iWARP, below) has reliable connections.
// Connections by address are the business of package cm.
//
// What rxe does otherwise than one might think:
//
//   - A receive that is posted in state Err is not flushed, since rxe has no doorbell for
//     receives; those posted before are.
//   - A CQ that is too small loses completions. [Device.WaitEvent] tells, [CQ.Poll] does not.
//   - A request whose local memory is at fault ends with another status on each kernel, on
//     newer ones as flushed. [QP.Err] finds out which it was and what is wrong with it.
//   - The bounds of a memory window are those of its MR. A window of type 2 must be closed
//     before the QP that it is bound to: the kernel keeps a pointer to that.
//   - On demand, data goes to the beginning of a page whatever the address (7.2).
//   - Linux 5.10 does not answer what it refuses: that ends as WCRetryExcErr.
//   - A device that is deleted while it is open works on, though it is in no list any more,
//     and is deleted with the last Close.
//
// # ConnectX
//
// On mlx5 the queues are memory of the program, and posting is a store to a register of the
// device. What differs from rxe:
//
//   - A send's place in the queue is free when a completion of it, or of a later one, has been
//     polled. So at least one in a queue's length must be [Signaled].
//   - Closing or resetting a QP takes its completions out of its CQs. Nobody may post to a QP
//     while it is reset.
//   - A CQ that is full when one more completion comes is lost, with its QPs; [Device.WaitEvent]
//     tells.
//   - [CQ.Notify] raises an event at once if there is a completion that was not polled, and
//     none as long as the event before has not been read by [CompChannel.Wait].
//   - An SRQ cannot be resized, and a QP never enters [SQD].
//   - The first 64 QPs of a process have a register each, and the next ones share 16. A [TD] has
//     one for its QPs alone, if there are any left.
//   - A [DM] is mapped when the processor first reads or writes it, in words of 4 bytes.
//   - With RDMAABI=write, which has no means of allocating registers, the kernel chooses among
//     a few that are there from the start.
//
// An adapter whose registers or completions are of a kind that the library does not know is
// not opened: the [FeatureError] says what it is. The library was tested on a model of a card;
// the README says what that cannot prove.
//
// # iWARP
//
// siw is iWARP in software. What differs from rxe:
//
//   - The kernel's connection manager moves a QP, which is why [QP.Connect] cannot: see package
//     cm, and [QP.Moved]. A QP that is in error stays there.
//   - The side that connects sends first. The other gets [ErrState] until it has received.
//   - A SEND or an RDMA WRITE is complete as soon as TCP has it. What the peer then refuses ends the
//     connection: what is posted is flushed, without a reason. Only an RDMA READ, which has one
//     SGE, shows that all before it has arrived.
//   - A SEND or RDMA WRITE of a page or more without [Signaled] lends its memory to TCP, which may send
//     what is there later than a request behind it completes. Its memory may be used again when a later
//     READ has completed, or an answer of the peer's has come; or give it a completion.
//   - Of a list the library posts SENDs and RDMA WRITEs of 1 to 32 bytes inline, since the kernel would now and
//     then break the connection over a list of them: their data is that of when they are posted, and nobody
//     looks whether the key of their memory was invalidated. Those with [Fence], with an invalidation, or whose memory
//     no MR of the PD holds, it tells the kernel of one by one.
//   - A message without a receive ends the connection.
//   - That the peer may read memory is no right: who has the key reads it, also without
//     [AccessRemoteRead] (Linux 6.1 to 7.2). That it may write is one.
//   - [WRRDMAReadWithInv] reads and leaves the key as it is, since siw invalidates for the kernel's
//     own QPs alone; [WRLocalInv] and [WRSendWithInv] do what they say.
//   - READs complete when their data has come, also behind what was posted later; [Fence] makes a
//     work request wait for the READs before it.
//   - What is posted to a QP in error, and what the kernel did not look at before, the library
//     completes as flushed; no event tells of that.
//   - A place in the send queue is free as soon as the kernel has begun with it.
//   - RLIMIT_MEMLOCK counts for root as well on Linux 6.1, not on 6.12 and 7.2.
//   - An RDMA READ of 0 bytes may break the connection, as siw answers with what it had to send before.
//   - A process that makes a TCP connection to a listener's port and breaks it off may end the
//     listener, or crash the kernel (6.1).
package uverbs
