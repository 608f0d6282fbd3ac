package rdmacm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// text is a string in a field of n bytes.
func text(s string, n int) []byte { return append([]byte(s), make([]byte, n-len(s))...) }

// TestWriteEventBytes compares a command with struct rdma_ucm_write_cm_event, and what comes of
// it with struct rdma_ucm_event_resp.
func TestWriteEventBytes(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(UDP))(t)
	var got []byte
	answer := syscall.Errno(0)
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT: func(in, _ unsafe.Pointer) syscall.Errno {
		got = append([]byte(nil), bytesAt(in, 320)...)
		return answer
	}}
	must(t, id.WriteEvent(-2, 0x1122334455667788))
	arg := []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}
	want := layout(labelled{"id, reserved", []byte{101, 0, 0, 0, 0, 0, 0, 0}}, labelled{"event: RDMA_CM_EVENT_USER", []byte{18, 0, 0, 0}},
		labelled{"status", []byte{0xfe, 0xff, 0xff, 0xff}}, labelled{"arg", arg}, labelled{"rest of param", make([]byte, 304-8)})
	if !cmp.Equal(got, want) {
		t.Errorf("command (-want +got):\n%s", cmp.Diff(want, got))
	}
	r := eventResp(id.uid, id.handle, EventUser, -2)
	copy(bytesAt(unsafe.Pointer(r), 336)[20:], arg)
	e := c.newEvent(r)
	if e.ID != id || e.Status != -2 || e.Arg != 0x1122334455667788 || e.UD != (UDParam{}) || e.Param.PrivateData != nil || !errors.Is(e.Err(), syscall.ENOENT) {
		t.Errorf("event is %+v", e)
	}
	answer = syscall.EINVAL
	wantLacking(t, id.WriteEvent(0, 0), "WRITE_CM_EVENT", uverbs.Version{6, 18}, "needs Linux 6.18")
	answer = syscall.ENOMEM
	if err := id.WriteEvent(0, 0); !errors.Is(err, syscall.ENOMEM) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("WriteEvent: %v", err)
	}
	must(t, id.Close())
	if err := id.WriteEvent(0, 0); !isClosedError(err) {
		t.Errorf("WriteEvent after Close: %v", err)
	}
}

// wantLacking fails the test unless an error says that a feature is missing.
func wantLacking(t *testing.T, err error, feature string, since uverbs.Version, words string) {
	t.Helper()
	var f *uverbs.FeatureError
	if !errors.As(err, &f) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), words) {
		t.Errorf("error is %v, want that %s is lacking: %s", err, feature, words)
		return
	}
	if f.Feature != feature || f.Since != since {
		t.Errorf("lacking is %s, since %v, want %s, %v", f.Feature, f.Since, feature, since)
	}
}

// fakeServices is a kernel that resolves InfiniBand services.
type fakeServices struct {
	got      []byte        // the last command that resolves a service
	answer   syscall.Errno // to commands with the ID
	toNobody syscall.Errno // to commands with another ID
	num      byte          // number of services
}

// newFakeServices returns a kernel with one service, and an ID on it.
func newFakeServices(t *testing.T) (*ID, *fakeServices) {
	t.Helper()
	c, k := newFake(t)
	s := &fakeServices{toNobody: syscall.ENOENT, num: 1}
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{
		abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE: func(in, _ unsafe.Pointer) syscall.Errno {
			if (*abi.ResolveIbService)(in).ID != 101 {
				return s.toNobody
			}
			s.got = append([]byte(nil), bytesAt(in, 88)...)
			return s.answer
		},
		abi.RDMA_USER_CM_CMD_QUERY: func(in, out unsafe.Pointer) syscall.Errno {
			if option := (*abi.Query)(in).Option; option != 3 {
				return syscall.ENOTTY
			}
			copy(bytesAt(out, 65480), layout(labelled{"num_service_recs, reserved", []byte{s.num, s.num >> 1, 0, 0, 0, 0, 0, 0}},
				labelled{"id", counted(1, 8)}, labelled{"gid", counted(0x10, 16)}, labelled{"pkey, reserved", []byte{0x80, 1, 0, 0}},
				labelled{"lease", []byte{0, 0, 0x0e, 0x10}}, labelled{"key", counted(0x20, 16)}, labelled{"name", text("printer", 64)},
				labelled{"data_8", counted(0x30, 16)}, labelled{"data_16", counted(0x40, 16)}, labelled{"data_32", counted(0x50, 16)},
				labelled{"data_64", counted(0x60, 16)}))
			return s.answer
		},
	}
	return value(c.NewID(IB))(t), s
}

