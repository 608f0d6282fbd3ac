package netlinkrdma

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// goldenDevice is what Linux 6.1 answers for rxe0, but for the GUIDs, which have
// no two bytes alike here.
var goldenDevice = []byte{
	8, 0, 1, 0, 0, 0, 0, 0, // DEV_INDEX 0
	9, 0, 2, 0, 'r', 'x', 'e', '0', 0, 0, 0, 0, // DEV_NAME
	8, 0, 3, 0, 1, 0, 0, 0, // PORT_INDEX: one port
	12, 0, 4, 0, 0x76, 0x3c, 0x22, 0x01, 0, 0, 0, 0, // CAP_FLAGS
	12, 0, 6, 0, 0x18, 0x17, 0x16, 0xfe, 0xff, 0x13, 0x12, 0x11, // NODE_GUID
	12, 0, 7, 0, 0x28, 0x27, 0x26, 0xfe, 0xff, 0x23, 0x22, 0x21, // SYS_IMAGE_GUID
	5, 0, 14, 0, 1, 0, 0, 0, // DEV_NODE_TYPE: CA
	5, 0, 84, 0, 1, 0, 0, 0, // DEV_DIM: on
	9, 0, 67, 0, 'r', 'o', 'c', 'e', 0, 0, 0, 0, // DEV_PROTOCOL
}

// goldenPort is what Linux 6.1 answers for its port.
var goldenPort = []byte{
	8, 0, 1, 0, 0, 0, 0, 0, // DEV_INDEX 0
	9, 0, 2, 0, 'r', 'x', 'e', '0', 0, 0, 0, 0, // DEV_NAME
	8, 0, 3, 0, 1, 0, 0, 0, // PORT_INDEX 1
	5, 0, 12, 0, 4, 0, 0, 0, // PORT_STATE: active
	5, 0, 13, 0, 5, 0, 0, 0, // PORT_PHYS_STATE: link up
	8, 0, 50, 0, 3, 0, 0, 0, // NDEV_INDEX 3
	8, 0, 51, 0, 'v', 'e', '0', 0, // NDEV_NAME
}

// goldenIBPort is a port of an InfiniBand adapter.
var goldenIBPort = []byte{
	8, 0, 1, 0, 7, 0, 0, 0, // DEV_INDEX 7
	11, 0, 2, 0, 'm', 'l', 'x', '5', '_', '7', 0, 0, // DEV_NAME
	8, 0, 3, 0, 2, 0, 0, 0, // PORT_INDEX 2
	4, 0, 0, 0, // PAD, before a u64
	12, 0, 4, 0, 0x48, 0xe8, 0x51, 0xa6, 0x3f, 0, 0, 0, // CAP_FLAGS
	12, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0x80, 0xfe, // SUBNET_PREFIX
	8, 0, 9, 0, 0x2a, 0, 0, 0, // LID
	8, 0, 10, 0, 1, 0, 0, 0, // SM_LID
	5, 0, 11, 0, 3, 0, 0, 0, // LMC
	5, 0, 12, 0, 2, 0, 0, 0, // PORT_STATE: init
	5, 0, 13, 0, 2, 0, 0, 0, // PORT_PHYS_STATE: polling
}

// goldenUverbs is the answer for uverbs1 of an rxe device. Its device number
// 231:4449 has a minor that needs the upper bits.
var goldenUverbs = []byte{
	8, 0, 73, 0, 14, 0, 0, 0, // UVERBS_DRIVER_ID: rxe
	12, 0, 72, 0, 0x61, 0xe7, 0x10, 0x01, 0, 0, 0, 0, // CHARDEV
	12, 0, 71, 0, 2, 0, 0, 0, 0, 0, 0, 0, // CHARDEV_ABI 2
	12, 0, 70, 0, 'u', 'v', 'e', 'r', 'b', 's', '1', 0, // CHARDEV_NAME
}

func TestDecodeDevice(t *testing.T) {
	want := Device{
		Name: "rxe0", NodeType: ib.NodeCA, NodeGUID: 0x111213fffe161718, SysImageGUID: 0x212223fffe262728,
		Protocol: ProtocolRoCE, Ports: 1, CapFlags: 0x01223c76, AdaptiveModeration: true,
	}
	got, err := decodeDevice(goldenDevice)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	// Firmware follows, and an attribute of a kernel to come, nested and odd in length.
	more := slices.Concat(goldenDevice, nla(abi.RDMA_NLDEV_ATTR_FW_VERSION, cstr("22.31.1014")),
		nla(0x3fff|unix.NLA_F_NESTED, nla(1, []byte("abcde"))))
	more = slices.Concat(more, nla(abi.RDMA_NLDEV_ATTR_DEV_TYPE, []byte{1}), nla(abi.RDMA_NLDEV_ATTR_PARENT_NAME, cstr("mlx5_0")))
	want.Firmware, want.Type, want.Parent = "22.31.1014", DeviceTypeSMI, "mlx5_0"
	got, err = decodeDevice(more)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("with more attributes: %v\n%s", err, diff)
	}
}

