package uverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/efa"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Counters are counters of the device for the packets of flows (struct ibv_counters). One goroutine
// at a time may call Read.
//
// The driver defines the values. With mlx5 the first value counts packets and the second bytes, of
// all flows that use the counters. Read reads both at the same time.
type Counters struct {
	object
	handle uint32

	mu    sync.Mutex // held while a flow comes or goes
	flows int        // flows that use the counters
}

// CreateCounters creates counters (ibv_create_counters). A flow uses them with [FlowOptions].Counters.
func (d *Device) CreateCounters() (*Counters, error) {
	c := &Counters{}
	if err := c.addParents(d, "Counters", "DESTROY_COUNTERS", &d.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_CREATE)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_COUNTERS_HANDLE)
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		c.removeParents()
		return nil, d.cmd.fail("CREATE_COUNTERS", errno, "")
	}
	c.handle = uint32(handle.Data)
	return c, c.markCreated(c)
}

// maxCounters is the maximum number of values: the length of an attribute has 16 bits.
const maxCounters = (1<<16 - 1) / 8

// Read fills values with the counters (ibv_read_counters). If cached is set, the driver may return
// earlier values instead of reading the device. It fails with EINVAL while no flow uses the
// counters.
func (c *Counters) Read(values []uint64, cached bool) error {
	if len(values) < 1 || len(values) > maxCounters {
		return argErr("Read", "values", len(values), "1 to %d of them", maxCounters)
	}
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	cmd := newIoctl(abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_READ)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_READ_COUNTERS_HANDLE, c.handle)
	read := make([]uint64, len(values)) // the caller's memory may be outside Go's heap
	cmd.out(abi.UVERBS_ATTR_READ_COUNTERS_BUFF, sliceBytes(read))
	var flags uint32
	if cached {
		flags = abi.IB_UVERBS_READ_COUNTERS_PREFER_CACHED
	}
	cmd.u32(abi.UVERBS_ATTR_READ_COUNTERS_FLAGS, flags)
	errno := c.dev.cmd.ioctl(cmd)
	copy(values, read)
	hint := ""
	if errno == syscall.EINVAL {
		hint = "counters can be read only while a flow uses them; or the number of values differs from the number of counters"
	}
	return c.dev.cmd.fail("READ_COUNTERS", errno, hint)
}

// Close destroys the counters (ibv_destroy_counters). It fails with EBUSY while a flow
// uses them.
func (c *Counters) Close() error {
	return c.close(func() error {
		errno := c.dev.cmd.destroy(abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_DESTROY, abi.UVERBS_ATTR_DESTROY_COUNTERS_HANDLE, c.handle)
		return c.dev.cmd.fail(c.destroy, errno, "")
	}, nil)
}

// CompCounterOps are operations of a QP whose completions a [CompCounter] counts (enum ibv_qp_attach_comp_cntr_op).
type CompCounterOps uint32

// Operations: those of the QP, and READ and WRITE of its peers.
const (
	CompCounterSend        CompCounterOps = abi.IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND
	CompCounterRecv        CompCounterOps = abi.IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV
	CompCounterRead        CompCounterOps = abi.IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
	CompCounterWrite       CompCounterOps = abi.IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE
	CompCounterRemoteRead  CompCounterOps = abi.IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
	CompCounterRemoteWrite CompCounterOps = abi.IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE

	compCounterAll = CompCounterSend | CompCounterRecv | CompCounterRead | CompCounterWrite | CompCounterRemoteRead | CompCounterRemoteWrite
)

// CompCounterCaps are the limits of completion counters (struct ibv_comp_cntr_caps).
type CompCounterCaps struct {
	MaxCounters uint32         // MaxCounters is the largest number of counters.
	MaxValue    uint64         // MaxValue is the largest value. After it a counter continues with 0.
	Ops         CompCounterOps // Ops are the operations that can be counted.
}

// CompCounterCaps returns the limits of the device's completion counters (ibv_query_comp_cntr_caps). The error is a
// [FeatureError] if the device does not have any; see [CompCounter].
func (d *Device) CompCounterCaps() (CompCounterCaps, error) {
	const verb = "QUERY_COMP_CNTR_CAPS"
	if err := d.usable(); err != nil {
		return CompCounterCaps{}, err
	}
	var counters, value, ops [8]byte
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_COMP_CNTR_CAPS)
	defer cmd.done()
	cmd.out(abi.UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS, counters[:4])
	cmd.out(abi.UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE, value[:])
	cmd.out(abi.UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, ops[:4])
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		return CompCounterCaps{}, d.cmd.fail(verb, errno, "")
	}
	caps := CompCounterCaps{le32(counters[:4]), le64(value[:]), CompCounterOps(le32(ops[:4]))}
	if caps.MaxCounters == 0 { // the kernel has counters, the adapter does not
		return caps, noFeature(d, verb)
	}
	return caps, nil
}

