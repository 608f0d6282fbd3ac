package soft

import (
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// TestNoContext: before GET_CONTEXT there is nothing to use, and it succeeds once.
func TestNoContext(t *testing.T) {
	c := open(t, newDevice(t, Options{}), kernel.PathAuto)
	c.want("QUERY_DEVICE", c.legacy(abi.IB_USER_VERBS_CMD_QUERY_DEVICE, kernel.Bytes(&abi.QueryDevice{}), kernel.Bytes(&abi.QueryDeviceResp{}), nil, nil), syscall.EINVAL)
	c.want("ALLOC_PD", c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_PD, kernel.Bytes(&abi.AllocPD{}), kernel.Bytes(&abi.AllocPDResp{}), nil, nil), syscall.EINVAL)
	cmd := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT)
	var vectors [4]byte
	var support [8]byte
	cmd.Add(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS).SetOut(vectors[:])
	cmd.Add(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT).SetOut(support[:])
	c.ok(c.conn.Do(cmd))
	if int(vectors[0]) != runtime.NumCPU() || support[0] != abi.IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS {
		t.Errorf("%d vectors, support %d", vectors[0], support[0])
	}
	c.want("GET_CONTEXT again", c.conn.Do(cmd), syscall.EINVAL)
	c.want("GET_CONTEXT by write", c.legacy(abi.IB_USER_VERBS_CMD_GET_CONTEXT, kernel.Bytes(&abi.GetContext{}), kernel.Bytes(&abi.GetContextResp{}), nil, nil), syscall.EINVAL)
	c.pd()
}

// TestQueryDevice: both commands return the attributes of rxe (rxe_param.h of Linux 7.2).
func TestQueryDevice(t *testing.T) {
	c := newClient(t)
	var resp abi.QueryDeviceResp
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_QUERY_DEVICE, kernel.Bytes(&abi.QueryDevice{}), kernel.Bytes(&resp), nil, nil))
	want := abi.QueryDeviceResp{
		MaxMRSize: 1<<64 - 1, PageSizeCap: 0xfffff000, VendorID: 0xffffff,
		MaxQP: 1048560, MaxQPWR: 1048576, DeviceCapFlags: 0x1223c76, MaxSGE: 32, MaxSGERD: 32, MaxCQ: 1048576, MaxCQE: 32767,
		MaxMR: 524287, MaxPD: 1048576, MaxQPRDAtom: 128, MaxResRDAtom: 258048, MaxQPInitRDAtom: 128, AtomicCap: 1,
		MaxMW: 524287, MaxMcastGrp: 8192, MaxMcastQPAttach: 56, MaxTotalMcastQPAttach: 458752, MaxAH: 32767,
		MaxSRQ: 917503, MaxSRQWR: 1048576, MaxSRQSGE: 27, MaxPKeys: 64, LocalCAAckDelay: 15, PhysPortCnt: 1,
		NodeGUID: resp.NodeGUID, SysImageGUID: resp.NodeGUID,
	}
	if diff := cmp.Diff(kernel.Bytes(&want), kernel.Bytes(&resp)); diff != "" {
		t.Errorf("attributes %+v, want %+v", resp, want)
	}
	if g := resp.NodeGUID.Get(); g != c.ctx.dev.guid || g>>24&0xffff != 0xfffe {
		t.Errorf("node GUID %#x, that of the device is %#x", g, c.ctx.dev.guid)
	}
	var ex abi.ExQueryDeviceResp
	number := uint32(extended | abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE)
	c.ok(c.legacy(number, kernel.Bytes(&abi.ExQueryDevice{}), kernel.Bytes(&ex), nil, nil))
	if ex.DeviceCapFlagsEx != 0x1c001223c76 || int(ex.ResponseLength) != len(kernel.Bytes(&ex)) || ex.ODPCaps.GeneralCaps != 1 ||
		ex.ODPCaps.PerTransportCaps.RCODPCaps != 0xff || ex.ODPCaps.PerTransportCaps.UDODPCaps != 0x23 || ex.ODPCaps.PerTransportCaps.UCODPCaps != 0 {
		t.Errorf("extended attributes %+v", ex)
	}
	short := make([]byte, len(kernel.Bytes(&want))+8)
	c.ok(c.legacy(number, kernel.Bytes(&abi.ExQueryDevice{}), short, nil, nil))
	if n := short[len(short)-4]; int(n) != len(short) {
		t.Errorf("room for %d bytes, response length %d", len(short), n)
	}
	c.want("unknown parts", c.legacy(number, kernel.Bytes(&abi.ExQueryDevice{CompMask: 1}), kernel.Bytes(&ex), nil, nil), syscall.EINVAL)
}

