package mlx5

import (
	"encoding/binary"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
)

// Sizes of the driver's part of responses, in bytes.
const (
	PDRespSize          = int(unsafe.Sizeof(abi.AllocPDResp{}))
	CQRespSize          = int(unsafe.Sizeof(abi.CreateCQResp{}))
	QPRespSize          = int(unsafe.Sizeof(abi.CreateQPResp{}))
	SRQRespSize         = int(unsafe.Sizeof(abi.CreateSRQResp{}))
	AHRespSize          = int(unsafe.Sizeof(abi.CreateAHResp{}))
	WQRespSize          = int(unsafe.Sizeof(abi.CreateWQResp{}))
	ModifyQPRespSize    = int(unsafe.Sizeof(abi.ModifyQPResp{}))
	QueryDeviceRespSize = (abi.QUERY_DEVICE_DCI_STREAMS + int(unsafe.Sizeof(abi.DciStreamsCaps{})) + 7) &^ 7 // write() counts in units of 8 bytes
	IndTableRespSize    = int(unsafe.Sizeof(abi.CreateRWQIndTblResp{}))
)

// NoUserIndex is the user index of a queue whose completions have the device's number instead.
const NoUserIndex = indexMask

// CQRequest is the driver's part of CREATE_CQ.
type CQRequest struct {
	Buf        uint64 // Buf is the ring's address.
	Record     Record // Record is the doorbell record.
	CQESize    int    // CQESize is 64 or 128.
	UAR        uint32 // UAR is the index of the page with the CQ's doorbell, if HasUAR is set.
	HasUAR     bool   // HasUAR says that the page was allocated as an object.
	RealTime   bool   // RealTime requests timestamps in nanoseconds.
	Compressed bool   // Compressed lets the device compress completions; see [CompQueue.Compress].
}

// Encode encodes the request. If long is true, UAR does not fit into it and must be passed in the
// attribute AttrCQUARIndex.
func (r *CQRequest) Encode() (b []byte, long bool) {
	req := &abi.CreateCQ{BufAddr: r.Buf, DbAddr: uint64(r.Record.Addr()), CQESize: uint32(r.CQESize)}
	if r.HasUAR {
		if long = r.UAR >= maxShortUARIndex; !long {
			req.Flags |= abi.MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX
			req.UarPageIndex = uint16(r.UAR)
		}
	}
	if r.Compressed {
		req.CQECompEn, req.CQECompResFormat = 1, abi.MLX5_IB_CQE_RES_FORMAT_CSUM
	}
	if r.RealTime {
		req.Flags |= abi.MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS
	}
	return bytesOf(req), long
}

// DecodeCQ returns the number of a new CQ.
func DecodeCQ(b []byte) (number uint32, err error) {
	var r abi.CreateCQResp
	err = decode(&r, b, "mlx5_ib_create_cq_resp")
	return r.Cqn, err
}

// EncodeResize encodes the driver's part of RESIZE_CQ.
func EncodeResize(buf uint64, cqeSize int) []byte {
	return bytesOf(&abi.ResizeCQ{BufAddr: buf, CQESize: uint16(cqeSize)})
}

// QPRequest is the driver's part of CREATE_QP.
type QPRequest struct {
	Buf           uint64   // Buf is the address of the receive ring, which the send ring follows.
	SendBuf       uint64   // SendBuf is the address of the send ring if it does not follow the receive ring.
	Record        Record   // Record is the doorbell record.
	Send          SendSize // Send is the size of the send queue.
	Recv          RecvSize // Recv is the size of the receive queue.
	UserIndex     uint32   // UserIndex is the index that completions have, or NoUserIndex.
	UAR           uint32   // UAR is the index of the page with the register, if HasUAR is set.
	HasUAR        bool     // HasUAR says that the page was allocated as an object.
	InlineScatter bool     // InlineScatter lets the device put short data into completions.
	DC            DCKind   // DC says whether the QP is an initiator or a target of DC, or neither.
	AccessKey     uint64   // AccessKey is the key that requests to a target need.
	LogStreams    uint8    // LogStreams is the binary logarithm of an initiator's number of streams; 0 if it has one.
	LogFailed     uint8    // LogFailed is the binary logarithm of the number of failed streams with which an initiator fails.
	ECE           bool     // ECE asks for the device's options for enhanced connection establishment; see [Context].
}

