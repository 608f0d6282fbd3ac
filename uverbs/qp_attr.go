package uverbs

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// GRH is a global route header (struct ibv_global_route).
type GRH struct {
	DGID         ib.GID // DGID is the peer's GID.
	FlowLabel    uint32 // FlowLabel is the flow label, 20 bits.
	SGIDIndex    uint8  // SGIDIndex is the index of the local GID.
	HopLimit     uint8  // HopLimit is the number of routers that a packet may cross.
	TrafficClass uint8  // TrafficClass is the traffic class in the IP header.
}

// AHAttr is the path to a peer (struct ibv_ah_attr).
type AHAttr struct {
	DLID        uint16        // DLID is the destination LID on InfiniBand.
	SL          uint8         // SL is the service level, 0 to 15.
	SrcPathBits uint8         // SrcPathBits are added to the local LID.
	StaticRate  ib.StaticRate // StaticRate limits the rate of sending.
	Port        uint8         // Port is the local port.
	Global      bool          // Global says that packets have a GRH. It is required on RoCE; see also PortAttr.GRHRequired.
	GRH         GRH           // GRH is the global route header.
}

// QPAttr are a queue pair's attributes (struct ibv_qp_attr).
type QPAttr struct {
	State            ib.QPState      // State is the new state for Modify, or the current state from Query.
	CurState         ib.QPState      // CurState is the state that the caller assumes the QP to be in.
	PathMTU          ib.MTU          // PathMTU is the maximum payload of a packet.
	PathMigState     ib.PathMigState // PathMigState is the state of the migration to AltAH: Modify to PathRearm prepares it, Query returns PathArmed once both sides are ready, and Modify to PathMigrated migrates.
	QKey             uint32          // QKey is the Q_Key that received datagrams must carry.
	RQPSN            uint32          // RQPSN is the first PSN to receive, 24 bits.
	SQPSN            uint32          // SQPSN is the first PSN to send, 24 bits.
	DestQPN          uint32          // DestQPN is the peer's QP number, 24 bits.
	Access           Access          // Access is what the QP permits its peer.
	Caps             QPCaps          // Caps is filled in by Query.
	AH               AHAttr          // AH is the path to the peer.
	AltAH            AHAttr          // AltAH is the alternate path.
	PKeyIndex        uint16          // PKeyIndex is the index into the P_Key table.
	AltPKeyIndex     uint16          // AltPKeyIndex is PKeyIndex of the alternate path.
	EnSQDAsyncNotify bool            // EnSQDAsyncNotify requests an event when the send queue is drained.
	SQDraining       bool            // SQDraining says that the send queue is being drained; filled in by Query.
	MaxRdAtomic      uint8           // MaxRdAtomic is the number of READs and atomics in flight to the peer.
	MaxDestRdAtomic  uint8           // MaxDestRdAtomic is the number of READs and atomics in flight from the peer. One more fails; rxe carries it out.
	MinRNRTimer      ib.RNRTimer     // MinRNRTimer is how long the peer must wait if there is no receive.
	Port             uint8           // Port is the local port.
	Timeout          ib.AckTimeout   // Timeout is the wait for an acknowledgement.
	RetryCount       uint8           // RetryCount is the number of retries, up to 7.
	RNRRetry         uint8           // RNRRetry is the number of retries while the peer has no receive; 7 means forever.
	AltPort          uint8           // AltPort is the port of the alternate path.
	AltTimeout       ib.AckTimeout   // AltTimeout is Timeout of the alternate path.
	RateLimit        uint32          // RateLimit is the most that a raw packet QP sends, in kbit/s (ibv_modify_qp_rate_limit), see [Device.RateLimits]; 0 means no limit.
}

// QPAttrMask selects the fields of [QPAttr] that a call of [QP.Modify] sets (enum ib_qp_attr_mask,
// rdma/ib_verbs.h).
type QPAttrMask uint32

