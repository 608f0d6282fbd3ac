package uverbs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

func second[T any](_ T, err error) error { return err }

// The tests of this file run the verbs against a kernel that fakeKernel plays.

// eachFakePath runs a test over each way to the kernel. method is the way of commands
// that the ioctl interface has methods for, legacy that of the others.
func eachFakePath(t *testing.T, f func(t *testing.T, d *Device, k *fakeKernel, method, legacy string)) {
	for _, c := range []struct {
		name           string
		path           abiPath
		noIoctl        bool
		method, legacy string
	}{
		{"auto", pathAuto, false, "ioctl", "invoke"},
		{"ioctl", pathIoctl, false, "ioctl", "invoke"},
		{"write", pathWrite, false, "write", "write"},
		{"methods missing", pathAuto, true, "invoke", "invoke"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, k, err := openFake(t, c.path, func(k *fakeKernel) { k.noIoctl = c.noIoctl })
			if err != nil {
				t.Fatal(err)
			}
			f(t, d, k, c.method, c.legacy)
		})
	}
}

// sent fails the test unless the kernel got these commands.
func (k *fakeKernel) sent(want ...string) {
	k.t.Helper()
	if diff := cmp.Diff(want, k.took()); diff != "" {
		k.t.Errorf("commands (-want +got):\n%s", diff)
	}
}

func TestQueryDevice(t *testing.T) {
	want := DeviceAttr{
		FirmwareVersion: "1.2.3", NodeGUID: 0x0102030405060708, MaxMRSize: 1 << 30, MaxQPWR: 1000, MaxSGE: 4, MaxCQE: 1000,
		MaxQPRdAtom: 16, MaxQPInitRdAtom: 8, MaxSRQ: 9, MaxSRQWR: 1000, MaxSRQSGE: 3, AtomicCap: ib.AtomicHCA, PhysPortCount: 2, CapFlags: 5 | 1<<40, TimestampMask: 7, MaxDMSize: 99,
		CompVectors: 2, CoreClockKHz: 1000, ODPCapsRC: ODPSend | ODPRead, ODPCapsUC: 10, ODPCapsUD: 11, ODPCapsXRC: ODPRead,
		RSSQPTypes: 1 << uint32(ib.RawPacket), MaxRWQIndTables: 21, MaxRWQIndTableSize: 22, MaxWQ: 20, RawPacketCaps: RawPacketStripVLAN | RawPacketIPChecksum,
		TagMatching:          TMCaps{MaxRndvHeader: 31, MaxTags: 32, Flags: 1, MaxOps: 34, MaxSGE: 35},
		MaxCQModerationCount: 41, MaxCQModerationPeriod: 42,
	}
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		if method == "ioctl" {
			k.sent("ioctl GET_CONTEXT", "ioctl ASYNC_EVENT_ALLOC", "invoke EX_QUERY_DEVICE")
		} else {
			k.sent(method+" GET_CONTEXT", legacy+" EX_QUERY_DEVICE")
		}
		if diff := cmp.Diff(want, d.Attr()); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
		async := d.async
		must(t, d.Close(), d.Close())
		if !errors.Is(async.Close(), os.ErrClosed) {
			t.Error("the file of asynchronous events is still open")
		}
		errorIs(t, second(d.Port(1)), os.ErrClosed, "Port after Close")
		errorIs(t, second(d.AllocPD()), os.ErrClosed, "AllocPD after Close")
	})
}

// TestQueryDeviceOld: a kernel without the extended command has the plain one.
func TestQueryDeviceOld(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.ENOSYS} {
		d, k, err := openFake(t, pathWrite, func(k *fakeKernel) { k.refuse["EX_QUERY_DEVICE"] = errno })
		if err != nil {
			t.Fatal(err)
		}
		k.sent("write GET_CONTEXT", "write EX_QUERY_DEVICE", "write QUERY_DEVICE")
		if a := d.Attr(); a.MaxCQE != 1000 || a.CapFlags != 5 || a.MaxDMSize != 0 {
			t.Errorf("%v: attributes are %+v", errno, a)
		}
	}
	_, _, err := openFake(t, pathAuto, func(k *fakeKernel) { k.refuse["EX_QUERY_DEVICE"] = syscall.EIO })
	var e *Error
	if !errors.As(err, &e) || e.Op != "QUERY_DEVICE" || !strings.Contains(e.Hint, "removed") || !errors.Is(err, ErrDeviceRemoved) {
		t.Errorf("EIO: %v", err)
	}
}

