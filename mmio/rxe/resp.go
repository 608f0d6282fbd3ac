package rxe

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/rxe/internal/abi"
)

// MapInfo says where a ring is mapped in the uverbs file (struct mminfo).
type MapInfo struct {
	Offset uint64 // in bytes, a multiple of the page size
	Size   uint32 // in bytes, a multiple of the page size
}

// Sizes of the driver's part of the responses to commands, in bytes. A response
// buffer must have room for it behind the common part.
const (
	CQRespSize       = int(unsafe.Sizeof(abi.RxeCreateCQResp{}))
	ResizeCQRespSize = int(unsafe.Sizeof(abi.RxeResizeCQResp{}))
	QPRespSize       = int(unsafe.Sizeof(abi.RxeCreateQPResp{}))
	SRQRespSize      = int(unsafe.Sizeof(abi.RxeCreateSRQResp{}))
	AHRespSize       = int(unsafe.Sizeof(abi.RxeCreateAHResp{}))
)

// MapInfoSize is the size of the memory whose address EncodeModifySRQ takes, in bytes.
const MapInfoSize = int(unsafe.Sizeof(abi.Mminfo{}))

// DecodeCQResp decodes rxe's response to the creation of a completion queue. It fails if b is
// shorter than CQRespSize.
func DecodeCQResp(b []byte) (MapInfo, error) {
	var r abi.RxeCreateCQResp
	err := decode(&r, b, "rxe_create_cq_resp")
	return mapInfo(&r.MI), err
}

// DecodeResizeCQResp decodes rxe's response to the resizing of a completion queue: the location of
// the new ring. It fails if b is shorter than ResizeCQRespSize.
func DecodeResizeCQResp(b []byte) (MapInfo, error) {
	var r abi.RxeResizeCQResp
	err := decode(&r, b, "rxe_resize_cq_resp")
	return mapInfo(&r.MI), err
}

// DecodeQPResp decodes rxe's response to the creation of a queue pair. A queue pair with a shared
// receive queue has no receive ring; rq is then the previous content of the response buffer. It
// fails if b is shorter than QPRespSize.
func DecodeQPResp(b []byte) (rq, sq MapInfo, err error) {
	var r abi.RxeCreateQPResp
	err = decode(&r, b, "rxe_create_qp_resp")
	return mapInfo(&r.RQMI), mapInfo(&r.SQMI), err
}

// DecodeSRQResp decodes rxe's response to the creation of a shared receive queue: the ring and the
// number of the queue. It fails if b is shorter than SRQRespSize.
func DecodeSRQResp(b []byte) (mi MapInfo, srqn uint32, err error) {
	var r abi.RxeCreateSRQResp
	err = decode(&r, b, "rxe_create_srq_resp")
	return mapInfo(&r.MI), r.SRQNum, err
}

// DecodeAHResp decodes rxe's response to the creation of an address handle: its number, which is 0
// before Linux 5.16. It fails if b is shorter than AHRespSize.
func DecodeAHResp(b []byte) (ahNum uint32, err error) {
	var r abi.RxeCreateAHResp
	err = decode(&r, b, "rxe_create_ah_resp")
	return r.AHNum, err
}

// EncodeModifySRQ encodes the driver's part of the command that modifies a shared receive queue.
// addr is the address of MapInfoSize bytes, which must not move until the command returns. If the
// command resizes the queue, rxe writes the location of the new ring there.
func EncodeModifySRQ(addr uint64) []byte { return binary.NativeEndian.AppendUint64(nil, addr) }

// DecodeMapInfo decodes what rxe wrote to the address of EncodeModifySRQ. It fails if b is shorter
// than MapInfoSize.
func DecodeMapInfo(b []byte) (MapInfo, error) {
	var mi abi.Mminfo
	err := decode(&mi, b, "mminfo")
	return mapInfo(&mi), err
}

func mapInfo(mi *abi.Mminfo) MapInfo { return MapInfo{Offset: mi.Offset, Size: mi.Size} }

// decode copies b into *r, which is a struct without pointers.
func decode[T any](r *T, b []byte, name string) error {
	n := int(unsafe.Sizeof(*r))
	if len(b) < n {
		return fmt.Errorf("rxe: %s: got %d bytes, want %d", name, len(b), n)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(r)), n), b)
	return nil
}
