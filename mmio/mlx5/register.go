package mlx5

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
)

// A Register is the doorbell register of a send queue. Its two halves are used alternately. Each
// takes a doorbell of 8 bytes or a whole small WQE (BlueFlame). One send queue uses a register,
// unless it was created as shared.
type Register struct {
	base     unsafe.Pointer
	half     uintptr // offset of the half that is next, 0 or halfSize
	halfSize uintptr // 0 if the register takes 8-byte doorbells only
	shared   bool
	mu       mmio.Lock // held while a shared register is written
}

// RegistersPerUAR is the number of registers of a UAR that a program may use.
const RegistersPerUAR = userRegsPerUAR

// UARSize is the distance between the UARs of a page, in bytes.
const UARSize = uarSize

// Shared reports whether several queues may use the register at once.
func (r *Register) Shared() bool { return r.shared }

// NewRegister returns register number 0 or 1 of a UAR page. blueFlame is the size in bytes of both
// halves together; if it is 0, the register takes only 8-byte doorbells. shared says that several
// queues may use it at the same time.
func NewRegister(page []byte, number int, blueFlame uint32, shared bool) (*Register, error) {
	off := uarBlueFlame + number*int(blueFlame)
	if number < 0 || number >= userRegsPerUAR || len(page) < uarSize || off+int(max(blueFlame, 8)) > uarSize {
		return nil, fmt.Errorf("mlx5: register %d of %d bytes in a page of %d: %w", number, blueFlame, len(page), ErrLayout)
	}
	return &Register{base: unsafe.Pointer(&page[off]), halfSize: uintptr(blueFlame) / 2, shared: shared}, nil
}

// UAR types of the kernel (enum mlx5_ib_uapi_uar_alloc_type).
const (
	UARBlueFlame uint64 = abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF // write-combining
	UARNoCombine uint64 = abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC // not write-combining
)

// The UAR object of the ioctl interface (mlx5_user_ioctl_cmds.h).
const (
	ObjectUAR        uint16 = abi.MLX5_IB_OBJECT_UAR
	MethodUARAlloc   uint16 = abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC
	MethodUARDestroy uint16 = abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY

	AttrUARHandle    uint16 = abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE
	AttrUARType      uint16 = abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE
	AttrUARMapOffset uint16 = abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET
	AttrUARMapLength uint16 = abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH
	AttrUARPageID    uint16 = abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID
	AttrUARDestroy   uint16 = abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE
)

// Attributes of ALLOC_DM (enum mlx5_ib_alloc_dm_attrs): where the memory is mapped.
const (
	AttrDMOffset uint16 = abi.MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET
	AttrDMPage   uint16 = abi.MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX
)

// The method that returns the location and the length of device memory (MLX5_IB_METHOD_DM_QUERY,
// Linux 5.13) and its attributes (enum mlx5_ib_query_dm_attrs).
const (
	MethodDMQuery uint16 = abi.MLX5_IB_METHOD_DM_QUERY

	AttrDMQueryHandle uint16 = abi.MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE
	AttrDMQueryOffset uint16 = abi.MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET
	AttrDMQueryPage   uint16 = abi.MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX
	AttrDMQueryLength uint16 = abi.MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH
)

// The attribute of REG_DMABUF_MR for flags (enum mlx5_ib_reg_dmabuf_mr_attrs), the one flag, and the method
// that returns the path of the data direct function, with its attribute; Linux 6.12.
const (
	AttrDMABufFlags  uint16 = abi.MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS
	DMABufDataDirect uint32 = abi.MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT

	MethodDataDirectPath uint16 = abi.MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH
	AttrDataDirectPath   uint16 = abi.MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH
)

// AttrContextResp is the attribute of QUERY_CONTEXT for what [DecodeContext] reads
// (MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX).
const AttrContextResp uint16 = abi.MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX

// AttrCQUARIndex is the attribute of CREATE_CQ for a page index that does not fit into the field of
// the request (Linux 6.10).
const (
	AttrCQUARIndex   uint16 = abi.MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX
	maxShortUARIndex        = 1 << 16
)

// Commands in mmap offsets (enum mlx5_ib_mmap_cmd), and their position.
const (
	mapRegular        = abi.MLX5_IB_MMAP_REGULAR_PAGE
	mapCoreClock      = abi.MLX5_IB_MMAP_CORE_CLOCK
	mapClockInfo      = abi.MLX5_IB_MMAP_CLOCK_INFO
	mapDeviceMemory   = abi.MLX5_IB_MMAP_DEVICE_MEM
	mapCommandShift   = 8
	mapIndexHighShift = 16
)

// mapOffset returns the offset, in bytes, at which mmap finds a page of the device. It has a
// command in bits 8 and up and the index in the other bits, with the high part of the index above
// the command (get_command and get_extended_index of drivers/infiniband/hw/mlx5/main.c).
func mapOffset(command, index, pageSize int) uint64 {
	page := uint64(command)<<mapCommandShift | uint64(index&0xff) | uint64(index>>8)<<mapIndexHighShift
	return page * uint64(pageSize)
}

// StaticUAR describes the UAR pages of a context without UAR objects: the kernel has allocated them
// and chooses a register for each QP.
type StaticUAR struct {
	Pages     int // Pages is the number of pages to map, of the host's size.
	perPage   int // UARs in each
	total     int // registers, two in each UAR
	dedicated int // the number of registers, at the end, that have one QP each
	blueFlame uint32
}

// Offset returns the mmap offset of a page.
func (s *StaticUAR) Offset(page, pageSize int) uint64 { return mapOffset(mapRegular, page, pageSize) }

// split splits a register's number, as the kernel returns it for a new QP.
func (s *StaticUAR) split(index uint32) (page, uar, reg int, err error) {
	u := int(index / regsPerUAR)
	reg = int(index % regsPerUAR)
	if s.perPage < 1 || u/s.perPage >= s.Pages || reg >= userRegsPerUAR {
		return 0, 0, 0, fmt.Errorf("mlx5: register %d of a context with %d: %w", index, s.total, ErrLayout)
	}
	return u / s.perPage, u % s.perPage, reg, nil
}

// Register returns the register with the given number. pages are the mapped pages.
func (s *StaticUAR) Register(pages [][]byte, index uint32) (*Register, error) {
	page, uar, reg, err := s.split(index)
	if err != nil {
		return nil, err
	}
	if page >= len(pages) || len(pages[page]) < (uar+1)*uarSize {
		return nil, fmt.Errorf("mlx5: register %d is on page %d, which is not mapped: %w", index, page, ErrLayout)
	}
	blueFlame := s.blueFlame
	if index == 0 {
		blueFlame = 0 // any number of QPs may use it; 8-byte stores need no lock
	}
	// Numbers have gaps where the kernel's registers are; the last ones, counted without
	// gaps, are for one QP each.
	n := int(index/2 + index%2)
	return NewRegister(pages[page][uar*uarSize:], reg, blueFlame, index != 0 && n < s.total-s.dedicated)
}
