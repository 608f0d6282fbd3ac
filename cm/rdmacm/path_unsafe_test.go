package rdmacm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// labelled is a run of bytes with a name.
type labelled struct {
	name  string
	bytes []byte
}

// layout puts runs of bytes one behind the other.
func layout(runs ...labelled) (b []byte) {
	for _, r := range runs {
		b = append(b, r.bytes...)
	}
	return b
}

// bytesAt returns the n bytes at p.
func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// counted is n bytes that count from first.
func counted(first byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// recordBytes is a path record as InfiniBand has it, and path is what it says.
var (
	recordBytes = layout(
		labelled{"service id", []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		labelled{"dgid", counted(0x10, 16)},
		labelled{"sgid", counted(0x30, 16)},
		labelled{"dlid", []byte{0x51, 0x52}},
		labelled{"slid", []byte{0x53, 0x54}},
		labelled{"raw traffic, flow label, hop limit", []byte{0x8a, 0xbc, 0xde, 64}},
		labelled{"traffic class", []byte{0x61}},
		labelled{"reversible, count", []byte{0x80 | 5}},
		labelled{"pkey", []byte{0x80, 1}},
		labelled{"qos class, sl", []byte{0x12, 0x3c}},
		labelled{"mtu", []byte{2<<6 | 4}},
		labelled{"rate", []byte{1<<6 | 7}},
		labelled{"life time", []byte{3<<6 | 18}},
		labelled{"preference", []byte{9}},
		labelled{"reserved", make([]byte, 6)},
	)
	record = Path{
		ServiceID: 0x0102030405060708, DGID: ib.GID(counted(0x10, 16)), SGID: ib.GID(counted(0x30, 16)), DLID: 0x5152, SLID: 0x5354,
		RawTraffic: true, FlowLabel: 0xabcde, HopLimit: 64, TrafficClass: 0x61, Reversible: true, Count: 5, PKey: 0x8001, QoSClass: 0x123, SL: 12,
		Preference: 9, MTU: ib.MTU2048, Rate: 7, Lifetime: 18, MTUSelector: SelectExactly, RateSelector: SelectLess, LifetimeSelector: SelectLargest,
	}
	primaryBytes = []byte{1 | 2 | 40, 0, 0, 0, 0, 0, 0, 0} // GMP, primary, bidirectional; reserved
)

// TestPathBytes compares the query of paths, and its answer, with struct
// rdma_ucm_query_path_resp, and SetPath with struct rdma_ucm_set_option.
func TestPathBytes(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	var query, set []byte
	count := byte(1)
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{
		abi.RDMA_USER_CM_CMD_QUERY: func(in, out unsafe.Pointer) syscall.Errno {
			query = append([]byte(nil), bytesAt(in, 16)...)
			copy(bytesAt(out, 8+6*72), layout(labelled{"num_paths, reserved", []byte{count, 0, 0, 0, 0, 0, 0, 0}},
				labelled{"flags, reserved", primaryBytes}, labelled{"path_rec", recordBytes}))
			return 0
		},
		abi.RDMA_USER_CM_CMD_SET_OPTION: func(in, _ unsafe.Pointer) syscall.Errno {
			set = append(append([]byte(nil), bytesAt(in, 24)[8:]...), bytesAt(*(*unsafe.Pointer)(in), 72)...)
			return 0
		},
	}
	if got := value(id.Paths())(t); !cmp.Equal(got, []Path{record}) {
		t.Errorf("paths (-want +got):\n%s", cmp.Diff([]Path{record}, got))
	}
	if want := []byte{101, 0, 0, 0, 1, 0, 0, 0}; !cmp.Equal(query[8:], want) {
		t.Errorf("ID and option are %v, want %v", query[8:], want)
	}
	count = 200 // more than there is room for
	if got := value(id.Paths())(t); len(got) != 5 {
		t.Errorf("%d paths, want 5", len(got))
	}
	must(t, id.SetPath(record))
	want := layout(labelled{"id", []byte{101, 0, 0, 0}}, labelled{"level: RDMA_OPTION_IB", []byte{1, 0, 0, 0}},
		labelled{"optname: RDMA_OPTION_IB_PATH", []byte{1, 0, 0, 0}}, labelled{"optlen", []byte{72, 0, 0, 0}},
		labelled{"flags, reserved", primaryBytes}, labelled{"path_rec", recordBytes})
	if !cmp.Equal(set, want) {
		t.Errorf("option (-want +got):\n%s", cmp.Diff(want, set))
	}
	for _, wrong := range []func(p *Path){
		func(p *Path) { p.FlowLabel = 1 << 20 }, func(p *Path) { p.Count = 128 }, func(p *Path) { p.QoSClass = 1 << 12 },
		func(p *Path) { p.SL = 16 }, func(p *Path) { p.Rate = 64 }, func(p *Path) { p.Lifetime = 64 },
		func(p *Path) { p.MTU = 0 }, func(p *Path) { p.MTU = 6 }, func(p *Path) { p.RateSelector = 4 },
	} {
		p := record
		wrong(&p)
		var arg *ArgError
		if err := id.SetPath(p); !errors.As(err, &arg) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	k.refuse[abi.RDMA_USER_CM_CMD_SET_OPTION] = syscall.EINVAL
	if err := id.SetPath(record); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "no resolved address") {
		t.Errorf("SetPath: %v", err)
	}
	must(t, id.Close())
	if _, err := id.Paths(); !isClosedError(err) {
		t.Errorf("Paths after Close: %v", err)
	}
	if err := id.SetPath(record); !isClosedError(err) {
		t.Errorf("SetPath after Close: %v", err)
	}
}

// TestGIDBytes compares the answer to a query of GIDs with struct rdma_ucm_query_addr_resp and
// struct sockaddr_ib.
func TestGIDBytes(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	defer id.Close()
	sockaddrIB := func(family, first byte) []byte {
		return layout(labelled{"sib_family", []byte{family, 0}}, labelled{"sib_pkey", []byte{0x80, 1}}, labelled{"sib_flowinfo", make([]byte, 4)},
			labelled{"sib_addr", counted(first, 16)}, labelled{"sib_sid", []byte{0, 0, 0, 0, 1, 6, 0x1d, first}},
			labelled{"mask, scope, rest", make([]byte, 128-32)})
	}
	var option byte
	family := byte(27)
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{abi.RDMA_USER_CM_CMD_QUERY: func(in, out unsafe.Pointer) syscall.Errno {
		option = bytesAt(in, 16)[12]
		copy(bytesAt(out, 280), layout(labelled{"node_guid", counted(0x81, 8)}, labelled{"port_num, reserved", []byte{1, 0}},
			labelled{"pkey", []byte{0x80, 2}}, labelled{"sizes", []byte{48, 0, 48, 0}},
			labelled{"src_addr", sockaddrIB(family, 0x10)}, labelled{"dst_addr", sockaddrIB(family, 0x30)}, labelled{"ibdev_index", []byte{7, 0, 0, 0}}))
		return 0
	}}
	want := GIDs{Local: ib.GID(counted(0x10, 16)), Remote: ib.GID(counted(0x30, 16)), LocalServiceID: 0x01061d10, RemoteServiceID: 0x01061d30,
		PKey: 0x8002, NodeGUID: 0x8182838485868788}
	if got := value(id.GIDs())(t); got != want || option != 2 {
		t.Errorf("option %d, GIDs (-want +got):\n%s", option, cmp.Diff(want, got))
	}
	family = 0
	if got := value(id.GIDs())(t); got != (GIDs{PKey: want.PKey, NodeGUID: want.NodeGUID}) {
		t.Errorf("without addresses GIDs are %+v", got)
	}
	if a, index, err := id.AddrsByIndex(); err != nil || a.PKey != 0x8002 || index != 7 || option != 0 {
		t.Errorf("addresses are %+v on %d, %v", a, index, err)
	}
}

// FuzzPath: any record is taken apart, and put together again but for the bits that mean
// nothing.
func FuzzPath(f *testing.F) {
	f.Add(recordBytes)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		rec := abi.IbPathRecData{Flags: primaryPath}
		in := bytesAt(unsafe.Pointer(&rec.PathRec), 64)
		copy(in, b)
		p := decodePath(&rec)
		if err := p.check(); (err == nil) != (p.MTU.Bytes() != 0) {
			t.Errorf("what was decoded is refused: %v", err)
		}
		out := p.encode()
		in[44] &^= 0x70 // reserved, between raw traffic and flow label
		clear(in[58:])  // reserved
		if !cmp.Equal(bytesAt(unsafe.Pointer(out), 72), bytesAt(unsafe.Pointer(&rec), 72)) {
			t.Errorf("%x becomes %x", in, out.PathRec)
		}
	})
}

