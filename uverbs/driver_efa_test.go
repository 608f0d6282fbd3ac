package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio/efa"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// efaFake plays the kernel and a device of efa: it has the memory of the queues, and completes requests.
type efaFake struct {
	*fakeKernel
	context, device []byte            // the answers to GET_CONTEXT and QUERY_DEVICE (efa-abi.h)
	change          map[string][]byte // replaces the beginning of answers to other verbs
	requests        map[string][]byte // the driver's part of the last requests
	ring, llq, recv []byte
	bells           map[string][]byte // "cq", "sq" and "rq"
	depth, done     int               // entries of the CQ, and completions written
}

// efaCaps are all capabilities that the driver knows: READ, RNR retry, notifications, WRITE, WRITE without a receive.
const efaCaps = 1 | 2 | 4 | 32 | 64

// newEfaFake returns a kernel whose device has requests of both widths.
func newEfaFake() *efaFake {
	le := binary.LittleEndian
	f := &efaFake{context: make([]byte, 24), device: make([]byte, 24), change: map[string][]byte{}, requests: map[string][]byte{}, bells: map[string][]byte{}}
	le.PutUint32(f.context[4:], 3)
	le.PutUint16(f.context[8:], 1)
	le.PutUint16(f.context[10:], 32)
	le.PutUint32(f.context[12:], 64<<10)
	le.PutUint16(f.context[20:], 80)
	for i, v := range []uint32{1024, 1024, 2 | 3<<16, 1 << 20, efaCaps} {
		le.PutUint32(f.device[4+4*i:], v)
	}
	return f
}

// open opens the device.
func (f *efaFake) open(t testing.TB) (*Device, error) {
	t.Helper()
	d, _, err := openFake(t, pathAuto, func(k *fakeKernel) {
		f.fakeKernel = k
		k.driver, k.context, k.port.LinkLayer, k.port.MaxMsgSz = efaDriver{}, f.context, 0, 8928
		k.after(func(c *fakeCall, errno syscall.Errno) { f.answered(t, c) })
	})
	return d, err
}

// memory returns memory of the command file, and where it is there.
func (f *efaFake) memory(size int) (mem []byte, key uint64) {
	page := os.Getpagesize() - 1
	size = (size + page) &^ page
	key = uint64(f.space)
	mem = f.ringMemory(f.space, size)
	f.space += int64(size)
	f.rings[f.handle()] = []*fakeRing{{mem: mem}}
	return mem, key
}

// answered completes the answers to commands with the driver's part.
func (f *efaFake) answered(t testing.TB, c *fakeCall) {
	le := binary.LittleEndian
	in := c.attr(abi.UVERBS_ATTR_UHW_IN).In
	f.requests[c.verb] = slices.Clone(in)
	page := os.Getpagesize()
	var out []byte
	switch c.verb {
	case "EX_QUERY_DEVICE":
		if len(c.drv) == 0 { // the common part alone
			return
		}
		out = f.device
	case "ALLOC_PD":
		out = make([]byte, 8)
	case "CREATE_AH":
		out = []byte{0, 0, 0, 0, 0x34, 0x12, 0, 0}
	case "CREATE_CQ":
		f.depth = int(c.attr(abi.UVERBS_ATTR_CREATE_CQ_CQE).Data)
		rings := int(le.Uint16(in[8:]))
		var key, bell uint64
		f.ring, key = f.memory(rings * f.depth * 32)
		f.bells["cq"], bell = f.memory(page)
		out = make([]byte, 40)
		out[0] = 1
		le.PutUint64(out[8:], key)
		le.PutUint64(out[16:], uint64(len(f.ring)))
		le.PutUint32(out[28:], 16)
		le.PutUint64(out[32:], bell)
	case "CREATE_QP":
		var keys [4]uint64
		f.llq, keys[0] = f.memory(64 + int(le.Uint32(in[8:])))
		f.recv, keys[1] = f.memory(int(le.Uint32(in[4:])))
		f.bells["sq"], keys[2] = f.memory(page)
		f.bells["rq"], keys[3] = f.memory(page)
		out = make([]byte, 64)
		le.PutUint32(out[4:], 8)
		le.PutUint32(out[8:], 12)
		le.PutUint32(out[12:], 64)
		le.PutUint64(out[16:], keys[1])
		le.PutUint64(out[24:], uint64(len(f.recv)))
		le.PutUint64(out[32:], keys[3])
		le.PutUint64(out[40:], keys[2])
		le.PutUint64(out[48:], keys[0])
		f.llq = f.llq[64:]
	default:
		return
	}
	copy(out, f.change[c.verb])
	clear(c.drv)
	copy(c.drv, out)
}

