package uverbs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// fakeKernel is a [kernel.Device] that plays an rxe device. Rings are memory of a memfd, the file of
// the CharDevice. Doorbells and the arming of CQs are written to that file directly: they are
// appended to it.
type fakeKernel struct {
	*kernel.CharDevice
	t    testing.TB
	file *os.File // the memfd

	noIoctl bool                                     // the kernel has no methods beside INVOKE_WRITE
	refuse  map[string]syscall.Errno                 // what to answer to a verb
	ahNum   uint32                                   // of AHs; 0 before Linux 5.16
	invalid func(qp *abi.CreateQP) syscall.Errno     // what the driver thinks of a QP
	port    abi.QueryPortResp                        // of port 1; the others are down
	gids    []abi.GIDEntry                           // of all ports
	query   abi.QueryQPResp                          // the answer to QUERY_QP
	events  *os.File                                 // the write end of the last completion channel
	async   *os.File                                 // the write end of the file of asynchronous events
	mapped  int                                      // bytes of other devices' files that were mapped before
	old     int                                      // bytes of the kernel's own mappings that are in no ring any more
	seen    func(c *kernel.Command, byWrite bool)    // if set, gets every command first
	hooks   []func(c *fakeCall, errno syscall.Errno) // see after
	asked   syscall.Errno                            // the last answer
	driver  driver                                   // of the device, rxe's unless it is set
	context []byte                                   // what the driver answers to GET_CONTEXT
	uars    []uint32                                 // handles of the UAR pages of mlx5 that are allocated
	uarPage int                                      // size of such a page in bytes; 0 is the host's
	uarOdd  bool                                     // pages cannot be mapped

	mu    sync.Mutex
	calls []fakeCall
	next  uint32                 // last handle
	space int64                  // where the next ring goes
	rings map[uint32][]*fakeRing // of a CQ one, of a QP the send and the receive ring
	goMem map[uint64][]byte      // if it is not nil, rings are Go memory, by their offsets
}

// fakeCall is a command that the kernel got.
type fakeCall struct {
	verb string
	path string // "ioctl", "invoke" or "write"
	in   []byte // the core struct of a legacy command
	core []byte // where the core's part of the answer goes
	drv  []byte // where the driver's part goes

	attrs []kernel.Attr // of an ioctl
}

// doorbells is the place in the memfd where what is written comes to lie.
const doorbells = 1 << 24

// fakeVerbs are the commands that the library uses, by the number of write().
var fakeVerbs = map[uint32]struct {
	name string
	resp int // size of the core's part of the answer
}{
	abi.IB_USER_VERBS_CMD_GET_CONTEXT:         {"GET_CONTEXT", 8},
	abi.IB_USER_VERBS_CMD_QUERY_DEVICE:        {"QUERY_DEVICE", 176},
	abi.IB_USER_VERBS_CMD_QUERY_PORT:          {"QUERY_PORT", 40},
	abi.IB_USER_VERBS_CMD_ALLOC_PD:            {"ALLOC_PD", 4},
	abi.IB_USER_VERBS_CMD_DEALLOC_PD:          {"DEALLOC_PD", 0},
	abi.IB_USER_VERBS_CMD_REG_MR:              {"REG_MR", 12},
	abi.IB_USER_VERBS_CMD_DEREG_MR:            {"DEREG_MR", 0},
	abi.IB_USER_VERBS_CMD_REREG_MR:            {"REREG_MR", 8},
	abi.IB_USER_VERBS_CMD_ALLOC_MW:            {"ALLOC_MW", 8},
	abi.IB_USER_VERBS_CMD_DEALLOC_MW:          {"DEALLOC_MW", 0},
	abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: {"CREATE_COMP_CHANNEL", 4},
	abi.IB_USER_VERBS_CMD_CREATE_CQ:           {"CREATE_CQ", 8},
	abi.IB_USER_VERBS_CMD_RESIZE_CQ:           {"RESIZE_CQ", 8},
	abi.IB_USER_VERBS_CMD_DESTROY_CQ:          {"DESTROY_CQ", 8},
	abi.IB_USER_VERBS_CMD_CREATE_QP:           {"CREATE_QP", 32},
	abi.IB_USER_VERBS_CMD_QUERY_QP:            {"QUERY_QP", 128},
	abi.IB_USER_VERBS_CMD_MODIFY_QP:           {"MODIFY_QP", 0},
	abi.IB_USER_VERBS_CMD_DESTROY_QP:          {"DESTROY_QP", 4},
	abi.IB_USER_VERBS_CMD_CREATE_AH:           {"CREATE_AH", 4},
	abi.IB_USER_VERBS_CMD_DESTROY_AH:          {"DESTROY_AH", 0},
	abi.IB_USER_VERBS_CMD_ATTACH_MCAST:        {"ATTACH_MCAST", 0},
	abi.IB_USER_VERBS_CMD_DETACH_MCAST:        {"DETACH_MCAST", 0},
	abi.IB_USER_VERBS_CMD_CREATE_SRQ:          {"CREATE_SRQ", 16},
	abi.IB_USER_VERBS_CMD_MODIFY_SRQ:          {"MODIFY_SRQ", 0},
	abi.IB_USER_VERBS_CMD_QUERY_SRQ:           {"QUERY_SRQ", 16},
	abi.IB_USER_VERBS_CMD_DESTROY_SRQ:         {"DESTROY_SRQ", 4},
	abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:       {"REQ_NOTIFY_CQ", 0},
	abi.IB_USER_VERBS_CMD_POST_SEND:           {"POST_SEND", 4},

	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE: {"EX_QUERY_DEVICE", 304},
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_CREATE_CQ:    {"EX_CREATE_CQ", 16},
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_MODIFY_CQ:    {"EX_MODIFY_CQ", 0},
}

