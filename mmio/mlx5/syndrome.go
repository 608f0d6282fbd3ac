package mlx5

import "fmt"

// Status is the outcome of a work request: a value of enum ib_wc_status.
type Status uint8

// statuses has the status of the verbs (enum ib_wc_status, rdma/ib_verbs.h) for each syndrome of a
// failed CQE (MLX5_CQE_SYNDROME_*).
var statuses = [...]Status{
	0x01: 1,  // LOCAL_LENGTH_ERR, IB_WC_LOC_LEN_ERR
	0x02: 2,  // LOCAL_QP_OP_ERR, IB_WC_LOC_QP_OP_ERR
	0x04: 4,  // LOCAL_PROT_ERR, IB_WC_LOC_PROT_ERR
	0x05: 5,  // WR_FLUSH_ERR, IB_WC_WR_FLUSH_ERR
	0x06: 6,  // MW_BIND_ERR, IB_WC_MW_BIND_ERR
	0x10: 7,  // BAD_RESP_ERR, IB_WC_BAD_RESP_ERR
	0x11: 8,  // LOCAL_ACCESS_ERR, IB_WC_LOC_ACCESS_ERR
	0x12: 9,  // REMOTE_INVAL_REQ_ERR, IB_WC_REM_INV_REQ_ERR
	0x13: 10, // REMOTE_ACCESS_ERR, IB_WC_REM_ACCESS_ERR
	0x14: 11, // REMOTE_OP_ERR, IB_WC_REM_OP_ERR
	0x15: 12, // TRANSPORT_RETRY_EXC_ERR, IB_WC_RETRY_EXC_ERR
	0x16: 13, // RNR_RETRY_EXC_ERR, IB_WC_RNR_RETRY_EXC_ERR
	0x22: 16, // REMOTE_ABORTED_ERR, IB_WC_REM_ABORT_ERR
}

// generalError is IB_WC_GENERAL_ERR.
const generalError Status = 21

// Status returns the status of a failed completion.
func (c CQE) Status() Status {
	if s := get8(c.p, cqeSyndrome); int(s) < len(statuses) && statuses[s] != 0 {
		return statuses[s]
	}
	return generalError
}

// Vendor returns the vendor syndrome and the syndrome that Status is derived from.
func (c CQE) Vendor() (vendor, syndrome uint8) { return get8(c.p, cqeVendor), get8(c.p, cqeSyndrome) }

// Syndromes of a receive from a shared receive queue whose memory is registered for on-demand
// paging and has a missing page (MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR with
// MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT).
const (
	syndromeAborted = 0x22
	vendorPageFault = 0x93
)

// PageFault reports whether a receive failed only because a page was missing. If it was from a
// shared receive queue, the peer sends the message again, and the receive must be posted again: see
// [SharedRecvQueue.Repost].
func (c CQE) PageFault() bool {
	vendor, syndrome := c.Vendor()
	return syndrome == syndromeAborted && vendor == vendorPageFault
}

// VendorText returns a text for a vendor syndrome.
func VendorText(vendor uint8) string {
	if t := vendorText(vendor); t != "" {
		return fmt.Sprintf("vendor syndrome %#02x, %s", vendor, t)
	}
	return fmt.Sprintf("vendor syndrome %#02x", vendor)
}

// vendorText returns a text for the vendor syndromes whose cause is publicly known, from reports
// that show them together with the syndrome of the verbs. Firmware has many more, without a public
// list.
func vendorText(vendor uint8) string {
	switch vendor {
	case 0x51, 0x52, 0x53:
		return "memory whose key or protection is wrong"
	case 0x61, 0x68:
		return "an operation that the QP could not do"
	case 0x81:
		return "no acknowledgement after all retries"
	case 0x87:
		return "the peer had no receive posted at any retry"
	case 0x88:
		return "the peer refused the key, the address or the access"
	case 0x89:
		return "the peer failed to do it"
	case 0x8a:
		return "the peer found the request invalid"
	case 0xf9:
		return "flushed, as the queue was in error"
	}
	return ""
}
