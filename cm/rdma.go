package cm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Remote describes memory that the peer can access. The owner registers the memory with remote
// access rights and sends the Remote in private data or in a message.
type Remote struct {
	Addr   uint64 // Addr is the address of the first byte.
	RKey   uint32 // RKey is the key of the MR or MW.
	Length uint32 // Length is the size in bytes.
}

// remoteSize is the size of an encoded Remote, in bytes.
const remoteSize = 16

// RemoteOf returns the Remote of a memory region, which covers at most the first 4 GiB.
func RemoteOf(mr *uverbs.MR) Remote {
	return Remote{Addr: mr.Addr(), RKey: mr.RKey(), Length: uint32(min(mr.Len(), math.MaxUint32))}
}

// AppendBinary appends the 16 bytes to send to the peer: address, key and length in network byte
// order, as in rping. It implements [encoding.BinaryAppender].
func (r Remote) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint32(b, r.Length), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (r Remote) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]. It ignores bytes after the first 16.
func (r *Remote) UnmarshalBinary(b []byte) error {
	if len(b) < remoteSize {
		return argErr("Remote", "data", fmt.Sprintf("%d bytes long", len(b)), "at least %d bytes", remoteSize)
	}
	r.Addr, r.RKey, r.Length = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	return nil
}

// At returns the part of the memory that starts at offset. It is empty if offset is past the end.
func (r Remote) At(offset uint32) Remote {
	offset = min(offset, r.Length)
	return Remote{Addr: r.Addr + uint64(offset), RKey: r.RKey, Length: r.Length - offset}
}

// RDMAWrite writes local memory to the peer's memory and waits for the completion (RDMA WRITE). The
// local memory must be registered with [Conn.PD] and must not be longer than remote. If ctx ends
// first, the operation continues, and the program must not touch the memory until the connection is
// closed. [Conn.StartWrite] makes it possible to wait again.
//
// The error of RDMAWrite, and of the methods that refer to it, matches
//   - EINVAL, as an [rdmacm.ArgError], if local is longer than remote;
//   - EPIPE if the peer has closed the connection by Close, as that of [Conn.Send];
//   - ECONNRESET or ETIMEDOUT if the peer is gone, as that of [Conn.Recv];
//   - [net.ErrClosed] if this side has closed it;
//   - the error of ctx if ctx has ended;
//   - [*uverbs.WCError] if the peer does not allow the access, which ends the connection.
func (c *Conn) RDMAWrite(ctx context.Context, local uverbs.SGE, remote Remote) error {
	return c.transfer(ctx, transferRequest{opcode: uverbs.WRRDMAWrite, local: local, remote: remote})
}

// RDMARead reads the peer's memory into local memory (RDMA READ). [Op] says in which order operations take
// effect. The rest is as for [Conn.RDMAWrite], with the same errors.
func (c *Conn) RDMARead(ctx context.Context, local uverbs.SGE, remote Remote) error {
	return c.transfer(ctx, transferRequest{opcode: uverbs.WRRDMARead, local: local, remote: remote})
}

// CompareSwap compares 8 bytes of the peer's memory with compare and, if they are equal, replaces
// them with swap. It stores their old value in local memory, which must be 8 bytes long. All values
// are in host byte order. The remote address must be a multiple of 8, otherwise the error matches
// EINVAL. It is atomic with other atomics of the peer's device, and with what the peer's program does only if
// [uverbs.DeviceAttr].AtomicCap says so; see [Op] for the order. If the device has no atomics, the error is a
// [uverbs.FeatureError]. The rest is as for [Conn.RDMAWrite], with the same errors.
func (c *Conn) CompareSwap(ctx context.Context, local uverbs.SGE, remote Remote, compare, swap uint64) error {
	return c.transfer(ctx, transferRequest{uverbs.WRCompareSwap, local, remote, compare, swap})
}

