package rxe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestConstants compares with numbers counted in the C headers: ib_user_verbs.h
// and ib_user_ioctl_verbs.h, and for flags and the completions of receives
// ib_verbs.h of the kernel.
func TestConstants(t *testing.T) {
	type values map[string]uint32
	got := values{
		"RDMA_DRIVER_RXE":                   DriverID,
		"IB_UVERBS_WR_RDMA_WRITE":           Write,
		"IB_UVERBS_WR_RDMA_WRITE_WITH_IMM":  WriteImm,
		"IB_UVERBS_WR_SEND":                 Send,
		"IB_UVERBS_WR_SEND_WITH_IMM":        SendImm,
		"IB_UVERBS_WR_RDMA_READ":            Read,
		"IB_UVERBS_WR_ATOMIC_CMP_AND_SWP":   AtomicCAS,
		"IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD": AtomicFAA,
		"IB_UVERBS_WR_LOCAL_INV":            LocalInv,
		"IB_UVERBS_WR_BIND_MW":              BindMW,
		"IB_UVERBS_WR_SEND_WITH_INV":        SendInv,
		"IB_UVERBS_WR_FLUSH":                Flush,
		"IB_UVERBS_WR_ATOMIC_WRITE":         AtomicWrite,
		"IB_SEND_FENCE":                     Fence,
		"IB_SEND_SIGNALED":                  Signaled,
		"IB_SEND_SOLICITED":                 Solicited,
		"IB_SEND_INLINE":                    Inline,
		"IB_UVERBS_WC_SEND":                 WCSend,
		"IB_UVERBS_WC_RDMA_WRITE":           WCWrite,
		"IB_UVERBS_WC_RDMA_READ":            WCRead,
		"IB_UVERBS_WC_COMP_SWAP":            WCAtomicCAS,
		"IB_UVERBS_WC_FETCH_ADD":            WCAtomicFAA,
		"IB_UVERBS_WC_BIND_MW":              WCBindMW,
		"IB_UVERBS_WC_LOCAL_INV":            WCLocalInv,
		"IB_UVERBS_WC_FLUSH":                WCFlush,
		"IB_UVERBS_WC_ATOMIC_WRITE":         WCAtomicWrite,
		"IB_WC_RECV":                        WCRecv,
		"IB_WC_RECV_RDMA_WITH_IMM":          WCRecvWrite,
		"IB_WC_GRH":                         WCGRH,
		"IB_WC_WITH_IMM":                    WCWithImm,
		"IB_WC_WITH_INVALIDATE":             WCWithInvalidate,
	}
	want := values{
		"RDMA_DRIVER_RXE":                   14,
		"IB_UVERBS_WR_RDMA_WRITE":           0,
		"IB_UVERBS_WR_RDMA_WRITE_WITH_IMM":  1,
		"IB_UVERBS_WR_SEND":                 2,
		"IB_UVERBS_WR_SEND_WITH_IMM":        3,
		"IB_UVERBS_WR_RDMA_READ":            4,
		"IB_UVERBS_WR_ATOMIC_CMP_AND_SWP":   5,
		"IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD": 6,
		"IB_UVERBS_WR_LOCAL_INV":            7,
		"IB_UVERBS_WR_BIND_MW":              8,
		"IB_UVERBS_WR_SEND_WITH_INV":        9,
		"IB_UVERBS_WR_FLUSH":                14,
		"IB_UVERBS_WR_ATOMIC_WRITE":         15,
		"IB_SEND_FENCE":                     1,
		"IB_SEND_SIGNALED":                  2,
		"IB_SEND_SOLICITED":                 4,
		"IB_SEND_INLINE":                    8,
		"IB_UVERBS_WC_SEND":                 0,
		"IB_UVERBS_WC_RDMA_WRITE":           1,
		"IB_UVERBS_WC_RDMA_READ":            2,
		"IB_UVERBS_WC_COMP_SWAP":            3,
		"IB_UVERBS_WC_FETCH_ADD":            4,
		"IB_UVERBS_WC_BIND_MW":              5,
		"IB_UVERBS_WC_LOCAL_INV":            6,
		"IB_UVERBS_WC_FLUSH":                8,
		"IB_UVERBS_WC_ATOMIC_WRITE":         9,
		"IB_WC_RECV":                        128,
		"IB_WC_RECV_RDMA_WITH_IMM":          129,
		"IB_WC_GRH":                         1,
		"IB_WC_WITH_IMM":                    2,
		"IB_WC_WITH_INVALIDATE":             4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
