package uverbs

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
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
var transitions = [ib.DCI + 1][ib.QPErr + 1][ib.QPErr + 1]*transition{
	ib.RC: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			ib.QPRTR: {
				AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
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
			ib.QPSQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrRC},
		},
		ib.QPSQE: {ib.QPRTS: {0, 0}},
	},
	ib.UC: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			ib.QPRTR:  {AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		ib.QPRTR: {ib.QPRTS: {AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			ib.QPSQD: {0, AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState},
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
			ib.QPRTR:  {AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		ib.QPRTR: {ib.QPRTS: {attrXRCSend | AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		ib.QPRTS: {
			ib.QPRTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			ib.QPSQD: {0, AttrEnSQDAsyncNotify},
		},
		ib.QPSQD: {
			ib.QPRTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			ib.QPSQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCSend},
		},
		ib.QPSQE: {ib.QPRTS: {0, 0}},
	},
	ib.XRCRecv: {
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			ib.QPRTR: {
				AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
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
			ib.QPSQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCRecv},
		},
		ib.QPSQE: {ib.QPRTS: {0, 0}},
	},
	ib.DCI: { // modify_dci_qp_is_ok, drivers/infiniband/hw/mlx5/qp.c
		ib.QPReset: {ib.QPInit: {AttrPKeyIndex | AttrPort, 0}},
		ib.QPInit: {
			ib.QPInit: {0, AttrPKeyIndex | AttrPort},
			ib.QPRTR:  {AttrPathMTU, AttrPKeyIndex | AttrAV},
		},
		ib.QPRTR: {ib.QPRTS: {attrXRCSend | AttrSQPSN, AttrMinRNRTimer}},
		ib.QPRTS: {ib.QPRTS: {0, AttrMinRNRTimer}},
	},
}

// lookUp returns the attributes of a change of state, and whether the change is possible.
func lookUp(typ ib.QPType, from, to ib.QPState) (transition, bool) {
	if typ <= ib.DCI && from <= ib.QPErr && to <= ib.QPErr {
		if t := transitions[typ][from][to]; t != nil {
			return *t, true
		}
	}
	return transition{}, typ != ib.DCT && (to == ib.QPReset || to == ib.QPErr && from != ib.QPReset)
}

// checkModify returns an ArgError that lists missing and superfluous attributes of a change of
// state.
func checkModify(typ ib.QPType, from, to ib.QPState, mask QPAttrMask) error {
	t, ok := lookUp(typ, from, to)
	given := mask &^ AttrState
	missing, extra := t.required&^given, given&^(t.required|t.optional)
	if ok && missing == 0 && extra == 0 {
		return nil
	}
	op := fmt.Sprintf("Modify %s QP from %s to %s", typ, from, to)
	switch {
	case !ok && from >= ib.QPRTR && to <= ib.QPRTS && typ != ib.DCT:
		return argErr(op, "State", to, "%s; it is connected or ready already: Modify it to RESET first", reachable(typ, from))
	case !ok:
		return argErr(op, "State", to, "%s", reachable(typ, from))
	case missing != 0:
		return argErr(op, "mask", fmt.Sprintf("missing %s; it has %s", missing, given), "required %s; optional %s", t.required, t.optional)
	}
	return argErr(op, "mask", fmt.Sprintf("of superfluous %s; it has %s", extra, given), "required %s; optional %s", t.required, t.optional)
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
		return "none; use ReadyDC and Close"
	}
	return strings.Join(to, ", ")
}