// bell returns what was stored last to a doorbell.
func (f *efaFake) bell(name string) uint32 {
	return binary.LittleEndian.Uint32(f.bells[name][map[string]int{"cq": 16, "sq": 12, "rq": 8}[name]:])
}

// complete writes a completion. Nobody polls meanwhile.
func (f *efaFake) complete(kind, status uint8, qpn uint32, reqID uint16, rest ...byte) {
	e := f.ring[f.done%f.depth*32:][:32]
	le := binary.LittleEndian
	phase := uint8(1 ^ f.done/f.depth&1)
	clear(e[6:])
	flags := kind << 1
	if len(rest) > 0 {
		flags |= rest[0] << 3
		copy(e[6:], rest[1:])
	}
	le.PutUint16(e, reqID)
	e[2] = status
	le.PutUint16(e[4:], uint16(qpn))
	e[3] = flags | phase
	f.done++
}

// sent returns the i-th request of the send queue.
func (f *efaFake) sent(i int) []byte { return f.llq[i*64:][:64] }

// id returns the request ID of the i-th request that was posted.
func (f *efaFake) id(i int) uint16 { return binary.LittleEndian.Uint16(f.sent(i)) }

// efaRig is a QP of a fake device.
type efaRig struct {
	*efaFake
	dev *Device
	pd  *PD
	cq  *CQ
	qp  *QP
	to  SendWR // to a peer
}

func newEfaRig(t testing.TB, o QPOptions, c CQOptions) *efaRig {
	t.Helper()
	f := newEfaFake()
	r := &efaRig{efaFake: f, dev: value(f.open(t))(t)}
	r.pd, r.cq = value(r.dev.AllocPD())(t), value(r.dev.CreateCQ(c))(t)
	o.SendCQ, o.RecvCQ = r.cq, r.cq
	o.Type = orDefault(o.Type, ib.SRD)
	r.qp = value(r.pd.CreateQP(o))(t)
	r.qp.state.Store(uint32(ib.QPRTS))
	ah := value(r.pd.CreateAH(AHAttr{Port: 1, GRH: GRH{DGID: ib.GID{0: 0xfe, 15: 1}}}))(t)
	r.to = SendWR{ID: 1, Opcode: WRSend, AH: ah, RemoteQPN: 0x5678, RemoteQKey: 0x11111111, Flags: SendSignaled, SGL: []SGE{{Addr: 0x1000, Length: 8, LKey: 5}}, RemoteAddr: 0x2000, RKey: 6}
	t.Cleanup(func() {
		must(t, r.qp.Close(), ah.Close(), r.cq.Close(), r.pd.Close())
		if n := f.ringsMapped(); n > 0 { // the fake has unmapped what the test has created since
			t.Errorf("%d bytes stay mapped", n)
		}
	})
	return r
}

func (r *efaRig) poll(t *testing.T) []WC {
	t.Helper()
	wcs := make([]WC, 64)
	return wcs[:value(r.cq.Poll(wcs))(t)]
}

