package mlx5

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
)

// DriverID is the kernel's number of the driver mlx5 (RDMA_DRIVER_MLX5, enum rdma_driver_id).
const DriverID = 1

// MinABI and MaxABI are the versions of mlx5's interface that this package supports
// (MLX5_IB_UVERBS_ABI_VERSION, which is 1 in every Linux version).
const (
	MinABI = abi.MLX5_IB_UVERBS_ABI_VERSION
	MaxABI = abi.MLX5_IB_UVERBS_ABI_VERSION
)

// Default numbers of registers for the QPs of an open device. OwnRegisters have one QP each, which
// writes them without a lock, and SharedRegisters are shared by the other QPs. libmlx5 uses the
// same numbers (MLX5_TOTAL_UUARS and MLX5_NUM_LOW_LAT_UUARS). More would gain little, because a
// shared register costs one uncontended lock, and all processes share the UAR pages of the device:
// with pages of 4 KiB an open device uses 9 of them, one of which is for the doorbells of CQs, and
// a subfunction has 256 in all.
const (
	OwnRegisters    = 4
	SharedRegisters = 12
)

// Registers to request if the kernel has no UAR objects: the total, and how many of them are for
// one QP each.
const (
	staticRegs    = OwnRegisters + SharedRegisters
	dedicatedRegs = OwnRegisters
)

// maxCQEVersion is the newest CQE format that the package reads. Version 1 has the user index of a
// queue, version 0 the device's number.
const maxCQEVersion = 1

// ContextRespSize is the size of the response buffer of GET_CONTEXT.
const ContextRespSize = int(unsafe.Sizeof(abi.AllocUcontextResp{}))

// EncodeContext encodes the driver's part of GET_CONTEXT. dynamic says that the program will
// allocate UAR pages as objects, and devx that it will give commands to the firmware; both require the
// ioctl interface.
func EncodeContext(dynamic, devx bool) []byte {
	req := &abi.AllocUcontextReqV2{
		TotalNumBfregs:      staticRegs,
		NumLowLatencyBfregs: dedicatedRegs,
		MaxCQEVersion:       maxCQEVersion,
		LibCaps:             abi.MLX5_LIB_CAP_4K_UAR,
	}
	if dynamic {
		req.LibCaps |= abi.MLX5_LIB_CAP_DYN_UAR
	}
	if devx {
		req.Flags = abi.MLX5_IB_ALLOC_UCTX_DEVX
	}
	return bytesOf(req)
}

// AsksDEVX reports whether a request of EncodeContext has devx.
func AsksDEVX(b []byte) bool {
	var req abi.AllocUcontextReqV2
	return decode(&req, b, "mlx5_ib_alloc_ucontext_req_v2") == nil && req.Flags&abi.MLX5_IB_ALLOC_UCTX_DEVX != 0
}

// Context has what the kernel reports about a device when it is opened.
type Context struct {
	BlueFlame    uint32    // BlueFlame is the size of a register in bytes; 0 if only 8-byte doorbells can be used.
	Static       StaticUAR // Static describes the UAR pages; its Pages is 0 if they are allocated as objects.
	UARsPerPage  int       // UARsPerPage is the number of UARs on a mapped page.
	MaxSendWQE   int       // MaxSendWQE is the size of the largest WQE of a send queue, in bytes.
	MaxRecvWQE   int       // MaxRecvWQE is the size of the largest WQE of a receive queue, in bytes.
	MaxBlocks    int       // MaxBlocks is the largest number of blocks of a send queue.
	MaxRecvWR    int       // MaxRecvWR is the largest number of entries of a receive queue.
	MaxSRQWR     int       // MaxSRQWR is the largest number of entries of a shared receive queue.
	UserIndex    bool      // UserIndex says that completions have the index that the program gave the queue.
	AHResponse   bool      // AHResponse says that CREATE_AH answers with the peer's Ethernet address.
	EthHeader    int       // EthHeader is how many bytes of a raw packet must be in its WQE.
	ClockInfo    bool      // ClockInfo says that a page with the clock's conversion can be mapped.
	ClockOffset  uint64    // ClockOffset is the offset of the clock in its page, in bytes.
	ClockThere   bool      // ClockThere says that the page with the clock can be mapped.
	RealTime     bool      // RealTime says that a CQ can have timestamps in nanoseconds.
	NullKey      uint32    // NullKey is the key of memory that discards writes and reads as zeros; 0 if there is none.
	ECE          bool      // ECE says that the device has options for enhanced connection establishment.
	CommandsUHW  uint8     // CommandsUHW is the kernel's bit set of commands with driver data.
	CacheLine    int       // CacheLine is the size of the device's cache lines, in bytes.
	ResponseSize int       // ResponseSize is the size of the response that the kernel supports, in bytes.
}

// Sizes of BlueFlame registers, in bytes. A register has two halves; the size of a half is a power
// of two and a multiple of a block, and a UAR page has room for two registers.
const (
	minBlueFlame = 2 * blockSize
	maxBlueFlame = (uarSize - uarBlueFlame) / userRegsPerUAR
)