// TestServiceBytes compares commands and answers with struct rdma_ucm_resolve_ib_service and
// struct rdma_ucm_query_ib_service_resp.
func TestServiceBytes(t *testing.T) {
	id, k := newFakeServices(t)
	for _, s := range []struct {
		name  string
		id    uint64
		flags byte
	}{{"printer", 0, 2}, {"", 0x0102, 1}, {strings.Repeat("n", 63), 0x0102, 3}} {
		must(t, id.ResolveService(s.name, s.id))
		want := layout(labelled{"id, reserved", []byte{101, 0, 0, 0, 0, 0, 0, 0}}, labelled{"service_id", []byte{byte(s.id), byte(s.id >> 8), 0, 0, 0, 0, 0, 0}},
			labelled{"service_name", text(s.name, 64)}, labelled{"flags, reserved", []byte{s.flags, 0, 0, 0, 0, 0, 0, 0}})
		if !cmp.Equal(k.got, want) {
			t.Errorf("%q, %d: command (-want +got):\n%s", s.name, s.id, cmp.Diff(want, k.got))
		}
	}
	want := Service{ID: 0x0102030405060708, GID: ib.GID(counted(0x10, 16)), PKey: 0x8001, Lease: time.Hour, Key: [16]byte(counted(0x20, 16)), Name: "printer",
		Data8:  [16]byte(counted(0x30, 16)),
		Data16: [8]uint16{0x4041, 0x4243, 0x4445, 0x4647, 0x4849, 0x4a4b, 0x4c4d, 0x4e4f},
		Data32: [4]uint32{0x50515253, 0x54555657, 0x58595a5b, 0x5c5d5e5f},
		Data64: [2]uint64{0x6061626364656667, 0x68696a6b6c6d6e6f}}
	if got := value(id.Services())(t); !cmp.Equal(got, []Service{want}) {
		t.Errorf("services (-want +got):\n%s", cmp.Diff([]Service{want}, got))
	}
	k.num = 255 // and more than there is room for
	if got := value(id.Services())(t); len(got) != maxServices {
		t.Errorf("%d services, want %d", len(got), maxServices)
	}
	rec := abi.IbUserServiceRec{}
	rec.Lease.Put(1<<32 - 1)
	if s := decodeService(&rec); s.Lease != LeaseForever {
		t.Errorf("the lease is %v, want LeaseForever", s.Lease)
	}
	must(t, id.Close())
}

// TestServiceErrors: names that cannot be sent, and the errors of kernels with and without services.
func TestServiceErrors(t *testing.T) {
	id, k := newFakeServices(t)
	var arg *ArgError
	for _, name := range []string{"", strings.Repeat("n", 64), "a\x00b"} {
		if err := id.ResolveService(name, 0); !errors.As(err, &arg) {
			t.Errorf("service %q: %v", name, err)
		}
	}
	k.answer = syscall.EOPNOTSUPP
	wantLacking(t, id.ResolveService("printer", 0), "RESOLVE_IB_SERVICE", uverbs.Version{}, "InfiniBand subnet administrator")
	k.answer = syscall.EINVAL // from a kernel that has the command
	if err := id.ResolveService("printer", 0); !errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "not bound") {
		t.Errorf("ResolveService: %v", err)
	}
	k.toNobody = syscall.EINVAL // and from a kernel that does not
	wantLacking(t, id.ResolveService("printer", 0), "RESOLVE_IB_SERVICE", uverbs.Version{6, 18}, "needs Linux 6.18")
	k.answer = syscall.ENOSYS
	_, err := id.Services()
	wantLacking(t, err, "QUERY_IB_SERVICE", uverbs.Version{6, 18}, "needs Linux 6.18")
	k.answer = syscall.ENODATA
	if _, err := id.Services(); !errors.Is(err, syscall.ENODATA) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Services: %v", err)
	}
	must(t, id.Close())
	if err := id.ResolveService("printer", 0); !isClosedError(err) {
		t.Errorf("ResolveService after Close: %v", err)
	}
	if _, err := id.Services(); !isClosedError(err) {
		t.Errorf("Services after Close: %v", err)
	}
}

// FuzzService: whatever a service record contains, its fields are decoded from their places (struct
// ib_user_service_rec of rdma/ib_user_sa.h, big-endian).
func FuzzService(f *testing.F) {
	f.Add(counted(0, 176))
	f.Add(bytes.Repeat([]byte{0xff}, 176))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r abi.IbUserServiceRec
		raw := bytesAt(unsafe.Pointer(&r), int(unsafe.Sizeof(r)))
		copy(raw, b)
		be := binary.BigEndian
		want := Service{
			ID: be.Uint64(raw), GID: ib.GID(raw[8:24]), PKey: be.Uint16(raw[24:]), Lease: time.Duration(be.Uint32(raw[28:])) * time.Second,
			Key: [16]byte(raw[32:48]), Data8: [16]byte(raw[112:128]), Data64: [2]uint64{be.Uint64(raw[160:]), be.Uint64(raw[168:])},
		}
		if bytes.Equal(raw[28:32], []byte{0xff, 0xff, 0xff, 0xff}) {
			want.Lease = LeaseForever
		}
		name, _, _ := bytes.Cut(raw[48:112], []byte{0})
		want.Name = string(name)
		for i := range want.Data16 {
			want.Data16[i] = be.Uint16(raw[128+2*i:])
		}
		for i := range want.Data32 {
			want.Data32[i] = be.Uint32(raw[144+4*i:])
		}
		if got := decodeService(&r); got != want {
			t.Errorf("service is %+v, want %+v", got, want)
		}
	})
}
