package siw

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/siw/internal/abi"
)

// maxElems bounds the number of elements of a ring: it is far above what siw makes, and keeps
// the arithmetic on sizes within 64 bits.
const maxElems = 1 << 28

// A Ring says where a ring is mapped in the uverbs file, and how many elements it has.
type Ring struct {
	Offset uint64 // in bytes, a multiple of the page size
	Size   uint64 // in bytes; the mapping has whole pages
	Num    uint32 // elements
}

// Sizes of the driver's part of requests and of responses, in bytes. The kernel refuses a
// command without room for its answer.
const (
	ContextRespSize = int(unsafe.Sizeof(abi.SiwUrespAllocCtx{}))
	CQRespSize      = int(unsafe.Sizeof(abi.SiwUrespCreateCQ{}))
	QPRespSize      = int(unsafe.Sizeof(abi.SiwUrespCreateQP{}))
	SRQRespSize     = int(unsafe.Sizeof(abi.SiwUrespCreateSRQ{}))
	MRRespSize      = int(unsafe.Sizeof(abi.SiwUrespRegMR{}))
)

// MRReq returns the driver's part of a request to register memory: the low 8 bits of the key, which
// the program chooses. The kernel chooses the others.
func MRReq(key uint8) []byte {
	b := make([]byte, unsafe.Sizeof(abi.SiwUreqRegMR{}))
	b[unsafe.Offsetof(abi.SiwUreqRegMR{}.StagKey)] = key
	return b
}

// DecodeCQResp decodes siw's response to the creation of a completion queue. It fails if b is
// shorter than CQRespSize.
func DecodeCQResp(b []byte) (Ring, error) {
	var r abi.SiwUrespCreateCQ
	if err := decode(&r, b, "siw_uresp_create_cq"); err != nil {
		return Ring{}, err
	}
	return newMapping("completion queue", r.CQKey, r.NumCQE, CompRingSize(r.NumCQE))
}

// DecodeQPResp decodes siw's response to the creation of a queue pair: the rings, and the number
// that completions carry. A queue pair with a shared receive queue has no receive ring; rq is then
// the zero Ring. It fails if b is shorter than QPRespSize.
func DecodeQPResp(b []byte, shared bool) (rq, sq Ring, err error) {
	var r abi.SiwUrespCreateQP
	if err = decode(&r, b, "siw_uresp_create_qp"); err != nil {
		return rq, sq, err
	}
	if sq, err = newMapping("send queue", r.SQKey, r.NumSqe, uint64(r.NumSqe)*uint64(unsafe.Sizeof(abi.SiwSqe{}))); err != nil || shared {
		return rq, sq, err
	}
	rq, err = newMapping("receive queue", r.RQKey, r.NumRqe, uint64(r.NumRqe)*uint64(unsafe.Sizeof(abi.SiwRqe{})))
	return rq, sq, err
}

// DecodeSRQResp decodes siw's response to the creation of a shared receive queue. It fails if b is
// shorter than SRQRespSize.
func DecodeSRQResp(b []byte) (Ring, error) {
	var r abi.SiwUrespCreateSRQ
	if err := decode(&r, b, "siw_uresp_create_srq"); err != nil {
		return Ring{}, err
	}
	return newMapping("shared receive queue", r.SRQKey, r.NumRqe, uint64(r.NumRqe)*uint64(unsafe.Sizeof(abi.SiwRqe{})))
}

// newMapping checks the kernel's description of a ring. A special key means that there is nothing
// to map (SIW_INVAL_UOBJ_KEY, 0x90000), but the kernel then fails the command, and a real ring may
// have this offset, as the 145th page that a process maps.
func newMapping(kind string, key uint64, num uint32, size uint64) (Ring, error) {
	if num == 0 || num > maxElems || num&(num-1) != 0 {
		return Ring{}, fmt.Errorf("%w: %s: number of elements: got %d, must be a power of two up to %d", ErrMapping, kind, num, maxElems)
	}
	return Ring{Offset: key, Size: size, Num: num}, nil
}

// decode copies b into *r, which is a struct without pointers.
func decode[T any](r *T, b []byte, name string) error {
	n := int(unsafe.Sizeof(*r))
	if len(b) < n {
		return fmt.Errorf("siw: %s: got %d bytes, want %d", name, len(b), n)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(r)), n), b)
	return nil
}
