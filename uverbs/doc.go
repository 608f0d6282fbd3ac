// Package uverbs implements RDMA verbs in Go. It talks to the Linux kernel directly, without cgo,
// libibverbs or provider libraries.
//
// Most programs do not need verbs: package cm connects by address, and its Conn and Stream send
// messages and bytes. Use this package for everything else that an RDMA device can do.
//
// Pictures of the objects and of the way of a message: https://github.com/goverbs/goverbs/blob/main/uverbs/README.md
//
// # A first program
//
// [OpenFirst] opens the first usable device and [Open] opens one by name. [Devices] lists all
// devices, and says why one cannot be used:
//
//	dev, err := uverbs.OpenFirst()
//
// A protection domain ([PD]) contains the memory and the queue pairs that may be used together. A
// completion queue ([CQ]) receives the results of work requests:
//
//	pd, err := dev.AllocPD()
//	cq, err := dev.CreateCQ(uverbs.CQOptions{Events: true})
//
// The device accesses memory by itself, so memory must be registered. [AllocBuffer] returns memory
// outside the Go heap, and [PD.RegMR] registers it:
//
//	buf, err := uverbs.AllocBuffer(8192, uverbs.BufferOptions{})
//	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
//
// A queue pair ([QP]) is one end of a connection: a queue of sends and a queue of receives. Each side
// needs the [Endpoint] of the other: [QP.ConnectOver] exchanges them over a stream, such as a TCP
// connection, and calls [QP.Connect]. Call [QP.Init] and post the first receive before that, because
// the peer may send at once:
//
//	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
//	err = qp.Init()
//	err = qp.PostRecv(1, mr.SGE(4096, 4096)) // ID 1, the second half of the buffer
//	_, err = qp.ConnectOver(ctx, conn, nil)  // conn is a net.Conn
//
// Now post work requests and wait for their completions. Each work request has an ID, which its
// completion repeats, and a list of SGEs, which are pieces of registered memory:
//
//	n := copy(buf.Bytes(), "hello")
//	err = qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled,
//		SGL: []uverbs.SGE{mr.SGE(0, n)}})
//	for wc, err := range cq.Completions(ctx) {
//		// err is nil, or what failed and why; wc.ID names the work request
//	}
//
// The package example is the whole program.
//
// # Objects
//
// Every object has a method Close, which may be called more than once. Methods of a closed object
// return an error that matches [os.ErrClosed]. Close waits for the commands about the object that run,
// and commands that begin meanwhile fail as if it were closed. Close fails with EBUSY while other
// objects use the object, which then stays open. So close objects in the reverse order of their
// creation, or call [Device.CloseAll].
//
// # Concurrency
//
// Different objects need no lock of the program, and the methods of one object may be called by several
// goroutines at the same time, except for those of the following table. Close may be called at any time.
// This is the rule for the whole library: for this package, soft, mlx5, trace, replay, umad, cm,
// rdmacm, rsocket, valkey and netlinkrdma. The library detects few violations: most corrupt a queue.
//
//	methods                                     goroutines that may call them at the same time
//	CQ.Poll, CQ.Wait, CQ.Completions,           one for all of these methods of a CQ
//	CQ.Notify, CQ.NotifySolicited,
//	CQ.Modify, CQ.Resize
//	QP.BeginSend, SendBuilder                   one, from BeginSend until Post or Abandon
//	QP.PostSend                                 any number, but none while one has a batch of BeginSend
//	CompChannel.Next                            one
//	polls and waits of a frame queue (mlx5)     one for both
//	Device.NextEvent, Device.Events             one
//	Counters.Read                               one
//	MR.Rereg                                    one, and no other method of the MR meanwhile
//	all methods of the objects of one TD        one for all of these objects
//	cm.Conn.Recv                                one: its message is valid until the next Recv;
//	                                            while one waits, another call fails with EBUSY
//	cm.Batch                                    one
//	cm.Request                                  that of ListenOptions.Check, until Check returns
//	rdmacm.ID                                   one for the steps of its connection, Bind to Disconnect
//	netlinkrdma.Monitor.Next                    one
//	trace.Tracer                                always the same one
//
// Values, such as SendWR, WC and the options, have no locks: do not change them while others use them.
// The same is true of the memory of a Buffer, which the device uses, too.
//
// # Memory
//
//   - [PD.RegMR] registers a [Buffer]. Prefer it.
//   - [PD.RegSlice] registers a slice of the Go heap and pins it until the MR is closed.
//   - A [BufferPool] divides one region into slots, for many small messages.
//   - A memory window ([MW]) gives the peer a key to a part of a region and takes it away again.
//
// Close an MR before its memory is used for something else.
//
// # Sending and receiving
//
// [QP.PostSend] and [QP.PostRecv] write work requests into a ring that the program shares with the
// device. PostSend and [QP.PostRecvs] take any number of requests, which are posted with one
// doorbell, all of them or none. [QP.BeginSend] does the same by calls instead of structs.
// With a shared receive queue ([SRQ]) several QPs take their receives from one queue. None of these
// allocates memory, and neither does [CQ.Poll].
//
// RDMA WRITE, READ and atomics need the address and the key of the peer's memory ([MR.Addr],
// [MR.RKey]), which the peer sends in a message. The peer's program takes no part in the operation.
//
// # Waiting
//
// [CQ.Poll] returns at once, even if nothing has completed. Calling it in a loop has the lowest
// latency if a processor is free for it. [CQ.Wait] sleeps until something completes, takes no
// processor time, and is often faster on a busy machine or with a software device. It needs
// [CQOptions.Events].
//
// To wait for several CQs in one goroutine, create them with the same [CompChannel] as
// CQOptions.Channel. Then repeat three steps: [CQ.Notify], [CQ.Poll] until the CQ is empty, and
// [CompChannel.Next]. Poll after Notify, because a completion before Notify may raise no event. The
// example of CompChannel.Next has the loop.
//
// [Device.NextEvent] reports events other than completions: a port that goes down, a new address, a
// CQ that has lost a completion.
//
// # Connections
//
// RC and UC queue pairs talk to one peer. [QP.Connect] chooses the first active port, a RoCE v2
// GID, the port's MTU and the usual timeouts; [PathOptions] overrides each choice, and [QP.Modify]
// makes each step by hand. RC delivers in order and without loss; UC may lose messages.
//
// On InfiniBand a QP is in one partition, and hears only QPs of the same, one of each two being a full
// member. By default it is the first partition of which the port is a full member. Programs of rdma-core
// use the first entry of the P_Key table, which may be another one: PathOptions.PKey names it.
//
// A UD queue pair sends datagrams to many peers. [QP.ReadyUD] makes it ready. An address handle
// ([AH]) says how to reach a peer; [PD.CreateAHFor] makes one for the sender of a datagram.
// Received data begins with a header of [GRHSize] bytes, see [ParseGRH]. [QP.AttachMulticast]
// receives the datagrams of a multicast group.
//
// An SRD queue pair, of type [ib.SRD], exists on the Elastic Fabric Adapter of AWS (efa). Its requests name their
// peer as datagrams do, by an AH, a QP number and a Q_Key, and are reliable: SEND and, where the adapter has them,
// RDMA READ and WRITE. They take effect and complete in any order, and nothing is written before a received message.
// RDMA needs an AH on both sides. A request that fails leaves the QP as it is. [QP.ReadyUD] makes it ready,
// [QP.Endpoint] is what the peer needs, and [QP.PathTo] returns the attributes of the AH. A completion does not
// have the sender's GID: a sender that the receiver may not know sends its Endpoint in the first message.
//
// Package uverbs/mlx5 has what only ConnectX has: the dynamically connected transport (DC), with which one
// QP of type [ib.DCI] sends reliably to any number of QPs of type [ib.DCT], and commands to the firmware.
//
// XRC, raw packets, RSS, flows, thread domains, device memory and time stamps need a device that
// supports them, such as ConnectX.
//
// # Errors
//
// Find errors with fields, which are pointers such as [*Error], with [errors.As] or
// [errors.AsType]. Compare with other errors, such as [ErrQueueFull] and errnos, with [errors.Is].
//
// The text of an error has the cause before the first semicolon, which suits a log line, and then what may
// help. In this list the first sentence says when an error comes, and the others what to do:
//
//   - [ArgError]: the library refused an argument without asking the kernel; it matches EINVAL. Correct
//     the argument: the error has the field, the value given and the values allowed.
//   - [FeatureError]: the kernel, the driver or a sandbox does not support the feature; it matches
//     [errors.ErrUnsupported] and, if the kernel refused it, the errno. Do without the feature, or
//     report the kernel version or the driver that the error names.
//   - [Error]: a command failed for another reason; it matches the errno. Report it: Hint has the usual
//     cause and what to do about it, if they are known.
//   - [ErrDeviceRemoved]: the device was removed, or reset by its driver. Call [Device.CloseAll], and
//     open the device again when it is back.
//   - [DeviceError]: a device could not be opened. Report it: it lists the devices of the machine, and
//     matches the reason.
//   - [ErrNoDevice]: the machine has no usable RDMA device. Use TCP, or a device of package soft.
//   - [PostError]: a work request of a batch is wrong, and none was posted; it matches the reason, such
//     as one of the next four errors. Correct the work request with number Index.
//   - [ErrSGERange]: an SGE is outside of its MR. Correct the offset and the length.
//   - [ErrTooManySGE]: the work request has more SGEs than the queue. Use fewer, or create the QP with a
//     larger MaxSendSGE or MaxRecvSGE.
//   - [ErrInlineTooLong]: the inline data is longer than [QPCaps].MaxInline. Send it from an MR.
//   - [ErrOpcode]: the operation is not set, or this type of QP does not have it. Correct the Opcode.
//   - [ErrQueueFull]: the work requests do not all fit into the queue, and none was posted. Poll the CQ,
//     and post them again when others have completed.
//   - [ErrState]: the state of the queue does not permit posting. Connect the QP, or if it was connected,
//     ask [QP.Err] about its failed completions, and close it.
//   - [ErrNoRecvQueue]: the QP has no receive queue of its own. Post to its SRQ or its WQs.
//   - [ErrCQOverrun]: the data in the CQ is invalid, because completions were overwritten, or a Resize has
//     lost its ring. Close its QPs and the CQ, and create a new one; after an [EventCQErr], a larger one.
//   - [ErrQueueCorrupt]: the index that the device writes to the queue is invalid. Close the QP.
//   - [ErrPoolEmpty]: all slots of a BufferPool are in use. Wait until one is put back.
//   - [ErrSlotFree]: the slot is free already, or belongs to another pool. Correct the program.
//   - [WCStatus]: a work request failed; [WC.Err] returns it. Ask [QP.Err] or [CQ.Err] why.
//   - [WCError]: a work request failed; it matches the WCStatus, and says why the QP is in state
//     [ib.QPErr] if the request was flushed. Report it, and close the QP, or connect it again after a
//     [QP.Modify] to [ib.QPReset].
//   - [os.ErrClosed]: the object was closed. End the goroutine that uses it.
//
// For example:
//
//	mr, err := pd.RegDMABuf(f, uverbs.MROptions{})
//	if errors.Is(err, errors.ErrUnsupported) {
//		// Register other memory.
//	} else if e, ok := errors.AsType[*uverbs.Error](err); ok && e.Errno == syscall.ENOMEM {
//		fmt.Println(e.Hint)
//	}
//
// # Trust
//
// RDMA has no authentication and no encryption. A remote key is a bearer token: every peer with a
// QP on the PD of the memory can use it, if it knows or guesses the key. Therefore:
//
//   - register memory with remote rights only for peers that may reach all of it;
//   - give peers that must not reach each other's memory PDs of their own;
//   - close the MR, or invalidate the key, when a peer is done;
//   - copy data before you check it, since a peer may change memory that it can write to at any
//     time.
//
// Soft iWARP permits a peer to read all memory whose key it knows, whatever the access rights are.
// The library checks data from the kernel, the device and peers before it uses it, but a device can
// write to all memory that is registered with it. SECURITY.md has the details.
//
// # Sharing a device between processes
//
// A process can pass an open device to another one: [Device.File] returns its descriptor, which a Unix
// socket carries (SCM_RIGHTS), and [ImportDevice] opens it there. Both then share the kernel's context.
// The second process imports objects by their handles: a PD ([Device.ImportPD]), an MR ([PD.ImportMR])
// and device memory ([Device.ImportDM]); [Device.Handles] lists the handles. It creates queues of its
// own. It works on rxe, siw and mlx5; device memory exists on mlx5 alone.
//
//   - Each object belongs to the process that has created it. Close of an imported object forgets it and
//     destroys nothing.
//   - The kernel does not track who imports. The owner must tell the others before it destroys an object.
//     It cannot free a PD or DM that objects of others use, but it can deregister an MR.
//   - A process that has the descriptor can use every object of the context. The processes must trust
//     each other.
//   - Objects of a process that has crashed stay until every process has closed the device.
//
// The example of ImportDevice is a broker that hands out registered memory.
//
// # Drivers
//
// The library supports the drivers rxe (Soft-RoCE), mlx5 (ConnectX), siw (soft iWARP) and efa (Elastic
// Fabric Adapter of AWS) of Linux 5.10 and later, on 64-bit little-endian machines. The section "Differences"
// in the documentation of the packages mmio/rxe, mmio/mlx5, mmio/siw and mmio/efa lists where they behave
// differently.
//
// # What is left out
//
// Some verbs of rdma-core have no counterpart here:
//
//   - Tag matching (IBV_SRQT_TM, ibv_post_srq_ops) serves the rendezvous protocol of MPI libraries, and
//     the device runs most of it. Without a device or a model of one it cannot be proven.
//   - Segmentation of raw packets (ibv_wr_send_tso) serves TCP in user space.
//   - Padded completions and signatures of mlx5, and the objects that its DEVX interface creates. Commands
//     of DEVX that create none are there, and striding receive queues, see package uverbs/mlx5.
//   - What efa says of an MR (efadv_query_mr): numbers of the card's interconnects.
//   - Queues in memory that the program gives to the kernel: the library maps or allocates them itself.
//     Linux 7.2 takes the buffers of a CQ or QP as addresses or dma-bufs (UVERBS_ATTR_CREATE_CQ_BUF_UMEM)
//     on mlx5, mlx4, efa and bnxt_re, and Linux 7.3 those of an SRQ, for queues that other devices write,
//     and for confidential VMs. Neither is available for a test.
//   - The flag ROBUST_UDATA of a context, which says that the driver checks the size of its part of every
//     command: only bnxt_re of Linux 7.2 sets it.
//
// # Without RDMA
//
// Package soft is an RDMA software device, inside the process. A program gets such devices without
// a change of its code by the environment variable GOVERBS_SOFT, which has one device or several,
// separated by blanks or semicolons:
//
//	GOVERBS_SOFT=auto                                     # an address of this host that is free
//	GOVERBS_SOFT="127.0.0.2 127.0.0.3:4792,name=right,mtu=1024"
//
// The function soft.ParseOptions describes the form. The devices are made when the program lists or
// opens a device for the first time, and stay until it ends. [Devices] lists them before those of the
// kernel, and [OpenFirst] and [OpenAddr] prefer them. Package cm goes by the host's route to
// the peer. A device that cannot be made is listed, too, with the reason in [DeviceInfo].Err, which is
// also the error of opening it by its name or address; its name is its text if it has no other.
//
// # Kernel interface
//
// The library sends commands by ioctl, those without an ioctl method inside INVOKE_WRITE, or by
// write() if the kernel has no ioctl interface. The environment variable RDMAABI=ioctl or
// RDMAABI=write forces one of them. Use ioctl in sandboxes that permit nothing else. With
// RDMAABI=write the GID table is read from sysfs.
//
// Doorbells, the arming of a CQ, MODIFY_QP, REG_MR and DEREG_MR use write(), which is cheaper. With
// RDMAABI=ioctl, or if write() is not permitted, they use ioctl. A process that has changed its user
// since it opened the device cannot use write().
//
// With RDMADEVX=1 every function that opens an mlx5 device, also in package cm, opens it for commands to
// the firmware, see [OpenOptions], if the adapter can. Other values than 1 and 0 are errors.
//
// RDMADEBUG=level=1 traces commands on standard error.
//
// # Performance
//
//   - Post lists, and poll into a slice for many completions. Each call takes a lock, checks
//     indices and rings a doorbell, however long the list is. On rxe and siw the doorbell is a
//     system call, which costs more than everything else.
//   - A goroutine that waits in Go's netpoller is woken by way of the scheduler, which costs up to
//     four thread switches. While events come often, Wait sleeps in the kernel instead and keeps its
//     processor of GOMAXPROCS; [CompChannel.SetBusyWait] has the rules. On a channel with one CQ it
//     also moves a system call out of the time between a message and its answer. So give each CQ
//     that is waited for a channel of its own, as CQOptions.Events does, and leave GOMAXPROCS at 2
//     or more. Beside a C program that does the same (rxe, Linux 6.1, two emulated processors, Go's
//     default settings, 25 November 2026), an exchange of 64 bytes takes 1.2 to 1.3 times the time, with
//     SetBusyWait(0) 1.9; with one processor, counted in instructions, 1.03 and 1.27.
//   - Go's runtime interrupts a goroutine that runs for 10 ms. A loop that polls for long should
//     call runtime.Gosched from time to time.
//   - Settings that only a program can make change little. For exchanges of 64 bytes with events on
//     Linux 6.1 (rxe, one processor, counted in instructions, 25 November 2026),
//     debug.SetGCPercent(-1), signal.Ignore(SIGURG) and a thread that is pinned to a processor save at
//     most 1 % each, and SetBusyWait(10 ms) instead of 1 ms saves 3 %. While polling, none of the first
//     three and not GOMAXPROCS=1 saves anything. A goroutine that polls needs a processor of its own
//     and another one free, since Go's monitor thread wakes a hundred times a second. The program
//     verbs perf uses these settings, and gives that thread the policy SCHED_IDLE; counted in
//     instructions, a READ of 64 bytes takes 18.2 µs with all of that and with none.
//   - Doorbells for up to 1 MiB of data and the arming of a CQ are system calls that bypass Go's
//     scheduler, because announcing them to it costs more than the call itself. The garbage
//     collector waits until such a call returns.
package uverbs