// FetchAdd adds a number to 8 bytes of the peer's memory and stores their old value in local
// memory. The rest is as for [Conn.CompareSwap], with the same errors.
func (c *Conn) FetchAdd(ctx context.Context, local uverbs.SGE, remote Remote, add uint64) error {
	return c.transfer(ctx, transferRequest{opcode: uverbs.WRFetchAdd, local: local, remote: remote, compareAdd: add})
}

// StartWrite starts [Conn.RDMAWrite]. If [Tuning].Transfers operations are in flight, it waits
// until one completes or ctx ends. If it fails, nothing was started. Otherwise the local memory is
// in use until the Op is complete.
func (c *Conn) StartWrite(ctx context.Context, local uverbs.SGE, remote Remote) (Op, error) {
	return c.startOne(ctx, transferRequest{opcode: uverbs.WRRDMAWrite, local: local, remote: remote})
}

// StartRead starts [Conn.RDMARead]. The rest is as for [Conn.StartWrite].
func (c *Conn) StartRead(ctx context.Context, local uverbs.SGE, remote Remote) (Op, error) {
	return c.startOne(ctx, transferRequest{opcode: uverbs.WRRDMARead, local: local, remote: remote})
}

// StartCompareSwap starts [Conn.CompareSwap]. The rest is as for [Conn.StartWrite].
func (c *Conn) StartCompareSwap(ctx context.Context, local uverbs.SGE, remote Remote, compare, swap uint64) (Op, error) {
	return c.startOne(ctx, transferRequest{uverbs.WRCompareSwap, local, remote, compare, swap})
}

// StartFetchAdd starts [Conn.FetchAdd]. The rest is as for [Conn.StartWrite].
func (c *Conn) StartFetchAdd(ctx context.Context, local uverbs.SGE, remote Remote, add uint64) (Op, error) {
	return c.startOne(ctx, transferRequest{opcode: uverbs.WRFetchAdd, local: local, remote: remote, compareAdd: add})
}

// Op is an operation that a Start method has started: [Conn.StartWrite], [Batch.Start],
// [Conn.StartSend] and so on.
//
// The RDMA operations of a connection complete in the order in which they were started. When one is
// complete, all RDMA operations and messages before it are complete too. So a program that has
// started many needs to wait for the last one only. Operations take effect at the peer in the same
// order, with one exception: a message, a WRITE or an atomic that is started after a READ or an atomic may
// take effect before it. Wait for the READ if that matters. READs take effect in the order in which they were
// started. A READ may see a part of what a WRITE, or the program of the peer, changes at the same time.
//
// After the completion of a WRITE, the peer's device has the data. The program of the peer learns
// about it by other means, such as a message that is sent afterwards. After the completion of a READ
// or an atomic, the result is in local memory. After the completion of a message, the memory may be
// used again; the program of the peer may not have received the message.
//
// An Op is a small value. It needs no release, and any number of goroutines may wait for it. To wait for the
// zero value is an error.
type Op struct {
	conn *Conn
	id   uint64
}

// Wait waits until the operation is complete, or returns why that will not happen. It may be called
// again: it returns nil at once if the operation is complete, even after [Conn.Close]. If ctx ends
// first, the operation continues and the local memory stays in use; call Wait again, or close the
// connection before using the memory. With a ctx that has ended, Wait only checks.
//
// If the connection fails or is closed, all operations that are not complete fail, with the errors
// of [Conn.RDMAWrite] or [Conn.Send]. They may have taken effect. [Conn.Close] waits for the
// operations in flight for up to Linger, and Wait does meanwhile. When Close has returned, the
// device no longer uses their memory.
func (o Op) Wait(ctx context.Context) error { return o.wait(ctx, "wait for an operation") }

