package abi

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// aligned returns n bytes at an address that any struct of this package may have.
func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// TestReadBind reads a bind request out of bytes that stand where rdma_user_rxe.h has them.
func TestReadBind(t *testing.T) {
	b := aligned(224)
	for offset, v := range map[int]uint64{
		0:  0x0102030405060708, // wr_id
		24: 0x1112131415161718, // wr.mw.addr
		32: 0x2122232425262728, // wr.mw.length
	} {
		binary.LittleEndian.PutUint64(b[offset:], v)
	}
	for offset, v := range map[int]uint32{
		12:  8,          // opcode
		16:  2,          // send_flags
		40:  0x31323334, // wr.mw.mr_lkey
		44:  0x41424344, // wr.mw.mw_rkey
		48:  0x51525354, // wr.mw.rkey
		52:  7,          // wr.mw.access
		184: 64,         // dma.length
		196: 1,          // dma.num_sge
		216: 9,          // dma.sge[0].length
	} {
		binary.LittleEndian.PutUint32(b[offset:], v)
	}
	w := (*RxeSendWQE)(unsafe.Pointer(unsafe.SliceData(b)))
	want := RxeSendWRMW{Addr: 0x1112131415161718, Length: 0x2122232425262728, MRLKey: 0x31323334, MWRKey: 0x41424344, RKey: 0x51525354, Access: 7}
	if got := *w.WR.WR.MW(); got != want {
		t.Errorf("wr.mw is %+v, want %+v", got, want)
	}
	if w.WR.WRID != 0x0102030405060708 || w.WR.Opcode != 8 || w.WR.SendFlags != 2 {
		t.Errorf("wr_id %#x, opcode %d, flags %d", w.WR.WRID, w.WR.Opcode, w.WR.SendFlags)
	}
	if sge := w.DMA.TailSGE(1); w.DMA.Length != 64 || w.DMA.NumSGE != 1 || sge[0].Length != 9 {
		t.Errorf("dma.length %d, num_sge %d, sge %+v", w.DMA.Length, w.DMA.NumSGE, sge)
	}
}

// TestResponses compares the answers of commands with bytes.
func TestResponses(t *testing.T) {
	qp := RxeCreateQPResp{RQMI: Mminfo{Offset: 0x1000, Size: 0x2000}, SQMI: Mminfo{Offset: 0x5000, Size: 0x3000}}
	want := make([]byte, 32)
	binary.LittleEndian.PutUint64(want, 0x1000)
	binary.LittleEndian.PutUint32(want[8:], 0x2000)
	binary.LittleEndian.PutUint64(want[16:], 0x5000)
	binary.LittleEndian.PutUint32(want[24:], 0x3000)
	if diff := cmp.Diff(want, unsafe.Slice((*byte)(unsafe.Pointer(&qp)), unsafe.Sizeof(qp))); diff != "" {
		t.Errorf("rxe_create_qp_resp (-want +got):\n%s", diff)
	}
	srq := RxeCreateSRQResp{MI: Mminfo{Offset: 0x1000, Size: 0x2000}, SRQNum: 0x20001}
	want = want[:24]
	binary.LittleEndian.PutUint64(want[16:], 0x20001)
	if diff := cmp.Diff(want, unsafe.Slice((*byte)(unsafe.Pointer(&srq)), unsafe.Sizeof(srq))); diff != "" {
		t.Errorf("rxe_create_srq_resp (-want +got):\n%s", diff)
	}
}