// Attributes (IBV_QP_STATE and following).
const (
	AttrState            QPAttrMask = 1 << 0
	AttrCurState         QPAttrMask = 1 << 1
	AttrEnSQDAsyncNotify QPAttrMask = 1 << 2
	AttrAccess           QPAttrMask = 1 << 3
	AttrPKeyIndex        QPAttrMask = 1 << 4
	AttrPort             QPAttrMask = 1 << 5
	AttrQKey             QPAttrMask = 1 << 6
	AttrAH               QPAttrMask = 1 << 7
	AttrPathMTU          QPAttrMask = 1 << 8
	AttrTimeout          QPAttrMask = 1 << 9
	AttrRetryCount       QPAttrMask = 1 << 10
	AttrRNRRetry         QPAttrMask = 1 << 11
	AttrRQPSN            QPAttrMask = 1 << 12
	AttrMaxRdAtomic      QPAttrMask = 1 << 13
	AttrAltPath          QPAttrMask = 1 << 14
	AttrMinRNRTimer      QPAttrMask = 1 << 15
	AttrSQPSN            QPAttrMask = 1 << 16
	AttrMaxDestRdAtomic  QPAttrMask = 1 << 17
	AttrPathMigState     QPAttrMask = 1 << 18
	AttrCap              QPAttrMask = 1 << 19
	AttrDestQPN          QPAttrMask = 1 << 20
	AttrRateLimit        QPAttrMask = 1 << 25
)

// attrNames are the names of the attributes by bit.
var attrNames = [...]string{
	"State", "CurState", "EnSQDAsyncNotify", "Access", "PKeyIndex", "Port", "QKey", "AV", "PathMTU", "Timeout", "RetryCount",
	"RNRRetry", "RQPSN", "MaxRdAtomic", "AltPath", "MinRNRTimer", "SQPSN", "MaxDestRdAtomic", "PathMigState", "Cap", "DestQPN",
	"", "", "", "", "RateLimit",
}

// String lists the attributes of the mask.
func (m QPAttrMask) String() string {
	if m == 0 {
		return "none"
	}
	var names []string
	for rest := m; rest != 0; rest &= rest - 1 {
		bit := bits.TrailingZeros32(uint32(rest))
		if bit < len(attrNames) && attrNames[bit] != "" {
			names = append(names, attrNames[bit])
		} else {
			names = append(names, fmt.Sprintf("bit %d", bit))
		}
	}
	return strings.Join(names, ", ")
}

// given lists the selected values, for errors.
func (a *QPAttr) given(mask QPAttrMask) string {
	var all []string
	for _, f := range []struct {
		bit   QPAttrMask
		value any
	}{
		{AttrPort, a.Port},
		{AttrPKeyIndex, a.PKeyIndex},
		{AttrAccess, a.Access},
		{AttrQKey, a.QKey},
		{AttrAH, a.AH.given()},
		{AttrAltPath, a.AltAH.given()},
		{AttrPathMTU, a.PathMTU.Bytes()},
		{AttrDestQPN, a.DestQPN},
		{AttrRQPSN, a.RQPSN},
		{AttrSQPSN, a.SQPSN},
		{AttrMaxRdAtomic, a.MaxRdAtomic},
		{AttrMaxDestRdAtomic, a.MaxDestRdAtomic},
		{AttrMinRNRTimer, uint8(a.MinRNRTimer)},
		{AttrTimeout, uint8(a.Timeout)},
		{AttrRetryCount, a.RetryCount},
		{AttrRNRRetry, a.RNRRetry},
		{AttrPathMigState, a.PathMigState},
		{AttrRateLimit, a.RateLimit},
	} {
		if mask&f.bit != 0 {
			all = append(all, fmt.Sprintf("%s %v", f.bit, f.value))
		}
	}
	return strings.Join(all, ", ")
}

// given describes the path to a peer, for errors.
func (a *AHAttr) given() string {
	if !a.Global {
		return fmt.Sprintf("to LID %d from port %d", a.DLID, a.Port)
	}
	return fmt.Sprintf("to %s from GID %d of port %d", a.GRH.DGID.Addr(), a.GRH.SGIDIndex, a.Port)
}

// dest converts an address to the kernel's form.
func (a *AHAttr) dest() abi.QPDest {
	dest := abi.QPDest{
		DGID:         a.GRH.DGID,
		FlowLabel:    a.GRH.FlowLabel,
		DLID:         a.DLID,
		SGIDIndex:    a.GRH.SGIDIndex,
		HopLimit:     a.GRH.HopLimit,
		TrafficClass: a.GRH.TrafficClass,
		SL:           a.SL,
		SrcPathBits:  a.SrcPathBits,
		StaticRate:   uint8(a.StaticRate),
		PortNum:      a.Port,
	}
	if a.Global {
		dest.IsGlobal = 1
	}
	return dest
}

// ahAttr converts an address from the kernel's form.
func ahAttr(d *abi.QPDest) AHAttr {
	return AHAttr{
		DLID:        d.DLID,
		SL:          d.SL,
		SrcPathBits: d.SrcPathBits,
		StaticRate:  ib.StaticRate(d.StaticRate),
		Port:        d.PortNum,
		Global:      d.IsGlobal != 0,
		GRH: GRH{
			DGID:         d.DGID,
			FlowLabel:    d.FlowLabel,
			SGIDIndex:    d.SGIDIndex,
			HopLimit:     d.HopLimit,
			TrafficClass: d.TrafficClass,
		},
	}
}