// fakeMethods are the ioctl methods, by object and method.
var fakeMethods = map[[2]uint16]string{
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT}:            "GET_CONTEXT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT}:             "QUERY_PORT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT_SPEED}:       "QUERY_PORT_SPEED",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_TABLE}:        "QUERY_GID_TABLE",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_ENTRY}:        "QUERY_GID_ENTRY",
	{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY}:                 "DEALLOC_PD",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY}:                 "DEREG_MR",
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE}:                  "CREATE_CQ",
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY}:                 "DESTROY_CQ",
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE}:                  "CREATE_QP",
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY}:                 "DESTROY_QP",
	{abi.UVERBS_OBJECT_AH, abi.UVERBS_METHOD_AH_DESTROY}:                 "DESTROY_AH",
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_DESTROY}:               "DESTROY_SRQ",
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE}:                "CREATE_SRQ",
	{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC}: "ASYNC_EVENT_ALLOC",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_QUERY_MR}:                   "QUERY_MR",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_ADVISE_MR}:                  "ADVISE_MR",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_DMABUF_MR}:              "REG_DMABUF_MR",
	{abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY}:                 "DEALLOC_MW",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_CONTEXT}:          "QUERY_CONTEXT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INFO_HANDLES}:           "INFO_HANDLES",
	{abi.UVERBS_OBJECT_DM, mlx5.MethodDMQuery}:                           "QUERY_DM",
	{abi.UVERBS_OBJECT_DEVICE, mlx5.MethodDataDirectPath}:                "GET_DATA_DIRECT_SYSFS_PATH",
	{abi.UVERBS_OBJECT_DMABUF, abi.UVERBS_METHOD_DMABUF_ALLOC}:           "EXPORT_DMABUF",
	{mlx5.ObjectUAR, mlx5.MethodUARAlloc}:                                "ALLOC_UAR",
	{mlx5.ObjectUAR, mlx5.MethodUARDestroy}:                              "FREE_UAR",
}

// fakeDevice opens a device of a kernel that has everything.
func fakeDevice(t testing.TB, path abiPath) (*Device, *fakeKernel) {
	t.Helper()
	d, k, err := openFake(t, path, func(*fakeKernel) {})
	must(t, err)
	return d, k
}

// openFake opens a device of a kernel that change has changed, as open does.
func openFake(t testing.TB, path abiPath, change func(k *fakeKernel)) (*Device, *fakeKernel, error) {
	t.Helper()
	d, k := newFakeDevice(t, path, change)
	if err := d.getContext(devxOff); err != nil {
		return d, k, err
	}
	return d, k, d.queryDevice()
}

// newFakeDevice returns a device of a kernel that change has changed. It has no context yet.
func newFakeDevice(t testing.TB, path abiPath, change func(k *fakeKernel)) (*Device, *fakeKernel) {
	t.Helper()
	k := newFakeKernel(t)
	change(k)
	if k.driver == nil {
		k.driver = rxeDriver{}
	}
	d := newDevice(DeviceInfo{Name: "rxe0", Driver: k.driver.name(), driver: k.driver}, k, path)
	t.Cleanup(func() {
		k.release()
		if d.async != nil {
			d.async.Close()
		}
	})
	return d, k
}