func TestDecodePort(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
		dev  string
		want Port
	}{
		{"RoCE", goldenPort, "rxe0", Port{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp,
			LinkLayer: ib.LinkLayerEthernet, Netdev: "ve0", NetdevIndex: 3}},
		{"InfiniBand", goldenIBPort, "mlx5_7", Port{Num: 2, State: ib.PortInit, PhysState: ib.PhysPolling,
			LinkLayer: ib.LinkLayerInfiniBand, LID: 42, SMLID: 1, LMC: 3,
			SubnetPrefix: 0xfe80000000000000, CapFlags: 0x3fa651e848}},
	} {
		got, err := decodePort(tt.b, Device{Name: tt.dev})
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tt.name, err, diff)
		}
	}
}

func TestDecodeCharDev(t *testing.T) {
	want := CharDev{Name: "uverbs1", Major: 231, Minor: 0x1161, ABI: 2, DriverID: DriverRXE}
	got, err := decodeCharDev(goldenUverbs)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if got.Path() != "/dev/infiniband/uverbs1" {
		t.Errorf("Path: %s", got.Path())
	}
	// A driver that does not tell its number.
	got, err = decodeCharDev(goldenUverbs[8:])
	if err != nil || got.DriverID != DriverUnknown {
		t.Errorf("without driver: %+v, %v", got, err)
	}
}

// decoders has every decoder with a message that it accepts.
var decoders = []struct {
	name   string
	golden []byte
	decode func([]byte) (string, error) // returns the names that callers put into paths
}{
	{"device", goldenDevice, func(b []byte) (string, error) {
		d, err := decodeDevice(b)
		return d.Name, err
	}},
	{"port", goldenPort, func(b []byte) (string, error) {
		p, err := decodePort(b, Device{Name: "rxe0"})
		return p.Netdev, err
	}},
	{"InfiniBand port", goldenIBPort, func(b []byte) (string, error) {
		p, err := decodePort(b, Device{Name: "mlx5_7"})
		return p.Netdev, err
	}},
	{"character device", goldenUverbs, func(b []byte) (string, error) {
		d, err := decodeCharDev(b)
		return d.Name, err
	}},
}

func TestDecodeMalformed(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "attribute DEV_INDEX: missing"},
		{"half a header", append(slices.Clone(goldenDevice), 8, 0), "2 bytes left, a header needs 4"},
		{"length 3", append(slices.Clone(goldenDevice), 3, 0, 5, 0), "attribute 5: length 3, allowed 4 to 4"},
		{"length 0", append(slices.Clone(goldenDevice), 0, 0, 5, 0), "attribute 5: length 0, allowed 4 to 4"},
		{"length beyond the end", append(slices.Clone(goldenDevice), 9, 0, 5, 0), "attribute 5: length 9, allowed 4 to 4"},
		{"no GUID", slices.Delete(slices.Clone(goldenDevice), 40, 52), "attribute NODE_GUID: missing"},
		{"short index", slices.Concat(goldenDevice, nla(abi.RDMA_NLDEV_ATTR_DEV_INDEX, []byte{1, 0})), "attribute DEV_INDEX: 2 bytes, want 4"},
		{"long GUID", slices.Concat(goldenDevice, nla(abi.RDMA_NLDEV_ATTR_NODE_GUID, make([]byte, 16))), "attribute NODE_GUID: 16 bytes, want 8"},
		{"empty node type", slices.Concat(goldenDevice, nla(abi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE, nil)), "attribute DEV_NODE_TYPE: 0 bytes, want 1"},
		{"path as name", slices.Concat(goldenDevice, nla(abi.RDMA_NLDEV_ATTR_DEV_NAME, cstr("../etc"))), `attribute DEV_NAME: "../etc" is not a name`},
		{"parent as name", slices.Concat(goldenDevice, nla(abi.RDMA_NLDEV_ATTR_DEV_NAME, cstr(".."))), `attribute DEV_NAME: ".." is not a name`},
		{"empty name", slices.Concat(goldenDevice, nla(abi.RDMA_NLDEV_ATTR_DEV_NAME, nil)), `attribute DEV_NAME: "" is not a name`},
	} {
		if d, err := decodeDevice(tt.b); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %+v, error %v, want %q", tt.name, d, err, tt.want)
		}
	}
	if cd, err := decodeCharDev(slices.Concat(goldenUverbs, nla(abi.RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, u64(14)))); err == nil {
		t.Errorf("driver id of 8 bytes: %+v", cd)
	}
}

// Cut inside an attribute, a message is an error and no half filled value.
func TestDecodeTruncated(t *testing.T) {
	for _, d := range decoders {
		if _, err := d.decode(d.golden); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		for start := 0; start < len(d.golden); {
			end := start + int(d.golden[start]) // lengths are below 256
			for n := start + 1; n < end; n++ {
				if _, err := d.decode(d.golden[:n]); err == nil {
					t.Errorf("%s: no error from %d of %d bytes", d.name, n, len(d.golden))
				}
			}
			start = align(end)
		}
	}
}