// DCKind is the side of the dynamically connected transport that a QP is (enum mlx5dv_dc_type).
type DCKind uint8

// Sides of DC.
const (
	NotDC DCKind = iota
	Initiator
	Target
)

// eceVersion asks a new QP for all options of the first version, as libmlx5 does.
const eceVersion = 0x10000000

// ECEVendor is the vendor of the options for enhanced connection establishment: the PCI vendor ID of
// the device.
const ECEVendor = 0x15b3

// Encode encodes the request.
func (r *QPRequest) Encode() []byte {
	req := &abi.CreateQP{
		BufAddr:    r.Buf,
		DbAddr:     uint64(r.Record.Addr()),
		SQWQECount: uint32(r.Send.Blocks),
		RQWQECount: uint32(r.Recv.Entries),
		RQWQEShift: uint32(r.Recv.Shift),
		Uidx:       r.UserIndex,
		SQBufAddr:  r.SendBuf,
	}
	if r.HasUAR {
		req.Flags |= abi.MLX5_QP_FLAG_UAR_PAGE_INDEX
		req.BfregIndex = r.UAR
	}
	if r.InlineScatter {
		req.Flags |= abi.MLX5_QP_FLAG_SCATTER_CQE
	}
	switch r.DC {
	case Initiator:
		req.Flags |= abi.MLX5_QP_FLAG_TYPE_DCI
		if r.LogStreams > 0 {
			req.Flags |= abi.MLX5_QP_FLAG_DCI_STREAM
			req.DciStreams.LogNumConcurent, req.DciStreams.LogNumErrored = r.LogStreams, r.LogFailed
		}
	case Target:
		req.Flags |= abi.MLX5_QP_FLAG_TYPE_DCT
		req.SQBufAddr = r.AccessKey // union of sq_buf_addr and access_key
	}
	if r.ECE {
		req.EceOptions = eceVersion
	}
	return bytesOf(req)
}

// DecodeQP returns the number of the register that the kernel has chosen for a new QP, and the
// device's options for enhanced connection establishment. The number has no meaning if the program
// chose a register, and the options are 0 if the request did not ask for them.
func DecodeQP(b []byte) (register, ece uint32, err error) {
	var r abi.CreateQPResp
	err = decode(&r, b, "mlx5_ib_create_qp_resp")
	return r.BfregIndex, r.EceOptions, err
}

// EncodeModifyQP encodes the driver's part of MODIFY_QP, which passes options for enhanced connection
// establishment to the device, and whether it may use receives and place data in any order.
func EncodeModifyQP(ece uint32, outOfOrder bool) []byte {
	r := abi.ModifyQP{EceOptions: ece}
	if outOfOrder {
		r.CompMask = abi.MLX5_IB_MODIFY_QP_OOO_DP
	}
	return bytesOf(&r)
}

// SentECE returns the options of a request of EncodeModifyQP, or 0 if it is empty.
func SentECE(b []byte) uint32 {
	var r abi.ModifyQP
	if decode(&r, b, "mlx5_ib_modify_qp") != nil {
		return 0
	}
	return r.EceOptions
}

// DecodeModifyQP returns the number of a target of DC, which the device assigns when the target
// becomes ready, and the options for enhanced connection establishment that the device has accepted.
func DecodeModifyQP(b []byte) (dctn, ece uint32, err error) {
	var r abi.ModifyQPResp
	err = decode(&r, b, "mlx5_ib_modify_qp_resp")
	return r.Dctn, r.EceOptions, err
}

// DecodeRates returns the rates of a send queue for raw packets, in kbit/s, and the set of QP types that may have one,
// from the driver's part of QUERY_DEVICE. They are 0 if the device does not limit rates.
func DecodeRates(b []byte) (least, most, types uint32) {
	if len(b) < QueryDeviceRespSize {
		return 0, 0, 0
	}
	var r abi.Mlx5PacketPacingCaps
	copy(bytesOf(&r), b[abi.QUERY_DEVICE_PACKET_PACING:])
	return r.QPRateLimitMin, r.QPRateLimitMax, r.SupportedQPTs
}

