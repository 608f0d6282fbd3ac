package uverbs

import (
	"fmt"
	"strings"
)

// transition says which attributes a change of state takes.
type transition struct{ required, optional QPAttrMask }

// Attributes that concern acknowledgements and READs, which RC alone has, and of these the
// ones that each end of an XRC has.
const (
	attrRC      = attrXRCSend | attrXRCRecv
	attrXRCSend = AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic
	attrXRCRecv = AttrTimeout | AttrMaxDestRdAtomic | AttrMinRNRTimer
)

// transitions are the changes of state by type of QP, and the states before and after; nil if there is
// no such change. AttrState itself is always allowed. Every state may also go to Reset, and every state
// but Reset to Err, without attributes (qp_state_table, drivers/infiniband/core/verbs.c). It is an array
// of pointers because that is laid out by the compiler, where a map is filled whenever a program starts.
var transitions = [XRCRecv + 1][Err + 1][Err + 1]*transition{
	RC: {
		Reset: {Init: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		Init: {
			Init: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			RTR: {
				AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
				AttrAltPath | AttrAccess | AttrPKeyIndex,
			},
		},
		RTR: {
			RTS: {
				AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic,
				AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState,
			},
		},
		RTS: {
			RTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState | AttrMinRNRTimer},
			SQD: {0, AttrEnSQDAsyncNotify},
		},
		SQD: {
			RTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState},
			SQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrRC},
		},
		SQE: {RTS: {0, 0}},
	},
	UC: {
		Reset: {Init: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		Init: {
			Init: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			RTR:  {AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		RTR: {RTS: {AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		RTS: {
			RTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			SQD: {0, AttrEnSQDAsyncNotify},
		},
		SQD: {
			RTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			SQD: {0, AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState},
		},
		SQE: {RTS: {0, AttrCurState | AttrAccess}},
	},
	UD: {
		Reset: {Init: {AttrPKeyIndex | AttrPort | AttrQKey, 0}},
		Init: {
			Init: {0, AttrPKeyIndex | AttrPort | AttrQKey},
			RTR:  {0, AttrPKeyIndex | AttrQKey},
		},
		RTR: {RTS: {AttrSQPSN, AttrCurState | AttrQKey}},
		RTS: {
			RTS: {0, AttrCurState | AttrQKey},
			SQD: {0, AttrEnSQDAsyncNotify},
		},
		SQD: {
			RTS: {0, AttrCurState | AttrQKey},
			SQD: {0, AttrPKeyIndex | AttrQKey},
		},
		SQE: {RTS: {0, AttrCurState | AttrQKey}},
	},
	RawPacket: {
		Reset: {Init: {AttrPort, 0}},
		Init: {
			Init: {0, 0},
			RTR:  {0, 0},
		},
		RTR: {RTS: {0, AttrRateLimit}},
		RTS: {
			RTS: {0, AttrRateLimit},
			SQD: {0, 0},
		},
		SQD: {
			RTS: {0, 0},
			SQD: {0, 0},
		},
		SQE: {RTS: {0, 0}},
	},
	XRCSend: {
		Reset: {Init: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		Init: {
			Init: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			RTR:  {AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccess | AttrPKeyIndex},
		},
		RTR: {RTS: {attrXRCSend | AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState}},
		RTS: {
			RTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState},
			SQD: {0, AttrEnSQDAsyncNotify},
		},
		SQD: {
			RTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState},
			SQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCSend},
		},
		SQE: {RTS: {0, 0}},
	},
	XRCRecv: {
		Reset: {Init: {AttrPKeyIndex | AttrPort | AttrAccess, 0}},
		Init: {
			Init: {0, AttrPKeyIndex | AttrPort | AttrAccess},
			RTR: {
				AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
				AttrAltPath | AttrAccess | AttrPKeyIndex,
			},
		},
		RTR: {RTS: {AttrTimeout | AttrSQPSN, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState}},
		RTS: {
			RTS: {0, AttrCurState | AttrAccess | AttrAltPath | AttrPathMigState | AttrMinRNRTimer},
			SQD: {0, AttrEnSQDAsyncNotify},
		},
		SQD: {
			RTS: {0, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMigState},
			SQD: {0, AttrPort | AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState | attrXRCRecv},
		},
		SQE: {RTS: {0, 0}},
	},
}

// lookUp returns the row of a change of state, and whether there is such a change.
func lookUp(typ QPType, from, to QPState) (transition, bool) {
	if typ <= XRCRecv && from <= Err && to <= Err {
		if t := transitions[typ][from][to]; t != nil {
			return *t, true
		}
	}
	return transition{}, to == Reset || to == Err && from != Reset
}

// checkModify compares a change of state with the table and names what is missing or
// superfluous.
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

// reachable lists the states that a state may go to.
func reachable(typ QPType, from QPState) string {
	var to []string
	for s := Reset; s <= Err; s++ {
		if _, ok := lookUp(typ, from, s); ok {
			to = append(to, s.String())
		}
	}
	return strings.Join(to, ", ")
}
