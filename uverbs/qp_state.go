package uverbs

import (
	"fmt"
	"strings"
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
var transitions = [DCI + 1][QPErr + 1][QPErr + 1]*transition{
	RC: {
		QPReset: {QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		QPInit: {
			QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			QPRTR: {
				AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
				AttrAltPath | AttrAccess | AttrPKeyIndex,
			},
		},
		QPRTR: {
			QPRTS: {
				AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic,
				AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState,
			},
		},
		QPRTS: {
			QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState | AttrMinRNRTimer},
			QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		QPSQD: {
			QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState},
			QPSQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrRC},
		},
		QPSQE: {QPRTS: {0, 0}},
	},
	UC: {
		QPReset: {QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		QPInit: {
			QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			QPRTR:  {AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		QPRTR: {QPRTS: {AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		QPRTS: {
			QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		QPSQD: {
			QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			QPSQD: {0, AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState},
		},
		QPSQE: {QPRTS: {0, AttrCurState | AttrAccess}},
	},
	UD: {
		QPReset: {QPInit: {AttrPKeyIndex | AttrPort | AttrQKey, 0}},
		QPInit: {
			QPInit: {0, AttrPKeyIndex | AttrPort | AttrQKey},
			QPRTR:  {0, AttrPKeyIndex | AttrQKey},
		},
		QPRTR: {QPRTS: {AttrSQPSN, AttrCurState | AttrQKey}},
		QPRTS: {
			QPRTS: {0, AttrCurState | AttrQKey},
			QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		QPSQD: {
			QPRTS: {0, AttrCurState | AttrQKey},
			QPSQD: {0, AttrPKeyIndex | AttrQKey},
		},
		QPSQE: {QPRTS: {0, AttrCurState | AttrQKey}},
	},
	RawPacket: {
		QPReset: {QPInit: {AttrPort, 0}},
		QPInit: {
			QPInit: {0, 0},
			QPRTR:  {0, 0},
		},
		QPRTR: {QPRTS: {0, AttrRateLimit}},
		QPRTS: {
			QPRTS: {0, AttrRateLimit},
			QPSQD: {0, 0},
		},
		QPSQD: {
			QPRTS: {0, 0},
			QPSQD: {0, 0},
		},
		QPSQE: {QPRTS: {0, 0}},
	},
	XRCSend: {
		QPReset: {QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		QPInit: {
			QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			QPRTR:  {AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		QPRTR: {QPRTS: {attrXRCSend | AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		QPRTS: {
			QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		QPSQD: {
			QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			QPSQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCSend},
		},
		QPSQE: {QPRTS: {0, 0}},
	},
	XRCRecv: {
		QPReset: {QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		QPInit: {
			QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			QPRTR: {
				AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
				AttrAltPath | AttrAccess | AttrPKeyIndex,
			},
		},
		QPRTR: {QPRTS: {AttrTimeout | AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState}},
		QPRTS: {
			QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState | AttrMinRNRTimer},
			QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		QPSQD: {
			QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState},
			QPSQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCRecv},
		},
		QPSQE: {QPRTS: {0, 0}},
	},
	DCI: { // modify_dci_qp_is_ok, drivers/infiniband/hw/mlx5/qp.c
		QPReset: {QPInit: {AttrPKeyIndex | AttrPort, 0}},
		QPInit: {
			QPInit: {0, AttrPKeyIndex | AttrPort},
			QPRTR:  {AttrPathMTU, AttrPKeyIndex | AttrAV},
		},
		QPRTR: {QPRTS: {attrXRCSend | AttrSQPSN, AttrMinRNRTimer}},
		QPRTS: {QPRTS: {0, AttrMinRNRTimer}},
	},
}

// lookUp returns the attributes of a change of state, and whether the change is possible.
func lookUp(typ QPType, from, to QPState) (transition, bool) {
	if typ <= DCI && from <= QPErr && to <= QPErr {
		if t := transitions[typ][from][to]; t != nil {
			return *t, true
		}
	}
	return transition{}, typ != DCT && (to == QPReset || to == QPErr && from != QPReset)
}

// checkModify returns an ArgError that lists missing and superfluous attributes of a change of
// state.
func checkModify(typ QPType, from, to QPState, mask QPAttrMask) error {
	t, ok := lookUp(typ, from, to)
	given := mask &^ AttrState
	missing, extra := t.required&^given, given&^(t.required|t.optional)
	if ok && missing == 0 && extra == 0 {
		return nil
	}
	op := fmt.Sprintf("Modify %s QP from %s to %s", typ, from, to)
	switch {
	case !ok:
		return argErr(op, "State", to, "%s", reachable(typ, from))
	case missing != 0:
		return argErr(op, "attribute mask", fmt.Sprintf("(%s), missing %s", given, missing), "required %s; optional %s", t.required, t.optional)
	}
	return argErr(op, "attribute mask", fmt.Sprintf("(%s), superfluous %s", given, extra), "required %s; optional %s", t.required, t.optional)
}

// reachable lists the states that a state may change to.
func reachable(typ QPType, from QPState) string {
	var to []string
	for s := QPReset; s <= QPErr; s++ {
		if _, ok := lookUp(typ, from, s); ok {
			to = append(to, s.String())
		}
	}
	if len(to) == 0 {
		return "none; use ReadyDC and Close"
	}
	return strings.Join(to, ", ")
}