// TestEfaOpen: an answer that the library cannot use is an error that says why, and nothing stays open.
func TestEfaOpen(t *testing.T) {
	for want, change := range map[string]func(f *efaFake){
		"numbers of address handles":       func(f *efaFake) { f.context[4] = 1 },
		"rings of a CQ: got 0":             func(f *efaFake) { f.context[8] = 0 },
		"rings of a CQ: got 65281":         func(f *efaFake) { f.context[9] = 0xff },
		"QUERY_DEVICE not supported by":    func(f *efaFake) { f.device = nil },
		"efa_ibv_alloc_ucontext_resp: got": func(f *efaFake) { f.context = nil },
	} {
		f := newEfaFake()
		if change(f); f.context == nil {
			_, err := efa.DecodeContext(nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
			continue
		}
		d, _, err := openFake(t, pathAuto, func(k *fakeKernel) {
			f.fakeKernel = k
			k.driver, k.context = efaDriver{}, f.context
			if f.device == nil {
				k.refuse["EX_QUERY_DEVICE"] = syscall.EOPNOTSUPP
			}
		})
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) || d.efa != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestEfaCommands: the kernel gets the sizes that the device uses, and never what it would refuse.
func TestEfaCommands(t *testing.T) {
	r := newEfaRig(t, QPOptions{MaxSendWR: 100, MaxRecvWR: 100, MaxRecvSGE: 3, MaxSendSGE: 2, MaxInline: 33, UnsolicitedWrite: true}, CQOptions{Size: 300, Events: true})
	if want := []byte{0, 0, 0, 0, 32, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}; !slices.Equal(r.requests["CREATE_CQ"], want) || r.cq.Size() != 512 {
		t.Errorf("CREATE_CQ has % x, want % x; size %d, want 512", r.requests["CREATE_CQ"], want, r.cq.Size())
	}
	want := make([]byte, 24)
	binary.LittleEndian.PutUint32(want[4:], 512*16)
	binary.LittleEndian.PutUint32(want[8:], 128*128)
	want[16] = 1 // EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV
	if got := r.requests["CREATE_QP"]; !slices.Equal(got, want) {
		t.Errorf("CREATE_QP has % x, want % x", got, want)
	}
	if diff := cmp.Diff(QPCaps{MaxSendWR: 128, MaxRecvWR: 170, MaxSendSGE: 2, MaxRecvSGE: 3, MaxInline: 80}, r.qp.Caps()); diff != "" {
		t.Errorf("the sizes (-want +got):\n%s", diff)
	}
	r.seenMask(t)
	mem := make([]byte, 64)
	r.refuse["REG_MR"] = syscall.EINVAL // nobody may ask
	for access, text := range map[Access]string{AccessLocalWrite | AccessRemoteAtomic: "REMOTE_ATOMIC", AccessHugeTLB: "HUGETLB", AccessMWBind: "MW_BIND"} {
		if _, err := r.pd.RegSlice(mem, access); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), text) {
			t.Errorf("REG_MR with %s: %v", access, err)
		}
	}
	for name, c := range map[string]struct {
		change func(o *QPOptions)
		want   string
	}{
		"sends":     {func(o *QPOptions) { o.MaxSendWR = 1025 }, "MaxSendWR is 1025, allowed: 1 to 1024"},
		"wide":      {func(o *QPOptions) { o.MaxSendWR, o.MaxInline = 513, 80 }, "got 513, must be from 0 to 512"},
		"receives":  {func(o *QPOptions) { o.MaxRecvWR, o.MaxRecvSGE = 500, 3 }, "got 500, must be from 0 to 341"},
		"recv SGEs": {func(o *QPOptions) { o.MaxRecvSGE = 4 }, "MaxRecvSGE is 4, allowed: 1 to 3"},
		"inline":    {func(o *QPOptions) { o.MaxInline = 81 }, "MaxInline is 81, allowed: 0 to 80"},
		"RC":        {func(o *QPOptions) { o.Type = ib.RC }, "QP type RC not supported by driver efa"},
		"UD":        {func(o *QPOptions) { o.Type, o.UnsolicitedWrite = ib.UD, true }, "CREATE_QP with UnsolicitedWrite for UD not supported"},
		"flags":     {func(o *QPOptions) { o.Flags = QPPadWriteEnd }, "CREATE_QP with Flags not supported"},
	} {
		o := QPOptions{Type: ib.SRD, SendCQ: r.cq, RecvCQ: r.cq}
		c.change(&o)
		if _, err := r.pd.CreateQP(o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := r.dev.CreateCQ(CQOptions{CQESize: 64}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("CQESize: %v", err)
	}
	if _, err := r.pd.CreateSRQ(SRQOptions{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SRQ: %v", err)
	}
	if _, err := r.pd.CreateAH(AHAttr{Port: 1}); err == nil || !strings.Contains(err.Error(), "GRH.DGID is zero") {
		t.Errorf("AH without a GID: %v", err)
	}
	must(t, r.qp.Modify(QPAttr{State: ib.QPReset}, AttrState))
	r.qp.path.RNRRetry = 3
	must(t, r.qp.ReadyUD(7))
}

// seenMask checks the mask of QUERY_QP.
func (r *efaRig) seenMask(t *testing.T) {
	t.Helper()
	value(r.qp.Query())(t)
	var req abi.QueryQP
	copy(bytesOf(&req), r.last("QUERY_QP").in)
	if want := uint32(AttrState | AttrPKeyIndex | AttrPort | AttrQKey | AttrSQPSN | AttrCap | AttrRNRRetry); req.AttrMask != want {
		t.Errorf("QUERY_QP has the mask %s, want %s", QPAttrMask(req.AttrMask), QPAttrMask(want))
	}
}

// TestEfaLacking: what a device does not have is refused by its name.
func TestEfaLacking(t *testing.T) {
	f := newEfaFake()
	clear(f.device[20:])
	d := value(f.open(t))(t)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{}))(t)
	qp := value(pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq}))(t)
	qp.state.Store(uint32(ib.QPRTS))
	_, read := pd.RegSlice(make([]byte, 1), AccessRemoteRead)
	_, events := d.CreateCQ(CQOptions{Events: true})
	_, rnr := pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq, Path: PathOptions{RNRRetry: 1}})
	_, unsolicited := pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq, UnsolicitedWrite: true})
	for want, err := range map[string]error{
		"UnsolicitedWrite not supported by": unsolicited,
		"RDMA_READ not supported":           qp.PostSend(SendWR{Opcode: WRRDMARead}),
		"RDMA_WRITE_WITH_IMM not supported": qp.PostSend(SendWR{Opcode: WRRDMAWriteWithImm}),
		"access REMOTE_READ":                read,
		"a completion channel":              events,
		"RNRRetry not supported by":         rnr,
	} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	d.attr.MaxQPRdAtom = 0
	if err := (&PathOptions{MaxRdAtomic: 1}).check(d); err == nil || !strings.HasSuffix(err.Error(), "Path.MaxRdAtomic is 1, allowed: 0 on "+d.Name()) {
		t.Errorf("MaxRdAtomic on a device without READs of connections: %v", err)
	}
	must(t, qp.Close(), cq.Close(), pd.Close())
}