// CompCounterOptions are the options of [Device.CreateCompCounter]: the memory of the two values, 8 bytes with the number
// of completions and 8 with the number of errors. The zero value allocates memory.
type CompCounterOptions struct {
	Buffer *Buffer  // Buffer has the values. Close the counter before it.
	DMABuf *os.File // DMABuf has the values, in the memory of a device such as a GPU. The file may be closed afterwards.
	Offset int      // Offset is where the values begin in Buffer or DMABuf, in bytes, a multiple of 8.
}

// CompCounter is a completion counter (struct ibv_comp_cntr). The device itself counts the completions of the QPs that
// [QP.AttachCompCounter] attaches, in memory that Read reads without a system call. The CQs have the completions,
// too, and must be polled. The driver efa supports counters since Linux 7.3. A CompCounter is safe for concurrent
// use.
type CompCounter struct {
	object
	handle uint32
	buf    *Buffer       // nil for a dma-buf
	own    bool          // Close closes buf
	values [2]*mmio.Word // completions and errors; nil for a dma-buf
}

// compCounterSize is the size of both values, in bytes.
const compCounterSize = 16

// CreateCompCounter creates a counter (ibv_create_comp_cntr). The values are 0, but in a DMABuf they keep the contents of
// the memory. The error is a [FeatureError] if the device, the driver or the kernel has no counters.
func (d *Device) CreateCompCounter(o CompCounterOptions) (*CompCounter, error) {
	const op = "CreateCompCounter"
	if err := d.usable(); err != nil {
		return nil, err
	}
	if err := d.cmd.untranslated("CREATE_COMP_CNTR"); err != nil {
		return nil, err
	}
	switch {
	case o.Buffer != nil && o.DMABuf != nil:
		return nil, argErr(op, "DMABuf", o.DMABuf.Name(), "nil with a Buffer")
	case o.Buffer == nil && o.DMABuf == nil && o.Offset != 0:
		return nil, argErr(op, "Offset", o.Offset, "0 without a Buffer and a DMABuf")
	case o.Offset < 0 || o.Offset%8 != 0:
		return nil, argErr(op, "Offset", o.Offset, "multiples of 8, from 0")
	case o.Buffer != nil && o.Buffer.Len() < compCounterSize:
		return nil, argErr(op, "Buffer", fmt.Sprintf("%d bytes long", o.Buffer.Len()), "%d bytes or more", compCounterSize)
	case o.Buffer != nil && o.Offset > o.Buffer.Len()-compCounterSize:
		return nil, argErr(op, "Offset", o.Offset, "0 to %d, the Buffer has %d bytes", o.Buffer.Len()-compCounterSize, o.Buffer.Len())
	}
	c := &CompCounter{buf: o.Buffer}
	if err := c.addParents(d, "CompCounter", "DESTROY_COMP_CNTR", &d.object); err != nil {
		return nil, err
	}
	if err := c.create(o); err != nil {
		c.removeParents()
		return nil, errors.Join(err, c.free())
	}
	return c, c.markCreated(c)
}

// create prepares the memory and creates the kernel's counter.
func (c *CompCounter) create(o CompCounterOptions) (err error) {
	at := abi.BufferDesc{Type: abi.IB_UVERBS_BUFFER_TYPE_DMABUF, Addr: uint64(o.Offset)}
	file := o.DMABuf
	if file == nil {
		if c.buf == nil {
			if c.buf, err = AllocBuffer(compCounterSize, BufferOptions{}); err != nil {
				return err
			}
			c.own = true
		}
		mem, err := c.buf.acquire()
		if err != nil {
			c.buf = nil
			return err
		}
		mem = mem[o.Offset:][:compCounterSize]
		clear(mem)
		for i := range c.values {
			if c.values[i], err = mmio.WordAt(mem, uintptr(8*i)); err != nil {
				return err
			}
		}
		if file = c.buf.heap; file == nil {
			at.Type, at.Addr = abi.IB_UVERBS_BUFFER_TYPE_VA, addrOf(mem)
			return c.ask(at)
		}
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return argErr("CreateCompCounter", "DMABuf", err, "an open file")
	}
	// Control keeps the descriptor open, so that its number is not reused.
	if raw.Control(func(fd uintptr) { at.FD = int32(fd); err = c.ask(at) }) != nil {
		err = fmt.Errorf("uverbs: CreateCompCounter: %w", os.ErrClosed)
	}
	return err
}

// ask creates the kernel's counter, with the number of errors behind that of completions.
func (c *CompCounter) ask(at abi.BufferDesc) error {
	at.Length = 8
	behind := at
	behind.Addr += at.Length
	cmd := newIoctl(abi.UVERBS_OBJECT_COMP_CNTR, abi.UVERBS_METHOD_COMP_CNTR_CREATE)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE)
	cmd.in(efa.AttrCompBuffer, bytesOf(&at))
	cmd.in(efa.AttrErrBuffer, bytesOf(&behind))
	errno := c.dev.cmd.ioctl(cmd)
	c.handle = uint32(handle.Data)
	hint := ""
	if at.Type == abi.IB_UVERBS_BUFFER_TYPE_DMABUF && (errno == syscall.EINVAL || errno == syscall.EBADF) {
		hint = "the file may not be a dma-buf, or may be too short"
	}
	return c.dev.cmd.fail("CREATE_COMP_CNTR", errno, hint)
}