// newFakeKernel returns a kernel that has everything. The caller releases it.
func newFakeKernel(t testing.TB) *fakeKernel {
	t.Helper()
	fd, err := unix.MemfdCreate("uverbs0", unix.MFD_CLOEXEC)
	must(t, err)
	k := &fakeKernel{
		t: t, file: os.NewFile(uintptr(fd), "uverbs0"), refuse: map[string]syscall.Errno{}, rings: map[uint32][]*fakeRing{},
		port: abi.QueryPortResp{State: uint8(ib.PortActive), MaxMTU: 5, ActiveMTU: 3, GIDTblLen: 4, PhysState: 5, LinkLayer: uint8(ib.LinkLayerEthernet)},
	}
	k.CharDevice = value(kernel.NewCharDevice(k.file, kernel.CharOptions{}))(t)
	if _, err := k.file.Seek(doorbells, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	k.mapped = k.ringsMapped()
	return k
}

// release closes the kernel's files.
func (k *fakeKernel) release() {
	k.file.Close()
	if k.events != nil {
		k.events.Close()
	}
	if k.async != nil {
		k.async.Close()
	}
}

// Do implements [kernel.Device].
func (k *fakeKernel) Do(cmd *kernel.Command, byWrite bool) syscall.Errno {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen != nil {
		k.seen(cmd, byWrite)
	}
	l, legacy := cmd.Legacy()
	c := fakeCall{path: "ioctl", attrs: cmd.Attrs(), drv: cmd.Attr(abi.UVERBS_ATTR_UHW_OUT).Out}
	switch {
	case legacy && byWrite:
		c.path, c.in, c.core = "write", slices.Concat(l.In, l.DrvIn), l.Out
	case legacy:
		c.path, c.in, c.core = "invoke", slices.Clone(l.In), l.Out
	case k.noIoctl:
		return syscall.EPROTONOSUPPORT
	}
	verb := fakeVerbs[l.Number]
	if c.verb = verb.name; !legacy {
		c.verb = fakeMethods[[2]uint16{cmd.Object, cmd.Method}]
	}
	if c.verb == "" {
		k.t.Errorf("the kernel got an unknown command: %+v", c)
		return syscall.EINVAL
	}
	if legacy && len(l.Out) != verb.resp {
		k.t.Errorf("the response of %s has %d bytes, want %d", c.verb, len(l.Out), verb.resp)
	}
	if c.verb == "QUERY_DEVICE" && k.asked == syscall.EINVAL { // to see whether the device is still there
		return k.refuse[c.verb]
	}
	k.asked = k.answer(&c)
	for _, hook := range k.hooks {
		hook(&c, k.asked)
	}
	c.attrs = slices.Clone(c.attrs) // cmd is not kept
	k.calls = append(k.calls, c)
	return k.asked
}

// after calls hook with every command that follows, once it is answered. The hook may change the
// answer.
func (k *fakeKernel) after(hook func(c *fakeCall, errno syscall.Errno)) {
	k.hooks = append(k.hooks, hook)
}

// attr returns an attribute of an ioctl, or an empty one.
func (c *fakeCall) attr(id uint16) *kernel.Attr {
	if i := slices.IndexFunc(c.attrs, func(a kernel.Attr) bool { return a.ID == id }); i >= 0 {
		return &c.attrs[i]
	}
	return &kernel.Attr{}
}

// rung returns what was written to the command file since the last call.
func (k *fakeKernel) rung() []byte {
	k.t.Helper()
	end, err := k.file.Seek(0, io.SeekCurrent)
	if err != nil {
		k.t.Fatal(err)
	}
	b := make([]byte, end-doorbells)
	if _, err := k.file.ReadAt(b, doorbells); err != nil {
		k.t.Fatal(err)
	}
	if _, err := k.file.Seek(doorbells, io.SeekStart); err != nil {
		k.t.Fatal(err)
	}
	return b
}

// took returns the commands that the kernel got since the last call, as "path VERB".
func (k *fakeKernel) took() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, c := range k.calls {
		all = append(all, fmt.Sprint(c.path, " ", c.verb))
	}
	k.calls = nil
	return all
}

// last returns the last command, which must be a verb.
func (k *fakeKernel) last(verb string) fakeCall {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.calls) == 0 || k.calls[len(k.calls)-1].verb != verb {
		k.t.Fatalf("the last command is not %s: %v", verb, k.calls)
	}
	return k.calls[len(k.calls)-1]
}

// must ends the test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	testenv.Must(t, errs...)
}

// value returns a value, or ends the test.
func value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// fakeQP is a QP with all that it needs, on a fake device.
type fakeQP struct {
	*fakeKernel
	dev    *Device
	pd     *PD
	cq     *CQ
	qp     *QP
	mr     *MR
	comp   *fakeRing
	sq, rq *fakeRing
}

// newFakeQP makes one. Zero options have 7 work requests with 2 SGEs each way, and 32
// bytes inline.
func newFakeQP(t testing.TB, o QPOptions) *fakeQP {
	t.Helper()
	d, k := fakeDevice(t, pathAuto)
	f := &fakeQP{fakeKernel: k, dev: d, pd: value(d.AllocPD())(t), cq: value(d.CreateCQ(CQOptions{Size: 31}))(t)}
	buf := value(AllocBuffer(4096, BufferOptions{}))(t)
	f.mr = value(f.pd.RegMR(buf, MROptions{Access: AccessLocalWrite}))(t)
	o.SendCQ, o.RecvCQ = f.cq, f.cq
	o.MaxSendWR, o.MaxRecvWR = orDefault(o.MaxSendWR, 7), orDefault(o.MaxRecvWR, 7)
	o.MaxSendSGE, o.MaxRecvSGE, o.MaxInline = 2, 2, 32
	f.qp = value(f.pd.CreateQP(o))(t)
	f.comp, f.sq, f.rq = k.rings[f.cq.handle][0], k.rings[f.qp.handle][0], k.rings[f.qp.handle][1]
	t.Cleanup(func() { must(t, f.qp.Close(), f.cq.Close(), f.mr.Close(), buf.Close(), f.pd.Close()) })
	return f
}

// state puts the QP into a state without asking anybody.
func (f *fakeQP) state(s ib.QPState) { f.qp.state.Store(uint32(s)) }