// FuzzAddress: no address makes the library panic, and an address of each family has the bytes of the record.
func FuzzAddress(f *testing.F) {
	f.Add([]byte{27, 0, 0x80, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 0, 0, 0, 1, 6, 0x1d, 0x10})
	f.Add([]byte{2, 0, 1, 2, 10, 1, 0, 1})
	f.Add([]byte{10, 0, 1, 2, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s abi.KernelSockaddrStorage
		raw := bytesAt(unsafe.Pointer(&s), 128)
		copy(raw, b)
		a, got := decodeIB(&s), address(&s, TCP)
		_ = got.String()
		port := binary.BigEndian.Uint16(raw[2:])
		switch family := *s.SsFamily(); {
		case family == afIB:
			again, err := binary.Append(nil, binary.BigEndian, a)
			if err != nil || !bytes.Equal(again, raw[2:2+len(again)]) {
				t.Errorf("%x becomes %+v, which becomes %x, %v", raw, a, again, err)
			}
		case a != (sockaddrIB{}):
			t.Errorf("family %d gives %+v", family, a)
		case family == afInet:
			if got.IP != netip.AddrFrom4([4]byte(raw[4:])) || got.Port != port {
				t.Errorf("%x becomes %v", raw[:8], got)
			}
		case family == afInet6:
			if got.IP.WithZone("") != netip.AddrFrom16([16]byte(raw[8:])) || got.Port != port {
				t.Errorf("%x becomes %v", raw[:28], got)
			}
		case got != (Addr{Space: TCP}):
			t.Errorf("family %d gives %v", family, got)
		}
	})
}