// QPCaps are the sizes of a QP's queues (struct ibv_qp_cap).
type QPCaps struct {
	MaxSendWR  int // MaxSendWR is the number of work requests in the send queue.
	MaxRecvWR  int // MaxRecvWR is the number of work requests in the receive queue.
	MaxSendSGE int // MaxSendSGE is the maximum number of SGEs of a send.
	MaxRecvSGE int // MaxRecvSGE is the maximum number of SGEs of a receive.
	MaxInline  int // MaxInline is the maximum inline data of a send, in bytes.
}

// Largest values of the 24-bit numbers.
const (
	maxPSN = 1<<24 - 1
	maxQPN = 1<<24 - 1
)

// transition has the attributes that a change of state requires and those that it permits.
type transition struct{ required, optional QPAttrMask }

// Attributes for acknowledgements and READs: those of RC, and of each side of an XRC connection.
const (
	attrRC      = attrXRCSend | attrXRCRecv
	attrXRCSend = AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic
	attrXRCRecv = AttrTimeout | AttrMaxDestRdAtomic | AttrMinRNRTimer
)

// transitions are the changes of state by QP type, state before and state after; nil if the change
// is not possible. AttrState itself is always permitted. Every state may also change to Reset, and
// every state but Reset to Err, without attributes (qp_state_table,
// drivers/infiniband/core/verbs.c). The compiler lays out an array of pointers, whereas a map would
// be filled at every program start.
var transitions = [ib.SRD + 1][ib.QPErr + 1][ib.QPErr + 1]*transition{
	ib.RC: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			ib.QPRTR: {
				AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
				AttrAltPath | AttrAccess | AttrPKeyIndex,
			},
		},
		ib.QPRTR: {
			ib.QPRTS: {
				AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic,
				AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState,
			},
		},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState | AttrMinRNRTimer},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState},
			ib.QPSQD: {0, AttrPort | AttrAH | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrRC},
		},
		ib.QPSQE: {ib.QPRTS: {0, 0}},
	},
	ib.UC: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			ib.QPRTR:  {AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		ib.QPRTR: {ib.QPRTS: {AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			ib.QPSQD: {0, AttrAH | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState},
		},
		ib.QPSQE: {ib.QPRTS: {0, AttrCurState | AttrAccess}},
	},
	ib.UD: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrQKey, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrQKey},
			ib.QPRTR:  {0, AttrPKeyIndex | AttrQKey},
		},
		ib.QPRTR: {ib.QPRTS: {AttrSQPSN, AttrCurState | AttrQKey}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrQKey},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrQKey},
			ib.QPSQD: {0, AttrPKeyIndex | AttrQKey},
		},
		ib.QPSQE: {ib.QPRTS: {0, AttrCurState | AttrQKey}},
	},
	ib.RawPacket: {
		ib.QPReset: {ib.QPInit: {AttrPort, 0}},
		ib.QPInit: {
			ib.QPInit: {0, 0},
			ib.QPRTR:  {0, 0},
		},
		ib.QPRTR: {ib.QPRTS: {0, AttrRateLimit}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrRateLimit},
			ib.QPSQD: {0, 0},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, 0},
			ib.QPSQD: {0, 0},
		},
		ib.QPSQE: {ib.QPRTS: {0, 0}},
	},
	ib.XRCSend: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			ib.QPRTR:  {AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		ib.QPRTR: {ib.QPRTS: {attrXRCSend | AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			ib.QPSQD: {0, AttrPort | AttrAH | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCSend},
		},
		ib.QPSQE: {ib.QPRTS: {0, 0}},
	},
	ib.XRCRecv: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			ib.QPRTR: {
				AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
				AttrAltPath | AttrAccess | AttrPKeyIndex,
			},
		},
		ib.QPRTR: {ib.QPRTS: {AttrTimeout | AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState | AttrMinRNRTimer},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState},
			ib.QPSQD: {0, AttrPort | AttrAH | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCRecv},
		},
		ib.QPSQE: {ib.QPRTS: {0, 0}},
	},
	ib.DCI: { // modify_dci_qp_is_ok, drivers/infiniband/hw/mlx5/qp.c
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort},
			ib.QPRTR:  {AttrPathMTU, AttrPKeyIndex | AttrAH},
		},
		ib.QPRTR: {ib.QPRTS: {attrXRCSend | AttrSQPSN, AttrMinRNRTimer}},
		ib.QPRTS: {ib.QPRTS: {0, AttrMinRNRTimer}},
	},
	ib.SRD: { // srd_qp_state_table, drivers/infiniband/hw/efa/efa_verbs.c
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrQKey, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrQKey},
			ib.QPRTR:  {0, AttrPKeyIndex | AttrQKey},
		},
		ib.QPRTR: {ib.QPRTS: {AttrSQPSN, AttrCurState | AttrQKey | AttrRNRRetry}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrQKey},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrQKey},
			ib.QPSQD: {0, AttrPKeyIndex | AttrQKey},
		},
		ib.QPSQE: {ib.QPRTS: {0, AttrCurState | AttrQKey}},
	},
}

