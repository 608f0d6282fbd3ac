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
// closed.
//
// The error of RDMAWrite, and of the methods that refer to it, matches
//   - EINVAL, as an [rdmacm.ArgError], if local is longer than remote;
//   - EPIPE if the peer has closed the connection by Close, as that of [Conn.Send];
//   - ECONNRESET or ETIMEDOUT if the peer is gone, as that of [Conn.Recv];
//   - [net.ErrClosed] if this side has closed it;
//   - the error of ctx if ctx has ended;
//   - [*uverbs.WCError] if the peer does not allow the access, which ends the connection.
func (c *Conn) RDMAWrite(ctx context.Context, local uverbs.SGE, remote Remote) error {
	return c.transfer(ctx, "write", uverbs.SendWR{Opcode: uverbs.WRRDMAWrite}, local, remote)
}

// RDMARead reads the peer's memory into local memory (RDMA READ). The rest is as for
// [Conn.RDMAWrite].
func (c *Conn) RDMARead(ctx context.Context, local uverbs.SGE, remote Remote) error {
	return c.transfer(ctx, "read", uverbs.SendWR{Opcode: uverbs.WRRDMARead}, local, remote)
}

// CompareSwap compares 8 bytes of the peer's memory with compare and, if they are equal, replaces
// them with swap. It stores their old value in local memory, which must be 8 bytes long. All values
// are in host byte order. The remote address must be a multiple of 8. If the device has no atomics,
// the error is a [uverbs.FeatureError]. The rest is as for [Conn.RDMAWrite].
func (c *Conn) CompareSwap(ctx context.Context, local uverbs.SGE, remote Remote, compare, swap uint64) error {
	return c.transfer(ctx, "compare and swap", uverbs.SendWR{Opcode: uverbs.WRCompareSwap, CompareAdd: compare, Swap: swap}, local, remote)
}

// FetchAdd adds a number to 8 bytes of the peer's memory and stores their old value in local
// memory. The rest is as for [Conn.CompareSwap].
func (c *Conn) FetchAdd(ctx context.Context, local uverbs.SGE, remote Remote, add uint64) error {
	return c.transfer(ctx, "fetch and add", uverbs.SendWR{Opcode: uverbs.WRFetchAdd, CompareAdd: add}, local, remote)
}

// transfer posts an RDMA operation and waits for its completion.
func (c *Conn) transfer(ctx context.Context, what string, wr uverbs.SendWR, local uverbs.SGE, remote Remote) error {
	if local.Length > remote.Length {
		return argErr(what, "local.Length", local.Length, "up to remote.Length, which is %d", remote.Length)
	}
	if wr.Opcode == uverbs.WRCompareSwap || wr.Opcode == uverbs.WRFetchAdd {
		if remote.Addr%8 != 0 {
			return argErr(what, "remote.Addr", fmt.Sprintf("%#x", remote.Addr), "a multiple of 8, for an atomic")
		}
		if d := c.dev.dev; d.Attr().AtomicCap == ib.AtomicNone {
			return fmt.Errorf("cm: %s: %w", what, &uverbs.FeatureError{Feature: "atomics", Driver: d.Info().Driver})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return err
	}
	defer c.end()
	if err := c.await(ctx, canTransfer, nil); err != nil {
		return c.waitErr(what, err)
	}
	if err := c.sendErr(what); err != nil {
		return err
	}
	o := c.newOp()
	o.size = int(local.Length)
	wr.ID = c.recordOp(o)
	wr.RemoteAddr, wr.RKey = remote.Addr, remote.RKey
	c.sge[0] = local
	wr.SGL = c.sge[:]
	var err error
	if wr.Opcode == uverbs.WRRDMAWrite && onIWARP(c.dev.dev) { // see probe
		err = c.qp.PostSend(wr, uverbs.SendWR{ID: wr.ID, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled,
			SGL: c.probeSGL(), RemoteAddr: c.probeRemote.Addr, RKey: c.probeRemote.RKey})
	} else {
		wr.Flags = uverbs.SendSignaled
		err = c.qp.PostSend(wr)
	}
	return c.finishTransfer(ctx, what, o, err)
}

// finishTransfer waits for the completion of an operation. postErr is the error of posting it.
func (c *Conn) finishTransfer(ctx context.Context, what string, o *op, postErr error) error {
	if postErr != nil && !c.notTold(postErr) {
		c.opsPosted--
		c.freeOp(o)
		return c.opError(what, postErr)
	}
	c.opBytes += o.size
	c.liveness.sendPosted(c)
	return c.finishOp(ctx, what, o)
}

// finishOp waits for the completion of an operation.
func (c *Conn) finishOp(ctx context.Context, what string, o *op) error {
	err := c.await(ctx, isDone, o)
	switch {
	case o.done:
		c.freeOp(o)
		return nil
	case err != nil:
		o.abandoned = true
		return c.waitErr(what, err)
	}
	return c.sendErr(what)
}