// TestQueryPort: both commands return the port attributes of rxe.
func TestQueryPort(t *testing.T) {
	for mtu, enum := range map[int]uint8{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5} {
		c := open(t, newDevice(t, Options{MTU: mtu}), kernel.PathAuto)
		c.begin()
		var resp abi.QueryPortResp
		c.ok(c.legacy(abi.IB_USER_VERBS_CMD_QUERY_PORT, kernel.Bytes(&abi.QueryPort{PortNum: 1}), kernel.Bytes(&resp), nil, nil))
		want := abi.QueryPortResp{
			PortCapFlags: 0x10000, MaxMsgSz: 1 << 31, GIDTblLen: 1024, PKeyTblLen: 1, State: 4, MaxMTU: 5, ActiveMTU: enum,
			MaxVLNum: 1, ActiveWidth: 1, ActiveSpeed: 1, PhysState: 5, LinkLayer: 2, Flags: 1,
		}
		if resp != want {
			t.Errorf("MTU %d: attributes %+v, want %+v", mtu, resp, want)
		}
		for _, port := range []uint8{0, 2, 255} {
			c.want("QUERY_PORT of no port", c.legacy(abi.IB_USER_VERBS_CMD_QUERY_PORT, kernel.Bytes(&abi.QueryPort{PortNum: port}), kernel.Bytes(&resp), nil, nil), syscall.EINVAL)
		}
		var ex abi.QueryPortRespEx
		query := func(port uint64) syscall.Errno {
			cmd := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT)
			cmd.Add(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM).SetUint(port, 8)
			cmd.Add(abi.UVERBS_ATTR_QUERY_PORT_RESP).SetOut(kernel.Bytes(&ex))
			return c.conn.Do(cmd)
		}
		if c.ok(query(1)); ex.LegacyResp != want || ex.ActiveSpeedEx != 1 {
			t.Errorf("MTU %d: by method %+v", mtu, ex)
		}
		c.want("QUERY_PORT of no port by method", query(2), syscall.EINVAL)
		c.want("QUERY_PORT of a port that is no byte", query(257), syscall.EINVAL)
	}
}

// TestGIDs: the table has the order of the kernel's. Entries that are not used are ENODATA.
func TestGIDs(t *testing.T) {
	d := newDevice(t, Options{})
	c := open(t, d, kernel.PathAuto)
	c.begin()
	entry := func(port, index uint64, size int) (abi.GIDEntry, []byte, syscall.Errno) {
		b := make([]byte, size)
		cmd := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_ENTRY)
		cmd.Add(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT).SetUint(port, 8)
		cmd.Add(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX).SetUint(index, 8)
		cmd.Add(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS).SetUint(0, 4)
		cmd.Add(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY).SetOut(b)
		errno := c.conn.Do(cmd)
		var e abi.GIDEntry
		copy(kernel.Bytes(&e), b)
		return e, b, errno
	}
	ll, own, ula := d.table[0].addr, d.table[1].addr, d.table[2].addr
	if !ll.Is6() || !ll.IsLinkLocalUnicast() || own != d.Addr() || !ula.Is6() || !ula.IsPrivate() {
		t.Errorf("GIDs are of %v, %v and %v", ll, own, ula)
	}
	for i, a := range []netip.Addr{ll, own, ula} {
		e, _, errno := entry(1, uint64(i), 32)
		c.ok(errno)
		gid := a.As16()
		if string(kernel.Bytes(&e.GID)) != string(gid[:]) || e.GIDIndex != uint32(i) || e.PortNum != 1 || e.GIDType != 2 || e.NetdevIfindex == 0 {
			t.Errorf("entry %d is %+v", i, e)
		}
	}
	_, _, errno := entry(1, 3, 32)
	c.want("an unused entry", errno, kernel.ENODATA)
	_, _, errno = entry(1, 1023, 32)
	c.want("the last entry", errno, kernel.ENODATA)
	_, _, errno = entry(1, 1024, 32)
	c.want("beyond the table", errno, syscall.EINVAL)
	_, _, errno = entry(2, 0, 32)
	c.want("no port", errno, syscall.EINVAL)
	_, _, errno = entry(1, 0, 31)
	c.want("too little room", errno, syscall.EINVAL)
	if _, b, errno := entry(1, 0, 40); errno != 0 || !isZero(b[32:]) {
		t.Errorf("more room: %v, %v", errno, b)
	}
}

