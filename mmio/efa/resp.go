package efa

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/efa/internal/abi"
)

// Sizes of the driver's part of responses, in bytes.
const (
	ContextRespSize = int(unsafe.Sizeof(abi.IbvAllocUcontextResp{}))
	PDRespSize      = int(unsafe.Sizeof(abi.IbvAllocPDResp{}))
	CQRespSize      = int(unsafe.Sizeof(abi.IbvCreateCQResp{}))
	QPRespSize      = int(unsafe.Sizeof(abi.IbvCreateQPResp{}))
	AHRespSize      = int(unsafe.Sizeof(abi.IbvCreateAHResp{}))
	DeviceRespSize  = int(unsafe.Sizeof(abi.IbvExQueryDeviceResp{}))
)

// ContextRequest returns the driver's part of GET_CONTEXT, which promises to keep the limits of
// [Context].MaxBatch and MinSends.
func ContextRequest() []byte {
	return bytesOf(&abi.IbvAllocUcontextCmd{
		SupportedCaps: abi.EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH | abi.EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR,
	})
}

// Context has the limits of a device's queues.
type Context struct {
	SubCQs   uint16 // SubCQs is the number of rings of a CQ.
	Inline   uint16 // Inline is how many bytes of inline data a narrow request may have.
	InlineEx uint16 // InlineEx is how many bytes a wide one may have, 0 if there are none.
	MaxLLQ   uint32 // MaxLLQ is the number of bytes of device memory that a send queue may have.
	MaxBatch uint16 // MaxBatch is how much one doorbell may announce, in units of 64 bytes; 0 without a limit.
	MinSends uint16 // MinSends is the smallest number of requests of a send queue, or 0.
}

// MaxInline returns the largest number of bytes of inline data.
func (c *Context) MaxInline() int {
	return max(min(int(c.Inline), inlineNarrow), min(int(c.InlineEx), inlineWide))
}

// DecodeContext decodes the driver's part of GET_CONTEXT.
func DecodeContext(b []byte) (c Context, err error) {
	var r abi.IbvAllocUcontextResp
	if err = decode(&r, b, "efa_ibv_alloc_ucontext_resp"); err != nil {
		return c, err
	}
	if r.CmdsSuppUdataMask&abi.EFA_USER_CMDS_SUPP_UDATA_CREATE_AH == 0 {
		return c, fmt.Errorf("%w: the kernel does not tell the numbers of address handles", ErrMapping)
	}
	if r.SubCqsPerCQ < 1 || r.SubCqsPerCQ > maxSubCQs {
		return c, fmt.Errorf("%w: rings of a CQ: got %d, must be from 1 to %d", ErrMapping, r.SubCqsPerCQ, maxSubCQs)
	}
	return Context{
		SubCQs: r.SubCqsPerCQ, Inline: r.InlineBufSize, InlineEx: r.InlineBufSizeEx, MaxLLQ: r.MaxLlqSize, MaxBatch: r.MaxTxBatch, MinSends: r.MinSQWR,
	}, nil
}

// Cap is a set of capabilities of a device.
type Cap uint32

// Capabilities.
const (
	CapRead             Cap = abi.EFA_QUERY_DEVICE_CAPS_RDMA_READ
	CapRNRRetry         Cap = abi.EFA_QUERY_DEVICE_CAPS_RNR_RETRY
	CapNotify           Cap = abi.EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS
	CapSGID             Cap = abi.EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID
	CapDataPolling128   Cap = abi.EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128
	CapWrite            Cap = abi.EFA_QUERY_DEVICE_CAPS_RDMA_WRITE
	CapUnsolicitedWrite Cap = abi.EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV
)

// Device has the limits and capabilities of a device.
type Device struct {
	MaxSends    uint32 // MaxSends is the largest number of requests of a send queue.
	MaxRecvs    uint32 // MaxRecvs is the largest number of descriptors of a receive queue.
	MaxSendSGE  uint16 // MaxSendSGE is how many scatter/gather entries a SEND may have.
	MaxRecvSGE  uint16 // MaxRecvSGE is how many scatter/gather entries a receive may have.
	MaxRDMASize uint32 // MaxRDMASize is how many bytes a READ or WRITE may have.
	Caps        Cap    // Caps are the capabilities.
}

// DecodeDevice decodes the driver's part of QUERY_DEVICE_EX.
func DecodeDevice(b []byte) (Device, error) {
	var r abi.IbvExQueryDeviceResp
	err := decode(&r, b, "efa_ibv_ex_query_device_resp")
	return Device{
		MaxSends: r.MaxSQWR, MaxRecvs: r.MaxRQWR, MaxSendSGE: r.MaxSQSGE, MaxRecvSGE: r.MaxRQSGE, MaxRDMASize: r.MaxRDMASize, Caps: Cap(r.DeviceCaps),
	}, err
}

// CQRequest is the driver's part of CREATE_CQ.
type CQRequest struct {
	SubCQs uint16 // SubCQs is [Context].SubCQs.
	Notify bool   // Notify says that the CQ has a completion channel.
}

// Encode encodes the request.
func (r *CQRequest) Encode() []byte {
	req := &abi.IbvCreateCQ{CQEntrySize: EntrySize, NumSubCqs: r.SubCQs}
	if r.Notify {
		req.Flags |= abi.EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL
	}
	return bytesOf(req)
}

// A Mapping says where memory is mapped in the uverbs file. The kernel accepts only this size, rounded up to
// pages.
type Mapping struct {
	Offset uint64 // Offset is where the memory begins in the file.
	Size   int    // Size is the number of bytes to map.
}