// No bytes make a decoder panic or return a name that leads out of a directory.
func FuzzDecode(f *testing.F) {
	for i, d := range decoders {
		f.Add(uint8(i), d.golden)
		f.Add(uint8(i), slices.Concat(d.golden, nla(300|unix.NLA_F_NESTED, d.golden)))
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		d := decoders[int(which)%len(decoders)]
		name, err := d.decode(b)
		if err == nil && (name != "" && !validName(name) || strings.ContainsRune(name, 0)) {
			t.Errorf("%s: name %q", d.name, name)
		}
	})
}

// extAck is an NLMSG_ERROR with ENODEV and a text, as netlink_ack makes it: the
// errno, the request, then attributes.
var extAck = []byte{
	0xed, 0xff, 0xff, 0xff, // -ENODEV
	24, 0, 0, 0, 3, 0x14, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, // struct nlmsghdr of the request
	8, 0, 1, 0, 0, 0, 0, 0, // the request's attribute
	11, 0, 1, 0, 'n', 'o', ' ', 'd', 'e', 'v', 0, 0, // NLMSGERR_ATTR_MSG
	8, 0, 2, 0, 20, 0, 0, 0, // NLMSGERR_ATTR_OFFS
}

func TestAckError(t *testing.T) {
	capped := slices.Delete(slices.Clone(extAck), 20, 28)
	control := slices.Clone(extAck)
	control[32] = 0x1b
	for _, tt := range []struct {
		name  string
		typ   uint16
		flags uint16
		b     []byte
		want  string
	}{
		{"success", unix.NLMSG_ERROR, 0, make([]byte, 20), "<nil>"},
		{"plain errno", unix.NLMSG_ERROR, 0, extAck[:20], "no such device"},
		{"text after the whole request", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, extAck, "no such device (kernel: no dev)"},
		{"text after its header", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS | unix.NLM_F_CAPPED, capped, "no such device (kernel: no dev)"},
		{"text at the end of a dump", unix.NLMSG_DONE, unix.NLM_F_ACK_TLVS, slices.Concat(extAck[:4], extAck[28:]), "no such device (kernel: no dev)"},
		{"escape sequence", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, control, "no such device (kernel: ?o dev)"},
		{"text cut off", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, extAck[:34], "no such device"},
		{"request cut off", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, extAck[:12], "no such device"},
		{"request longer than the message", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS,
			slices.Concat(extAck[:4], u32(1<<31-1), extAck[8:]), "no such device"},
		{"request of negative length", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS,
			slices.Concat(extAck[:4], u32(1<<31), extAck[8:]), "no such device"},
		{"short", unix.NLMSG_ERROR, 0, extAck[:3], "netlink ack of 3 bytes, shorter than an errno"},
		{"impossible errno", unix.NLMSG_ERROR, 0, u32(1 << 31), "netlink ack with errno 2147483648, more than 4095"},
	} {
		err := ackError(&syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: tt.typ, Flags: tt.flags}, Data: tt.b})
		if got := fmtError(err); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func fmtError(err error) string {
	if err == nil {
		return "<nil>"
	}
	return err.Error()
}

func FuzzReply(f *testing.F) {
	f.Add(uint16(unix.NLMSG_ERROR), uint16(unix.NLM_F_ACK_TLVS), extAck)
	f.Add(uint16(unix.NLMSG_DONE), uint16(unix.NLM_F_ACK_TLVS), extAck)
	f.Add(uint16(unix.NLMSG_DONE), uint16(0), []byte{})
	f.Add(uint16(0x1401), uint16(unix.NLM_F_MULTI), goldenDevice)
	f.Fuzz(func(t *testing.T, typ, flags uint16, b []byte) {
		r := reply{seq: 1}
		done, err := r.add(&syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ, Flags: flags, Seq: 1}, Data: b})
		if isEnd := typ == unix.NLMSG_ERROR || typ == unix.NLMSG_DONE; isEnd != done {
			t.Errorf("type %d: done %t, error %v", typ, done, err)
		}
		if done && len(r.payloads) != 0 {
			t.Errorf("type %d became a payload", typ)
		}
	})
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		v    interface{ String() string }
		want string
	}{
		{DriverUnknown, "unknown"}, {DriverMLX5, "mlx5"}, {DriverRXE, "rxe"}, {DriverIONIC, "ionic"},
		{DriverID(1 << 31), "DriverID(2147483648)"},
	} {
		if got := tt.v.String(); got != tt.want {
			t.Errorf("%T: %q, want %q", tt.v, got, tt.want)
		}
	}
	for id, name := range driverNames {
		if name == "" {
			t.Errorf("driver %d has no name", id)
		}
	}
}
