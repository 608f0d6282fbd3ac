package uverbs

import (
	"testing"

	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// TestValues compares constants that the kernel, a device or a peer gets as numbers with those of
// the kernel's rdma/ib_verbs.h and rdma/ib_user_verbs.h.
func TestValues(t *testing.T) {
	check := func(header string, first int, got ...int) {
		t.Helper()
		for i, v := range got {
			if v != first+i {
				t.Errorf("%s: value %d of the list is %d, want %d", header, i, v, first+i)
			}
		}
	}
	check("enum ib_wr_opcode plus 1", 1, int(WRRDMAWrite), int(WRRDMAWriteWithImm), int(WRSend), int(WRSendWithImm), int(WRRDMARead),
		int(WRCompareSwap), int(WRFetchAdd), int(WRLocalInv), int(WRBindMW), int(WRSendWithInv))
	check("IB_WR_RDMA_READ_WITH_INV plus 1", 12, int(WRRDMAReadWithInv))
	check("IB_UVERBS_WR_FLUSH, IB_UVERBS_WR_ATOMIC_WRITE plus 1", 15, int(WRFlush), int(WRAtomicWrite))
	check("enum ib_wc_opcode", 0, int(WCSend), int(WCRDMAWrite), int(WCRDMARead), int(WCCompareSwap), int(WCFetchAdd), int(WCBindMW), int(WCLocalInv))
	check("IB_UVERBS_WC_FLUSH, IB_UVERBS_WC_ATOMIC_WRITE", 8, int(WCFlush), int(WCAtomicWrite))
	check("IB_WC_RECV", 128, int(WCRecv), int(WCRecvRDMAWrite))
	check("enum ib_wc_status", 0, int(WCSuccess), int(WCLocLenErr), int(WCLocQPOpErr), int(WCLocEECOpErr), int(WCLocProtErr), int(WCWRFlushErr),
		int(WCMWBindErr), int(WCBadRespErr), int(WCLocAccessErr), int(WCRemInvReqErr), int(WCRemAccessErr), int(WCRemOpErr), int(WCRetryExcErr),
		int(WCRNRRetryExcErr), int(WCLocRDDViolErr), int(WCRemInvRDReqErr), int(WCRemAbortErr), int(WCInvEECNErr), int(WCInvEECStateErr),
		int(WCFatalErr), int(WCRespTimeoutErr), int(WCGeneralErr))
	check("enum ib_placement_type", 1, int(FlushGlobal), int(FlushPersistent))
	check("enum ib_selectivity_level", 0, int(FlushRange), int(FlushMR))
	check("enum ib_event_type", 0, int(EventCQErr), int(EventQPFatal), int(EventQPReqErr), int(EventQPAccessErr), int(EventCommEst),
		int(EventSQDrained), int(EventPathMig), int(EventPathMigErr), int(EventDeviceFatal), int(EventPortActive), int(EventPortErr),
		int(EventLIDChange), int(EventPKeyChange), int(EventSMChange), int(EventSRQErr), int(EventSRQLimitReached), int(EventQPLastWQEReached),
		int(EventClientReregister), int(EventGIDChange), int(EventWQFatal), int(EventDeviceSpeedChange))
	check("enum ib_wq_state", 0, int(WQReset), int(WQReady), int(WQErr))
	check("enum ib_flow_attr_type", 0, int(flow.Normal), int(flow.AllDefault), int(flow.MCDefault), int(flow.Sniffer))
	check("enum ib_mw_type", 1, int(MWType1), int(MWType2))
	check("enum ib_uverbs_gid_type", abi.IB_UVERBS_GID_TYPE_IB, int(ib.GIDTypeIB), int(ib.GIDTypeRoCEv1), int(ib.GIDTypeRoCEv2))

	bits := func(header string, first int, got ...int) {
		t.Helper()
		for i, v := range got {
			if want := 1 << (first + i); v != want {
				t.Errorf("%s: bit %d of the list is %#x, want %#x", header, i, v, want)
			}
		}
	}
	bits("enum ib_send_flags", 0, int(SendFence), int(SendSignaled), int(SendSolicited))
	bits("enum ib_uverbs_access_flags", 0, int(AccessLocalWrite), int(AccessRemoteWrite), int(AccessRemoteRead), int(AccessRemoteAtomic),
		int(AccessMWBind), int(AccessZeroBased), int(AccessOnDemand), int(AccessHugeTLB), int(AccessFlushGlobal), int(AccessFlushPersistent))
	bits("IB_UVERBS_ACCESS_RELAXED_ORDERING", 20, int(AccessRelaxedOrdering))
	bits("enum ib_qp_attr_mask", 0, int(AttrState), int(AttrCurState), int(AttrEnSQDAsyncNotify), int(AttrAccess), int(AttrPKeyIndex), int(AttrPort),
		int(AttrQKey), int(AttrAH), int(AttrPathMTU), int(AttrTimeout), int(AttrRetryCount), int(AttrRNRRetry), int(AttrRQPSN), int(AttrMaxRdAtomic),
		int(AttrAltPath), int(AttrMinRNRTimer), int(AttrSQPSN), int(AttrMaxDestRdAtomic), int(AttrPathMigState), int(AttrCap), int(AttrDestQPN))
	bits("IB_QP_RATE_LIMIT", 25, int(AttrRateLimit))
	bits("enum ib_flow_flags", 1, int(flow.DontTrap), int(flow.Egress))
	bits("enum ib_rx_hash_fields", 0, int(RXHashSrcIPv4), int(RXHashDstIPv4), int(RXHashSrcIPv6), int(RXHashDstIPv6), int(RXHashSrcTCP),
		int(RXHashDstTCP), int(RXHashSrcUDP), int(RXHashDstUDP))
	bits("enum ibv_query_qp_data_in_order_caps", 0, int(InOrderMessage), int(InOrder128))
}