// wait is Wait with the name of the method for errors.
func (o Op) wait(ctx context.Context, what string) error {
	c := o.conn
	if c == nil {
		return argErr(what, "Op", "the zero value", "one that a method of a Conn has returned")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isComplete(o.id) {
		return nil
	}
	if c.destroying { // not begin: while Close lingers, the operation continues and its memory is in use
		return c.sendErr(what)
	}
	c.users++
	defer c.end()
	return c.waitOp(ctx, what, o.id)
}

// Batch collects RDMA operations to start with one doorbell, which is cheaper than starting them
// one by one. [Conn.Batch] makes one. A Batch can be used again after Start, which saves
// allocations. It belongs to one goroutine at a time.
type Batch struct {
	conn *Conn
	ops  []transferRequest
	err  error // the first error
}

// Batch returns an empty batch.
func (c *Conn) Batch() *Batch { return &Batch{conn: c} }

// Write adds an RDMA WRITE; see [Conn.RDMAWrite]. If an argument is wrong, Start returns the error.
func (b *Batch) Write(local uverbs.SGE, remote Remote) {
	b.add(transferRequest{opcode: uverbs.WRRDMAWrite, local: local, remote: remote})
}

// Read adds an RDMA READ; see [Conn.RDMARead].
func (b *Batch) Read(local uverbs.SGE, remote Remote) {
	b.add(transferRequest{opcode: uverbs.WRRDMARead, local: local, remote: remote})
}

// CompareSwap adds an atomic; see [Conn.CompareSwap].
func (b *Batch) CompareSwap(local uverbs.SGE, remote Remote, compare, swap uint64) {
	b.add(transferRequest{uverbs.WRCompareSwap, local, remote, compare, swap})
}

// FetchAdd adds an atomic; see [Conn.FetchAdd].
func (b *Batch) FetchAdd(local uverbs.SGE, remote Remote, add uint64) {
	b.add(transferRequest{opcode: uverbs.WRFetchAdd, local: local, remote: remote, compareAdd: add})
}

// add adds an operation, or notes the first error.
func (b *Batch) add(r transferRequest) {
	if b.conn != nil && b.err == nil {
		b.err = r.check(b.conn)
		b.ops = append(b.ops, r)
	}
}

// Start starts all operations and empties the batch. Their number may be up to
// [Tuning].Transfers; while other operations leave no room for them, Start waits, and what other
// goroutines start meanwhile goes first. If Start fails, none was started. The Op that it returns is the last operation, and complete when all of
// them are.
func (b *Batch) Start(ctx context.Context) (Op, error) {
	const what = "start batch"
	c, ops, err := b.conn, b.ops, b.err
	b.ops, b.err = ops[:0], nil
	switch {
	case c == nil:
		return Op{}, argErr(what, "Batch", "the zero value", "one that Conn.Batch has returned")
	case err != nil:
		return Op{}, err
	case len(ops) == 0 || len(ops) > c.o.Transfers:
		return Op{}, argErr(what, "number of operations", len(ops), "1 to Tuning.Transfers, which is %d", c.o.Transfers)
	}
	return c.startAll(ctx, what, ops)
}

// transferRequest is an RDMA operation to start.
type transferRequest struct {
	opcode           uverbs.WROpcode
	local            uverbs.SGE
	remote           Remote
	compareAdd, swap uint64
}

// what returns the name of the operation for errors.
func (r *transferRequest) what() string {
	switch r.opcode {
	case uverbs.WRRDMAWrite:
		return "write"
	case uverbs.WRRDMARead:
		return "read"
	case uverbs.WRCompareSwap:
		return "compare and swap"
	}
	return "fetch and add"
}

// check returns an error if the connection cannot carry out the operation.
func (r *transferRequest) check(c *Conn) error {
	if r.local.Length > r.remote.Length {
		return argErr(r.what(), "local.Length", r.local.Length, "up to remote.Length, which is %d", r.remote.Length)
	}
	if r.opcode == uverbs.WRCompareSwap || r.opcode == uverbs.WRFetchAdd {
		if r.remote.Addr%8 != 0 {
			return argErr(r.what(), "remote.Addr", fmt.Sprintf("%#x", r.remote.Addr), "a multiple of 8, for an atomic")
		}
		if d := c.dev.dev; d.Attr().AtomicCap == ib.AtomicNone {
			return fmt.Errorf("cm: %s: %w", r.what(), &uverbs.FeatureError{Feature: "atomics", Driver: d.Info().Driver})
		}
	}
	return nil
}

// transfer starts an operation and waits for it.
func (c *Conn) transfer(ctx context.Context, r transferRequest) error {
	op, err := c.startOne(ctx, r)
	if err != nil {
		return err
	}
	return op.wait(ctx, r.what())
}

// startOne starts an operation.
func (c *Conn) startOne(ctx context.Context, r transferRequest) (Op, error) {
	if err := r.check(c); err != nil {
		return Op{}, err
	}
	return c.startAll(ctx, r.what(), []transferRequest{r})
}

// startAll starts operations with one doorbell and returns the last. Their number is at most
// ConnOptions.Transfers.
func (c *Conn) startAll(ctx context.Context, what string, rs []transferRequest) (Op, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return Op{}, err
	}
	defer c.end()
	if err := c.await(ctx, canTransfer, uint64(len(rs))); err != nil {
		return Op{}, c.waitErr(what, err)
	}
	if err := c.sendErr(what); err != nil {
		return Op{}, err
	}
	var id uint64
	first, b := c.opsPosted, c.qp.BeginSend()
	for i := range rs {
		id = c.recordOp(int(rs[i].local.Length))
		c.stageOp(b, id, &rs[i])
	}
	if err := c.opsStarted(what, first, b.Post()); err != nil {
		return Op{}, err
	}
	return Op{c, id}, nil
}

