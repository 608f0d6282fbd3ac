package ring

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/uverbs/soft/internal/abi"
)

// A Map says where the program can map a ring in the character device (struct mminfo).
type Map struct {
	Offset uint64 // in bytes, a multiple of the page size
	Size   uint32 // in bytes, the length of Ring.Bytes
}

func (m Map) mminfo() abi.Mminfo { return abi.Mminfo{Offset: m.Offset, Size: m.Size} }

// MapOf returns the Map of a ring at an offset.
func MapOf(r *Ring, offset uint64) Map { return Map{Offset: offset, Size: uint32(len(r.mem))} }

// EncodeMap encodes what rxe writes to the address that ModifySRQ returns, when the command resizes
// the SRQ.
func EncodeMap(m Map) []byte {
	mi := m.mminfo()
	return encode(&mi)
}

// CQResponse encodes the driver's part of the response to CREATE_CQ and RESIZE_CQ.
func CQResponse(cq Map) []byte { return encode(&abi.RxeCreateCQResp{MI: cq.mminfo()}) }

// QPResponse encodes the driver's part of the response to CREATE_QP. rq is the zero Map if the QP
// has an SRQ.
func QPResponse(rq, sq Map) []byte {
	return encode(&abi.RxeCreateQPResp{RQMI: rq.mminfo(), SQMI: sq.mminfo()})
}

// SRQResponse encodes the driver's part of the response to CREATE_SRQ.
func SRQResponse(m Map, num uint32) []byte {
	return encode(&abi.RxeCreateSRQResp{MI: m.mminfo(), SRQNum: num})
}

// AHResponse encodes the driver's part of the response to CREATE_AH.
func AHResponse(num uint32) []byte { return encode(&abi.RxeCreateAHResp{AHNum: num}) }

// ModifySRQ decodes the driver's part of MODIFY_SRQ: the address of the program's memory that gets
// the Map of the new ring. It reports false if b is too short (rxe_modify_srq answers EINVAL).
func ModifySRQ(b []byte) (addr uint64, ok bool) {
	if len(b) < 8 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(b), true
}