// TestEfaCQReadOnly: the library cannot write completions, and the device can.
func TestEfaCQReadOnly(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 8})
	at := addrOf(r.cq.region.Bytes())
	for line := range strings.Lines(string(value(os.ReadFile("/proc/self/maps"))(t))) {
		var from, to uint64
		var rights string
		if value(fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights))(t); from <= at && at < to {
			if rights != "r--s" {
				t.Errorf("the ring of the CQ is mapped with the rights %s, want r--s", rights)
			}
			return
		}
	}
	t.Error("the ring of the CQ is not mapped")
}

// TestEfaDMABuf: a dma-buf with a right that the adapter does not have is refused with the name of the right, and the hint
// for a file that the kernel refuses speaks of no other driver.
func TestEfaDMABuf(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 8})
	file := value(os.CreateTemp(t.TempDir(), ""))(t)
	defer file.Close()
	must(t, file.Truncate(4096))
	r.dev.efa.Caps = 0
	_, err := r.pd.RegDMABuf(file, MROptions{Access: AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "REG_DMABUF_MR with access REMOTE_WRITE|REMOTE_READ") {
		t.Errorf("rights that the adapter does not have: %v", err)
	}
	r.refuse["REG_DMABUF_MR"] = syscall.EINVAL
	_, err = r.pd.RegDMABuf(file, MROptions{Access: AccessLocalWrite})
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "the file may not be a dma-buf") || strings.Contains(err.Error(), "mlx5") {
		t.Errorf("a file that is no dma-buf: %v", err)
	}
}

