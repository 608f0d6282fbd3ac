package uverbs

import (
	"sync"
	"syscall"

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
