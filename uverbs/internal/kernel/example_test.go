package kernel_test

import (
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// counter is a device inside the process. It has PDs, CQs of no use, and event channels.
type counter struct {
	handles uint32
	events  *os.File // the write end of the last event channel
	rung    int      // how many times the doorbell was rung
}

// Do implements [kernel.Device].
func (d *counter) Do(c *kernel.Command, _ bool) syscall.Errno {
	if l, ok := c.Legacy(); ok {
		return d.legacy(&l)
	}
	switch {
	case c.Object == abi.UVERBS_OBJECT_CQ && c.Method == abi.UVERBS_METHOD_CQ_CREATE:
		if c.Attr(abi.UVERBS_ATTR_CREATE_CQ_CQE).Data == 0 {
			return syscall.EINVAL
		}
		d.handles++
		c.Attr(abi.UVERBS_ATTR_CREATE_CQ_HANDLE).Data = uint64(d.handles)
		copy(c.Attr(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE).Out, []byte{15})
		return 0
	}
	return syscall.EPROTONOSUPPORT
}

// legacy carries out a legacy command.
func (d *counter) legacy(l *kernel.Legacy) syscall.Errno {
	switch l.Number {
	case abi.IB_USER_VERBS_CMD_ALLOC_PD:
		d.handles++
		copy(l.Out, kernel.Bytes(&abi.AllocPDResp{PDHandle: d.handles}))
	case abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		var p [2]int
		if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
			return syscall.EMFILE
		}
		d.events = os.NewFile(uintptr(p[1]), "events")
		copy(l.Out, kernel.Bytes(&abi.CreateCompChannelResp{FD: uint32(p[0])}))
	case abi.IB_USER_VERBS_CMD_POST_SEND:
		d.rung++
	default:
		return syscall.ENOSYS
	}
	return 0
}

// Map implements [kernel.Device]. All memory of this device is empty.
func (d *counter) Map(_ uint64, size int, _ bool) (*mmio.Region, error) {
	return mmio.MapAnonymous(size, false)
}

// Events implements [kernel.Device].
func (d *counter) Events(number uint32, name string) (kernel.EventFile, error) {
	return kernel.OpenEvents(int(number), name)
}

// Close implements [kernel.Device].
func (d *counter) Close() error { return nil }

// A device inside the process answers typed attributes; there is no file behind it.
func ExampleDevice() {
	dev := &counter{}
	conn := kernel.NewConn(dev, kernel.PathAuto, "counter0")
	defer conn.Close()

	pd := &abi.AllocPDResp{}
	errno := conn.Legacy(abi.IB_USER_VERBS_CMD_ALLOC_PD, kernel.Bytes(&abi.AllocPD{}), kernel.Bytes(pd), nil, nil)
	fmt.Println("PD", pd.PDHandle, errno == 0)

	cmd := kernel.NewCommand(abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE)
	handle := cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_HANDLE)
	cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_CQE).SetUint(10, 4)
	var cqe [4]byte
	cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE).SetOut(cqe[:])
	errno = conn.Do(cmd)
	fmt.Println("CQ", handle.Data, "of", cqe[0], errno == 0)
	cmd.Done()

	fmt.Println(conn.Do(kernel.NewCommand(abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC)))

	ch := &abi.CreateCompChannelResp{}
	conn.Legacy(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, kernel.Bytes(&abi.CreateCompChannel{}), kernel.Bytes(ch), nil, nil)
	f, err := conn.Events(ch.FD, "completion channel")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	defer dev.events.Close()
	dev.events.Write(kernel.Bytes(&abi.CompEventDesc{CQHandle: 5}))
	var event abi.CompEventDesc
	f.Read(kernel.Bytes(&event))
	fmt.Println("event of CQ", event.CQHandle)

	doorbell := new(kernel.Repeated)
	doorbell.Init(conn, abi.IB_USER_VERBS_CMD_POST_SEND, kernel.Bytes(&abi.PostSend{}), len(kernel.Bytes(&abi.PostSendResp{})))
	doorbell.Issue(false)
	doorbell.Issue(true)
	fmt.Println("rung", dev.rung, "times")
	// Output:
	// PD 1 true
	// CQ 2 of 15 true
	// protocol not supported
	// event of CQ 5
	// rung 2 times
}