// free ends the use of the memory.
func (c *CompCounter) free() error {
	if c.buf == nil {
		return nil
	}
	c.buf.release()
	if c.own {
		return c.buf.Close()
	}
	return nil
}

// Close destroys the counter (ibv_destroy_comp_cntr). It fails with EBUSY while a QP uses it.
func (c *CompCounter) Close() error {
	return c.close(func() error {
		errno := c.dev.cmd.destroy(abi.UVERBS_OBJECT_COMP_CNTR, abi.UVERBS_METHOD_COMP_CNTR_DESTROY, abi.UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE, c.handle)
		return c.dev.cmd.fail(c.destroy, errno, "")
	}, c.free)
}

// Read returns how many operations have completed, and how many have failed instead (ibv_read_comp_cntr,
// ibv_read_err_comp_cntr). It cannot read memory of a DMABuf.
func (c *CompCounter) Read() (completions, errs uint64, err error) {
	if err := c.acquire(); err != nil {
		return 0, 0, err
	}
	defer c.release()
	if c.values[0] == nil {
		return 0, 0, argErr("Read", "memory", "a DMABuf", "memory of the library or of a Buffer")
	}
	completions, errs = c.values[0].Load(), c.values[1].Load()
	mmio.FromDevice() // the data of what was counted is read after this
	return completions, errs, nil
}

// Set sets the number of completions (ibv_set_comp_cntr).
func (c *CompCounter) Set(v uint64) error {
	return c.modify(abi.IB_UVERBS_COMP_CNTR_ENTRY_COMP, abi.IB_UVERBS_COMP_CNTR_MODIFY_OP_SET, v)
}

// SetErrors sets the number of errors (ibv_set_err_comp_cntr).
func (c *CompCounter) SetErrors(v uint64) error {
	return c.modify(abi.IB_UVERBS_COMP_CNTR_ENTRY_ERR, abi.IB_UVERBS_COMP_CNTR_MODIFY_OP_SET, v)
}

// Add adds to the number of completions (ibv_inc_comp_cntr).
func (c *CompCounter) Add(v uint64) error {
	return c.modify(abi.IB_UVERBS_COMP_CNTR_ENTRY_COMP, abi.IB_UVERBS_COMP_CNTR_MODIFY_OP_INC, v)
}

// AddErrors adds to the number of errors (ibv_inc_err_comp_cntr).
func (c *CompCounter) AddErrors(v uint64) error {
	return c.modify(abi.IB_UVERBS_COMP_CNTR_ENTRY_ERR, abi.IB_UVERBS_COMP_CNTR_MODIFY_OP_INC, v)
}

// modify changes one of the values by a command.
func (c *CompCounter) modify(entry, op, v uint64) error {
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	cmd := newIoctl(abi.UVERBS_OBJECT_COMP_CNTR, abi.UVERBS_METHOD_COMP_CNTR_MODIFY)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE, c.handle)
	cmd.u64(abi.UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY, entry)
	cmd.u64(abi.UVERBS_ATTR_MODIFY_COMP_CNTR_OP, op)
	cmd.u64(abi.UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE, v)
	errno, hint := c.dev.cmd.ioctl(cmd), ""
	if errno == syscall.EINVAL {
		hint = fmt.Sprintf("%d may be more than the largest value; see Device.CompCounterCaps", v)
	}
	return c.dev.cmd.fail("MODIFY_COMP_CNTR", errno, hint)
}

// AttachCompCounter makes a counter count the completions of operations of the QP (ibv_qp_attach_comp_cntr), until the QP
// is closed. It fails with EBUSY if one of the operations has a counter already. Several QPs may share a counter.
func (q *QP) AttachCompCounter(c *CompCounter, ops CompCounterOps) error {
	const op = "AttachCompCounter"
	if err := q.acquire(); err != nil {
		return err
	}
	defer q.release()
	switch {
	case c == nil || c.dev != q.dev:
		return argErr(op, "counter", "nil, a zero value or of another device", "counters of %s", q.dev.Name())
	case ops == 0 || ops&^compCounterAll != 0:
		return argErr(op, "ops", fmt.Sprintf("%#x", uint32(ops)), "any of the bits %#x", uint32(compCounterAll))
	}
	if err := q.addParent(&c.object); err != nil {
		return err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_ATTACH_COMP_CNTR)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE, q.handle)
	cmd.obj(abi.UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE, c.handle)
	cmd.u32(abi.UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK, uint32(ops))
	errno, hint := q.dev.cmd.ioctl(cmd), ""
	if errno == syscall.EBUSY {
		hint = "one of the operations has a counter already"
	}
	if errno != 0 {
		q.removeParent(&c.object)
	}
	return q.dev.cmd.fail("ATTACH_COMP_CNTR", errno, hint)
}
