package abi

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// TestSendWQE fills a work request in place and compares it byte by byte.
func TestSendWQE(t *testing.T) {
	var slot struct {
		RxeSendWQE
		sge [2]RxeSGE
	}
	w := &slot.RxeSendWQE
	w.WR.WRID = 0x0102030405060708
	w.WR.Opcode = IB_UVERBS_WR_RDMA_WRITE_WITH_IMM
	w.WR.SendFlags = 2
	w.WR.Ex.ImmData().Put(0xa1a2a3a4)
	rdma := w.WR.WR.RDMA()
	rdma.RemoteAddr = 0x1112131415161718
	rdma.RKey = 0x21222324
	w.SSN = 9
	w.DMA.Length = 96
	w.DMA.Resid = 96
	w.DMA.NumSGE = 2
	copy(w.DMA.TailSGE(2), []RxeSGE{{Addr: 0x3132333435363738, Length: 64, LKey: 5}, {Addr: 0x40, Length: 32, LKey: 6}})

	want := make([]byte, 240)
	for offset, b := range map[int][]byte{
		0:   {8, 7, 6, 5, 4, 3, 2, 1},                         // wr.wr_id
		12:  {1},                                              // wr.opcode
		16:  {2},                                              // wr.send_flags
		20:  {0xa1, 0xa2, 0xa3, 0xa4},                         // wr.ex.imm_data
		24:  {0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11}, // wr.wr.rdma.remote_addr
		32:  {0x24, 0x23, 0x22, 0x21},                         // wr.wr.rdma.rkey
		176: {9},                                              // ssn
		184: {96},                                             // dma.length
		188: {96},                                             // dma.resid
		196: {2},                                              // dma.num_sge
		208: {0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31}, // dma.sge[0].addr
		216: {64},                                             // dma.sge[0].length
		220: {5},                                              // dma.sge[0].lkey
		224: {0x40},                                           // dma.sge[1].addr
		232: {32},                                             // dma.sge[1].length
		236: {6},                                              // dma.sge[1].lkey
	} {
		copy(want[offset:], b)
	}
	got := unsafe.Slice((*byte)(unsafe.Pointer(&slot)), unsafe.Sizeof(slot))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("slot (-want +got):\n%s", diff)
	}

	copy(w.DMA.TailInlineData(20), "inline data, 20 byte")
	if got := string(got[208:228]); got != "inline data, 20 byte" {
		t.Errorf("inline data is %q", got)
	}
}

// TestAddressVector fills the union of socket addresses of a UD request.
func TestAddressVector(t *testing.T) {
	var wr RxeSendWR
	av := &wr.WR.UD().AV
	av.NetworkType = RXE_NETWORK_TYPE_IPV6
	*av.GRH.DGID.Raw() = [16]byte{0xfe, 0x80, 15: 2}
	av.GRH.DGID.Global().InterfaceID.Put(0x0203)
	sa := av.DGIDAddr.SockaddrIn6()
	sa.Sin6Family = 10
	sa.Sin6Port.Put(4791)
	sa.Sin6Addr.In6U.U6Addr8()[15] = 7
	sa.Sin6ScopeID = 3

	want := make([]byte, 144)
	const at = 56 // wr.ud.av
	for offset, b := range map[int][]byte{
		at + 1:       {2},             // network_type
		at + 8:       {0xfe, 0x80},    // grh.dgid
		at + 8 + 14:  {2, 3},          // grh.dgid.global.interface_id
		at + 60:      {10, 0},         // dgid_addr: sin6_family
		at + 60 + 2:  {0x12, 0xb7},    // sin6_port
		at + 60 + 23: {7, 3, 0, 0, 0}, // sin6_addr, sin6_scope_id
	} {
		copy(want[offset:], b)
	}
	got := unsafe.Slice((*byte)(unsafe.Pointer(&wr)), unsafe.Sizeof(wr))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rxe_send_wr (-want +got):\n%s", diff)
	}
}

// TestFillAllocates holds the accessors to what the data path promises.
func TestFillAllocates(t *testing.T) {
	var slot struct {
		RxeSendWQE
		sge [1]RxeSGE
	}
	n := testing.AllocsPerRun(100, func() {
		slot.WR.Ex.ImmData().Put(1)
		slot.WR.WR.RDMA().RKey = 2
		slot.DMA.TailSGE(1)[0] = RxeSGE{Addr: 3, Length: 4, LKey: 5}
	})
	if n != 0 {
		t.Errorf("filling a slot allocates %v times", n)
	}
}