// stageOp adds an operation to the builder, with the given ID for its completion.
func (c *Conn) stageOp(b *uverbs.SendBuilder, id uint64, r *transferRequest) {
	switch r.opcode {
	case uverbs.WRRDMAWrite:
		if onIWARP(c.dev.dev) { // see probe
			b.Write(id, 0, r.remote.Addr, r.remote.RKey)
			b.SGE(r.local)
			b.Read(id, uverbs.SendSignaled, c.probeRemote.Addr, c.probeRemote.RKey)
			b.SGE(c.probeSGL()...)
			return
		}
		b.Write(id, uverbs.SendSignaled, r.remote.Addr, r.remote.RKey)
	case uverbs.WRRDMARead:
		b.Read(id, uverbs.SendSignaled, r.remote.Addr, r.remote.RKey)
	case uverbs.WRCompareSwap:
		b.CompareSwap(id, uverbs.SendSignaled, r.remote.Addr, r.remote.RKey, r.compareAdd, r.swap)
	case uverbs.WRFetchAdd:
		b.FetchAdd(id, uverbs.SendSignaled, r.remote.Addr, r.remote.RKey, r.compareAdd)
	}
	b.SGE(r.local)
}

// opsStarted takes the error of posting the operations since number first. Those that are in the
// queue nevertheless complete with the error of the connection.
func (c *Conn) opsStarted(what string, first uint64, postErr error) error {
	if postErr != nil && !c.notTold(postErr) {
		for ; c.opsPosted > first; c.opsPosted-- {
			c.opBytes -= c.opAt(c.opsPosted - 1).size
		}
		return c.opError(what, postErr)
	}
	c.liveness.sendPosted(c)
	return nil
}

// waitOp waits for the completion of an operation or a SEND. The caller holds c.mu and is counted in
// c.users.
func (c *Conn) waitOp(ctx context.Context, what string, id uint64) error {
	err := c.await(ctx, isDone, id)
	switch {
	case c.isComplete(id):
		return nil
	case err != nil:
		return c.waitErr(what, err)
	}
	return c.sendErr(what)
}