// TestEfaFull: the error of a full adapter names its limit.
func TestEfaFull(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 8})
	a := &r.dev.attr
	a.MaxQP, a.MaxPD, a.MaxAH = 256, 257, 258
	for _, verb := range []string{"CREATE_QP", "CREATE_CQ", "ALLOC_PD", "CREATE_AH"} {
		r.refuse[verb] = syscall.ENOMEM
	}
	_, qp := r.pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: r.cq, RecvCQ: r.cq})
	_, cq := r.dev.CreateCQ(CQOptions{Size: 8})
	_, pd := r.dev.AllocPD()
	_, ah := r.pd.CreateAH(AHAttr{Port: 1, GRH: GRH{DGID: ib.GID{0: 0xfe, 15: 1}}})
	for want, err := range map[string]error{
		"all 256 QPs of ": qp, fmt.Sprintf("all %d CQs of ", a.MaxCQ): cq, "all 257 PDs of ": pd, "all 258 AHs of ": ah,
		"all 7 QPs of efa_0 are in use":           errors.New(inUse("efa_0", "QPs", 7, 7)),
		"6 of the 7 QPs of efa_0 are in use; the": errors.New(inUse("efa_0", "QPs", 6, 7)),
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestEfaMapping: memory that does not fit is refused, and nothing stays mapped.
func TestEfaMapping(t *testing.T) {
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		verb string
		b    []byte
	}{
		"CQ too short":         {"CREATE_CQ", append(make([]byte, 16), u64(64)...)},
		"CQ too long":          {"CREATE_CQ", append(make([]byte, 16), u64(1<<40)...)},
		"doorbell of the CQ":   {"CREATE_CQ", append([]byte{1}, append(make([]byte, 27), 0xff, 0xff, 0xff, 0xff)...)},
		"receives too short":   {"CREATE_QP", le.AppendUint64(make([]byte, 24), 16)},
		"doorbell of sends":    {"CREATE_QP", le.AppendUint32(make([]byte, 8), 3)},
		"doorbell of receives": {"CREATE_QP", le.AppendUint32(make([]byte, 4), 1<<20)},
		"offset of sends":      {"CREATE_QP", le.AppendUint32(make([]byte, 12), 1)},
	} {
		f := newEfaFake()
		f.change[c.verb] = c.b
		d := value(f.open(t))(t)
		pd := value(d.AllocPD())(t)
		cq, err := d.CreateCQ(CQOptions{})
		if c.verb == "CREATE_QP" {
			must(t, err)
			_, err = pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq})
			must(t, cq.Close())
		}
		if !errors.Is(err, efa.ErrMapping) {
			t.Errorf("%s: %v", name, err)
		}
		if n := f.ringsMapped(); n != 0 {
			t.Errorf("%s: %d bytes stay mapped", name, n)
		}
		must(t, pd.Close())
	}
}