func TestQueryPort(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, _ string) {
		k.port = abi.QueryPortResp{PortCapFlags: 1, MaxMsgSz: 2, BadPKeyCntr: 3, QKeyViolCntr: 4, GIDTblLen: 5, PKeyTblLen: 6, LID: 7, SMLID: 8,
			State: 4, MaxMTU: 5, ActiveMTU: 3, LMC: 9, MaxVLNum: 10, SMSL: 11, SubnetTimeout: 12, InitTypeReply: 13, ActiveWidth: 2, ActiveSpeed: 4,
			PhysState: 5, LinkLayer: 2, Flags: 14}
		want := PortAttr{CapFlags: 1, MaxMsgSize: 2, BadPKeyCount: 3, QKeyViolCount: 4, GIDTableLen: 5, PKeyTableLen: 6, LID: 7, SMLID: 8,
			State: ib.PortActive, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU1024, LMC: 9, MaxVLNum: 10, SMSL: 11, SubnetTimeout: 12, InitTypeReply: 13, ActiveWidth: 2,
			ActiveSpeed: 4, PhysState: 5, LinkLayer: ib.LinkLayerEthernet, Flags: 14}
		if method == "ioctl" {
			want.CapFlags2, want.ActiveSpeed = 9, 256
		}
		k.took()
		got := value(d.Port(1))(t)
		k.sent(method + " QUERY_PORT")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
		for _, port := range []uint8{0, 3} {
			var arg *ArgError
			if _, err := d.Port(port); !errors.As(err, &arg) || arg.Given != fmt.Sprint(port) || arg.Allowed != "1 to 2" {
				t.Errorf("port %d: %v", port, err)
			}
		}
		k.sent()
	})
}

func TestGIDTable(t *testing.T) {
	d, k := fakeDevice(t, pathIoctl)
	k.gids = make([]abi.GIDEntry, 3)
	for i, addr := range []string{"fe80::1", "10.1.0.1", "10.9.0.1"} {
		g := gid(t, addr)
		copy(bytesOf(&k.gids[i].GID), g[:])
		k.gids[i].GIDIndex, k.gids[i].PortNum, k.gids[i].GIDType, k.gids[i].NetdevIfindex = uint32(i), 1, 2, 7
	}
	k.gids[2].PortNum = 2
	want := []GIDEntry{
		{Port: 1, Index: 0, GID: gid(t, "fe80::1"), Type: ib.GIDTypeRoCEv2, Netdev: 7},
		{Port: 1, Index: 1, GID: gid(t, "10.1.0.1"), Type: ib.GIDTypeRoCEv2, Netdev: 7},
	}
	if diff := cmp.Diff(want, value(d.GIDTable(1))(t)); diff != "" {
		t.Errorf("table of port 1 (-want +got):\n%s", diff)
	}
	k.refuse["QUERY_GID_TABLE"] = syscall.EOPNOTSUPP
	errorIs(t, second(d.GIDTable(1)), errors.ErrUnsupported, "refused")
}

// TestGIDTableHostile: a kernel that says it wrote more entries than there is room for.
func TestGIDTableHostile(t *testing.T) {
	d, k := fakeDevice(t, pathIoctl)
	k.gids = make([]abi.GIDEntry, 1)
	k.gids[0].PortNum = 1
	k.after(func(c *fakeCall, _ syscall.Errno) {
		if c.verb == "QUERY_GID_TABLE" {
			k.put(c.attr(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES).Out, u64(1<<40))
		}
	})
	if table := value(d.GIDTable(1))(t); len(table) != 1 {
		t.Errorf("table has %d entries of port 1, want 1", len(table))
	}
}

func TestCreateCQ(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		k.took()
		ch := value(d.CreateCompChannel())(t)
		cq := value(d.CreateCQ(CQOptions{Size: 5, Channel: ch, Vector: 1}))(t)
		c := k.last("CREATE_CQ")
		k.sent(legacy+" CREATE_COMP_CHANNEL", method+" CREATE_CQ")
		if cq.Size() != 7 {
			t.Errorf("Size is %d, want 7", cq.Size())
		}
		var req abi.CreateCQ
		if method == "ioctl" {
			req.UserHandle = c.attr(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE).Data
			req.CQE = uint32(c.attr(abi.UVERBS_ATTR_CREATE_CQ_CQE).Data)
			req.CompVector = uint32(c.attr(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR).Data)
			req.CompChannel = int32(c.attr(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL).Data)
		} else {
			copy(bytesOf(&req), c.in)
		}
		if req.UserHandle != 1 || req.CQE != 5 || req.CompVector != 1 || int(req.CompChannel) != ch.fd {
			t.Errorf("request is %+v, want user handle 1, 5 entries, vector 1, channel %d", req, ch.fd)
		}
		must(t, cq.Close(), cq.Close(), ch.Close())
		k.sent(method + " DESTROY_CQ")
		errorIs(t, second(cq.Poll(make([]WC, 1))), os.ErrClosed, "Poll after Close")
		errorIs(t, cq.Notify(), os.ErrClosed, "Notify after Close")
		errorIs(t, second(d.CreateCQ(CQOptions{Size: 1, Channel: ch})), os.ErrClosed, "a CQ of a closed channel")
		k.sent()
		plain := value(d.CreateCQ(CQOptions{Size: 1}))(t)
		if c = k.last("CREATE_CQ"); method == "ioctl" {
			if c.attr(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL).ID != 0 {
				t.Error("a channel is named where there is none")
			}
		} else if copy(bytesOf(&req), c.in); req.CompChannel != -1 {
			t.Errorf("no channel is %d, want -1", req.CompChannel)
		}
		must(t, plain.Close())
	})
}

func TestCreateCQRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.took()
	for _, c := range []struct {
		cqe, vector int
		want        string
	}{
		{-1, 0, "CreateCQ: Size is -1, allowed: 1 to 1000 (max_cqe of rxe0)"},
		{1001, 0, "Size is 1001"},
		{1, 2, "CreateCQ: Vector is 2, allowed: 0 to 1"},
		{1, -1, "Vector is -1"},
	} {
		var arg *ArgError
		if _, err := d.CreateCQ(CQOptions{Size: c.cqe, Vector: c.vector}); !errors.As(err, &arg) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("CreateCQ(%d), vector %d: %v, want %s", c.cqe, c.vector, err, c.want)
		}
	}
	k.sent()
	ch := value(d.CreateCompChannel())(t)
	_, err := d.CreateCQ(CQOptions{Channel: ch, Events: true})
	if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Field != "Channel" {
		t.Errorf("two channels: %v", err)
	}
	k.refuse["CREATE_CQ"] = syscall.ENOMEM
	if _, err = d.CreateCQ(CQOptions{Events: true}); !errors.Is(err, syscall.ENOMEM) || d.users.of("CompChannel") != 1 {
		t.Errorf("refused with events: %v, %d channels", err, d.users.of("CompChannel"))
	}
	errorIs(t, second(d.CreateCQ(CQOptions{Size: 1, Channel: ch})), syscall.ENOMEM, "refused")
	if len(d.targets.all) != 0 {
		t.Error("events are still for the CQ")
	}
	must(t, ch.Close(), d.Close())
}

func TestNotify(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	ch := value(d.CreateCompChannel())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 1, Channel: ch}))(t)
	must(t, cq.Notify(), cq.NotifySolicited())
	// struct ib_uverbs_cmd_hdr and ib_uverbs_req_notify_cq, twice.
	compare(t, k.rung(), []word{
		{"command", 4, 23}, {"in_words", 2, 4}, {"out_words", 2, 0}, {"cq_handle", 4, uint64(cq.handle)}, {"solicited_only", 4, 0},
		{"command", 4, 23}, {"in_words", 2, 4}, {"out_words", 2, 0}, {"cq_handle", 4, uint64(cq.handle)}, {"solicited_only", 4, 1},
	})
	if n := testing.AllocsPerRun(100, func() { must(t, cq.Notify(), cq.NotifySolicited()) }); n != 0 {
		t.Errorf("Notify makes %v allocations, want 0", n)
	}
	polled := value(d.CreateCQ(CQOptions{Size: 1}))(t)
	var arg *ArgError
	if err := polled.Notify(); !errors.As(err, &arg) || arg.Field != "Channel of the CQ" {
		t.Errorf("Notify without a channel: %v", err)
	}
}

// TestEvents: an event goes to the CQ whose user handle the kernel was told, and to none
// that is closed; a closed channel forgets the context of the last Wait.
func TestEvents(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	ch := value(d.CreateCompChannel())(t)
	event := func(cq *CQ) {
		t.Helper()
		if _, err := k.events.Write(u64(cq.cookie)); err != nil {
			t.Fatal(err)
		}
	}
	var cqs [3]*CQ
	for i := range cqs {
		cqs[i] = value(d.CreateCQ(CQOptions{Size: 1, Channel: ch}))(t)
	}
	for _, i := range []int{2, 0, 1} {
		event(cqs[i])
		if cq := value(ch.Next(t.Context()))(t); cq != cqs[i] {
			t.Errorf("an event of CQ %d is taken for another's", i)
		}
	}
	event(cqs[0])
	event(cqs[1])
	must(t, cqs[0].Close())
	if cq := value(ch.Next(t.Context()))(t); cq != cqs[1] {
		t.Error("an event of a closed CQ is not skipped")
	}
	must(t, cqs[1].Close(), cqs[2].Close(), ch.Close())
	if ch.watch.registered() {
		t.Error("the closed channel is still registered with the context")
	}
	errorIs(t, second(ch.Next(t.Context())), os.ErrClosed, "Wait after Close")
}