// lookUp returns the attributes of a change of state, and whether the change is possible.
func lookUp(typ ib.QPType, from, to ib.QPState) (transition, bool) {
	if typ <= ib.SRD && from <= ib.QPErr && to <= ib.QPErr {
		if t := transitions[typ][from][to]; t != nil {
			return *t, true
		}
	}
	return transition{}, typ != ib.DCT && (to == ib.QPReset || to == ib.QPErr && from != ib.QPReset)
}

// checkModify returns an ArgError that lists missing and superfluous attributes of a change of state.
func checkModify(typ ib.QPType, from, to ib.QPState, mask QPAttrMask) error {
	t, ok := lookUp(typ, from, to)
	given := mask &^ AttrState
	missing, extra := t.required&^given, given&^(t.required|t.optional)
	if ok && missing == 0 && extra == 0 {
		return nil
	}
	op := fmt.Sprintf("Modify %s QP in %s", typ, from)
	switch {
	case !ok && from >= ib.QPRTR && to <= ib.QPRTS && typ != ib.DCT:
		return argErr(op, "State", to, "%s; it is connected or ready already: Modify it to RESET first", reachable(typ, from))
	case !ok:
		return argErr(op, "State", to, "%s", reachable(typ, from))
	case missing != 0:
		return argErr(op+" to "+to.String(), "mask", fmt.Sprintf("missing %s; it has %s", missing, given), "required %s; optional %s", t.required, t.optional)
	}
	return argErr(op+" to "+to.String(), "mask", fmt.Sprintf("of superfluous %s; it has %s", extra, given), "required %s; optional %s", t.required, t.optional)
}

// reachable lists the states that a state may change to.
func reachable(typ ib.QPType, from ib.QPState) string {
	var to []string
	for s := ib.QPReset; s <= ib.QPErr; s++ {
		if _, ok := lookUp(typ, from, s); ok {
			to = append(to, s.String())
		}
	}
	if len(to) == 0 {
		return "none; use mlx5.ReadyDC and Close"
	}
	return strings.Join(to, ", ")
}

// WQState is the state of a work queue (enum ibv_wq_state).
type WQState uint32

// States of a WQ.
const (
	WQReset WQState = iota // newly created; nothing can be posted (IBV_WQS_RESET)
	WQReady                // ready to receive (IBV_WQS_RDY)
	WQErr                  // error; all posted work requests are flushed (IBV_WQS_ERR)
)

// String returns the state's name.
func (s WQState) String() string {
	names := [...]string{"RESET", "RDY", "ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("WQ state %d", uint32(s))
}

// WQFlags are properties of a work queue (enum ib_uverbs_wq_flags).
type WQFlags uint32

// Flags of a WQ.
const (
	WQStripVLAN   WQFlags = abi.IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING       // move the VLAN tag of a frame to [WC] (IBV_WQ_FLAGS_CVLAN_STRIPPING)
	WQScatterFCS  WQFlags = abi.IB_UVERBS_WQ_FLAGS_SCATTER_FCS           // also store the checksum (FCS) of a frame (IBV_WQ_FLAGS_SCATTER_FCS)
	WQDelayDrop   WQFlags = abi.IB_UVERBS_WQ_FLAGS_DELAY_DROP            // wait for a receive before dropping a packet (IBV_WQ_FLAGS_DELAY_DROP)
	WQPadWriteEnd WQFlags = abi.IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING // pad writes to whole cache lines (IBV_WQ_FLAGS_PCI_WRITE_END_PADDING)
)

// wqFlagsAll are all WQ flags.
const wqFlagsAll = WQStripVLAN | WQScatterFCS | WQDelayDrop | WQPadWriteEnd