// TestCompCounter: the kernel learns where the two values are, and Read reads what is written there.
func TestCompCounter(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 8})
	limit := uint32(32)
	r.after(func(c *fakeCall, errno syscall.Errno) {
		switch {
		case errno != 0:
		case c.verb == "CREATE_COMP_CNTR":
			c.attr(abi.UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE).Data = fakeHandle
		case c.verb == "QUERY_COMP_CNTR_CAPS":
			r.put(c.attr(abi.UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS).Out, u32(limit))
			r.put(c.attr(abi.UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE).Out, u64(1<<40))
			r.put(c.attr(abi.UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS).Out, u32(uint32(CompCounterRecv)))
		}
	})
	if got := value(r.dev.CompCounterCaps())(t); got != (CompCounterCaps{MaxCounters: 32, MaxValue: 1 << 40, Ops: CompCounterRecv}) {
		t.Errorf("counters can %+v", got)
	}
	place := func(attr uint16) abi.BufferDesc {
		var d abi.BufferDesc
		last := r.last("CREATE_COMP_CNTR")
		copy(bytesOf(&d), last.attr(attr).In)
		return d
	}
	buf := value(AllocBuffer(4096, BufferOptions{}))(t)
	copy(buf.Bytes()[8:], "what was there before")
	c := value(r.dev.CreateCompCounter(CompCounterOptions{Buffer: buf, Offset: 8}))(t)
	for i, attr := range []uint16{4096, 4097} {
		if got, want := place(attr), (abi.BufferDesc{Type: abi.IB_UVERBS_BUFFER_TYPE_VA, Addr: addrOf(buf.Bytes()) + 8 + 8*uint64(i), Length: 8}); got != want {
			t.Errorf("value %d is at %+v, want %+v", i, got, want)
		}
	}
	for _, want := range [][2]uint64{{0, 0}, {1 << 33, 7}} {
		if n, errs, err := c.Read(); n != want[0] || errs != want[1] || err != nil {
			t.Errorf("read %d and %d, %v; want %d", n, errs, err, want)
		}
		binary.LittleEndian.PutUint64(buf.Bytes()[8:], 1<<33)
		binary.LittleEndian.PutUint64(buf.Bytes()[16:], 7)
	}
	wantArg(t, r.qp.AttachCompCounter(nil, CompCounterSend), "counter")
	wantArg(t, r.qp.AttachCompCounter(&CompCounter{}, CompCounterSend), "counter")
	wantArg(t, r.qp.AttachCompCounter(c, 0), "ops")
	wantArg(t, r.qp.AttachCompCounter(c, 64), "ops")
	r.refuse["ATTACH_COMP_CNTR"] = syscall.EBUSY
	if err := r.qp.AttachCompCounter(c, CompCounterRecv); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "has a counter already") {
		t.Errorf("an operation that has a counter: %v", err)
	}
	delete(r.refuse, "ATTACH_COMP_CNTR")
	must(t, c.Close(), c.Close())
	errorIs(t, second(r.dev.CreateCompCounter(CompCounterOptions{Buffer: &Buffer{size: 16}})), os.ErrClosed, "a closed buffer")
	for _, o := range []CompCounterOptions{{Offset: 8}, {Buffer: buf, Offset: 4}, {Buffer: buf, Offset: -8}, {Buffer: buf, Offset: 4088}} {
		wantArg(t, second(r.dev.CreateCompCounter(o)), "Offset")
	}
	wantArg(t, second(r.dev.CreateCompCounter(CompCounterOptions{Buffer: buf, DMABuf: os.Stdin})), "DMABuf")
	wantArg(t, second(r.dev.CreateCompCounter(CompCounterOptions{Buffer: &Buffer{size: 8}})), "Buffer")
	r.refuse["CREATE_COMP_CNTR"] = syscall.ENOMEM
	errorIs(t, second(r.dev.CreateCompCounter(CompCounterOptions{Buffer: buf})), syscall.ENOMEM, "refused")
	delete(r.refuse, "CREATE_COMP_CNTR")
	must(t, buf.Close())

	c = value(r.dev.CreateCompCounter(CompCounterOptions{DMABuf: os.Stdin, Offset: 16}))(t)
	if got, want := place(4097), (abi.BufferDesc{FD: int32(os.Stdin.Fd()), Addr: 24, Length: 8}); got != want {
		t.Errorf("the number of errors in a dma-buf is at %+v, want %+v", got, want)
	}
	_, _, err := c.Read()
	wantArg(t, err, "memory")
	must(t, c.Close())

	c = value(r.dev.CreateCompCounter(CompCounterOptions{}))(t)
	must(t, r.qp.AttachCompCounter(c, CompCounterSend|CompCounterRecv))
	if call := r.last("ATTACH_COMP_CNTR"); call.attr(abi.UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK).Data != 3 || call.attr(abi.UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE).Data != fakeHandle {
		t.Errorf("attached with %+v", call)
	}
	busy(t, c.Close(), "1 QP")
	must(t, r.qp.Close(), c.Close())
	_, _, err = c.Read()
	errorIs(t, err, os.ErrClosed, "Read after Close")

	limit = 0
	r.refuse["CREATE_COMP_CNTR"] = syscall.EOPNOTSUPP
	for _, err := range []error{second(r.dev.CompCounterCaps()), second(r.dev.CreateCompCounter(CompCounterOptions{}))} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "not supported by driver efa") {
			t.Errorf("an adapter without counters: %v", err)
		}
	}
}