// TestGIDTable: QUERY_GID_TABLE writes entries of the requested size.
func TestGIDTable(t *testing.T) {
	c := newClient(t)
	query := func(size uint64, room int) ([]byte, [8]byte, syscall.Errno) {
		b := make([]byte, room)
		for i := range b {
			b[i] = 0xee
		}
		var num [8]byte
		cmd := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_TABLE)
		cmd.Add(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE).SetUint(size, 8)
		cmd.Add(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES).SetOut(b)
		cmd.Add(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES).SetOut(num[:])
		return b, num, c.conn.Do(cmd)
	}
	for _, size := range []int{16, 32, 48} {
		b, num, errno := query(uint64(size), 4*size)
		c.ok(errno)
		if num != [8]byte{3} {
			t.Errorf("entries of %d bytes: %d", size, num)
		}
		for i := range 3 {
			e := c.ctx.dev.table[i].entry()
			want := append(kernel.Bytes(&e), make([]byte, 16)...)[:size]
			if got := b[i*size:][:size]; string(got) != string(want) {
				t.Errorf("entry %d of %d bytes is %x, want %x", i, size, got, want)
			}
		}
	}
	for _, bad := range [][2]int{{32, 64}, {0, 64}, {32, 0}, {32, 100}, {32, 31}} {
		_, _, errno := query(uint64(bad[0]), bad[1])
		c.want("QUERY_GID_TABLE", errno, syscall.EINVAL)
	}
}

// TestInfoHandles lists the handles of a kind of objects.
func TestInfoHandles(t *testing.T) {
	c := newClient(t)
	c.pd()
	c.cq()
	c.pd()
	query := func(kind uint64, room int) ([]byte, [4]byte, syscall.Errno) {
		list := make([]byte, room)
		var total [4]byte
		cmd := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INFO_HANDLES)
		cmd.Add(abi.UVERBS_ATTR_INFO_OBJECT_ID).SetUint(kind, 8)
		cmd.Add(abi.UVERBS_ATTR_INFO_TOTAL_HANDLES).SetOut(total[:])
		cmd.Add(abi.UVERBS_ATTR_INFO_HANDLES_LIST).SetOut(list)
		return list, total, c.conn.Do(cmd)
	}
	list, total, errno := query(abi.UVERBS_OBJECT_PD, 12)
	if c.ok(errno); string(list) != "\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" || total != [4]byte{2} {
		t.Errorf("%v handles: %v", total, list)
	}
	list, total, errno = query(abi.UVERBS_OBJECT_PD, 4)
	if c.ok(errno); string(list) != "\x02\x00\x00\x00" || total != [4]byte{1} {
		t.Errorf("room for one: %v handles: %v", total, list)
	}
	_, _, errno = query(abi.UVERBS_OBJECT_PD, 5)
	c.want("room that is no number of handles", errno, syscall.EINVAL)
}