// CQResponse is the driver's answer to CREATE_CQ.
type CQResponse struct {
	Ring     Mapping // Ring is the memory with all rings.
	Doorbell Mapping // Doorbell is the page of the doorbell; Size is 0 if there is none.
	Offset   uint32  // Offset is the place of the doorbell in its page, see [Doorbell].
}

// DecodeCQ decodes the response for a CQ with rings of depth entries. pageSize is the page size of the host.
func DecodeCQ(b []byte, rings, depth, pageSize int) (r CQResponse, err error) {
	var a abi.IbvCreateCQResp
	if err = decode(&a, b, "efa_ibv_create_cq_resp"); err != nil {
		return r, err
	}
	if r.Ring, err = mapping("completion queue", a.QMmapKey, a.QMmapSize, rings*depth*EntrySize); err != nil {
		return r, err
	}
	if a.CompMask&abi.EFA_CREATE_CQ_RESP_DB_OFF != 0 {
		r.Doorbell, r.Offset, err = doorbellPage(a.DbMmapKey, a.DbOff, pageSize)
	}
	return r, err
}

// QPRequest is the driver's part of CREATE_QP.
type QPRequest struct {
	Send SendSize // Send is the size of the send queue.
	Recv RecvSize // Recv is the size of the receive queue.
	SL   uint8    // SL is the service level; 0 is the default.

	Unsolicited bool // Unsolicited says that a WRITE with immediate needs no receive; see [CapUnsolicitedWrite].
}

// Encode encodes the request.
func (r *QPRequest) Encode() []byte {
	req := &abi.IbvCreateQP{RQRingSize: uint32(r.Recv.Bytes()), SQRingSize: uint32(r.Send.Bytes()), DriverQPType: abi.EFA_QP_DRIVER_TYPE_SRD, SL: r.SL}
	if r.Unsolicited {
		req.Flags |= abi.EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV
	}
	return bytesOf(req)
}

// QPResponse is the driver's answer to CREATE_QP.
type QPResponse struct {
	Send         Mapping // Send is the send ring, in write-combining memory of the device.
	SendOffset   uint32  // SendOffset is where the ring begins in it.
	SendDoorbell Mapping // SendDoorbell is the page of the doorbell of the send queue.
	SendBell     uint32  // SendBell is the offset of the doorbell in it, see [Doorbell].

	Recv         Mapping // Recv is the receive ring; Size is 0 if there is none.
	RecvDoorbell Mapping // RecvDoorbell is the page of the doorbell of the receive queue, if there is one.
	RecvBell     uint32  // RecvBell is the offset of the doorbell in it.
}

// DecodeQP decodes the response for a QP with queues of these sizes. pageSize is the page size of the host.
func DecodeQP(b []byte, send SendSize, recv RecvSize, pageSize int) (r QPResponse, err error) {
	var a abi.IbvCreateQPResp
	if err = decode(&a, b, "efa_ibv_create_qp_resp"); err != nil {
		return r, err
	}
	if r.SendOffset = a.LlqDescOffset; r.SendOffset >= uint32(pageSize) || r.SendOffset%narrow != 0 {
		return r, fmt.Errorf("%w: send queue: offset: got %d, must be a multiple of %d below %d", ErrMapping, r.SendOffset, narrow, pageSize)
	}
	size := int(r.SendOffset) + send.Bytes()
	r.Send = Mapping{a.LlqDescMmapKey, (size + pageSize - 1) &^ (pageSize - 1)}
	if r.SendDoorbell, r.SendBell, err = doorbellPage(a.SQDbMmapKey, a.SQDbOffset, pageSize); err != nil || recv == (RecvSize{}) {
		return r, err
	}
	if r.Recv, err = mapping("receive queue", a.RQMmapKey, a.RQMmapSize, recv.Bytes()); err != nil {
		return r, err
	}
	r.RecvDoorbell, r.RecvBell, err = doorbellPage(a.RQDbMmapKey, a.RQDbOffset, pageSize)
	return r, err
}

// mapping checks the kernel's description of a ring that needs a number of bytes.
func mapping(kind string, key, size uint64, need int) (Mapping, error) {
	if size < uint64(need) || size > uint64(need)+maxPage {
		return Mapping{}, fmt.Errorf("%w: %s: bytes: got %d, must be %d in whole pages", ErrMapping, kind, size, need)
	}
	return Mapping{key, int(size)}, nil
}

// maxPage is the largest page size of a host.
const maxPage = 64 << 10

// doorbellPage checks the kernel's description of a doorbell.
func doorbellPage(key uint64, offset uint32, pageSize int) (Mapping, uint32, error) {
	if offset%4 != 0 || uint64(offset)+4 > uint64(pageSize) {
		return Mapping{}, 0, fmt.Errorf("%w: doorbell: offset: got %d, must be a multiple of 4 below %d", ErrMapping, offset, pageSize)
	}
	return Mapping{key, pageSize}, offset, nil
}

// DecodeAH returns the number of an address handle, for [Peer].
func DecodeAH(b []byte) (number uint16, err error) {
	var r abi.IbvCreateAHResp
	err = decode(&r, b, "efa_ibv_create_ah_resp")
	return r.EfaAddressHandle, err
}

// bytesOf returns the bytes of a struct without pointers.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// decode copies b into *r, which is a struct without pointers.
func decode[T any](r *T, b []byte, name string) error {
	if n := int(unsafe.Sizeof(*r)); len(b) < n {
		return fmt.Errorf("efa: %s: got %d bytes, want %d", name, len(b), n)
	}
	copy(bytesOf(r), b)
	return nil
}