func TestRegMR(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		pd := value(d.AllocPD())(t)
		buf := value(AllocBuffer(10000, BufferOptions{}))(t)
		k.took()
		mr := value(pd.RegMR(buf, MROptions{Access: AccessLocalWrite | AccessRemoteWrite}))(t)
		var req abi.RegMR
		copy(bytesOf(&req), k.last("REG_MR").in)
		k.sent(legacy + " REG_MR")
		want := abi.RegMR{Start: addrOf(buf.Bytes()), HCAVA: addrOf(buf.Bytes()), Length: 10000, PDHandle: pd.handle, AccessFlags: 1 | 2}
		if req != want {
			t.Errorf("request is %+v, want %+v", req, want)
		}
		if mr.LKey() != 0x1111 || mr.RKey() != 0x2222 || mr.Addr() != addrOf(buf.Bytes()) || mr.Len() != 10000 || len(mr.Bytes()) != 10000 {
			t.Errorf("region is %+v", mr)
		}
		if err := buf.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "1 MR") {
			t.Errorf("Close of a registered buffer: %v", err)
		}
		must(t, mr.Close(), mr.Close(), buf.Close(), buf.Close())
		k.sent(method + " DEREG_MR")
		if _, err := pd.RegMR(buf, MROptions{}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a closed buffer: %v", err)
		}
		must(t, pd.Close())
		k.sent(method + " DEALLOC_PD")
	})
}

func TestRegSlice(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	b := make([]byte, 100)
	mr := value(pd.RegSlice(b[10:], AccessLocalWrite))(t)
	if mr.Addr() != addrOf(b)+10 || mr.Len() != 90 || &mr.Bytes()[0] != &b[10] {
		t.Errorf("region is at %#x, %d bytes", mr.Addr(), mr.Len())
	}
	if _, kept := pinnedMRs.Load(mr); !kept {
		t.Error("a forgotten MR would lose its memory")
	}
	k.refuse["DEREG_MR"] = syscall.EBUSY
	errorIs(t, mr.Close(), syscall.EBUSY, "Close")
	if _, kept := pinnedMRs.Load(mr); !kept {
		t.Error("the memory is let go although the device still has it")
	}
	delete(k.refuse, "DEREG_MR")
	must(t, mr.Close())
	if _, kept := pinnedMRs.Load(mr); kept {
		t.Error("a closed MR is kept")
	}
	must(t, pd.Close())
}

func TestRegMRRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	buf := value(AllocBuffer(1, BufferOptions{}))(t)
	k.took()
	if _, err := pd.RegMR(buf, MROptions{Access: AccessOnDemand}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "on-demand paging not supported by driver rxe") {
		t.Errorf("on demand: %v", err)
	}
	for _, access := range []Access{1 << 30, AccessRemoteWrite, AccessRemoteAtomic} {
		var arg *ArgError
		if _, err := pd.RegMR(buf, MROptions{Access: access}); !errors.As(err, &arg) || arg.Field != "access" || arg.Given != access.String() {
			t.Errorf("access %#x: %v", uint32(access), err)
		}
	}
	var arg *ArgError
	if _, err := pd.RegMR(nil, MROptions{}); !errors.As(err, &arg) {
		t.Errorf("no buffer: %v", err)
	}
	if _, err := pd.RegSlice(nil, 0); !errors.As(err, &arg) {
		t.Errorf("no slice: %v", err)
	}
	k.sent()
	k.refuse["REG_MR"] = syscall.ENOMEM
	if _, err := pd.RegMR(buf, MROptions{}); !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") {
		t.Errorf("ENOMEM: %v", err)
	}
	errorIs(t, second(pd.RegSlice(make([]byte, 1), 0)), syscall.ENOMEM, "ENOMEM of a slice")
	must(t, buf.Close(), pd.Close()) // neither has a user
}

func TestBuffer(t *testing.T) {
	var arg *ArgError
	for _, size := range []int{0, -1} {
		if _, err := AllocBuffer(size, BufferOptions{}); !errors.As(err, &arg) || arg.Given != fmt.Sprint(size) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	buf := value(AllocBuffer(4097, BufferOptions{}))(t)
	if b := buf.Bytes(); len(b) != 4097 || buf.Len() != 4097 || addrOf(b)%uint64(os.Getpagesize()) != 0 || slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
		t.Errorf("%d bytes at %#x", len(b), addrOf(b))
	}
	must(t, buf.Close())
	if buf.Bytes() != nil {
		t.Error("a closed buffer has bytes")
	}
}

// TestDriverNamed: it is the driver that is named as lacking something, not the device.
func TestDriverNamed(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.refuse["ALLOC_PD"] = syscall.EOPNOTSUPP
	_, err := d.AllocPD()
	var f *FeatureError
	if !errors.As(err, &f) || f.Driver != "rxe" || f.Feature != "ALLOC_PD" {
		t.Errorf("error is %v (%+v), want driver rxe", err, f)
	}
}
