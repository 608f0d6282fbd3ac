package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// words returns integers as they lie in memory.
func words(all ...any) []byte {
	var b []byte
	for _, w := range all {
		b, _ = binary.Append(b, binary.LittleEndian, w)
	}
	return b
}

// same compares the bytes of a command.
func same(t *testing.T, got, want []byte) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
}

// TestRequest lays out ALLOC_PD with four bytes of driver data each way (struct ib_uverbs_cmd_hdr:
// sizes in words of 4 bytes, in_words with the header).
func TestRequest(t *testing.T) {
	l := Legacy{
		Number: abi.IB_USER_VERBS_CMD_ALLOC_PD, In: Bytes(&abi.AllocPD{}), Out: Bytes(&abi.AllocPDResp{}),
		DrvIn: []byte{1, 2, 3, 4}, DrvOut: make([]byte, 8),
	}
	same(t, l.Request(0x1122334455667788), words(
		uint32(3), uint16((8+8+4)/4), uint16((4+8)/4), // command, in_words, out_words
		uint64(0x1122334455667788), uint32(0x04030201), // response, driver data
	))
}

// TestRequestNoResponse: a command without a response starts with its own field.
func TestRequestNoResponse(t *testing.T) {
	l := Legacy{Number: abi.IB_USER_VERBS_CMD_DEALLOC_PD, In: Bytes(&abi.DeallocPD{PDHandle: 77})}
	same(t, l.Request(0), words(uint32(4), uint16(3), uint16(0), uint32(77)))
}

// TestRequestExtended lays out QUERY_DEVICE (struct ib_uverbs_ex_cmd_hdr: sizes in words of 8
// bytes, without the headers and without what the driver's counts cover, as _execute_cmd_write_ex
// of libibverbs/cmd_fallback.c has it).
func TestRequestExtended(t *testing.T) {
	out := Bytes(&abi.ExQueryDeviceResp{})
	l := Legacy{
		Number: abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE | abi.IB_USER_VERBS_CMD_FLAG_EXTENDED,
		In:     Bytes(&abi.ExQueryDevice{CompMask: 5}), Out: out, DrvIn: make([]byte, 16), DrvOut: make([]byte, 8),
	}
	same(t, l.Request(0x1122334455667788), words(
		uint32(0x80000001), uint16(1), uint16(len(out)/8), // command, in_words, out_words
		uint64(0x1122334455667788), uint16(2), uint16(1), uint32(0), // response, provider_in_words, provider_out_words
		uint32(5), uint32(0), [16]byte{}, // comp_mask, reserved, driver data
	))
}

// attrWords returns an attribute (struct ib_uverbs_attr).
func attrWords(id, size uint16, enum uint8, data uint64) []byte {
	return words(id, size, uint16(1), enum, uint8(0), data)
}

// TestEncodeInvokeWrite lays out INVOKE_WRITE (struct ib_uverbs_ioctl_hdr and ib_uverbs_attr).
func TestEncodeInvokeWrite(t *testing.T) {
	in, out, drvIn := Bytes(&abi.DeallocPD{PDHandle: 77}), Bytes(&abi.DestroyCQResp{}), make([]byte, 9)
	c := invokeWrite(4, in, out, drvIn, nil)
	c.encode(14)
	same(t, Bytes(c.wire)[:24+4*16], words(
		uint16(24+4*16), uint16(abi.UVERBS_OBJECT_DEVICE), uint16(abi.UVERBS_METHOD_INVOKE_WRITE), uint16(4),
		uint64(0), uint32(14), uint32(0), // reserved, driver_id, reserved
		attrWords(abi.UVERBS_ATTR_CORE_IN, 4, 0, 77),
		attrWords(abi.UVERBS_ATTR_CORE_OUT, 8, 0, Addr(out)),
		attrWords(abi.UVERBS_ATTR_WRITE_CMD, 8, 0, 4),
		attrWords(abi.UVERBS_ATTR_UHW_IN, 9, 0, Addr(drvIn)),
	))
}

// TestEncode covers every kind of attribute, and the handle that comes back.
func TestEncode(t *testing.T) {
	out := make([]byte, 4)
	c := NewCommand(1, 2)
	c.Add(10).Data = 0xfffffffe
	handle := c.Add(11)
	c.Add(12).SetUint(0x80000001, 4)
	c.Add(13).SetIn([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	c.Add(14).SetOut(out)
	kind := c.Add(15)
	kind.Enum = 3
	kind.SetIn(nil)
	c.encode(0)
	same(t, Bytes(c.wire)[24:24+6*16], words(
		attrWords(10, 0, 0, 0xfffffffe), attrWords(11, 0, 0, 0), attrWords(12, 4, 0, 0x80000001),
		attrWords(13, 8, 0, 0x0807060504030201), attrWords(14, 4, 0, Addr(out)), attrWords(15, 0, 3, 0),
	))
	c.wire.attrs[1].Data = 9
	if c.decode(); handle.Data != 9 || c.Attr(14).Data != 0 {
		t.Errorf("the new handle is %d, want 9; output has the value %d", handle.Data, c.Attr(14).Data)
	}
}

// TestCommandReused: a command that is done keeps nothing of what it held.
func TestCommandReused(t *testing.T) {
	c := NewCommand(1, 2)
	c.Brief = true
	c.Add(10).SetIn(make([]byte, 100))
	a := &c.attrs[0]
	c.Done()
	if a.In != nil {
		t.Error("memory of a command that is done is kept")
	}
	if c = NewCommand(3, 4); len(c.Attrs()) != 0 || c.Brief || c.Object != 3 || c.Method != 4 || c.Attr(10).ID != 0 {
		t.Errorf("a new command is %+v", c)
	}
}

func TestLegacy(t *testing.T) {
	if l, ok := NewCommand(abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY).Legacy(); ok {
		t.Errorf("a method carries %+v", l)
	}
	want := Legacy{Number: 7, In: []byte{1, 2, 3, 4}, Out: make([]byte, 5), DrvIn: make([]byte, 6), DrvOut: make([]byte, 7)}
	got, ok := invokeWrite(7, want.In, want.Out, want.DrvIn, want.DrvOut).Legacy()
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("%v, command (-want +got):\n%s", ok, diff)
	}
}
