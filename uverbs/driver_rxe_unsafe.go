package uverbs

import (
	"unsafe"

	"github.com/goverbs/goverbs/mmio/rxe"
)

// record returns the beginning of a WC as a completion of rxe, which has the same layout, so that
// it can be copied whole. [CQ.Poll] corrects the two fields that differ.
func (wc *WC) record() *rxe.Record { return (*rxe.Record)(unsafe.Pointer(wc)) }

// A constant that is not 0 does not compile.
const (
	_ = -(unsafe.Offsetof(WC{}.ID) ^ unsafe.Offsetof(rxe.Record{}.WRID))
	_ = -(unsafe.Offsetof(WC{}.Status) ^ unsafe.Offsetof(rxe.Record{}.Status))
	_ = -(unsafe.Offsetof(WC{}.Opcode) ^ unsafe.Offsetof(rxe.Record{}.Opcode))
	_ = -(unsafe.Offsetof(WC{}.VendorErr) ^ unsafe.Offsetof(rxe.Record{}.VendorErr))
	_ = -(unsafe.Offsetof(WC{}.ByteLen) ^ unsafe.Offsetof(rxe.Record{}.ByteLen))
	_ = -(unsafe.Offsetof(WC{}.Imm) ^ unsafe.Offsetof(rxe.Record{}.Ex))
	_ = -(unsafe.Offsetof(WC{}.QPN) ^ unsafe.Offsetof(rxe.Record{}.QPNum))
	_ = -(unsafe.Offsetof(WC{}.SrcQP) ^ unsafe.Offsetof(rxe.Record{}.SrcQP))
	_ = -(unsafe.Offsetof(WC{}.Flags) ^ unsafe.Offsetof(rxe.Record{}.WCFlags))
	_ = -(unsafe.Offsetof(WC{}.PKeyIndex) ^ unsafe.Offsetof(rxe.Record{}.PKeyIndex))
	_ = -(unsafe.Offsetof(WC{}.SLID) ^ unsafe.Offsetof(rxe.Record{}.SLID))
	_ = -(unsafe.Offsetof(WC{}.SL) ^ unsafe.Offsetof(rxe.Record{}.SL))
	_ = -(unsafe.Offsetof(WC{}.PathBits) ^ unsafe.Offsetof(rxe.Record{}.DLIDPathBits))
	_ = -(unsafe.Offsetof(WC{}.InvalidatedRKey) ^ unsafe.Sizeof(rxe.Record{})) // the record ends before it
)