// DecodeOutOfOrder reports whether queue pairs can use receives and place data in any order, from the
// driver's part of QUERY_DEVICE.
func DecodeOutOfOrder(b []byte) bool {
	return len(b) >= QueryDeviceRespSize && binary.LittleEndian.Uint32(b[abi.QUERY_DEVICE_FLAGS:])&abi.MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP != 0
}

// DecodeStreams returns the largest LogStreams and LogFailed of an initiator of DC, from the
// driver's part of QUERY_DEVICE. They are 0 if the device or the kernel does not support streams.
func DecodeStreams(b []byte) (streams, failed uint8) {
	if len(b) < QueryDeviceRespSize {
		return 0, 0
	}
	b = b[abi.QUERY_DEVICE_DCI_STREAMS:]
	return b[0], b[1]
}

// EncodeSRQ encodes the driver's part of CREATE_SRQ.
func EncodeSRQ(buf uint64, rec Record, userIndex uint32) []byte {
	return bytesOf(&abi.CreateSRQ{BufAddr: buf, DbAddr: uint64(rec.Addr()), Uidx: userIndex})
}

// DecodeSRQ returns the number of a new shared receive queue.
func DecodeSRQ(b []byte) (number uint32, err error) {
	var r abi.CreateSRQResp
	err = decode(&r, b, "mlx5_ib_create_srq_resp")
	return r.SRQN, err
}

// DecodeAH returns the peer's Ethernet address; ok is false if the kernel reported none.
func DecodeAH(b []byte) (mac [6]byte, ok bool, err error) {
	var r abi.CreateAHResp
	err = decode(&r, b, "mlx5_ib_create_ah_resp")
	return r.DMAC, r.ResponseLength > 0, err
}

// Kinds of flow counters (enum ib_counters_description, rdma/ib_verbs.h).
const (
	countPackets = 0
	countBytes   = 1
)

// FlowCounters returns the list of a flow's counters in the order in which their values are read:
// packets, then bytes. The kernel reads the list at the address passed to [EncodeFlow].
func FlowCounters() []byte {
	return bytesOf(&[...]abi.FlowCountersDesc{{Description: countPackets, Index: 0}, {Description: countBytes, Index: 1}})
}

// EncodeFlow encodes the driver's part of CREATE_FLOW for the first flow that uses counters. The
// argument is the address of the list of FlowCounters.
func EncodeFlow(counters uint64) []byte {
	head := &abi.CreateFlow{NcountersData: 1}
	return append(bytesOf(head), bytesOf(&abi.FlowCountersData{CountersData: counters, Ncounters: 2})...)
}

// EncodeWQ encodes the driver's part of CREATE_WQ.
func EncodeWQ(buf uint64, rec Record, size RecvSize, userIndex uint32) []byte {
	req := &abi.CreateWQ{
		BufAddr:    buf,
		DbAddr:     uint64(rec.Addr()),
		RQWQECount: uint32(size.Entries),
		RQWQEShift: uint32(size.Shift),
		UserIndex:  userIndex,
	}
	if s := size.Strides; s != (Strides{}) {
		req.CompMask, req.SingleStrideLogNumOfBytes, req.SingleWQELogNumOfStrides = abi.MLX5_IB_CREATE_WQ_STRIDING_RQ, uint32(s.LogBytes), uint32(s.LogCount)
	}
	return bytesOf(req)
}

// EncodeModifyWQ encodes the driver's part of MODIFY_WQ.
func EncodeModifyWQ() []byte { return bytesOf(&abi.ModifyWQ{}) }

// HashKeySize is the size of the key of the receive hash, in bytes.
const HashKeySize = 40

// EncodeRSS encodes the driver's part of CREATE_QP for a QP that distributes received packets to
// WQs by a Toeplitz hash of some fields (enum mlx5_rx_hash_fields).
func EncodeRSS(key [HashKeySize]byte, fields uint64) []byte {
	req := &abi.CreateQPRSS{RxHashFieldsMask: fields, RxHashFunction: abi.MLX5_RX_HASH_FUNC_TOEPLITZ, RxKeyLen: HashKeySize}
	copy(req.RxHashKey[:], key[:])
	return bytesOf(req)
}