// DecodeContext decodes the response of GET_CONTEXT. If the package does not support the device,
// the error matches ErrLayout and says why.
func DecodeContext(b []byte, pageSize int) (Context, error) {
	var r abi.AllocUcontextResp
	if err := decode(&r, b, "mlx5_ib_alloc_ucontext_resp"); err != nil {
		return Context{}, err
	}
	c := Context{
		BlueFlame:    r.BfRegSize,
		MaxSendWQE:   int(r.MaxSQDescSz),
		MaxRecvWQE:   int(r.MaxRQDescSz),
		MaxBlocks:    int(min(r.MaxSendWqebb, maxBlocks)),
		MaxRecvWR:    int(min(r.MaxRecvWR, maxEntries)),
		MaxSRQWR:     int(min(r.MaxSRQRecvWR, maxSRQEntries)),
		UserIndex:    r.CQEVersion == 1,
		AHResponse:   r.CmdsSuppUhw&abi.MLX5_USER_CMDS_SUPP_UHW_CREATE_AH != 0,
		EthHeader:    ethHeader,
		ClockInfo:    r.ClockInfoVersions&(1<<abi.MLX5_IB_CLOCK_INFO_V1) != 0,
		ClockOffset:  r.HCACoreClockOffset,
		ClockThere:   r.CompMask&abi.MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET != 0,
		RealTime:     r.CompMask&abi.MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS != 0,
		ECE:          r.CompMask&abi.MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE != 0,
		CommandsUHW:  r.CmdsSuppUhw,
		CacheLine:    int(r.CacheLineSize),
		ResponseSize: int(r.ResponseLength),
	}
	if r.CompMask&abi.MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY != 0 {
		c.NullKey = r.DumpFillMkey
	}
	if r.EthMinInline == abi.MLX5_USER_INLINE_MODE_NONE {
		c.EthHeader = 0
	}
	if r.CQEVersion > maxCQEVersion {
		return c, fmt.Errorf("mlx5: CQE version %d, known are 0 to %d: %w", r.CQEVersion, maxCQEVersion, ErrLayout)
	}
	if bf := r.BfRegSize; bf != 0 && (bf&(bf-1) != 0 || bf < minBlueFlame || bf > maxBlueFlame) {
		return c, fmt.Errorf("mlx5: BlueFlame registers of %d bytes, known are powers of two from %d to %d: %w", bf, minBlueFlame, maxBlueFlame, ErrLayout)
	}
	if c.MaxSendWQE < minSendWQE || c.MaxRecvWQE < dataSize {
		return c, fmt.Errorf("mlx5: WQEs of at most %d bytes for sends and %d for receives, needed are %d and %d: %w",
			c.MaxSendWQE, c.MaxRecvWQE, minSendWQE, dataSize, ErrLayout)
	}
	return c, c.decodeUAR(&r, pageSize)
}

// decodeUAR determines the layout of UAR pages. If the firmware has no UARs of 4 KiB, each page of
// the host is one UAR, with the registers at the same offsets.
func (c *Context) decodeUAR(r *abi.AllocUcontextResp, pageSize int) error {
	size, perPage := uint64(1)<<min(r.LogUarSize, 63), r.NumUarsPerPage
	if r.LogUarSize == 0 && perPage == 0 { // a kernel that has only this layout
		size, perPage = uint64(pageSize), 1
	}
	whole := size == uint64(pageSize) && perPage == 1
	if size < uarSize || size != uarSize && !whole || perPage == 0 || uint64(perPage)*size > uint64(pageSize) {
		return fmt.Errorf("mlx5: UARs of %d bytes, %d on a page of %d, allowed: UARs of %d bytes, or one that is a page: %w", size, perPage, pageSize, uarSize, ErrLayout)
	}
	c.UARsPerPage = int(perPage)
	if r.TotBfregs == 0 {
		return nil
	}
	s := &c.Static
	s.perPage, s.total, s.dedicated, s.blueFlame = int(perPage), int(r.TotBfregs), dedicatedRegs, r.BfRegSize
	s.Pages = s.total / (s.perPage * userRegsPerUAR)
	if r.TotBfregs > maxStaticRegs || s.Pages == 0 || s.total < dedicatedRegs {
		return fmt.Errorf("mlx5: %d registers on pages of %d: %w", r.TotBfregs, s.perPage*userRegsPerUAR, ErrLayout)
	}
	return nil
}

// maxStaticRegs is the largest number of registers of a context without UAR objects
// (MLX5_MAX_BFREGS).
const maxStaticRegs = 512

// decode copies b into *r, which is a struct without pointers. Bytes that the kernel did not write
// are zero, as in the buffer.
func decode[T any](r *T, b []byte, name string) error {
	if n := int(unsafe.Sizeof(*r)); len(b) < n {
		return fmt.Errorf("mlx5: %s: got %d bytes, want %d", name, len(b), n)
	}
	copy(bytesOf(r), b)
	return nil
}

// bytesOf returns the bytes of a struct without pointers.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}
