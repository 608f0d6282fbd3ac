package abi

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// bytesOf returns the memory of *p.
func bytesOf[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

// growStack makes the stack grow, so that the runtime moves it.
//
//go:noinline
func growStack(n int) byte {
	var room [1024]byte
	if n == 0 {
		return room[0]
	}
	return growStack(n-1) + room[n%len(room)]
}

// store does what the kernel does with the address in a command.
//
//go:noinline
func store(cmd *QueryPort, v uint32) { *(*uint32)(cmd.Response.p) = v }

// TestPtrOnStack has a response on the stack when the stack moves between the
// filling of a command and the call. A uint64 would still hold the old address.
func TestPtrOnStack(t *testing.T) {
	got := make(chan [2]uintptr)
	value := make(chan uint32)
	go func() { // a new goroutine has a small stack
		var resp QueryPortResp
		before := uintptr(unsafe.Pointer(&resp))
		cmd := QueryPort{Response: PtrTo(&resp)}
		growStack(1000)
		store(&cmd, 99)
		got <- [2]uintptr{before, uintptr(unsafe.Pointer(&resp))}
		value <- resp.PortCapFlags
	}()
	if at := <-got; at[0] == at[1] {
		t.Error("the response did not move, so this test shows nothing")
	}
	if v := <-value; v != 99 {
		t.Errorf("the response has %d, want 99", v)
	}
}

func TestPtr(t *testing.T) {
	var p Ptr
	if !p.IsNil() {
		t.Error("the zero Ptr is not nil")
	}
	v := new(uint32)
	if p = PtrTo(v); p.IsNil() || p.p != unsafe.Pointer(v) {
		t.Errorf("PtrTo(%p) holds %p", v, p.p)
	}
	s := make([]uint64, 3)
	if p = PtrToSlice(s[1:]); p.p != unsafe.Pointer(&s[1]) {
		t.Errorf("PtrToSlice of %p holds %p", &s[1], p.p)
	}
	if p = PtrToSlice([]byte(nil)); !p.IsNil() {
		t.Errorf("PtrToSlice(nil) holds %p", p.p)
	}
}

func TestBigEndian(t *testing.T) {
	var resp QueryDeviceResp
	resp.NodeGUID.Put(0x0102030405060708)
	if diff := cmp.Diff([]byte{1, 2, 3, 4, 5, 6, 7, 8}, bytesOf(&resp)[8:16]); diff != "" {
		t.Errorf("node_guid (-want +got):\n%s", diff)
	}
	if got := resp.NodeGUID.Get(); got != 0x0102030405060708 {
		t.Errorf("Get returns %#x", got)
	}
	var wc WC
	wc.Ex.ImmData().Put(0x0a0b0c0d)
	if diff := cmp.Diff([]byte{0xa, 0xb, 0xc, 0xd}, bytesOf(&wc)[24:28]); diff != "" {
		t.Errorf("ex.imm_data (-want +got):\n%s", diff)
	}
	if got := wc.Ex.ImmData().Get(); got != 0x0a0b0c0d {
		t.Errorf("Get returns %#x", got)
	}
}

// TestIoctl fills a command as it is passed to the ioctl, and compares bytes.
func TestIoctl(t *testing.T) {
	var cmd struct {
		IoctlHdr
		attrs [2]Attr
	}
	cmd.Length = uint16(unsafe.Sizeof(cmd))
	cmd.ObjectID = UVERBS_OBJECT_CQ
	cmd.MethodID = UVERBS_METHOD_CQ_DESTROY
	cmd.NumAttrs = 2
	cmd.DriverID = RDMA_DRIVER_RXE
	attrs := &cmd.attrs
	attrs[0] = Attr{AttrID: UVERBS_ATTR_DESTROY_CQ_HANDLE, Flags: UVERBS_ATTR_F_MANDATORY, Data: 0x11223344}
	attrs[1] = Attr{AttrID: UVERBS_ATTR_DESTROY_CQ_RESP, Len: 8, Flags: UVERBS_ATTR_F_MANDATORY}
	attrs[1].AttrData.EnumData().ElemID = 5
	want := []byte{
		56, 0, // length
		3, 0, // object_id
		1, 0, // method_id
		2, 0, // num_attrs
		0, 0, 0, 0, 0, 0, 0, 0, // reserved1
		14, 0, 0, 0, // driver_id
		0, 0, 0, 0, // reserved2

		0, 0, // attr_id
		0, 0, // len
		1, 0, // flags
		0, 0, // attr_data
		0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, // data

		1, 0, // attr_id
		8, 0, // len
		1, 0, // flags
		5, 0, // attr_data.enum_data
		0, 0, 0, 0, 0, 0, 0, 0, // data
	}
	if diff := cmp.Diff(want, bytesOf(&cmd)); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	if RDMA_VERBS_IOCTL != 0xc0181b01 {
		t.Errorf("RDMA_VERBS_IOCTL is %#x, want _IOWR(0x1b, 1, 24 bytes)", RDMA_VERBS_IOCTL)
	}
}
